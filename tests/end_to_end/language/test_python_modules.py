import pytest
import torch
from torch import nn

import minidynamo
from minidynamo import compile as compile_function
from minidynamo.testing import CompileCounter, assert_same_as_eager
from tests.end_to_end.programs import Programs

programs = Programs()
test_same_as_eager = programs.test()


def inputs(make, *shape):
    return lambda: (make(), torch.randn(*shape))


class Block(nn.Module):
    def __init__(self, n=4):
        super().__init__()
        self.linear = nn.Linear(n, n)
        self.register_buffer("offset", torch.ones(n))
        self.scale = nn.Parameter(torch.full((n,), 0.5))
        self.steps = 0

    def forward(self, x):
        return torch.relu(self.linear(x)) * self.scale + self.offset


class Stack(nn.Module):
    def __init__(self):
        super().__init__()
        self.blocks = nn.ModuleList([Block(), Block()])
        self.named = nn.ModuleDict({"a": nn.Tanh(), "b": nn.Sigmoid()})
        self.last = nn.Sequential(nn.Linear(4, 3), nn.ReLU(), nn.Linear(3, 2))
        self.weights = nn.ParameterList([nn.Parameter(torch.ones(4))])

    def forward(self, x):
        for block in self.blocks:
            x = block(x)
        for name, module in self.named.items():
            x = module(x) if name == "a" else x
        return self.last(self.blocks[-1](x) + self.blocks[0](x))


class Shared(nn.Module):
    def __init__(self):
        super().__init__()
        self.a = nn.Linear(4, 4)
        self.b = self.a

    def forward(self, x):
        return self.b(self.a(x))


@programs(inputs(Block, 2, 4))
class Cases:
    parameters_and_buffers = lambda m, x: m(x)

    @programs(inputs(Stack, 2, 4))
    def nested_modules(m, x):
        return m(x)

    @programs(inputs(lambda: nn.BatchNorm1d(4).eval(), 8, 4))
    def batch_norm_in_evaluation(m, x):
        return m(x)

    @programs(inputs(Stack, 2, 4))
    def walks(m, x):
        total = 0
        for name, parameter in m.named_parameters():
            if name.endswith("weight"):
                total = total + parameter.sum()
        names = [name for name, _ in m.named_modules()]
        children = [name for name, _ in m.named_children()]
        buffers = [b.shape for b in m.buffers()]
        return total, names, children, buffers, len(list(m.modules())), sum([p.numel() for p in m.parameters()])

    def attributes_of_modules(m, x):
        m.steps += 1
        m.last_input = x
        m.offset = m.offset + 1
        return x * m.steps + m.offset, hasattr(m, "nope"), m.linear.in_features

    def buffer_changed_in_place(m, x):
        m.offset.add_(1)
        m.offset.mul_(x.mean().detach())
        return x + m.offset

    def parameters_as_values(m, x):
        made = x @ m.linear.weight.t() + m.linear.bias, m.scale.shape, isinstance(m.scale, nn.Parameter)
        return *made, m.scale.requires_grad

    @programs(lambda: ([nn.Linear(2, 2), nn.Linear(2, 2)], torch.randn(2, 2)))
    def modules_in_a_list(layers, x):
        for layer in layers:
            x = layer(x)
        return x

    @programs(inputs(Shared, 2, 4))
    def shared_submodule(m, x):
        return m(x), m.a is m.b, len(list(m.parameters()))


# Classes with their own `__call__`


class Counted(nn.Module):
    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(4, 4)
        self.calls = 0

    def __call__(self, x, *args, **kwargs):
        self.calls += 1
        return super().__call__(x, *args, **kwargs) * 2

    def forward(self, x, scale=1.0):
        return self.linear(x) * scale


class Rescaled(Counted):
    def __call__(self, x):
        return super().__call__(x, scale=0.5) + 1


class WithoutForward(nn.Module):
    def __init__(self):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(4))

    def __call__(self, x):
        return x * self.weight


class OfNoInstance(nn.Module):
    offset = 3

    @staticmethod
    def __call__(x):
        return x * 5


class OfTheClass(OfNoInstance):
    @classmethod
    def __call__(cls, x):
        return x + cls.offset


class AroundForward(Counted):
    def _call_impl(self, *args, **kwargs):
        return super()._call_impl(*args, **kwargs) + 1


class Told(Counted):
    def __call__(self, x):
        y = super().__call__(x)
        minidynamo.graph_break()
        print("called")
        return y + 1


def with_hooks():
    module = Counted()
    module.register_forward_pre_hook(lambda module, args: (args[0] + 1,))
    module.register_forward_hook(lambda module, args, result: result * 3)
    return module


def call_and_count(m, x):
    return m(x), nn.Sequential(m, nn.ReLU())(x), getattr(m, "calls", None)


@pytest.mark.parametrize(
    "make", [Counted, Rescaled, WithoutForward, OfNoInstance, OfTheClass, AroundForward, with_hooks]
)
def test_a_class_with_a_call_of_its_own(make):
    assert_same_as_eager(call_and_count, inputs(make, 2, 4), calls=2, graphs=1, breaks=0, recompiles=0)


def test_a_break_in_a_call_of_its_own():
    assert_same_as_eager(lambda m, x: m(x).relu(), inputs(Told, 2, 4), calls=3, graphs=3, breaks=2, recompiles=0)


def test_a_call_that_a_class_gets_later():
    class Later(Counted):
        pass

    call = lambda m, x: m(x)
    counter = CompileCounter()
    compiled, m, x = compile_function(call, backend=counter), Later(), torch.ones(2, 4)
    for name in ("", "_call_impl", "__call__"):
        if name:
            setattr(Later, name, lambda self, x, old=getattr(Later, name): old(self, x) - 5)
        assert torch.equal(compiled(m, x), call(m, x))
    assert counter.frame_count == 3
