"""Owns instances of `random.Random` that the program makes with a seed: their draws are known during capture.

The real generator draws once, during capture. If it leaves the frame, the residual program makes a generator in the
final state. Draws from external generators are in `random_numbers.py`.
"""

from __future__ import annotations

import _random
import functools
import operator
import random
from collections.abc import Callable, Sequence
from typing import Any, NoReturn

from minidynamo.tracer.handlers.values import none
from minidynamo.tracer.protocol import Tracer
from minidynamo.tracer.records import registry
from minidynamo.tracer.records.constants import NotConstant, as_constant, from_constant
from minidynamo.tracer.records.fix_hints import HINTS_BY_CLASS
from minidynamo.variables.base import VariableTracker
from minidynamo.variables.constants import ConstantVariable
from minidynamo.variables.containers import ListVariable, SequenceVariable
from minidynamo.variables.numbers import NumberVariable, SeededGenerator

_SEEDS = (int, float, str, bytes)
# Methods that return a number.
NUMBER_METHODS = (
    *("random", "uniform", "gauss", "normalvariate", "getrandbits", "randint", "randrange", "triangular"),
    *("betavariate", "binomialvariate", "expovariate", "gammavariate", "lognormvariate", "paretovariate"),
    *("vonmisesvariate", "weibullvariate"),
)
_PICKS = ("choice", "choices", "sample", "shuffle")


@registry.function(random.Random)
def _make(tx: Tracer, seed: VariableTracker | None = None, /) -> VariableTracker:
    known = isinstance(seed, ConstantVariable) and seed.python_type in _SEEDS
    if not known or tx.graph.subgraph is not None:
        why = "Only Python knows its state, for it has no seed that is the same at each call."
        tx.break_graph("MD211", "a Random is made", why=why, fix=HINTS_BY_CLASS["Random"])
    assert isinstance(seed, ConstantVariable)
    return SeededGenerator(random.Random(seed.value))


@registry.attributes(SeededGenerator)
def _attribute(tx: Tracer, generator: SeededGenerator, name: str) -> VariableTracker | None:
    if name not in (*_PICKS, *NUMBER_METHODS):
        tx.break_graph("MD206", f"`{name}` of a Random is used", why="It shows or changes the state of the generator.")
    return None


def draw_from_seeded(
    tx: Tracer, method: Callable[..., Any], generator: SeededGenerator, args: Sequence[Any], kwargs: dict[str, Any]
) -> VariableTracker:
    """Calls a method of the generator with plain arguments and returns the result."""
    name = method.__name__
    given = [_constant_argument(tx, name, argument) for argument in (*args, *kwargs.values())]
    drawn = _run(tx, generator, method, given[: len(args)], dict(zip(kwargs, given[len(args) :])))
    return from_constant(drawn)


def _draw_in_c(
    method: Callable[..., Any], tx: Tracer, generator: VariableTracker, /, *args: Any, **kwargs: Any
) -> VariableTracker:
    if not isinstance(generator, SeededGenerator):
        leave_to_python(tx, method.__name__)
    return draw_from_seeded(tx, method, generator, args, kwargs)


for _name in ("random", "getrandbits"):
    registry.method(_random.Random, _name)(functools.partial(_draw_in_c, getattr(random.Random, _name)))


def leave_to_python(tx: Tracer, name: str) -> NoReturn:
    """Breaks the graph at a use of an external generator."""
    why = "minidynamo passes objects of this class on but cannot look into them."
    tx.break_graph("MD206", f"Random.{name} is used", why=why, fix=HINTS_BY_CLASS["Random"])


def _run(
    tx: Tracer, generator: SeededGenerator, method: Callable[..., Any], args: Sequence[Any], kwargs: dict[str, Any]
) -> Any:
    if tx.graph.subgraph is not None:
        tx.break_graph("MD206", f"Random.{method.__name__} is used", why="This part may run twice, or not at all.")
    state = generator.value.getstate()
    try:
        return method(generator.value, *args, **kwargs)
    except Exception as error:
        generator.value.setstate(state)  # Python repeats the draw, and raises
        tx.raises(error)


def _constant_argument(tx: Tracer, name: str, argument: VariableTracker) -> Any:
    if not isinstance(argument, NumberVariable):
        try:
            return as_constant(argument)
        except NotConstant:
            pass
    tx.break_graph("MD206", f"Random.{name} is used", why="Its arguments are not known while tracing.")


def _pick_handler(name: str) -> Callable[[registry.F], registry.F]:
    """Registers a handler that picks items by index; external generators are left to Python."""
    method = getattr(random.Random, name)

    def register(pick: registry.F) -> registry.F:
        def handle(tx: Tracer, generator: VariableTracker, /, *args: Any, **kwargs: Any) -> VariableTracker:
            if not isinstance(generator, SeededGenerator):
                leave_to_python(tx, name)
            picked: VariableTracker = pick(tx, generator, method, *args, **kwargs)
            return picked

        registry.function(method)(handle)
        return pick

    return register


def _indices(tx: Tracer, sequence: VariableTracker) -> range:
    if isinstance(sequence, SequenceVariable):
        return range(len(sequence.items))
    if isinstance(sequence, ConstantVariable) and sequence.python_type in (str, bytes, range):
        return range(len(sequence.value))
    tx.break_graph("MD206", "a Random picks of something else than a list, a tuple, a range or text")


def _items_at(tx: Tracer, sequence: VariableTracker, indices: list[int]) -> VariableTracker:
    return ListVariable([tx.call(operator.getitem, [sequence, ConstantVariable(index)]) for index in indices])


def choose_from_seeded(tx: Tracer, generator: SeededGenerator, seq: VariableTracker) -> VariableTracker:
    """Returns the result of `choice`."""
    index = _run(tx, generator, random.Random.choice, [_indices(tx, seq)], {})
    return tx.call(operator.getitem, [seq, ConstantVariable(index)])


@_pick_handler("choices")
def _choices(
    tx: Tracer, generator: SeededGenerator, method: Any, population: VariableTracker, *args: Any, **kwargs: Any
) -> VariableTracker:
    plain = [_constant_argument(tx, "choices", argument) for argument in args]
    named = {name: _constant_argument(tx, "choices", argument) for name, argument in kwargs.items()}
    return _items_at(tx, population, _run(tx, generator, method, [_indices(tx, population), *plain], named))


@_pick_handler("sample")
def _sample(
    tx: Tracer, generator: SeededGenerator, method: Any, population: VariableTracker, k: VariableTracker, **counts: Any
) -> VariableTracker:
    named = {name: _constant_argument(tx, "sample", argument) for name, argument in counts.items()}
    args = [_indices(tx, population), _constant_argument(tx, "sample", k)]
    return _items_at(tx, population, _run(tx, generator, method, args, named))


@_pick_handler("shuffle")
def _shuffle(tx: Tracer, generator: SeededGenerator, method: Any, x: VariableTracker) -> VariableTracker:
    if not isinstance(x, ListVariable) or x.cls is not list:
        tx.break_graph("MD206", "a Random shuffles something else than a list")
    order = [*_indices(tx, x)]
    _run(tx, generator, method, [order], {})
    items = x.items.lazy()
    x.items[:] = [items[index] for index in order]
    tx.side_effects.contents_changed(x)
    return none()
