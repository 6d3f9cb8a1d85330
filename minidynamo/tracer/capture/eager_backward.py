"""Owns the decision whether the derivative of a custom Function, or of an operator, is traced or runs eagerly.

A Python derivative is traced in a trial, with guards on everything read. A derivative cannot be traced if Python code
in it reads numbers from tensors, changes Python objects, or writes to tensors that existed before. Autograd then calls
the Python function in every backward. The decision is recorded, and the frame is traced again.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from typing import Any, NoReturn, TypeGuard
from weakref import WeakSet

import torch
from torch import fx

from minidynamo.compat import memory_of, set_grad_enabled
from minidynamo.core.names import Namespace
from minidynamo.core.records import record
from minidynamo.errors import GraphBreak
from minidynamo.graph.pytree import tensors_in
from minidynamo.guards.source import Computed, Constant, Source
from minidynamo.tracer.frames.interpreter import Raised, Tracer
from minidynamo.tracer.graph.open_graphs import GraphValue, Subgraph
from minidynamo.tracer.numbers.arithmetic import specialized
from minidynamo.variables.base import ConstantVariable, NumberVariable, VariableTracker
from minidynamo.variables.containers import DictVariable, ListVariable, SequenceVariable
from minidynamo.variables.tensors import TensorVariable

# Functions and operators whose derivative could not be traced. An eager backward is correct for every call.
_EAGER: WeakSet[Any] = WeakSet()


class DerivativeNotTraced(Exception):
    """Raised when the trial of a derivative failed: the frame is traced again, and the derivative runs eagerly."""


def runs_eagerly(owner: object) -> bool:
    """Returns whether the derivative of `owner`, a Function or an operator, runs eagerly."""
    return owner in _EAGER


def mark_eager(owner: object) -> NoReturn:
    """Marks `owner`: the derivative runs eagerly from now on. Raises DerivativeNotTraced, to trace the frame again."""
    _EAGER.add(owner)
    raise DerivativeNotTraced


def trace_backward(
    tx: Tracer, owner: object, trial: Subgraph, result: VariableTracker, backward: Callable[..., VariableTracker]
) -> None:
    """Traces `backward(*gradients)` for the results of a call in `trial`, and guards what backward reads.

    Raises DerivativeNotTraced if the graph cannot hold the derivative.
    """
    gradients = [
        tx.emit(torch.zeros_like, [out]) if isinstance(out, TensorVariable) else ConstantVariable(None)
        for out in items_of(result)
    ]
    nodes_before, inputs_before = {*trial.graph.nodes}, {*trial.inputs}
    try:
        results = items_of(backward(*gradients))
    except (GraphBreak, Raised):
        mark_eager(owner)
    if any(map(_is_read_elsewhere, {*trial.inputs} - inputs_before)):  # the number may differ at the next call
        mark_eager(owner)
    incoming = [value for value in gradients if isinstance(value, TensorVariable)]
    depends = all(_is_computed_from(incoming, value) for value in results if isinstance(value, TensorVariable))
    if not depends or _writes_to(nodes_before, trial.graph) or trial.changed_facts() is not None:
        mark_eager(owner)


def check_eager_call(tx: Tracer, name: str, args: Iterable[VariableTracker]) -> None:
    """Breaks the graph if the call cannot run its backward eagerly.

    - Inside a transformed function, or in a branch, a graph cannot contain an eager call.
    - A graph rebuilds list and dict arguments: changes by backward would be lost.
    """
    if any(isinstance(arg, ListVariable | DictVariable) for arg in args):
        tx.break_graph(
            "MD207",
            f"{name} cannot be captured: its backward runs eagerly, and an argument is a list or dict",
            why="A graph rebuilds lists and dicts. Backward may change them, or look for changes.",
        )
    if not tx.graph.may_run_eagerly:
        tx.break_graph(
            "MD207",
            f"{name} cannot be captured here: its derivative runs eagerly",
            why="The graph around it is transformed as a whole, or runs in one of two branches.",
        )


def items_of(value: VariableTracker) -> Sequence[VariableTracker]:
    """Returns the items of a tuple or list; for any other value, the value alone."""
    return value.items if isinstance(value, SequenceVariable) else [value]


def _is_computed_from(incoming: list[TensorVariable], result: TensorVariable) -> bool:
    """Returns whether a gradient depends on an incoming gradient. A graph may skip a backward that depends on none."""
    sought, seen, todo = {value.node for value in incoming}, set[fx.Node](), [result.node]
    while todo:
        node = todo.pop()
        if node in sought:
            return True
        if node not in seen:
            seen.add(node)
            todo += node.all_input_nodes
    return False


def _writes_to(before: Collection[fx.Node], graph: fx.Graph) -> bool:
    """Returns whether a node outside `before` writes to a tensor of `before` or to an input of the graph."""
    old = {*before, *graph.find_nodes(op="placeholder")}
    memory = {memory_of(value) for node in old for value in tensors_in(node.meta.get("example_value"))}
    return any(not memory.isdisjoint(node.meta.get("written_memory", ())) for node in graph.nodes if node not in old)


@contextlib.contextmanager
def without_grad(tx: Tracer) -> Iterator[None]:
    """Traces with grad mode off, as autograd runs the forward and the backward of a Function."""
    before = torch.is_grad_enabled()
    tx.graph.switch(set_grad_enabled, False)
    try:
        yield
    finally:
        tx.graph.switch(set_grad_enabled, before)


# Numbers among the arguments


@record(frozen=True)
class _ArgumentNumber(Source):
    """A number that is an argument of a custom Function. The same number may also be read from elsewhere."""

    number: Source

    @property
    def base(self) -> Source:
        return self.number

    def expression(self, names: Namespace) -> str:
        return self.number.expression(names)

    def display(self) -> str:
        return self.number.display()


def as_argument(tx: Tracer, arg: VariableTracker) -> VariableTracker:
    """Returns the tracker to trace for an argument: a number gets a source of class `_ArgumentNumber`."""
    if not isinstance(arg, NumberVariable) or arg.source is None:
        return arg
    make = tx.graph.floating if arg.cls is float else tx.graph.integer
    return make(arg.unguarded_value, _ArgumentNumber(arg.source))


def specialize_read_numbers(trial: Subgraph) -> None:
    """Specializes the numbers that traced code reads from outside the arguments: generated code reads such numbers at
    compile time, not at each call."""
    for value in trial.inputs:
        if _is_read_elsewhere(value):
            specialized(value)


def _is_read_elsewhere(value: GraphValue) -> TypeGuard[NumberVariable]:
    """Returns whether a number is neither an argument nor computed from arguments."""
    return isinstance(value, NumberVariable) and not _is_from_arguments(value.source)


def _is_from_arguments(source: Source | None) -> bool:
    if isinstance(source, Computed):
        return all(map(_is_from_arguments, source.operands))
    return isinstance(source, _ArgumentNumber | Constant)
