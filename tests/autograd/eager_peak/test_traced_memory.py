"""A traced joint graph holds the memory that a rehearsal of the program finds, or a little less."""

from __future__ import annotations

import pytest
import torch
from torch.nn import functional

import minidynamo
from minidynamo.autograd.aot import aot_graphs
from minidynamo.autograd.eager_peak.rehearsal import eager_memory
from minidynamo.autograd.trace.decompositions import splittable
from minidynamo.backends.registry import boxed_nop

attention = torch.nn.MultiheadAttention(64, 4, batch_first=True)


def written_in_place(x, w):
    made = (x @ w).sin_()
    made[1:].mul_(2)
    return made.tanh_()


def gradients_added(x, w):
    return x.sin() + x.cos() + x.exp() @ w


PROGRAMS = {
    "layer": lambda x, w: functional.layer_norm((x @ w).relu(), [64]) @ w,
    "views": lambda x, w: torch.cat([(x @ w).t()[:5].exp(), x[5:]]),
    "several results": lambda x, w: ((x @ w).softmax(-1), x.sum(0), w[1:]),
    "written in place": written_in_place,
    "gradients added": gradients_added,
    "attention": lambda x, w: attention(x[None], w[None], w[None], need_weights=False)[0],
    "numbers": lambda x, w: (x @ w).exp().mean() * x.sum(),
    "sizes": lambda x, w: (x @ w).square().mean() * x.sum(),
}


@pytest.mark.parametrize("dynamic", [False, True], ids=["sizes", "symbols"])
@pytest.mark.parametrize("name", PROGRAMS)
def test_it_is_what_a_rehearsal_finds(name, dynamic):
    def backend(gm, example_inputs):
        held = eager_memory(gm, example_inputs, held=True)
        found.append((aot_graphs(gm, example_inputs, keep=splittable).eager, eager_memory(gm, example_inputs), held))
        return boxed_nop(gm, example_inputs)

    found = []
    x, w = torch.rand(64, 64, requires_grad=True), torch.rand(64, 64, requires_grad=True)
    minidynamo.compile(PROGRAMS[name], backend=backend, fullgraph=True, dynamic=dynamic)(x, w)
    ((traced, rehearsed, held),) = found
    assert 0.6 * rehearsed.peak <= traced.eager.peak <= rehearsed.peak
    assert traced.eager.between == rehearsed.between
    assert traced.eager.forward <= rehearsed.forward
    assert 0.6 * held.peak <= traced.held <= held.peak


def test_there_is_none_without_gradients():
    found = []

    def backend(gm, example_inputs):
        found.append(aot_graphs(gm, example_inputs).eager)
        return boxed_nop(gm, example_inputs)

    minidynamo.compile(lambda x: x.sin(), backend=backend)(torch.rand(4))
    assert found == [None]
