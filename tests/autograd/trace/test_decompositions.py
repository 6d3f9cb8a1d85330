"""Tests of minidynamo/autograd/trace/decompositions.py: decompositions equal torch's kernels, for all inputs and for
lists of tensors."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.nn.functional as F

import minidynamo
from minidynamo.autograd.aot import aot_compile
from minidynamo.autograd.graph.mutation import mutation_of
from minidynamo.autograd.trace.decompositions import (
    EVERYWHERE,
    ON_CPU,
    ROUNDED_IN_STEPS,
    decomposition_table,
    foreach_table,
    masked,
    splittable,
)
from minidynamo.compat import OpOverload
from minidynamo.config import config
from minidynamo.graph.boxed import make_boxed
from tests.autograd.programs import assert_same, graphs, inputs, targets

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


TABLE = foreach_table()


def tensors():
    return [torch.rand(3) * 0.8 + 0.1, torch.rand(2, 2) * 0.8 + 0.1]


MAKE = {
    "tensors": tensors,
    "scalars": lambda: [0.5, 0.25],
    "scalar": lambda: 0.75,
    "tensor": lambda: torch.tensor(1.5),
}


def arguments(op):
    """Returns a value for each positional argument, by its type."""
    positional = [argument for argument in op._schema.arguments if not argument.kwarg_only]
    return [MAKE[_kind(str(argument.type))]() for argument in positional if _kind(str(argument.type))]


def _kind(name):
    names = {"List[Tensor]": "tensors", "List[number]": "scalars", "number": "scalar", "Tensor": "tensor"}
    return names.get(name, "")


@pytest.mark.parametrize("op", sorted(TABLE, key=str), ids=str)
def test_each_operator(op):
    torch.manual_seed(0)
    expected = arguments(op)
    torch.manual_seed(0)
    actual = arguments(op)
    made = TABLE[op](*actual)
    if made is NotImplemented:
        assert op._overloadname == "Tensor" and "addc" in str(op)
        return
    given = op(*expected)
    torch.testing.assert_close(made, None if given == () else given, rtol=0, atol=0)
    torch.testing.assert_close(actual, expected, rtol=0, atol=0)


def test_scaled_sums():
    for op in (torch.ops.aten._foreach_add.List, torch.ops.aten._foreach_add_.List):
        one, other = tensors(), tensors()
        expected = [a + 3 * b for a, b in zip(one, other)]
        made = TABLE[op](one, other, alpha=3)
        torch.testing.assert_close(one if made is None else made, expected)


@pytest.mark.filterwarnings("ignore::minidynamo.core.events.MinidynamoNotice")
@pytest.mark.parametrize("backend", ["aot_eager", pytest.param("native", marks=pytest.mark.cpp)])
@pytest.mark.parametrize("makes", [torch.exp, torch.sin], ids=["which reads its result", "which does not"])
def test_writes_to_what_backward_reads_are_refused(backend, makes):
    def program(x):
        values = [makes(x), x * 2]
        torch._foreach_pow_(values, 2.0)
        torch._foreach_exp_(values)
        return values[0] + values[1]

    def gradient(function):
        x = torch.linspace(0.1, 0.5, 3).requires_grad_()
        return torch.autograd.grad(function(x).sum(), x)[0]

    compiled = minidynamo.compile(program, backend=backend)
    if makes is torch.sin:
        torch.testing.assert_close(gradient(compiled), gradient(program))
        return
    for function in (program, compiled):
        with pytest.raises(RuntimeError, match="modified by an inplace operation"):
            gradient(function)


COMPOSITE = {
    "gelu": lambda x, y: F.gelu(x),
    "gelu_tanh": lambda x, y: F.gelu(x, approximate="tanh"),
    "silu": lambda x, y: F.silu(x),
    "hardswish": lambda x, y: F.hardswish(x) + F.hardsigmoid(y) + F.hardtanh(x * 3),
    "elu": lambda x, y: F.elu(x) + F.selu(y) + F.celu(x),
    "leaky": lambda x, y: F.leaky_relu(x) + F.relu6(y),
    "softplus": lambda x, y: F.softplus(x) + F.mish(y) + F.logsigmoid(x),
    "softshrink": lambda x, y: F.softshrink(x) + F.tanhshrink(y) + F.softsign(x),
    "softmax": lambda x, y: F.softmax(x, -1) * F.log_softmax(y, 0),
    "layer_norm": lambda x, y: F.layer_norm(x, (5,), y[0], y[1]),
    "group_norm": lambda x, y: F.group_norm(x.view(2, 2, 5), 2),
    "glu": lambda x, y: F.glu(x[:, :4]).sum() * y,
    "losses": lambda x, y: F.mse_loss(x, y) + F.smooth_l1_loss(x, y) + F.huber_loss(x, y),
    "bce": lambda x, y: F.binary_cross_entropy(x.sigmoid(), y.sigmoid()),
    "soft_margin": lambda x, y: F.soft_margin_loss(x, y.detach().sign()),
    "nll": lambda x, y: F.nll_loss(x.log_softmax(-1), torch.tensor([1, 0, 2, 3]), y[0].detach().abs()),
    "indexing": lambda x, y: x[1:3].sum() + y[0] + x.select(1, 2).sum(),
    "sigmoid_tanh": lambda x, y: x.sigmoid() * y.tanh() * x.relu(),
    "threshold": lambda x, y: F.threshold(x, 0.1, 20.0) + y.clamp(-0.5, 0.5),
}


@pytest.mark.parametrize("name", COMPOSITE)
def test_split_operations_compute_the_same(name):
    assert_same(lambda x, y: (COMPOSITE[name](x, y),), inputs((4, 5), (4, 5)), tolerance=3e-6)


@pytest.mark.parametrize("name", COMPOSITE)
def test_graphs_hold_functional_aten_operations_only(name):
    made = graphs(lambda x, y: (COMPOSITE[name](x, y),), inputs((4, 5), (4, 5))()[0])
    for gm in (made.forward, made.backward):
        for node in gm.graph.nodes:
            if node.op == "call_function" and isinstance(node.target, OpOverload):
                assert str(node.target).startswith("aten."), node.target
                assert mutation_of(node.target) is None, node.target


def test_how_operations_are_split_is_found_out_once():
    first, second = decomposition_table(), decomposition_table()
    assert all(first[op] is second[op] for op in first)
    first.clear()
    assert decomposition_table() == second


def test_keep_leaves_operations_whole():
    program, args = lambda x, y: (F.softmax(F.gelu(x) * y, -1),), inputs((4, 5), (4, 5))()[0]
    split = targets(graphs(program, args).forward)
    assert "aten._softmax.default" not in split and "aten.amax.default" in split
    assert aten._softmax.default in splittable()
    table = decomposition_table([aten._softmax.default])
    assert aten._softmax.default not in table and aten._log_softmax.default in table
    with config.patch(decompose=False):
        assert decomposition_table() == {}
        assert "aten._softmax.default" in targets(graphs(program, args).forward)


def test_products_and_convolutions_stay_whole():
    table = decomposition_table()
    for op in (aten.addmm.default, aten.convolution.default, aten.native_batch_norm.default, aten.bmm.default):
        assert op not in table


def test_what_is_masked_is_kept_as_a_mask():
    """Saves a byte per element if the result of relu is not saved anyway."""
    args = inputs((4, 5))()[0]
    assert masked() < splittable()
    saved = graphs(lambda x: (F.relu(x.exp() + x.sin()).sum(1),), args).signature.saved
    assert torch.bool in [value.dtype for value in saved]


@pytest.mark.parametrize("beta", [-1.0, 0.0, 0.5])
def test_a_loss_keeps_the_error_of_its_kernel(beta):
    split = decomposition_table()[aten.smooth_l1_loss.default]
    x, y = torch.randn(3), torch.randn(3)
    if beta < 0:
        assert split(x, y, 1, beta) is NotImplemented
    else:
        torch.testing.assert_close(split(x, y, 1, beta), F.smooth_l1_loss(x, y, beta=beta))


@pytest.mark.parametrize("device", ["cpu", "meta"])
def test_dropout_that_draws_stays_whole(device):
    # Kernels draw other numbers than `bernoulli_`, both on GPU and CPU.
    split = decomposition_table()[aten.native_dropout.default]
    assert split(torch.ones(3, device=device), 0.5, True) is NotImplemented
    assert split(torch.ones(3, device=device), 0.5, False)[0].shape == (3,)


GRADIENTS: dict[str, Any] = {
    "softmax": lambda x, y: aten._softmax_backward_data(x, y, 1, x.dtype),
    "log_softmax": lambda x, y: aten._log_softmax_backward_data(x, y, 1, torch.float32),
    "elu": lambda x, y: aten.elu_backward(x, 1.0, 1.0, 1.0, False, y),
    "glu": lambda x, y: aten.glu_backward(x[:, :1], y[:, :2], 1),
    "huber_loss": lambda x, y: aten.huber_loss_backward(x, y, x, 0, 1.0),
    "leaky_relu": lambda x, y: aten.leaky_relu_backward(x, y, 0.1, False),
    "mse_loss": lambda x, y: aten.mse_loss_backward(x, y, x, 0),
    "threshold": lambda x, y: aten.threshold_backward(x, y, 0),
    "tanh": lambda x, y: aten.tanh_backward(x, y),
    "dropout": lambda x, y: aten.native_dropout_backward(x, y, 2.0),
    "layer_norm": lambda x, y: aten.native_layer_norm_backward(
        x, x, [3], y[:, :1], y[:, :1], None, None, [True, False, False]
    )[0],
    "nll_loss": lambda x, y: aten.nll_loss_backward(x[0, 0], x, torch.tensor([0, 1]), y[0], 1, -100, x[0, 0]),
    "nll_loss of a gradient": lambda x, y: aten.nll_loss_backward(
        y[0, 0], x, torch.tensor([0, 1]), None, 1, -100, x[0, 0]
    ),
    "group_norm": lambda x, y: aten.native_group_norm_backward(
        x, x, y[:, :1], y[:, :1], None, 2, 3, 1, 1, [True, False, False]
    )[0],
    "batch_norm": lambda x, y: aten.native_batch_norm_backward(
        x, x, x[0], y[0], y[0], x[0], x[0], True, 0.1, [True, False, False]
    )[0],
}
DTYPES = [
    (torch.int64, torch.int64),
    (torch.float16, torch.float32),
    (torch.float32, torch.float16),
    (torch.float64, torch.float32),
    (torch.float32, torch.int64),
]


@pytest.mark.cpp
@pytest.mark.parametrize("dtypes", DTYPES, ids=str)
@pytest.mark.parametrize("name", GRADIENTS)
def test_gradients_that_a_program_asks_for_in_other_dtypes(name, dtypes):
    def outcome(function):
        try:
            made = function(*args)
        except RuntimeError as error:
            return type(error), str(error).splitlines()[0]
        return made.dtype, made.tolist()

    args = [torch.ones(2, 3, dtype=dtype) for dtype in dtypes]
    expected = outcome(GRADIENTS[name])
    assert outcome(minidynamo.compile(GRADIENTS[name], backend="native")) == expected
