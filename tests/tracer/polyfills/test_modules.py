import pytest
import torch
from torch import nn

import minidynamo
from minidynamo.tracer.records.registry import POLYFILLS


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.first = nn.Linear(3, 3)
        self.second = nn.Sequential(nn.Linear(3, 3), nn.BatchNorm1d(3))
        self.shared = self.first
        self.register_buffer("offset", torch.ones(3))
        self.empty = None
        self.register_parameter("missing", None)

    def forward(self, x, scale=1):
        return self.second(self.first(x)) * scale + self.offset


WALKS = ["named_modules", "modules", "named_children", "children", "named_parameters", "parameters"]


@pytest.mark.parametrize("name", [*WALKS, "named_buffers", "buffers"])
@pytest.mark.parametrize("kwargs", [{}, {"prefix": "net"}, {"recurse": False}, {"remove_duplicate": False}])
def test_walks_give_what_the_originals_give(name, kwargs):
    net = Net()
    original = getattr(nn.Module, name)
    if not set(kwargs) <= set(original.__code__.co_varnames):
        return
    expected = list(original(net, **kwargs))
    actual = list(POLYFILLS[id(original)](net, **kwargs))
    assert [_identity(item) for item in actual] == [_identity(item) for item in expected]


def _identity(item):
    return (item[0], id(item[1])) if isinstance(item, tuple) else id(item)


def test_calls_of_modules_are_not_guarded_by_the_classes_that_take_packed_sequences():
    compiled = minidynamo.compile(nn.Sequential(nn.ReLU(), nn.Tanh()).forward, backend="eager")
    compiled(torch.ones(2))
    assert "_RECURRENT" not in str(compiled.guards())
