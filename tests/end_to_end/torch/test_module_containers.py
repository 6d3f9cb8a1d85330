"""Containers of modules and parameters, the parts of modules, and changes of both while compiled code runs."""

from __future__ import annotations

import collections

import pytest
import torch
from torch import nn

from minidynamo import compile as compile_function
from minidynamo.testing import CompileCounter, no_recompile
from tests.end_to_end.programs import Programs

programs = Programs()
test_same_as_eager = programs.test()


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.layers = nn.ModuleList([nn.Linear(4, 4) for _ in range(4)])
        self.named = nn.ModuleDict({"a": nn.Linear(4, 4), "b": nn.ReLU()})
        self.weights = nn.ParameterList([nn.Parameter(torch.full((4,), float(i))) for i in range(3)])
        self.scales = nn.ParameterDict({"x": nn.Parameter(torch.ones(4)), "y": nn.Parameter(torch.ones(4) * 2)})
        self.body = nn.Sequential(nn.Linear(4, 4), nn.ReLU(), nn.Linear(4, 4))
        self.register_buffer("running", torch.zeros(4))
        self.proj = None
        self.calls = 0


def net():
    return Net(), torch.randn(2, 4)


@programs(net)
class ReadingContainers:
    def slices_of_a_module_list(m, x):
        for layer in m.layers[1:3]:
            x = layer(x)
        for layer in reversed(m.layers):
            x = layer(x)
        for i, layer in enumerate(m.layers[::2]):
            x = layer(x) * i
        return x, len(m.layers[1:]), m.layers[0] in m.layers, nn.ReLU() in m.layers

    def indices_of_a_module_list(m, x):
        for i in range(len(m.layers)):
            x = m.layers[i](x)
        first, *rest = m.layers
        return m.layers[-1](first(x)), len(rest), [*m.layers][1](x)

    def neighbours_in_a_module_list(m, x):
        for a, b in zip(m.layers, m.layers[1:]):
            x = b(a(x))
        both = m.layers + m.layers
        return x, len(both), both[5](x)

    def module_dict(m, x):
        for key in m.named:
            x = m.named[key](x)
        for key, layer in m.named.items():
            x = layer(x) * len(key)
        for layer in m.named.values():
            x = layer(x)
        return x, list(m.named.keys()), "a" in m.named, "z" in m.named, len(m.named)

    def parameter_list(m, x):
        for weight in m.weights:
            x = x * weight
        for i in range(len(m.weights)):
            x = x + m.weights[i]
        return x * m.weights[-1], len(m.weights), [w.shape for w in m.weights[1:]]

    def parameter_dict(m, x):
        for key in m.scales:
            x = x * m.scales[key]
        for key, scale in m.scales.items():
            x = x + scale * len(key)
        return x, list(m.scales.keys()), "x" in m.scales, m.scales.get("none") is None, len(m.scales)

    def sequential(m, x):
        x = m.body[:2](x) + m.body[-1](x)
        for layer in m.body:
            x = layer(x)
        return x, len(m.body), [name for name, _ in m.body.named_children()]


@programs(net)
class ChangingContainers:
    def module_list_changed(m, x):
        m.layers.append(m.named["a"])
        m.layers.insert(0, m.named["b"])
        m.layers.extend([m.named["b"]])
        for layer in m.layers:
            x = layer(x)
        del m.layers[1]
        last = m.layers.pop(0)
        m.layers[0] = m.named["a"]
        return last(x), len(m.layers), m.layers[0](x)

    def module_dict_changed(m, x):
        m.named["c"] = m.layers[0]
        m.named.update({"d": m.layers[1]})
        popped = m.named.pop("b")
        del m.named["a"]
        return popped(m.named["c"](x)), list(m.named.keys()), m.named.d(x)

    def parameters_changed(m, x):
        m.weights.append(m.scales["x"])
        m.weights[0] = m.scales["y"]
        m.scales["z"] = m.weights[1]
        return sum(w.sum() for w in m.weights) * x + m.scales["z"]


@programs(net)
class RegisteringParts:
    def buffers_registered(m, x):
        m.register_buffer("seen", x.detach() * 2)
        m.register_buffer("hidden", x.detach() * 3, persistent=False)
        m.running = m.running * 0.9 + x.mean(0).detach() * 0.1
        return x + m.seen + m.hidden, sorted(m._non_persistent_buffers_set), [name for name, _ in m.named_buffers()]

    def modules_registered(m, x):
        m.proj = m.layers[0]
        m.add_module("other", m.layers[1])
        m.register_module("third", nn.Tanh())
        return m.third(m.other(m.proj(x))), [name for name, _ in m.named_children()], "proj" in m.__dict__

    def parts_deleted(m, x):
        del m.running
        del m.body[0].bias
        del m.proj
        gone = [hasattr(m, "running"), hasattr(m, "proj"), hasattr(m.body[0], "bias")]
        m.proj = x * 2
        return m.proj, gone

    @programs(net, graphs=0, breaks=1)
    def a_name_that_is_taken(m, x):
        try:
            m.register_buffer("calls", x)
        except KeyError as error:
            return x + 1, str(error)
        return x


class Head(nn.Module):
    def __init__(self, body, scale=2):
        self.early = 1
        super().__init__()
        self.body = body
        self.scale = scale
        self.register_buffer("offset", torch.arange(4.0))
        self.calls = 0

    def forward(self, x):
        self.calls += 1
        return self.body(x) * self.scale + self.offset


@programs(net)
class ModulesMadeWhileTracing:
    @programs()
    def layers_without_parameters(x):
        pair = x.expand(2, 4)
        loss = nn.MSELoss()(pair, pair * 2) + nn.CrossEntropyLoss()(pair, torch.zeros(2, dtype=torch.long))
        return nn.ReLU()(x) + nn.Softmax(dim=-1)(x) + nn.Dropout(0.0)(x), loss

    def sequential_made_of_old_parts(m, x):
        made = nn.Sequential(*m.layers, nn.Tanh())
        named = nn.Sequential(collections.OrderedDict([("first", m.layers[0]), ("second", m.named["b"])]))
        return made(x), named.second(named.first(x)), len(made)

    def module_made_and_returned(m, x):
        made = nn.ModuleDict({"layer": m.layers[0], "relu": nn.ReLU()})
        made.tag = "new"
        made.eval()
        return made, made["layer"](x), made.training, m.layers[0].training

    def module_of_the_users_made(m, x):
        head = Head(m.body, scale=3)
        first = head(x)
        return head(first), head.calls, head.early, [name for name, _ in head.named_modules()]

    def module_of_the_users_returned(m, x):
        head = Head(m.body)
        return head(x), head

    def layer_with_new_parameters(m, x):
        y = m.body(x)
        return nn.Linear(4, 2)(y) + 1


# --- changes between calls ----------------------------------------------------------------------------------------


class Optional(nn.Module):
    def forward(self, x):
        if hasattr(self, "adapter"):
            x = self.adapter(x)
        scale = getattr(self, "scale", None)
        return x if scale is None else x * scale


@pytest.mark.parametrize("part", ["parameter", "buffer", "module", "attribute"])
def test_a_part_that_is_registered_later_is_noticed(part):
    module = Optional()
    counter = CompileCounter()
    compile_function(module, backend=counter)
    x = torch.ones(2, 3)
    assert torch.equal(module(x), x)
    if part == "parameter":
        module.scale = nn.Parameter(torch.full((3,), 3.0))
    elif part == "buffer":
        module.register_buffer("scale", torch.full((3,), 3.0))
    elif part == "attribute":
        module.scale = 3.0
    else:
        module.adapter = nn.Threshold(5.0, 3.0)
    assert torch.equal(module(x), x * 3)
    with no_recompile():
        assert torch.equal(module(x), x * 3)
    delattr(module, "adapter" if part == "module" else "scale")
    with no_recompile():
        assert torch.equal(module(x), x)


def test_an_attribute_that_hides_a_parameter_is_noticed():
    module = compile_function(nn.Linear(3, 3), backend="eager")
    x = torch.ones(2, 3)
    module(x)
    module.__dict__["weight"] = torch.zeros(3, 3)
    assert torch.equal(module(x), module.bias.expand(2, 3))


def test_parts_of_the_same_kind_are_swapped_without_a_recompile():
    module = compile_function(nn.Sequential(nn.Linear(3, 3), nn.ReLU()), backend="eager")
    x = torch.randn(2, 3)
    module(x)
    with no_recompile():
        for value in (1.0, 2.0):
            module[0] = nn.Linear(3, 3)
            nn.init.constant_(module[0].weight, value)
            module[0].bias = nn.Parameter(torch.zeros(3))
            expected = torch.relu(x.sum(1, keepdim=True) * value).expand(2, 3)
            torch.testing.assert_close(module(x), expected)
        module.load_state_dict({"0.weight": torch.zeros(3, 3), "0.bias": torch.ones(3)}, assign=True)
        assert torch.equal(module(x), torch.ones(2, 3))


class Deciding(nn.Module):
    def forward(self, x):
        x = x * 2
        if x.sum() > 0:
            x = x + 1
        return x - 1


def test_what_is_around_a_layer_that_breaks_is_captured():
    # nn.Sequential is torch's code, and still the modules that it calls are compiled.
    module = nn.Sequential(nn.Linear(4, 4), nn.ReLU(), Deciding(), nn.Linear(4, 4), nn.ReLU())
    counter = CompileCounter()
    compiled = compile_function(module, backend=counter)
    x = torch.randn(2, 4)
    expected = nn.Sequential(*module)(x)
    assert torch.equal(compiled(x), expected)
    graphs = counter.frame_count
    assert counter.op_count >= 7
    for _ in range(3):
        assert torch.equal(compiled(x), expected)
    assert counter.frame_count == graphs


def test_lazy_layers_are_compiled_once_they_have_parameters():
    counter = CompileCounter()
    module = compile_function(nn.Sequential(nn.LazyLinear(3), nn.ReLU(), nn.LazyLinear(2)), backend=counter)
    x = torch.randn(2, 4)
    module(x)
    assert [type(layer) for layer in module] == [nn.Linear, nn.ReLU, nn.Linear]
    expected = nn.Sequential(*module)(x)
    for _ in range(2):
        assert torch.equal(module(x), expected)
    assert counter.op_count >= 3
    with no_recompile():
        module(x)
