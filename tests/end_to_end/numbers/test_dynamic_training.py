"""Training with batches and sequences of changing size: two graphs, and gradients equal to eager's for all sizes."""

import copy

import pytest
import torch
import torch.nn.functional as F
from torch import nn

import minidynamo
from minidynamo.testing import CompileCounterWithBackend


class ConvNet(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv, self.norm = nn.Conv2d(3, 4, 3, padding=1), nn.BatchNorm2d(4)
        self.second, self.head = nn.Conv2d(4, 6, 3, stride=2), nn.Linear(6, 5)

    def forward(self, x):
        x = F.max_pool2d(self.norm(self.conv(x)).relu(), 2)
        return self.head(self.second(x).relu().mean((2, 3)))


class Block(nn.Module):
    def __init__(self, width=8, heads=2):
        super().__init__()
        self.heads = heads
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.first, self.second = nn.LayerNorm(width), nn.LayerNorm(width)
        self.mlp = nn.Sequential(nn.Linear(width, 2 * width), nn.GELU(), nn.Linear(2 * width, width))

    def forward(self, x):
        batch, length, width = x.shape
        parts = self.qkv(self.first(x)).view(batch, length, 3, self.heads, width // self.heads).permute(2, 0, 3, 1, 4)
        mixed = F.scaled_dot_product_attention(*parts.unbind(0), is_causal=True)
        x = x + self.out(mixed.transpose(1, 2).reshape(batch, length, width))
        return x + self.mlp(self.second(x))


class Perceptron(nn.Module):
    def __init__(self):
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(6, 16), nn.Tanh(), nn.Dropout(0.25), nn.Linear(16, 4))

    def forward(self, x):
        return F.softplus(self.layers(x)) / x.shape[0]


class Recurrent(nn.Module):
    """Runs an LSTM cell over three steps."""

    def __init__(self):
        super().__init__()
        self.cell, self.head = nn.LSTMCell(5, 7), nn.Linear(7, 2)

    def forward(self, x):
        h = c = x.new_zeros(x.shape[1], 7)
        for step in range(3):
            h, c = self.cell(x[step], (h, c))
        return self.head(h)


def both(module):
    return module, copy.deepcopy(module)


def step(module, x, rate=1.0):
    """Returns loss and gradients, x's included, and the buffers afterwards."""
    torch.manual_seed(5)
    x = x.clone().requires_grad_()
    loss = (module(x) * rate).square().sum()
    loss.backward()
    gradients = [x.grad, *(p.grad for p in module.parameters())]
    module.zero_grad()
    return [loss.detach(), *gradients, *module.buffers()]


def assert_trains(module, shapes, *, graphs, backend, tolerance=1e-5):
    module, reference = both(module)
    counter = CompileCounterWithBackend(backend)
    compiled = minidynamo.compile(module, backend=counter, fullgraph=True)
    torch.manual_seed(1)
    for count, shape in zip(graphs, shapes):
        x = torch.randn(shape)
        torch.testing.assert_close(step(compiled, x), step(reference, x), rtol=tolerance, atol=tolerance)
        assert counter.frame_count == count, shape


CASES = {
    "conv": (ConvNet, [(2, 3, 8, 8), (5, 3, 8, 8), (3, 3, 8, 8), (7, 3, 8, 8)]),
    "block": (Block, [(2, 5, 8), (3, 6, 8), (4, 9, 8), (6, 2, 8)]),
    "perceptron": (Perceptron, [(4, 6), (9, 6), (3, 6), (20, 6)]),
    "lstm": (Recurrent, [(3, 4, 5), (3, 6, 5), (3, 2, 5), (3, 9, 5)]),
}


@pytest.mark.parametrize("backend", ["eager", "aot_eager"])
@pytest.mark.parametrize("name", CASES)
def test_two_graphs_serve_all_sizes(name, backend):
    module, shapes = CASES[name]
    torch.manual_seed(0)
    assert_trains(module(), shapes, graphs=[1, 2, 2, 2], backend=backend)


@pytest.mark.parametrize("name", ["block", "perceptron"])
def test_two_graphs_serve_all_sizes_natively(name):
    module, shapes = CASES[name]
    torch.manual_seed(0)
    assert_trains(module(), shapes[:3], graphs=[1, 2, 2], backend="native")


@pytest.mark.parametrize("backend", ["eager", "aot_eager"])
def test_batches_of_one_and_none(backend):
    """Sizes 0 and 1 have separate graphs, with right results."""
    torch.manual_seed(0)
    shapes = [(4, 6), (5, 6), (1, 6), (7, 6), (0, 6), (1, 6), (2, 6)]
    net = nn.Sequential(nn.Linear(6, 8), nn.LayerNorm(8), nn.ReLU(), nn.Linear(8, 3))
    assert_trains(net, shapes, graphs=[1, 2, 3, 3, 4, 4, 4], backend=backend)


def test_backward_of_other_sizes_than_it_was_compiled_for():
    """Forward runs for several sizes before the first backward; its graph serves all sizes."""
    f = minidynamo.compile(lambda x: x.exp().sum(0) * x.shape[0], backend="aot_eager", dynamic=True)
    inputs = [torch.randn(n, 3, requires_grad=True) for n in (4, 7, 2)]
    outputs = [f(x) for x in inputs]
    for x, y in zip(reversed(inputs), reversed(outputs)):
        y.sum().backward()
        torch.testing.assert_close(x.grad, x.detach().exp() * x.shape[0])


@pytest.mark.parametrize("backend", ["aot_eager", "native"])
def test_what_eager_keeps_only_the_sizes_of_may_be_written_before_backward(backend):
    def program(x):
        return ((x * 2).sin() * x.exp()).sum()

    def gradient(call):
        x = torch.full((5,), 0.5, requires_grad=True)
        result = call(x)
        with torch.no_grad():
            x.mul_(2)
        return torch.autograd.grad(result, x)

    compiled = minidynamo.compile(program, backend=backend, dynamic=True, fullgraph=True)
    torch.testing.assert_close(gradient(compiled), gradient(program))


def test_a_penalty_on_the_gradient_for_all_sizes():
    torch.manual_seed(0)
    critic, reference = both(nn.Sequential(nn.Linear(4, 8), nn.Softplus(), nn.Linear(8, 1)))
    compiled = minidynamo.compile(critic, backend="aot_eager", fullgraph=True)

    def penalty(net, x):
        x = x.clone().requires_grad_()
        (gradient,) = torch.autograd.grad(net(x).sum(), x, create_graph=True)
        loss = (gradient.norm(dim=1) - 1).square().mean()
        return torch.autograd.grad(loss, list(net.parameters()), allow_unused=True)

    for n in (3, 5, 2, 8):
        x = torch.randn(n, 4)
        for ours, theirs in zip(penalty(compiled, x), penalty(reference, x)):
            assert (ours is None) == (theirs is None)
            if ours is not None:
                torch.testing.assert_close(ours, theirs)


@pytest.mark.cpp
@pytest.mark.slow
@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # of torch itself
@pytest.mark.parametrize("sizes", [[(4, 3), (6, 3), (5, 3)]])
def test_inductor_as_a_plain_backend(sizes):
    f = minidynamo.compile(lambda x: (x.sin() * 2).sum(0), backend="inductor")
    for shape in sizes:
        x = torch.randn(shape, requires_grad=True)
        y = f(x)
        torch.testing.assert_close(y, (x.sin() * 2).sum(0))
        y.sum().backward()
        torch.testing.assert_close(x.grad, x.detach().cos() * 2)


@pytest.mark.parametrize("backend", ["eager", "aot_eager"])
def test_sizes_on_both_sides_of_a_cond(backend):
    counter = CompileCounterWithBackend(backend)

    def program(x):
        count = x.shape[0] * 2
        y = minidynamo.cond(x.sum() > 0, torch.sin, torch.exp, (x * count,))
        return y / count, count

    compiled = minidynamo.compile(program, backend=counter, fullgraph=True)
    for n, sign in [(3, 1), (5, -1), (4, 1), (7, -1)]:
        x = (torch.rand(n, 2) * sign / 10).requires_grad_()
        y, count = compiled(x)
        expected, _ = program(x)
        torch.testing.assert_close(y, expected)
        torch.testing.assert_close(torch.autograd.grad(y.sum(), x), torch.autograd.grad(expected.sum(), x))
        assert count == 2 * n
    assert counter.frame_count == 2
