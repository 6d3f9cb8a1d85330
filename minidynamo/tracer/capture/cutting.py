"""Owns the choice of the instruction at which a root frame is cut, and the state of the frame at the cut.

Traces nothing: `frame.py` asks for the end of a trace. `bytecode/breaks.py` builds the functions that continue after a
cut.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from types import FunctionType
from typing import NamedTuple

import torch

from minidynamo.bytecode.analysis import group_of, live_locals, reason_against_cut, written_slots
from minidynamo.bytecode.instructions import location
from minidynamo.errors import Diagnostic, SkipFrame, an
from minidynamo.guards.profile import Line
from minidynamo.guards.source import Source
from minidynamo.tracer.capture.finalizers import is_visibly_alive, stays_bound_after_break
from minidynamo.tracer.capture.module_loops import stack_at_cut
from minidynamo.tracer.frames.interpreter import Frame
from minidynamo.tracer.opcodes.calls import callable_position
from minidynamo.tracer.reachable import reachable
from minidynamo.tracer.records.traced_frame import Break, Null
from minidynamo.tracer.trace_rules import is_never_inlined, is_trusted_module
from minidynamo.variables.base import VariableTracker
from minidynamo.variables.callables import (
    CellVariable,
    FunctionVariable,
    MethodVariable,
    NestedFunctionVariable,
    PartialVariable,
)
from minidynamo.variables.objects import ExceptionVariable, LazyVariable, ModuleVariable


class Cut(NamedTuple):
    """A step of the root frame before which the trace ends."""

    #: number of instructions that the root frame has interpreted before the cut
    step: int
    #: whether the unsupported instruction is in a callee
    in_callee: bool


class Cuts:
    """Finds the possible cuts of the root frame, from the present step backwards.

    A frame cannot be cut while an exception is in flight. The cut is then before the instruction that raised, and
    Python runs the handlers.

    A loop whose trip count varies from call to call is cut before the loop: a cut inside the loop would need one
    version per iteration.
    """

    def __init__(self, frame: Frame) -> None:
        self.frame = frame
        #: for each raised exception and each stand-in: the last possible cut before its creation
        self.origins: dict[VariableTracker, Cut] = {}
        #: the last possible cut before the instruction that raised
        self._before_handlers: Cut | None = None
        #: for each unrolled line with a varying trip count: the cut before the loop, None if none is possible
        self._unrolled: dict[Line, Cut | None] = {}

    def record_raised(self, step: int) -> None:
        """Records the cut for each exception raised in the present step."""
        raised = self.frame.tx.raised
        new = [exception for exception in raised if exception not in self.origins]
        in_callee = raised[new[-1]].in_callee if new else True
        if self._possible() or self._before_handlers is None:
            self._before_handlers = Cut(self._first_of_group(step), in_callee)
        self.origins |= dict.fromkeys(new, self._before_handlers)

    def record_new(self, step: int) -> None:
        """Records cuts for the exceptions raised, the stand-ins created and the loops unrolled in the present step."""
        differing = self.frame.tx.graph.shapes.differing
        if len(differing) != len(self._unrolled):
            cut = Cut(self._first_of_group(step), True) if self._possible() else None
            self._unrolled |= dict.fromkeys(differing - self._unrolled.keys(), cut)
        raised, stand_ins = self.frame.tx.raised, self.frame.tx.side_effects.stand_ins
        if len(raised) + len(stand_ins) == len(self.origins):  # as in nearly all steps
            return
        if not self.origins.keys() >= raised.keys():
            self.record_raised(step)
        cut = Cut(self._first_of_group(step), True)
        if not self._possible() and self._before_handlers is not None:
            cut = self._before_handlers
        for replaced in stand_ins:
            self.origins.setdefault(replaced, cut)

    def before(self, step: int, in_callee: bool) -> Cut:
        """Returns the cut for a graph break in the present step."""
        cut = Cut(self._first_of_group(step), in_callee)
        if not self._possible() and self._before_handlers is not None:
            cut = self._before_handlers
        escaping = self.escaping(_values(self.frame, self.frame.index))
        return min([cut, *(self.origins[each] for each in escaping), *self._before_loops()])

    def no_later_than(self, cut: Cut) -> Cut:
        """Returns `cut`, or an earlier cut if the instruction at `cut` reads a value that may not leave the graph."""
        escaping = self.escaping(_values(self.frame, self.frame.next_index))
        return min([cut, *(self.origins[each] for each in escaping)])

    def _before_loops(self) -> list[Cut]:
        """Returns a cut before each loop around the present step whose trip count varies."""
        if not self._unrolled:
            return []
        frame = self.frame
        present = frame.instructions[frame.index]
        loops = [i for i in frame.instructions if i.opname == "FOR_ITER" and i.index <= present.index < (i.target or 0)]
        if any(called.code.co_name in _COMPREHENSIONS for called in frame.tx.frames[1:2]):
            loops.append(present)
        lines = [location(frame.code, loop.index) for loop in loops]
        cuts = [self._unrolled.get((line.filename, line.lineno, "")) for line in lines]
        return [cut for cut in cuts if cut is not None]

    def escaping(self, roots: Iterable[VariableTracker]) -> list[VariableTracker]:
        """Returns the raised exceptions that outlive the graph, because a graph has no tracebacks; and the stand-ins
        that were changed, or that outlive the graph, perhaps by a method of a class."""
        if not self.origins:
            return []
        found, effects = reachable(roots, self.frame.tx.side_effects)
        found += self.frame.tx.side_effects.bound_to_trace(found, effects)
        stand_ins = self.frame.tx.side_effects.stand_ins.items()
        changed = [v for v, stand_in in stand_ins if v in self.origins and stand_in.is_changed]
        return [*(v for v in found if v in self.origins), *changed]

    def diagnostic(self, escaping: VariableTracker) -> Diagnostic:
        """Returns the message to the user for a value of `escaping`."""
        stand_in = self.frame.tx.side_effects.stand_ins.get(escaping)
        if stand_in is not None:
            return stand_in.diagnostic
        assert isinstance(escaping, ExceptionVariable)
        what = f"graph break: {an(escaping.cls.__name__)} that was raised is kept"
        why = "Its traceback exists only when Python itself raises it."
        return Diagnostic("MD202", what, why, where=self.frame.tx.raised[escaping].diagnostic.where)

    def _possible(self) -> bool:
        return reason_against_cut(self.frame.code, group_of(self.frame.code, self.frame.index).start) is None

    def _first_of_group(self, step: int) -> int:
        """Returns the step of the first instruction of the present call, which may be several instructions."""
        return step - (self.frame.index - group_of(self.frame.code, self.frame.index).start)


# Comprehensions are functions of their own before Python 3.12.
_COMPREHENSIONS = ("<listcomp>", "<setcomp>", "<dictcomp>")


def _values(frame: Frame, index: int) -> list[VariableTracker]:
    """Returns the values that the frame still needs at an instruction."""
    live = live_locals(frame.code, index)
    plain = [value for name, value in frame.local_slots.items() if name in live]
    return [*(value for value in frame.stack if not isinstance(value, Null)), *plain, *frame.cells.values()]


def break_before(
    frame: Frame, title: str, diagnostic: Diagnostic, freed: Collection[Source], *, in_callee: bool
) -> Break:
    """Returns the end of a frame, cut before the next instruction. `title` names the frame in messages; sources in
    `freed` need not stay alive until the end of the frame."""
    code, index = frame.code, frame.next_index
    reason = reason_against_cut(code, index)
    if reason is not None:
        what = f"{title} runs eagerly: it cannot be cut at a graph break"
        raise SkipFrame(Diagnostic("MD220", what, why=reason.capitalize() + ".", where=diagnostic.where))
    live = live_locals(code, index)
    cells = {name: CellVariable() for name in code.co_cellvars} | frame.cells
    dead = ((name, value) for name, value in frame.local_slots.items() if name not in live)
    rebound = written_slots(code, index)

    def stays(name: str, value: VariableTracker) -> bool:
        stays_bound = name not in rebound and value.source not in freed and stays_bound_after_break(frame, value)
        return stays_bound or is_visibly_alive(frame, value)

    lasting = frozenset(name for name, value in dead if stays(name, value))
    cells_of_function = ((name, cells[name]) for name in code.co_cellvars)
    lasting |= {name for name, cell in cells_of_function if cell.cell is not None or cell.contents is not None}
    live |= lasting
    return Break(
        index,
        stack_at_cut(frame),
        {name: value.realized() for name, value in frame.local_slots.items() if name in live},
        {name: cell for name, cell in cells.items() if name in live},
        diagnostic,
        _compiled_callee(frame, index) if in_callee else None,
        lasting,
    )


def _compiled_callee(frame: Frame, index: int) -> int | None:
    """Returns the stack position of a callee of the user, if the callee could not be inlined."""
    last = frame.instructions[group_of(frame.code, index)[-1]]
    position = callable_position(frame, last)
    if position is None:
        return None
    callee = _without_partials(frame.stack[position])
    function = callee.function if isinstance(callee, MethodVariable) else callee
    if _is_one_kernel(callee.receiver if isinstance(callee, MethodVariable) else callee):
        return None
    of_user = isinstance(function, FunctionVariable) and not _is_library(function.value)
    is_nested = isinstance(function, NestedFunctionVariable)
    return position if of_user or is_nested or isinstance(callee, ModuleVariable) or _is_forward(callee) else None


def _without_partials(callee: VariableTracker | Null) -> VariableTracker | Null:
    """Returns the function that a call of `callee` runs: the function of a partial object, else `callee`."""
    while isinstance(callee, LazyVariable | PartialVariable):  # a call reads its callee
        callee = callee.realize() if isinstance(callee, LazyVariable) else callee.function
    return callee


# Modules of torch whose forward is a single kernel call: a graph of the preparation is not worth its overhead.
_ONE_KERNEL = (torch.nn.RNN, torch.nn.LSTM, torch.nn.GRU)


def _is_one_kernel(module: VariableTracker | Null) -> bool:
    """Returns whether `module` is in `_ONE_KERNEL` and has no hooks of the user."""
    if not isinstance(module, ModuleVariable) or module.cls not in _ONE_KERNEL or module.value is None:
        return False
    return not any(value for name, value in vars(module.value).items() if name.endswith("_hooks"))


# Methods of torch's modules that call submodules; `_run_ddp_forward` belongs to DistributedDataParallel.
_CALLS_MODULES = ("forward", "_run_ddp_forward")


def _is_forward(callee: VariableTracker | Null) -> bool:
    """Returns whether `callee` is the forward of a torch module: the called submodules may be the user's."""
    if not isinstance(callee, MethodVariable) or not isinstance(callee.receiver, ModuleVariable):
        return False
    function = callee.function
    if not isinstance(function, FunctionVariable) or function.value.__name__ not in _CALLS_MODULES:
        return False
    return not is_never_inlined(function.value)


def _is_library(function: FunctionType) -> bool:
    return is_trusted_module(function.__module__) or is_never_inlined(function)
