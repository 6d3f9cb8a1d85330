"""Owns how often torch counts a tensor as written (`tensor._version`), while a program is traced.

What it was when the frame began is a number that varies and that nothing is decided by; what the graph has added by now
is known. So a program that sets the count back to what it has read takes a known number of writes back.
"""

from __future__ import annotations

import operator

from minidynamo.compat import memory_of, set_version_counter, version_of
from minidynamo.graph.autograd_calls import replace_data
from minidynamo.graph.version_counter import uncount
from minidynamo.guards.source import Computed
from minidynamo.tracer.lazy import facts
from minidynamo.tracer.protocol import Tracer
from minidynamo.tracer.records import registry
from minidynamo.tracer.records.constants import from_constant
from minidynamo.variables.base import VariableTracker
from minidynamo.variables.tensors import TensorVariable

_WHY = "It belongs to autograd or to storage."


def read(tx: Tracer, tensor: TensorVariable) -> VariableTracker:
    """`tensor._version`, of a tensor from outside."""
    fake, real = tx.graph.use(tensor), tx.graph.real(tensor)
    moved = any(node.target is replace_data or "_foreach_" in str(node.target) for node in tx.graph.graph.nodes)
    uncounted = version_of(fake) is None or (real is not None and version_of(real) is None)
    if real is None or tensor.source is None or uncounted or moved or tx.graph.subgraph is not None:
        tx.break_graph("MD212", "`_version` of a tensor is used", why=_WHY)
    _keep_apart_from_written(tx, tensor)
    count = tx.graph.integer(real._version, Computed("{0}._version", (tensor.source,)))
    written = fake._version - tx.graph.version_on_arrival(tensor)
    made = tx.call(operator.add, [count, from_constant(written)]) if written else count
    tx.graph.write_counts[made] = tensor, fake._version
    return made


@registry.function(set_version_counter)
def _set_version_counter(tx: Tracer, tensors: VariableTracker, versions: VariableTracker) -> VariableTracker:
    for tensor, version in zip(tx.unpack(tensors), tx.unpack(versions)):
        _set_back(tx, tensor, version)
    return from_constant(None)


def _set_back(tx: Tracer, tensor: VariableTracker, count: VariableTracker) -> None:
    """Have torch count a tensor as written as often as when `count` was read of it."""
    known, before = tx.graph.write_counts.get(count, (None, 0))
    if not isinstance(tensor, TensorVariable) or known is not tensor or tx.graph.subgraph is not None:
        tx.break_graph("MD212", "a tensor is made to count as written another number of times", why=_WHY)
    if any("_foreach_" in str(node.target) for node in tx.graph.graph.nodes):  # which torch counts for real ones only
        tx.break_graph("MD212", "writes to lists of tensors are not to be counted", why=_WHY)
    _keep_apart_from_written(tx, tensor)
    if written := tx.graph.use(tensor)._version - before:
        tx.emit(uncount, [tensor, from_constant(written)])


def _keep_apart_from_written(tx: Tracer, tensor: TensorVariable) -> None:
    """Views count together: whatever else the graph has written to from outside must be none of this tensor."""
    own = memory_of(tx.graph.use(tensor))
    written = {memory for node in tx.graph.graph.nodes for memory in node.meta.get("written_memory", ())} - {own}
    others = [owner for memory in written if (owner := tx.graph.owner_of(memory)) is not None]
    if not facts.keep_apart(tx, tensor, others):
        tx.break_graph("MD212", "the writes to a tensor are counted behind one to the same memory", why=_WHY)
