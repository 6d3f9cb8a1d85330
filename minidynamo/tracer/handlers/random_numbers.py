"""Owns draws from Python's generators: each draw is a symbolic number, like sizes and arguments.

The residual program draws the numbers before the graph runs, by the same functions and in the same order as the
program. Capture draws nothing: it uses an example number, on which no decision may depend. A decision (an `if`, an
index, a size) breaks the graph before the decision, and the next part receives the number as an argument.
"""

from __future__ import annotations

import functools
import itertools
import random
from collections.abc import Callable, Iterator
from typing import Any, NoReturn

import torch.fx

from minidynamo.guards.guard import GuardKind
from minidynamo.guards.source import Computed, Constant, Drawn, Source
from minidynamo.tracer.attributes import instance_dict
from minidynamo.tracer.frames.interpreter import Tracer
from minidynamo.tracer.graph.dead_code import is_pure, only_computes
from minidynamo.tracer.numbers.arithmetic import computed_text, value_here
from minidynamo.tracer.records import registry
from minidynamo.tracer.records.constants import as_constant
from minidynamo.tracer.records.fix_hints import HINTS_BY_CLASS, OPAQUE
from minidynamo.tracer.records.side_effects import Draw
from minidynamo.variables.base import ConstantVariable, NumberVariable, VariableTracker
from minidynamo.variables.containers import SequenceVariable, TupleVariable
from minidynamo.variables.objects import OpaqueVariable

# Methods that return a number or None, and change only their generator; then the methods that accept any numbers.
_NAMES = (
    *("random", "uniform", "gauss", "normalvariate", "getrandbits", "randint", "randrange", "triangular"),
    *("betavariate", "binomialvariate", "expovariate", "gammavariate", "lognormvariate", "paretovariate"),
    *("vonmisesvariate", "weibullvariate", "seed"),
)
_ANY_NUMBER_METHODS = ("uniform", "gauss", "normalvariate", "seed")
# Generator methods that the methods above call; an instance could override them.
_CALLED_METHODS = ("random", "getrandbits")
_ARGUMENT_TYPES = (int, float, bool, str, bytes, type(None))
# Drawn numbers must fit into the integers of tensors.
_MAX_BITS = 62
_INT_LIMIT = 2 ** (_MAX_BITS - 1)
# The largest number of options of `choice`.
_MAX_OPTIONS = 4096


def _draw(method: Callable[..., Any], tx: Tracer, generator: VariableTracker, /, *args: Any, **kwargs: Any) -> Any:
    name = method.__name__
    arguments: list[VariableTracker] = [*args, *kwargs.values()]
    why = _reason_against_draw(tx, name, generator, arguments)
    if why:
        tx.break_graph("MD206", f"Random.{name} is used", why=why, fix=HINTS_BY_CLASS["Random"])
    generator_source, draws = generator.source, tx.side_effects.draws
    assert generator_source is not None
    for called in (name, *_CALLED_METHODS):
        tx.guard(generator_source, GuardKind.NO_INSTANCE_ATTR, called)
    values = [value_here(v) if isinstance(v, NumberVariable) else as_constant(v) for v in arguments]
    try:
        example = method(random.Random(len(draws)), *values[: len(args)], **dict(zip(kwargs, values[len(args) :])))
    except Exception as error:
        tx.raises(error)
    parameters = ["{1}", *(f"{{{n}}}" for n in range(2, len(args) + 2))]
    parameters += [f"{key}={{{n}}}" for n, key in enumerate(kwargs, len(args) + 2)]
    call = computed_text(f"{{0}}({', '.join(parameters)})", Constant(method, name), generator_source, *arguments)
    if call is None or type(example) not in (int, float, type(None)):
        tx.break_graph("MD206", f"Random.{name} is used", why="Its result is no plain number.")
    number = record_draw(tx, generator_source, call, has_result=example is not None)
    if number is None:
        return ConstantVariable(None)
    return tx.graph.integer(example, number) if type(example) is int else tx.graph.floating(example, number)


def record_draw(tx: Tracer, generator: Source, call: Computed, *, has_result: bool) -> Drawn | None:
    """Records a call that changes a generator, or that reads an earlier result; returns the source of its result."""
    draws = tx.side_effects.draws
    number = Drawn(_unused_name(tx, len(draws))) if has_result else None
    nodes = [*_new_nodes(tx.graph.graph)]
    may_be_skipped = any(draw.may_be_skipped for draw in draws[-1:])
    may_be_skipped = may_be_skipped or any(node.op != "placeholder" and not is_pure(node) for node in nodes)
    for node in nodes[:1]:
        node.meta["precedes_draw"] = True
    tx.side_effects.draw(Draw(number, generator, call, may_be_skipped))
    return number


def reason_against_early_call(tx: Tracer) -> str:
    """Returns the reason why nothing can be drawn before the graph runs; "" if it can."""
    if tx.graph.shapes.trip_counts is None:
        return "With `dynamic=False` a graph takes no numbers that vary."
    if tx.graph.subgraph is not None:
        return "It is drawn in a part of the graph that may run twice, or not at all."
    if not all(map(only_computes, _new_nodes(tx.graph.graph))):
        return "The graph calls a function that may draw before it."
    return ""


def _new_nodes(graph: torch.fx.Graph) -> Iterator[torch.fx.Node]:
    """Yields the nodes after the last draw, the last node first."""
    return itertools.takewhile(lambda node: "precedes_draw" not in node.meta, reversed(graph.nodes))


def _reason_against_draw(tx: Tracer, name: str, generator: VariableTracker, arguments: list[VariableTracker]) -> str:
    """Returns the reason why the number cannot be drawn before the graph runs; "" if it can."""
    if not isinstance(generator, OpaqueVariable) or type(generator.value) is not random.Random:
        return OPAQUE
    if generator.source is None or not {name, *_CALLED_METHODS}.isdisjoint(instance_dict(generator.value) or ()):
        return "The generator has methods of its own."
    why = reason_against_early_call(tx)
    if why:
        return why
    for argument in arguments:
        if isinstance(argument, NumberVariable):
            if name not in _ANY_NUMBER_METHODS:
                return "It is called with numbers that vary, for some of which it raises."
        elif isinstance(argument, TupleVariable):  # of plain numbers
            continue
        elif not isinstance(argument, ConstantVariable) or argument.python_type not in _ARGUMENT_TYPES:
            return "It is called with something other than plain numbers."
        elif argument.python_type is int and abs(argument.value) >= (
            _MAX_BITS if name == "getrandbits" else _INT_LIMIT
        ):
            return "The number may be too large for a graph."
    return ""


def _unused_name(tx: Tracer, number: int) -> str:
    """Returns a name that no variable of the root frame has."""
    code = tx.frames[0].code
    name = f"drawn_{number}"
    while name in (*code.co_varnames, *code.co_cellvars, *code.co_freevars):
        name += "_"
    return name


def _leave_to_python(name: str, tx: Tracer, /, *args: VariableTracker, **kwargs: VariableTracker) -> NoReturn:
    tx.break_graph("MD206", f"Random.{name} is used", why=OPAQUE, fix=HINTS_BY_CLASS["Random"])


for _name in ("choices", "sample", "shuffle"):
    registry.opaque_method(getattr(random.Random, _name))(functools.partial(_leave_to_python, _name))


@registry.opaque_method(random.Random.choice)
def _choice(tx: Tracer, generator: VariableTracker, /, seq: VariableTracker) -> VariableTracker:
    options = _options(seq)
    if options is None:
        _leave_to_python("choice", tx)
    chosen: VariableTracker = _draw(random.Random.choice, tx, generator, options)
    return chosen


def _options(seq: VariableTracker) -> TupleVariable | None:
    """Returns the options of `choice`, if they are numbers of one type that are the same at each call."""
    if isinstance(seq, ConstantVariable) and seq.python_type is range and len(seq.value) <= _MAX_OPTIONS:
        items = [ConstantVariable(number) for number in seq.value]
    elif isinstance(seq, SequenceVariable) and seq.cls in (list, tuple) and 0 < len(seq.items) <= _MAX_OPTIONS:
        items = [item for item in seq.items if isinstance(item, ConstantVariable)]
    else:
        return None
    kinds = {item.python_type for item in items}
    if len(items) < len(seq.items if isinstance(seq, SequenceVariable) else items) or kinds not in ({int}, {float}):
        return None
    values = tuple([item.value for item in items])
    if kinds == {int} and max(map(abs, values)) >= _INT_LIMIT:
        return None
    return TupleVariable(items, source=Constant(values, "options"))


for _name in _NAMES:
    if hasattr(random.Random, _name):  # 3.12 adds a method
        _method = getattr(random.Random, _name)
        registry.opaque_method(_method)(functools.partial(_draw, _method))
