"""Owns runtime asserts: the graph checks that the program takes one side of a branch on the value of a tensor. The
other side only raises, or is for infinite numbers and NaN.

When a check fails, the graph raises and the frame runs again eagerly: Python then raises the program's error and runs
the handlers. Until then, nothing irreversible may happen. A graph with runtime asserts therefore has no write to an
external tensor recorded by autograd, and calls only torch's own functions.
"""

from __future__ import annotations

import functools
import operator
from collections.abc import Sequence
from types import CodeType
from typing import Any, TypeGuard

import torch
import torch.fx

from minidynamo.bytecode.analysis import successors, written_slots
from minidynamo.bytecode.instructions import Instruction, decode
from minidynamo.compat import has_saved_tensor_hooks
from minidynamo.graph.collectives import is_collective
from minidynamo.graph.unbacked_symints import hint_of
from minidynamo.guards.guard import GuardKind
from minidynamo.guards.source import Attr, Constant, Result
from minidynamo.tracer.frames.interpreter import Frame
from minidynamo.tracer.graph.dead_code import assert_async, name_called, only_computes
from minidynamo.tracer.numbers import tensor_items
from minidynamo.tracer.records.constants import from_constant
from minidynamo.tracer.records.traced_frame import FrameRequest, TracedFrame
from minidynamo.tracer.runtime.graph_failures import CHECK_FAILED, NOT_FINITE
from minidynamo.variables.base import VariableTracker
from minidynamo.variables.callables import BoundBuiltin
from minidynamo.variables.containers import TupleVariable
from minidynamo.variables.objects import ClassVariable
from minidynamo.variables.tensors import ItemVariable, TensorVariable

_HAS_HOOKS = Result(Constant(has_saved_tensor_hooks, "has_saved_tensor_hooks"))
_INTEGERS = (torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64)
_MOST_BYTES_COPIED = 2**20  # the running statistics of a ResNet-50 take 212 KB
_MOST_INSTRUCTIONS = 200  # to search on one side of a branch


class AssertsNotAllowed(Exception):
    """Raised when a graph with runtime asserts could not be rerun: the frame is traced again without them, or, with
    `finite_only`, without asserts that numbers are finite."""

    def __init__(self, *, finite_only: bool) -> None:
        self.finite_only = finite_only


def assert_truth(frame: Frame, condition: VariableTracker, jump: Instruction, jumps_if: bool) -> bool | None:
    """Adds a runtime assert for a jump with a side that only raises, or is for infinite numbers and NaN. Returns the
    asserted truth; None if the jump allows no assert."""
    if not _is_known_by_graph(condition) or not frame.tx.graph.may_assert or frame.tx.graph.subgraph is not None:
        return None
    if isinstance(condition, TensorVariable):
        fake = frame.tx.graph.use(condition)
        if fake.dtype != torch.bool or fake.dim() or frame.tx.graph.constant(condition) is not None:
            return None
    wanted, message = _raising_side(frame, jump, jumps_if), CHECK_FAILED
    finite = frame.tx.graph.finite
    if wanted is None and finite is not None:
        wanted, message = _if_finite(condition.node), NOT_FINITE
    if wanted is None:
        return None
    if has_saved_tensor_hooks():  # hooks cannot be informed that a tensor is saved again
        return None
    frame.tx.guard(_HAS_HOOKS, GuardKind.IDENTITY, False)
    if message is NOT_FINITE and finite is not None:
        so_far = Attr(Constant(finite, "so_far"), "all_numbers_were_finite")
        frame.tx.guard(so_far, GuardKind.IDENTITY, True)
    if isinstance(condition, ItemVariable):
        condition = frame.tx.emit(torch.full, [TupleVariable([]), frame.tx.call(int, [condition])])
        condition = frame.tx.emit(operator.ne, [condition, from_constant(0)])
    assert isinstance(condition, TensorVariable)
    fake = frame.tx.graph.use(condition)
    on_cpu = condition if fake.device.type == "cpu" else frame.tx.emit("cpu", [condition])
    asserted = on_cpu if wanted else frame.tx.emit(torch.logical_not, [on_cpu])
    frame.tx.emit(assert_async, [asserted, from_constant(message)])
    return wanted


def _raising_side(frame: Frame, jump: Instruction, jumps_if: bool) -> bool | None:
    """Returns the truth of a condition for which the program does not raise; None if not exactly one side raises."""
    assert jump.target is not None
    jump_raises, going_on_raises = only_raises(frame.code, jump.target), only_raises(frame.code, jump.index + 1)
    return None if jump_raises is going_on_raises else jumps_if is not jump_raises


# Functions that ask for infinite numbers and NaN -> the result for finite numbers.
_OF_FINITE = {"isfinite": True, "isnan": False, "isinf": False, "isposinf": False, "isneginf": False}
_SAME_TRUTH = ("all", "any", "item", "bool", "cpu", "detach")
_OPPOSITE = ("logical_not", "bitwise_not", "invert", "not_")


def _if_finite(node: object) -> bool | None:
    """Returns the truth of a condition if all numbers in tensors are finite; None if it asks for something else."""
    if not isinstance(node, torch.fx.Node) or not node.op.startswith("call"):
        return None
    name = name_called(node)
    if name in _OF_FINITE:
        return _OF_FINITE[name]
    truth = _if_finite(node.args[0]) if name in (*_SAME_TRUTH, *_OPPOSITE) and node.args else None
    return truth if truth is None or name in _SAME_TRUTH else not truth


def _is_known_by_graph(condition: VariableTracker) -> TypeGuard[TensorVariable | ItemVariable]:
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
    is_of_finite = frame.tx.graph.finite is not None and _if_finite(tensor.node) is not None
    if _raising_side(frame, jump, True) is None and (compared or not is_of_finite):
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


def refuse_asserts(traced: TracedFrame) -> None:
    """Raises AssertsNotAllowed if the graph has runtime asserts, and its frame could not be rerun after a failure.

    Each call copies the memory that the graph writes: more than running statistics only for errors of the program."""
    graph, writes = traced.graph, traced.writes
    if graph is None or not has_runtime_asserts(graph):
        return
    if any(graph_input.is_emptied for graph_input in traced.inputs) or not all(map(only_computes, graph.graph.nodes)):
        raise AssertsNotAllowed(finite_only=False)
    if writes is not None and not (writes.can_roll_back and not writes.are_recorded):
        raise AssertsNotAllowed(finite_only=False)
    assumes = any(node.target is assert_async and NOT_FINITE in node.args for node in graph.graph.nodes)
    if assumes and (_bytes_copied(traced) > _MOST_BYTES_COPIED or any(map(is_collective, graph.graph.nodes))):
        raise AssertsNotAllowed(finite_only=True)


def _bytes_copied(traced: TracedFrame) -> int:
    """Returns the most bytes that each call copies for a rerun."""
    positions = () if traced.writes is None else traced.writes.positions
    values = [traced.inputs[position].node.meta.get("example_value") for position in positions]
    return sum(hint_of(value.numel()) * value.itemsize for value in values if isinstance(value, torch.Tensor))


def calls_operators_of_users(graph: torch.fx.GraphModule | None) -> bool:
    """Returns whether the graph runs code of the user, whose results may differ from the promised results."""
    return graph is not None and not all(map(only_computes, graph.graph.nodes))
