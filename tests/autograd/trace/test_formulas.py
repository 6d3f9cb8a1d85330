"""Tests of minidynamo/autograd/trace/formulas.py: the parts equal torch's kernels for all inputs."""

import pytest
import torch
import torch.nn.functional as F

import minidynamo
from minidynamo.autograd.aot import aot_compile
from minidynamo.autograd.trace.decompositions import ROUNDED_IN_STEPS, splittable
from minidynamo.autograd.trace.formulas import EVERYWHERE, ON_CPU
from minidynamo.config import config
from minidynamo.graph.boxed import make_boxed

aten = torch.ops.aten
X = torch.linspace(-30, 30, 192).view(6, 32).contiguous()
X[1] *= 20
X[2] = 2e4
X[3] *= 1e-5
X[4, :4] = torch.tensor([torch.inf, -torch.inf, torch.nan, -0.0])
Y = torch.linspace(-2, 3, 192).view(6, 32)
REDUCTIONS = ("none", "mean", "sum")

PROGRAMS = {
    "elu": (aten.elu_backward, lambda x, y: (F.elu(x, 0.7), F.selu(x), F.celu(x))),
    "elu of results": (aten.elu_backward, lambda x, y: F.elu_(x.clone())),
    "binary_cross_entropy": (
        aten.binary_cross_entropy_backward,
        lambda x, y: [F.binary_cross_entropy(x[5:].sigmoid(), y[5:].sigmoid(), y[5:], reduction=r) for r in REDUCTIONS],
    ),
    "glu": (aten.glu_backward, lambda x, y: F.glu(x)),
    "hardswish": (aten.hardswish_backward, lambda x, y: F.hardswish(x)),
    "hardsigmoid": (aten.hardsigmoid_backward, lambda x, y: F.hardsigmoid(x)),
    "hardtanh": (aten.hardtanh_backward, lambda x, y: (F.hardtanh(x), F.relu6(x))),
    "huber": (
        aten.huber_loss_backward,
        lambda x, y: [F.huber_loss(x, y, reduction=r, delta=0.7) for r in REDUCTIONS],
    ),
    "logit": (aten.logit_backward, lambda x, y: [(x[5] / 25 + 0.5).logit(), (x[5] / 25 + 0.5).logit(eps=0.1)]),
    "mse": (aten.mse_loss, lambda x, y: [F.mse_loss(x, y, reduction=r) for r in REDUCTIONS]),
    "mse of small rows": (aten.mse_loss_backward, lambda x, y: F.mse_loss(x[5] * 20, y[5])),
    "smooth_l1": (
        aten.smooth_l1_loss_backward,
        lambda x, y: [F.smooth_l1_loss(x, y, reduction=r, beta=0.5) for r in REDUCTIONS],
    ),
    "soft_margin": (
        aten.soft_margin_loss,
        lambda x, y: [F.soft_margin_loss(x, y.sign(), reduction=r) for r in REDUCTIONS],
    ),
    "soft_margin of small rows": (aten.soft_margin_loss_backward, lambda x, y: F.soft_margin_loss(x[3], y[3])),
}


def split(gm, example_inputs):
    """A backend that runs the operations of each formula separately."""

    def run(graph, inputs):
        is_half = any(x.dtype.itemsize == 2 for x in inputs)
        whole = {getattr(aten, name).default for name in ROUNDED_IN_STEPS.split() if is_half}
        assert not {node.target for node in graph.graph.nodes} & ({*EVERYWHERE, *ON_CPU} - whole)
        return make_boxed(graph)

    return aot_compile(gm, example_inputs, forward=run, backward=run, inference=run)


def gradients(program, dtype):
    x, y = X.to(dtype).requires_grad_(), Y.to(dtype)
    made = program(x, y)
    made = [made] if isinstance(made, torch.Tensor) else [*made]
    flows = [torch.linspace(-1, 2, t.numel()).view(t.shape).to(dtype) for t in made]
    return [*made, *(torch.autograd.grad(t, x, g, retain_graph=True)[0] for t, g in zip(made, flows))]


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32], ids=str)
@pytest.mark.parametrize("name", PROGRAMS)
def test_parts_compute_what_kernels_compute(name, dtype):
    _, program = PROGRAMS[name]
    expected = gradients(program, dtype)
    made = gradients(minidynamo.compile(program, backend=split), dtype)
    torch.testing.assert_close(made, expected, equal_nan=True)


def test_every_formula_is_of_an_operation_that_is_split():
    assert {*EVERYWHERE, *ON_CPU} <= splittable()
    assert {packet.default for packet, _ in PROGRAMS.values()} == {*EVERYWHERE, *ON_CPU}
    with config.patch(decompose=False):
        assert not splittable()
