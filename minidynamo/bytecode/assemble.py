"""Owns the assembler: it turns operations with labels into a code object, with jump distances and exception table.

The caller chooses the operations. The frame layout is that of an existing code object, so operations can be copied with
their raw arguments; only additional locals shift the cells, which follow the locals.
"""

from __future__ import annotations

import dis
import functools
import inspect
import types
from collections.abc import Sequence
from dataclasses import field

from bytecode import ConcreteBytecode, ConcreteInstr
from bytecode.concrete import ExceptionTableEntry
from bytecode.instr import InstrLocation

from minidynamo.core.records import record


class Label:
    """A position in a list of operations. Labels compare by identity."""


@record(frozen=True)
class Region:
    """A protected range of code, and its exception handler."""

    #: The position of the handler.
    label: Label
    #: The number of stack values that remain when the handler starts.
    depth: int
    #: Whether the offset of the failing instruction is pushed before the exception.
    lasti: bool


@record(frozen=True)
class Op:
    """An operation, with a raw argument or a jump label."""

    opname: str
    arg: int | None = None
    jump: Label | None = None
    #: Contains the operation; None where no handler catches its exceptions.
    region: Region | None = None
    positions: dis.Positions = field(default_factory=dis.Positions)


Item = Op | Label


def assemble(
    items: Sequence[Item],
    template: types.CodeType,
    *,
    suffix: str,
    temporaries: Sequence[str],
    constants: Sequence[object],
    stacksize: int,
) -> types.CodeType:
    """Builds a code object with one positional argument and with the names, cells and file of `template`.

    `suffix` is appended to the qualified name, `temporaries` to its locals, `constants` to its constants. Tracebacks,
    logs and other frames see the name of the user's function.
    """
    concrete = ConcreteBytecode()
    spans, labels = _assign_offsets(items)
    position = 0
    for item in items:
        if isinstance(item, Op):
            instruction = _concrete(item, spans[position], labels)
            concrete.append(instruction)
            caches = _caches(item.opname)
            if caches:
                concrete.extend([ConcreteInstr("CACHE", 0, location=instruction.location)] * caches)
            position += 1
    concrete.exception_table = _exception_table([i for i in items if isinstance(i, Op)], spans, labels)
    concrete.consts = [*template.co_consts, *constants]
    concrete.names = list(template.co_names)
    concrete.varnames = [*template.co_varnames, *temporaries]
    concrete.cellvars = list(template.co_cellvars)
    concrete.freevars = list(template.co_freevars)
    concrete.argcount = 1
    concrete.flags = template.co_flags & ~(inspect.CO_VARARGS | inspect.CO_VARKEYWORDS)
    concrete.filename = template.co_filename
    concrete.first_lineno = template.co_firstlineno
    concrete.name = template.co_name
    concrete.qualname = template.co_qualname + suffix
    return concrete.to_code(stacksize, compute_exception_stack_depths=False)


def _assign_offsets(items: Sequence[Item]) -> tuple[list[range], dict[Label, int]]:
    """Computes the range of code units of each operation, and the code unit of each label.

    The length of a jump depends on its distance, so offsets are recomputed until no length changes. Lengths only grow.
    """
    ops = [item for item in items if isinstance(item, Op)]
    lengths = [_length(op, op.arg or 0) for op in ops]
    while True:
        spans, labels = _offsets(items, lengths)
        grown = [max(n, _length(op, _argument(op, s, labels))) for op, n, s in zip(ops, lengths, spans)]
        if grown == lengths:
            return spans, labels
        lengths = grown


def _offsets(items: Sequence[Item], lengths: list[int]) -> tuple[list[range], dict[Label, int]]:
    spans: list[range] = []
    labels: dict[Label, int] = {}
    offset = 0
    for item in items:
        if isinstance(item, Label):
            labels[item] = offset
        else:
            spans.append(range(offset, offset + lengths[len(spans)]))
            offset = spans[-1].stop
    return spans, labels


def _argument(op: Op, span: range, labels: dict[Label, int]) -> int:
    if op.jump is None:
        return op.arg or 0
    distance = labels[op.jump] - span.stop
    return -distance if "BACKWARD" in op.opname else distance


def _length(op: Op, argument: int) -> int:
    """Returns the number of code units: EXTENDED_ARGs, the operation, its caches."""
    return max(1, (argument.bit_length() + 7) // 8) + _caches(op.opname)


@functools.cache
def _caches(opname: str) -> int:
    """Returns the number of inline cache units that follow an operation."""
    try:
        count: int = ConcreteInstr(opname, 0).use_cache_opcodes()
    except ValueError:  # it takes no argument
        count = ConcreteInstr(opname).use_cache_opcodes()
    return count


def _concrete(op: Op, span: range, labels: dict[Label, int]) -> ConcreteInstr:
    location = InstrLocation.from_positions(op.positions) if op.positions.lineno else None
    if op.arg is None and op.jump is None:
        return ConcreteInstr(op.opname, location=location)
    # A jump keeps its EXTENDED_ARGs even if its final distance needs fewer.
    extended = len(span) - 1 - _caches(op.opname)
    return ConcreteInstr(op.opname, _argument(op, span, labels), location=location, extended_args=extended or None)


def _exception_table(ops: list[Op], spans: list[range], labels: dict[Label, int]) -> list[ExceptionTableEntry]:
    entries: list[ExceptionTableEntry] = []
    previous: Region | None = None
    for op, span in zip(ops, spans):
        region = op.region
        if region is not None and region == previous:
            entries[-1].stop_offset = span.stop - 1
        elif region is not None:
            target = labels[region.label]
            entries.append(ExceptionTableEntry(span.start, span.stop - 1, target, region.depth, region.lasti))
        previous = region
    return entries
