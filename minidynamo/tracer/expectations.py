"""Owns decisions about a tensor's value of which one way only raises: the graph checks that the program goes the other.

When the check fails, the graph raises and the frame runs again as the user wrote it, so that Python raises what the
program says, and its handlers run. So nothing may have happened by then that a second run would do once more: a graph
that checks writes to nothing outside and calls nothing but torch's own functions.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Collection
from types import CodeType

import torch
import torch.fx

from minidynamo.bytecode.analysis import successors, written_slots
from minidynamo.bytecode.instructions import Instruction, decode
from minidynamo.compat import constant_behind, has_saved_tensor_hooks
from minidynamo.guards.guard import GuardKind
from minidynamo.guards.source import Constant, Result
from minidynamo.switches import is_switch
from minidynamo.tracer.constants import from_constant
from minidynamo.tracer.frame_request import FrameRequest
from minidynamo.tracer.graph.dead_code import is_of_torch
from minidynamo.tracer.interpreter import Frame
from minidynamo.tracer.traced_frame import TracedFrame
from minidynamo.variables.base import VariableTracker
from minidynamo.variables.tensors import TensorVariable

aten = torch.ops.aten
assert_async = aten._assert_async.msg  # of a tensor on the CPU it asserts at once
_MESSAGE = "the program raises an error here"
_OF_TORCH = ("torch.functional", "torch.nn.functional")
_HOOKED = Result(Constant(has_saved_tensor_hooks, "has_saved_tensor_hooks"))
_MANY = 200  # instructions of one way that are looked at


class Unexpected(Exception):
    """A graph that checks cannot be run twice: the frame is to be traced anew, without checks."""


def expected(frame: Frame, condition: VariableTracker, jump: Instruction, jumps_if: bool) -> bool | None:
    """The truth of `condition` at a jump, for a check in the graph; None where that is not the way to know it."""
    if not isinstance(condition, TensorVariable) or not frame.tx.graph.expects or frame.tx.graph.subgraph is not None:
        return None
    fake = frame.tx.graph.use(condition)
    if fake.dtype != torch.bool or fake.dim() or constant_behind(fake) is not None:
        return None
    assert jump.target is not None
    jump_raises, going_on_raises = only_raises(frame.code, jump.target), only_raises(frame.code, jump.index + 1)
    if jump_raises is going_on_raises:
        return None
    if has_saved_tensor_hooks():  # which cannot be told that what they have seen is saved once more
        return None
    frame.tx.guard(_HOOKED, GuardKind.IDENTITY, False)
    wanted = jumps_if is not jump_raises
    on_cpu = condition if fake.device.type == "cpu" else frame.tx.emit("cpu", [condition])
    holds = on_cpu if wanted else frame.tx.emit(torch.logical_not, [on_cpu])
    frame.tx.emit(assert_async, [holds, from_constant(_MESSAGE)])
    return wanted


@functools.lru_cache(maxsize=1000)
def only_raises(code: CodeType, start: int) -> bool:
    """Whether every way from instruction `start` on ends in a `raise`."""
    instructions, pending, seen = decode(code), [start], set[int]()
    while pending:
        index = pending.pop()
        seen.add(index)
        name = instructions[index].opname
        if name == "RAISE_VARARGS":
            continue
        following = successors(code, index)
        if not following or len(seen) > _MANY or min(following) <= index or name.startswith(("YIELD", "RERAISE")):
            return False
        pending += following
    return True


def checks(graph: torch.fx.GraphModule | None) -> bool:
    """Whether the graph checks a decision of the program."""
    return graph is not None and any(node.target is assert_async for node in graph.graph.nodes)


def may_expect(request: FrameRequest) -> bool:
    """Whether a graph of this frame may check something, as far as that can be told before it is traced: it gives up no
    list, nor a variable that holds a tensor, since nothing may die before the frame's end that is to run again."""
    written = written_slots(request.code, request.index)
    values = [value for name, value in request.arguments.items() if name in written]
    values += [slot.value for slot in request.stack if slot is not None]
    return request.expects and not request.steal and not any(isinstance(value, torch.Tensor) for value in values)


def can_run_twice(traced: TracedFrame, memory_outside: Callable[[], Collection[object]]) -> bool:
    """Whether the graph checks nothing, or its frame can run again after a failure."""
    graph = traced.graph
    if graph is None or not checks(graph):
        return True
    if any(given.given_up for given in traced.inputs):
        return False
    outside = memory_outside()
    calls = [node for node in graph.graph.nodes if node.op in ("call_function", "call_method")]
    return all(_is_harmless(node, outside) for node in calls)


def _is_harmless(node: torch.fx.Node, outside: Collection[object]) -> bool:
    target = node.target
    computes = is_of_torch(target) or target in (getattr, assert_async) or is_switch(target)
    computes = computes or getattr(target, "__module__", "") in _OF_TORCH or hasattr(target, "only_computes")
    if node.op == "call_function" and not computes:
        return False
    return not node.meta.get("mutates") or not set(node.meta.get("written_memory", ())) & set(outside)
