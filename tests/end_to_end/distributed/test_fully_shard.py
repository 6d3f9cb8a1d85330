"""FS2: models sharded by `fully_shard`, compiled per block or at the root: parameters are those of eager."""

from __future__ import annotations

import copy
import tempfile
import time
from datetime import timedelta
from unittest import mock

import pytest
import torch
from torch import distributed as dist
from torch import nn
from torch.distributed import checkpoint
from torch.distributed.algorithms._checkpoint.checkpoint_wrapper import checkpoint_wrapper
from torch.distributed.checkpoint.state_dict import get_state_dict, set_state_dict
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard

import minidynamo
from minidynamo import compat
from minidynamo.backends.built_in import aot_eager
from minidynamo.graph import rank_check
from tests.ranks import Ranks

programs = Ranks(__name__)


class Attention(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.norm, self.attention = nn.LayerNorm(width), nn.MultiheadAttention(width, 2, batch_first=True)
        self.up, self.down = nn.Linear(width, 2 * width), nn.Linear(2 * width, width)

    def forward(self, x):
        h = self.norm(x)
        x = x + self.attention(h, h, h, need_weights=False)[0]
        return x + self.down(torch.relu(self.up(x)))


class Block(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.up, self.down = nn.Linear(width, 2 * width), nn.Linear(2 * width, width)

    def forward(self, x):
        return x + self.down(torch.relu(self.up(x)))


class Model(nn.Module):
    def __init__(self, block=Block, number=2):
        super().__init__()
        self.inner = nn.Linear(4, 8)
        self.blocks = nn.ModuleList(block(8) for _ in range(number))
        self.head = nn.Linear(8, 2)

    def forward(self, x):
        x = self.inner(x)
        for block in self.blocks:
            x = block(x)
        return self.head(x)


def shard(
    m, *, compile_block=None, first="shard", root=None, by_block=True, shard_root=True, own=None, wrap=None, **options
):
    """Shards and compiles a model; returns the model. `own`: options for the blocks only."""
    if root and first == "compile":
        root(m)
    m.blocks = m.blocks if wrap is None else nn.ModuleList(map(wrap, m.blocks))
    for block in m.blocks if by_block else ():
        if compile_block and first == "compile":
            compile_block(block)
        fully_shard(block, **(options if own is None else own))
        if compile_block and first == "shard":
            compile_block(block)
    if shard_root:
        fully_shard(m, **options)
    if root and first == "shard":
        root(m)
    return m


def sizes(m):
    """Returns the bytes of each block's gathered parameters."""
    states = [block._get_fsdp_state() for block in m.blocks if compat.is_sharded(block)]
    return [[p.untyped_storage().size() for p in compat.gathered_parameters(state)] for state in states]


def train(rank, *, kind=Block, number=2, accumulate=False, clip=None, steps=5, **options):
    """Returns the full parameters after some steps, the model, and the bytes of gathered parameters in between."""
    torch.manual_seed(0)
    m = shard(Model(kind, number), **options)
    optimizer = torch.optim.AdamW(m.parameters(), lr=1e-2)
    generator, kept = torch.Generator().manual_seed(rank), []
    for step in range(steps):
        is_last = not accumulate or step % 2 == 1
        if accumulate:
            m.set_requires_gradient_sync(is_last)
        loss = m(torch.randn(2, 3, 4, generator=generator)).float().pow(2).mean()
        kept.append(sizes(m))
        loss.backward()
        kept.append(sizes(m))
        if clip is not None:
            kept.append(nn.utils.clip_grad_norm_(m.parameters(), clip).full_tensor().item())
        if is_last:
            optimizer.step()
            optimizer.zero_grad()
    return [p.full_tensor().detach() for p in m.parameters()], m, kept


def check(rank, **options):
    """Compares a compiled run with the uncompiled one to the bit; returns the compiled model."""
    plain = {name: value for name, value in options.items() if name not in ("compile_block", "root", "first")}
    expected, _, kept = train(rank, **plain)
    made, m, others = train(rank, **options)
    assert all(map(torch.equal, made, expected)), max((a - b).abs().max() for a, b in zip(made, expected))
    assert others == kept
    return m


def whole(module):
    return minidynamo.compile(module, backend="aot_eager", fullgraph=True)


def check_both(rank, **options):
    """Compares both ways to compile with eager: each block, and the root as one graph without a break."""
    m = check(rank, compile_block=whole, **options)
    assert [minidynamo.stats(block).graphs for block in m.blocks] == [1] * len(m.blocks)
    m = check(rank, root=whole, **options)
    assert (minidynamo.stats(m).graphs, minidynamo.stats(m).graph_breaks) == (1, 0), minidynamo.explain(m)


@programs
def FS2_1_a_compiled_block_is_one_graph_without_a_break(rank):
    for first in ("compile", "shard"):
        m = check(rank, compile_block=whole, first=first, kind=Attention)
        assert [minidynamo.stats(block).graphs for block in m.blocks] == [1, 1]
        assert all("forward" not in vars(block) for block in m.blocks)


@programs
def FS2_1_a_compiled_root_is_one_graph_without_a_break(rank):
    for first in ("compile", "shard"):
        m = check(rank, root=whole, first=first, kind=Attention)
        stats = minidynamo.stats(m)
        assert (stats.graphs, stats.graph_breaks, stats.recompiles) == (1, 0, 0)
    text = "communicates in graphs: fsdp_pre_forward 2, fsdp_post_forward 2"
    assert text in str(minidynamo.explain(m))


@programs
def FS2_1_checkpointed_blocks(rank):
    m = check(rank, root=whole, wrap=lambda block: checkpoint_wrapper(block))
    assert minidynamo.stats(m).graphs == 1


@programs
def FS2_1_native_code(rank):
    expected, _, kept = train(rank)
    made, m, others = train(rank, root=lambda m: minidynamo.compile(m, backend="native", fullgraph=True))
    torch.testing.assert_close(made, expected)
    assert others == kept and minidynamo.stats(m).graphs == 1


@programs
def FS2_1_a_block_that_is_called_twice_and_sizes_that_vary(rank):
    class Twice(Model):
        def forward(self, x):
            for block in (*self.blocks, *self.blocks):
                x = block(x)
            return x

    outcomes = []
    for compiled in (False, True):
        torch.manual_seed(0)
        m = shard(Twice(), root=whole if compiled else None)
        for number in (2, 3, 4):
            with torch.no_grad():
                m(torch.ones(number, 8))
            m(torch.full((number, 8), rank + 1.0)).pow(2).mean().backward()
        outcomes.append([p.grad.full_tensor() for p in m.blocks.parameters()])
    assert all(map(torch.equal, *outcomes)) and minidynamo.stats(m).graph_breaks == 0


@programs
def FS2_1_a_break_inside_of_a_block(rank):
    class Breaks(Block):
        def forward(self, x):
            y = self.up(x)
            minidynamo.graph_break()
            return x + self.down(torch.relu(y))

    m = check(rank, kind=Breaks, root=lambda m: minidynamo.compile(m, backend="aot_eager"))
    assert minidynamo.stats(m).graph_breaks > 0


@programs
def FS2_1_a_sharded_root_alone(rank):
    m = check(rank, root=whole, by_block=False)
    assert minidynamo.stats(m).graphs == 1


@programs
def FS2_1_blocks_of_a_root_that_is_not_sharded(rank):
    torch.manual_seed(0)
    m = shard(Model(), shard_root=False)
    x = torch.full((2, 4), rank + 1.0)
    expected = m(x)
    made = minidynamo.compile(m, backend="aot_eager", fullgraph=True)(x)
    assert torch.equal(made, expected) and minidynamo.stats(m).graphs == 1


@programs
def FS2_1_a_function_that_calls_a_sharded_model(rank):
    losses = []
    for compiled in (False, True):
        torch.manual_seed(0)
        m = shard(Model())
        step = lambda x, m=m: m(x).pow(2).mean()  # noqa: E731
        f = whole(step) if compiled else step
        for number in range(3):
            loss = f(torch.full((2, 4), rank + number + 1.0))
            loss.backward()
            losses.append((loss.detach(), *(p.grad.full_tensor() for p in m.parameters())))
    torch.testing.assert_close(losses[3:], losses[:3], rtol=0, atol=0)
    assert minidynamo.stats(f).graphs == 1


@programs
def FS2_2_gathered_parameters_are_free_between_forward_and_backward(rank):
    for options in ({"compile_block": whole}, {"root": whole}):
        _, _, kept = train(rank, **options)
        assert kept == [[[0] * 4] * 2] * 10


@programs
def FS2_2_parameters_may_stay_gathered_after_forward(rank):
    check_both(rank, reshard_after_forward=False)


@programs
def FS2_12_mixed_precision(rank):
    half = MixedPrecisionPolicy(torch.bfloat16, torch.float32)
    check_both(rank, mp_policy=half)
    blocks = MixedPrecisionPolicy(torch.bfloat16, output_dtype=torch.float32)
    check_both(rank, own={"mp_policy": blocks}, steps=3)
    uncast = shard(Model(), mp_policy=MixedPrecisionPolicy(torch.bfloat16, cast_forward_inputs=False), root=whole)
    with pytest.raises(RuntimeError, match="dtype"):
        uncast(torch.ones(2, 4))
    minidynamo.reset()  # other models would share the entry that ends before the error


@programs
def FS2_12_gradients_accumulate_without_communication(rank):
    check_both(rank, accumulate=True)


@programs
def FS2_12_clipped_gradients(rank):
    check_both(rank, clip=0.1)


def train_with_a_slow_rank(rank, seconds):
    """Trains a compiled model whose graphs take `seconds` longer to compile on rank 1."""

    def backend(gm, inputs):
        time.sleep(seconds if rank == 1 else 0)
        return aot_eager(gm, inputs)

    def slow(module):
        return minidynamo.compile(module, backend=backend, fullgraph=True)

    expected, _, _ = train(rank, steps=2)
    for options in ({"root": slow}, {"compile_block": slow, "number": 1}):
        made, _, _ = train(rank, steps=2, **options)
        assert "number" in options or all(map(torch.equal, made, expected))


@programs
def FS2_8_a_rank_that_compiles_longer(rank):
    with mock.patch.object(rank_check, "_TIMEOUT", timedelta(seconds=0.1)):
        train_with_a_slow_rank(rank, 1)


@programs
def FS2_11_checkpoints(rank):
    _, eager, _ = train(rank, steps=2)
    torch.manual_seed(1)
    m = shard(Model(), root=whole)
    assert m.state_dict().keys() == eager.state_dict().keys()
    x = torch.full((2, 4), rank + 1.0)
    m(x).sum().backward()
    first, second = (torch.optim.AdamW(model.parameters(), lr=1e-2) for model in (eager, m))
    folder = [tempfile.mkdtemp() if rank == 0 else ""]
    dist.broadcast_object_list(folder, src=0)
    model_state, optimizer_state = get_state_dict(eager, first)
    checkpoint.save({"model": model_state, "optimizer": optimizer_state}, checkpoint_id=folder[0])
    model_state, optimizer_state = get_state_dict(m, second)
    checkpoint.load({"model": model_state, "optimizer": optimizer_state}, checkpoint_id=folder[0])
    set_state_dict(m, second, model_state_dict=model_state, optim_state_dict=optimizer_state)
    assert torch.equal(m(x), eager(x))
    assert minidynamo.stats(m).graphs == 1


@programs
def FS2_1_frozen_parameters_compile_again(rank):
    torch.manual_seed(0)
    m = whole(shard(Model()))
    plain = shard(copy.deepcopy(Model()))
    x = torch.ones(2, 4)
    for model in (m, plain):
        model(x).sum().backward()
        model.zero_grad()
        for p in model.blocks[0].parameters():
            p.requires_grad_(False)
        model(x).sum().backward()
    assert [p.grad is None for p in m.parameters()] == [p.grad is None for p in plain.parameters()]


test_on_two_ranks = programs.test()
