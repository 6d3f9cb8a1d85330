"""Functions, methods and cells behave like the program's own."""

import functools
import types
from typing import Any

import pytest
import torch

from minidynamo.variables.callables import (
    BoundBuiltin,
    BuiltinVariable,
    CellVariable,
    ContextExitVariable,
    ContextVariable,
    FunctionVariable,
    MethodVariable,
    PartialVariable,
    SuperVariable,
)
from minidynamo.variables.containers import DictVariable, ListVariable, TupleVariable
from minidynamo.variables.objects import ObjectVariable
from tests.tracer.reconstruct.rebuilt import C, LoudList, key, rebuilt


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


@pytest.mark.parametrize("factory, args", [(torch.set_grad_enabled, (False,)), (torch.no_grad, ())])
def test_an_open_context_manager_knows_the_mode_to_go_back_to(factory: Any, args: tuple[bool, ...]) -> None:
    leave = rebuilt(ContextExitVariable(ContextVariable(factory, args, saved=True)))
    assert torch.is_grad_enabled()
    with torch.no_grad():
        leave(None, None, None)
        assert torch.is_grad_enabled()


def test_a_context_manager_that_is_not_open_is_only_made() -> None:
    made = rebuilt(ContextVariable(torch.no_grad))
    assert type(made) is torch.no_grad
    assert torch.is_grad_enabled()
