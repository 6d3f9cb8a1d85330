"""Without other ranks nothing is compared; `tests/end_to_end/distributed` compares two ranks."""

from __future__ import annotations

import torch
from torch import distributed as dist

from minidynamo.graph import rank_check
from minidynamo.graph.collectives import NODE_FUNCTIONS
from minidynamo.graph.rank_check import check_ranks
from tests.ranks import available


@available
def test_a_single_rank_is_not_compared():
    graph = torch.fx.Graph()
    graph.call_function(NODE_FUNCTIONS["all_reduce"], (graph.placeholder("x"), "SUM", "0", False))
    graph.output(None)
    gm = torch.fx.GraphModule(torch.nn.Module(), graph)
    before = rank_check._checks.total()
    check_ranks(gm, "f 0")
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    try:
        check_ranks(gm, "f 0")
    finally:
        dist.destroy_process_group()
    assert rank_check._checks.total() == before
