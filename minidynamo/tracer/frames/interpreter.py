"""Owns one symbolic frame: its stack, locals and cells, where it is, and the step from one instruction to the next.

It knows no opcode; the functions in `opcodes/` act on a `Frame`. It decides nothing about calls: `tx` does.
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
from minidynamo.tracer.lazy.lazy_value import realize, realized
from minidynamo.tracer.opcodes.table import OPCODES, UNSUPPORTED
from minidynamo.tracer.protocol import Tracer
from minidynamo.tracer.records.traced_frame import Null
from minidynamo.variables.base import VariableTracker
from minidynamo.variables.callables import CellVariable
from minidynamo.variables.constants import ConstantVariable
from minidynamo.variables.exceptions import ExceptionVariable
from minidynamo.variables.objects import LazyVariable

NULL = Null()
# Since 3.12 the exhausted iterator of a `yield from` stays below the value until END_SEND.
_HAS_END_SEND = "END_SEND" in dis.opmap
STEP_LIMIT = 500_000


class FrameChain:
    """The frames of one trace, the root first, and how many more instructions they may interpret together.

    `raised` has every exception that the program raised in them, in order; `emits_in_try`: an operation of the graph
    has a `try` or `with` around it, in any of them, `awaits_errors` in one of the user's; `generators` those that have
    started.
    """

    def __init__(self, steps: int = STEP_LIMIT) -> None:
        self.frames: list[Frame] = []
        self.steps_left = steps
        self.raised: dict[ExceptionVariable, Raised] = {}
        self.generators: list[VariableTracker] = []
        self.emits_in_try = self.awaits_errors = False

    @property
    def handled(self) -> VariableTracker | None:
        """The exception that the program is handling, in the innermost frame that handles one."""
        return next((frame.handled for frame in reversed(self.frames) if frame.handled is not None), None)

    def throw(self, exception: ExceptionVariable, diagnostic: Diagnostic) -> NoReturn:
        """Raise an exception; `diagnostic` is what the user is told when no frame handles it."""
        set_context(exception, self.handled)
        exception.is_raised = True
        self.raised[exception] = Raised(exception, diagnostic, in_callee=len(self.frames) > 1)
        raise self.raised[exception]


class Frame:
    """A Python frame whose values are trackers.

    `trusted` frames run library code, whose functions, classes and modules are not guarded. Locals and stack slots of a
    frame may be unread: `pop` and `read_local` look at them, so what the program only moves needs no guard.
    `result` is set by the instruction that returns; `keyword_names` by KW_NAMES for the call that follows. `handled` is
    the exception that a handler of this frame is at work on. `arrived` has the values that a root frame was entered
    with, by their places; `lost` those, and parts of them, that no local holds any more; `temporary` those that may die
    before the frame ends.
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
        self.trusted = trusted
        self.instructions = decode(code)
        linecache.lazycache(code.co_filename, namespace)  # messages show lines of modules in archives, too
        self.index = index
        self.next_index = index
        self.stack: list[VariableTracker | Null] = []
        self.keyword_names: tuple[str, ...] = ()
        self.result: VariableTracker | None = None
        self.yielded: VariableTracker | None = None
        self.handled: VariableTracker | None = None
        self.arrived: dict[Source, Any] = {}
        self.lost: list[Any] = []
        self.temporary: dict[Source, Any] = {}

    def forget_values(self) -> None:
        """Let go of what the frame holds, at the end of the trace."""
        self.stack.clear()
        self.arrived.clear()
        self.lost.clear()
        self.temporary.clear()
        self.local_slots.clear()
        self.cells.clear()

    @property
    def instruction(self) -> Instruction:
        """The instruction that is being, or was last, interpreted."""
        return self.instructions[self.index]

    @property
    def location(self) -> UserLocation:
        """The user's place of that instruction."""
        return location(self.code, self.index)

    @property
    def is_ours(self) -> bool:
        """Whether it runs the twin of a library function."""
        return str(self.namespace.get("__name__")).partition(".")[0] == "minidynamo"

    @property
    def local_variables(self) -> Mapping[str, VariableTracker]:
        """The bound plain locals, and the contents of filled cells, by name."""
        contents = {name: self.read_cell(cell) for name, cell in self.cells.items()}
        filled = {name: value for name, value in contents.items() if value is not None}
        return {**{name: realized(self.tx, value) for name, value in self.local_slots.items()}, **filled}

    def held(self) -> list[VariableTracker]:
        """What is on the stack, in locals and in cells, unread values included."""
        return [*self.on_stack(), *self.local_slots.values(), *self.cells.values()]

    def on_stack(self) -> list[VariableTracker]:
        """The values on the stack, bottom first."""
        return [value for value in self.stack if not isinstance(value, Null)]

    @property
    def offset(self) -> int:
        """Where in the bytecode the frame is."""
        return self.instruction.offset

    def read(self, name: str) -> VariableTracker | None:
        """What the local, cell or free variable `name` holds; None when it holds nothing."""
        return self.read_cell(self.cells[name]) if name in self.cells else self.read_local(name)

    def read_cell(self, cell: CellVariable) -> VariableTracker | None:
        """What a cell holds, looking into a real one when the program has not done so yet; None when it is empty."""
        value = self.unread_cell(cell)
        if value is not None:
            cell.contents = value = self.realize(value)
        return value

    def unread_cell(self, cell: CellVariable) -> VariableTracker | None:
        """What a cell holds, for who only moves it."""
        if cell.contents is None and cell.cell is not None and not self.tx.side_effects.is_written(cell):
            try:
                value = cell.cell.cell_contents
            except ValueError:
                self.tx.guard(cell.source, GuardKind.CELL_EMPTY)
                return None
            return self.tx.graph.lazy(value, CellContents(cell.source)) if cell.source else self.tx.wrap(value, None)
        return cell.contents

    def realize(self, variable: VariableTracker) -> VariableTracker:
        """The tracker to work with; an unread value is wrapped, and guarded, now."""
        return realize(self.tx, variable)

    def read_local(self, name: str) -> VariableTracker | None:
        """The value of a plain local; None when it is not bound."""
        value = self.local_slots.get(name)
        if isinstance(value, LazyVariable):
            value = self.local_slots[name] = self.realize(value)
        return value

    def write_local(self, name: str, value: VariableTracker | None) -> None:
        """Bind a plain local, or unbind it with None."""
        if value is None:
            self.local_slots.pop(name, None)
        else:
            self.local_slots[name] = value

    def step(self) -> None:
        """Interpret one instruction."""
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
        """Interpret until the frame returns; gives its result."""
        self.resume()
        assert self.result is not None
        return self.result

    def resume(self) -> VariableTracker | None:
        """Interpret until the frame returns or yields; gives what it yields, None when it returned."""
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
        """Go on at the handler of the current instruction, if it has one."""
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
        """Go on behind a `yield from`, whose iterator lies on top of the stack and has returned."""
        if not _HAS_END_SEND:
            self.pop()
        self.push(returned)
        self.jump(send.target)

    def forget_words(self, exception: ExceptionVariable) -> None:
        """Twins of library functions raise what their originals do, but may say it in other words."""
        if self.is_ours:
            exception.args, exception.text = None, None
            exception.fields.clear()

    def jump(self, target: int | None) -> None:
        """Go on at instruction `target`."""
        assert target is not None
        self.next_index = target

    def push(self, variable: VariableTracker | Null) -> None:
        """Put a value (or NULL) on top of the stack."""
        self.stack.append(variable)

    def pop(self) -> VariableTracker:
        """Take the top value, which is not NULL, to look at it."""
        variable = self.stack.pop()
        assert not isinstance(variable, Null)
        return self.realize(variable)

    def move(self) -> VariableTracker:
        """Take the top value, which is not NULL, without looking at it."""
        variable = self.stack.pop()
        assert not isinstance(variable, Null)
        return variable

    def pop_many(self, count: int) -> list[VariableTracker]:
        """Take the top `count` values, the lowest first."""
        return [self.realize(variable) for variable in self.pop_many_lazy(count)]

    def pop_many_lazy(self, count: int) -> list[VariableTracker]:
        """Take the top `count` values, the lowest first, without looking at them."""
        start = len(self.stack) - count
        taken = self.stack[start:]
        del self.stack[start:]
        return [variable for variable in taken if not isinstance(variable, Null)]

    def peek(self, depth: int = 1) -> Any:
        """The value `depth` places from the top (1 is the top), to look at it."""
        variable = self.stack[-depth]
        if isinstance(variable, LazyVariable):
            variable = self.stack[-depth] = self.realize(variable)
        return variable
