"""Owns the check whether a kernel or an operator may write its result over one of its operands.

Other readers of the operand, and when they run, are not considered here: `planner.py` and `input_placement.py` check
them.
"""

from __future__ import annotations

from collections.abc import Callable, Collection

from minidynamo.codegen.ir.expr import Load, loads
from minidynamo.codegen.ir.loops import Buffer, Extern, Kernel, Name, Store, names_in
from minidynamo.codegen.memory.write_regions import leaves_reads_unchanged
from minidynamo.compat import OpOverload
from minidynamo.memory.graph_plan import IN_PLACE_FILLS


def same_layout(a: Buffer, b: Buffer) -> bool:
    """Returns whether both tensors have the same sizes, strides, dtype and device."""
    return (a.shape, a.stride, a.dtype, a.device) == (b.shape, b.stride, b.dtype, b.device)


def fits(a: Buffer, b: Buffer) -> bool:
    """Returns whether both tensors can share memory, whatever their shapes: same dtype and device, same number of
    elements, no gaps."""
    return (a.dtype, a.device) == (b.dtype, b.device) and a.numel == a.span == b.numel == b.span


def may_overwrite(kernel: Kernel, read: str, written: str) -> bool:
    """Returns whether the kernel may write `written` over `read`.

    The kernel may if the last read of each element is in the iteration that writes the element, or if the write leaves
    the element unchanged.
    """
    offsets = {s.index for s in kernel.statements() if isinstance(s, Store) and s.buffer == written}
    same_iteration: list[Load] = []
    later: list[Load] = []
    is_written = False
    for loop in kernel.loops:
        found = [load for s in loop.body for load in loads(s.value) if load.buffer == read]
        if is_written:
            later += found
        else:
            same_iteration += [load for load in found if {load.index[0]} != offsets]
        is_written = is_written or any(isinstance(s, Store) and s.buffer == written for s in loop.body)
    return not (same_iteration or later) or leaves_reads_unchanged(kernel, same_iteration, later, read, written)


def fillable_argument(call: Extern, owners: Callable[[str], Collection[str]]) -> str | None:
    """Returns the argument that `call` copies and fills, if `call` may fill the argument itself instead; else None.

    No other argument may share storage with the filled argument. `owners(name)` returns the values that own the storage
    of `name`.
    """
    first = call.args[0] if call.args else None
    if in_place_operator(call) is None or call.layout is None or not isinstance(first, Name):
        return None
    rest = [*names_in(call.args[1:]), *names_in(tuple(value for _, value in call.kwargs))]
    storage = {*owners(first.name)}
    return None if any(not storage.isdisjoint(owners(name)) for name in rest) else first.name


def in_place_operator(call: Extern) -> OpOverload | None:
    """Returns the operator that fills the first argument of `call`, where `call` fills a copy; None if torch has no
    such operator."""
    found: OpOverload | None = call.in_place or IN_PLACE_FILLS.get(call.op)
    return found
