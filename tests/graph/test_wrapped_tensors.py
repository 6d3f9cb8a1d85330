"""Calls of torch functions with a tensor that has `__torch_dispatch__`: one node of the graph, run by the class."""

from __future__ import annotations

import gc
import weakref

import pytest
import torch
from torch import nn
from torch.utils._pytree import tree_map
from torch.utils.checkpoint import checkpoint

import minidynamo
from minidynamo.testing import assert_same_as_eager

F = torch.nn.functional


class Quantized(torch.Tensor):
    """A matrix of small integers with a scale; every operation computes with the floats."""

    __torch_function__ = torch._C._disabled_torch_function_impl
    calls = 0

    @staticmethod
    def __new__(cls, numbers, scale):
        return torch.Tensor._make_wrapper_subclass(cls, numbers.shape, dtype=scale.dtype)

    def __init__(self, numbers, scale):
        self.numbers, self.scale = numbers, scale

    def __tensor_flatten__(self):
        return ["numbers", "scale"], None

    @classmethod
    def __tensor_unflatten__(cls, parts, context, size, stride):
        return cls(parts["numbers"], parts["scale"])

    def dequantized(self):
        return self.numbers.to(self.scale.dtype) * self.scale

    @classmethod
    def __torch_dispatch__(cls, func, types, args=(), kwargs=None):
        Quantized.calls += 1
        if func is torch.ops.aten.detach.default:
            return cls(args[0].numbers, args[0].scale)
        plain = tree_map(lambda value: value.dequantized() if isinstance(value, cls) else value, (args, kwargs or {}))
        return func(*plain[0], **plain[1])


def quantized(*shape):
    return Quantized(torch.arange(torch.Size(shape).numel(), dtype=torch.int8).view(shape) % 7, torch.tensor(0.25))


def model():
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(4, 6), nn.GELU(), nn.Linear(6, 6), nn.GELU(), nn.Linear(6, 2))
    for layer in net[::2]:
        layer.weight = nn.Parameter(quantized(*layer.weight.shape), requires_grad=False)
    return net


@pytest.mark.parametrize("backend", ["eager", "aot_eager", "native"])
@pytest.mark.parametrize("train", [False, True])
def test_a_model_with_quantized_weights_is_one_graph(backend, train):
    def make():
        return model(), torch.randn(3, 4, requires_grad=train)

    run = lambda net, x: net(x * 2) + 1  # noqa: E731
    compiled = assert_same_as_eager(run, make, backend=backend, graphs=1, breaks=0, rtol=1e-6, atol=1e-6)
    assert minidynamo.stats(compiled).graph_breaks == 0


def test_the_class_computes_each_call():
    net, x = model().eval(), torch.randn(3, 4)
    with torch.no_grad():
        f = minidynamo.compile(net, backend="aot_eager")
        f(x)
        before = Quantized.calls
        f(x)
        assert Quantized.calls > before
        net[0].weight.numbers.zero_()
        assert torch.equal(f(x), net.forward(x))
        assert minidynamo.stats(net).recompiles == 0


def test_another_tensor_is_noticed():
    net, x = model().eval(), torch.randn(3, 4)
    f = minidynamo.compile(lambda: net[0](x), backend="aot_eager")
    assert torch.equal(f(), F.linear(x, net[0].weight, net[0].bias))
    net[0].weight = nn.Parameter(quantized(6, 4), requires_grad=False)
    net[0].weight.numbers.fill_(3)
    assert torch.equal(f(), F.linear(x, net[0].weight, net[0].bias))
    net[0].weight = nn.Parameter(torch.ones(6, 4))
    assert torch.equal(f(), F.linear(x, net[0].weight, net[0].bias))


@pytest.mark.parametrize(
    "program",
    [
        lambda x, w: F.linear(weight=w, input=x) + F.linear(x, w, bias=torch.ones(4)),
        lambda x, w: torch.matmul(x, w) * torch.matmul(w, x),
        lambda x, w: torch.addmm(x, x, w, alpha=2.0) if x.sum() > 0 else x,
        lambda x, w: torch.mm(w, w) + x,
        lambda x, w: torch.stack([x, w]),
        lambda x, w: torch.add(x, w, out=torch.empty(4, 4)),
        lambda x, w: x @ w,
        lambda x, w: w.dequantized() + x,
        lambda x, w: torch.detach(w),
        lambda x, w: x.relu_().mm(w),
    ],
)
def test_other_calls_have_the_results_of_eager(program):
    w = quantized(4, 4)
    assert_same_as_eager(lambda x: program(x, w), lambda: (torch.randn(4, 4),), backend="aot_eager")


def test_the_graph_keeps_no_weight_alive():
    net = model()
    x = torch.randn(3, 4)
    minidynamo.compile(net, backend="aot_eager")(x)
    weight = weakref.ref(net[0].weight)
    del net
    gc.collect()
    assert weight() is None


class Product(torch.autograd.Function):
    """Keeps the quantized weight, as the 4-bit layers of torchao do."""

    @staticmethod
    def forward(ctx, x, weight):
        ctx.weight = weight
        return F.linear(x, weight.mul(1.0))

    @staticmethod
    def backward(ctx, grad):
        return grad @ ctx.weight.mul(1.0), None


@pytest.mark.parametrize("backend", ["eager", "aot_eager", "native"])
@pytest.mark.parametrize(
    "program",
    [
        lambda x, w: F.linear(x.double(), w.to(torch.float64)) * w.shape[0],
        lambda x, w: x @ w.t().exp() if w.dtype is torch.float32 and not w.requires_grad else x,
        lambda x, w: w.mm(x) + w.sum(dim=0, keepdim=True) + w.ndim,
        lambda x, w: Product.apply(x * 2, w) + 1,
    ],
)
def test_methods_that_return_plain_tensors_are_nodes(program, backend):
    w = quantized(4, 4)

    def make():
        return (torch.arange(16.0).view(4, 4).requires_grad_(),)

    assert_same_as_eager(lambda x: program(x, w), make, backend=backend, graphs=1, breaks=0, rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize(
    "program",
    [lambda x, w: x + w.dim(), lambda x, w: x * w.size(0), lambda x, w: w.detach(), lambda x, w: x.to(w.device)],
)
def test_other_methods_have_the_results_of_eager(program):
    w = quantized(4, 4)
    assert_same_as_eager(lambda x: program(x, w), lambda: (torch.ones(4, 4),), backend="aot_eager")


@pytest.mark.parametrize("backend", ["aot_eager", "native"])
@pytest.mark.parametrize("use_reentrant", [False, True])
def test_a_quantized_weight_in_a_checkpoint(backend, use_reentrant):
    w = quantized(4, 4)

    def f(x):
        return checkpoint(lambda t: torch.mm(t, w).relu(), x, use_reentrant=use_reentrant)

    assert_same_as_eager(f, lambda: (torch.ones(2, 4, requires_grad=True),), backend=backend)


class Cached(Quantized):
    """Stores what it has computed."""

    def __init__(self, numbers, scale):
        super().__init__(numbers, scale)
        self.cache = None

    def dequantized(self):
        if self.cache is None:
            self.cache = super().dequantized()
        return self.cache


def test_the_trace_leaves_nothing_in_the_instance():
    w = Cached(torch.ones(4, 4, dtype=torch.int8), torch.tensor(0.5))
    x = torch.ones(2, 4)
    f = minidynamo.compile(lambda x: F.linear(x, w), backend="aot_eager")
    assert torch.equal(f(x), torch.full((2, 4), 2.0)) and type(w.cache) is torch.Tensor
    assert torch.equal(F.linear(x, w), f(x))


class Uncopied(torch.Tensor):
    """Cannot be made of its parts."""

    __torch_function__ = torch._C._disabled_torch_function_impl

    @staticmethod
    def __new__(cls, numbers):
        made = torch.Tensor._make_wrapper_subclass(cls, numbers.shape)
        made.numbers = numbers
        return made

    @classmethod
    def __torch_dispatch__(cls, func, types, args=(), kwargs=None):
        return func(*(arg.numbers if isinstance(arg, cls) else arg for arg in args), **(kwargs or {}))


def test_a_class_whose_instances_cannot_be_copied_is_left_to_python():
    w = Uncopied(torch.arange(16.0).view(4, 4))
    compiled = assert_same_as_eager(lambda x: torch.mm(x, w) + 1, lambda: (torch.ones(2, 4),), backend="aot_eager")
    assert minidynamo.stats(compiled).graph_breaks == 1
