"""Facts about process groups and device meshes, and modules that `fully_shard` has sharded."""

from __future__ import annotations

import pytest
import torch
from torch import distributed as dist
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard

from minidynamo import compat
from tests.ranks import available


@pytest.fixture
def one_rank():
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    yield
    dist.destroy_process_group()


@available
def test_facts(one_rank):
    group = compat.default_group()
    assert compat.group_facts(group)[1:] == (0, 1, "gloo") == compat.default_group_facts()[1:]
    assert compat.group_named(group.group_name) is group
    device_type, shape, ranks, names, rank, groups = compat.mesh_facts(
        init_device_mesh("cpu", (1, 1), mesh_dim_names=("a", "b"))
    )
    assert (device_type, shape, ranks, names, rank, len(groups)) == ("cpu", (1, 1), (0,), ("a", "b"), 0, 2)


@available
def test_sharded_modules(one_rank):
    m = torch.nn.Sequential(torch.nn.Linear(2, 2))
    assert not compat.is_sharded(m)
    fully_shard(m)
    assert compat.is_sharded(m) and not compat.is_sharded(m[0])


@available
def test_without_a_group():
    assert compat.default_group_facts() is None
