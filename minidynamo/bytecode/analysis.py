"""Owns the analyses of a code object that graph breaks need: liveness, instruction groups, positions without a cut.

Runs and changes no code. Every answer is conservative: a slot that may be read is live, and an instruction that may
belong to an exception handler cannot be cut.
"""

from __future__ import annotations

import functools
import inspect
import itertools
import types
from collections.abc import Sequence

from minidynamo.bytecode.instructions import DUAL_OPS, Instruction, decode, slot_names

UNCONDITIONAL_JUMPS = {"JUMP_FORWARD", "JUMP_BACKWARD", "JUMP_BACKWARD_NO_INTERRUPT"}
TERMINATORS = {"RETURN_VALUE", "RETURN_CONST", "RAISE_VARARGS", "RERAISE", "INTERPRETER_EXIT"}

_CALL_OPCODES = ("KW_NAMES", "PRECALL", "CALL")
# Instructions that consume the bool that TO_BOOL pushes.
_CONSUMES_BOOL = {"POP_JUMP_IF_TRUE", "POP_JUMP_IF_FALSE", "UNARY_NOT"}
_SUSPENDING = inspect.CO_GENERATOR | inspect.CO_COROUTINE | inspect.CO_ASYNC_GENERATOR
# CPython ends exception handlers with these opcodes. If they counted as raising, the code after a handler would count
# as part of the handler.
_NEVER_RAISE = {"PUSH_EXC_INFO", "POP_EXCEPT", "COPY", "SWAP", "POP_TOP", "LOAD_CONST", "NOP", *UNCONDITIONAL_JUMPS}
_NEVER_RAISE |= {"STORE_FAST", "STORE_DEREF"}
# With these names, a function can read its own locals without a LOAD_FAST.
_READS_ALL_LOCALS = {"locals", "vars", "dir", "eval", "exec", "_getframe", "currentframe"}
# With these names, a function can observe the death of an object: its locals stay live until rebound.
_DEATH_OBSERVERS = {"weakref", "ref", "proxy", "finalize", "WeakMethod", "getweakrefcount", "getrefcount", "gc"}
_DEATH_OBSERVERS |= {"WeakSet", "WeakValueDictionary", "WeakKeyDictionary"}


def group_of(code: types.CodeType, index: int) -> range:
    """Returns the range of instructions that must run together with instruction `index`.

    KW_NAMES, PRECALL and CALL are a single call. A conversion to bool and the jump on the result are a single
    condition: a cut between them would compile the code after the cut twice, for True and for False.
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
        return second.opname in _CONSUMES_BOOL and second.index not in jump_targets(code)
    return first.opname in _CALL_OPCODES[:2] and second.opname in _CALL_OPCODES[1:] and first.opname != second.opname


@functools.lru_cache(maxsize=1024)
def jump_targets(code: types.CodeType) -> frozenset[int]:
    """Returns the index of each instruction that a jump or an exception handler leads to."""
    instructions = decode(code)
    jumps = {i.target for i in instructions if i.target is not None}
    return frozenset(jumps | {i.handler.target for i in instructions if i.handler})


def successors(code: types.CodeType, index: int) -> tuple[int, ...]:
    """Returns the indices at which execution may continue after `index` if `index` raises nothing."""
    instruction = decode(code)[index]
    following = () if instruction.opname in TERMINATORS | UNCONDITIONAL_JUMPS else (index + 1,)
    return following if instruction.target is None else (*following, instruction.target)


def reason_against_cut(code: types.CodeType, index: int) -> str | None:
    """Returns the reason, as a phrase for the user, why `code` cannot be cut before instruction `index`; else None."""
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
    """Returns the index of the first instruction after RESUME. A frame of a plain function has an empty stack at this
    index."""
    return next((i.index + 1 for i in decode(code) if i.opname == "RESUME"), 0)


def in_except_handler(code: types.CodeType, index: int) -> bool:
    """Returns whether an exception may be in flight before `index`: on the stack, or in `sys.exc_info()`."""
    return _exceptions_in_flight(code)[index] > 0


@functools.lru_cache(maxsize=1024)
def _exceptions_in_flight(code: types.CodeType) -> tuple[int, ...]:
    """Computes the largest number of exceptions in flight before each instruction.

    A handler starts with the count of the raising instruction plus 1. RERAISE raises an exception that is already
    counted. POP_EXCEPT removes an exception.
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
        if here.handler and _can_raise(instructions, index):
            flows.append((here.handler.target, counts[index] + (here.opname != "RERAISE")))
        for target, count in flows:
            if counts[target] < min(count, limit):
                counts[target] = min(count, limit)
                work.append(target)
    return tuple(counts)


def _can_raise(instructions: tuple[Instruction, ...], index: int) -> bool:
    here, before = instructions[index], instructions[index - 1]
    if here.opname in ("DELETE_FAST", "DELETE_DEREF") and before.opname in ("STORE_FAST", "STORE_DEREF"):
        # `except E as e` ends with e = None; del e
        return bool(here.argval != before.argval)
    return here.opname not in _NEVER_RAISE


def is_in_try(code: types.CodeType, index: int) -> bool:
    """Returns whether a `try` or `with` of the user contains the instruction. Cleanup after comprehensions does not
    count."""
    instructions = decode(code)
    handler = instructions[index].handler
    while handler is not None:
        if instructions[handler.target].opname == "PUSH_EXC_INFO":
            return True
        following = itertools.islice(instructions, handler.target, None)
        handler = next(i.handler for i in following if i.opname == "RERAISE")
    return False


def live_locals(code: types.CodeType, index: int) -> frozenset[str]:
    """Returns the live slots (locals and cells, by `slot_names`): slots with a possible read at or after instruction
    `index`."""
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
    if _READS_ALL_LOCALS & set(code.co_names) or observes_deaths(code):
        return frozenset(names)
    # super() without arguments looks into the frame for the class cell and the first argument.
    return frozenset({"__class__", names[0]}) if "__class__" in code.co_freevars else frozenset()


def observes_deaths(code: types.CodeType) -> bool:
    """Returns whether the function's own code mentions weak references: with these, it may ask which objects are
    alive."""
    return not _DEATH_OBSERVERS.isdisjoint(code.co_names + code.co_freevars)


def _reads_and_writes(instruction: Instruction) -> tuple[frozenset[str], frozenset[str]]:
    """Returns the slots that an instruction reads before writing, and the slots that it writes."""
    reads: set[str] = set()
    writes: set[str] = set()
    for opname, name in slot_effects(instruction):
        if opname == "STORE_FAST":
            writes.add(name)
        elif name not in writes:
            # STORE_DEREF reads the cell; DELETE_FAST fails on an unbound local.
            reads.add(name)
    return frozenset(reads), frozenset(writes)


def slot_effects(instruction: Instruction) -> tuple[tuple[str, str], ...]:
    """Returns (operation, slot) for each slot that an instruction touches, in order."""
    if instruction.opname in DUAL_OPS:
        return tuple(zip(DUAL_OPS[instruction.opname], instruction.argval))
    if instruction.touches_slot:
        return ((instruction.opname, instruction.argval),)
    return ()


@functools.lru_cache(maxsize=1024)
def written_slots(code: types.CodeType, start: int = 0) -> frozenset[str]:
    """Returns the slots that instruction `start` or a later one assigns or deletes: their values may change before the
    frame ends."""
    instructions, pending, seen = decode(code), [start], set[int]()
    while pending:
        index = pending.pop()
        if index not in seen:
            seen.add(index)
            handler = instructions[index].handler
            pending += [*successors(code, index), *([handler.target] if handler else [])]
    effects = [effect for index in seen for effect in slot_effects(instructions[index])]
    return frozenset(name for operation, name in effects if operation.startswith(("STORE", "DELETE")))


def slots_bound_first(code: types.CodeType, start: int) -> frozenset[str]:
    """Returns the slots that the instructions from `start` to the next jump or jump target assign."""
    found: set[str] = set()
    for instruction in decode(code)[start:]:
        if instruction.target is not None or (instruction.index > start and instruction.index in jump_targets(code)):
            break
        found |= _reads_and_writes(instruction)[1]
    return frozenset(found)


def runs_same_calls(code: types.CodeType, header: int) -> bool:
    """Returns whether each iteration of the `for` loop at `header` makes the same calls, unless the loop ends early: no
    call is in a branch or an inner loop."""
    instructions = decode(code)
    body = range(header + 1, instructions[header].target or 0)
    jumps = [(k, target) for k in body if (target := instructions[k].target) is not None]
    skipped = [range(k, target if target > k else body.stop) for k, target in jumps]  # a jump back ends the iteration
    calls = [k for k in body if instructions[k].opname.startswith(_CALLING)]
    return not any(k in part for k in calls for part in skipped)


# Prefixes of the instructions that call functions, or run iterators and context managers.
_CALLING = ("CALL", "MAKE_FUNCTION", "FOR_ITER", "SEND", "YIELD", "BEFORE_WITH", "LOAD_SPECIAL", "IMPORT")


def starred_parameters(code: types.CodeType) -> Sequence[str]:
    """Returns the names of the parameters `*args` and `**kwargs`, if the function has them."""
    names = code.co_varnames[code.co_argcount + code.co_kwonlyargcount :]
    return names[: bool(code.co_flags & inspect.CO_VARARGS) + bool(code.co_flags & inspect.CO_VARKEYWORDS)]
