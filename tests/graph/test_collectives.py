"""Waits for functional collectives move to the first use of the result."""

from __future__ import annotations

import pytest
import torch
from torch import distributed as dist
from torch.distributed import _functional_collectives as functional

import minidynamo
from minidynamo.graph.collectives import move_waits
from minidynamo.testing import EagerAndRecordGraphs
from tests.ranks import available


@pytest.fixture
def one_rank():
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    yield
    dist.destroy_process_group()


@available
def test_DDP_6_a_functional_collective_waits_at_its_first_use(one_rank):
    def program(x):
        y = functional.all_reduce(x, "sum", dist.group.WORLD)
        z = x.sin().cos()
        functional.all_reduce(z, "sum", dist.group.WORLD)
        return y + z

    backend = EagerAndRecordGraphs()
    minidynamo.compile(program, backend=backend, fullgraph=True)(torch.ones(4))
    (gm,) = backend.graphs
    move_waits(gm.graph)
    names = [getattr(node.target, "__name__", node.target) for node in gm.graph.nodes if node.op.startswith("call")]
    short = [name.removeprefix("_c10d_functional_").removesuffix("_default") for name in names]
    assert short == ["all_reduce", "sin", "cos", "all_reduce", "wait_tensor", "add", "wait_tensor"]
