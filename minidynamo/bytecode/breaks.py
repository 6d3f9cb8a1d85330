"""Owns break, resume and loop functions: copies of a user's function that are entered at a frame point.

The choice of the cut is not here. The functions take the frame's values in a list (see `FramePoint`) and empty it. They
return `(next step, list)`, or `(None, value)` when the user's function returned.

    break function                              resume function
      restore slots and stack                     restore slots and stack
      the instruction, in its protected region    jump to the instruction in the body
      one tail per exit: (step, values)
      body, reached through its handlers only     body

A loop function is a resume function that returns the step after the loop instead of running the rest. A break function
has two copies of the instruction: one before the body, which returns the next step, and one in the body. If a handler
in the body jumps back into a loop, the second copy runs, and the function continues eagerly.
"""

from __future__ import annotations

import dis
import types
from collections.abc import Callable
from typing import Any

from minidynamo.bytecode.analysis import UNCONDITIONAL_JUMPS, first_index, group_of
from minidynamo.bytecode.assemble import Item, Label, Op, Region, assemble
from minidynamo.bytecode.instructions import (
    DUAL_OPS,
    EXHAUSTED_SKIP,
    NULL_ABOVE_CALLABLE,
    Instruction,
    decode,
    slot_names,
)
from minidynamo.bytecode.layout import NULL, Exit, FramePoint, exits, loop_exit
from minidynamo.core.artifacts import skipped_by_warnings
from minidynamo.graph.boxed import mark_boxed

BoxedStep = Callable[[list[Any]], tuple[Any, Any]]

# Loading an unbound slot unchecked ends the process.
_LOAD_SLOT = "LOAD_FAST_CHECK" if "LOAD_FAST_CHECK" in dis.opmap else "LOAD_FAST"
# Stack slots of a break function in addition to the frame's own values: step, list, and spare slots.
_SPARE_STACK = 4


@skipped_by_warnings
def run_steps(step: BoxedStep | None, boxed: Any) -> Any:
    """Runs break functions and resume functions until the last returns its result. Each returns the next step and its
    list."""
    while step is not None:
        step, boxed = step(boxed)
    return boxed


def make_break(
    point: FramePoint, namespace: dict[str, Any], resume_for: Callable[[FramePoint], object]
) -> types.FunctionType:
    """Builds the function that runs the instruction (the whole call) at `point` eagerly, and returns the next step.

    `namespace` is the globals of the user's function. `resume_for(point)` is called here, once for each exit, and
    returns the next step: the first part of the pair that the built function returns.
    """
    writer = _Writer(point, namespace, temporaries=max([len(point.stack), *(len(e.point.stack) for e in exits(point))]))
    group = group_of(point.code, point.index)
    exits_by_jump = {exit.jumped: exit for exit in exits(point)}
    jump_taken = Label()
    writer.restore()
    writer.enter_region(group.start)
    for k in group:
        writer.run(k, jump_taken)
    if False in exits_by_jump:
        writer.return_next_step(exits_by_jump[False], resume_for)
    if True in exits_by_jump:
        writer.add(jump_taken)
        if decode(point.code)[group.stop - 1].opname == "FOR_ITER":
            for opname in EXHAUSTED_SKIP:
                writer.emit(opname)
        writer.return_next_step(exits_by_jump[True], resume_for)
    if any(decode(point.code)[k].handler for k in group):
        writer.body()
    return writer.function(f".break_at_{point.index}")


def make_resume(point: FramePoint, namespace: dict[str, Any]) -> types.FunctionType:
    """Builds the function that runs the rest of the user's function eagerly from `point` on, and returns `(None,
    result)`."""
    writer = _Writer(point, namespace, temporaries=len(point.stack))
    writer.restore()
    writer.emit("JUMP_FORWARD", jump=writer.label(point.index))
    writer.body()
    return writer.function(f".resume_at_{point.index}")


def make_loop(
    point: FramePoint, namespace: dict[str, Any], resume_for: Callable[[FramePoint], object]
) -> types.FunctionType | None:
    """Builds the function that runs a `for` loop eagerly, from `point` at the start of its body, and returns the step
    after the loop; None if `loop_exit` returns None.

    `resume_for` is called as in `make_break`. After a return in the loop, or an exception that a handler outside of the
    loop catches, the rest runs eagerly, too.
    """
    after = loop_exit(point)
    if after is None:
        return None
    writer = _Writer(point, namespace, temporaries=len(point.stack))
    writer.restore()
    writer.emit("JUMP_FORWARD", jump=writer.label(point.index))
    writer.body(range(point.index - 1, after.point.index), lambda: writer.return_next_step(after, resume_for))
    return writer.function(f".loop_at_{point.index}")


def make_suspended(point: FramePoint, namespace: dict[str, Any], qualname: str) -> types.FunctionType:
    """Builds a function that returns a generator. The generator's first `next` starts at `point` and yields the topmost
    value.

    `point` is at a YIELD_VALUE of a generator function. The list of values includes the yielded value.
    """
    writer = _Writer(point, namespace, temporaries=len(point.stack), is_generator=True)
    writer.restore()
    writer.emit("JUMP_FORWARD", jump=writer.label(point.index))
    writer.body()
    function = writer.function("")
    function.__qualname__ = qualname
    return function


class _Writer:
    """Writes the operations of a break, resume or loop function, or of a generator function that is entered at a
    point."""

    def __init__(
        self, point: FramePoint, namespace: dict[str, Any], temporaries: int, *, is_generator: bool = False
    ) -> None:
        self.is_generator = is_generator
        self.point = point
        self.code = point.code
        self.namespace = namespace
        self.instructions = decode(point.code)
        self.positions = self.instructions[point.index].positions
        self.items: list[Item] = []
        self.constants: list[object] = []
        self.labels: dict[int, Label] = {}
        self.nlocals = len(self.code.co_varnames)
        # The list arrives in slot 0, which must therefore be a local.
        self.temporaries = [f".stack{k}" for k in range(max(temporaries, self.nlocals == 0))]
        self.slots = {name: self.shifted_slot(k) for k, name in enumerate(slot_names(self.code))}

    def shifted_slot(self, slot: int) -> int:
        """Returns the index of a user slot in the copy's frame, where the temporaries are between locals and cells."""
        return slot if slot < self.nlocals else slot + len(self.temporaries)

    def temporary(self, k: int) -> int:
        return self.nlocals + k

    def add(self, item: Item) -> None:
        self.items.append(item)

    def emit(self, opname: str, arg: int | None = None, jump: Label | None = None) -> None:
        """Adds an operation without a counterpart in the user's code, at the position of the user's instruction."""
        self.add(Op(opname, arg, jump, positions=self.positions))

    def constant(self, value: object) -> int:
        """Adds a constant and returns its index."""
        self.constants.append(value)
        return len(self.code.co_consts) + len(self.constants) - 1

    def label(self, index: int) -> Label:
        """Returns the label before instruction `index` of the body."""
        return self.labels.setdefault(index, Label())

    def restore(self) -> None:
        """Sets up the frame as the user's function does, then fills it from the list and empties the list."""
        created_cells = {i.argval for i in self.instructions[: first_index(self.code)] if i.opname == "MAKE_CELL"}
        for instruction in self.instructions[: first_index(self.code)]:
            self.copy(instruction, None)
        load_list = "LOAD_DEREF" if self.nlocals and slot_names(self.code)[0] in created_cells else "LOAD_FAST"
        self.emit(load_list, 0)
        self.emit("UNPACK_SEQUENCE", self.point.size)
        self.emit(load_list, 0)
        # Not a constant slice: profilers need a code object that can be hashed.
        for _ in range(2):
            self.emit("LOAD_CONST", self.constant(None))
        self.emit("BUILD_SLICE", 2)
        self.emit("DELETE_SUBSCR")
        filled = {*self.point.cells, *self.point.locals}
        for slot in {0} | {self.slots[name] for name in created_cells - filled}:
            self.emit("DELETE_FAST", slot)
        kinds = self.point.stack
        for name in self.point.cells:
            self.emit("STORE_FAST", self.slots[name])
        for k, kind in enumerate(kinds):
            if kind != NULL:
                self.emit("STORE_FAST", self.temporary(k))
        for name in self.point.locals:
            self.emit("STORE_FAST", self.slots[name])
        for k, kind in enumerate(kinds):
            if kind == NULL:
                self.emit("PUSH_NULL")
            else:
                self.emit("LOAD_FAST", self.temporary(k))
                self.emit("DELETE_FAST", self.temporary(k))

    def enter_region(self, index: int) -> None:
        """Adds a NOP to the region: Python 3.13 looks up the handler of a failing call by the code unit before the
        call."""
        region = self.region(self.instructions[index])
        if region:
            self.add(Op("NOP", region=region, positions=self.positions))

    def run(self, index: int, jump_taken: Label) -> None:
        """Adds instruction `index` in its protected region; a conditional jump leads to `jump_taken`."""
        instruction = self.instructions[index]
        if instruction.opname in UNCONDITIONAL_JUMPS:
            self.emit("JUMP_FORWARD", jump=jump_taken)
        elif instruction.method_form:
            self.load_attribute(instruction)
        elif instruction.target is not None:
            forward = instruction.opname.replace("BACKWARD", "FORWARD")
            self.add(Op(forward, None, jump_taken, self.region(instruction), instruction.positions))
        else:
            self.copy(instruction, None)

    def load_attribute(self, instruction: Instruction) -> None:
        """Adds an attribute load that always pushes the bound attribute and NULL. The method form pushes either of two
        layouts."""
        opname = "LOAD_ATTR" if instruction.opname == "LOAD_METHOD" else instruction.opname
        arg = instruction.arg or 0
        plain = arg if instruction.opname == "LOAD_METHOD" else arg & ~1
        self.add(Op(opname, plain, region=self.region(instruction), positions=instruction.positions))
        self.emit("PUSH_NULL")
        if not NULL_ABOVE_CALLABLE:
            self.emit("SWAP", 2)

    def return_next_step(self, exit: Exit, resume_for: Callable[[FramePoint], object]) -> None:
        """Adds the return of the step that continues at exit `exit`, and of the frame's values in a list."""
        point = exit.point
        for k in reversed(range(len(point.stack))):
            self.emit("STORE_FAST", self.temporary(k))
        self.emit("LOAD_CONST", self.constant(resume_for(point)))
        for name in point.cells:
            self.emit(_LOAD_SLOT, self.slots[name])
        for k, kind in enumerate(point.stack):
            if kind != NULL:
                self.emit(_LOAD_SLOT, self.temporary(k))
        for name in point.locals:
            self.emit(_LOAD_SLOT, self.slots[name])
        self.emit("BUILD_LIST", point.size)
        self.emit("BUILD_TUPLE", 2)
        self.emit("RETURN_VALUE")

    def body(self, loop: range = range(0), leave: Callable[[], None] = lambda: None) -> None:
        """Adds the user's function without its set-up. Jumps from the instructions `loop` to the instruction after them
        lead to the operations that `leave` adds."""
        after_loop = Label()
        targets = {i.target for i in self.instructions} | {i.handler.target for i in self.instructions if i.handler}
        for instruction in self.instructions[first_index(self.code) :]:
            if loop and instruction.index == loop.stop:
                self.add(after_loop)
                leave()
            if instruction.index in targets or instruction.index in self.labels:
                self.add(self.label(instruction.index))
            jump = None
            if instruction.target is not None:
                skipped = len(EXHAUSTED_SKIP) if instruction.opname == "FOR_ITER" else 0
                target = instruction.target - skipped
                jump = after_loop if instruction.index in loop and target == loop.stop else self.label(target)
            self.copy(instruction, jump)

    def copy(self, instruction: Instruction, jump: Label | None) -> None:
        """Adds the instruction with its region. Slots are renumbered; a return returns `(None, value)`."""
        region = self.region(instruction)

        def add(opname: str, arg: int | None = None, to: Label | None = None) -> None:
            self.add(Op(opname, arg, to, region, instruction.positions))

        if instruction.opname in ("RETURN_VALUE", "RETURN_CONST") and not self.is_generator:
            if instruction.opname == "RETURN_CONST":
                add("LOAD_CONST", instruction.arg)
            add("LOAD_CONST", self.constant(None))
            add("SWAP", 2)
            add("BUILD_TUPLE", 2)
            add("RETURN_VALUE")
        elif instruction.opname in DUAL_OPS:
            for opname, name in zip(DUAL_OPS[instruction.opname], instruction.argval):
                add(opname, self.slots[name])
        elif instruction.touches_slot:
            add(instruction.opname, self.shifted_slot(instruction.arg or 0))
        elif instruction.target is not None:
            add(instruction.opname, None, jump)
        else:
            add(instruction.opname, instruction.arg)

    def region(self, instruction: Instruction) -> Region | None:
        handler = instruction.handler
        return Region(self.label(handler.target), handler.depth, handler.lasti) if handler else None

    def function(self, suffix: str) -> types.FunctionType:
        code = assemble(
            self.items,
            self.code,
            suffix=suffix,
            temporaries=self.temporaries,
            constants=self.constants,
            stacksize=self.code.co_stacksize + len(self.slots) + _SPARE_STACK,
        )
        closure = tuple(types.CellType() for _ in code.co_freevars)
        function = types.FunctionType(code, self.namespace, code.co_name, None, closure)
        mark_boxed(function)
        return function
