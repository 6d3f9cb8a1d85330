"""Owns draws of arrays from numpy's generators: `numpy.random.rand(4)`, `rng.standard_normal((2, 3))`.

As with Python's generators (`random_numbers.py`), the residual program calls the same functions in the same order
before the graph runs. The arguments are constants, so the dtype and the shape of a drawn array are those of the array
that capture draws from a generator of its own, and need no guard. The program may convert the array and make a tensor
over its memory; any other use breaks the graph.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import numpy as np

from minidynamo.guards.guard import GuardKind
from minidynamo.guards.source import Attr, Constant, Drawn, Source
from minidynamo.tracer.frames.interpreter import Tracer
from minidynamo.tracer.handlers.numpy_arrays import FACTS
from minidynamo.tracer.handlers.random_numbers import reason_against_early_call, record_draw
from minidynamo.tracer.numbers.arithmetic import computed_text
from minidynamo.tracer.records import registry
from minidynamo.tracer.records.constants import NotConstant, as_constant
from minidynamo.tracer.records.fix_hints import HINTS_BY_CLASS, OPAQUE
from minidynamo.tracer.wrap import same_object
from minidynamo.variables.base import ConstantVariable, VariableTracker
from minidynamo.variables.callables import BuiltinVariable
from minidynamo.variables.objects import OpaqueVariable

# Methods that draw only from their generator, and return a new array if they are called with a size.
_METHODS: dict[type, tuple[str, ...]] = {
    np.random.RandomState: (
        *("rand", "randn", "random", "random_sample", "uniform", "normal", "standard_normal", "randint"),
        *("exponential", "poisson", "binomial", "beta", "gamma", "laplace", "permutation"),
    ),
    np.random.Generator: (
        *("random", "uniform", "normal", "standard_normal", "integers", "exponential", "poisson", "binomial"),
        *("beta", "gamma", "laplace", "permutation"),
    ),
}
# Guards on class, layout and identity. The elements differ from call to call.
_CERTAIN = frozenset(
    {GuardKind.TYPE, GuardKind.TENSOR, GuardKind.PRESENT, GuardKind.NOT_NONE, GuardKind.DISTINCT_OBJECTS}
)
_CONSTANTS = (int, float, bool, str, type(None))

# The class of methods that are written in Cython.
registry.wrapper(type(np.random.Generator.random))(same_object(BuiltinVariable))


def _draw(
    method: Callable[..., Any], tx: Tracer, generator: VariableTracker, /, *args: VariableTracker, **kwargs: Any
) -> VariableTracker:
    what = f"{type(_value_of(generator)).__name__}.{method.__name__} is used"
    cls = type(_value_of(generator))
    why = reason_against_early_call(tx) if cls in _METHODS and generator.source is not None else OPAQUE
    if why:
        tx.break_graph("MD206", what, why=why, fix=HINTS_BY_CLASS.get("Random", ""))
    own: Any = np.random.RandomState(0) if cls is np.random.RandomState else np.random.default_rng(0)
    return _call(tx, what, method, own, generator, generator.source, args, kwargs)


def _convert(
    method: Callable[..., Any], tx: Tracer, array: VariableTracker, /, *args: VariableTracker, **kwargs: Any
) -> VariableTracker:
    what = f"ndarray.{method.__name__} is used"
    generator = next((draw.generator for draw in tx.side_effects.draws if draw.number == array.source), None)
    why = OPAQUE if generator is None else reason_against_early_call(tx)
    if not why and tx.graph.may_have_written():
        why = "A tensor was written, which may share the memory of the array."
    if why:
        tx.break_graph("MD206", what, why=why, fix=HINTS_BY_CLASS["ndarray"])
    return _call(tx, what, method, _value_of(array), array, generator, args, kwargs)


def _value_of(variable: VariableTracker) -> Any:
    return variable.value if isinstance(variable, OpaqueVariable) else None


def _call(
    tx: Tracer,
    what: str,
    method: Callable[..., Any],
    real: Any,
    receiver: VariableTracker,
    generator: Source | None,
    args: tuple[VariableTracker, ...],
    kwargs: dict[str, VariableTracker],
) -> VariableTracker:
    """Lets the residual program call a method with constants; `real` serves capture instead of the receiver."""
    try:
        values = [as_constant(arg) for arg in args]
        named = {name: as_constant(value) for name, value in kwargs.items()}
    except NotConstant:
        tx.break_graph("MD206", what, why="It is called with values that are only known when the program runs.")
    try:
        example = method(real, *values, **named)
    except Exception as error:
        tx.raises(error)
    if type(example) is not np.ndarray or example.base is not None or not receiver.source or not generator:
        tx.break_graph("MD206", what, why="It returns no new array.", fix=HINTS_BY_CLASS.get("Random", ""))
    slots = [f"{{{number}}}" for number in range(2, 2 + len(values))]
    slots += [f"{name}={{{number}}}" for number, name in enumerate(named, 2 + len(values))]
    operands = [_operand(value) for value in (*values, *named.values())]
    template = f"{{0}}({', '.join(['{1}', *slots])})"
    call = computed_text(template, Constant(method, method.__name__), receiver.source, *operands)
    if call is None:
        tx.break_graph("MD206", what, why="The call is too long.")
    drawn = record_draw(tx, generator, call, has_result=True)
    assert isinstance(drawn, Drawn)
    tx.graph.skip_guards(drawn, _CERTAIN)
    for fact in FACTS:
        tx.graph.skip_guards(Attr(drawn, fact))
    return tx.wrap(example, drawn)


def _operand(value: Any) -> VariableTracker | Source:
    return ConstantVariable(value) if type(value) in _CONSTANTS else Constant(value, "argument")


for _cls, _names in _METHODS.items():
    for _name in _names:
        _method = getattr(_cls, _name)
        registry.opaque_method(_method)(functools.partial(_draw, _method))
for _name in ("astype", "clip", "copy", "round"):
    _method = getattr(np.ndarray, _name)
    registry.opaque_method(_method)(functools.partial(_convert, _method))
