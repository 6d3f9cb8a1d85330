"""Owns runtime asserts, for a branch on a tensor's value with a side that only raises: the graph checks that the
program takes the side that does not raise.

When a check fails, the graph raises and the frame runs again eagerly: Python then raises the program's error and runs
the handlers. Until then, nothing irreversible may happen. A graph with runtime asserts therefore has no write to an
external tensor recorded by autograd, and calls only torch's own functions.
"""

from __future__ import annotations

import functools
import operator
from collections.abc import Sequence
from types import CodeType
from typing import Any

import torch
import torch.fx

from minidynamo.bytecode.analysis import successors, written_slots
from minidynamo.bytecode.instructions import Instruction, decode
from minidynamo.compat import has_saved_tensor_hooks
from minidynamo.guards.guard import GuardKind
from minidynamo.guards.source import Constant, Result
from minidynamo.tracer.frames.interpreter import Frame
from minidynamo.tracer.graph.dead_code import assert_async, only_computes
from minidynamo.tracer.numbers import tensor_items
from minidynamo.tracer.records.constants import from_constant
from minidynamo.tracer.records.traced_frame import FrameRequest, TracedFrame
from minidynamo.tracer.runtime.graph_failures import CHECK_FAILED
from minidynamo.variables.base import VariableTracker
from minidynamo.variables.callables import BoundBuiltin
from minidynamo.variables.containers import TupleVariable
from minidynamo.variables.objects import ClassVariable
from minidynamo.variables.tensors import ItemVariable, TensorVariable

_HAS_HOOKS = Result(Constant(has_saved_tensor_hooks, "has_saved_tensor_hooks"))
_INTEGERS = (torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64)
_MOST_INSTRUCTIONS = 200  # to search on one side of a branch


class AssertsNotAllowed(Exception):
    """Raised when a graph with runtime asserts could not be rerun: the frame is traced again, without runtime
    asserts."""


def assert_truth(frame: Frame, condition: VariableTracker, jump: Instruction, jumps_if: bool) -> bool | None:
    """Adds a runtime assert for the condition of a jump with a side that only raises, and returns the asserted truth;
    None if the jump allows no assert."""
    if not _is_known_by_graph(condition) or not frame.tx.graph.may_assert or frame.tx.graph.subgraph is not None:
        return None
    if isinstance(condition, TensorVariable):
        fake = frame.tx.graph.use(condition)
        if fake.dtype != torch.bool or fake.dim() or frame.tx.graph.constant(condition) is not None:
            return None
    assert jump.target is not None
    jump_raises, fall_through_raises = only_raises(frame.code, jump.target), only_raises(frame.code, jump.index + 1)
    if jump_raises is fall_through_raises:
        return None
    if has_saved_tensor_hooks():  # hooks cannot be informed that a tensor is saved again
        return None
    frame.tx.guard(_HAS_HOOKS, GuardKind.IDENTITY, False)
    wanted = jumps_if is not jump_raises
    if isinstance(condition, ItemVariable):
        condition = frame.tx.emit(torch.full, [TupleVariable([]), frame.tx.call(int, [condition])])
        condition = frame.tx.emit(operator.ne, [condition, from_constant(0)])
    assert isinstance(condition, TensorVariable)
    fake = frame.tx.graph.use(condition)
    on_cpu = condition if fake.device.type == "cpu" else frame.tx.emit("cpu", [condition])
    asserted = on_cpu if wanted else frame.tx.emit(torch.logical_not, [on_cpu])
    frame.tx.emit(assert_async, [asserted, from_constant(CHECK_FAILED)])
    return wanted


def _is_known_by_graph(condition: VariableTracker) -> bool:
    return isinstance(condition, TensorVariable) or (isinstance(condition, ItemVariable) and condition.cls is bool)


# Conversions that read a tensor's number, by class; and the largest int that a float represents exactly.
_READERS: dict[Any, str] = {bool: "bool", int: "int", float: "float"}
_LARGEST_EXACT = 2**53


def tensor_to_assert(
    frame: Frame, call: Instruction, function: VariableTracker, args: Sequence[VariableTracker]
) -> VariableTracker | None:
    """Returns a tensor in place of the number returned by `t.item()`, `float(t)` and similar calls; None if impossible.

    Only a jump with a raising side may read the number, perhaps in a comparison with a literal. The tensor has the same
    value to the last bit.
    """
    tensor, reader = _read_tensor(function, args)
    if tensor is None or not frame.tx.graph.may_assert or frame.tx.graph.subgraph is not None:
        return None
    following = [i for i in frame.instructions[call.index + 1 : call.index + 5] if i.opname != "TO_BOOL"][:3]
    compared = len(following) == 3 and [i.opname for i in following[:2]] == ["LOAD_CONST", "COMPARE_OP"]
    jump = following[-1] if compared else following[0]
    if not jump.opname.startswith("POP_JUMP") or not jump.opname.endswith(("_IF_TRUE", "_IF_FALSE")):
        return None
    assert jump.target is not None
    if only_raises(frame.code, jump.target) is only_raises(frame.code, jump.index + 1):
        return None
    fake = frame.tx.graph.use(tensor)
    if fake.dim() or fake.device.type not in ("cpu", "cuda") or frame.tx.graph.constant(tensor) is not None:
        return None
    warns = fake.requires_grad and reader in ("int", "float")
    if warns or tensor_items.read(frame.tx, tensor) is not None:
        return None
    if not compared:
        if fake.dtype == torch.bool:
            return tensor
        return frame.tx.emit(operator.ne, [tensor, from_constant(0)]) if reader == "bool" else None
    literal = following[0].argval
    if type(literal) not in (int, float) or (type(literal) is int and abs(literal) > _LARGEST_EXACT):
        return None
    if fake.dtype.is_floating_point and fake.dtype.itemsize > 1 and reader in ("item", "float"):
        return frame.tx.emit("double", [tensor])
    is_int = fake.dtype in _INTEGERS and reader in ("item", "int") and type(literal) is int
    return frame.tx.emit("long", [tensor]) if is_int else None


def _read_tensor(function: VariableTracker, args: Sequence[VariableTracker]) -> tuple[TensorVariable | None, str]:
    """Returns the tensor whose number a call reads, and the kind of conversion; None for other calls."""
    if isinstance(function, BoundBuiltin) and function.name == "item" and not args:
        return (function.receiver if isinstance(function.receiver, TensorVariable) else None), "item"
    if isinstance(function, ClassVariable) and function.value in _READERS and len(args) == 1:
        tensor = args[0].realize()
        return (tensor if isinstance(tensor, TensorVariable) else None), _READERS[function.value]
    return None, ""


@functools.lru_cache(maxsize=1000)
def only_raises(code: CodeType, start: int) -> bool:
    """Returns whether every path from instruction `start` ends in a `raise`."""
    instructions, pending, seen = decode(code), [start], set[int]()
    while pending:
        index = pending.pop()
        seen.add(index)
        name = instructions[index].opname
        if name == "RAISE_VARARGS":
            continue
        following = successors(code, index)
        leaves = not following or name.startswith(("YIELD", "RERAISE"))
        if leaves or min(following) <= index or len(seen) > _MOST_INSTRUCTIONS:
            return False
        pending += following
    return True


def has_runtime_asserts(graph: torch.fx.GraphModule | None) -> bool:
    """Returns whether the graph has a runtime assert."""
    return graph is not None and any(node.target is assert_async for node in graph.graph.nodes)


def may_have_asserts(request: FrameRequest) -> bool:
    """Returns whether a graph of this frame may have runtime asserts, as far as known before tracing.

    The frame may donate no list and rebind no variable that holds a tensor: before a rerun, nothing may die.
    """
    written = written_slots(request.code, request.index)
    values = [value for name, value in request.arguments.items() if name in written]
    values += [slot.value for slot in request.stack if slot is not None]
    return (
        request.may_assert and not request.steal and not any(issubclass(type(value), torch.Tensor) for value in values)
    )


def can_be_rerun(traced: TracedFrame) -> bool:
    """Returns whether the graph has no runtime assert, or its frame can be rerun after a failure."""
    graph, writes = traced.graph, traced.writes
    if graph is None or not has_runtime_asserts(graph):
        return True
    if any(graph_input.is_emptied for graph_input in traced.inputs) or not all(map(only_computes, graph.graph.nodes)):
        return False
    return writes is None or (writes.can_roll_back and not writes.are_recorded)


def calls_operators_of_users(graph: torch.fx.GraphModule | None) -> bool:
    """Returns whether the graph runs code of the user, whose results may differ from the promised results."""
    return graph is not None and not all(map(only_computes, graph.graph.nodes))
