"""Owns the frame point: a position in a function, with the kinds of values that its frame holds there.

Runs and generates no code. It knows the effect of an instruction on the kinds of values in a frame: enough to describe
the frame after an instruction that ran eagerly.
"""

from __future__ import annotations

import dis
import itertools
import types
from collections.abc import Iterable

from minidynamo.bytecode.analysis import (
    TERMINATORS,
    UNCONDITIONAL_JUMPS,
    group_of,
    live_locals,
    runs_same_calls,
    slot_effects,
    slots_bound_first,
)
from minidynamo.bytecode.instructions import NULL_ABOVE_CALLABLE, Instruction, decode, slot_names
from minidynamo.core.names import identifier
from minidynamo.core.records import record

# The kind of a stack slot. A cell is on the stack while a closure is built, and while an inlined comprehension uses the
# slot of the cell's variable.
VALUE, NULL, CELL = "value", "null", "cell"

_NULL_AND_VALUE = (VALUE, NULL) if NULL_ABOVE_CALLABLE else (NULL, VALUE)
# Operations that pop a NULL or a cell and push a value in the same position.
_RESULT_REPLACES_SLOT = {"CALL", "CALL_KW", "CALL_FUNCTION_EX", "BUILD_TUPLE"}


@record(frozen=True)
class FramePoint:
    """A frame of `code` before it runs instruction `index`.

    A list holds the frame's values: cells, then the stack without its NULLs, then locals. `frame_point` builds frame
    points, and drops slots that are neither live nor `lasting`.
    """

    code: types.CodeType
    index: int
    #: VALUE, NULL or CELL for each stack slot, from the bottom.
    stack: tuple[str, ...] = ()
    #: The slots that hold a value, in the order of `slot_names`.
    locals: tuple[str, ...] = ()
    #: The slots that hold a cell, in the order of `slot_names`.
    cells: tuple[str, ...] = ()
    #: Slots that are kept although they are not live: until the frame ends, or the slot is assigned.
    lasting: frozenset[str] = frozenset()

    @property
    def size(self) -> int:
        """The length of the list of the frame's values."""
        return len(self.parameters)

    @property
    def parameters(self) -> tuple[str, ...]:
        """Distinct identifiers for the values in the list: the slot's name, or stack_0, stack_1, ..."""
        stack = [f"stack_{k}" for k, kind in enumerate(self.stack) if kind != NULL]
        return _identifiers((*self.cells, *stack, *self.locals))


def _identifiers(names: Iterable[str]) -> tuple[str, ...]:
    identifiers: list[str] = []
    for name in names:
        stem = name if name.isidentifier() else identifier(name)
        if stem[0].isdigit():  # a comprehension of Python 3.11 calls its argument ".0"
            stem = f"argument_{stem}"
        candidates = itertools.chain((stem,), (f"{stem}_{count}" for count in itertools.count(1)))
        identifiers.append(next(unique for unique in candidates if unique not in identifiers))
    return tuple(identifiers)


@record(frozen=True)
class Exit:
    """The frame after an instruction."""

    point: FramePoint
    #: Whether the instruction's jump was taken.
    jumped: bool


def frame_point(
    code: types.CodeType,
    index: int,
    stack: Iterable[str],
    locals: Iterable[str],
    cells: Iterable[str],
    lasting: frozenset[str] = frozenset(),
) -> FramePoint:
    """Builds the frame point of the call group at `index`, with the bound `locals` and `cells` that are live or
    `lasting`."""
    index = group_of(code, index).start
    live = live_locals(code, index) | lasting
    order = {name: k for k, name in enumerate(slot_names(code))}
    live_names = [tuple(sorted(live & set(names), key=order.__getitem__)) for names in (locals, cells)]
    return FramePoint(code, index, tuple(stack), live_names[0], live_names[1], lasting)


def exits(point: FramePoint) -> tuple[Exit, ...]:
    """Returns the frame points that may follow after the instruction (the whole call) at `point` raised nothing."""
    group = group_of(point.code, point.index)
    instructions = decode(point.code)
    last = instructions[group.stop - 1]
    successors = []
    if last.opname not in TERMINATORS | UNCONDITIONAL_JUMPS:
        successors.append((group.stop, False))
    if last.target is not None:
        successors.append((last.target, True))
    exits_found = []
    for index, jumped in successors:
        stack = list(point.stack)
        slots = dict.fromkeys(point.locals, VALUE) | dict.fromkeys(point.cells, CELL)
        for k in group:
            _apply_instruction(instructions[k], jumped, stack, slots)
        plain, cells = ([name for name, kind in slots.items() if kind == wanted] for wanted in (VALUE, CELL))
        exits_found.append(Exit(frame_point(point.code, index, stack, plain, cells, point.lasting), jumped))
    return tuple(exits_found)


def loop_exit(point: FramePoint) -> Exit | None:
    """Returns the frame after the `for` loop whose body starts at `point`, whichever iteration is the last.

    None if `point` starts no such body, if a slot that is read after the loop may be unbound then, or if some
    iterations may make calls that others do not make.
    """
    code, instructions = point.code, decode(point.code)
    header = instructions[point.index - 1]
    if header.opname != "FOR_ITER" or header.target is None or not runs_same_calls(code, header.index):
        return None
    bound = {*point.locals, *slots_bound_first(code, point.index)}
    after = frame_point(code, header.target, point.stack[:-2], bound, point.cells, point.lasting)
    effects = [effect for instruction in instructions for effect in slot_effects(instruction)]
    deleted = {name for operation, name in effects if operation.startswith("DELETE")}
    is_known = live_locals(code, header.target) <= {*after.locals, *after.cells} and deleted.isdisjoint(after.locals)
    return Exit(after, jumped=True) if is_known else None


def _apply_instruction(instruction: Instruction, jumped: bool, stack: list[str], slots: dict[str, str]) -> None:
    """Applies the effect of `instruction` to `stack` and `slots` (name -> VALUE or CELL; unbound slots are absent)."""
    opname, arg = instruction.opname, instruction.arg or 0
    effects = slot_effects(instruction)
    if effects:
        for operation, name in effects:
            _apply_to_slot(operation, name, stack, slots)
    elif opname == "SWAP":
        stack[-1], stack[-arg] = stack[-arg], stack[-1]
    elif opname == "COPY":
        stack.append(stack[-arg])
    elif opname == "PUSH_NULL":
        stack.append(NULL)
    elif opname == "LOAD_GLOBAL" and instruction.flag:
        stack.extend(_NULL_AND_VALUE)
    elif instruction.method_form:
        _resize(stack, dis.stack_effect(instruction.opcode, arg, jump=jumped) - 1)
        stack[-1:] = _NULL_AND_VALUE
    else:
        _resize(stack, _stack_effect(instruction, jumped))
        if opname in _RESULT_REPLACES_SLOT:
            stack[-1] = VALUE


def _apply_to_slot(operation: str, name: str, stack: list[str], slots: dict[str, str]) -> None:
    if operation == "STORE_FAST":
        kind = stack.pop()
        slots.pop(name, None)
        if kind != NULL:
            slots[name] = kind
    elif operation == "LOAD_FAST_AND_CLEAR":
        stack.append(slots.pop(name, NULL))
    elif operation == "DELETE_FAST":
        slots.pop(name, None)
    elif operation == "MAKE_CELL":
        slots[name] = CELL
    elif operation in ("LOAD_FAST", "LOAD_FAST_CHECK"):
        stack.append(slots.get(name, VALUE))
    elif operation == "LOAD_CLOSURE":
        stack.append(CELL)
    else:
        _resize(stack, dis.stack_effect(dis.opmap[operation], 0))


def _resize(stack: list[str], effect: int) -> None:
    if effect < 0:
        del stack[effect:]
    stack.extend([VALUE] * effect)


def _stack_effect(instruction: Instruction, jumped: bool) -> int:
    if instruction.opname == "FOR_ITER":
        # `target` is after END_FOR, so the exhausted iterator is already popped.
        return -1 if jumped else 1
    return dis.stack_effect(instruction.opcode, instruction.arg, jump=jumped)
