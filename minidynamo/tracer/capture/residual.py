"""Owns the residual program: the Python source that replaces a captured frame.

The program unpacks the frame's arguments, calls the graph, rebuilds the frame's results, replays side effects and ends
as the frame does. How a graph is compiled, and the caller of the program, are not known here. The parts, in order:

    x, m = boxed; boxed.clear()           arguments
    drawn_0 = random(generator)           random numbers, in program order
    m_total = m.__dict__['total']         external values that are needed after the graph (loads)
    args = [x, ...]; del x                graph inputs; unused names are deleted before the graph runs
    out0, = graph(args)
    items = [out0]                        new values
    object.__setattr__(m, 'last', out0)   side effects, in program order (stores)
    return items                          or the call of the break function
"""

from __future__ import annotations

import types
from collections.abc import Callable, Mapping, Sequence
from dataclasses import field
from typing import Any

from minidynamo.bytecode.layout import FramePoint
from minidynamo.core.names import Namespace, with_globals
from minidynamo.core.records import record
from minidynamo.graph.boxed import BoxedCallable
from minidynamo.graph.boxed_text import BoxedText, Call, Line, Pack, load
from minidynamo.guards.guard import reader_of
from minidynamo.guards.reader import Reader
from minidynamo.guards.source import Constant, Local, NewObject, Source, is_argument_or_item
from minidynamo.tracer.capture.rerun import RerunOptions, RerunPrinter
from minidynamo.tracer.reachable import is_external, needed_by, reachable, target_of
from minidynamo.tracer.reconstruct.effects import replay
from minidynamo.tracer.reconstruct.rebuilder import Rebuilder
from minidynamo.tracer.records.immutable_classes import may_be_distinct
from minidynamo.tracer.records.side_effects import ContentsChanged, Draw
from minidynamo.tracer.records.traced_frame import Break, Null, Return, TracedFrame
from minidynamo.tracer.runtime.rollback import states_of
from minidynamo.variables.base import ConstantVariable, VariableTracker
from minidynamo.variables.containers import ListVariable
from minidynamo.variables.iterators import DictIterator

# From this number of inputs outside of the arguments on, the guards pass on the values that they have read.
MANY_INPUTS = 16


@record(frozen=True)
class Residual:
    """A residual program."""

    #: the text
    source: str
    #: the globals
    namespace: dict[str, Any]
    #: the boxed plain function `body(boxed)`
    body: types.FunctionType
    #: sources of the graph inputs; if there are any, a list of the values may be passed as a second argument
    inputs: tuple[Source, ...] = ()
    #: whether the program replaces the beginning of a function, and still returns `(break_function, list)` or `(None,
    #: value)` for its caller to continue
    steps: bool = False


@record(frozen=True, kw_only=True)
class ResidualContext:
    """The position of a residual program in the function, and the functions to call."""

    #: whether the frame is the beginning of a function: a root frame returns the value itself, and runs the steps after
    #: a break with `run_steps`. A resumed frame returns `(None, value)` or `(break_function, list)` instead.
    root: bool
    #: runs the instruction at the break and continues; None without a break
    break_function: BoxedCallable | None = None
    #: the frame point of the break: the values in the list, in order; None means all values
    point: FramePoint | None = None
    #: returns the compiled form of a function that is called at the break
    dispatcher_for: Callable[[Any], Any] | None = None
    #: runs the steps after a break
    run_steps: Callable[[Any, list[Any]], Any] | None = None
    #: whether a root frame returns like a resumed frame, if there is a break and no work is left after the steps
    caller_runs_steps: bool = False
    #: the settings of a rerun, for a graph that raises
    rerun: RerunOptions = field(default_factory=RerunOptions)

    def rebound(self, body: Any, other: ResidualContext, constants: Mapping[int, object]) -> Any:
        """Returns the program `body` of this context for the context `other` of an equal function; `constants` maps the
        id of each constant to the constant of that function.
        """
        pairs = zip(self._functions(), other._functions())
        functions = {id(function): replacement for function, replacement in pairs if function is not None}
        return with_globals(body, {**constants, **functions})

    def _functions(self) -> tuple[object, ...]:
        """Returns the functions to call that belong to the compiled function."""
        return self.break_function, self.dispatcher_for, self.rerun.run, self.rerun.run_again


def print_residual(
    traced: TracedFrame, parameters: Sequence[str], graph: BoxedCallable | None, context: ResidualContext
) -> Residual:
    """Prints and loads the program for `traced`; `parameters` name the items of the list argument.

    `graph` is the compiled graph (boxed), None if nothing was captured. Raises InternalError for a value that the
    tracer should have refused.
    """
    program = _Program(traced, parameters, graph, context)
    text = BoxedText(tuple(parameters), tuple(program.lines()))
    source = program.source(text)
    namespace = program.names.values
    body = load("residual", traced.name, source, text, namespace, program.function)
    del namespace[program.function]  # a function in its own globals is a reference cycle
    inputs = tuple(program.inputs) if program.takes_inputs else ()
    return Residual(source, namespace, body, inputs, steps=context.root and program.returns_step)


class _Program:
    def __init__(
        self, traced: TracedFrame, parameters: Sequence[str], graph: BoxedCallable | None, context: ResidualContext
    ) -> None:
        self.traced = traced
        self.parameters = list(parameters)
        self.graph = graph
        self.context = context
        self.draws = traced.side_effects.draws
        self.names = Namespace([*parameters, *(draw.number.name for draw in self.draws if draw.number)])
        self.function = self.names.fresh(traced.name.rpartition(".")[2])
        self.boxed = self.names.fresh("boxed")
        self.exit_values = self._exit_values()
        restored = self._restored_lists()
        items = [item for container in restored for item in container.items.lazy()]
        self.donated_after_break = traced.donated_after_break if context.root else ()
        ends_with_steps = isinstance(traced.exit, Break) and not self.donated_after_break
        self.returns_step = (context.caller_runs_steps and ends_with_steps) or not context.root or bool(traced.lock)
        found, effects = reachable([*self.exit_values, *items, *self.donated_after_break], traced.side_effects)
        self.found = dict.fromkeys(found)
        self.effects = [*map(ContentsChanged, restored), *effects]
        self.known: dict[VariableTracker, str] = {}
        self.bound: list[str] = []  # names that hold values when the frame ends
        self.args = self.names.fresh("args")
        self.inputs = [graph_input.source for graph_input in traced.inputs] if graph is not None else []
        self.takes_inputs = sum(not is_argument_or_item(source) for source in self.inputs) >= MANY_INPUTS
        self.takes_inputs = self.takes_inputs and not self.draws and traced.lock is None
        #: inputs that are created in each call: the guards have no value of such an input to pass on
        self.new_objects = [s for s in self.inputs if isinstance(s, NewObject)] if self.takes_inputs else []
        self.inputs = [source for source in self.inputs if source not in self.new_objects]
        self.rerun_printer = RerunPrinter(
            traced,
            context.rerun,
            self.names,
            parameters=self.parameters,
            args=self.args,
            found=self.found,
            effects=self.effects,
            returns_pair=self.returns_step and context.root,
        )

    def _exit_values(self) -> list[VariableTracker]:
        """Returns the result of the frame, or the values that it needs after a break, in the order of the list."""
        exit = self.traced.exit
        if isinstance(exit, Return):
            return [exit.value]
        point = self.context.point
        cells = exit.cells if point is None else {name: exit.cells[name] for name in point.cells}
        bound = exit.local_variables
        bound = bound if point is None else {name: bound[name] for name in point.locals}
        stack = [value for value in exit.stack if not isinstance(value, Null)]
        return [*cells.values(), *stack, *bound.values()]

    def _restored_lists(self) -> list[ListVariable]:
        """Returns the lists emptied by the graph, although the frame needs the elements after a break."""
        if isinstance(self.traced.exit, Return):
            return []
        found, _ = reachable(self.exit_values, self.traced.side_effects)
        lists = [
            graph_input.variable
            for graph_input in self.traced.inputs
            if graph_input.is_emptied and graph_input.variable in found
        ]
        changed = self.traced.side_effects.is_changed
        return [v for v in lists if isinstance(v, ListVariable) and not changed(v)]

    def source(self, text: BoxedText) -> str:
        """Returns the program as a function with the lines of `text`."""
        signature = f"{self.boxed}, {self.args}=None" if self.takes_inputs else self.boxed
        lines = [*self.unpack(), *map(str, text.lines)]
        return "\n".join([f"def {self.function}({signature}):", *(f"    {line}" for line in lines), ""])

    def lines(self) -> list[Line]:
        """Returns the lines after the list is unpacked."""
        loads = self.load()
        call = self.call_graph()
        rebuild = Rebuilder(self.names, self.traced.side_effects, self.known, self.needed())
        for variable in self.found:
            if isinstance(variable, DictIterator):
                rebuild.value(variable)
        stores = [line for effect in self.effects for line in replay(rebuild, effect)]
        expressions = [rebuild.value(value) for value in self.exit_values]
        self.bound += rebuild.bound
        ending = self.ending(expressions)
        held = [f"# runs while {self.traced.lock.display()} is held"] if self.traced.lock is not None else []
        return [*held, *loads, *call, *rebuild.lines, *stores, *rebuild.final_lines, *ending]

    def needed(self) -> list[VariableTracker]:
        """Returns every value that an effect or the ending reads, once per read."""
        needed = list(self.exit_values)
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
        # Python frees locals in the order of their first binding: temporaries must come last.
        order = [*(name for name in self.parameters if name not in on_stack), *on_stack]
        return [f"{' = '.join(order)} = None", *lines]

    def load(self) -> list[Line]:
        """Reads the external values before the graph: effects, and a graph that empties a list, change the contents.

        Values for the graph alone are passed to the graph, and the names are deleted.
        """
        external = [
            (v, v.source) for v in self.found if v.source is not None and is_external(v) and not _is_constant(v)
        ]
        reader = reader_of(self.traced.guards, self.names)
        self.known |= {variable: reader.name(source, source.display()) for variable, source in external}
        inputs = ", ".join(map(reader.read, self.inputs))
        can_rerun = self.graph is not None and self.rerun_printer.can_rerun
        self.rerun_printer.drawn, draws = print_draws(self.draws, reader, self.names, keeps=can_rerun)
        reader.count([*draws, *(reader.read(source) for _, source in external), inputs])
        lines: list[Line] = [line for text in draws for line in (*reader.statements(text), reader.write(text))]
        lines += [line for _, source in external for line in reader.assignment(source)]
        names = [*self.parameters, *reader.temporaries()]
        if self.graph is not None:
            lines += self.read_inputs(reader, inputs, names)
        if can_rerun:
            lines += self.rerun_printer.keep_values(self.known, names)
        lasting = (name for name in self.parameters if Local(name) in self.traced.lasting)
        lasting_names = {*self.known.values(), *lasting}
        self.bound += [name for name in names if name in lasting_names]
        dead = [name for name in names if name not in lasting_names]
        return [*lines, f"del {', '.join(dead)}"] if dead else lines

    def read_inputs(self, reader: Reader, inputs: str, names: list[str]) -> list[Line]:
        """Prints the list of graph inputs, unless the guards have built the list. Names that stay bound are added to
        `names`."""
        read: list[Line] = [*reader.statements(inputs), Pack(self.args, reader.write(inputs))]
        temporaries = [name for name in reader.temporaries() if name not in names]
        if not self.takes_inputs:
            names += temporaries
            return read
        dropped = [f"    del {', '.join(temporaries)}"] if temporaries else []
        appends: list[str] = []
        for text in map(reader.read, self.new_objects):
            appends += [*reader.statements(text), f"{self.args}.append({reader.write(text)})"]
        return [f"if {self.args} is None:", *(f"    {line}" for line in read), *dropped, *appends]

    # The graph

    def call_graph(self) -> list[Line]:
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
        call = Call(self.names.constant(self.graph, "graph"), self.args, targets)
        lines = self.rerun_printer.call_with_handler(call)
        return [*lines, f"del {', '.join(unused)}"] if unused else lines

    # The end

    def ending(self, expressions: list[str]) -> list[str]:
        exit = self.traced.exit
        if isinstance(exit, Return):
            return [f"return None, {expressions[0]}" if self.returns_step else f"return {expressions[0]}"]
        if exit.compiled_callee is not None and self.context.dispatcher_for is not None:
            position = self.position_of_stack_slot(exit, exit.compiled_callee)
            dispatcher_for = self.names.constant(self.context.dispatcher_for, "dispatcher_for")
            expressions[position] = f"{dispatcher_for}({expressions[position]})"
        step = self.names.constant(self.context.break_function, "break_function")
        comment = f"# graph break: {exit.diagnostic.what.removeprefix('graph break: ')}"
        comment += f" ({exit.diagnostic.where})" if exit.diagnostic.where else ""
        values = f"[{', '.join(expressions)}]"
        if self.returns_step:
            return [comment, f"return {step}, {values}"]
        # This frame is on the stack while the steps run; it must not keep anything alive.
        boxed = self.boxed
        donated_after_break = [self.known[variable] for variable in self.donated_after_break]
        bound = [name for name in dict.fromkeys(self.bound) if name not in donated_after_break]
        lines = [comment, f"{boxed} = {values}"]
        lines += [f"del {', '.join(bound)}"] * bool(bound)
        steps = f"{self.names.constant(self.context.run_steps, 'run_steps')}({step}, {boxed})"
        if not donated_after_break:
            return [*lines, f"return {steps}"]
        result = self.names.fresh("result")
        return [
            *lines,
            f"{result} = {steps}",
            *(f"{name}.clear()" for name in donated_after_break),
            f"return {result}",
        ]

    def position_of_stack_slot(self, exit: Break, slot: int) -> int:
        """Returns the position of a stack slot in the list of values."""
        cells = len(exit.cells if self.context.point is None else self.context.point.cells)
        return cells + sum(not isinstance(value, Null) for value in exit.stack[:slot])


def _is_constant(variable: VariableTracker) -> bool:
    """Returns whether the value is a known constant without visible identity: the source need not be read."""
    known = isinstance(variable, ConstantVariable) and variable.is_read and not may_be_distinct(variable.value)
    return known or isinstance(variable.source, Constant)


def print_draws(draws: Sequence[Draw], reader: Reader, names: Namespace, *, keeps: bool) -> tuple[str, list[str]]:
    """Returns the lines that draw, and the name of the generators' initial states ("" unless `keeps`).

    The reader completes the lines."""
    calls = [draw.call.template.format(*map(reader.read, draw.call.operands)) for draw in draws]  # each is new
    lines = [call if draw.number is None else f"{draw.number.name} = {call}" for draw, call in zip(draws, calls)]
    if not draws or not keeps:
        return "", lines
    before = names.fresh("drawn")
    generators = ", ".join(reader.read(generator) for generator in dict.fromkeys(draw.generator for draw in draws))
    return before, [f"{before} = {names.constant(states_of, 'states_of')}({generators})", *lines]
