"""Objects that are two in the first call and the same in a later call."""

import pytest
import torch

import minidynamo
from minidynamo.testing import assert_same_as_eager
from tests.end_to_end.programs import rows_of


def pair():
    return torch.ones(3), torch.arange(3.0)


def twice():
    x = torch.ones(3)
    return x, x


class Cases:
    def is_one(a, b):
        return a is b, a + 1

    def is_not_one(a, b):
        return a is not b, b + 1

    def two_keys(a, b):
        return len({a: 1, b: 2}), len({a, b}), a + b

    def writes(a, b):
        a.add_(1)
        return a + b


@pytest.mark.parametrize("program", rows_of(Cases))
def test_tensors_that_become_one(program):
    assert_same_as_eager(program, pair, twice, pair, backward=False, recompiles=1)


class Box:
    pass


@pytest.mark.parametrize("program", [lambda p, q, x: (p is q, x + 1), lambda p, q, x: (p == q, q != p, x + 1)])
def test_objects_that_become_one(program):
    box = Box()
    compiled = minidynamo.compile(program, backend="eager")
    x = torch.ones(2)
    for p, q in ((box, Box()), (box, box), (Box(), Box())):
        assert compiled(p, q, x)[:-1] == program(p, q, x)[:-1]


class Net(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.first = torch.nn.Linear(3, 3)
        self.second = torch.nn.Linear(3, 3)


class Reads(Net):
    def forward(self, x):
        return self.second(self.first(x))


class Compares(Net):
    def forward(self, x):
        return self.second(self.first(x)) * (2 if self.first.weight is self.second.weight else 1)


class Collects(Net):
    def forward(self, x):
        return self.second(self.first(x)) * len({*self.parameters()})


class Writes(Net):
    def forward(self, x):
        with torch.no_grad():
            self.first.weight.mul_(0.5)
        return self.second(self.first(x))


class WritesThroughData(Net):
    def forward(self, x):
        self.first.weight.data.mul_(0.5)
        return self.second(self.first(x))


class ResetsGradients(Net):
    def forward(self, x):
        y = self.second(self.first(x))
        self.first.weight.grad = None
        return y


@pytest.mark.parametrize("cls", [Reads, Compares, Collects, Writes, WritesThroughData, ResetsGradients])
def test_parameters_that_become_one(cls):
    torch.manual_seed(0)
    net, x = cls(), torch.randn(2, 3)
    twin = cls()
    twin.load_state_dict(net.state_dict())
    compiled = minidynamo.compile(net, backend="eager")
    for _ in range(2):
        assert torch.equal(compiled(x), twin(x))
    for each in (compiled, twin):
        each.second.weight = each.first.weight
    for _ in range(2):
        assert torch.equal(compiled(x), twin(x))
    for each in (compiled, twin):
        each(x).sum().backward()
    if cls is not ResetsGradients:
        assert torch.equal(compiled.first.weight.grad, twin.first.weight.grad)
