"""Owns the question whether something may be written over what it is computed from: by a kernel, or by torch.

Who else reads that memory, and when, is for others to know.
"""

from __future__ import annotations

from collections.abc import Callable, Collection

from minidynamo.codegen.ir.expr import Load, loads
from minidynamo.codegen.ir.loops import Buffer, Extern, Kernel, Name, Store, names_in
from minidynamo.codegen.memory.write_regions import stays
from minidynamo.compat import OpOverload
from minidynamo.memory.graph_plan import FILLING


def same_layout(a: Buffer, b: Buffer) -> bool:
    """Whether one tensor can stand for the other."""
    return (a.shape, a.stride, a.dtype, a.device) == (b.shape, b.stride, b.dtype, b.device)


def fits(a: Buffer, b: Buffer) -> bool:
    """Whether the memory of one tensor can be that of the other: as many elements without gaps, in any shape."""
    return (a.dtype, a.device) == (b.dtype, b.device) and a.numel == a.span == b.numel == b.span


def may_overwrite(kernel: Kernel, read: str, written: str) -> bool:
    """Whether the kernel may write `written` over `read`: each element is read, last, where it is written, unless it
    stays as it is."""
    places = {s.index for s in kernel.statements() if isinstance(s, Store) and s.buffer == written}
    early: list[Load] = []
    late: list[Load] = []
    is_written = False
    for loop in kernel.loops:
        found = [load for s in loop.body for load in loads(s.value) if load.buffer == read]
        if is_written:
            late += found
        else:
            early += [load for load in found if {load.index[0]} != places]
        is_written = is_written or any(isinstance(s, Store) and s.buffer == written for s in loop.body)
    return not (early or late) or stays(kernel, early, late, read, written)


def filled(call: Extern, owners: Callable[[str], Collection[str]]) -> str | None:
    """The argument that a call fills a copy of, if the call could as well fill the argument itself: nothing else that
    is given to it lies there. `owners` of a name own the storage that it lies in."""
    first = call.args[0] if call.args else None
    if in_place(call) is None or call.layout is None or not isinstance(first, Name):
        return None
    rest = [*names_in(call.args[1:]), *names_in(tuple(value for _, value in call.kwargs))]
    place = {*owners(first.name)}
    return None if any(not place.isdisjoint(owners(name)) for name in rest) else first.name


def in_place(call: Extern) -> OpOverload | None:
    """The operator that does to its first argument what a call does to a copy of it."""
    found: OpOverload | None = call.in_place or FILLING.get(call.op)
    return found
