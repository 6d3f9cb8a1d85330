"""Owns resizes of storages in a functional graph: an input loses its memory, or gets memory, or both.

A resize computes nothing. After an input loses its memory, its value is the input itself, and backward saves the input,
not the temporary data. After an input gets memory, its value is the next write. The graph keeps a resize only if the
final size differs from the initial size: before all other nodes if the input ends with memory, after the last reader if
the input ends without memory. Memory that an input has only inside the graph is not modelled: data written
there is an ordinary value.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Sequence
from typing import Any

import torch
from torch import fx

from minidynamo.autograd.functional.functional_graph import Base, FunctionalGraph, refuse
from minidynamo.autograd.functional.written_inputs import may_alias_arguments
from minidynamo.autograd.graph.graph_builder import same_layout
from minidynamo.autograd.graph.mutation import Mutation
from minidynamo.autograd.graph.numbers import is_number
from minidynamo.compat import OpOverload
from minidynamo.core.events import notice
from minidynamo.core.records import record
from minidynamo.errors import BackendError, Diagnostic
from minidynamo.graph.pytree import as_sequence
from minidynamo.graph.storage_resize import resize_storage

aten = torch.ops.aten

# Operators that write to the whole tensor, and read only its layout.
_FILLING = "copy_ zero_ fill_ normal_ uniform_ random_ exponential_ bernoulli_ cauchy_ geometric_ log_normal_"
IN_PLACE_FILLS = frozenset(f"aten::{name}" for name in (*_FILLING.split(), "_foreach_copy_", "_foreach_zero_"))
IN_PLACE_FILLS |= {"minidynamo::copy_"}


@record(frozen=True)
class Resize:
    """A change of an input's storage size."""

    placeholder: fx.Node
    #: The new size in bytes: a number, or the node that computes the number.
    nbytes: Any


@record(frozen=True)
class StorageSizes:
    """The resizes of a graph, and their effect on saved values."""

    #: The resizes that the graph performs.
    resizes: tuple[Resize, ...] = ()
    #: Inputs without memory when forward ends; when backward runs, they hold other data.
    emptied: frozenset[fx.Node] = frozenset()
    #: Readers of emptied inputs that only forward can compute.
    forward_readers: frozenset[fx.Node] = frozenset()
    #: Readers of emptied inputs that only backward can compute.
    backward_readers: frozenset[fx.Node] = frozenset()


UNCHANGED = StorageSizes()


def resize(functional: FunctionalGraph, node: fx.Node, nbytes: Any) -> None:
    """Records a resize in the traced graph; `nbytes` is the new size in the functional graph."""
    if functional.forward_nodes:
        raise refuse("the formula of a gradient resizes a storage")
    tensor, _, was_empty = node.args
    base = functional.values[tensor].base  # type: ignore[index]
    if base.nbytes is None:
        base.was_empty = bool(was_empty)
    base.nbytes, base.has_data = nbytes, False
    if nbytes != 0:
        base.node = functional.emitter.emit(aten.empty_like.default, base.node)
    elif base.input is not None:
        base.node = functional.placeholders[base.input]
        functional.discarded += [new for index, new, _ in functional.writes if index == base.input]
        functional.writes[:] = [write for write in functional.writes if write[0] != base.input]
    base.version += 1


def record_fill(functional: FunctionalGraph, op: OpOverload, mutation: Mutation, named: dict[str, Any]) -> None:
    """Records that `op` writes: memory that `op` fills is readable from now on, also by `op` itself."""
    for argument in mutation.arguments:
        for node in as_sequence(named[argument]):
            base = functional.values[node].base if node in functional.values else None
            if base is None or base.has_data:
                continue
            if base.nbytes == 0:
                raise _without_data(f"`{op}` writes to", base)
            base.has_data = op.name().partition(".")[0] in IN_PLACE_FILLS or argument in mutation.dropped


def check_readable(functional: FunctionalGraph, node: fx.Node, sources: Iterable[fx.Node]) -> None:
    """Raises an error if a traced operation, which reads `sources`, reads missing data.

    Backward may read an emptied input: the caller fills its memory before backward runs.
    """
    for source in sources:
        base = functional.values[source].base if source in functional.values else None
        if base is None or base.has_data:
            continue
        if not functional.forward_nodes:
            raise _without_data(f"`{node.target}` reads", base)
        if base.nbytes != 0:
            raise refuse("a gradient reads memory that nothing was written to")


def replace_discarded_copies(functional: FunctionalGraph) -> None:
    """Replaces copies into memory that was freed later by their source, if the source is an input that is never
    written."""
    if not functional.discarded:
        return
    bases = {value.base for value in functional.values.values()}
    held = {*(base.node for base in bases), *(new for _, new, _ in functional.writes)}
    unwritten = {base.node for base in bases if base.input is not None and base.version == 0}
    for copy in functional.discarded:
        source = copy.args[0] if copy.target is aten.clone.default else None
        if not isinstance(source, fx.Node) or source not in unwritten or copy in held:
            continue
        if same_layout(copy.meta["val"], source.meta["val"]):
            copy.replace_all_uses_with(source)


def _without_data(what: str, base: Base) -> BackendError:
    is_freed = base.nbytes == 0
    return BackendError(
        Diagnostic(
            "MD415",
            f"{what} memory that {'was freed' if is_freed else 'nothing was written to'}",
            why="Its storage was resized to 0." if is_freed else "A storage that was resized from 0 holds no data.",
            fix="Fill the tensor after `resize_`, before it is read: `x.copy_(data)`.",
        )
    )


def _stays_full(placeholder: fx.Node) -> Diagnostic:
    return Diagnostic(
        "MD416",
        f"the graph fills the empty storage of `{placeholder.name}` and does not free it",
        why="The data is copied: a graph that also frees the storage reads the source of the copy instead.",
        fix="Free the storage in the same graph: x.untyped_storage().resize_(0)",
    )


def storage_sizes(functional: FunctionalGraph, returned: Iterable[Any], written: Collection[int]) -> StorageSizes:
    """Returns the resizes of a complete functional graph.

    `returned` are the outputs in the traced graph, `written` the inputs whose writes autograd must see.
    """
    values = [functional.values[node] for node in returned if node in functional.values]
    if any(value.base.input is None and value.base.nbytes is not None for value in values):
        raise refuse("a tensor whose storage was resized is returned")
    # The runtime would make the view after the graph, when the memory is gone.
    if any(value.parent is not None and value.base.nbytes == 0 for value in values):
        raise refuse("a view of memory that was freed is returned")
    resizes, emptied = [], set()
    for index, value in functional.inputs.items():
        base, placeholder = value.base, functional.placeholders[index]
        if base.nbytes is None:
            continue
        if index in written:
            raise refuse("the storage of an input is resized, and autograd must see writes to the input")
        if base.nbytes == 0:
            emptied.add(placeholder)
        if base.was_empty != (base.nbytes == 0):
            resizes.append(Resize(placeholder, base.nbytes))
            if base.was_empty:
                notice(_stays_full(placeholder))
    forward_readers: set[fx.Node] = set()
    backward_readers: set[fx.Node] = set()
    aliases = {*emptied}
    for node in functional.emitter.graph.nodes if emptied and functional.forward_nodes else ():
        if node not in functional.forward_nodes and not (emptied | backward_readers).isdisjoint(node.all_input_nodes):
            backward_readers.add(node)
        elif node in functional.forward_nodes and not aliases.isdisjoint(node.all_input_nodes) and not is_number(node):
            forward_readers.add(node)
            aliases |= {node} if may_alias_arguments(node) else set()
    return StorageSizes(tuple(resizes), frozenset(emptied), frozenset(forward_readers), frozenset(backward_readers))


def grow_inputs(graph: fx.Graph, resizes: Iterable[Resize], env: dict[fx.Node, fx.Node]) -> None:
    """Emits the resizes that give inputs memory."""
    for resize in resizes:
        if resize.nbytes != 0:
            graph.call_function(resize_storage, (env[resize.placeholder], fx.map_arg(resize.nbytes, env.get), True))


def shrink_inputs(graph: fx.Graph, resizes: Sequence[Resize], env: dict[fx.Node, fx.Node]) -> None:
    """Emits the resizes that free the memory of inputs, each after the last node that shares or reads the memory."""
    for resize in resizes:
        if resize.nbytes == 0:
            placeholder = env[resize.placeholder]
            last = [*graph.find_nodes(op="placeholder"), *_users(graph, placeholder)][-1]
            with graph.inserting_after(last):
                graph.call_function(resize_storage, (placeholder, 0, False))


def _users(graph: fx.Graph, placeholder: fx.Node) -> Iterator[fx.Node]:
    aliases = {placeholder}
    for node in graph.nodes:
        if node.op == "call_function" and not aliases.isdisjoint(node.all_input_nodes):
            if may_alias_arguments(node):
                aliases.add(node)
            yield node
