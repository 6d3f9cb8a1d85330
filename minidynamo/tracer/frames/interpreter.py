"""Owns one symbolic frame: stack, locals, cells, current instruction, and the step to the next instruction.

Knows no opcode: the functions in `opcodes/` act on a `Frame`. Decides nothing about calls: `tx` does.
"""

from __future__ import annotations

import dis
import linecache
from collections.abc import Mapping
from types import CodeType
from typing import Any, NoReturn

from minidynamo.bytecode.instructions import Instruction, decode, location
from minidynamo.errors import Diagnostic, SkipFrame, UserLocation
from minidynamo.guards.guard import GuardKind
from minidynamo.guards.source import CellContents, Source
from minidynamo.tracer.frames.exceptions import Raised, set_context
from minidynamo.tracer.opcodes.table import OPCODES, UNSUPPORTED
from minidynamo.tracer.protocol import Tracer
from minidynamo.tracer.records.traced_frame import Null
from minidynamo.variables.base import VariableTracker
from minidynamo.variables.callables import CellVariable
from minidynamo.variables.constants import ConstantVariable
from minidynamo.variables.exceptions import ExceptionVariable

NULL = Null()
# From 3.12 on, the exhausted iterator of a `yield from` stays below the value until END_SEND.
_HAS_END_SEND = "END_SEND" in dis.opmap
STEP_LIMIT = 500_000


class FrameChain:
    """The frames of one trace, the root first, and their common limit of instructions."""

    def __init__(self, steps: int = STEP_LIMIT) -> None:
        self.frames: list[Frame] = []
        #: the number of instructions that the frames may still interpret
        self.steps_left = steps
        #: every exception raised by the program in these frames, in order
        self.raised: dict[ExceptionVariable, Raised] = {}
        #: the started generators
        self.generators: list[VariableTracker] = []
        #: whether an operation of the graph has a `try` or `with` around it, in any frame; `user_may_catch`: in a frame
        #: of the user
        self.emits_in_try = self.user_may_catch = False

    @property
    def handled(self) -> VariableTracker | None:
        """The exception handled at present, in the innermost frame with a handler at work."""
        return next((frame.handled for frame in reversed(self.frames) if frame.handled is not None), None)

    def throw(self, exception: ExceptionVariable, diagnostic: Diagnostic) -> NoReturn:
        """Raises an exception in the program; `diagnostic` is the message to the user if no frame handles it."""
        set_context(exception, self.handled)
        exception.is_raised = True
        self.raised[exception] = Raised(exception, diagnostic, in_callee=len(self.frames) > 1)
        raise self.raised[exception]


class Frame:
    """A Python frame whose values are trackers.

    Locals and stack slots may be lazy: `pop` and `read_local` realize. Values that are only moved need no guard.
    """

    def __init__(
        self,
        tx: Tracer,
        code: CodeType,
        namespace: dict[str, Any],
        local_slots: dict[str, VariableTracker],
        cells: dict[str, CellVariable],
        chain: FrameChain,
        *,
        trusted: bool = False,
        index: int = 0,
    ) -> None:
        self.chain = chain
        self.tx = tx
        self.code = code
        self.namespace = namespace
        self.local_slots = local_slots
        self.cells = cells
        #: whether the frame runs library code, whose functions, classes and modules are not guarded
        self.trusted = trusted
        self.instructions = decode(code)
        linecache.lazycache(code.co_filename, namespace)  # for messages about modules in archives
        self.index = index
        self.next_index = index
        self.stack: list[VariableTracker | Null] = []
        #: set by KW_NAMES for the next call
        self.keyword_names: tuple[str, ...] = ()
        #: set by the instruction that returns
        self.result: VariableTracker | None = None
        self.yielded: VariableTracker | None = None
        #: the exception for which a handler of this frame is at work
        self.handled: VariableTracker | None = None
        #: the values with which a root frame was entered, by source
        self.entry_values: dict[Source, Any] = {}
        #: arguments, or parts of arguments, that no local holds any more
        self.lost: list[Any] = []
        #: the arguments that may die before the frame ends, by source
        self.temporary: dict[Source, Any] = {}

    def forget_values(self) -> None:
        """Drops all values at the end of the trace."""
        self.stack.clear()
        self.entry_values.clear()
        self.lost.clear()
        self.temporary.clear()
        self.local_slots.clear()
        self.cells.clear()

    @property
    def instruction(self) -> Instruction:
        """The current instruction, or the last instruction of a finished frame."""
        return self.instructions[self.index]

    @property
    def location(self) -> UserLocation:
        """The user's line of the current instruction."""
        return location(self.code, self.index)

    @property
    def is_polyfill(self) -> bool:
        """True if the frame runs a polyfill."""
        return str(self.namespace.get("__name__")).partition(".")[0] == "minidynamo"

    @property
    def local_variables(self) -> Mapping[str, VariableTracker]:
        """The bound plain locals, and the contents of filled cells, by name."""
        contents = {name: self.read_cell(cell) for name, cell in self.cells.items()}
        filled = {name: value for name, value in contents.items() if value is not None}
        return {**{name: value.realized() for name, value in self.local_slots.items()}, **filled}

    def held(self) -> list[VariableTracker]:
        """Returns all values on the stack, in locals and in cells, including lazy values."""
        return [*self.on_stack(), *self.local_slots.values(), *self.cells.values()]

    def on_stack(self) -> list[VariableTracker]:
        """Returns the values on the stack, bottom first."""
        return [value for value in self.stack if not isinstance(value, Null)]

    @property
    def offset(self) -> int:
        """The frame's position in the bytecode."""
        return self.instruction.offset

    def read(self, name: str) -> VariableTracker | None:
        """Returns the value of the local, cell or free variable `name`; None if it is unbound."""
        return self.read_cell(self.cells[name]) if name in self.cells else self.read_local(name)

    def read_cell(self, cell: CellVariable) -> VariableTracker | None:
        """Returns the contents of a cell, after reading a real cell at first use; None for an empty cell."""
        value = self.lazy_cell(cell)
        if value is not None:
            cell.contents = value = value.realize()
        return value

    def lazy_cell(self, cell: CellVariable) -> VariableTracker | None:
        """Returns the contents of a cell, maybe as a lazy value."""
        if cell.contents is None and cell.cell is not None and not self.tx.side_effects.is_written(cell):
            try:
                value = cell.cell.cell_contents
            except ValueError:
                self.tx.guard(cell.source, GuardKind.CELL_EMPTY)
                return None
            return self.tx.lazy(value, CellContents(cell.source)) if cell.source else self.tx.wrap(value, None)
        return cell.contents

    def read_local(self, name: str) -> VariableTracker | None:
        """Returns the value of a plain local; None if it is not bound."""
        value = self.local_slots.get(name)
        if value is not None:
            value = self.local_slots[name] = value.realize()
        return value

    def write_local(self, name: str, value: VariableTracker | None) -> None:
        """Binds a plain local, or unbinds it with None."""
        if value is None:
            self.local_slots.pop(name, None)
        else:
            self.local_slots[name] = value

    def step(self) -> None:
        """Interprets one instruction."""
        self.chain.steps_left -= 1
        if self.chain.steps_left < 0:
            what = f"{self.code.co_name} runs more than {STEP_LIMIT} instructions while it is traced"
            raise SkipFrame(Diagnostic("MD221", what, why="A loop is unrolled into the graph.", where=self.location))
        self.index = index = self.next_index
        self.next_index = index + 1
        instruction = self.instructions[index]
        function = OPCODES.get(instruction.opname)
        if function is None:
            reason = UNSUPPORTED[instruction.opname]
            self.tx.break_graph("MD203", f"the instruction {instruction.opname} cannot be captured", why=reason)
        function(self, instruction)

    def run(self) -> VariableTracker:
        """Interprets until the frame returns. Returns its result."""
        self.resume()
        assert self.result is not None
        return self.result

    def resume(self) -> VariableTracker | None:
        """Interprets until the frame returns or yields. Returns the yielded value, None after a return."""
        self.yielded = None
        self.chain.frames.append(self)
        while self.result is None and self.yielded is None:
            try:
                self.step()
            except Raised as raised:
                if not self.handles(raised):
                    self.chain.frames.pop()
                    self.result = ConstantVariable(None)  # a generator ends here
                    raise
        self.chain.frames.pop()
        return self.yielded

    def handles(self, raised: Raised) -> bool:
        """Continues at the handler of the current instruction. Returns False if there is no handler."""
        handler = self.instruction.handler
        if handler is None:
            return False
        del self.stack[handler.depth :]
        if handler.lasti:
            self.push(ConstantVariable(self.instruction.offset // 2))
        self.push(raised.exception)
        self.jump(handler.target)
        return True

    def end_delegation(self, send: Instruction, returned: VariableTracker) -> None:
        """Continues after a `yield from` whose iterator, on top of the stack, has returned."""
        if not _HAS_END_SEND:
            self.pop()
        self.push(returned)
        self.jump(send.target)

    def forget_message(self, exception: ExceptionVariable) -> None:
        """Drops the message of an exception that a polyfill raises: the original function may word it differently."""
        if self.is_polyfill:
            exception.args, exception.text = None, None
            exception.fields.clear()

    def jump(self, target: int | None) -> None:
        """Continues at instruction `target`."""
        assert target is not None
        self.next_index = target

    def push(self, variable: VariableTracker | Null) -> None:
        """Pushes a value or NULL."""
        self.stack.append(variable)

    def pop(self) -> VariableTracker:
        """Pops and realizes the top value, which must not be NULL."""
        variable = self.stack.pop()
        assert not isinstance(variable, Null)
        return variable.realize()

    def pop_lazy(self) -> VariableTracker:
        """Pops the top value, which must not be NULL, without realizing."""
        variable = self.stack.pop()
        assert not isinstance(variable, Null)
        return variable

    def pop_many(self, count: int) -> list[VariableTracker]:
        """Pops and realizes the top `count` values, the lowest first."""
        return [variable.realize() for variable in self.pop_many_lazy(count)]

    def pop_many_lazy(self, count: int) -> list[VariableTracker]:
        """Pops the top `count` values, the lowest first, without realizing."""
        start = len(self.stack) - count
        taken = self.stack[start:]
        del self.stack[start:]
        return [variable for variable in taken if not isinstance(variable, Null)]

    def peek(self, depth: int = 1) -> Any:
        """Returns the value `depth` slots from the top (1 is the top), realized."""
        variable = self.stack[-depth]
        if not isinstance(variable, Null):
            variable = self.stack[-depth] = variable.realize()
        return variable
