"""Owns the residual program: the Python source that stands for a captured frame.

It unpacks the frame's arguments, calls the graph, rebuilds what the frame leaves behind, replays its side effects and
ends as the frame does. It does not know how a graph is compiled or who calls the program. The parts, in order:

    x, m = boxed; boxed.clear()           the arguments
    drawn_0 = random(generator)           random numbers, in program order
    m_total = m.__dict__['total']         what lives outside and is needed behind the graph (loads)
    args = [x, ...]; del x                the graph's inputs; names that are not needed any more go before it runs
    out0, = graph(args)
    items = [out0]                        new values
    object.__setattr__(m, 'last', out0)   effects in program order (stores)
    return items                          or the way to the break function
"""

from __future__ import annotations

import types
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from minidynamo.bytecode.layout import FramePoint
from minidynamo.core import artifacts
from minidynamo.core.names import Namespace
from minidynamo.graph.boxed import BoxedCallable, mark_boxed
from minidynamo.guards.reader import Reader
from minidynamo.guards.source import Constant, Local, Source, is_passed, is_read_anew
from minidynamo.tracer.capture.rerun import Again, SecondRun
from minidynamo.tracer.lazy.lazy_containers import lazy_items
from minidynamo.tracer.reachable import is_outside, needed_by, reachable, target_of
from minidynamo.tracer.reconstruct.draws import print_draws
from minidynamo.tracer.reconstruct.effects import replay
from minidynamo.tracer.reconstruct.rebuilder import Rebuilder
from minidynamo.tracer.reconstruct.sets import take_steps
from minidynamo.tracer.records.copies import can_be_two
from minidynamo.tracer.records.side_effects import ContentsChanged
from minidynamo.tracer.records.traced_frame import Break, Null, Return, TracedFrame
from minidynamo.variables.base import VariableTracker
from minidynamo.variables.constants import ConstantVariable
from minidynamo.variables.containers import ListVariable
from minidynamo.variables.iterators import DictIterator
from minidynamo.variables.numbers import NumberVariable

# From this many inputs on that lie outside the arguments, the guards hand on what they have read.
MANY_INPUTS = 16


@dataclass(frozen=True)
class Residual:
    """A residual program: its text, its globals, and the boxed plain function `body(boxed)`.

    Where `inputs` are given, the list of their values can be handed to it as a second argument. `steps`: it stands for
    the beginning of a function, and yet returns a step and its list, for its caller to go on with.
    """

    source: str
    namespace: dict[str, Any]
    body: types.FunctionType
    inputs: tuple[Source, ...] = ()
    steps: bool = False


@dataclass(frozen=True, kw_only=True)
class Surroundings:
    """Where a residual program stands, and what it may call.

    `root`: the frame is a function's beginning, whose value is returned as it is, and which drives the steps behind a
    break with `drive`; a resumed frame returns `(None, value)` or `(break_function, list)` instead. So does a root that
    is `driven_outside`, if there is a break and nothing is left to do behind the steps. `point` is the break's frame
    point: which values travel in the list, in which order (all, when None). `dispatcher_for` gives the compiled form of
    a function called at the break. `again` says what happens when the graph raises.
    """

    root: bool
    break_function: BoxedCallable | None = None
    point: FramePoint | None = None
    dispatcher_for: Callable[[Any], Any] | None = None
    drive: Callable[[Any, list[Any]], Any] | None = None
    driven_outside: bool = False
    again: Again = field(default_factory=Again)


def print_residual(
    traced: TracedFrame, parameters: Sequence[str], graph: BoxedCallable | None, surroundings: Surroundings
) -> Residual:
    """Print and load the program for `traced`; `parameters` name the items of the list that it takes.

    `graph` is the compiled graph (boxed), None when nothing was captured. Raises InternalError for a value that the
    tracer should not have let through.
    """
    program = _Program(traced, parameters, graph, surroundings)
    source = program.text()
    namespace = program.names.values
    body = artifacts.load("residual", traced.name, source, namespace, program.function)
    program.pins.put_into(body)
    del namespace[program.function]  # a function that its own globals hold would be a reference cycle
    mark_boxed(body)
    inputs = tuple(program.inputs) if program.takes_inputs else ()
    return Residual(source, namespace, body, inputs, steps=surroundings.root and program.hands_on)


class _Program:
    def __init__(
        self, traced: TracedFrame, parameters: Sequence[str], graph: BoxedCallable | None, surroundings: Surroundings
    ) -> None:
        self.traced = traced
        self.parameters = list(parameters)
        self.graph = graph
        self.around = surroundings
        self.draws = traced.side_effects.draws
        self.names = Namespace([*parameters, *(draw.number.name for draw in self.draws if draw.number)])
        self.function = self.names.fresh(traced.name.rpartition(".")[2])
        self.boxed = self.names.fresh("boxed")
        self.leaving = self._leaving()
        restored = self._restored_lists()
        items = [item for container in restored for item in lazy_items(container.items)]
        self.lent = traced.lent if surroundings.root else ()
        is_driven = surroundings.driven_outside and isinstance(traced.exit, Break) and not self.lent
        self.hands_on = is_driven or not surroundings.root
        found, effects = reachable([*self.leaving, *items, *self.lent], traced.side_effects)
        self.found = dict.fromkeys(found)
        self.effects = [*map(ContentsChanged, restored), *effects]
        self.known: dict[VariableTracker, str] = {}
        self.bound: list[str] = []  # names that hold values when the frame ends
        self.args = self.names.fresh("args")
        self.inputs = [given.source for given in traced.inputs] if graph is not None else []
        self.takes_inputs = sum(not is_passed(source) for source in self.inputs) >= MANY_INPUTS
        self.takes_inputs = self.takes_inputs and not self.draws
        self.second_run = SecondRun(
            traced,
            surroundings.again,
            self.names,
            parameters=self.parameters,
            args=self.args,
            found=self.found,
            effects=self.effects,
            returns_pair=self.hands_on and surroundings.root,
        )

    def _leaving(self) -> list[VariableTracker]:
        """The values with which the frame ends, in the order in which they travel."""
        leave = self.traced.exit
        if isinstance(leave, Return):
            return [leave.value]
        point = self.around.point
        cells = leave.cells if point is None else {name: leave.cells[name] for name in point.cells}
        plain = leave.local_variables
        plain = plain if point is None else {name: plain[name] for name in point.locals}
        stack = [value for value in leave.stack if not isinstance(value, Null)]
        return [*cells.values(), *stack, *plain.values()]

    def _restored_lists(self) -> list[ListVariable]:
        """Lists that the graph empties although the frame goes on with them behind a break, with all their items."""
        if isinstance(self.traced.exit, Return):
            return []
        leaving, _ = reachable(self.leaving, self.traced.side_effects)
        lists = [given.variable for given in self.traced.inputs if given.given_up and given.variable in leaving]
        changed = self.traced.side_effects.is_changed
        return [v for v in lists if isinstance(v, ListVariable) and not changed(v)]

    def text(self) -> str:
        loads = self.load()
        call = self.call_graph()
        rebuild = Rebuilder(self.names, self.traced.side_effects, self.known, self.needed())
        self.pins = rebuild.pins
        take_steps(rebuild, self.found)
        for variable in self.found:
            if isinstance(variable, DictIterator):
                rebuild.value(variable)
        stores = [line for effect in self.effects for line in replay(rebuild, effect)]
        leaving = [rebuild.value(value) for value in self.leaving]
        self.bound += rebuild.bound
        ending = self.ending(leaving)
        sections = [self.unpack(), loads, call, rebuild.lines, stores, rebuild.late, ending]
        lines = [line for section in sections for line in section]
        signature = f"{self.boxed}, {self.args}=None" if self.takes_inputs else self.boxed
        return "\n".join([f"def {self.function}({signature}):", *(f"    {line}" for line in lines), ""])

    def needed(self) -> list[VariableTracker]:
        """Every value that an effect or the ending asks for, as often as it does."""
        needed = list(self.leaving)
        for effect in self.effects:
            target = target_of(effect)
            needed += needed_by(effect) if target is None else (target, *needed_by(effect))
        return needed

    # Before the graph

    def unpack(self) -> list[str]:
        if not self.parameters:
            return []
        names = ", ".join(self.parameters) + "," * (len(self.parameters) == 1)
        lines = [f"{names} = {self.boxed}", f"{self.boxed}.clear()"]
        on_stack = [name for name in self.parameters if name.startswith("stack_")]
        if not on_stack or not self.traced.lasting:
            return lines
        # Python lets go of locals in the order in which they are bound first: temporaries are bound to later ones.
        order = [*(name for name in self.parameters if name not in on_stack), *on_stack]
        return [f"{' = '.join(order)} = None", *lines]

    def load(self) -> list[str]:
        """Read what lives outside: effects, and a graph that empties a list, change what is found there.

        What is not needed behind the graph is given to it and forgotten.
        """
        outside = [(v, v.source) for v in self.found if v.source is not None and is_outside(v) and not _is_constant(v)]
        reader = Reader(self.traced.guards, self.names)
        looks: dict[Source, VariableTracker] = {}
        copies: dict[str, str] = {}  # of what the program has read again, as another object
        for variable, source in outside:
            self.known[variable] = name = reader.name(source, source.display())
            if is_read_anew(source) and not _is_one_look(looks.setdefault(source, variable), variable):
                self.known[variable] = copy = self.names.fresh(name)
                copies[copy] = source.expression(self.names)
        inputs = ", ".join(map(reader.read, self.inputs))
        recovers = self.graph is not None and self.second_run.may_come
        self.second_run.drawn, draws = print_draws(self.draws, reader, self.names, keeps=recovers)
        reader.count([*draws, *(reader.read(source) for _, source in outside), inputs])
        lines = [reader.write(line) for line in draws]
        lines += [line for _, source in outside if (line := reader.assignment(source)) is not None]
        lines += [f"{copy} = {text}" for copy, text in copies.items()]
        names = [*self.parameters, *reader.temporaries(), *copies]
        if self.graph is not None:
            lines += self.read_inputs(reader, inputs, names)
        if recovers:
            lines += self.second_run.hold(self.known, names)
        lasting = (name for name in self.parameters if Local(name) in self.traced.lasting)
        kept = {*self.known.values(), *lasting}
        self.bound += [name for name in names if name in kept]
        dead = [name for name in names if name not in kept]
        return [*lines, f"del {', '.join(dead)}"] if dead else lines

    def read_inputs(self, reader: Reader, inputs: str, names: list[str]) -> list[str]:
        """The list that the graph is called with, if the guards have not made it. What stays bound joins `names`."""
        read = f"{self.args} = [{reader.write(inputs)}]"
        temporaries = [name for name in reader.temporaries() if name not in names]
        if not self.takes_inputs:
            names += temporaries
            return [read]
        dropped = [f"    del {', '.join(temporaries)}"] if temporaries else []
        return [f"if {self.args} is None:", f"    {read}", *dropped]

    # The graph

    def call_graph(self) -> list[str]:
        if self.graph is None:
            return []
        names = [self.names.fresh(f"out{position}") for position in range(len(self.traced.outputs))]
        for variable, name in zip(self.traced.outputs, names):
            self.known.setdefault(variable, name)
        unused = [
            name
            for variable, name in zip(self.traced.outputs, names)
            if variable not in self.found or self.known[variable] != name
        ]
        self.bound += [name for name in names if name not in unused]
        targets = f"{', '.join(names)}{',' * (len(names) == 1)} = " if names else ""
        call = f"{targets}{self.names.constant(self.graph, 'graph')}({self.args})"
        lines = self.second_run.guarded(call)
        return [*lines, f"del {', '.join(unused)}"] if unused else lines

    # The end

    def ending(self, leaving: list[str]) -> list[str]:
        leave = self.traced.exit
        if isinstance(leave, Return):
            return [f"return {leaving[0]}" if self.around.root else f"return None, {leaving[0]}"]
        if leave.compiled_callee is not None and self.around.dispatcher_for is not None:
            position = self.position_of_stack_slot(leave, leave.compiled_callee)
            dispatcher_for = self.names.constant(self.around.dispatcher_for, "dispatcher_for")
            leaving[position] = f"{dispatcher_for}({leaving[position]})"
        step = self.names.constant(self.around.break_function, "break_function")
        comment = f"# graph break: {leave.diagnostic.what.removeprefix('graph break: ')}"
        comment += f" ({leave.diagnostic.where})" if leave.diagnostic.where else ""
        values = f"[{', '.join(leaving)}]"
        if self.hands_on:
            return [comment, f"return {step}, {values}"]
        # This frame stays while the steps run; it must not keep anything alive.
        boxed = self.boxed
        lent = [self.known[variable] for variable in self.lent]
        bound = [name for name in dict.fromkeys(self.bound) if name not in lent]
        lines = [comment, f"{boxed} = {values}"]
        lines += [f"del {', '.join(bound)}"] * bool(bound)
        driven = f"{self.names.constant(self.around.drive, 'drive')}({step}, {boxed})"
        if not lent:
            return [*lines, f"return {driven}"]
        result = self.names.fresh("result")
        return [*lines, f"{result} = {driven}", *(f"{name}.clear()" for name in lent), f"return {result}"]

    def position_of_stack_slot(self, leave: Break, slot: int) -> int:
        """The place of a stack slot among the values that travel."""
        cells = len(leave.cells if self.around.point is None else self.around.point.cells)
        return cells + sum(not isinstance(value, Null) for value in leave.stack[:slot])


def _is_one_look(first: VariableTracker, other: VariableTracker) -> bool:
    """Whether two trackers with one source stand for one object."""
    pinned = [v.pinned for v in (first, other) if isinstance(v, NumberVariable)]
    return first is other or first in pinned or other in pinned


def _is_constant(variable: VariableTracker) -> bool:
    """Whether the value is known now, and which object it is cannot be seen, so that its place need not be read."""
    known = isinstance(variable, ConstantVariable) and variable.is_read and not can_be_two(variable.value)
    return known or isinstance(variable.source, Constant)
