"""Owns what resizes of storages become in a graph of values: the memory of an input is given up, or filled in, or both.

A resize computes nothing. Memory that was given up has no data, so the input itself stands for its value again, and
that is what backward keeps: not the data that were there meanwhile. Memory that has come back holds what is written to
it next. Only what an input has in the end and had not in the beginning, or the other way round, is left in the graph:
a resize in front of everything else, or one behind the last that lies in the input. Memory that comes and goes within
the graph is none: what was written there is a value like any other.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import fx

from minidynamo.autograd.functional.functional_graph import Base, FunctionalGraph, refuse
from minidynamo.autograd.functional.written_inputs import lies_in_arguments
from minidynamo.autograd.graph.graph_builder import same_layout
from minidynamo.autograd.graph.mutation import Mutation
from minidynamo.autograd.graph.numbers import is_number
from minidynamo.compat import OpOverload
from minidynamo.errors import BackendError, Diagnostic
from minidynamo.graph.storage_resize import resize_storage

aten = torch.ops.aten

# They write to all of a tensor, and ask it for its layout alone.
_FILLING = "copy_ zero_ fill_ normal_ uniform_ random_ exponential_ bernoulli_ cauchy_ geometric_ log_normal_"
FILLING = frozenset(f"aten::{name}" for name in (*_FILLING.split(), "_foreach_copy_", "_foreach_zero_"))
FILLING |= {"minidynamo::copy_"}


@dataclass(frozen=True)
class Resize:
    """The graph gives the memory of an input so many bytes: a number, or what computes it."""

    placeholder: fx.Node
    nbytes: Any


@dataclass(frozen=True)
class StorageSizes:
    """`resizes` are left in the graph. The inputs in `emptied` have no memory when forward is over, and other data when
    backward runs. Of the nodes that read them, forward alone computes `early`, and backward alone `late`."""

    resizes: tuple[Resize, ...] = ()
    emptied: frozenset[fx.Node] = frozenset()
    early: frozenset[fx.Node] = frozenset()
    late: frozenset[fx.Node] = frozenset()


UNCHANGED = StorageSizes()


def resize(functional: FunctionalGraph, node: fx.Node, nbytes: Any) -> None:
    """Take note of a resize in the traced graph, to `nbytes` in the functional one."""
    if functional.made_forward:
        raise refuse("a storage is resized by a gradient's formula")
    tensor, _, was_empty = node.args
    base = functional.values[tensor].base  # type: ignore[index]
    if base.nbytes is None:
        base.was_empty = bool(was_empty)
    base.nbytes, base.has_data = nbytes, False
    if nbytes != 0:
        base.node = functional.emitter.emit(aten.empty_like.default, base.node)
    elif base.input is not None:
        base.node = functional.placeholders[base.input]
        functional.forgotten += [new for index, new, _ in functional.writes if index == base.input]
        functional.writes[:] = [write for write in functional.writes if write[0] != base.input]
    base.version += 1


def note_fill(functional: FunctionalGraph, op: OpOverload, mutation: Mutation, named: dict[str, Any]) -> None:
    """`op` is about to write: memory that it fills may be read from now on, also by `op` itself."""
    for argument in mutation.arguments:
        given = named[argument]
        for node in given if isinstance(given, (list, tuple)) else [given]:
            base = functional.values[node].base if node in functional.values else None
            if base is None or base.has_data:
                continue
            if base.nbytes == 0:
                raise _without_data(f"`{op}` writes to", base)
            base.has_data = op.name().partition(".")[0] in FILLING or argument in mutation.dropped


def check_readable(functional: FunctionalGraph, node: fx.Node, sources: Iterable[fx.Node]) -> None:
    """Raise an error if a traced operation, which reads `sources`, reads data that are not there. Backward finds in an
    input what somebody has put there by then."""
    for source in sources:
        base = functional.values[source].base if source in functional.values else None
        if base is None or base.has_data:
            continue
        if not functional.made_forward:
            raise _without_data(f"`{node.target}` reads", base)
        if base.nbytes != 0:
            raise refuse("a gradient reads memory that nothing was written to")


def read_sources(functional: FunctionalGraph) -> None:
    """Read what was copied into memory that went away again where it was copied from, if that is an input to which
    nobody writes."""
    if not functional.forgotten:
        return
    bases = {value.base for value in functional.values.values()}
    held = {*(base.node for base in bases), *(new for _, new, _ in functional.writes)}
    unwritten = {base.node for base in bases if base.input is not None and base.version == 0}
    for copy in functional.forgotten:
        source = copy.args[0] if copy.target is aten.clone.default else None
        if not isinstance(source, fx.Node) or source not in unwritten or copy in held:
            continue
        if same_layout(copy.meta["val"], source.meta["val"]):
            copy.replace_all_uses_with(source)


def _without_data(what: str, base: Base) -> BackendError:
    given_up = base.nbytes == 0
    return BackendError(
        Diagnostic(
            "MD415",
            f"{what} memory that {'was given up' if given_up else 'nothing was written to'}",
            why="Its storage was resized to 0." if given_up else "A storage that was resized from 0 holds no data.",
            fix="Fill the tensor behind `resize_` before it is read: `x.copy_(data)`.",
        )
    )


def storage_sizes(functional: FunctionalGraph, returned: Iterable[Any], written: Collection[int]) -> StorageSizes:
    """What is left of the resizes when the functional graph is complete. `returned` are the outputs in the traced
    graph, `written` the inputs that autograd must see written."""
    values = [functional.values[node] for node in returned if node in functional.values]
    if any(value.base.input is None and value.base.nbytes is not None for value in values):
        raise refuse("a tensor is returned whose memory was resized")
    if any(value.parent is not None and value.base.nbytes == 0 for value in values):  # torch makes none that late
        raise refuse("a view of memory that was given up is returned")
    resizes, emptied = [], set()
    for index, value in functional.inputs.items():
        base, placeholder = value.base, functional.placeholders[index]
        if base.nbytes is None:
            continue
        if index in written:
            raise refuse("an input is resized that autograd has to see written")
        if base.nbytes == 0:
            emptied.add(placeholder)
        if base.was_empty != (base.nbytes == 0):
            resizes.append(Resize(placeholder, base.nbytes))
    early: set[fx.Node] = set()
    late: set[fx.Node] = set()
    inside = {*emptied}
    for node in functional.emitter.graph.nodes if emptied and functional.made_forward else ():
        if node not in functional.made_forward and not (emptied | late).isdisjoint(node.all_input_nodes):
            late.add(node)
        elif node in functional.made_forward and not inside.isdisjoint(node.all_input_nodes) and not is_number(node):
            early.add(node)
            inside |= {node} if lies_in_arguments(node) else set()
    return StorageSizes(tuple(resizes), frozenset(emptied), frozenset(early), frozenset(late))


def grow(made: fx.Graph, resizes: Iterable[Resize], env: dict[fx.Node, fx.Node]) -> None:
    """Give inputs their memory."""
    for resize in resizes:
        if resize.nbytes != 0:
            made.call_function(resize_storage, (env[resize.placeholder], fx.map_arg(resize.nbytes, env.get), True))


def give_up(made: fx.Graph, resizes: Sequence[Resize], env: dict[fx.Node, fx.Node]) -> None:
    """Take the memory of inputs away, each behind the last node that lies in it or reads what does."""
    for resize in resizes:
        if resize.nbytes == 0:
            place = env[resize.placeholder]
            last = [*made.find_nodes(op="placeholder"), *_users(made, place)][-1]
            with made.inserting_after(last):
                made.call_function(resize_storage, (place, 0, False))


def _users(made: fx.Graph, place: fx.Node) -> Iterator[fx.Node]:
    inside = {place}
    for node in made.nodes:
        if node.op == "call_function" and not inside.isdisjoint(node.all_input_nodes):
            if lies_in_arguments(node):
                inside.add(node)
            yield node
