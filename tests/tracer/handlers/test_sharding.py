"""Arguments and results of sharded modules of all kinds; groups of modules and dataclasses end the graph."""

from __future__ import annotations

import collections
import dataclasses

import pytest
import torch
from torch import nn
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard

import minidynamo
from minidynamo import compat
from minidynamo.errors import Unsupported
from tests.ranks import available, one_rank  # noqa: F401

Pair = collections.namedtuple("Pair", "first second")


@dataclasses.dataclass
class Data:
    x: torch.Tensor


class Inner(nn.Module):
    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(3, 3)

    def forward(self, x, parts, *, scale, named):
        y = self.linear(x + parts[0] * scale + named["a"])
        return [y, {"z": (y * 2, 1, None)}]


def outer(inner, x):
    first, rest = inner(x, [x * 2, 3], scale=2.0, named={"a": x})
    return first + rest["z"][0] * rest["z"][1]


@available
@pytest.mark.parametrize("policy", [MixedPrecisionPolicy(), MixedPrecisionPolicy(torch.bfloat16)])
def test_tensors_in_containers(one_rank, policy):  # noqa: F811
    m = fully_shard(Inner(), mp_policy=policy)
    outcomes = []
    for f in (outer, minidynamo.compile(outer, backend="aot_eager", fullgraph=True)):
        for _ in range(2):
            x = torch.ones(2, 3, requires_grad=True)
            made = f(m, x)
            made.sum().backward()
            outcomes.append((made, x.grad, m.linear.weight.grad.full_tensor()))
            m.zero_grad()
    torch.testing.assert_close(outcomes[2:], outcomes[:2], rtol=0, atol=0)
    assert minidynamo.stats(f).graphs == 1


@available
def test_a_list_that_no_hook_changes_stays_the_same_object(one_rank):  # noqa: F811
    class Keeps(nn.Linear):
        def forward(self, x):
            self.kept = [super().forward(x), self.weight]
            return self.kept

    m = fully_shard(Keeps(2, 2))
    f = minidynamo.compile(lambda x: m(x), backend="aot_eager", fullgraph=True)
    made = f(torch.ones(2, 2))
    assert made is m.kept and made[1] is compat.gathered_parameters(m._get_fsdp_state())[0]


@available
def test_the_parameters_outside_of_forward_end_the_graph(one_rank):  # noqa: F811
    m = fully_shard(nn.Linear(2, 2))
    m(torch.ones(2, 2))
    f = minidynamo.compile(lambda x: m(x).sum() + m.weight.sum().full_tensor(), backend="aot_eager")
    m.set_reshard_after_forward(True)
    assert torch.equal(f(torch.ones(2, 2)), m(torch.ones(2, 2)).sum() + m.weight.sum().full_tensor())
    assert minidynamo.stats(f).graph_breaks > 0


@available
@pytest.mark.parametrize("give", [lambda x: Data(x), lambda x: Pair(x, x)])
def test_other_containers_end_the_graph(one_rank, give):  # noqa: F811
    class Takes(nn.Linear):
        def forward(self, value):
            return super().forward(value.x if isinstance(value, Data) else value.first)

    m = fully_shard(Takes(2, 2), mp_policy=MixedPrecisionPolicy(torch.bfloat16))
    x = torch.ones(2, 2)
    with pytest.raises(Unsupported, match="gets or returns a"):
        minidynamo.compile(lambda x: m(give(x)), backend="aot_eager", fullgraph=True)(x)
    assert torch.equal(minidynamo.compile(lambda x: m(give(x)), backend="aot_eager")(x), m(give(x)))


@available
def test_a_group_of_modules_ends_the_graph(one_rank):  # noqa: F811
    m = nn.Sequential(nn.Linear(2, 2), nn.ReLU(), nn.Linear(2, 2))
    fully_shard([m[0], m[2]])
    fully_shard(m)
    f = minidynamo.compile(lambda x: m(x) + 1, backend="aot_eager")
    assert torch.equal(f(torch.ones(2, 2)), m(torch.ones(2, 2)) + 1)
    assert minidynamo.stats(f).graph_breaks > 0
