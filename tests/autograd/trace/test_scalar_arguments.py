"""Calls with scalar arguments are traced for any values, and draw the same numbers as eager."""

import copy

import pytest
import torch
from torch.nn import functional as F

import minidynamo
from benchmarks.memory import peak_bytes
from minidynamo.autograd.trace.scalar_arguments import draw

X = torch.linspace(-1.0, 1.0, 24).view(2, 3, 4)


@pytest.mark.parametrize("strides", [(12, 4, 1), (1, 2, 6), (24, 8, 2)])
def test_draws_follow_the_strides(strides):
    like = torch.empty_strided((2, 3, 4), strides)
    torch.manual_seed(0)
    made = draw(like, "normal_", 0.5, 2.0)
    torch.manual_seed(0)
    assert torch.equal(made, like.normal_(0.5, 2.0)) and made.stride() == strides
    assert made.data_ptr() != like.data_ptr()


def test_a_generator_of_its_own():
    def f(x, n, generator):
        return x * torch.empty(4).uniform_(0.0, n, generator=generator)

    compiled = minidynamo.compile(f, backend="aot_eager")
    for n in (0.1, 0.2, 0.3):
        one, other = (g(X, n, torch.Generator().manual_seed(3)) for g in (f, compiled))
        assert torch.equal(one, other)


@pytest.mark.parametrize("trains", [True, False])
def test_running_statistics_are_written(trains):
    def f(x, mean, var, momentum):
        without = F.batch_norm(x, None, None, training=True, momentum=momentum)
        return F.batch_norm(x, mean, var, training=trains, momentum=momentum) * without

    compiled = minidynamo.compile(f, backend="aot_eager")
    mine, theirs = ([torch.zeros(3), torch.ones(3)] for _ in range(2))
    for momentum in (0.1, 0.2, 0.3, 0.4):
        x, y = X.clone().requires_grad_(), X.clone().requires_grad_()
        got, expected = compiled(x, *mine, momentum), f(y, *theirs, momentum)
        got.square().sum().backward(), expected.square().sum().backward()
        assert torch.equal(got, expected) and all(map(torch.equal, mine, theirs))
        torch.testing.assert_close(x.grad, y.grad)
    assert compiled.stats.graphs == 2


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.float16, torch.bfloat16])
@pytest.mark.parametrize("memory_format", [torch.contiguous_format, torch.channels_last])
@pytest.mark.parametrize("converted", [True, False], ids=["all converted", "statistics in float32"])
def test_a_cumulative_batch_norm_is_that_of_eager(dtype, memory_format, converted):
    def gradients(made, x, parameters):
        first = torch.autograd.grad(made.double().exp().sum(), [x, *parameters], create_graph=dtype == torch.float64)
        if dtype == torch.float64:
            return *first, *torch.autograd.grad(first[0].square().sum(), [x, parameters[0]])
        return first

    theirs = torch.nn.BatchNorm2d(4, momentum=None).to(dtype if converted or dtype == torch.float64 else torch.float32)
    mine = copy.deepcopy(theirs)
    compiled = minidynamo.compile(lambda layer, x: layer(x), backend="aot_eager")
    for step in range(4):
        seen = []
        for layer, call in ((theirs, torch.nn.BatchNorm2d.__call__), (mine, compiled)):
            x = torch.randn(3, 4, 5, 6, generator=torch.Generator().manual_seed(step))
            x = x.to(dtype).contiguous(memory_format=memory_format).requires_grad_()
            made = call(layer, x)
            seen.append([made, *gradients(made, x, [*layer.parameters()]), *(b.clone() for b in layer.buffers())])
        *results, mean, variance, steps = zip(*seen)
        assert all(one.dtype == other.dtype and one.stride() == other.stride() for one, other in results)
        for one, other in (*results[:2], mean, variance, steps):
            assert torch.equal(one, other)
        for one, other in results[2:]:
            torch.testing.assert_close(other, one)


@pytest.mark.parametrize("backend", ["aot_eager", "native"])
@pytest.mark.parametrize("trains", [True, False])
def test_a_cumulative_batch_norm_takes_what_eager_takes(trains, backend):
    x = torch.randn(64, 64, requires_grad=True)

    def peak(compiled):
        layer = torch.nn.BatchNorm1d(64, momentum=None)
        call = minidynamo.compile(lambda x: layer(x), backend=backend) if compiled else layer

        def step():
            with torch.set_grad_enabled(trains):
                made = call(x)
                if trains:
                    loss = made.square().mean()
                    del made
                    loss.backward()
            x.grad = None
            layer.zero_grad()

        for _ in range(3):
            step()
        return peak_bytes(step)

    assert peak(True) <= peak(False)
