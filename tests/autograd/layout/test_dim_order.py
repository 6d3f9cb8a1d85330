"""Tests of minidynamo/autograd/layout/dim_order.py: gradients with another order of dimensions in memory than their
results."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F

import minidynamo
from minidynamo.autograd.graph.layouts import GradientLayout
from minidynamo.autograd.runtime.partial_backward import BackwardPart, part_of
from tests.autograd.programs import graphs, targets

LAST = torch.channels_last


class Diagonal(torch.autograd.Function):
    """A backward that depends on the dimension order it requested."""

    @staticmethod
    def forward(ctx, x):
        return x * 2

    @staticmethod
    def backward(ctx, gradient):
        gradient = gradient.contiguous()
        return torch.zeros_like(gradient) + gradient.as_strided((4,), (gradient.shape[-1] + 1,)).sum()


def flat(*shape):
    return torch.randn(shape)


def turned(*shape):
    return torch.randn(shape[::-1]).permute(*range(len(shape))[::-1])


PROGRAMS = {
    "elementwise": (lambda x: x.sin(), lambda: turned(4, 6)),
    "channels last": (lambda x: F.gelu(x), lambda: flat(2, 3, 4, 5).to(memory_format=LAST)),
    "a flat view": (lambda x: (x * 2).reshape(-1, 2).t().exp(), lambda: flat(4, 6)),
    "a product": (lambda x: x @ x.t(), lambda: turned(4, 6)),
    "a part": (lambda x: x[:, 1:].cos() * 2, lambda: turned(4, 6)),
    "a sum": (lambda x: x.sum(0) + x.mean(-1, keepdim=True)[0], lambda: turned(3, 4, 5)),
    "half": (lambda x: x.half(), lambda: turned(4, 6)),
    "written through an index": (lambda x: x.index_put((torch.tensor([1]),), torch.ones(6)), lambda: turned(4, 6)),
    "asked for in order": (lambda x: F.group_norm(x, 2), lambda: flat(2, 4, 3, 3).to(memory_format=LAST)),
    "normalized in order": (lambda x: F.group_norm(x, 2), lambda: flat(2, 4, 3, 3)),
    "statistics": (lambda x: F.batch_norm(x, None, None, training=True), lambda: flat(2, 4, 5)),
    "numbers by places": (lambda x: Diagonal.apply(x), lambda: flat(4, 6)),
    "zeros": (lambda x: x.ceil() + torch.div(x, x.detach(), rounding_mode="floor"), lambda: flat(4, 6)),
    "slopes": (lambda x: F.hardswish(x) + F.hardshrink(F.softshrink(x.view_as(x))), lambda: flat(4, 6)),
    "more slopes": (lambda x: F.mish(x) + F.leaky_relu(F.softplus(x.view_as(x))), lambda: flat(4, 6)),
    "means and borders": (
        lambda x: F.avg_pool2d(x, 2) + F.pad(x, (-1, -2, 1, -3), mode="reflect").sum(),
        lambda: flat(2, 3, 4, 6),
    ),
    "a loss": (
        lambda x: F.binary_cross_entropy(x.sigmoid(), torch.full((4, 6), 0.5), reduction="none"),
        lambda: flat(4, 6),
    ),
    "chosen rows": (lambda x: x.index_select(0, torch.tensor([2, 1])).log_softmax(1), lambda: flat(4, 6)),
    "parts put in": (
        lambda x: x.diagonal_scatter(torch.ones(4)).slice_scatter(torch.ones(4, 2), 1, 0, 2).rot90(),
        lambda: flat(4, 6),
    ),
    "a border": (lambda x: F.pad(x, (1, -1, 2, 0)), lambda: flat(4, 6)),
    "larger images": (lambda x: F.interpolate(x, scale_factor=2.0, mode="bilinear"), lambda: flat(2, 3, 4, 5)),
    "repeated pixels": (
        lambda x: (
            F.interpolate(x, scale_factor=2, mode="nearest") + F.interpolate(x, size=(8, 10), mode="nearest-exact")
        ),
        lambda: flat(2, 3, 4, 5).to(memory_format=LAST),
    ),
    "a transform": (lambda x: torch.fft.fft(x).real, lambda: flat(2, 3, 4, 5).to(memory_format=LAST)),
}


def gradients(fn, make, lay_out):
    torch.manual_seed(0)
    x = make().requires_grad_()
    y = fn(x)
    given = torch.linspace(0.5, 1.5, y.numel(), dtype=y.dtype).reshape(y.shape)
    return torch.autograd.grad(y, x, lay_out(given))[0]


@pytest.mark.parametrize(
    "lay_out",
    [lambda g: g, lambda g: torch.empty(g.shape[::-1]).to(g).permute(*range(g.dim())[::-1]).copy_(g)],
    ids=["in order", "turned"],
)
@pytest.mark.parametrize("program", PROGRAMS)
def test_gradients_lie_as_in_eager(program, lay_out):
    fn, make = PROGRAMS[program]
    expected = gradients(fn, make, lay_out)
    for backend in ("aot_eager", "native"):
        made = gradients(minidynamo.compile(fn, backend=backend), make, lay_out)
        torch.testing.assert_close(made, expected, check_stride=True)


HANDED_ON = {
    "sum": (lambda x: x + 1.5, lambda: flat(4, 6)),
    "views": (lambda x: x.t().unsqueeze(1)[..., 1:], lambda: flat(4, 6)),
    "joined": (lambda x: torch.cat([x.sin(), x], 1), lambda: flat(4, 6)),
    "read, too": (lambda x: x + x.sin(), lambda: flat(4, 6)),
}
GAPS = {
    "gaps": lambda g: torch.stack([g, g], -1)[..., 0],
    "parts of rows": lambda g: torch.cat([g, g], -1)[..., : g.shape[-1]],
    "repeated rows": lambda g: g[:1].expand(g.shape),
    "one number": lambda g: g.new_ones(()).expand(g.shape),
}


@pytest.mark.parametrize("backend", ["aot_eager", pytest.param("native", marks=pytest.mark.cpp)])
def test_gradients_that_are_handed_on_keep_their_gaps(backend):
    """Keeps the layout of incoming gradients: like eager, returns the memory of the incoming gradient."""

    def made(function, x, lay_out):
        y = function(x)
        given = lay_out(torch.linspace(0.5, 1.5, y.numel()).reshape(y.shape))
        (gradient,) = torch.autograd.grad(y, x, given)
        return gradient, gradient.untyped_storage().data_ptr() == given.untyped_storage().data_ptr()

    for name, (fn, make) in HANDED_ON.items():
        compiled, x = minidynamo.compile(fn, backend=backend), make().requires_grad_()
        for kind, lay_out in GAPS.items():
            (expected, kept), (gradient, is_kept) = made(fn, x, lay_out), made(compiled, x, lay_out)
            torch.testing.assert_close(gradient, expected)
            assert (gradient.stride(), is_kept) == (expected.stride(), kept), (name, kind)


def test_gradients_that_are_handed_on_may_be_read_beside_others():
    def program(x, y):
        return x + x.sin(), y * 2

    x, y = turned(4, 6).requires_grad_(), flat(4, 6).requires_grad_()
    compiled = minidynamo.compile(program, backend="aot_eager")
    for first in GAPS.values():
        for second in GAPS.values():
            given = [first(turned(4, 6)), second(flat(4, 6))]
            expected = torch.autograd.grad(program(x, y), [x, y], given)
            made = torch.autograd.grad(compiled(x, y), [x, y], given)
            torch.testing.assert_close(made, expected)
            assert [g.is_contiguous() for g in made] == [g.is_contiguous() for g in expected]


def test_what_is_not_handed_on_is_laid_out():
    fit = GradientLayout(torch.empty(4, 1, 6))
    assert fit.own_gaps(torch.empty(4, 1, 12)[..., ::2]) == (12, 12, 2)
    assert fit.own_gaps(torch.empty(6).expand(4, 1, 6)) == (0, 6, 1)
    assert fit.own_gaps(torch.empty(1, 4, 6).transpose(0, 1)) is None
    made = graphs(lambda x, y: (x.sin(), y.t() + 1), [torch.ones(3, 2).requires_grad_() for _ in range(2)])
    assert [target.is_aliased for target in made.signature.graph.targets] == [False, True]


@pytest.mark.cpp
def test_generated_code_takes_gradients_as_they_come():
    compiled = minidynamo.compile(lambda x, y: ((x * y).sin(), y.exp()))
    x, y = (turned(4, 6).requires_grad_() for _ in range(2))
    results = compiled(x, y)
    for given in ([flat(4, 6), flat(4, 6)], [turned(4, 6), flat(4, 6)], [flat(8, 6)[::2], turned(4, 12)[:, ::2]]):
        expected = torch.autograd.grad([(x * y).sin(), y.exp()], [x, y], given)
        made = torch.autograd.grad(results, [x, y], given, retain_graph=True)
        torch.testing.assert_close(made, expected)
        assert [g.stride() for g in made] == [g.stride() for g in expected]


def test_an_operation_that_may_count_on_its_layout_gets_a_copy():
    images = torch.randn(2, 4, 6, 6).to(memory_format=LAST).requires_grad_()
    made = graphs(lambda x: (F.max_pool2d(x, 2).sin(),), [images])
    part = BackwardPart(strides=((0, (36, 9, 3, 1)),))
    assert part.stage.endswith("strides: {0: (36, 9, 3, 1)}")
    gm = part_of(made.backward, len(made.partition.sources), part)
    (tangent,) = (node for node in gm.graph.find_nodes(op="placeholder") if node.name.startswith("tangents"))
    assert tangent.meta["val"].stride() == (36, 9, 3, 1)
    whole = targets(made.backward)
    assert targets(gm).count("aten.clone.default") == whole.count("aten.clone.default") + 1


def test_which_order_a_gradient_has():
    fit = GradientLayout(torch.empty(4, 1, 6))
    assert fit.own_order(torch.empty(6, 1, 4).permute(2, 1, 0)) == (1, 6, 4)
    assert fit.own_order(torch.empty(6, 1, 8).permute(2, 1, 0)[::2]) == (1, 6, 4)
    for fitting in (torch.empty(4, 1, 6), torch.empty(4, 1, 12)[..., ::2], torch.empty(1, 4, 6).transpose(0, 1)):
        assert fit.own_order(fitting) is None
    for untold in (
        torch.empty(()).expand(4, 1, 6),
        torch.empty(6).expand(4, 1, 6),
        torch.empty(9).as_strided((4, 1, 6), (1, 1, 1)),
    ):
        assert fit.own_order(untold) is None
