"""Owns where a root frame can be cut, and what is known of it there.

It traces nothing; `frame.py` asks it where a trace has to end. How a frame is cut is in `bytecode/breaks.py`.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from types import FunctionType
from typing import NamedTuple

import torch

from minidynamo.bytecode.analysis import cannot_cut, group_of, live_locals, written_slots
from minidynamo.bytecode.instructions import location
from minidynamo.errors import Diagnostic, SkipFrame
from minidynamo.guards.profile import Line
from minidynamo.guards.source import Source
from minidynamo.tracer.capture.finalizers import is_held_behind, lives_on
from minidynamo.tracer.frames.interpreter import Frame
from minidynamo.tracer.lazy.lazy_value import realized
from minidynamo.tracer.opcodes.calls import callable_position
from minidynamo.tracer.reachable import reachable
from minidynamo.tracer.records.traced_frame import Break, Null
from minidynamo.tracer.trace_rules import is_trusted_module, runs_as_written
from minidynamo.variables.base import VariableTracker
from minidynamo.variables.callables import CellVariable, FunctionVariable, MethodVariable, NestedFunctionVariable
from minidynamo.variables.exceptions import ExceptionVariable
from minidynamo.variables.objects import LazyVariable, ModuleVariable


class Cut(NamedTuple):
    """Before which step of the root frame the trace ends, and whether what cannot go on is in a callee."""

    step: int
    in_callee: bool


class Cuts:
    """Where the root frame, at its present step, can be cut.

    Where an exception is in flight it cannot be. It is cut before the instruction that raised instead, and Python runs
    the handlers. `origins` has the last step before each raised exception, and before each stand-in was made, at which
    a cut was possible.

    In a loop whose number of turns varies it is cut in front of the loop: behind a cut within, each number would have a
    version.
    """

    def __init__(self, frame: Frame) -> None:
        self.frame = frame
        self.origins: dict[VariableTracker, Cut] = {}
        self._before_handlers: Cut | None = None
        self._unrolled: dict[Line, Cut | None] = {}

    def note_raised(self, step: int) -> None:
        """The program has raised exceptions in this step."""
        raised = self.frame.chain.raised
        new = [exception for exception in raised if exception not in self.origins]
        in_callee = raised[new[-1]].in_callee if new else True
        if self._possible() or self._before_handlers is None:
            self._before_handlers = Cut(self._first(step), in_callee)
        self.origins |= dict.fromkeys(new, self._before_handlers)

    def note_new(self, step: int) -> None:
        """Note the exceptions that were raised, the stand-ins that were made, and what was unrolled, in this step."""
        differing = self.frame.tx.graph.shapes.differing
        if len(differing) != len(self._unrolled):
            cut = Cut(self._first(step), True) if self._possible() else None
            self._unrolled |= dict.fromkeys(differing - self._unrolled.keys(), cut)
        raised, stand_ins = self.frame.chain.raised, self.frame.tx.side_effects.stand_ins
        if len(raised) + len(stand_ins) == len(self.origins):  # as in nearly all steps
            return
        if not self.origins.keys() >= raised.keys():
            self.note_raised(step)
        cut = Cut(self._first(step), True)
        if not self._possible() and self._before_handlers is not None:
            cut = self._before_handlers
        for stand_in in stand_ins:
            self.origins.setdefault(stand_in, cut)

    def before(self, step: int, in_callee: bool) -> Cut:
        """Where to cut for a break in this step."""
        cut = Cut(self._first(step), in_callee)
        if not self._possible() and self._before_handlers is not None:
            cut = self._before_handlers
        escaping = self.escaping(_values(self.frame, self.frame.index))
        return min([cut, *(self.origins[each] for each in escaping), *self._in_front_of_loops()])

    def in_front_of(self, cut: Cut) -> Cut:
        """Where to cut, now that the frame has come to `cut`: the instruction there may take what cannot be kept."""
        escaping = self.escaping(_values(self.frame, self.frame.next_index))
        return min([cut, *(self.origins[each] for each in escaping)])

    def _in_front_of_loops(self) -> list[Cut]:
        """Where what is looped over was made, for the loops around the present step whose number of turns varies."""
        if not self._unrolled:
            return []
        frame = self.frame
        here = frame.instructions[frame.index]
        around = [i for i in frame.instructions if i.opname == "FOR_ITER" and i.index <= here.index < (i.target or 0)]
        if any(called.code.co_name in _COMPREHENSIONS for called in frame.chain.frames[1:2]):
            around.append(here)
        places = [location(frame.code, i.index) for i in around]
        cuts = [self._unrolled.get((place.filename, place.lineno, "")) for place in places]
        return [cut for cut in cuts if cut is not None]

    def escaping(self, roots: Iterable[VariableTracker]) -> list[VariableTracker]:
        """The raised exceptions that outlive the graph, which has no tracebacks for them, and the stand-ins that do or
        were changed."""
        if not self.origins:
            return []
        found, _ = reachable(roots, self.frame.tx.side_effects)
        stand_ins = self.frame.tx.side_effects.stand_ins.items()
        changed = [v for v, stand_in in stand_ins if v in self.origins and stand_in.is_changed]
        return [*(v for v in found if v in self.origins), *changed]

    def diagnostic(self, escaping: VariableTracker) -> Diagnostic:
        """What the user is told of one of them."""
        stand_in = self.frame.tx.side_effects.stand_ins.get(escaping)
        if stand_in is not None:
            return stand_in.diagnostic
        assert isinstance(escaping, ExceptionVariable)
        what = f"graph break: a {escaping.cls.__name__} that was raised is kept"
        why = "Its traceback exists only when Python itself raises it."
        return Diagnostic("MD202", what, why, where=self.frame.chain.raised[escaping].diagnostic.where)

    def _possible(self) -> bool:
        return cannot_cut(self.frame.code, group_of(self.frame.code, self.frame.index).start) is None

    def _first(self, step: int) -> int:
        # A call may be several instructions; the cut is before the first of them.
        return step - (self.frame.index - group_of(self.frame.code, self.frame.index).start)


# Functions that are loops, until Python 3.12.
_COMPREHENSIONS = ("<listcomp>", "<setcomp>", "<dictcomp>")


def _values(frame: Frame, index: int) -> list[VariableTracker]:
    """What the frame still needs at an instruction."""
    live = live_locals(frame.code, index)
    plain = [value for name, value in frame.local_slots.items() if name in live]
    return [*(value for value in frame.stack if not isinstance(value, Null)), *plain, *frame.cells.values()]


def break_before(
    frame: Frame, title: str, diagnostic: Diagnostic, given_up: Collection[Source], *, in_callee: bool
) -> Break:
    """The end of a frame that is cut before its next instruction; `title` is what messages call it, `given_up` what is
    not held to its end."""
    code, index = frame.code, frame.next_index
    reason = cannot_cut(code, index)
    if reason is not None:
        what = f"{title} runs as written: it cannot be cut at a graph break"
        raise SkipFrame(Diagnostic("MD220", what, why=reason.capitalize() + ".", where=diagnostic.where))
    live = live_locals(code, index)
    cells = {name: CellVariable() for name in code.co_cellvars} | frame.cells
    dead = ((name, value) for name, value in frame.local_slots.items() if name not in live)
    bound_anew = written_slots(code, index)

    def stays(name: str, value: VariableTracker) -> bool:
        held = name not in bound_anew and value.source not in given_up and is_held_behind(frame, value)
        return held or lives_on(frame, value)

    lasting = frozenset(name for name, value in dead if stays(name, value))
    own = ((name, cells[name]) for name in code.co_cellvars)
    lasting |= {name for name, cell in own if cell.cell is not None or cell.contents is not None}
    live |= lasting
    return Break(
        index,
        tuple(value if isinstance(value, Null) else realized(frame.tx, value) for value in frame.stack),
        {name: realized(frame.tx, value) for name, value in frame.local_slots.items() if name in live},
        {name: cell for name, cell in cells.items() if name in live},
        diagnostic,
        _compiled_callee(frame, index) if in_callee else None,
        lasting,
    )


def _compiled_callee(frame: Frame, index: int) -> int | None:
    """Where on the stack the user's own callable is that could not be inlined."""
    last = frame.instructions[group_of(frame.code, index)[-1]]
    position = callable_position(frame, last)
    if position is None:
        return None
    callee = frame.stack[position]
    if isinstance(callee, LazyVariable):  # which function is called, the program does read
        callee = frame.realize(callee)
    function = callee.function if isinstance(callee, MethodVariable) else callee
    if _is_one_kernel(callee.receiver if isinstance(callee, MethodVariable) else callee):
        return None
    own = isinstance(function, FunctionVariable) and not _is_library(function.value)
    nested = isinstance(function, NestedFunctionVariable)
    return position if own or nested or isinstance(callee, ModuleVariable) or _is_forward(callee) else None


# Modules of torch whose forward is one call of a kernel: what comes before it is not worth a graph.
_ONE_KERNEL = (torch.nn.RNN, torch.nn.LSTM, torch.nn.GRU)


def _is_one_kernel(module: VariableTracker | Null) -> bool:
    """Whether it is such a module, and nothing of the user's runs around its forward."""
    if not isinstance(module, ModuleVariable) or module.cls not in _ONE_KERNEL or module.value is None:
        return False
    return not any(value for name, value in vars(module.value).items() if name.endswith("_hooks"))


# Methods of torch's modules that call other modules; the last one is DistributedDataParallel's.
_CALLS_MODULES = ("forward", "_run_ddp_forward")


def _is_forward(callee: VariableTracker | Null) -> bool:
    """Whether it is the forward of a module of torch: what it calls may be the user's own modules."""
    if not isinstance(callee, MethodVariable) or not isinstance(callee.receiver, ModuleVariable):
        return False
    function = callee.function
    if not isinstance(function, FunctionVariable) or function.value.__name__ not in _CALLS_MODULES:
        return False
    return not runs_as_written(function.value)


def _is_library(function: FunctionType) -> bool:
    return is_trusted_module(function.__module__) or runs_as_written(function)
