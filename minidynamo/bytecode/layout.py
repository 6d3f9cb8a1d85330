"""Owns the frame point: a place in a function together with what its frame holds there.

It does not run or generate code. It knows how an instruction changes what a frame holds, which is all that is needed
to tell where a frame is after an instruction that ran natively.
"""

from __future__ import annotations

import dis
import re
import types
from collections.abc import Iterable
from dataclasses import dataclass

from minidynamo.bytecode.analysis import LEAVES, UNCONDITIONAL_JUMPS, group_of, live_locals, slot_effects
from minidynamo.bytecode.instructions import NULL_ABOVE_CALLABLE, Instruction, decode, slot_names

# What a stack slot holds. A cell lies on the stack while a closure is built, and while an inlined comprehension has
# its variable's slot.
VALUE, NULL, CELL = "value", "null", "cell"

_NULL_AND_VALUE = (VALUE, NULL) if NULL_ABOVE_CALLABLE else (NULL, VALUE)
# Operations whose result replaces a NULL or a cell that they took from the stack.
_RESULT_REPLACES_SLOT = {"CALL", "CALL_KW", "CALL_FUNCTION_EX", "BUILD_TUPLE"}


@dataclass(frozen=True)
class FramePoint:
    """A frame of `code` right before instruction `index`.

    `stack` tells VALUE, NULL or CELL for each slot from the bottom; `locals` are the slots that hold a value, `cells`
    those that hold a cell (both by `slot_names`, in that order). The values travel in one list: cells, then the stack
    without its NULLs, then locals. Make it with `frame_point`, which leaves out what is dead, unless it is `lasting`:
    held to the end of the frame, or until something else is stored there.
    """

    code: types.CodeType
    index: int
    stack: tuple[str, ...] = ()
    locals: tuple[str, ...] = ()
    cells: tuple[str, ...] = ()
    lasting: frozenset[str] = frozenset()

    @property
    def size(self) -> int:
        """The length of the list in which the frame's values travel."""
        return len(self.parameters)

    @property
    def parameters(self) -> tuple[str, ...]:
        """A distinct identifier for each value in that list: the slot's name, or stack_0, stack_1, ..."""
        stack = [f"stack_{k}" for k, kind in enumerate(self.stack) if kind != NULL]
        return _identifiers((*self.cells, *stack, *self.locals))


def _identifiers(names: Iterable[str]) -> tuple[str, ...]:
    made: list[str] = []
    for name in names:
        # A comprehension of Python 3.11 calls its argument ".0".
        stem = made_name = re.sub(r"\W+", "_", name).strip("_") if not name.isidentifier() else name
        count = 0
        while made_name in made or not made_name.isidentifier():
            count += 1
            made_name = f"{stem or 'value'}_{count}" if not stem[:1].isdigit() else f"argument_{stem}"
        made.append(made_name)
    return tuple(made)


@dataclass(frozen=True)
class Exit:
    """Where a frame is after an instruction; `jumped`: the instruction's jump was taken."""

    point: FramePoint
    jumped: bool


def frame_point(
    code: types.CodeType,
    index: int,
    stack: Iterable[str],
    locals: Iterable[str],
    cells: Iterable[str],
    lasting: frozenset[str] = frozenset(),
) -> FramePoint:
    """The frame point of the call group at `index`, with the bound `locals` and `cells` that are live there, or are
    `lasting`."""
    index = group_of(code, index).start
    live = live_locals(code, index) | lasting
    order = {name: k for k, name in enumerate(slot_names(code))}
    travelling = [tuple(sorted(live & set(names), key=order.__getitem__)) for names in (locals, cells)]
    return FramePoint(code, index, tuple(stack), travelling[0], travelling[1], lasting)


def exits(point: FramePoint) -> tuple[Exit, ...]:
    """The points at which a frame may be once the instruction (the whole call) at `point` has run without raising."""
    group = group_of(point.code, point.index)
    instructions = decode(point.code)
    last = instructions[group.stop - 1]
    ways = []
    if last.opname not in LEAVES | UNCONDITIONAL_JUMPS:
        ways.append((group.stop, False))
    if last.target is not None:
        ways.append((last.target, True))
    found = []
    for index, jumped in ways:
        stack = list(point.stack)
        slots = dict.fromkeys(point.locals, VALUE) | dict.fromkeys(point.cells, CELL)
        for k in group:
            _apply(instructions[k], jumped, stack, slots)
        plain, cells = ([name for name, kind in slots.items() if kind == wanted] for wanted in (VALUE, CELL))
        found.append(Exit(frame_point(point.code, index, stack, plain, cells, point.lasting), jumped))
    return tuple(found)


def _apply(instruction: Instruction, jumped: bool, stack: list[str], slots: dict[str, str]) -> None:
    """Change `stack` and `slots` (name -> VALUE or CELL, unbound ones absent) as `instruction` does."""
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
        # `target` lies behind what END_FOR would pop: the exhausted iterator is gone.
        return -1 if jumped else 1
    return dis.stack_effect(instruction.opcode, instruction.arg, jump=jumped)
