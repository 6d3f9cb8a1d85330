import contextvars
import sys
import weakref

import numpy as np
import torch

from minidynamo.guards.guard import GuardKind
from minidynamo.tracer.wrap import wrap
from minidynamo.tracer.wrappers.objects import is_made_in_c
from minidynamo.variables.objects import (
    ClassVariable,
    ContextVarVariable,
    ModuleVariable,
    ObjectVariable,
    OpaqueVariable,
    PythonModuleVariable,
    WeakReferenceVariable,
)
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


def test_classes_made_in_c():
    assert is_made_in_c(float) and is_made_in_c(type(sys.flags)) and not is_made_in_c(Degrees)
