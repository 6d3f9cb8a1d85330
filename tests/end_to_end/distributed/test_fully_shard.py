"""Blocks of a transformer sharded by `fully_shard`: FSDP's hooks run around the compiled forward, in both orders."""

from __future__ import annotations

import torch
from torch import nn
from torch.distributed.fsdp import fully_shard

import minidynamo
from tests.ranks import Ranks

programs = Ranks(__name__)


class Block(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.norm, self.attention = nn.LayerNorm(width), nn.MultiheadAttention(width, 2, batch_first=True)
        self.up, self.down = nn.Linear(width, 2 * width), nn.Linear(2 * width, width)

    def forward(self, x):
        h = self.norm(x)
        x = x + self.attention(h, h, h, need_weights=False)[0]
        return x + self.down(torch.relu(self.up(x)))


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.inner = nn.Linear(4, 8)
        self.blocks = nn.ModuleList(Block(8) for _ in range(3))
        self.head = nn.Linear(8, 2)

    def forward(self, x):
        x = self.inner(x)
        for block in self.blocks:
            x = block(x)
        return self.head(x)


def train(rank, compile_block=None, first="shard", root=None):
    """Returns the parameters after five steps, the compiled blocks, and the bytes of unsharded weights kept."""
    torch.manual_seed(0)
    m = Model()
    for block in m.blocks:
        if compile_block and first == "compile":
            compile_block(block)
        fully_shard(block)
        if compile_block and first == "shard":
            compile_block(block)
    fully_shard(m)
    if root:
        root(m)
    optimizer = torch.optim.AdamW(m.parameters(), lr=1e-2)
    generator, kept = torch.Generator().manual_seed(rank), []
    for _ in range(5):
        optimizer.zero_grad()
        loss = m(torch.randn(2, 3, 4, generator=generator)).pow(2).mean()
        kept.append([type(p).__name__ for p in m.blocks[0].parameters()])
        loss.backward()
        kept.append([type(p).__name__ for p in m.blocks[0].parameters()])
        optimizer.step()
    return [p.full_tensor().detach() for p in m.parameters()], m, kept


def check(rank, **options):
    expected, _, kept = train(rank)
    made, m, others = train(rank, **options)
    assert all(map(torch.equal, made, expected)), max((a - b).abs().max() for a, b in zip(made, expected))
    assert others == kept and "DTensor" in str(kept[0])
    return m


@programs
def FSDP2_a_compiled_block_is_one_graph_without_a_break(rank):
    for first in ("compile", "shard"):
        compile_block = lambda block: minidynamo.compile(block, backend="aot_eager", fullgraph=True)  # noqa: E731
        m = check(rank, compile_block=compile_block, first=first)
        assert [minidynamo.stats(block).graphs for block in m.blocks] == [1, 1, 1]
        assert all("forward" not in vars(block) for block in m.blocks)


@programs
def FSDP2_the_whole_model_breaks_at_the_hooks_of_its_blocks(rank):
    m = check(rank, root=lambda m: minidynamo.compile(m, backend="aot_eager"))
    assert minidynamo.stats(m).graphs > 0


test_on_two_ranks = programs.test()
