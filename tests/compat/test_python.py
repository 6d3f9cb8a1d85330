"""Tests of minidynamo/compat/python.py."""

from __future__ import annotations

import collections
import datetime
import functools
import re
import sys
import typing

import pytest

from minidynamo import compat


def test_version_flags_match_the_running_python():
    assert (sys.version_info >= (3, 12), sys.version_info >= (3, 13)) == (compat.PY312, compat.PY313)
    assert sys.version_info == compat.VERSION_INFO


def test_a_docstring_is_found_in_code():
    def documented():
        """Documented."""

    def with_a_constant():
        return "no docstring"

    assert compat.docstring(documented.__code__) == "Documented."
    assert compat.docstring((lambda: 1).__code__) is None
    assert compat.docstring(with_a_constant.__code__) is None


def test_members_of_a_protocol():
    class Shaped(typing.Protocol):
        shape: tuple[int, ...]

        def area(self) -> int: ...

    assert compat.protocol_members(Shaped) == ("area", "shape")


def test_classes_are_named_as_in_messages():
    for value in (collections.deque(), functools.partial(len), datetime.date(2020, 1, 1), 3):
        with pytest.raises(AttributeError, match=f"^'{re.escape(compat.name_in_errors(type(value)))}' object"):
            value.missing  # noqa: B018


def test_classes_of_the_interpreter_are_not_made_at_run_time():
    class Own(float):
        pass

    assert not compat.is_made_at_run_time(float) and not compat.is_made_at_run_time(type(sys.flags))
    assert compat.is_made_at_run_time(Own)
    assert compat.is_immutable_class(enumerate) and not compat.is_immutable_class(Own)
