"""Owns the facts about a code object that cutting it needs: what is live, what runs together, where no cut can be.

It neither runs nor changes code. Every answer is conservative: what may be read is live, what may lie in an exception
handler cannot be cut.
"""

from __future__ import annotations

import functools
import inspect
import itertools
import types
from collections.abc import Sequence

from minidynamo.bytecode.instructions import DUAL_OPS, Instruction, decode, slot_names

UNCONDITIONAL_JUMPS = {"JUMP_FORWARD", "JUMP_BACKWARD", "JUMP_BACKWARD_NO_INTERRUPT"}
LEAVES = {"RETURN_VALUE", "RETURN_CONST", "RAISE_VARARGS", "RERAISE", "INTERPRETER_EXIT"}

_CALL_PARTS = ("KW_NAMES", "PRECALL", "CALL")
# What the bool that TO_BOOL makes is there for.
_ON_BOOL = {"POP_JUMP_IF_TRUE", "POP_JUMP_IF_FALSE", "UNARY_NOT"}
_SUSPENDING = inspect.CO_GENERATOR | inspect.CO_COROUTINE | inspect.CO_ASYNC_GENERATOR
# What the compiler ends handlers with: were these thought to raise, code behind a handler would seem to lie inside.
_NEVER_RAISE = {"PUSH_EXC_INFO", "POP_EXCEPT", "COPY", "SWAP", "POP_TOP", "LOAD_CONST", "NOP", *UNCONDITIONAL_JUMPS}
_NEVER_RAISE |= {"STORE_FAST", "STORE_DEREF"}
# Names through which a function can read its own locals without an instruction that says so.
_READS_ALL_LOCALS = {"locals", "vars", "dir", "eval", "exec", "_getframe", "currentframe"}
# And through which it can tell what still lives: there a local holds what it holds until it is bound anew.
_SEES_DEATHS = {"weakref", "ref", "proxy", "finalize", "WeakMethod", "getweakrefcount", "getrefcount", "gc"}
_SEES_DEATHS |= {"WeakSet", "WeakValueDictionary", "WeakKeyDictionary"}


def group_of(code: types.CodeType, index: int) -> range:
    """The instructions that must run together with `index`.

    KW_NAMES, PRECALL and CALL are one call. A conversion to bool and the jump on it are one condition: cut between
    them, what follows would be compiled once for True and once for False.
    """
    instructions = decode(code)
    start = stop = index
    while start > 0 and _belong_together(code, instructions[start - 1], instructions[start]):
        start -= 1
    while stop + 1 < len(instructions) and _belong_together(code, instructions[stop], instructions[stop + 1]):
        stop += 1
    return range(start, stop + 1)


def _belong_together(code: types.CodeType, first: Instruction, second: Instruction) -> bool:
    if first.opname == "TO_BOOL":
        return second.opname in _ON_BOOL and second.index not in jump_targets(code)
    return first.opname in _CALL_PARTS[:2] and second.opname in _CALL_PARTS[1:] and first.opname != second.opname


@functools.lru_cache(maxsize=1024)
def jump_targets(code: types.CodeType) -> frozenset[int]:
    """Every index that a jump or an exception handler leads to."""
    instructions = decode(code)
    jumps = {i.target for i in instructions if i.target is not None}
    return frozenset(jumps | {i.handler.target for i in instructions if i.handler})


def successors(code: types.CodeType, index: int) -> tuple[int, ...]:
    """Where control may go after `index` when nothing is raised."""
    instruction = decode(code)[index]
    following = () if instruction.opname in LEAVES | UNCONDITIONAL_JUMPS else (index + 1,)
    return following if instruction.target is None else (*following, instruction.target)


def cannot_cut(code: types.CodeType, index: int) -> str | None:
    """Why a frame of `code` cannot be cut before instruction `index`, as a phrase for the user; None when it can."""
    if code.co_flags & _SUSPENDING:
        return "a generator or coroutine keeps its own frame"
    if not code.co_flags & inspect.CO_OPTIMIZED:
        return "this is a class or module body, not a function"
    if index < first_index(code):
        return "the frame is not set up yet"
    if in_except_handler(code, index):
        return "an exception is being handled here"
    return None


def first_index(code: types.CodeType) -> int:
    """The first instruction behind RESUME: there a frame of a plain function starts with an empty stack."""
    return next((i.index + 1 for i in decode(code) if i.opname == "RESUME"), 0)


def in_except_handler(code: types.CodeType, index: int) -> bool:
    """Whether an exception may be in flight before `index`: on the stack, or as what `sys.exc_info()` tells."""
    return _exceptions_in_flight(code)[index] > 0


@functools.lru_cache(maxsize=1024)
def _exceptions_in_flight(code: types.CodeType) -> tuple[int, ...]:
    """How many exceptions at most are in flight before each instruction.

    A handler starts with one more than what raised; RERAISE raises one that is in flight already; POP_EXCEPT ends one.
    """
    instructions = decode(code)
    limit = 1 + len({i.handler for i in instructions if i.handler})
    counts = [-1] * len(instructions)
    counts[0] = 0
    work = [0]
    while work:
        index = work.pop()
        here = instructions[index]
        flows = [(target, counts[index] - (here.opname == "POP_EXCEPT")) for target in successors(code, index)]
        if here.handler and _may_raise(instructions, index):
            flows.append((here.handler.target, counts[index] + (here.opname != "RERAISE")))
        for target, count in flows:
            if counts[target] < min(count, limit):
                counts[target] = min(count, limit)
                work.append(target)
    return tuple(counts)


def _may_raise(instructions: tuple[Instruction, ...], index: int) -> bool:
    here, before = instructions[index], instructions[index - 1]
    if here.opname in ("DELETE_FAST", "DELETE_DEREF") and before.opname in ("STORE_FAST", "STORE_DEREF"):
        # `except E as e` ends with e = None; del e
        return bool(here.argval != before.argval)
    return here.opname not in _NEVER_RAISE


def is_in_try(code: types.CodeType, index: int) -> bool:
    """Whether a `try` or `with` of the user surrounds the instruction, not just what clears up after comprehensions."""
    instructions = decode(code)
    handler = instructions[index].handler
    while handler is not None:
        if instructions[handler.target].opname == "PUSH_EXC_INFO":
            return True
        following = itertools.islice(instructions, handler.target, None)
        handler = next(i.handler for i in following if i.opname == "RERAISE")
    return False


def live_locals(code: types.CodeType, index: int) -> frozenset[str]:
    """The slots (locals and cells, by `slot_names`) that may be read from instruction `index` on."""
    return _live_sets(code)[index]


@functools.lru_cache(maxsize=1024)
def _live_sets(code: types.CodeType) -> tuple[frozenset[str], ...]:
    instructions = decode(code)
    always = _implicitly_read(code)
    effects = [_reads_and_writes(i) for i in instructions]
    live: list[frozenset[str]] = [always] * len(instructions)
    changed = True
    while changed:
        changed = False
        for instruction in reversed(instructions):
            reads, writes = effects[instruction.index]
            after = frozenset().union(*(live[t] for t in successors(code, instruction.index)))
            before = always | reads | (after - writes)
            if instruction.handler:
                before |= live[instruction.handler.target]
            if before != live[instruction.index]:
                live[instruction.index] = before
                changed = True
    return tuple(live)


def _implicitly_read(code: types.CodeType) -> frozenset[str]:
    names = slot_names(code)
    if _READS_ALL_LOCALS & set(code.co_names) or sees_deaths(code):
        return frozenset(names)
    # super() without arguments looks into the frame for the class cell and the first argument.
    return frozenset({"__class__", names[0]}) if "__class__" in code.co_freevars else frozenset()


def sees_deaths(code: types.CodeType) -> bool:
    """Whether the function's own code mentions weak references, so that it may ask which objects still live."""
    return not _SEES_DEATHS.isdisjoint(code.co_names + code.co_freevars)


def _reads_and_writes(instruction: Instruction) -> tuple[frozenset[str], frozenset[str]]:
    """Slots that an instruction reads before it writes, and slots that it writes."""
    reads: set[str] = set()
    writes: set[str] = set()
    for opname, name in slot_effects(instruction):
        if opname == "STORE_FAST":
            writes.add(name)
        elif name not in writes:
            # Also STORE_DEREF and DELETE_FAST: the one needs the cell, the other fails on an unbound local.
            reads.add(name)
    return frozenset(reads), frozenset(writes)


def slot_effects(instruction: Instruction) -> tuple[tuple[str, str], ...]:
    """(operation, slot) for each slot that an instruction touches, in order."""
    if instruction.opname in DUAL_OPS:
        return tuple(zip(DUAL_OPS[instruction.opname], instruction.argval))
    if instruction.touches_slot:
        return ((instruction.opname, instruction.argval),)
    return ()


@functools.lru_cache(maxsize=1024)
def written_slots(code: types.CodeType, start: int = 0) -> frozenset[str]:
    """The slots that are assigned to or deleted from instruction `start` on: they may stop holding what they hold there
    before the frame ends."""
    instructions, pending, seen = decode(code), [start], set[int]()
    while pending:
        index = pending.pop()
        if index not in seen:
            seen.add(index)
            handler = instructions[index].handler
            pending += [*successors(code, index), *([handler.target] if handler else [])]
    effects = [effect for index in seen for effect in slot_effects(instructions[index])]
    return frozenset(name for operation, name in effects if operation.startswith(("STORE", "DELETE")))


def starred_parameters(code: types.CodeType) -> Sequence[str]:
    """The parameters of a function that collect further arguments: those written with `*` and `**`."""
    names = code.co_varnames[code.co_argcount + code.co_kwonlyargcount :]
    return names[: bool(code.co_flags & inspect.CO_VARARGS) + bool(code.co_flags & inspect.CO_VARKEYWORDS)]
