import pytest
import torch
from torch import nn
from torch.nn.modules import module as module_globals

from minidynamo.tracer import module_polyfills as twins
from minidynamo.tracer.registry import POLYFILLS


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


def hooked():
    net = Net().eval()
    log = []
    net.register_forward_pre_hook(lambda m, args: log.append("pre"))
    net.register_forward_pre_hook(lambda m, args: args[0] + 1)
    net.register_forward_pre_hook(lambda m, args, kwargs: (args, {"scale": 3}), with_kwargs=True)
    net.register_forward_hook(lambda m, args, result: log.append("post"))
    net.register_forward_hook(lambda m, args, kwargs, result: result * kwargs["scale"], with_kwargs=True)
    net.register_forward_hook(lambda m, args, result: result + args[0], prepend=True)
    return net, log


def test_call_runs_forward_hooks_in_order():
    net, log = hooked()
    x = torch.randn(2, 3)
    expected, expected_log = net(x), list(log)
    log.clear()
    assert torch.equal(twins.module_call(net, x), expected)
    assert log == expected_log


def test_call_runs_global_hooks():
    net = Net().eval()
    x = torch.randn(2, 3)
    handle = module_globals.register_module_forward_hook(lambda m, args, result: result + 1)
    try:
        assert torch.equal(twins.module_call(net, x), net(x))
    finally:
        handle.remove()


@pytest.mark.parametrize(
    "register",
    [
        lambda net: net.register_full_backward_hook(lambda *args: None),
        lambda net: net.register_full_backward_pre_hook(lambda *args: None),
        lambda net: net.register_forward_hook(lambda *args: None, always_call=True),
        lambda net: net.register_forward_pre_hook(lambda m, args, kwargs: 3, with_kwargs=True),
    ],
)
def test_call_refuses_what_nn_module_must_do_itself(register):
    net = Net()
    register(net)
    with pytest.raises(NotImplementedError):
        twins.module_call(net, torch.randn(2, 3))


def test_setattr_replaces_what_is_registered():
    net = Net()
    values = {
        "offset": torch.zeros(3),
        "first": nn.Linear(3, 3),
        "missing": nn.Parameter(torch.ones(1)),
        "plain": 3,
        "second": None,
    }
    for name, value in values.items():
        twins.module_setattr(net, name, value)
        assert getattr(net, name) is value
    assert net._parameters["missing"] is values["missing"] and net._buffers["offset"] is values["offset"]
    assert net._modules["first"] is values["first"] and net.__dict__["plain"] == 3


@pytest.mark.parametrize(
    "name, value",
    [
        ("new", nn.Parameter(torch.ones(1))),
        ("new", nn.Tanh()),
        ("first", 3),
        ("missing", 3),
        ("offset", 3),
        ("offset", nn.Parameter(torch.ones(1))),
        ("offset", nn.Buffer(torch.ones(1))),
        ("first", nn.Parameter(torch.ones(1))),
    ],
)
def test_setattr_refuses_what_changes_the_parts(name, value):
    with pytest.raises(NotImplementedError):
        twins.module_setattr(Net(), name, value)


def test_delattr():
    net = Net()
    net.plain = 3
    twins.module_delattr(net, "plain")
    assert not hasattr(net, "plain")
    with pytest.raises(NotImplementedError):
        twins.module_delattr(net, "offset")
