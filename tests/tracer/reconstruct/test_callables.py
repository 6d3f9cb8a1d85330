"""Functions, methods and cells behave like the program's own."""

import functools
import types
from typing import Any

import pytest

from minidynamo.variables.callables import (
    BoundBuiltin,
    BuiltinVariable,
    CellVariable,
    FunctionVariable,
    MethodVariable,
    NestedFunctionVariable,
    PartialVariable,
    SuperVariable,
)
from minidynamo.variables.containers import (
    DictVariable,
    ListVariable,
    TupleVariable,
)
from minidynamo.variables.objects import ObjectVariable
from tests.tracer.reconstruct.rebuilt import C, LoudList, key, rebuilt


def _nested(function: Any, **facts: Any) -> NestedFunctionVariable:
    return NestedFunctionVariable(function.__code__, globals(), function.__qualname__, **facts)


def test_functions_share_cells_and_can_call_themselves() -> None:
    def get() -> Any:
        return get, value

    value = 1
    value_cell, get_cell = CellVariable(C(5)), CellVariable()
    closure = {"get": get_cell, "value": value_cell}
    variable = _nested(get, closure=tuple(closure[name] for name in get.__code__.co_freevars))
    get_cell.contents = variable
    function, cell = rebuilt(variable, value_cell)
    assert function() == (function, 5)
    cell.cell_contents = 6
    assert function() == (function, 6)


def test_an_empty_cell_stays_empty() -> None:
    made = rebuilt(CellVariable())
    with pytest.raises(ValueError, match="empty"):
        made.cell_contents  # noqa: B018


def test_a_real_cell_is_itself() -> None:
    cell = types.CellType(3)
    assert rebuilt(CellVariable(None, cell)) is cell


def test_methods_partials_and_super() -> None:
    items = ListVariable([C(3)])
    append, made = rebuilt(BoundBuiltin(items, "append"), items)
    append(4)
    assert made == [3, 4]
    method = rebuilt(MethodVariable(FunctionVariable(key), C("x")))
    assert method().token == "x"
    partial = rebuilt(
        PartialVariable(BuiltinVariable(int), TupleVariable([C("11")]), DictVariable({key("base"): C(2)}))
    )
    assert isinstance(partial, functools.partial)
    assert partial() == 3
    loud = ObjectVariable(None, LoudList, ListVariable([C(1)], LoudList))
    parent, instance = rebuilt(SuperVariable(LoudList, loud), loud)
    parent.extend([2])
    assert list(instance) == [1, 2]
