"""Loops over modules that a graph break cuts: the rest is one piece, and equal to eager whatever changes."""

import copy

import pytest
import torch
from torch import nn

import minidynamo


class Breaks(nn.Module):
    """A layer whose forward breaks the graph; `at_break(self)` runs there."""

    at_break = staticmethod(lambda: None)

    def forward(self, x):
        minidynamo.graph_break()
        self.at_break()
        return x * 2


class Layers(nn.Module):
    """Modules in a loop of one of the kinds below."""

    def __init__(self, *layers, loop):
        super().__init__()
        self.layers = nn.ModuleList(layers)
        self.loop = loop

    def forward(self, x):
        return self.loop(self.layers, x)


def in_order(layers, x):
    for layer in layers:
        x = layer(x)
    return x


def numbered(layers, x):
    for k, layer in enumerate(layers):
        x = layer(x) * (k + 1)
    return x


def returning(layers, x):
    for layer in layers:
        x = layer(x)
        if isinstance(layer, nn.Tanh):
            return x
    return x + 1


def left_early(layers, x):
    for layer in layers:
        x = layer(x)
        if isinstance(layer, nn.Tanh):
            break
    else:
        x = x + 1
    return x.sin()


def nested(layers, x):
    for outer in layers:
        for inner in layers:
            x = inner(x) * 0.5
        x = outer(x)
    return x


def held_by_the_program(layers, x):
    iterator = iter(layers)
    for layer in iterator:
        x = layer(x)
        if isinstance(layer, Breaks):
            break
    return x * len([*iterator])


def held_by_a_list(layers, x):
    held = [iter(layers)]
    for layer in held[0]:
        x = layer(x)
        if isinstance(layer, Breaks):
            break
    return next(held[0])(x)


LOOPS = [in_order, numbered, returning, left_early, nested, held_by_the_program, held_by_a_list]


def linear():
    return nn.Linear(4, 4)


def counted(model, x, calls=3):
    """Calls the compiled model, and returns the counters of all calls."""
    for _ in range(calls):
        model(x)
    return minidynamo.stats(model)


def assert_equal(compiled, expected, rows=(3, 3, 5)):
    for k, count in enumerate(rows):
        x = torch.arange(count * 4.0).reshape(count, 4).sin() + k
        torch.testing.assert_close(compiled(x), expected(x))


def compiled(model):
    expected = copy.deepcopy(model)
    return minidynamo.compile(model, backend="eager"), expected


def test_the_rest_of_a_sequential_is_one_piece():
    model = nn.Sequential(linear(), Breaks(), *(layer for _ in range(5) for layer in (linear(), nn.ReLU())))
    model, expected = compiled(model)
    found = counted(model, torch.randn(3, 4))
    assert (found.graphs, found.recompiles) == (3, 0)  # before the break, in the layer that breaks, and the rest
    assert_equal(model, expected)


@pytest.mark.parametrize("count", [1, 2, 3])
@pytest.mark.parametrize("loop", LOOPS, ids=lambda loop: loop.__name__)
def test_loops_of_every_kind(loop, count):
    layers = [
        linear(),
        *(layer for _ in range(count) for layer in (Breaks(), linear(), nn.Sigmoid())),
        nn.Tanh(),
        linear(),
    ]
    model, expected = compiled(Layers(*layers, loop=loop))
    assert_equal(model, expected)


def test_later_containers_share_a_version_that_runs_item_by_item():
    parts = [nn.Sequential(linear(), Breaks(), *(linear() for _ in range(count))) for count in range(1, 7)]
    model, expected = compiled(nn.Sequential(*parts))
    assert_equal(model, expected, rows=(3, 3))
    before = minidynamo.stats(model).recompiles
    assert_equal(model, expected, rows=(3, 3))
    assert minidynamo.stats(model).recompiles == before
    assert "a loop over modules in which the graph has broken" in str(minidynamo.explain(model))


@pytest.mark.parametrize(
    "change",
    [
        lambda model: model.append(nn.Sigmoid()),
        lambda model: model.__delitem__(2),
        lambda model: model.__setitem__(3, nn.Tanh()),
        lambda model: model[2].register_forward_hook(lambda module, args, result: result + 1),
        lambda model: model[2].weight.data.zero_(),
        lambda model: model.eval(),
        lambda model: model.insert(1, Breaks()),
    ],
    ids=["append", "delete", "replace", "hook", "weight", "eval", "break"],
)
def test_changes_between_calls(change):
    model, expected = compiled(nn.Sequential(linear(), Breaks(), linear(), nn.ReLU(), linear()))
    assert_equal(model, expected)
    change(model), change(expected)
    assert_equal(model, expected)


def test_a_layer_that_adds_a_module_during_the_loop_raises_as_in_eager():
    model = nn.Sequential(linear(), Breaks(), linear(), linear())
    compiled_model = minidynamo.compile(model, backend="eager")
    x = torch.randn(3, 4)
    compiled_model(x)
    model[1].at_break = lambda: model.add_module(f"more_{len(model)}", nn.ReLU())
    with pytest.raises(RuntimeError, match="changed size during iteration"):
        compiled_model(x)


def test_a_layer_that_replaces_a_later_module_during_the_loop():
    model = nn.Sequential(linear(), Breaks(), linear(), linear())
    compiled_model = minidynamo.compile(model, backend="eager")
    x = torch.randn(3, 4)
    compiled_model(x)
    model[1].at_break = lambda: model._modules.update({"3": nn.Tanh()})
    expected = model[2](model[0](x) * 2).tanh()
    torch.testing.assert_close(compiled_model(x), expected)


def test_gradients_of_the_rest():
    model, expected = compiled(nn.Sequential(linear(), Breaks(), linear(), nn.GELU(), linear()))
    x = torch.randn(3, 4)
    for _ in range(2):
        for each in (model, expected):
            each.zero_grad()
            each(x).sum().backward()
        for own, other in zip(model.parameters(), expected.parameters()):
            torch.testing.assert_close(own.grad, other.grad)
