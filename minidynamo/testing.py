"""Owns the tools to test compiled programs: recording backends, comparison with eager, recompile and lifetime checks.

It compiles through `minidynamo.compile` like any user, so that other projects can use the same tools as minidynamo's
own tests. `minidynamo.observe.comparison` decides what to compare.
"""

from __future__ import annotations

import contextlib
import re
import weakref
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

import torch
from torch import fx
from torch.multiprocessing.reductions import StorageWeakRef

from minidynamo.autograd.aot import aot_compile
from minidynamo.backends.registry import Backend, resolve
from minidynamo.core.events import Event, on_event
from minidynamo.errors import ArgumentError, Diagnostic
from minidynamo.frontend.compile import compile as compile_function
from minidynamo.graph.boxed import make_boxed
from minidynamo.observe.comparison import Observation, assert_equal_observations, observe

OPERATIONS = ("call_function", "call_method", "call_module")


class CompileCounter:
    """A backend that runs graphs as captured and counts them.

    `frame_count` is the number of graphs, `op_count` the number of calls in the graphs, `graphs` the graphs themselves.
    """

    def __init__(self) -> None:
        self.frame_count = 0
        self.op_count = 0
        self.graphs: list[fx.GraphModule] = []

    def __call__(self, gm: fx.GraphModule, example_inputs: Sequence[Any]) -> Callable[..., Any]:
        self.frame_count += 1
        self.op_count += sum(node.op in OPERATIONS for node in gm.graph.nodes)
        self.graphs.append(gm)
        return self.compile(gm, example_inputs)

    def compile(self, gm: fx.GraphModule, example_inputs: Sequence[Any]) -> Callable[..., Any]:
        """Makes a graph callable; subclasses override this."""
        return make_boxed(gm)

    def __repr__(self) -> str:
        return f"{type(self).__name__}(frame_count={self.frame_count}, op_count={self.op_count})"

    def clear(self) -> None:
        """Resets the counters and forgets the graphs."""
        self.frame_count = 0
        self.op_count = 0
        self.graphs.clear()


class CompileCounterWithBackend(CompileCounter):
    """Counts like `CompileCounter` and compiles with `backend`, a name or a callable."""

    def __init__(self, backend: str | Backend) -> None:
        super().__init__()
        self.backend = resolve(backend).run

    def compile(self, gm: fx.GraphModule, example_inputs: Sequence[Any]) -> Callable[..., Any]:
        return self.backend(gm, example_inputs)


class EagerAndRecordGraphs(CompileCounter):
    """A backend that runs graphs as captured and keeps them in `graphs`."""


class AotEagerAndRecordGraphs(CompileCounter):
    """Runs the graphs of the autograd stage; keeps them in `fw_graphs` (inference graphs too) and `bw_graphs`."""

    def __init__(self) -> None:
        super().__init__()
        self.fw_graphs: list[fx.GraphModule] = []
        self.bw_graphs: list[fx.GraphModule] = []

    def compile(self, gm: fx.GraphModule, example_inputs: Sequence[Any]) -> Callable[..., Any]:
        def recorder(graphs: list[fx.GraphModule]) -> Backend:
            def record(graph: fx.GraphModule, inputs: Sequence[Any]) -> Callable[..., Any]:
                graphs.append(graph)
                return make_boxed(graph)

            return record

        forward, backward = recorder(self.fw_graphs), recorder(self.bw_graphs)
        return aot_compile(gm, example_inputs, forward=forward, backward=backward, inference=forward)

    def clear(self) -> None:
        super().clear()
        self.fw_graphs.clear()
        self.bw_graphs.clear()


def normalize_gm(text: str) -> str:
    """Returns the text of a graph module without comments, blank lines and trailing spaces, to compare with a golden
    text.

    Pass `gm.print_readable(print_output=False)`.
    """
    lines = (re.sub(r"\s*#.*$", "", line).rstrip() for line in text.splitlines())
    return "\n".join(line for line in lines if line) + "\n"


def assert_same_as_eager(
    fn: Callable[..., Any],
    *make_inputs: Callable[[], Any],
    backend: str | Backend = "eager",
    graphs: int | None = None,
    breaks: int | None = None,
    recompiles: int | None = None,
    calls: int = 1,
    rtol: float | None = None,
    atol: float | None = None,
    backward: bool = True,
    **options: Any,
) -> Callable[..., Any]:
    """Checks that compiling `fn` changes nothing visible to Python; returns the compiled function.

    Each of `make_inputs` takes nothing and returns the arguments of a call: a tuple, or a single value. It is called
    once for eager and once for the compiled function with the same random seed, `calls` times in a row. These are
    compared: the result or the exception, printed text, the arguments afterwards, gradients of every leaf after a
    backward from all outputs (unless `backward=False`), which objects are identical, which tensors share storage, the
    random states of torch and of Python's `random`, and the grad mode.

    `graphs`, `breaks` and `recompiles`, if not None, are the exact totals over all calls; `rtol` and `atol` are those
    of `torch.testing.assert_close` (both 0 for bitwise equality); `options` are passed to `minidynamo.compile`.

    Pass modules as arguments: both runs share a module that `fn` reaches in any other way. Raises AssertionError with
    the first difference, ArgumentError without functions that make arguments.
    """
    if not make_inputs or not all(map(callable, make_inputs)):
        what = "assert_same_as_eager needs functions that make the arguments of a call"
        raise ArgumentError(Diagnostic("MD112", what, fix="Write: assert_same_as_eager(fn, lambda: (torch.ones(3),))."))
    counter = CompileCounterWithBackend(backend)
    tolerance: dict[str, Any] = {} if rtol is None or atol is None else {"rtol": rtol, "atol": atol}
    with _recorded() as events:
        compiled: Callable[..., Any] = compile_function(fn, backend=counter, **options)
        for number, make in enumerate(make for make in make_inputs for _ in range(calls)):
            expected = observe(fn, make, seed=number, backward=backward)
            actual = observe(compiled, make, seed=number, backward=backward)
            _compare(f"call {number}", expected, actual, tolerance)
    totals = {"graphs": counter.frame_count, "breaks": _count(events, "graph_break")}
    totals["recompiles"] = _count(events, "recompile")
    expected_totals = {"graphs": graphs, "breaks": breaks, "recompiles": recompiles}
    wrong = [
        f"{n} {expected_totals[n]} expected, {totals[n]} seen"
        for n in totals
        if expected_totals[n] not in (None, totals[n])
    ]
    assert not wrong, "; ".join(wrong) + _details(events)
    return compiled


def _compare(call: str, expected: Observation, actual: Observation, tolerance: dict[str, Any]) -> None:
    if expected.error is None and actual.error is not None:
        raise AssertionError(f"{call}: eager returned, the compiled function raised") from actual.error
    assert_equal_observations(call, expected, actual, tolerance)


@contextlib.contextmanager
def _recorded() -> Iterator[list[Event]]:
    events: list[Event] = []
    unsubscribe = on_event(events.append)
    try:
        yield events
    finally:
        unsubscribe()


def _count(events: Iterable[Event], kind: str) -> int:
    return sum(event.kind == kind for event in events)


def _details(events: Iterable[Event]) -> str:
    """Lists each break and each reason of a recompile, one per line."""
    lines = []
    for event in events:
        if event.kind == "graph_break":
            lines.append(event.data["diagnostic"].render())
        elif event.kind == "recompile":
            nearest = min(event.data["failures"], key=len)
            lines += [f"recompiled {event.name}: {failure}" for failure in nearest]
    return "".join(f"\n{line}" for line in lines)


@contextlib.contextmanager
def no_recompile() -> Iterator[None]:
    """Checks that the block compiles nothing. Raises AssertionError with the compiled frames and the reasons."""
    with _recorded() as events:
        yield
    started = [event.name for event in events if event.kind == "compile_start"]
    assert not started, f"compiled {', '.join(started)}{_details(events)}"


_watches: weakref.WeakSet[StorageWatch] = weakref.WeakSet()


class StorageWatch:
    """Records, each time `probe` runs, which of the named tensors' storages are alive.

    It holds the tensors weakly. `seen` has one entry per run of `probe`: the names of the live tensors, in order.
    """

    def __init__(self, **tensors: torch.Tensor) -> None:
        self._storages = {name: StorageWeakRef(tensor.untyped_storage()) for name, tensor in tensors.items()}
        self.seen: list[list[str]] = []
        _watches.add(self)

    def look(self) -> None:
        """Records the names of the live tensors."""
        self.seen.append([name for name, storage in self._storages.items() if not storage.expired()])


@torch.library.custom_op("minidynamo::probe", mutates_args=())
def _probe(x: torch.Tensor) -> torch.Tensor:
    for watch in tuple(_watches):
        watch.look()
    return x.clone()


@_probe.register_fake
def _(x: torch.Tensor) -> torch.Tensor:
    return torch.empty_like(x)


def _probe_backward(ctx: Any, grad: torch.Tensor) -> torch.Tensor:
    return grad


_probe.register_autograd(_probe_backward)

# An operator that copies its argument, opaque to every backend: a fixed time at which every `StorageWatch` looks.
probe = torch.ops.minidynamo.probe


class assert_freed_before:
    """Checks that the block frees the memory of `tensors` before `probe` runs for the `nth` time (from 0).

    It holds the tensors weakly: drop your references in the code under test. Raises AssertionError if a tensor is still
    alive, or if `probe` does not run that often.
    """

    def __init__(self, *tensors: torch.Tensor, nth: int = 0) -> None:
        self._watch = StorageWatch(**{f"tensor {i}": tensor for i, tensor in enumerate(tensors)})
        self._nth = nth

    def __enter__(self) -> None:
        self._watch.seen.clear()

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, traceback: object) -> None:
        if error is not None:
            return
        seen = self._watch.seen
        assert len(seen) > self._nth, f"probe ran {len(seen)} times; there is no run {self._nth}"
        assert not seen[self._nth], (
            f"still alive when probe ran for the {self._nth}th time: {', '.join(seen[self._nth])}"
        )
