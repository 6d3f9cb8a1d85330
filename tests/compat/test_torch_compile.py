"""Tests of minidynamo/compat/torch_compile.py."""

from __future__ import annotations

import torch

import minidynamo
from minidynamo import compat


def test_marks_of_torch_compile_are_seen():
    assert compat.is_made_by_torch_compile(torch.compile(lambda x: x, backend="eager"))
    assert compat.is_made_by_torch_compile(torch.compiler.disable(lambda x: x))
    assert not compat.is_made_by_torch_compile(lambda x: x)
    assert not compat.is_made_by_torch_compile(minidynamo.compile(lambda x: x, backend="eager"))


def test_constants_and_functions_for_the_graph_are_seen():
    def size():
        return 3

    assert not compat.is_assumed_constant(size) and not compat.is_allowed_by_torch_compile(size)
    assert compat.is_assumed_constant(torch.compiler.assume_constant_result(size))
    assert compat.is_allowed_by_torch_compile(torch.compiler.allow_in_graph(lambda x: x))


def test_torch_compile_leaves_such_code_to_python():
    traced = []

    def backend(gm, inputs):
        traced.append(gm)
        return gm.forward

    def plain(x):
        return x.sin()

    compat.leave_to_python(plain.__code__)
    assert torch.equal(torch.compile(plain, backend=backend)(torch.ones(2)), torch.ones(2).sin())
    assert not traced


def test_only_what_torch_compile_has_put_in_front_of_a_method_is_no_init_of_the_users():
    assert compat.original_of_tagged(lambda self: None) is None
