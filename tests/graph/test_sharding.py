"""FSDP's hooks as nodes: results on fake tensors have the facts of the real results."""

from __future__ import annotations

import pytest
import torch
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard

from minidynamo import compat
from minidynamo.fake.mode import FakeTensorMode
from minidynamo.graph.sharding import after_forward, before_forward
from tests.ranks import available, one_rank  # noqa: F401


def facts(tensors):
    return [(t.shape, t.stride(), t.dtype, t.requires_grad, t.is_leaf, type(t) is torch.nn.Parameter) for t in tensors]


@available
@pytest.mark.parametrize("policy", [{}, {"param_dtype": torch.bfloat16, "output_dtype": torch.float64}])
def test_fake_results_are_like_real_ones(one_rank, policy):  # noqa: F811
    m = fully_shard(torch.nn.Linear(2, 3), mp_policy=MixedPrecisionPolicy(**policy))
    state = m._get_fsdp_state()
    known = compat.sharding_facts(state)
    x, indices = torch.ones(4, 2, requires_grad=True), torch.arange(3)
    before, after = before_forward(state, known), after_forward(state, known)
    real = before(x, indices, known.group)
    real_after = after(x * 2, known.group)
    with FakeTensorMode() as mode:
        fake = before(mode.from_tensor(x), mode.from_tensor(indices), known.group)
        fake_after = after(mode.from_tensor(x) * 2, known.group)
    assert [f[:-1] for f in facts(fake)] == [f[:-1] for f in facts(real)]
    assert len(real) == 4 and facts(fake_after) == facts(real_after)
