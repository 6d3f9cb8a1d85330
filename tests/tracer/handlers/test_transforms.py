"""A transform is one node over a subgraph; operations that a subgraph cannot hold end the graph."""

from __future__ import annotations

import functools
import inspect

import pytest
import torch
from torch.func import grad, grad_and_value, jacfwd, jacrev, vjp, vmap

import minidynamo
from minidynamo.tracer.handlers.transforms import vjp_at
from minidynamo.tracer.records.traced_frame import Break
from tests.tracer.capturing import capture, targets


def test_one_node_with_what_the_function_reads():
    def program(x, w):
        return vmap(lambda row: row * w)(x)

    x, w = torch.randn(3, 2), torch.randn(2)
    traced = capture(program, x, w)
    names = [getattr(target, "__name__", target) for target in targets(traced)]
    assert names == ["vmap", "getitem"]
    given = {"x": x, "w": w}
    arguments = [given[graph_input.source.display()] for graph_input in traced.inputs]
    assert torch.equal(traced.graph(*arguments)[0], x * w)


def keeps_something(x, seen):
    return vmap(lambda row: seen.setdefault("row", row) * 2)(x)


def writes_to_what_it_reads(x, seen):
    y = torch.zeros(2)
    return vmap(lambda row: row + y.add_(1))(x)


def returns_a_number(x, seen):
    return vmap(lambda row: 1)(x)


def another_number_of_dimensions(x, seen):
    return vmap(torch.mul, in_dims=(0,))(x, x + 1)


def no_such_dimension(x, seen):
    return vmap(torch.sin, in_dims=5)(x)


def not_a_scalar(x, seen):
    return grad(torch.sin)(x)


@pytest.mark.parametrize(
    "program",
    [
        keeps_something,
        writes_to_what_it_reads,
        returns_a_number,
        another_number_of_dimensions,
        no_such_dimension,
        not_a_scalar,
    ],
)
def test_what_ends_the_graph(program):
    traced = capture(program, torch.randn(3, 2), {})
    assert isinstance(traced.exit, Break) and traced.exit.diagnostic.code == "MD207"


class Scaling:
    """Multiplies."""

    def __init__(self):
        self.by = 2
        self.calls = 0

    def __call__(self, x):
        return (x * self.by).sum()


class Tripling(Scaling):
    """Has another factor."""

    factor = 3

    def tripled(self):
        return self.by * self.factor


def summed(x, by=1):
    return (x * by).sum()


tagged = functools.partial(summed, by=4)
tagged.tag = "four"
scaling = Scaling()
TRANSFORMED = [
    scaling,
    scaling.__call__,
    functools.partial(summed, by=3),
    tagged,
    torch.nn.Linear(2, 1),
    torch.Tensor.sum,
    torch.sum,
    summed,
]


def look(function):
    fields = ("__name__", "__qualname__", "__module__", "__doc__", "__wrapped__")
    return [getattr(function, name, None) for name in fields], {**vars(function)}


@pytest.mark.parametrize("function", TRANSFORMED, ids=lambda function: type(function).__name__)
@pytest.mark.parametrize("transform", [vmap, grad, grad_and_value, jacrev, jacfwd])
def test_what_is_transformed_lends_its_name(transform, function):
    def program(x):
        return transform(function), x + 1

    compiled = minidynamo.compile(program, backend="eager", fullgraph=True)
    assert look(compiled(torch.ones(2))[0]) == look(program(torch.ones(2))[0])


@pytest.mark.parametrize("transform", [vmap, grad, grad_and_value, jacrev, jacfwd])
def test_a_transformed_class_has_its_name_and_attributes(transform):
    def program(x):
        return transform(Tripling), x + 1

    def shown(function):
        names, attributes = look(function)
        return names, {name: value for name, value in attributes.items() if not name.startswith("__")}

    compiled = minidynamo.compile(program, backend="eager", fullgraph=True)
    assert shown(compiled(torch.ones(2))[0]) == shown(program(torch.ones(2))[0])


def test_a_partial_object_made_in_the_program_is_wrapped():
    def program(x):
        made = vmap(functools.partial(summed, by=x))
        return made.__name__, made.__wrapped__.func, made(x)

    compiled = minidynamo.compile(program, backend="eager", fullgraph=True)
    assert compiled(torch.ones(2))[:2] == ("wrapped", summed)


def test_only_what_a_program_reads_of_the_transformed_object_is_guarded():
    program = minidynamo.compile(lambda x: vmap(scaling)(x), backend="eager", fullgraph=True)
    for scaling.calls in range(3):
        program(torch.ones(3, 2))
    assert "not recompiled" in str(program.why())


def test_new_attributes_of_a_partial_object_are_noticed():
    function = functools.partial(summed, by=3)
    program = minidynamo.compile(lambda x: vmap(function), backend="eager")
    for n in range(3):
        assert look(program(torch.ones(3, 2))) == look(vmap(function))
        setattr(function, f"tag{n}", n)


def names(traced):
    return [getattr(target, "__name__", target) for target in targets(traced)]


def test_the_function_is_traced_once():
    def program(x, v):
        y, pull_back = vjp(lambda a: a.sin(), x)
        return y, pull_back(v), pull_back(v + 1)

    traced = capture(program, torch.ones(2), torch.ones(2))
    assert names(traced) == ["vjp", "getitem", "pull_back", "getitem", "add", "pull_back", "getitem"]
    assert sum(node.op == "get_attr" for node in traced.graph.graph.nodes) == 1


def test_parts_without_a_tracer():
    first, pull_back, aux = vjp_at(lambda a: (a * 2, a), (torch.ones(2),), True)
    assert first.tolist() == [2, 2] and aux.tolist() == [1, 1] and pull_back(first)[0].tolist() == [4, 4]


def test_the_gradient_function_is_called_as_torch_calls_it():
    def program(x):
        pull_back = vjp(torch.sin, x)[1]
        return pull_back, pull_back.__qualname__

    def look(function):
        return function.__name__, function.__qualname__, function.__module__, str(inspect.signature(function))

    kept, inside = minidynamo.compile(program, backend="eager", fullgraph=True)(torch.ones(2))
    expected = vjp(torch.sin, torch.ones(2))[1]
    assert look(kept) == look(expected) and inside == expected.__qualname__


def no_tensors(x):
    return vjp(lambda a: x * a, 3)


def random_numbers(x):
    return vjp(lambda a: torch.dropout(a, 0.5, True), x)


def what_is_no_cotangent(x):
    return vjp(torch.sin, x)[1](torch.ones(5))


def cotangents_of_another_kind(x):
    return vjp(torch.sin, x)[1](3)


def something_changes(x):
    seen = []
    return vjp(lambda a: (seen.append(1), a * 2)[1], x), seen


@pytest.mark.parametrize(
    "program", [no_tensors, random_numbers, what_is_no_cotangent, cotangents_of_another_kind, something_changes]
)
def test_what_ends_the_graph_at_vjp(program):
    traced = capture(program, torch.randn(2))
    assert isinstance(traced.exit, Break) and traced.exit.diagnostic.code == "MD207"
