"""Owns the decoded form of a function's bytecode: one `Instruction` per operation, in the same form on every Python.

Analyses are in `analysis.py`. EXTENDED_ARG and CACHE are removed, specialized opcodes are back in their generic form,
arguments are decoded (names, constants, operator symbols), and jump targets are indices instead of byte offsets. A
comparison that ends in a bool (since 3.13) is two operations, so that COMPARE_OP means the same on every Python.

Meaning of `argval` and `flag`:

    local and cell operations   the slot's name (a pair for the opcodes of DUAL_OPS); see `slot_names`
    LOAD_GLOBAL                 the name; flag: also pushes NULL
    LOAD_ATTR, LOAD_METHOD, LOAD_SUPER_ATTR
                                the attribute; flag: method form, two values are pushed
    LOAD_CONST, KW_NAMES, ...   the constant
    jumps and FOR_ITER          the index of the target (FOR_ITER: the first instruction after the loop is exhausted)
    COMPARE_OP                  the symbol, "<"; if it also converts the result to bool, a TO_BOOL follows
    IS_OP, CONTAINS_OP          "is", "is not", "in", "not in"; flag: negated
    BINARY_OP                   the symbol, "+" or "+="
    CALL_INTRINSIC_1, _2        the intrinsic's name
    FORMAT_VALUE                (str, repr, ascii or None; whether a format spec is on the stack)
    CONVERT_VALUE               str, repr or ascii
    anything else               the raw argument
"""

from __future__ import annotations

import dis
import functools
import types
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

from minidynamo.core.records import record
from minidynamo.errors import UserLocation

# The opcodes themselves show the Python version, so this module does not need `compat`.
_HAS_END_FOR = "END_FOR" in dis.opmap  # since 3.12
NULL_ABOVE_CALLABLE = "CALL_KW" in dis.opmap  # since 3.13; before, NULL is below the callable

# Instructions at FOR_ITER's encoded target that the interpreter skips when the iterator is exhausted.
EXHAUSTED_SKIP = ("END_FOR", "POP_TOP") if NULL_ABOVE_CALLABLE else ("END_FOR",) if _HAS_END_FOR else ()

# Instructions that combine two operations, each with its own slot.
DUAL_OPS = {
    "LOAD_FAST_LOAD_FAST": ("LOAD_FAST", "LOAD_FAST"),
    "STORE_FAST_LOAD_FAST": ("STORE_FAST", "LOAD_FAST"),
    "STORE_FAST_STORE_FAST": ("STORE_FAST", "STORE_FAST"),
}

METHOD_FORM_OPS = {"LOAD_ATTR", "LOAD_SUPER_ATTR"} if _HAS_END_FOR else {"LOAD_METHOD"}
_LOW_BIT_FLAG = {"LOAD_GLOBAL", "IS_OP", "CONTAINS_OP"} | (METHOD_FORM_OPS - {"LOAD_METHOD"})
_COMPARE_TO_BOOL = 16 if NULL_ABOVE_CALLABLE else 0
_SYMBOLS = {"IS_OP": ("is", "is not"), "CONTAINS_OP": ("in", "not in")}
_SHOWN_AS_TEXT = {"BINARY_OP", "CALL_INTRINSIC_1", "CALL_INTRINSIC_2"}
_JUMPS = {*dis.hasjrel, *dis.hasjabs}
_SLOT_OPS = {*dis.haslocal, *dis.hasfree}


@record(frozen=True)
class Handler:
    """The exception handler of an instruction."""

    #: Index of the handler's first instruction.
    target: int
    #: The number of stack values that remain when the handler starts.
    depth: int
    #: Whether the offset of the failing instruction is pushed before the exception.
    lasti: bool


@record(frozen=True)
class Instruction:
    """An operation of a code object."""

    index: int
    opname: str
    opcode: int
    #: The raw argument.
    arg: int | None
    #: The decoded argument; see the module docstring.
    argval: Any
    flag: bool
    #: Byte offset in the code.
    offset: int
    #: Index of the jump target.
    target: int | None
    positions: dis.Positions
    handler: Handler | None

    @property
    def method_form(self) -> bool:
        """True if two values are pushed for a later call: the function and its self, or a callable and NULL."""
        return self.flag and self.opname in METHOD_FORM_OPS

    @property
    def touches_slot(self) -> bool:
        """True if `argval` names a local, a cell or a free variable."""
        return self.opcode in _SLOT_OPS


@functools.lru_cache(maxsize=1024)
def decode(code: types.CodeType) -> tuple[Instruction, ...]:
    """Returns the instructions of `code`, in order; computed once per code object."""
    raw = [i for i in dis.get_instructions(code, adaptive=False) if i.opname != "CACHE"]
    index_of = _indices(raw)
    handlers = _handlers(code, index_of)
    names = slot_names(code)
    decoded: list[Instruction] = []
    for i in raw:
        if i.opname != "EXTENDED_ARG":
            decoded.append(_instruction(code, len(decoded), i, index_of, handlers, names))
        if _ends_in_bool(i):
            opcode, index = dis.opmap["TO_BOOL"], len(decoded)
            decoded.append(replace(decoded[-1], index=index, opname="TO_BOOL", opcode=opcode, arg=None, argval=None))
    return tuple(decoded)


def slot_names(code: types.CodeType) -> tuple[str, ...]:
    """Returns a unique name for each slot of a frame: locals, then cells that are not locals, then free variables.

    An inlined comprehension may have a variable of the same name as a free variable of its function; the slots are
    distinct, so the local is called ``"x (local)"``.
    """
    free = set(code.co_freevars)
    plain = [f"{name} (local)" if name in free else name for name in code.co_varnames]
    cells = [name for name in code.co_cellvars if name not in code.co_varnames]
    return (*plain, *cells, *code.co_freevars)


def location(code: types.CodeType, index: int) -> UserLocation:
    """Returns the user's line of instruction `index`, with the columns of its expression. Of an expression over several
    lines, the columns are those on the first line."""
    positions = decode(code)[index].positions
    line = positions.lineno or code.co_firstlineno
    found = UserLocation(code.co_filename, line, code.co_name, positions.col_offset, positions.end_col_offset)
    if positions.lineno is None or positions.end_lineno == positions.lineno:
        return found
    return replace(found, end_col=max(len(found.source_line().encode()), (found.col or 0) + 1))


def _indices(raw: list[dis.Instruction]) -> dict[int, int]:
    """Maps byte offsets to indices. A jump to an EXTENDED_ARG is a jump to the instruction that it extends."""
    index_of, index = {}, 0
    for instruction in raw:
        index_of[instruction.offset] = index
        index += (instruction.opname != "EXTENDED_ARG") + _ends_in_bool(instruction)
    return index_of


def _ends_in_bool(raw: dis.Instruction) -> bool:
    """Returns whether a comparison also converts its result to bool."""
    return raw.opname == "COMPARE_OP" and bool(raw.arg and raw.arg & _COMPARE_TO_BOOL)


def _instruction(
    code: types.CodeType,
    index: int,
    raw: dis.Instruction,
    index_of: dict[int, int],
    handlers: list[tuple[int, int, Handler]],
    names: tuple[str, ...],
) -> Instruction:
    arg, target = raw.arg, None
    if raw.opcode in _JUMPS:
        target = index_of[raw.argval] + (len(EXHAUSTED_SKIP) if raw.opname == "FOR_ITER" else 0)
    flag = raw.opname == "LOAD_METHOD" or (raw.opname in _LOW_BIT_FLAG and bool(arg and arg & 1))
    if _ends_in_bool(raw):
        arg = (raw.arg or 0) & ~_COMPARE_TO_BOOL
    handler = next((h for start, end, h in handlers if start <= raw.offset < end), None)
    positions = raw.positions or dis.Positions()
    argval = target if target is not None else _argval(code, raw, names)
    return Instruction(index, raw.opname, raw.opcode, arg, argval, flag, raw.offset, target, positions, handler)


def _argval(code: types.CodeType, raw: dis.Instruction, names: tuple[str, ...]) -> Any:
    if raw.arg is None:
        return None
    if raw.opname in DUAL_OPS:
        return names[raw.arg >> 4], names[raw.arg & 15]
    if raw.opcode in _SLOT_OPS:
        return names[raw.arg]
    if raw.opcode in dis.hasconst or raw.opname == "KW_NAMES":
        return code.co_consts[raw.arg]
    if raw.opname in _SYMBOLS:
        return _SYMBOLS[raw.opname][raw.arg]
    return raw.argrepr if raw.opname in _SHOWN_AS_TEXT else raw.argval


def _handlers(code: types.CodeType, index_of: dict[int, int]) -> list[tuple[int, int, Handler]]:
    """Decodes the exception table: start offset, end offset and handler of each protected range.

    CPython stores four numbers per range, in code units (two bytes) and six bits a byte: start, length, target and
    depth * 2 + lasti.
    """
    numbers = _varints(code.co_exceptiontable)
    ranges = []
    for start, length, target, depth in zip(numbers, numbers, numbers, numbers):
        ranges.append((start * 2, (start + length) * 2, Handler(index_of[target * 2], depth >> 1, bool(depth & 1))))
    return ranges


def _varints(table: bytes) -> Iterator[int]:
    value = 0
    for byte in table:
        value = value << 6 | byte & 63
        if not byte & 64:
            yield value
            value = 0
