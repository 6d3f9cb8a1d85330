"""Warnings and log records report eager's line, regardless of the code between functions of the program."""

from __future__ import annotations

import logging
import warnings

import pytest
import torch

import minidynamo
from tests.end_to_end.programs import rows_of


def deprecated(level):
    warnings.warn("old", DeprecationWarning, stacklevel=level)
    logging.getLogger("program").warning("old", stacklevel=level)


def warns_itself(x, level):
    y = x + 1
    warnings.warn("old", DeprecationWarning, stacklevel=level)
    logging.getLogger("program").warning("old", stacklevel=level)
    return y * 2


def warns_with_lists(xs, level):
    total = xs[0] + 1
    xs.append(total)
    minidynamo.graph_break()
    deprecated(level)
    return xs.pop() * 2


class Programs:
    def warns_in_a_callee(x, level):
        y = x + 1
        deprecated(level)
        return y * 2

    def warns_behind_breaks(x, level):
        for _ in range(2):
            x = x + 1
            minidynamo.graph_break()
            deprecated(level)
        return x * 2

    def warns_as_written(x, level):
        try:
            raise ValueError
        except ValueError:
            deprecated(level)
            minidynamo.graph_break()
        return x + 1

    def warns_from_a_function_of_its_own(x, level):
        def inner(y):
            minidynamo.graph_break()
            deprecated(level)
            return y + 1

        return inner(x) + inner(x)


@torch.no_grad()
def warns_behind_a_decorator(x, level):
    minidynamo.graph_break()
    deprecated(level)
    return x + 1


def outermost(function, x, level):
    return function(x, level)


def outer(function, x, level):
    return outermost(function, x, level)


def named(function, make, level, logged):
    """Returns the lines that two calls report."""
    logged.clear()
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        for _ in range(2):
            outer(function, make(), level)
    places = [(warning.filename, warning.lineno) for warning in caught]
    return places, [(record.pathname, record.lineno, record.funcName) for record in logged]


PROGRAMS = [*rows_of(Programs), warns_itself, warns_with_lists, warns_behind_a_decorator]


@pytest.mark.parametrize("level", [1, 2, 3, 4])
@pytest.mark.parametrize("program", PROGRAMS)
def test_the_same_lines_as_eager(program, level, logged):
    make = (lambda: [torch.ones(1)]) if program is warns_with_lists else lambda: torch.ones(1)
    expected = named(program, make, level, logged)
    assert all(expected)
    assert named(minidynamo.compile(program, backend="eager"), make, level, logged) == expected


def test_a_warning_is_shown_once_for_each_line_that_calls():
    compiled = minidynamo.compile(warns_itself, backend="eager")
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("default")
        for _ in range(3):
            compiled(torch.ones(1), 2)
        compiled(torch.ones(1), 2)
    assert len(caught) == 2
