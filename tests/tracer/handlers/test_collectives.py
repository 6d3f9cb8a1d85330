"""Facts about process groups are guarded constants; other communication ends the graph."""

from __future__ import annotations

import pytest
import torch
from torch import distributed as dist

import minidynamo
from minidynamo.errors import Unsupported
from tests.ranks import available


@available
def test_groups_compile_again_when_their_facts_change():
    def program(x):
        return x + dist.get_world_size() if dist.is_initialized() else x

    f = minidynamo.compile(program, backend="eager", fullgraph=True)
    assert f(torch.zeros(1)) == 0
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    try:
        assert f(torch.zeros(1)) == 1 and f(torch.zeros(1)) == 1
    finally:
        dist.destroy_process_group()
    assert f(torch.zeros(1)) == 0
    assert minidynamo.stats(f).graphs == 1  # the first version has no operation


@available
def test_without_a_group_the_error_is_that_of_torch():
    f = minidynamo.compile(lambda x: x + dist.get_rank(), backend="eager")
    with pytest.raises(ValueError, match="Default process group has not been initialized"):
        f(torch.zeros(1))


@available
def test_other_communication_ends_the_graph():
    def objects(x):
        dist.all_gather_object([None], 1)
        return x + 1

    def from_any_rank(x):
        dist.recv(x)
        return x + 1

    def no_tensors(x):
        dist.all_gather([x, 3], x)
        return x + 1

    def other_arguments(x):
        dist.all_reduce(x, dst=1)
        return x + 1

    for program in (objects, from_any_rank, no_tensors, other_arguments):
        with pytest.raises(Unsupported, match=r"MD207"):
            minidynamo.compile(program, backend="eager", fullgraph=True)(torch.ones(4))
