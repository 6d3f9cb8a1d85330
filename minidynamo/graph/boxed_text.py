"""Owns the parts of generated boxed functions, from which a function is printed alone, or as statements of its caller.

The printers of residual programs, of host programs and of `flatten_inputs` build the parts; `frontend/inlining.py`
prints short functions as statements of a dispatcher.
"""

from __future__ import annotations

import types
from collections.abc import Iterable
from dataclasses import replace
from typing import Any

from minidynamo.core import artifacts
from minidynamo.core.records import record
from minidynamo.graph.boxed import mark_boxed


@record(frozen=True)
class Pack:
    """The statement that packs the arguments of the callee into a list."""

    #: the name of the list, which the call empties
    args: str
    #: the text between the brackets
    items: str

    def __str__(self) -> str:
        return f"{self.args} = [{self.items}]"


@record(frozen=True)
class Call:
    """The statement that calls another boxed function."""

    #: the name of the function among the globals
    callee: str
    #: the name of the packed list
    args: str
    #: the text before the call, such as `out0, = `; "return " if the function returns the results of the callee
    before: str
    indent: str = ""

    def __str__(self) -> str:
        return f"{self.indent}{self.before}{self.callee}({self.args})"


Line = str | Pack | Call
"""A line of a function, without the indentation of the function."""


@record(frozen=True)
class BoxedText:
    """A boxed function in parts."""

    #: the names of the values in the list
    inputs: tuple[str, ...]
    #: the lines after the list is unpacked; at most one of them is a Pack and one a Call
    lines: tuple[Line, ...]
    #: the returned expression; "" if the last of `lines` returns
    result: str = ""


def indented(lines: Iterable[Line]) -> list[Line]:
    """Returns the lines, one step deeper."""
    return [replace(line, indent=f"    {line.indent}") if isinstance(line, Call) else f"    {line}" for line in lines]


def load(
    kind: str, name: str, source: str, text: BoxedText | None, namespace: dict[str, Any], function: str
) -> types.FunctionType:
    """Writes and executes `source`, like `artifacts.load`; returns the boxed function, which keeps its parts."""
    loaded = artifacts.load(kind, name, source, namespace, function)
    loaded._text = text  # type: ignore[attr-defined]
    mark_boxed(loaded)
    return loaded


def text_of(function: object) -> BoxedText | None:
    """Returns the parts of a generated boxed function; None for another function."""
    return getattr(function, "_text", None)
