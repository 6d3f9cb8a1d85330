"""The registry, the contract between minidynamo and a backend, and failing backends."""

from __future__ import annotations

import functools
import operator

import pytest
import torch

import minidynamo
from minidynamo.backends import registry
from minidynamo.core.events import MinidynamoNotice
from minidynamo.errors import ArgumentError, BackendError, UnknownName
from minidynamo.testing import assert_same_as_eager


def program(x, log):
    log.append("before")
    y = x + 1
    log.append("behind")
    return y * 2


def pure(x):
    return (x + 1) * 2


def run(fn=program, **keywords):
    """Returns the results of two calls, and the lists after the calls."""
    compiled = minidynamo.compile(fn, **keywords)
    x = torch.ones(2)
    logs = [], []
    return [compiled(x, log).tolist() for log in logs], logs


RESULT = ([[4.0, 4.0]] * 2, (["before", "behind"],) * 2)


# The registry


def test_names_are_listed_and_resolved():
    names = minidynamo.list_backends()
    assert names == sorted(names)
    assert {"aot_eager", "cpp", "eager", "inductor", "native", "triton"} <= set(names)
    for name in names:
        assert registry.resolve(name).name == name


def test_registering_a_backend(monkeypatch):
    monkeypatch.setattr(registry, "_registry", dict(registry._registry))

    def mine(gm, example_inputs):
        return registry.BUILT_IN["eager"](gm, example_inputs)

    assert minidynamo.register_backend(mine) is mine
    assert minidynamo.register_backend(mine) is mine  # again is no conflict
    minidynamo.register_backend(mine, name="other")
    assert {"mine", "other"} <= set(minidynamo.list_backends())
    assert run(backend="other") == RESULT
    assert minidynamo.register_backend(name="decorated")(mine) is mine and "decorated" in minidynamo.list_backends()
    refused = [(mine, "eager", "exists already"), (3, None, "got int, not a callable"), (mine, "", "needs a name")]
    for backend, name, says in [*refused, (mine, 3, "needs a name"), (lambda gm, inputs: gm, None, "needs a name")]:
        with pytest.raises(ArgumentError, match=says) as caught:
            minidynamo.register_backend(backend, name)
        assert caught.value.code == "MD108"
    with pytest.raises(UnknownName, match="Did you mean 'other'"):
        minidynamo.compile(program, backend="othr")


def test_the_default_backend_is_a_setting():
    with minidynamo.config.patch(backend="eager"):
        assert minidynamo.compile(pure).__minidynamo__.options.backend.name == "eager"
    assert minidynamo.compile(pure).__minidynamo__.options.backend.name == "native"


# Every backend computes the same


@pytest.mark.parametrize(
    "backend",
    [
        "eager",
        "aot_eager",
        pytest.param("native", marks=pytest.mark.cpp),
        pytest.param("cpp", marks=pytest.mark.cpp),
        "triton",
        pytest.param("inductor", marks=[pytest.mark.cpp, pytest.mark.slow]),
    ],
)
@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_forward_backward_and_effects_equal_eager(backend):
    def train(x, w, log):
        log.append(len(log))
        return torch.nn.functional.gelu(x @ w).softmax(-1) + 1

    def inputs():
        return torch.randn(3, 4), torch.randn(4, 4, requires_grad=True), []

    assert_same_as_eager(train, inputs, backend=backend, graphs=1, breaks=0)


# Callables


def test_a_backend_sees_the_graph_as_written_and_fake_inputs():
    seen = []

    def backend(gm, example_inputs):
        seen.append(([node.target for node in gm.graph.nodes if node.op == "call_function"], example_inputs))
        return minidynamo.make_boxed_func(gm.forward)

    minidynamo.compile(lambda x, xs: torch.relu(x) + xs[1], backend=backend)(
        torch.ones(2, 3), [torch.zeros(3), torch.ones(3)]
    )
    [(targets, inputs)] = seen
    assert targets == [torch.relu, operator.getitem, operator.add]
    flat = [t for value in inputs for t in (value if isinstance(value, list) else [value])]
    shapes = [tuple(t.shape) for t in flat if isinstance(t, torch.Tensor)]
    assert shapes[0] == (2, 3) and (3,) in shapes
    assert all(type(t).__name__ == "FakeTensor" for t in flat if isinstance(t, torch.Tensor))


class AsClass:
    def __init__(self, gm, example_inputs):
        self.gm = gm

    def __call__(self, *args):
        return self.gm(*args)


def unboxed(gm, example_inputs):
    return gm.forward


@pytest.mark.parametrize(
    "backend", [unboxed, AsClass, functools.partial(unboxed)], ids=["function", "class", "partial"]
)
def test_a_plain_callable_is_adapted_with_one_notice(backend):
    with pytest.warns(MinidynamoNotice, match="MD521 .* not boxed") as notices:
        assert run(backend=backend) == RESULT
    assert len(notices) == 1


def test_a_boxed_callable_gets_one_list_that_it_empties():
    seen = []

    def backend(gm, example_inputs):
        inner = registry.BUILT_IN["eager"](gm, example_inputs)

        def call(args):
            assert type(args) is list
            seen.append(len(args))
            result = inner(args)
            seen.append(len(args))
            return result

        call._boxed_call = True
        return call

    assert minidynamo.compile(pure, backend=backend)(torch.ones(1)).item() == 4
    assert seen == [1, 0]


@pytest.mark.parametrize(
    ("result", "says"),
    [
        (lambda x: x, "returned Tensor; the captured graph returns a tuple of 1"),
        (lambda x: (x, x), "returned tuple of 2; the captured graph returns a tuple of 1"),
        (lambda x: None, "returned NoneType"),
    ],
)
def test_a_graph_that_returns_something_else_is_refused(result, says):
    compiled = minidynamo.compile(pure, backend=lambda gm, inputs: minidynamo.make_boxed_func(result))
    with pytest.raises(BackendError, match=says) as caught:
        compiled(torch.ones(2))
    where = caught.value.diagnostic.where
    assert caught.value.code == "MD522" and where is not None and where.function == "pure"


# Backends that fail


def raising(gm, example_inputs):
    raise ZeroDivisionError("no\nsecond line")


FAILING = [
    (raising, "backend 'raising' failed: ZeroDivisionError"),
    (lambda gm, inputs: 3, "returned int, not a callable"),
    (lambda gm, inputs: None, "returned NoneType, not a callable"),
]


@pytest.mark.parametrize(("backend", "says"), FAILING)
def test_a_backend_that_fails_is_an_error_before_anything_has_run(backend, says):
    log = []
    compiled = minidynamo.compile(program, backend=backend)
    for _ in range(2):
        with pytest.raises(BackendError, match=says) as caught:
            compiled(torch.ones(2), log)
        assert caught.value.code == "MD520" and log == []
    if backend is raising:
        assert type(caught.value.__cause__) is ZeroDivisionError
        text = str(caught.value)
        assert "no" in text and "second line" not in text and "Stage: the captured graph, which is in" in text
        path = text.partition("which is in ")[2].split()[0]
        with open(path, encoding="utf-8") as file:
            assert "def forward" in file.read()


@pytest.mark.parametrize(("backend", "says"), FAILING)
def test_a_backend_that_fails_leaves_eager_execution_with_one_notice(backend, says):
    with pytest.warns(MinidynamoNotice, match=says) as notices:
        assert run(backend=backend, on_error="eager") == RESULT
    assert len(notices) == 1


def test_behind_a_break_nothing_is_lost_or_doubled():
    """Refuses the second graph after the first graph has already run."""
    graphs = []

    def second_fails(gm, example_inputs):
        graphs.append(gm)
        if len(graphs) >= 2:
            raise ZeroDivisionError
        return registry.BUILT_IN["eager"](gm, example_inputs)

    def f(x, log):
        log.append("before")
        y = x + 1
        minidynamo.graph_break()
        log.append("behind")
        return y * 2

    with pytest.warns(MinidynamoNotice, match=r"MD520(?s:.*)The function runs eagerly. To compile it, choose"):
        assert run(f, backend=second_fails, on_error="eager") == RESULT
    graphs.clear()
    log = []
    with pytest.raises(BackendError):
        minidynamo.compile(f, backend=second_fails)(torch.ones(2), log)
    assert log == ["before"]


def failing_at_run_time(gm, example_inputs):
    def call(*args):
        raise ZeroDivisionError("at run time")

    return minidynamo.make_boxed_func(call)


@pytest.mark.provokes_failures
@pytest.mark.parametrize("on_error", ["raise", "eager"])
def test_a_graph_that_fails_with_effects_pending_runs_again_as_written(on_error):
    with pytest.warns(MinidynamoNotice, match="MD523 the compiled graph of program failed") as notices:
        assert run(backend=failing_at_run_time, on_error=on_error) == RESULT
    assert len(notices) == 2 and all("ZeroDivisionError: at run time" in str(one.message) for one in notices)


@pytest.mark.provokes_failures
def test_a_graph_that_fails_without_effects():
    x = torch.ones(2)
    with pytest.raises(ZeroDivisionError, match="at run time"):
        minidynamo.compile(pure, backend=failing_at_run_time)(x)
    with pytest.warns(MinidynamoNotice, match="MD523"):
        assert minidynamo.compile(pure, backend=failing_at_run_time, on_error="eager")(x).tolist() == [4.0, 4.0]


def test_an_error_that_the_program_raises_anyway_is_no_news():
    @torch.library.custom_op("minidynamo_test_backends::refuse", mutates_args=())
    def refuse(x: torch.Tensor) -> torch.Tensor:
        raise ZeroDivisionError("mine")

    refuse.register_fake(lambda x: x.clone())

    def f(x, log):
        log.append("before")
        y = refuse(x)
        log.append("behind")
        return y

    for on_error in ("raise", "eager"):
        log = []
        with pytest.raises(ZeroDivisionError, match="mine"):
            minidynamo.compile(f, backend="eager", on_error=on_error)(torch.ones(2), log)
        assert log == ["before"]
