"""Weak references are read while tracing; who they refer to is guarded."""

import weakref

import pytest
import torch

from minidynamo import compile as compile_function
from minidynamo.testing import CompileCounter, no_recompile
from tests.end_to_end.programs import Programs

programs = Programs()


@pytest.mark.parametrize("program", programs)
def test_same_as_eager(program):
    program.check()


class Node:
    def __init__(self, scale):
        self.scale = scale


def node_and_reference():
    node = Node(3)
    return node, weakref.ref(node), torch.randn(4)


@programs(node_and_reference)
def read_a_reference(node, reference, x):
    found = reference()
    return x * found.scale, found is node


@programs(node_and_reference)
def make_and_return_a_reference(node, reference, x):
    made = weakref.ref(node)
    return x * made().scale, made() is node, made


@programs(node_and_reference, breaks=1)
def reference_with_a_callback(node, reference, x):
    made = weakref.ref(node, print)
    return x * made().scale


@programs(breaks=1)
def reference_to_a_new_object(x):
    node = Node(2)
    made = weakref.ref(node)
    return x * made().scale, node.scale


def test_a_dead_or_other_referent_is_noticed():
    counter = CompileCounter()
    holder = {}

    @compile_function(backend=counter)
    def scaled(reference, x):
        node = reference()
        return x if node is None else x * node.scale

    x = torch.randn(4)
    holder["a"] = Node(2)
    reference = weakref.ref(holder["a"])
    assert torch.equal(scaled(reference, x), x * 2)
    with no_recompile():
        assert torch.equal(scaled(reference, x), x * 2)
    holder["b"] = Node(5)
    assert torch.equal(scaled(weakref.ref(holder["b"]), x), x * 5)
    del holder["a"]
    assert reference() is None
    assert torch.equal(scaled(reference, x), x)


def test_compiling_keeps_no_referent_alive():
    @compile_function(backend="eager")
    def scaled(reference, x):
        return x * reference().scale

    node = Node(2)
    reference = weakref.ref(node)
    scaled(reference, torch.randn(4))
    del node
    assert reference() is None
