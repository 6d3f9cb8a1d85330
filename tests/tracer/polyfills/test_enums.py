"""The polyfills of enums agree with enums."""

from __future__ import annotations

import enum

import pytest

from minidynamo.tracer.polyfills import enums as twins


class Size(enum.Enum):
    SMALL = 1
    LARGE = [2]  # noqa: RUF012

    @classmethod
    def _missing_(cls, value):
        if value == "wrong":
            raise ValueError("its own")
        return {"s": cls.SMALL, "number": 7}.get(value)


def test_the_members_in_order():
    assert list(twins.enum_iter(Size)) == list(Size)


def test_values_of_members():
    assert all(twins.is_value_of(Size, value) for value in (Size.SMALL, 1, [2]))
    assert not any(twins.is_value_of(Size, value) for value in (2, [3], "SMALL"))


@pytest.mark.parametrize("value", ["s", "no", "wrong"])
def test_values_of_no_member(value):
    found = []
    for make in (Size, lambda value: twins.missing_member(Size, value)):
        try:
            found.append(make(value))
        except ValueError as error:
            found.append(str(error))
    assert found[0] == found[1]
    with pytest.raises(NotImplementedError):
        twins.missing_member(Size, "number")
