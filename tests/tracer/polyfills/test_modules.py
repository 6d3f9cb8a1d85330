import pytest
import torch
from torch import nn
from torch.nn.modules import module as module_globals

import minidynamo
from minidynamo.tracer.polyfills import modules as twins
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
        ("plain", nn.Tanh()),
        ("plain", nn.Parameter(torch.ones(1))),
        ("offset", nn.Parameter(torch.ones(1))),
        ("first", nn.Parameter(torch.ones(1))),
        ("offset", nn.Tanh()),
    ],
)
def test_setattr_registers_parts_as_nn_module_does(name, value):
    nets = [Net(), Net()]
    nets[0].plain = nets[1].plain = 3
    setattr(nets[0], name, value)
    twins.module_setattr(nets[1], name, value)
    assert tables(nets[1]) == tables(nets[0])


def tables(net):
    names = ("_parameters", "_buffers", "_modules", "_non_persistent_buffers_set", "__dict__")
    return [list(getattr(net, name)) for name in names]


@pytest.mark.parametrize(
    "name, value", [("first", 3), ("missing", 3), ("offset", 3), ("offset", nn.Buffer(torch.ones(1)))]
)
def test_setattr_leaves_what_nn_module_refuses(name, value):
    with pytest.raises(NotImplementedError):
        twins.module_setattr(Net(), name, value)


@pytest.mark.parametrize("name", ["", "a.b", "forward", 3])
def test_names_that_nn_module_refuses(name):
    for register in (twins.register_buffer, twins.register_parameter, twins.add_module):
        with pytest.raises(NotImplementedError):
            register(Net(), name, None)


def test_registering():
    nets = [Net(), Net()]
    parameter, buffer = nn.Parameter(torch.ones(1)), torch.ones(2)
    for net, register_parameter, add_module, register_buffer in (
        (nets[0], nn.Module.register_parameter, nn.Module.add_module, nn.Module.register_buffer),
        (nets[1], twins.register_parameter, twins.add_module, twins.register_buffer),
    ):
        register_parameter(net, "scale", parameter)
        add_module(net, "third", None)
        register_buffer(net, "hidden", buffer, persistent=False)
        register_buffer(net, "kept", buffer)
    assert tables(nets[1]) == tables(nets[0])
    with pytest.raises(NotImplementedError):
        twins.register_parameter(Net(), "computed", nn.Parameter(torch.ones(1)).clone())


def test_delattr():
    nets = [Net(), Net()]
    for net, delete in ((nets[0], delattr), (nets[1], twins.module_delattr)):
        net.plain = 3
        for name in ("plain", "offset", "first", "missing"):
            delete(net, name)
    assert tables(nets[1]) == tables(nets[0])


def test_calls_of_modules_are_not_guarded_by_the_classes_that_take_packed_sequences():
    compiled = minidynamo.compile(nn.Sequential(nn.ReLU(), nn.Tanh()).forward, backend="eager")
    compiled(torch.ones(2))
    assert "_RECURRENT" not in str(compiled.guards())
