import contextvars
import weakref

import numpy as np
import pytest
import torch

from minidynamo.guards.guard import GuardKind
from minidynamo.guards.source import Local
from minidynamo.tracer.wrap import wrap
from minidynamo.variables.objects import (
    ClassVariable,
    ContextVarVariable,
    ModuleVariable,
    ObjectVariable,
    OpaqueVariable,
    PythonModuleVariable,
    WeakReferenceVariable,
)
from minidynamo.variables.tensors import TensorVariable
from tests.tracer.wrapping import V, assert_wrapped, empty_graph


class Plain:
    pass


class Degrees(float):
    pass


def test_trackers_and_their_guards():
    assert_wrapped(Plain(), ObjectVariable, {GuardKind.TYPE})
    assert_wrapped(torch.nn.Linear(1, 1), ModuleVariable, {GuardKind.TYPE})
    assert_wrapped(Plain, ClassVariable, {GuardKind.IDENTITY})
    assert_wrapped(torch, PythonModuleVariable, {GuardKind.IDENTITY})
    assert_wrapped(contextvars.ContextVar("depth"), ContextVarVariable, {GuardKind.IDENTITY})
    assert_wrapped(weakref.ref(Plain), WeakReferenceVariable, {GuardKind.TYPE})
    assert_wrapped(iter([1]), OpaqueVariable, {GuardKind.TYPE})
    assert_wrapped(np.ones(1), OpaqueVariable, {GuardKind.TYPE})


def test_a_number_of_a_users_class_keeps_a_plain_one():
    variable = wrap(empty_graph(), Degrees(1.5), V)
    assert isinstance(variable, ObjectVariable) and variable.storage.value == 1.5


class Named(torch.Tensor):
    pass


def test_tensors_and_their_guards():
    for value in (torch.ones(2), torch.nn.Parameter(torch.ones(2)), torch.ones(2).as_subclass(Named)):
        assert_wrapped(value, TensorVariable, {GuardKind.TYPE})
    conjugate = torch.ones(2, dtype=torch.complex64).conj()
    summing = torch.ones(2).as_subclass(type("Summing", (torch.Tensor,), {"__add__": torch.sub}))
    for value in (torch.ones(2).to_sparse(), conjugate, summing):
        assert_wrapped(value, OpaqueVariable, {GuardKind.TYPE})


@pytest.mark.filterwarnings("ignore:Named tensors")
@pytest.mark.skipif(not hasattr(torch.Tensor, "names"), reason="this torch has no named dimensions")
def test_a_tensor_with_named_dimensions_is_opaque():
    assert_wrapped(torch.ones(2, names=("row",)), OpaqueVariable, {GuardKind.TYPE})


def test_a_tensor_of_which_autograd_does_not_tell_the_history_is_opaque():
    graph = empty_graph()
    base = torch.ones(2, requires_grad=True) * 1
    with torch.no_grad():
        view = base.view(2)
    base.mul_(2)
    assert isinstance(wrap(graph, view, Local("x")), OpaqueVariable)
    assert isinstance(wrap(graph, base, Local("y")), TensorVariable)
