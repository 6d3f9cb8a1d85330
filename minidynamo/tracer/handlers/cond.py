"""Owns `cond` during capture: a graph node over two subgraphs, and the restrictions on its branches.

The node's function is in `minidynamo/graph/higher_order.py`. `minidynamo/frontend/cond.py` has the public
`minidynamo.cond`, which has the same handler.
"""

from __future__ import annotations

import contextlib
import types
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import NoReturn

import torch

from minidynamo import compat
from minidynamo.compat import memory_of
from minidynamo.core.records import record
from minidynamo.errors import GraphBreak, InvalidCond, Unsupported, UserLocation, an
from minidynamo.graph.higher_order import run_branch
from minidynamo.graph.torch_settings import settings
from minidynamo.tracer.attributes import class_has
from minidynamo.tracer.frames.interpreter import Raised, Tracer
from minidynamo.tracer.graph.open_graphs import GraphValue, Subgraph
from minidynamo.tracer.handlers.dry_run import existing_values, watching
from minidynamo.tracer.numbers.arithmetic import specialized
from minidynamo.tracer.reachable import is_external, target_of
from minidynamo.tracer.records import registry
from minidynamo.tracer.records.constants import from_constant
from minidynamo.tracer.records.side_effects import (
    Advanced,
    AttrDeleted,
    AttrSet,
    Called,
    CellSet,
    ContentsChanged,
    Effect,
    GlobalSet,
    Written,
)
from minidynamo.variables.base import ConstantVariable, NumberVariable, VariableTracker
from minidynamo.variables.callables import FunctionVariable, NestedFunctionVariable
from minidynamo.variables.containers import DictVariable, ListVariable, SequenceVariable, TupleVariable
from minidynamo.variables.tensors import TensorVariable

_TAKES = "cond(pred, true_fn, false_fn, operands) takes"
_PURE = "Both branches are captured, and only one of them runs: it can only compute tensors and return them."


@registry.late_function("minidynamo.frontend.cond", "cond")
@registry.function(torch.cond, compat.higher_order_cond)
def cond(
    tx: Tracer,
    pred: VariableTracker,
    true_fn: VariableTracker,
    false_fn: VariableTracker,
    operands: VariableTracker | None = None,
) -> VariableTracker:
    """Captures `cond(pred, true_fn, false_fn, operands)`: the chosen branch for a Python number, else a graph node."""
    for branch in (true_fn, false_fn):
        if not class_has(branch.python_type, "__call__"):
            invalid(tx, f"two functions, not {an(branch.python_type.__name__)}")
    if operands is not None and not isinstance(operands, SequenceVariable):
        invalid(tx, f"a tuple of tensors as operands, not {an(operands.python_type.__name__)}")
    args = [] if operands is None else [*operands.items]
    pred = specialized(pred)
    if isinstance(pred, ConstantVariable) and type(pred.value) in (bool, int, float):
        return tx.call(true_fn if pred.value else false_fn, args)
    if not isinstance(pred, TensorVariable):
        invalid(tx, f"a bool or a tensor as pred, not {an(pred.python_type.__name__)}")
    if tx.graph.use(pred).numel() != 1:
        invalid(tx, f"a pred with one element, not one of shape {tuple(pred.fake.shape)}")
    inputs = [_tensor(tx, leaf) for variable in args for leaf in leaves(variable)]
    return _node(tx, pred, (_Branch("true", true_fn), _Branch("false", false_fn)), args, inputs)


def invalid(tx: Tracer, takes: str) -> NoReturn:
    """Raises InvalidCond for an argument; `takes` tells what minidynamo.cond takes instead."""
    try:
        tx.break_graph("MD109", "", fix="See docs/api.md, `minidynamo.cond`.")
    except GraphBreak as error:
        raise InvalidCond(replace(error.diagnostic, what=f"{_TAKES} {takes}")) from None


def _tensor(tx: Tracer, variable: VariableTracker) -> TensorVariable:
    if not isinstance(variable, TensorVariable):
        invalid(tx, f"tensors as operands, not {an(variable.python_type.__name__)}")
    return variable


def leaves(variable: VariableTracker) -> Iterator[VariableTracker]:
    """Yields the leaves of nested tuples, lists and dicts, in order."""
    if isinstance(variable, DictVariable):
        for item in variable.items.values():
            yield from leaves(item)
    elif isinstance(variable, SequenceVariable):
        for item in variable.items:
            yield from leaves(item)
    else:
        yield variable


@record(frozen=True, eq=False)
class _Branch:
    """A branch function."""

    #: "true" or "false".
    which: str
    function: VariableTracker

    def code(self) -> types.CodeType | None:
        """Returns the code of a Python function."""
        if isinstance(self.function, FunctionVariable):
            return self.function.value.__code__
        return self.function.code if isinstance(self.function, NestedFunctionVariable) else None

    def signature(self) -> str:
        """Returns ` name(x, y)`, or the empty text if the function has no Python code."""
        code = self.code()
        return "" if code is None else f" {code.co_name}({', '.join(code.co_varnames[: code.co_argcount])})"

    def definition(self) -> UserLocation | None:
        """Returns the location of the function's definition."""
        code = self.code()
        return None if code is None else UserLocation.of(code)


@record(frozen=True, eq=False)
class _TracedBranch:
    """A branch as a graph."""

    subgraph: Subgraph
    #: The result of the branch.
    result: VariableTracker
    #: The tensors in `result`, in order.
    tensors: list[TensorVariable]


def _node(
    tx: Tracer,
    pred: TensorVariable,
    branches: tuple[_Branch, _Branch],
    args: list[VariableTracker],
    inputs: list[TensorVariable],
) -> VariableTracker:
    """Traces both branches with the same inputs and emits the call."""
    true = _trace(tx, branches[0], args, [*inputs], None)
    false = _trace(tx, branches[1], args, list(true.subgraph.inputs), true)
    shared = list(false.subgraph.inputs)
    true.subgraph.take(shared)
    nodes = [
        tx.graph.close_subgraph(true.subgraph, true.tensors, "true_graph"),
        tx.graph.close_subgraph(false.subgraph, false.tensors, "false_graph"),
    ]
    pairs = zip(true.tensors, false.tensors)
    results = [(a.fake, a.fake.requires_grad or b.fake.requires_grad) for a, b in pairs]
    emitted = tx.graph.emit_on_subgraphs(run_branch, "cond", pred, nodes, shared, results)
    return rebuilt(true.result, iter(emitted))


def _trace(
    tx: Tracer,
    branch: _Branch,
    args: list[VariableTracker],
    inputs: list[GraphValue],
    other: _TracedBranch | None,
) -> _TracedBranch:
    """Traces a branch whose results must have the structure and layout of the results of branch `other`."""
    before = settings()
    with (
        _with_user_error(tx, branch),
        tx.graph.open_subgraph(inputs, takes_numbers=True) as subgraph,
        _without_outside_changes(tx),
    ):
        result = _without_numbers(tx.call(branch.function, args))
        if settings() != before:
            tx.break_graph("MD224", "it changes grad mode, autocast or another setting", why=_PURE)
        if subgraph.changed_facts() is not None:
            tx.break_graph("MD224", "it changes the shape or history of a tensor from outside", why=_PURE)
        _check_results(tx, subgraph, result)
        tensors = tensors_in(result)
        if other is not None:
            _check_same_structure(tx, other.result, result)
            _check_same_metadata(tx, other.tensors, tensors)
            tensors = [_restrided(tx, tensor, like) for tensor, like in zip(tensors, other.tensors)]
        return _TracedBranch(subgraph, result, tensors)


# What a branch may not do


@contextlib.contextmanager
def _with_user_error(tx: Tracer, branch: _Branch) -> Iterator[None]:
    """Converts graph breaks and exceptions inside a branch to the user's error: no part of a branch can run alone."""
    depth = len(tx.frames)
    try:
        yield
    except (GraphBreak, Raised) as error:
        cause = error.diagnostic
        what = f"cond cannot capture its {branch.which} branch{branch.signature()}: "
        what += cause.what.removeprefix("graph break: ")
        fix = cause.fix or "Do it outside of cond, or use an `if` on a Python bool."
        in_branch = len(tx.frames) > depth and cause.where is not None
        where = cause.where if in_branch else branch.definition() or cause.where
        raise Unsupported(replace(cause, code="MD224", what=what, fix=fix, where=where)) from None


def _without_outside_changes(tx: Tracer) -> contextlib.AbstractContextManager[None]:
    """Breaks the graph if the block changes a value that exists before the block."""
    existing = existing_values(tx)

    def check(effect: Effect) -> None:
        change = _forbidden_change(effect, existing)
        if change:
            tx.break_graph("MD224", f"it {change}", why=_PURE)

    return watching(tx, check)


def _forbidden_change(effect: Effect, existing: frozenset[VariableTracker]) -> str:
    """Returns a phrase for the change if it is observable outside the branch; else the empty text."""
    match effect:
        case Written(TensorVariable() as tensor) if compat.known_constant(tensor.fake) is not None:
            return "writes to a tensor whose value was known"
        case Written():
            return "writes to a tensor from outside while grad mode is enabled" if torch.is_grad_enabled() else ""
        case GlobalSet(_, name):
            return f"assigns to the global `{name}`"
        case Called(function):
            return f"calls {getattr(getattr(function, 'value', None), '__name__', 'a function')}() for its effect"
        case Advanced(iterator):
            return "takes an item from an iterator that was created outside" if iterator in existing else ""
        case AttrSet(TensorVariable(), name) | AttrDeleted(TensorVariable(), name):
            return f"changes the attribute `{name}` of a tensor"
    target = target_of(effect)
    if target is not None and not is_external(target) and target not in existing:
        return ""
    match effect:
        case ContentsChanged(container):
            return f"changes {an(container.python_type.__name__)} that was created outside"
        case AttrSet(obj, name) | AttrDeleted(obj, name):
            return f"changes the attribute `{name}` of {an(obj.python_type.__name__)} that was created outside"
        case CellSet():
            return "assigns to a variable of an enclosing function"
    return "changes something outside"


# What a branch returns


def _check_results(tx: Tracer, subgraph: Subgraph, result: VariableTracker) -> None:
    seen: set[object] = set()
    for leaf in leaves(result):
        if isinstance(leaf, ConstantVariable) and type(leaf.value) is int:
            continue
        if not isinstance(leaf, TensorVariable):
            name = "None" if isinstance(leaf, ConstantVariable) and leaf.value is None else leaf.python_type.__name__
            tx.break_graph("MD224", f"it returns {name}", why="A branch returns tensors: the graph has nothing else.")
        memory = memory_of(leaf.fake)
        if subgraph.input_in_memory_of(leaf.fake) is not None or leaf.node.graph is not subgraph.graph:
            what = "it returns an external tensor, or a view of one"
            tx.break_graph("MD224", what, why="The results of cond are new memory.", fix="Return `x.clone()`.")
        if memory in seen:
            what = "two of its results share memory"
            tx.break_graph("MD224", what, why="The results of cond are new memory.", fix="Return `x.clone()`.")
        seen.add(memory)


def _without_numbers(result: VariableTracker) -> VariableTracker:
    """Specializes the numbers of a result: the program continues with the result of either branch."""
    if not any(isinstance(leaf, NumberVariable) for leaf in leaves(result)):
        return result
    return _mapped(result, specialized)


def _structure(variable: VariableTracker) -> object:
    """Returns the structure of a result without its tensors."""
    if isinstance(variable, DictVariable):
        return variable.cls, tuple((key.token, _structure(item)) for key, item in variable.items.items())
    if isinstance(variable, SequenceVariable):
        return variable.cls, tuple(_structure(item) for item in variable.items)
    return variable.value if isinstance(variable, ConstantVariable) else torch.Tensor


def _check_same_structure(tx: Tracer, true_result: VariableTracker, false_result: VariableTracker) -> None:
    if _structure(true_result) != _structure(false_result):
        counts = [sum(1 for _ in leaves(result)) for result in (true_result, false_result)]
        what = f"the true branch returns {counts[0]} values, the false branch {counts[1]}"
        what = what if counts[0] != counts[1] else "the branches return different structures or numbers"
        tx.break_graph("MD224", what, why="The program continues with either result.")


def _check_same_metadata(tx: Tracer, true_tensors: list[TensorVariable], false_tensors: list[TensorVariable]) -> None:
    for a, b in zip(true_tensors, false_tensors):
        for fact in ("dtype", "shape", "device", "layout"):
            expected, found = getattr(a.fake, fact), getattr(b.fake, fact)
            if expected != found:
                what = f"a result has {fact} {_formatted(found)}, and {_formatted(expected)} in the true branch"
                tx.break_graph("MD224", what, why="The program continues with either result.")


def _formatted(fact: object) -> str:
    return str(tuple(fact) if isinstance(fact, torch.Size) else fact)


def tensors_in(result: VariableTracker) -> list[TensorVariable]:
    """Returns the tensors of a result, in order."""
    return [leaf for leaf in leaves(result) if isinstance(leaf, TensorVariable)]


def _restrided(tx: Tracer, tensor: TensorVariable, like: TensorVariable) -> TensorVariable:
    """Copies a result to the layout of the true branch, if the layouts differ: later code depends on the layout."""
    layout = like.fake
    if tensor.fake.stride() == layout.stride():
        return tensor
    kind = {"dtype": from_constant(layout.dtype), "device": from_constant(layout.device)}
    emitted = tx.emit(
        torch.empty_strided,
        [from_constant(tuple(map(int, layout.shape))), from_constant(tuple(map(int, layout.stride())))],
        kind,
    )
    assert isinstance(emitted, TensorVariable)
    tx.emit("copy_", [emitted, tensor])
    return emitted


def rebuilt(result: VariableTracker, emitted: Iterator[VariableTracker]) -> VariableTracker:
    """Replaces the tensors of `result` by new tensors."""
    return _mapped(result, lambda leaf: next(emitted) if isinstance(leaf, TensorVariable) else leaf)


def _mapped(result: VariableTracker, function: Callable[[VariableTracker], VariableTracker]) -> VariableTracker:
    """Replaces each leaf of `result` by `function(leaf)`."""
    if isinstance(result, DictVariable):
        return DictVariable({key: _mapped(item, function) for key, item in result.items.items()}, result.cls)
    if isinstance(result, SequenceVariable):
        items = [_mapped(item, function) for item in result.items]
        return ListVariable(items) if isinstance(result, ListVariable) else TupleVariable(items, result.cls)
    return function(result)
