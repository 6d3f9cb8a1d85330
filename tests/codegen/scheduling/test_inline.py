"""Tests of minidynamo/codegen/scheduling/inline.py: values computed where they are read, values that are not, and
unread loop nests."""

from __future__ import annotations

import dataclasses

import torch

from minidynamo.codegen.ir.loops import Loops
from minidynamo.codegen.ir.verify import verify_program
from minidynamo.codegen.scheduling.inline import inline, remove_unused
from minidynamo.codegen.scheduling.lifetimes import defines
from tests.codegen.graphs import lower


def test_unread_chains_are_removed():
    program = lower(lambda x: ((x + 1).exp(), x.cumsum(0), x * 2), torch.ones(3))
    program = dataclasses.replace(program, outputs=program.outputs[2:])
    assert [defines(n) for n in remove_unused(program).nodes] == ["cumsum", "mul"]
    assert set(remove_unused(program).buffers) == {"x_1", "cumsum", "mul"}


def test_unread_results_of_a_composite_are_removed():
    program = lower(lambda x: x.max(1)[0], torch.ones(3, 4, dtype=torch.int32))
    assert "max_1_1" in map(defines, program.nodes)
    assert [defines(n) for n in remove_unused(program).nodes] == ["max_1_max", "max_1_0"]


def test_stores_into_inputs_stay():
    program = lower(lambda x: (torch.ops.aten.copy_.default(x, x + 1), None)[1:], torch.ones(3))
    assert len(remove_unused(program).nodes) == 2


X = torch.ones(4, 5)


def inlined(function, *args, target="cpp"):
    program = inline(remove_unused(lower(function, *args, target=target)))
    verify_program(program)
    return [n.out.name for n in program.nodes if isinstance(n, Loops)], program


def test_single_use_is_inlined_through_views():
    names, program = inlined(lambda x: (x.exp().t()[1:] + 1).sum(0), X)
    assert names == ["sum_1"]
    (load,) = program.nodes[0].body.loads
    assert [str(i) for i in load.index] == ["i1", "i0 + 1"]


def test_expensive_values_are_not_computed_twice():
    assert inlined(lambda x: (e := x.exp()) * 2 + e.flip(0), X)[0] == ["exp", "add"]
    assert inlined(lambda x: (e := x + 1) * 2 + e.flip(0), X)[0] == ["add_1"]


def test_expensive_values_are_not_computed_once_per_broadcast_element():
    assert inlined(lambda x, b: x + b.exp(), X, torch.ones(5))[0] == ["exp", "add"]
    assert inlined(lambda x, b: x + b * 2, X, torch.ones(5))[0] == ["add"]


def test_a_gpu_computes_a_moderate_value_for_each_of_a_few_copies():
    def repeated(count):
        return lambda x, y: ((x + y) * x - y * (x - 1)).unsqueeze(1).expand(4, count, 5).contiguous()

    for target, count, names in (
        ("triton", 4, ["clone"]),
        ("triton", 5, ["sub_1", "clone"]),
        ("cpp", 4, ["sub_1", "clone"]),
    ):
        assert inlined(repeated(count), X, X, target=target)[0] == names
    assert inlined(lambda x: x.sin().unsqueeze(1).expand(4, 2, 5).contiguous(), X, target="triton")[0] == [
        "sin",
        "clone",
    ]


def test_on_a_gpu_parts_of_a_joined_tensor_are_computed_once_per_element():
    def joined(x, y, z):
        value = x * y * z
        return torch.cat((value[:, 3:], value[:, :3]), -1) * x

    def names(function, target="triton"):
        return inlined(function, *torch.ones(3, 4, 6), target=target)[0]

    assert names(joined) == ["mul_2"] and names(joined, "cpp") == ["mul_1", "mul_2"]
    assert names(lambda x, y, z: (v := x * y * z) + v.flip(1)) == ["mul_1", "add"]
    assert names(lambda x, y, z: joined(x, y, z.exp())) == ["mul_1", "mul_2"]


def test_outputs_and_arguments_of_externs_stay():
    assert inlined(lambda x: ((y := x + 1), y * 2), X)[0] == ["add", "mul"]
    assert inlined(lambda x: (x + 1) @ x.t(), X)[0] == ["add"]


def test_what_reads_a_fold_stays_with_it():
    assert inlined(lambda x: x.softmax(1).flip(0) * 2, X)[0][-2:] == ["_softmax", "mul"]


def test_no_input_lives_longer():
    names, _ = inlined(lambda x, y: (x + 1) * (y @ y), *torch.ones(2, 4, 4))
    assert names == ["add", "mul"]
    names, _ = inlined(lambda x, y: ((x + 1) * (y @ y), x), *torch.ones(2, 4, 4))
    assert names == ["mul"]


def test_constants_are_always_inlined():
    assert inlined(lambda x: (x + torch.arange(5) * 2, x * torch.full((4, 5), 2.0)), X)[0] == ["add", "mul_1"]


def test_expressions_do_not_grow_without_limit():
    def doubling(x):
        for _ in range(30):
            x = x + x
        return x

    assert len(inlined(doubling, X)[0]) > 10


def test_stores_into_two_inputs_keep_their_order():
    def swap(x, y):
        kept = x + 0
        torch.ops.aten.copy_.default(x, y)
        torch.ops.aten.copy_.default(y, kept)
        return ()

    assert inlined(swap, *torch.ones(2, 3))[0] == ["add", "x_1", "y_1"]
