"""No object of a compile outlives the user's last reference, without help of the garbage collector."""

import gc
import weakref

import pytest
import torch

import minidynamo
from minidynamo.frontend.compile import compiled_record
from tests.end_to_end.programs import rows_of


@pytest.fixture(autouse=True)
def no_collector():
    gc.collect()
    gc.disable()
    yield
    gc.enable()


BACKENDS = ["eager", pytest.param("native", marks=pytest.mark.cpp)]


def watched(compiled, *others):
    """Returns weak references to the objects of a compiled function or module, by name, and to `others`."""
    record = compiled_record(compiled)
    dispatchers = record.dispatchers().values()
    found = {"record": record}  # without graphs: FX nodes refer to one another, but to no object of the user
    for number, dispatcher in enumerate(dispatchers):
        found[f"dispatcher {number}"] = dispatcher
        found[f"function {number}"] = dispatcher.function
        for entry in dispatcher.entries:
            found[f"entry {number}"], found[f"body {number}"] = entry, entry.body
    found |= {f"other {number}": other for number, other in enumerate(others)}
    return {name: weakref.ref(value) for name, value in found.items()}


def survivors(references):
    return [name for name, reference in references.items() if reference() is not None]


def call_often(f, *arguments):
    """Calls often enough to be timed, too."""
    for _ in range(20):
        f(*arguments)


class Dropped:
    """Programs that return weak references to objects that no caller holds."""

    def a_function(backend):
        def f(x):
            return torch.relu(x) * 2

        compiled = minidynamo.compile(f, backend=backend)
        call_often(compiled, torch.ones(3))
        compiled(torch.ones(3).double())
        return watched(compiled, f)

    def a_function_that_was_trained(backend):
        compiled = minidynamo.compile(lambda x, w: torch.tanh(x @ w), backend=backend)
        w = torch.ones(3, 3, requires_grad=True)
        for _ in range(3):
            compiled(torch.ones(2, 3), w).sum().backward()
        return watched(compiled, w)

    def a_module(backend):
        net = torch.nn.Sequential(torch.nn.Linear(3, 3), torch.nn.ReLU(), torch.nn.Linear(3, 2))
        minidynamo.compile(net, backend=backend)
        call_often(net, torch.ones(2, 3))
        return watched(net, net, net[0], net[0].weight)

    def a_closure(backend):
        def make():
            weight = torch.ones(3)

            def inner(x):
                return x * weight

            return minidynamo.compile(inner, backend=backend), weight

        compiled, weight = make()
        call_often(compiled, torch.ones(3))
        return watched(compiled, weight)

    def resume_functions(backend):
        def f(x, n):
            for _ in range(n):
                x = x + 1
                minidynamo.graph_break()
            return helper(x) * 2

        def helper(x):
            x = x - 1
            minidynamo.graph_break()
            return x * x

        compiled = minidynamo.compile(f, backend=backend, dynamic=False)
        call_often(compiled, torch.ones(3), 2)
        references = watched(compiled, f)
        assert len([name for name in references if name.startswith("dispatcher")]) > 1
        return references


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("program", rows_of(Dropped))
def test_nothing_survives(program, backend):
    assert survivors(program(backend)) == []


@pytest.mark.parametrize("backend", BACKENDS)
def test_a_module_that_a_living_function_takes(backend):
    compiled = minidynamo.compile(lambda net, x: net(x), backend=backend)
    net = torch.nn.Linear(3, 3)
    net.register_forward_hook(lambda module, args, out: out + 1)
    call_often(compiled, net, torch.ones(2, 3))
    references = {"net": weakref.ref(net), "weight": weakref.ref(net.weight)}
    hook = next(iter(net._forward_hooks.values()))
    references["hook"] = weakref.ref(hook)
    del net, hook
    assert survivors(references) == []
    compiled(torch.nn.Linear(3, 3), torch.ones(2, 3))
    assert len(compiled_record(compiled).root().entries) <= 2


@pytest.mark.parametrize("backend", BACKENDS)
def test_arguments_results_and_globals(backend):
    compiled = minidynamo.compile(lambda x, box: (x * box["w"], box), backend=backend)
    x, box = torch.ones(3), {"w": torch.ones(3)}
    out = compiled(x, box)[0]
    references = {name: weakref.ref(value) for name, value in (("x", x), ("w", box["w"]), ("out", out))}
    del x, box, out
    assert survivors(references) == []


def test_a_replaced_parameter_dies_at_once():
    net = minidynamo.compile(torch.nn.Linear(3, 3), backend="eager")
    call_often(net, torch.ones(2, 3))
    old = weakref.ref(net.weight)
    net.weight = torch.nn.Parameter(torch.zeros(3, 3))
    assert old() is None
    assert torch.equal(net(torch.ones(2, 3)), net.bias.expand(2, 3))


def test_an_entry_of_something_that_died_is_dropped():
    compiled = minidynamo.compile(lambda fn, x: fn(x), backend="eager")

    def call(factor):
        def fn(x):
            return x * factor

        return compiled(fn, torch.ones(2))

    for factor in range(6):
        assert torch.equal(call(factor), torch.full((2,), float(factor)))
    assert len(compiled_record(compiled).root().entries) <= 2


def test_what_functions_made_in_each_call_captured_dies_with_them():
    def make(weight):
        def callee(x, *args, k=2, **kw):
            y = x * weight
            minidynamo.graph_break()
            return y * k + sum(args) + kw.get("z", 0)

        return callee

    def program(x, callee):
        return callee(x) + callee(x, 1, k=3, z=5)

    compiled = minidynamo.compile(program, backend="eager")
    references, compiles = {}, 0
    for number in range(6):
        weight = torch.full((1,), float(number))
        references[f"weight {number}"] = weakref.ref(weight)
        callee = make(weight)
        assert torch.equal(compiled(torch.ones(1), callee), program(torch.ones(1), callee))
        if number > 2:
            assert compiled.stats.compiles == compiles
        compiles = compiled.stats.compiles
    with pytest.raises(TypeError, match="missing 1 required positional argument: 'x'"):
        minidynamo.compile(lambda callee: callee(), backend="eager")(callee)
    del weight, callee
    assert survivors(references) == []


def test_an_object_whose_dict_was_looked_at():
    class Holder:
        pass

    @minidynamo.compile(backend="eager")
    def f(holder, x):
        holder.__dict__["last"] = x
        return x + 1

    holder = Holder()
    f(holder, torch.ones(3))
    references = {"holder": weakref.ref(holder)}
    del holder
    assert survivors(references) == []
