"""The polyfills of enums agree with enums."""

from __future__ import annotations

import enum

from minidynamo.tracer.calls.construct import is_value_of
from minidynamo.tracer.polyfills.objects import enum_iter


class Size(enum.Enum):
    SMALL = 1
    LARGE = [2]  # noqa: RUF012

    @classmethod
    def _missing_(cls, value):
        if value == "wrong":
            raise ValueError("its own")
        return {"s": cls.SMALL, "number": 7}.get(value)


def test_the_members_in_order():
    assert list(enum_iter(Size)) == list(Size)


def test_values_of_members():
    assert all(is_value_of(Size, value) for value in (Size.SMALL, 1, [2]))
    assert not any(is_value_of(Size, value) for value in (2, [3], "SMALL"))
