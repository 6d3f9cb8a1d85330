"""Owns the check whether a kernel or an operator may write its result over one of its operands.

Other readers of the operand, and when they run, are not considered here: `planner.py` and `input_placement.py` check
them.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator
from dataclasses import replace
from typing import Any

import torch

from minidynamo.codegen.ir.expr import Load, loads
from minidynamo.codegen.ir.loops import Buffer, Extern, Kernel, Name, Store, names_in
from minidynamo.codegen.memory.write_regions import leaves_reads_unchanged
from minidynamo.codegen.runtime.host_functions import PART_WRITERS
from minidynamo.memory.graph_plan import IN_PLACE_FILLS

aten = torch.ops.aten


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


def argument_orders(call: Extern) -> Iterator[Extern]:
    """Yields `call`, and the call with exchanged arguments if the result is the same to the last bit."""
    yield call
    if call.op in (aten.add.Tensor, aten.mul.Tensor) and not call.kwargs and isinstance(call.args[1], Name):
        yield replace(call, args=call.args[::-1])


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


def in_place_operator(call: Extern) -> Any:
    """Returns the function that fills the first argument of `call`, where `call` fills a copy; None without one."""
    return call.in_place or IN_PLACE_FILLS.get(call.op) or PART_WRITERS.get(call.op)
