"""Owns the state of a trace: `Tracer`, called `tx` everywhere, and its symbolic frames, which step through
instructions.

Knows no opcode: the functions in `opcodes/` act on a `Frame`. Decides nothing about calls: `capture/trace.py` does.
"""

from __future__ import annotations

import dis
import linecache
import weakref
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from collections.abc import Set as AbstractSet
from types import CodeType
from typing import Any, NoReturn, ParamSpec, TypeVar

import torch.fx

from minidynamo import compat
from minidynamo.bytecode.analysis import is_in_try
from minidynamo.bytecode.instructions import Instruction, decode, location
from minidynamo.errors import Diagnostic, GraphBreak, SkipFrame, UserLocation
from minidynamo.guards.guard import GuardKind
from minidynamo.guards.profile import FrameProfile
from minidynamo.guards.source import CellContents, Source
from minidynamo.tracer.graph.output_graph import OutputGraph
from minidynamo.tracer.opcodes.table import OPCODES, UNSUPPORTED
from minidynamo.tracer.records.side_effects import SideEffects
from minidynamo.tracer.records.traced_frame import Null, TakenLock
from minidynamo.variables.base import ConstantVariable, VariableTracker
from minidynamo.variables.callables import CellVariable
from minidynamo.variables.objects import ExceptionVariable

NULL = Null()
# From 3.12 on, the exhausted iterator of a `yield from` stays below the value until END_SEND.
_HAS_END_SEND = "END_SEND" in dis.opmap
STEP_LIMIT = 500_000


P = ParamSpec("P")
T = TypeVar("T")


def weakly(method: Callable[P, T | None]) -> Callable[P, T | None]:
    """Returns a bound method without a reference to the object: a trace is then freed at once, not by the garbage
    collector."""
    reference = weakref.WeakMethod(method)

    def called(*args: P.args, **kwargs: P.kwargs) -> T | None:
        alive = reference()
        return None if alive is None else alive(*args, **kwargs)

    return called


def set_context(exception: ExceptionVariable, handled: VariableTracker | None) -> None:
    """Links a raised exception to the exception being handled, as Python does, and keeps the chain free of cycles."""
    if handled is None or handled is exception:
        return
    link: VariableTracker | None = handled
    while isinstance(link, ExceptionVariable):
        if link.context is exception:
            link.context = None
        link = link.context
    exception.context = handled


class Raised(Exception):
    """The program raises `exception`, and a traced frame may handle it."""

    def __init__(self, exception: ExceptionVariable, diagnostic: Diagnostic, *, in_callee: bool) -> None:
        super().__init__(diagnostic.what)
        self.exception = exception
        #: the message to the user if no frame handles the exception
        self.diagnostic = diagnostic
        #: whether it was raised below the root frame
        self.in_callee = in_callee

    def of(self, exception: ExceptionVariable) -> Raised:
        """Returns the same error for a replacement of the exception."""
        exception.is_raised = True
        return Raised(exception, self.diagnostic, in_callee=self.in_callee)


class Tracer(ABC):
    """The state of one attempt to trace a frame, and the operations of handlers on it. It is called `tx` everywhere.

    `Trace` (`capture/trace.py`) implements the abstract methods. `OutputGraph` explains `steal`, `starred` and
    `profile`, `FrameRequest` explains `may_assert`.
    """

    def __init__(
        self,
        attempt: int,
        steal: frozenset[Source] = frozenset(),
        starred: frozenset[Source] = frozenset(),
        profile: FrameProfile | None = None,
        *,
        may_assert: bool = False,
    ) -> None:
        #: 0 in the first trace of a frame, 1 in later traces, which repeat no message of the first
        self.attempt = attempt
        #: the frames being traced, the root first, the innermost last
        self.frames: list[Frame] = []
        #: the graph under construction
        self.graph = OutputGraph(weakly(self.location), steal, starred, profile, may_assert=may_assert)
        #: the journal
        self.side_effects = SideEffects(starred)
        #: as in `FrameRequest`
        self.refused_positions: Mapping[tuple[CodeType, int], str] = {}
        #: the lock that the frame takes; None if it takes none
        self.lock: TakenLock | None = None
        #: as in `FrameRequest`
        self.early_reads: AbstractSet[tuple[CodeType, int]] = frozenset()
        #: the node of each read of numbers in the graph -> its code object and index
        self.data_reads: dict[torch.fx.Node, tuple[CodeType, int]] = {}
        #: the text of the graph of an early read -> the function that computes its numbers
        self.early_functions: dict[str, Callable[..., Any]] = {}
        #: takes the trace at its end, for each line that is printed or logged after the graph; abandons the trace if
        #: the program could see the difference
        self.output_checks: list[Callable[[Tracer], None]] = []
        #: the number of instructions that the frames may still interpret
        self.steps_left = STEP_LIMIT
        #: every exception raised by the program, in order
        self.raised: dict[ExceptionVariable, Raised] = {}
        #: the active torch function modes, which all turn subscripts into index operations
        self.function_modes: list[VariableTracker] = []
        #: the number of open blocks in which torch does not call the `__torch_function__` of classes
        self.blocks_without_overrides = 0 if compat.are_overrides_enabled() else 1
        #: the started generators
        self.generators: list[VariableTracker] = []
        #: whether an operation of the graph has a `try` or `with` around it, in any frame
        self.emits_in_try = False
        #: whether an operation of the graph has a `try` or `with` around it, in a frame of the user
        self.user_may_catch = False

    def record_handlers(self) -> None:
        """Records whether a `try` or `with` is around the operation that the graph has received last."""
        if not self.user_may_catch:
            in_try = [frame for frame in self.frames if is_in_try(frame.code, frame.index)]
            self.emits_in_try |= bool(in_try)
            self.user_may_catch = not all(frame.trusted for frame in in_try)

    @abstractmethod
    def call(
        self,
        function: VariableTracker | Callable[..., Any],
        args: Sequence[VariableTracker] = (),
        kwargs: Mapping[str, VariableTracker] | None = None,
        *,
        lazy: bool = False,
    ) -> VariableTracker:
        """Calls anything. A real callable (`operator.add`, a polyfill) is accepted in place of its tracker, trusted and
        unguarded.

        `lazy`: the caller only moves the result, so the result may be lazy.
        """

    @abstractmethod
    def call_method(
        self,
        obj: VariableTracker,
        name: str,
        args: Sequence[VariableTracker] = (),
        kwargs: Mapping[str, VariableTracker] | None = None,
        *,
        lazy: bool = False,
    ) -> VariableTracker:
        """Calls a special method as Python does: found on the class, never on the instance. `lazy` as in `call`."""

    @abstractmethod
    def getattr(self, obj: VariableTracker, name: str) -> VariableTracker:
        """Returns `obj.name`, by Python's own lookup order, user code included; a missing attribute raises
        AttributeError in the program."""

    @abstractmethod
    def lazy(self, value: object, source: Source) -> VariableTracker:
        """Returns the tracker of an external value if there is one; else a lazy value, with a guard that the source
        exists."""

    @abstractmethod
    def wrap(self, value: object, source: Source | None) -> VariableTracker:
        """Returns the tracker of the real value at `source`, and installs guards.

        Without a source only constants, trusted functions, classes and modules can be wrapped.
        """

    @abstractmethod
    def emit(
        self,
        target: Callable[..., Any] | str,
        args: Sequence[VariableTracker],
        kwargs: Mapping[str, VariableTracker] | None = None,
    ) -> VariableTracker:
        """Adds a call to the graph (a Tensor method if `target` is a name) and returns the tracker of its result."""

    @abstractmethod
    def raises(
        self, error: BaseException | ExceptionVariable, *, exact: bool = False, **fields: VariableTracker
    ) -> NoReturn:
        """Raises an error in the program: during tracing if `exact`, else by a graph cut, so that Python itself raises.

        `exact`: Python would raise an error of this class with these `args`. A tracked exception is raised as it is.
        """

    @abstractmethod
    def truth(self, obj: VariableTracker) -> bool:
        """Returns `bool(obj)`; breaks the graph if the truth is known only when the graph runs."""

    @abstractmethod
    def unpack(self, obj: VariableTracker) -> list[VariableTracker]:
        """Returns `list(obj)`: all items of an iteration."""

    def guard(self, source: Source | None, kind: GuardKind, expected: object = None) -> None:
        """Adds a guard. Does nothing for a value created during tracing (no source)."""
        if source is not None:
            self.graph.guard(source, kind, expected)

    def location(self) -> UserLocation | None:
        """Returns the innermost line of the user's code; inside a compiled torch module, the line in torch."""
        of_user = [frame for frame in self.frames if not frame.trusted]
        candidates = of_user or [frame for frame in self.frames if not frame.is_polyfill] or self.frames[:1]
        return candidates[-1].location if candidates else None

    def break_graph(self, code: str, what: str, *, why: str = "", fix: str = "", marker: str = "") -> NoReturn:
        """Cuts the graph before the current instruction of the root frame, which then runs eagerly."""
        raise GraphBreak(Diagnostic(code, f"graph break: {what}", why, fix, marker, self.location()))

    @property
    def handled(self) -> VariableTracker | None:
        """The exception that is being handled, in the innermost frame with an active handler."""
        return next((frame.handled for frame in reversed(self.frames) if frame.handled is not None), None)

    def throw(self, exception: ExceptionVariable, diagnostic: Diagnostic) -> NoReturn:
        """Raises a tracked exception in the program; `diagnostic` is the message to the user if no frame handles it."""
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
        *,
        trusted: bool = False,
        index: int = 0,
    ) -> None:
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
        #: the callable of the last call instruction
        self.callee: VariableTracker | None = None
        #: set by the instruction that returns
        self.result: VariableTracker | None = None
        self.yielded: VariableTracker | None = None
        #: the exception for which a handler of this frame is at work
        self.handled: VariableTracker | None = None
        #: the values with which a root frame was entered, by source
        self.entry_values: dict[Source, Any] = {}
        #: arguments, and parts of arguments, that no local holds any more, by source
        self.dropped: dict[Source, Any] = {}
        #: the arguments that may die before the frame ends, by source
        self.temporary: dict[Source, Any] = {}

    def forget_values(self) -> None:
        """Drops all values at the end of the trace."""
        self.stack.clear()
        self.callee = None
        self.entry_values.clear()
        self.dropped.clear()
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
        self.tx.steps_left -= 1
        if self.tx.steps_left < 0:
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
        self.tx.frames.append(self)
        while self.result is None and self.yielded is None:
            try:
                self.step()
            except Raised as raised:
                if not self.handles(raised):
                    self.tx.frames.pop()
                    self.result = ConstantVariable(None)  # a generator ends here
                    raise
        self.tx.frames.pop()
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
        popped = self.stack[start:]
        del self.stack[start:]
        return [variable for variable in popped if not isinstance(variable, Null)]

    def peek(self, depth: int = 1) -> Any:
        """Returns the value `depth` slots from the top (1 is the top), realized."""
        variable = self.stack[-depth]
        if not isinstance(variable, Null):
            variable = self.stack[-depth] = variable.realize()
        return variable
