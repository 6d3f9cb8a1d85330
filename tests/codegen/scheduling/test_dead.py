"""Unread loop nests are removed, extern calls are not."""

import dataclasses

import torch

from minidynamo.codegen.scheduling.dead import remove_unused
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
