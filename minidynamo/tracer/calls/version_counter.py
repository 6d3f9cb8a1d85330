"""Owns torch's count of writes to a tensor (`tensor._version`) while a program is traced.

The count at the start of the frame is a symbolic number without guards; the writes of the graph so far are known. So a
program that restores an earlier value of the count takes back a known number of writes. The graph's
operation for that is not here (`minidynamo/graph/version_counter.py`)."""

from __future__ import annotations

import operator

from minidynamo.compat import memory_of, set_version_counter, version_of
from minidynamo.graph.autograd_calls import replace_data
from minidynamo.graph.version_counter import lower_version
from minidynamo.guards.source import Computed
from minidynamo.tracer.frames.interpreter import Tracer
from minidynamo.tracer.lazy import facts
from minidynamo.tracer.records import registry
from minidynamo.tracer.records.constants import from_constant
from minidynamo.variables.base import VariableTracker
from minidynamo.variables.tensors import TensorVariable

_WHY = "It belongs to autograd or to storage."


def read(tx: Tracer, tensor: TensorVariable) -> VariableTracker:
    """Returns `tensor._version` of an external tensor."""
    fake, real = tx.graph.use(tensor), tx.graph.real(tensor)
    moved = any(node.target is replace_data or "_foreach_" in str(node.target) for node in tx.graph.graph.nodes)
    uncounted = version_of(fake) is None or (real is not None and version_of(real) is None)
    if real is None or tensor.source is None or uncounted or moved or tx.graph.subgraph is not None:
        tx.break_graph("MD212", "`_version` of a tensor is used", why=_WHY)
    _guard_apart_from_written(tx, tensor)
    count = tx.graph.integer(real._version, Computed("{0}._version", (tensor.source,)))
    written = fake._version - tx.graph.initial_version(tensor)
    result = tx.call(operator.add, [count, from_constant(written)]) if written else count
    tx.graph.write_counts[result] = tensor, fake._version
    return result


@registry.function(set_version_counter)
def _set_version_counter(tx: Tracer, tensors: VariableTracker, versions: VariableTracker) -> VariableTracker:
    for tensor, version in zip(tx.unpack(tensors), tx.unpack(versions)):
        _set_back(tx, tensor, version)
    return from_constant(None)


def _set_back(tx: Tracer, tensor: VariableTracker, count: VariableTracker) -> None:
    """Sets torch's count of writes to the value that it had when the program read `count`."""
    known, before = tx.graph.write_counts.get(count, (None, 0))
    if not isinstance(tensor, TensorVariable) or known is not tensor or tx.graph.subgraph is not None:
        tx.break_graph("MD212", "the version counter of a tensor is set to a value that was not read from it", why=_WHY)
    if any("_foreach_" in str(node.target) for node in tx.graph.graph.nodes):  # torch counts real tensors only
        tx.break_graph("MD212", "the version counter is set after a write to a list of tensors", why=_WHY)
    _guard_apart_from_written(tx, tensor)
    if written := tx.graph.use(tensor)._version - before:
        tx.emit(lower_version, [tensor, from_constant(written)])


def _guard_apart_from_written(tx: Tracer, tensor: TensorVariable) -> None:
    """Guards that this tensor shares no memory with any other external tensor the graph writes: views share a count."""
    own = memory_of(tx.graph.use(tensor))
    written = {memory for node in tx.graph.graph.nodes for memory in node.meta.get("written_memory", ())} - {own}
    others = [owner for memory in written if (owner := tx.graph.owner_of(memory)) is not None]
    if not facts.guard_no_shared_memory(tx, tensor, others):
        tx.break_graph("MD212", "the writes to a tensor are counted after a write to the same memory", why=_WHY)
