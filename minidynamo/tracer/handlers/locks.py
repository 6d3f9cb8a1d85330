"""Owns `with lock:` for locks of `threading`: the frame takes the lock, and the trace continues.

The lock is held while the whole residual program runs, and the guards are checked again under the lock
(`frontend/locked_bodies.py`). Reads, graph and side effects are then one step for all threads that take the lock.
Programs cannot rely on how late a thread takes a lock, or how early it releases the lock.

A lock is refused, and the frame is traced again with a graph break at the `with`, if the longer hold could be visible
or costs time: if the frame is cut inside of the block, takes two locks, runs code of the user outside of the block,
communicates with other ranks, or has most of its operations outside of the block.
"""

from __future__ import annotations

import threading
from typing import NoReturn

from minidynamo.errors import Diagnostic
from minidynamo.graph.collectives import is_collective
from minidynamo.guards.guard import GuardKind
from minidynamo.tracer.frames.deferrals import PositionRefused
from minidynamo.tracer.frames.interpreter import Tracer
from minidynamo.tracer.frames.runtime_asserts import calls_operators_of_users
from minidynamo.tracer.handlers.values import none
from minidynamo.tracer.records import registry
from minidynamo.tracer.records.constants import from_constant
from minidynamo.tracer.records.fix_hints import HINTS_BY_CLASS
from minidynamo.tracer.records.side_effects import Called, Effect
from minidynamo.tracer.records.traced_frame import TakenLock, TracedFrame
from minidynamo.variables.base import VariableTracker

_RLOCK = type(threading.RLock())
_LOCKS = (type(threading.Lock()), _RLOCK)
_LATER_CALL = "A call that is made after the graph, such as a print, would be made while the lock is held."
# If more nodes are outside of the block, at least as many must be inside: other threads wait for the whole graph.
_MANY_NODES = 16


@registry.opaque_method(*(vars(cls)["__enter__"] for cls in _LOCKS))
def _enter(tx: Tracer, lock: VariableTracker) -> VariableTracker:
    taken, position = tx.lock, (tx.frames[-1].code, tx.frames[-1].index)
    if position in tx.refused_positions:
        _break(tx, lock, tx.refused_positions[position])
    if lock.source is None or tx.graph.subgraph is not None:
        _break(tx, lock, "Only Python can take the lock here.")
    if taken is None:
        if any(isinstance(effect, Called) for effect in tx.side_effects.journal):
            _break(tx, lock, _LATER_CALL)
        tx.guard(lock.source, GuardKind.TYPE, lock.python_type)
        tx.lock = taken = TakenLock(lock)
    elif taken.lock is not lock:
        _break(tx, lock, "A graph holds one lock only: two threads with two locks could wait for each other.")
    elif taken.depth and lock.python_type is not _RLOCK:
        _break(tx, lock, "The frame holds this lock already.")
    if not taken.depth:
        taken.nodes_inside -= len(tx.graph.graph.nodes)
    taken.positions.append(position)
    taken.depth += 1
    return from_constant(True)


@registry.opaque_method(*(vars(cls)["__exit__"] for cls in _LOCKS))
def _exit(tx: Tracer, lock: VariableTracker, *error: VariableTracker) -> VariableTracker:
    taken = tx.lock
    if taken is None or taken.lock is not lock or not taken.depth:
        _break(tx, lock, "The lock was taken outside of the graph.", "__exit__")
    taken.depth -= 1
    if not taken.depth:
        taken.nodes_inside += len(tx.graph.graph.nodes)
    return none()


def _break(tx: Tracer, lock: VariableTracker, why: str, method: str = "__enter__") -> NoReturn:
    name = lock.python_type.__name__
    tx.break_graph("MD206", f"{name}.{method} is used", why=why, fix=HINTS_BY_CLASS.get(name, ""))


def refuse_open(tx: Tracer, cut: Diagnostic | None = None) -> None:
    """Refuses the lock of a frame that ends while the lock is held; `cut` is the reason for a cut."""
    if tx.lock is not None and tx.lock.depth:
        what = f": {cut.what.removeprefix('graph break: ')}" if cut is not None else ""
        raise PositionRefused(tx.lock.positions[-1], f"The graph ends while the lock is held{what}.")


def refuse_call(tx: Tracer, effect: Effect) -> None:
    """Refuses the lock of a frame that makes a call after it has released the lock: the called code may take the lock,
    or wait for a thread that does."""
    if tx.lock is not None and not tx.lock.depth and isinstance(effect, Called):
        raise PositionRefused(tx.lock.positions[-1], _LATER_CALL)


def refuse_graph(tx: Tracer, traced: TracedFrame, *, fullgraph: bool) -> None:
    """Refuses the lock of a frame whose graph must not, or, unless `fullgraph`, should not run while the lock is
    held."""
    taken = tx.lock
    if taken is None:
        return
    refuse_open(tx)
    nodes = () if traced.graph is None else traced.graph.graph.nodes
    outside = len(nodes) - taken.nodes_inside
    why = ""
    if any(map(is_collective, nodes)) or calls_operators_of_users(traced.graph):
        why = "A collective, or an operator of the user, would run while the lock is held."
    elif traced.donated_after_break:
        why = "A donated list is emptied after the graph break."
    elif outside > max(_MANY_NODES, taken.nodes_inside) and not fullgraph:
        why = "Most operations are outside of the block, and would run while the lock is held."
    if why:
        raise PositionRefused(taken.positions[0], why)
