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

import functools
import types
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from torch import fx

from minidynamo import artifacts
from minidynamo.boxed import BoxedCallable, mark_boxed
from minidynamo.bytecode.layout import FramePoint
from minidynamo.guards.reader import Reader
from minidynamo.guards.source import Constant, Local, Source, is_passed, is_read_anew, key_expression
from minidynamo.names import Namespace
from minidynamo.tracer.attributes import instance_dict
from minidynamo.tracer.copies import can_be_two
from minidynamo.tracer.expectations import checks, only_computes
from minidynamo.tracer.graph.dead_code import may_raise
from minidynamo.tracer.graph.written_places import Writes
from minidynamo.tracer.moved_items import as_moved
from minidynamo.tracer.reachable import is_outside, needed_by, reachable, target_of
from minidynamo.tracer.reconstruct.draws import print_draws
from minidynamo.tracer.reconstruct.effects import lost_effects, replay
from minidynamo.tracer.reconstruct.rebuilder import Rebuilder
from minidynamo.tracer.reconstruct.sets import take_steps
from minidynamo.tracer.recovery import (
    HeldList,
    HeldPlace,
    HeldSlot,
    Overwritten,
    explain,
    firmly_held,
    random_states,
    revive,
    weakly_held,
)
from minidynamo.tracer.side_effects import (
    AttrDeleted,
    AttrSet,
    ContentsChanged,
)
from minidynamo.tracer.traced_frame import Break, EmptiedPlace, GraphInput, Null, Return, TracedFrame
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
    a function called at the break. `replay_native(list)` runs the frame as the user wrote it and ends as the residual
    does; it is used when the graph raises, nothing has been written or given up, and either effects are pending or
    `runs_again` (there are try or with regions, or the user wants it) or the graph was to write; when it then ends
    without an error, `ran_again` is told what the graph had raised. `kept` are the parameters that the frame
    as written holds to its end.
    """

    root: bool
    break_function: BoxedCallable | None = None
    point: FramePoint | None = None
    dispatcher_for: Callable[[Any], Any] | None = None
    drive: Callable[[Any, list[Any]], Any] | None = None
    driven_outside: bool = False
    replay_native: BoxedCallable | None = None
    kept: frozenset[str] = frozenset()
    runs_again: bool = False
    ran_again: Callable[[str], None] | None = None


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
        items = [item for container in restored for item in as_moved(container.items)]
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
        # The names of what a second run needs: the arguments, lists and places that are emptied, what the graph
        # overwrites, and the states of generators; and of whether it is known that there will be none.
        self.held = self.taken = self.overwritten = self.random = self.drawn = self.sure = ""

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
        self.drawn, draws = print_draws(self.draws, reader, self.names, keeps=self.recovers)
        reader.count([*draws, *(reader.read(source) for _, source in outside), inputs])
        lines = [reader.write(line) for line in draws]
        lines += [line for _, source in outside if (line := reader.assignment(source)) is not None]
        lines += [f"{copy} = {text}" for copy, text in copies.items()]
        names = [*self.parameters, *reader.temporaries(), *copies]
        if self.graph is not None:
            lines += self.read_inputs(reader, inputs, names)
        if self.recovers:
            lines += self.hold()
        lasting = (name for name in self.parameters if Local(name) in self.traced.lasting)
        kept = {*self.known.values(), *lasting}
        self.bound += [name for name in names if name in kept]
        dead = [name for name in names if name not in kept]
        return [*lines, f"del {', '.join(dead)}"] if dead else lines

    def hold(self) -> list[str]:
        """Keep for a second run what this one changes or gives up.

        What the frame may give up before its end is held only weakly, unless an error that data may raise would have to
        find it. Where positions alone decide whether there is one, they are looked at.
        """
        lookups, writes, kept = self.traced.lookups, self.traced.writes, self.around.kept
        given_up = [name for name in self.parameters if name not in kept]
        takes = bool(self.emptied or self.places)
        holds = self.needs_everything and (takes or bool(given_up))
        weak = self.names.constant(weakly_held, "weakly_held") if takes or given_up else ""
        hold, lines = "" if holds else weak, []
        if lookups is not None and (holds or writes is not None):
            self.sure = self.names.fresh("sure")
            exist = self.names.constant(lookups.exist, "positions_exist")
            lines.append(f"{self.sure} = {exist}({self.args})")
        if self.sure and self.keeps_history:
            arguments = f"[{', '.join(self.parameters)}]"
            lines += [f"if not {self.sure}:", f"    return {self.as_written(arguments)}"]
        if self.sure and holds:
            hold, firm = self.names.fresh("hold"), self.names.constant(firmly_held, "firmly_held")
            lines.append(f"{hold} = {weak} if {self.sure} else {firm}")
        self.held = self.names.fresh("held")
        held = [f"{hold}({name})" if hold and name in given_up else name for name in self.parameters]
        lines.append(f"{self.held} = [{', '.join(held)}]")
        if writes is not None:
            lines.append(self.keep_overwritten(writes))
        if self.redraws:
            self.random = self.names.fresh("random")
            lines.append(f"{self.random} = {self.names.constant(random_states, 'random_states')}()")
        if takes:  # last, since nothing may fail between that and the graph
            lines.append(self.hold_taken(hold or self.names.constant(firmly_held, "firmly_held")))
        return lines

    def hold_taken(self, hold: str) -> str:
        """Keep the elements of lists that the graph empties, those that the frame takes as `hold` says. So are tensors
        in places that the program empties, which is done here."""
        self.taken = self.names.fresh("taken")
        held = []
        for position, given in self.emptied.items():
            variable = given.variable
            assert isinstance(variable, ListVariable) and variable.original is not None
            present = set() if given.stolen else {*as_moved(variable.items)}
            left = [k for k, item in enumerate(variable.original) if item in present]
            keep = self.names.constant(HeldList, "HeldList")
            held.append(f"{keep}({self.args}[{position}], {(*left,)!r}, {hold})")
        held += [self.hold_place(place, hold) for place in self.places]
        return f"{self.taken} = [{', '.join(held)}]"

    def hold_place(self, place: EmptiedPlace, hold: str) -> str:
        """Empty a place, and keep what is there."""
        if isinstance(place.owner, dict):
            owner = self.names.constant(place.owner, "G")
        elif isinstance(place.owner.source, Constant):
            owner = place.owner.source.expression(self.names)
        else:
            owner = self.known[place.owner]
        if isinstance(place.effect, AttrSet | AttrDeleted) and not place.is_slot:
            owner = f"{self.names.constant(instance_dict, 'instance_dict')}({owner})"
        how = HeldSlot if place.is_slot else HeldPlace
        told = ", is_removed=False" * (not place.is_removed)
        empty, key = self.names.constant(how, how.__name__), key_expression(place.key, self.names)
        return f"{empty}({owner}, {key}, {hold}{told})"

    def keep_overwritten(self, writes: Writes) -> str:
        """Keep what the graph overwrites, which has to be there again before the frame runs a second time."""
        self.overwritten = self.names.fresh("overwritten")
        arguments = [self.names.constant(writes, "writes"), self.args, *[self.sure] * bool(self.sure)]
        keep = self.names.constant(Overwritten, "Overwritten")
        return f"{self.overwritten} = {keep}({', '.join(arguments)})"

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

    @property
    def recovers(self) -> bool:
        """Whether an error of the graph is answered by running the frame again as the user wrote it."""
        if self.graph is None or self.around.replay_native is None:
            return False
        # Whether a second run would tell, or do, what an error alone does not.
        asked = bool(self.effects) or self.around.runs_again
        return asked or self.traced.writes is not None or self.checks or any(draw.late for draw in self.draws)

    @property
    def needs_everything(self) -> bool:
        """Whether an error that data may raise has to find all that the frame began with: somebody waits for it, there
        are effects, or it finds places from which tensors were taken.

        Tensors die in time there in spite of operators of the user's, of which anything may be expected.
        """
        if self.checks or not self.traced.may_raise:
            return self.checks
        if self.traced.awaits_errors or self.others_change:
            return True
        takes = bool(self.places) or any(not given.stolen for given in self.emptied.values())
        return takes and any(may_raise(node) and only_computes(node) for node in self.graph_nodes)

    @property
    def others_change(self) -> bool:
        """Whether there are effects, besides those on lists and places that are emptied."""
        emptied = [given.variable for given in self.emptied.values()]
        known = [place.effect for place in self.places]
        return any(target_of(effect) not in emptied and effect not in known for effect in self.effects)

    @functools.cached_property
    def emptied(self) -> dict[int, GraphInput]:
        """The lists that the graph empties, by their place among its inputs."""
        return {k: given for k, given in enumerate(self.traced.inputs) if given.given_up}

    @functools.cached_property
    def places(self) -> list[EmptiedPlace]:
        """The places that are emptied before the graph runs."""
        return [place for place in self.traced.emptied if isinstance(place.owner, dict) or place.owner in self.found]

    @property
    def checks(self) -> bool:
        """Whether the graph checks decisions of the program, so that it is nothing unusual when it raises."""
        return checks(self.traced.graph)

    @property
    def redraws(self) -> bool:
        """Whether the graph may draw random numbers, which a second run has to draw again."""
        return any(node.meta.get("draws") for node in self.graph_nodes)

    @property
    def graph_nodes(self) -> Iterable[fx.Node]:
        """The operations that were captured."""
        return () if self.traced.graph is None else self.traced.graph.graph.nodes

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
        lines = self.guarded(call)
        return [*lines, f"del {', '.join(unused)}"] if unused else lines

    def guarded(self, call: str) -> list[str]:
        """The call of the graph, with what has to happen when it raises."""
        error = self.names.fresh("error")
        lost = f"{lost_effects(self.effects)} of {self.traced.name} before this error were not replayed."
        if self.recovers:
            return self.recovering(call, error, lost if self.effects else "")
        explained = f"{self.names.constant(explain, 'explain')}({error}{f', {lost!r}' if self.effects else ''})"
        return ["try:", f"    {call}", f"except Exception as {error}:", f"    {explained}", "    raise"]

    def recovering(self, call: str, error: str, lost: str) -> list[str]:
        """The call of the graph; when it raises, the frame runs as written, unless that is too late."""
        arguments = [error, self.held, *[repr(lost)] * bool(lost)]
        arguments += [
            f"{name}={value}" for name in ("taken", "overwritten", "random", "drawn") if (value := getattr(self, name))
        ]
        revived = f"{self.held} = {self.names.constant(revive, 'revive')}({', '.join(arguments)})"
        native = self.as_written(self.held)
        told, again = [], [f"    return {native}"]
        if self.around.ran_again is not None:
            failure, value = self.names.fresh("failure"), self.names.fresh("value")
            ran_again = self.names.constant(self.around.ran_again, "ran_again")
            told = [f'    {failure} = f"{{type({error}).__name__}}: {{{error}}}"']
            again = [f"    {value} = {native}", f"    {ran_again}({failure})", f"    return {value}"]
        return [
            "try:",
            f"    {call}",
            f"except {'BaseException' if self.places else 'Exception'} as {error}:",
            f"    {revived}",
            *told,
            "else:",
            f"    {' = '.join(filter(None, (self.held, self.taken, self.overwritten)))} = None",
            f"if {self.held} is not None:",
            *again,
        ]

    def as_written(self, values: str) -> str:
        """A run of the frame as the user wrote it, and what this program returns then."""
        run = f"{self.names.constant(self.around.replay_native, 'run_as_written')}({values})"
        return f"(None, {run})" if self.hands_on and self.around.root else run

    @property
    def keeps_history(self) -> bool:
        """Whether the graph, running as it was captured, has autograd record writes, which nobody can take back."""
        graph, writes = self.traced.graph, self.traced.writes
        recorded = writes is not None and writes.are_recorded and not self.drawn
        return recorded and graph is not None and "runs_as_captured" in graph.meta

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
