"""Tests of minidynamo/autograd/trace/decompositions.py."""

from typing import Any

import pytest
import torch
import torch.nn.functional as F

import minidynamo
from minidynamo.autograd.graph.mutation import mutation_of
from minidynamo.autograd.trace.decompositions import decomposition_table, masked, splittable
from minidynamo.compat import OpOverload
from minidynamo.config import config
from tests.autograd.programs import assert_same, graphs, inputs, targets

aten = torch.ops.aten

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
