"""Owns the decision whether the derivative of a custom Function, or of an operator, is traced or runs eagerly.

A Python derivative is traced in a trial, which guards all that it reads, as a frame is guarded. A derivative that a
trial cannot follow (it reads numbers from tensors, changes Python objects, or writes to tensors that exist before it
runs) runs eagerly: autograd calls it in every backward. The derivative is remembered, and the frame is traced anew.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, NoReturn, TypeGuard
from weakref import WeakSet

import torch
from torch import fx

from minidynamo.compat import memory_of, set_grad_enabled
from minidynamo.errors import GraphBreak
from minidynamo.graph.pytree import tensors_in
from minidynamo.guards.source import Computed, Constant, Names, Source
from minidynamo.tracer.frames.exceptions import Raised
from minidynamo.tracer.graph.subgraphs import GraphValue, Subgraph
from minidynamo.tracer.numbers.arithmetic import pinned
from minidynamo.tracer.protocol import Tracer
from minidynamo.variables.base import VariableTracker
from minidynamo.variables.constants import ConstantVariable
from minidynamo.variables.containers import DictVariable, ListVariable, SequenceVariable
from minidynamo.variables.numbers import NumberVariable
from minidynamo.variables.tensors import TensorVariable

# Functions and operators whose derivative a trial could not follow. An eager backward is right for every call.
_EAGER: WeakSet[Any] = WeakSet()


class DerivativeNotTraced(Exception):
    """The trial of a derivative failed. The frame is traced anew, and the derivative runs eagerly."""


def runs_eagerly(owner: object) -> bool:
    """Return whether the derivative of `owner`, a Function or an operator, runs eagerly."""
    return owner in _EAGER


def run_eagerly(owner: object) -> NoReturn:
    """Have the derivative of `owner` run eagerly from now on, and the frame traced anew."""
    _EAGER.add(owner)
    raise DerivativeNotTraced


def follow(
    tx: Tracer, owner: object, trial: Subgraph, result: VariableTracker, backward: Callable[..., VariableTracker]
) -> None:
    """Trace `backward(*gradients)` for the results of a call in `trial`; guard what it reads.

    Raises DerivativeNotTraced if the graph cannot hold the derivative.
    """
    gradients = [
        tx.emit(torch.zeros_like, [out]) if isinstance(out, TensorVariable) else ConstantVariable(None)
        for out in items_of(result)
    ]
    before, numbers = {*trial.graph.nodes}, {*trial.inputs}
    try:
        made = items_of(backward(*gradients))
    except (GraphBreak, Raised):
        run_eagerly(owner)
    if any(map(_is_read_elsewhere, {*trial.inputs} - numbers)):  # it differs from call to call
        run_eagerly(owner)
    given = [value for value in gradients if isinstance(value, TensorVariable)]
    depends = all(_is_computed_from(given, value) for value in made if isinstance(value, TensorVariable))
    if not depends or _writes_to(before, trial.graph) or trial.changed_facts() is not None:
        run_eagerly(owner)


def allow(tx: Tracer, name: str, args: Iterable[VariableTracker]) -> None:
    """Break the graph if the call cannot be left to autograd: in a function that torch transforms, say, or with an
    argument that a graph would rebuild, so that what backward does to it is lost."""
    if any(isinstance(arg, ListVariable | DictVariable) for arg in args):
        tx.break_graph(
            "MD207",
            f"{name} cannot be captured: its backward runs eagerly, and it is given a list or dict",
            why="A graph makes lists and dicts anew. Backward may change them, or look for changes.",
        )
    if not tx.graph.may_be_left:
        tx.break_graph(
            "MD207",
            f"{name} cannot be captured here: its derivative runs eagerly",
            why="The graph around it is transformed as a whole, or runs in one of two branches.",
        )


def items_of(value: VariableTracker) -> Sequence[VariableTracker]:
    """Return the items of a tuple or list, or the value as the only one."""
    return value.items if isinstance(value, SequenceVariable) else [value]


def _is_computed_from(given: list[TensorVariable], made: TensorVariable) -> bool:
    """Return whether a gradient depends on the incoming ones. A graph may leave out a backward that depends on none."""
    sought, seen, todo = {value.node for value in given}, set[fx.Node](), [made.node]
    while todo:
        node = todo.pop()
        if node in sought:
            return True
        if node not in seen:
            seen.add(node)
            todo += node.all_input_nodes
    return False


def _writes_to(before: Collection[fx.Node], graph: fx.Graph) -> bool:
    """Return whether a node after those of `before` writes to a tensor that existed then, or comes from outside."""
    old = {*before, *graph.find_nodes(op="placeholder")}
    memory = {memory_of(value) for node in old for value in tensors_in(node.meta.get("example_value"))}
    return any(not memory.isdisjoint(node.meta.get("written_memory", ())) for node in graph.nodes if node not in old)


@contextlib.contextmanager
def without_grad(tx: Tracer) -> Iterator[None]:
    """Trace with grad mode off, as autograd runs the forward and the backward of a Function."""
    before = torch.is_grad_enabled()
    tx.graph.switch(set_grad_enabled, False)
    try:
        yield
    finally:
        tx.graph.switch(set_grad_enabled, before)


# Numbers among the arguments


@dataclass(frozen=True)
class _Given(Source):
    """A number as an argument of a custom Function, which its code may find elsewhere, too."""

    number: Source

    @property
    def base(self) -> Source:
        return self.number

    def expression(self, names: Names) -> str:
        return self.number.expression(names)

    def display(self) -> str:
        return self.number.display()


def given_to(tx: Tracer, arg: VariableTracker) -> VariableTracker:
    """What is traced for an argument: a number that is known to be one."""
    if not isinstance(arg, NumberVariable) or arg.source is None:
        return arg
    make = tx.graph.floating if arg.cls is float else tx.graph.integer
    return make(arg.here, _Given(arg.source))


def pin_others(trial: Subgraph) -> None:
    """Guard the values of numbers that traced code reads, unless they are among its arguments: it reads them when it is
    compiled, and not in each call."""
    for value in trial.inputs:
        if _is_read_elsewhere(value):
            pinned(value)


def _is_read_elsewhere(value: GraphValue) -> TypeGuard[NumberVariable]:
    """Return whether a number is none of the arguments, nor computed from them."""
    return isinstance(value, NumberVariable) and not _is_made_of_given(value.source)


def _is_made_of_given(source: Source | None) -> bool:
    if isinstance(source, Computed):
        return all(map(_is_made_of_given, source.operands))
    return isinstance(source, _Given | Constant)
