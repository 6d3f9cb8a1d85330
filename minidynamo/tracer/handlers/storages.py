"""Owns uses of tensor storages during capture: sizes, and `resize_`.

Sizes are tracked, so a program sees its own changes; the initial size is guarded where the trace depends on it. A
resize is a graph node: to 0 bytes, or from 0 bytes to the size that the tensor needs. A graph supports storages that
are freed and filled again (`autograd/functional/storage_resize.py`), but no storage that is allocated in part.
"""

from __future__ import annotations

import operator
from collections.abc import Iterable

import torch

from minidynamo.compat import OpOverload, memory_of
from minidynamo.graph.autograd_calls import replace_data
from minidynamo.graph.storage_resize import copy_unseen, resize_storage
from minidynamo.guards.guard import GuardKind
from minidynamo.guards.source import Computed
from minidynamo.tracer.frames.interpreter import Tracer
from minidynamo.tracer.handlers.values import constant
from minidynamo.tracer.lazy import facts
from minidynamo.tracer.records import registry
from minidynamo.tracer.records.constants import from_constant
from minidynamo.variables.base import ConstantVariable, NumberVariable, VariableTracker
from minidynamo.variables.callables import BoundBuiltin
from minidynamo.variables.tensors import StorageVariable, TensorVariable

_METHODS = frozenset(("size", "nbytes", "resize_"))
_WHY = "Storage is only there when the graph runs."


@registry.method(torch.Tensor, "untyped_storage")
def _untyped_storage(tx: Tracer, self: TensorVariable) -> VariableTracker:
    fake = tx.graph.use(self)
    has_new_memory = any(node.target is replace_data for node in tx.graph.graph.nodes)
    if fake.layout is not torch.strided or has_new_memory or tx.graph.subgraph is not None:
        tx.break_graph("MD212", "Tensor.untyped_storage() is called", why=_WHY)
    memory = memory_of(fake)
    known = tx.graph.storages.get(memory)
    if known is None:
        known = tx.graph.storages[memory] = StorageVariable(self, tx.graph.owner_of(memory))
    return known


@registry.attributes(StorageVariable)
def _attribute(tx: Tracer, obj: StorageVariable, name: str) -> VariableTracker | None:
    if name not in _METHODS:
        tx.break_graph("MD212", f"`{name}` of a storage is used", why=_WHY)
    return BoundBuiltin(obj, name)


@registry.method(torch.UntypedStorage, "size", "nbytes")
def _size(tx: Tracer, self: StorageVariable) -> VariableTracker:
    if self.size is None:
        self.size = _size_on_entry(tx, self)
    return self.size


def _size_on_entry(tx: Tracer, storage: StorageVariable) -> VariableTracker:
    _mark_size_guarded(tx, storage)
    size_source = _size_source(storage)
    if size_source is None:
        nbytes = tx.graph.use(storage.of).untyped_storage().nbytes()
        if not isinstance(nbytes, int):
            tx.break_graph("MD212", "the size of memory that the graph allocates is read, and varies", why=_WHY)
        return from_constant(nbytes)
    nbytes = _real_size(tx, storage)
    if tx.graph.shapes.varies(size_source, nbytes):
        return tx.graph.integer(nbytes, size_source)
    tx.guard(size_source, GuardKind.EQUALS, nbytes)
    return from_constant(nbytes)


def _size_source(storage: StorageVariable) -> Computed | None:
    """Returns the source of the size on entry; None for memory that the graph allocates."""
    if storage.owner is None or storage.owner.source is None:
        return None
    return Computed("{0}.untyped_storage().nbytes()", (storage.owner.source,))


def _real_size(tx: Tracer, storage: StorageVariable) -> int:
    real = None if storage.owner is None else tx.graph.real(storage.owner)
    assert real is not None, "an external tensor exists during capture"
    return real.untyped_storage().nbytes()


@registry.method(torch.UntypedStorage, "resize_")
def _resize(tx: Tracer, self: StorageVariable, nbytes: VariableTracker) -> VariableTracker:
    if not _is_valid_size(nbytes):
        tx.break_graph("MD212", "a storage is resized to something that is no size", why="Python raises the error.")
    to_nothing, from_nothing = _is_zero(tx, nbytes), _is_empty(tx, self)
    if to_nothing and from_nothing:
        return self
    if not to_nothing and not from_nothing:
        if not tx.truth(tx.call(operator.eq, [_size(tx, self), nbytes])):
            _refuse_partial(tx, "a storage that holds data is resized")
        return self
    if not to_nothing and not _fits_known_tensors(tx, nbytes, self):
        _refuse_partial(tx, "a storage becomes smaller than a tensor in it")
    if not self.is_resized:
        self.is_resized = True
        _guard_distinct(tx, self, [other for other in _others_with_guarded_size(tx, self) if not other.is_resized])
    _emit_unversioned(tx, resize_storage, self.of, nbytes, constant(from_nothing))
    self.size = nbytes
    return self


@registry.function(torch.ops.minidynamo.copy_, copy_unseen)
def _copy(tx: Tracer, self: VariableTracker, src: VariableTracker) -> VariableTracker:
    if not isinstance(self, TensorVariable) or not isinstance(src, TensorVariable):
        tx.break_graph(
            "MD212", "torch.ops.minidynamo.copy_() is called without two tensors", why="Torch raises the error."
        )
    if tx.graph.subgraph is not None or tx.graph.owner_of(memory_of(tx.graph.use(self))) is None:
        why = "It is for external tensors that may have been saved for backward."
        tx.break_graph("MD212", "torch.ops.minidynamo.copy_() fills a tensor that the graph makes", why=why)
    return _emit_unversioned(tx, copy_unseen, self, src)


def _emit_unversioned(tx: Tracer, op: OpOverload, tensor: TensorVariable, *args: VariableTracker) -> VariableTracker:
    """Emits an operator that changes a tensor but not its version counter."""
    emitted = tx.emit(op, [tensor, *args])
    memory = memory_of(tensor.fake)
    next(iter(reversed(tx.graph.graph.nodes))).meta.update(mutates=True, written_memory=(memory,))
    tx.graph.forget_numbers([memory])
    return emitted


def _is_valid_size(nbytes: VariableTracker) -> bool:
    if isinstance(nbytes, NumberVariable):
        return nbytes.cls is int
    return isinstance(nbytes, ConstantVariable) and type(nbytes.value) is int and nbytes.value >= 0


def _is_zero(tx: Tracer, number: VariableTracker) -> bool:
    return tx.truth(tx.call(operator.eq, [number, constant(0)]))


def _is_empty(tx: Tracer, storage: StorageVariable) -> bool:
    """Returns whether the storage has 0 bytes now. For the size on entry, only this fact is guarded."""
    size_source = _size_source(storage)
    if storage.size is not None or size_source is None:
        return _is_zero(tx, _size(tx, storage))
    _mark_size_guarded(tx, storage)
    empty = _real_size(tx, storage) == 0
    tx.graph.shapes.require(Computed("{0} == 0", (size_source,)), empty)
    return empty


def _fits_known_tensors(tx: Tracer, nbytes: VariableTracker, storage: StorageVariable) -> bool:
    """Returns whether the known tensors of a storage fit into `nbytes`."""
    size = nbytes.value if isinstance(nbytes, NumberVariable | ConstantVariable) else 0
    tensors = [storage.of, *([storage.owner] if storage.owner is not None else [])]
    return all(bool(size >= tx.graph.use(tensor).untyped_storage().nbytes()) for tensor in tensors)


def _refuse_partial(tx: Tracer, what: str) -> None:
    tx.break_graph(
        "MD219",
        what,
        why="A graph handles memory that is allocated or freed as a whole.",
        fix="Resize to 0, and from 0 to what the tensor needs: x.untyped_storage().resize_(x.nbytes)",
    )


# Storages that are distinct during capture must be distinct in every call.


def _mark_size_guarded(tx: Tracer, storage: StorageVariable) -> None:
    if not storage.size_is_guarded:
        storage.size_is_guarded = True
        _guard_distinct(tx, storage, [other for other in _others_with_guarded_size(tx, storage) if other.is_resized])


def _others_with_guarded_size(tx: Tracer, storage: StorageVariable) -> list[StorageVariable]:
    """Returns all other external storages with a guarded size."""
    others = [other for other in tx.graph.storages.values() if other.size_is_guarded and other.owner is not None]
    return [] if storage.owner is None else [other for other in others if other is not storage]


def _guard_distinct(tx: Tracer, storage: StorageVariable, others: Iterable[StorageVariable]) -> None:
    if storage.owner is None:
        return
    if not facts.guard_no_shared_memory(
        tx, storage.owner, [other.owner for other in others if other.owner is not None]
    ):
        tx.break_graph("MD212", "two tensors of a storage are resized, or its size is read through both", why=_WHY)
