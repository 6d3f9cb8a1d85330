"""Checkpointed code is captured; backward runs the code again and gets eager's gradients, dropout included."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.multiprocessing.reductions import StorageWeakRef
from torch.utils.checkpoint import checkpoint, checkpoint_sequential

import minidynamo
from minidynamo.testing import assert_same_as_eager
from tests.end_to_end.programs import Programs, leaf, vector

programs = Programs()
test_same_as_eager = programs.test()


def of_a_closure(x):
    scale = x * 3
    return checkpoint(lambda t: torch.sin(t) * scale, x * 2, use_reentrant=False) + 1


def with_dropout(x):
    y = checkpoint(lambda t, p: F.dropout(torch.sin(t), p) * t, x * 2, 0.5, use_reentrant=False)
    return y + torch.rand(4)


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(4, 8), nn.GELU(), nn.Dropout(0.2), nn.Linear(8, 4))

    def forward(self, x):
        return checkpoint(self.layers, x, use_reentrant=False) * x


programs(leaf, vector, graphs=2)(of_a_closure)
programs(leaf)(with_dropout)


def of_a_block(train=True):
    block = nn.Sequential(nn.Linear(4, 8), nn.GELU(), nn.Dropout(0.2), nn.Linear(8, 4))
    return block.train(train), torch.randn(3, 4, requires_grad=True)


@programs(of_a_block, lambda: of_a_block(train=False), graphs=2)
def reentrant(block, x):
    y = checkpoint(block, x * 2, use_reentrant=True)
    return y + torch.rand(4)


def batch_norm(track):
    def make():
        norm = nn.BatchNorm1d(4)
        norm.num_batches_tracked = norm.num_batches_tracked if track else None
        return norm, torch.randn(3, 4, requires_grad=True)

    return make


@programs(leaf)
class Cases:
    @programs(lambda: (Block(), leaf()), lambda: (Block(), vector()), graphs=2)
    def of_a_module(module, x):
        return module(x).sum()

    def several_results_and_keywords(x):
        part = lambda t, *, factor: {"a": t * factor, "b": (t.sin(), factor)}
        made = checkpoint(part, x, use_reentrant=False, factor=3)
        return made["a"] + made["b"][0], made["b"][1]

    def without_gradients(x):
        with torch.no_grad():
            return checkpoint(torch.sin, x, use_reentrant=False)

    def one_inside_another(x):
        inner = lambda t: checkpoint(torch.cos, t * 2, use_reentrant=False) + 1
        return checkpoint(inner, x.sin(), use_reentrant=False) * 2

    @programs(leaf, graphs=2, breaks=1)
    def a_view_comes_out(x):
        y = x * 2
        return checkpoint(lambda t: t[1:], y, use_reentrant=False) + 1

    @programs(of_a_block)
    def in_segments(block, x):
        return checkpoint_sequential(block, 2, x * 2, use_reentrant=True) + 1

    @programs(of_a_block)
    def reentrant_in_evaluation(block, x):
        with torch.no_grad():
            return checkpoint(block, x, use_reentrant=True)

    def without_keeping_the_random_state(x):
        return checkpoint(lambda t: t.sin().exp(), x * 2, use_reentrant=False, preserve_rng_state=False)

    @programs(of_a_block, graphs=2, breaks=1)
    def without_keeping_the_random_state_of_dropout(block, x):
        y = x * 2
        return checkpoint(block, y, use_reentrant=False, preserve_rng_state=False).detach() + 1

    @programs(leaf, graphs=2, breaks=1)
    def reentrant_that_asks_for_the_grad_mode(x):
        y = x * 2
        return checkpoint(lambda t: t.sin() if torch.is_grad_enabled() else t.cos(), y, use_reentrant=True) + 1

    @programs(leaf, graphs=2, breaks=1)
    def reentrant_with_a_result_of_its_own(x):
        y = x * 2
        return checkpoint(lambda t: (t.sin(), torch.ones(4) * 3), y, use_reentrant=True)[1] + 1

    @programs(batch_norm(True), graphs=2, breaks=1)
    @programs(batch_norm(False), graphs=2, breaks=1)
    def statistics_are_kept_twice(norm, x):
        y = x * 2
        return checkpoint(norm, y, use_reentrant=False) + 1

    @programs(lambda: (leaf(), torch.zeros(4)), graphs=2, breaks=1)
    def a_buffer_is_written_to(x, count):
        y = x * 2
        return checkpoint(lambda t: t * count.add_(1).sum(), y, use_reentrant=False) + 1


@pytest.mark.filterwarnings("ignore:None of the inputs have requires_grad")
def test_the_reentrant_variant_derives_its_arguments_alone():
    def program(layer, x):
        y = x * 2
        return checkpoint(layer, y, use_reentrant=True) + 1

    assert_same_as_eager(program, lambda: (nn.Linear(4, 4), torch.randn(3, 4)), graphs=2, breaks=1)


def test_effects_inside_run_as_written():
    seen = []

    def program(x):
        def part(t):
            seen.append(t.shape)
            return t.sin()

        return checkpoint(part, x * 2, use_reentrant=False) + 1

    compiled = minidynamo.compile(program, backend="eager")
    compiled(leaf()).sum().backward()
    assert len(seen) == 2


@pytest.mark.parametrize(
    ("fn", "make"), [(of_a_closure, leaf), (with_dropout, leaf), (reentrant, of_a_block)], ids=lambda one: one.__name__
)
def test_with_a_graph_for_backward(fn, make):
    assert_same_as_eager(fn, make, backend="aot_eager", calls=2, graphs=1, breaks=0)


def test_less_is_kept():
    def part(t):
        for _ in range(8):
            t = t.sin()
        return t

    kept = []

    def pack(tensor):
        kept.append(tensor)
        return tensor

    compiled = minidynamo.compile(lambda x: checkpoint(part, x * 2, use_reentrant=False), backend="eager")
    compiled(leaf())
    with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
        compiled(leaf())
    assert len(kept) < 8


@pytest.mark.parametrize("backend", ["eager", "aot_eager"])
def test_the_reentrant_variant_computes_all_gradients_or_none(backend):
    """For partial gradients, as of `autograd.grad` and `backward(inputs=...)`, torch's own checkpoint raises; so does a
    compiled checkpoint."""

    def program(x):
        return checkpoint(lambda t: t.sin() * 2, x * 2, use_reentrant=True).exp()

    compiled = minidynamo.compile(program, backend=backend, fullgraph=True)
    x = leaf()
    for function in (program, compiled):
        with pytest.raises(RuntimeError, match=r"incompatible with \.grad\(\)"):
            torch.autograd.grad(function(x).sum(), x)
        with pytest.raises(RuntimeError, match=r"incompatible with \.grad\(\)"):
            function(x).sum().backward(inputs=[x])
    compiled(x).sum().backward()
    (expected,) = torch.autograd.grad((x * 2).sin().mul(2).exp().sum(), x)
    torch.testing.assert_close(x.grad, expected)


@pytest.mark.parametrize("backend", ["aot_eager", pytest.param("cpp", marks=pytest.mark.cpp)])
@pytest.mark.parametrize("last", [torch.relu, torch.sigmoid])
def test_backward_reads_no_result_of_a_checkpoint(last, backend):
    """Returns a tensor that may be written to, and dies when its user drops it."""

    def program(x):
        return checkpoint(lambda t: last(t * 2), x, use_reentrant=False)

    def gradient(function):
        x = torch.linspace(-1, 1, 5, requires_grad=True)
        made = function(x)
        with torch.no_grad():
            made.fill_(7)
        memory = StorageWeakRef(made.untyped_storage())
        edge = torch.autograd.graph.get_gradient_edge(made)
        del made
        assert memory.expired()
        torch.autograd.backward(edge, torch.arange(5.0))
        return x.grad

    compiled = minidynamo.compile(program, backend=backend, fullgraph=True)
    torch.testing.assert_close(gradient(compiled), gradient(program))
