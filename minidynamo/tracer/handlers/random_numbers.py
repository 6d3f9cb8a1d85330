"""Owns random numbers that the program draws from Python's generators: numbers that vary, as sizes and arguments may.

The residual program draws them before the graph runs, by the functions that the program calls, in its order. While
tracing, nothing is drawn from them: what is seen is an example, by which nothing may be decided. What decides (an `if`,
an index, a size) ends the graph, before it, and gets the number as an argument.
"""

from __future__ import annotations

import functools
import itertools
import random
from collections.abc import Callable, Iterator
from typing import Any

import torch.fx

from minidynamo.guards.guard import GuardKind
from minidynamo.guards.source import Constant, Drawn
from minidynamo.tracer.attributes import instance_dict
from minidynamo.tracer.frames.runtime_asserts import only_computes
from minidynamo.tracer.graph.dead_code import is_pure
from minidynamo.tracer.handlers.seeded_generators import GIVING_NUMBERS, choose_now, draw_now, leave_to_python
from minidynamo.tracer.numbers.arithmetic import computed_text, value_here
from minidynamo.tracer.protocol import Tracer
from minidynamo.tracer.records import registry
from minidynamo.tracer.records.constants import as_constant
from minidynamo.tracer.records.fix_hints import INSTEAD
from minidynamo.tracer.records.side_effects import Draw
from minidynamo.variables.base import VariableTracker
from minidynamo.variables.constants import ConstantVariable
from minidynamo.variables.containers import SequenceVariable, TupleVariable
from minidynamo.variables.numbers import NumberVariable, SeededGenerator
from minidynamo.variables.objects import OpaqueVariable

# Methods that give a number, or nothing, and change nothing but their generator; those that take any numbers.
_NAMES = (*GIVING_NUMBERS, "seed")
_OF_ANY = ("uniform", "gauss", "normalvariate", "seed")
# What they may call of the generator, which could have something else under these names.
_CALLED = ("random", "getrandbits")
_PLAIN = (int, float, bool, str, bytes, type(None))
# So that what is drawn fits into the integers of tensors.
_MOST_BITS = 62
_LARGEST = 2 ** (_MOST_BITS - 1)
# Of how many numbers `choice` may choose.
_MOST_OPTIONS = 4096


def _draw(method: Callable[..., Any], tx: Tracer, generator: VariableTracker, /, *args: Any, **kwargs: Any) -> Any:
    if isinstance(generator, SeededGenerator):
        return draw_now(tx, method, generator, args, kwargs)
    name = method.__name__
    given: list[VariableTracker] = [*args, *kwargs.values()]
    nodes = [*_new_nodes(tx.graph.graph)]
    why = _cannot(tx, name, generator, given, nodes)
    if why:
        tx.break_graph("MD206", f"Random.{name} is used", why=why, fix=INSTEAD["Random"])
    place, draws = generator.source, tx.side_effects.draws
    assert place is not None
    for called in (name, *_CALLED):
        tx.guard(place, GuardKind.NO_INSTANCE_ATTR, called)
    values = [value_here(v) if isinstance(v, NumberVariable) else as_constant(v) for v in given]
    try:
        example = method(random.Random(len(draws)), *values[: len(args)], **dict(zip(kwargs, values[len(args) :])))
    except Exception as error:
        tx.raises(error)
    spelled = ["{1}", *(f"{{{n}}}" for n in range(2, len(args) + 2))]
    spelled += [f"{key}={{{n}}}" for n, key in enumerate(kwargs, len(args) + 2)]
    call = computed_text(f"{{0}}({', '.join(spelled)})", Constant(method, name), place, *given)
    if call is None or type(example) not in (int, float, type(None)):
        tx.break_graph("MD206", f"Random.{name} is used", why="What it gives is no plain number.")
    number = None if example is None else Drawn(_unused_name(tx, len(draws)))
    late = any(draw.late for draw in draws[-1:])
    late = late or any(node.op != "placeholder" and not is_pure(node) for node in nodes)
    for node in nodes[:1]:
        node.meta["drawn_behind"] = True
    tx.side_effects.draw(Draw(number, place, call, late))
    if number is None:
        return ConstantVariable(None)
    return tx.graph.integer(example, number) if type(example) is int else tx.graph.floating(example, number)


def _new_nodes(graph: torch.fx.Graph) -> Iterator[torch.fx.Node]:
    """The nodes behind the last draw, the last one first."""
    return itertools.takewhile(lambda node: "drawn_behind" not in node.meta, reversed(graph.nodes))


def _cannot(
    tx: Tracer, name: str, generator: VariableTracker, given: list[VariableTracker], nodes: list[torch.fx.Node]
) -> str:
    """Why the number cannot be drawn before the graph runs; "" where it can."""
    if not isinstance(generator, OpaqueVariable) or type(generator.value) is not random.Random:
        return "minidynamo passes objects of this class on but cannot look into them."
    if generator.source is None or not {name, *_CALLED}.isdisjoint(instance_dict(generator.value) or ()):
        return "The generator has methods of its own."
    if tx.graph.shapes.turns is None:
        return "With `dynamic=False` a graph takes no numbers that vary."
    if tx.graph.subgraph is not None:
        return "It is drawn in a part of the graph that may run twice, or not at all."
    if not all(map(only_computes, nodes)):
        return "The graph calls a function that may draw before it."
    for argument in given:
        if isinstance(argument, NumberVariable):
            if name not in _OF_ANY:
                return "It is called with numbers that vary, for some of which it raises."
        elif isinstance(argument, TupleVariable):  # of plain numbers
            continue
        elif not isinstance(argument, ConstantVariable) or argument.python_type not in _PLAIN:
            return "It is called with something other than plain numbers."
        elif argument.python_type is int and abs(argument.value) >= (_MOST_BITS if name == "getrandbits" else _LARGEST):
            return "The number may be larger than what a graph takes."
    return ""


def _unused_name(tx: Tracer, number: int) -> str:
    """A name that no variable of the root frame has."""
    code = tx.frames[0].code
    name = f"drawn_{number}"
    while name in (*code.co_varnames, *code.co_cellvars, *code.co_freevars):
        name += "_"
    return name


@registry.opaque_method(random.Random.choice)
def _choice(tx: Tracer, generator: VariableTracker, /, seq: VariableTracker) -> VariableTracker:
    if isinstance(generator, SeededGenerator):
        return choose_now(tx, generator, seq)
    options = _options(seq)
    if options is None:
        leave_to_python(tx, "choice")
    chosen: VariableTracker = _draw(random.Random.choice, tx, generator, options)
    return chosen


def _options(seq: VariableTracker) -> TupleVariable | None:
    """What `choice` chooses of, if these are numbers of one kind that are the same at each call."""
    if isinstance(seq, ConstantVariable) and seq.python_type is range and len(seq.value) <= _MOST_OPTIONS:
        items = [ConstantVariable(number) for number in seq.value]
    elif isinstance(seq, SequenceVariable) and seq.cls in (list, tuple) and 0 < len(seq.items) <= _MOST_OPTIONS:
        items = [item for item in seq.items if isinstance(item, ConstantVariable)]
    else:
        return None
    kinds = {item.python_type for item in items}
    if len(items) < len(seq.items if isinstance(seq, SequenceVariable) else items) or kinds not in ({int}, {float}):
        return None
    values = tuple([item.value for item in items])
    if kinds == {int} and max(map(abs, values)) >= _LARGEST:
        return None
    return TupleVariable(items, source=Constant(values, "options"))


for _name in _NAMES:
    if hasattr(random.Random, _name):  # 3.12 has one more
        _method = getattr(random.Random, _name)
        registry.opaque_method(_method)(functools.partial(_draw, _method))
