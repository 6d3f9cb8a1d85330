"""Returns graphs with the sizes of the call that triggered the trace."""

import torch
from torch.fx.experimental.proxy_tensor import make_fx

from minidynamo.autograd.eager_peak.with_hints import with_hints


def symbols_in(gm):
    """The dynamic sizes."""
    values = (node.meta.get("val") for node in gm.graph.nodes)
    sizes = (size for value in values if isinstance(value, torch.Tensor) for size in value.shape)
    return [size for size in sizes if isinstance(size, torch.SymInt)]


def traced(program, *given):
    return make_fx(program, tracing_mode="symbolic")(*given)


def test_sizes_are_numbers():
    def program(x, y):
        halves = x.view(x.shape[0] // 2, -1)
        return halves.sin(), y.new_zeros(x.shape[0] + 1) + y.sum()

    gm = traced(program, torch.rand(6, 4), torch.rand(3))
    made = with_hints(gm)
    assert symbols_in(gm) and not symbols_in(made)
    kept = [node.name for node in gm.graph.nodes if isinstance(node.meta.get("val"), torch.Tensor)]
    assert [node.name for node in made.graph.nodes if node.op != "output"] == kept
    results = made.graph.output_node().args[0]
    assert [tuple(node.meta["val"].shape) for node in results] == [(3, 8), (7,)]
    assert made(torch.ones(6, 4), torch.ones(3))[1].tolist() == [3] * 7


def test_not_where_they_hang_on_data():
    assert with_hints(traced(lambda x: x[x > 0], torch.rand(4))) is None
