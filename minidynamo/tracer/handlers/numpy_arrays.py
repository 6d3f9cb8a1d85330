"""Owns numpy's arrays of constants: functions that make them, what is computed of them, the tensors made from them.

Everything runs while tracing, on arrays that nobody else holds and that may not be written to. What would give a second
array over the same memory is left to Python. Of arrays from outside their facts are known, and single numbers in them,
which are read in front of the graph; and tensors are made over their memory, also for subscripts of tensors
(`tracer/calls/tensor_indexing.py`). Everything else is left to numpy. Functions of numbers are in `numpy_scalars.py`,
which calls this one.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, NoReturn

import numpy as np
import torch

from minidynamo.guards.source import Attr, Called, Constant, Element
from minidynamo.tracer.attributes.lookup import looks_up
from minidynamo.tracer.frames.exceptions import says, tracked
from minidynamo.tracer.frames.unrolling import unroll
from minidynamo.tracer.numbers.numpy_numbers import plain
from minidynamo.tracer.protocol import Tracer
from minidynamo.tracer.records import registry
from minidynamo.tracer.records.constants import NotConstant, as_constant, from_constant
from minidynamo.tracer.records.copies import NUMPY_SCALARS
from minidynamo.tracer.records.fix_hints import INSTEAD
from minidynamo.variables.arrays import ArrayVariable
from minidynamo.variables.base import VariableTracker
from minidynamo.variables.callables import BoundBuiltin
from minidynamo.variables.constants import ConstantVariable
from minidynamo.variables.containers import ListVariable, SequenceVariable, TupleVariable
from minidynamo.variables.objects import OpaqueVariable
from minidynamo.variables.tensors import TensorVariable

LARGEST = 10_000
_MOST_ELEMENTS = 64
_FACTS = ("dtype", "itemsize", "nbytes", "ndim", "shape", "size")
_METHODS = """
    all any argmax argmin argsort astype clip copy cumprod cumsum dot flatten max mean min prod repeat round std sum var
"""
_OPERATORS = """
    add and eq floordiv ge gt le lt matmul mod mul ne or pow radd rfloordiv rmul rpow rsub rtruediv sub truediv
    abs contains float int invert neg
"""


def run(tx: Tracer, function: Callable[..., Any], args: Sequence[VariableTracker], kwargs: Any) -> VariableTracker:
    """The result of one of numpy's functions on constants and arrays of constants, or a graph break."""
    name = f"np.{getattr(function, '__name__', 'ndarray')}()"
    try:
        plain = [_plain(arg) for arg in args]
        named = {key: _plain(value) for key, value in kwargs.items()}
    except NotConstant as error:
        why, fix = "While tracing, numpy's functions run on constants alone.", INSTEAD.get(str(error), "")
        tx.break_graph("MD208", f"{name} is called with a {error}", why=why, fix=fix)
    try:
        result = function(*plain, **named)
    except Exception as error:
        if "read-only" in str(error):
            tx.break_graph("MD208", f"{name} writes to an array", why="Arrays are only read while tracing.")
        tx.raises(tracked(error, tx.side_effects, exact=says(error)))
    if type(result) is np.ndarray:
        if any(np.may_share_memory(result, given) for given in _arrays([*plain, *named.values()])):
            tx.break_graph(
                "MD208", f"{name} gives a second array over the same memory", why="Writes to one change both."
            )
        if result.dtype.kind not in "biufc" or not 0 < result.size <= LARGEST:
            tx.break_graph(
                "MD208", f"{name} gives a large or empty array, or one of objects", why="It is left to numpy."
            )
        value = result if result.base is None else result.copy(order="K")
        value.setflags(write=False)
        return ArrayVariable(value)
    try:
        return from_constant(result)
    except NotConstant as error:
        tx.break_graph("MD208", f"{name} gives a {error}", why="Its contents can neither be tracked nor guarded.")


def _arrays(values: Iterable[Any]) -> Iterator[np.ndarray[Any, Any]]:
    for value in values:
        if isinstance(value, np.ndarray):
            yield value
        elif isinstance(value, (list, tuple)):
            yield from _arrays(value)


def _plain(variable: VariableTracker) -> Any:
    if isinstance(variable, ArrayVariable):
        if variable.shared is not None:
            raise NotConstant("ndarray whose memory is that of a tensor")
        return variable.value
    if isinstance(variable, SequenceVariable) and variable.cls in (list, tuple):
        return variable.cls(_plain(item) for item in variable.items)
    return as_constant(variable)


# Functions


_MAKERS: tuple[Any, ...] = (
    *(np.arange, np.array, np.concatenate, np.eye, np.full, np.geomspace, np.hanning, np.hamming, np.blackman),
    *(np.linspace, np.logspace, np.ones, np.stack, np.tri, np.where, np.zeros, np.cumsum, np.cumprod, np.outer),
    *(np.diff, np.interp, np.kaiser, np.bartlett, np.sort, np.argsort, np.searchsorted, np.tile, np.repeat),
)


def _maker(function: Any) -> registry.Handler:
    def handler(tx: Tracer, /, *args: VariableTracker, **kwargs: VariableTracker) -> VariableTracker:
        return run(tx, function, args, kwargs)

    return handler


for _function in _MAKERS:
    registry.function(_function)(_maker(_function))


# Attributes and methods


@looks_up(ArrayVariable)
def _attribute(tx: Tracer, obj: ArrayVariable, name: str) -> VariableTracker | None:
    if name in _FACTS:
        return from_constant(getattr(obj.value, name))
    if callable(getattr(np.ndarray, name, None)):
        return BoundBuiltin(obj, name)
    tx.break_graph("MD206", f"`{name}` of a ndarray is used", why="It would show the array's memory.")


def _method(name: str) -> registry.Handler:
    function = getattr(np.ndarray, name)

    def handler(tx: Tracer, /, *args: VariableTracker, **kwargs: VariableTracker) -> VariableTracker:
        return run(tx, function, args, kwargs)

    return handler


for _name in (*_METHODS.split(), *(f"__{name}__" for name in _OPERATORS.split())):
    registry.method(np.ndarray, _name)(_method(_name))


@registry.opaque_method(np.ndarray.__len__)
def _length(tx: Tracer, array: VariableTracker, /) -> VariableTracker:
    if isinstance(array, ArrayVariable):
        return run(tx, np.ndarray.__len__, [array], {})
    shape = _fact_of_argument(tx, array, "shape") if isinstance(array, OpaqueVariable) else None
    if shape is None:
        name = array.python_type.__name__
        tx.break_graph("MD206", f"len() of a {name} is asked for", why="Its class may say what that is.")
    if not tx.truth(shape):
        tx.raises(TypeError("len() of unsized object"), exact=True)
    return tx.call(operator.getitem, [shape, ConstantVariable(0)])


def _of_all(name: str) -> Callable[[registry.Handler], registry.Handler]:
    """Handle a method of arrays of constants and of those from outside."""

    def register(handler: registry.Handler) -> registry.Handler:
        return registry.opaque_method(getattr(np.ndarray, name))(registry.method(np.ndarray, name)(handler))

    return register


@_of_all("__iter__")
def _iterate(tx: Tracer, array: VariableTracker, /) -> VariableTracker:
    return tx.call(iter, [TupleVariable(_elements(tx, np.ndarray.__getitem__, array))])


@_of_all("tolist")
def _to_list(tx: Tracer, array: VariableTracker, /) -> VariableTracker:
    if isinstance(array, ArrayVariable):
        return run(tx, np.ndarray.tolist, [array], {})
    return ListVariable(_elements(tx, np.ndarray.item, array))


@_of_all("__getitem__")
def _item(tx: Tracer, array: VariableTracker, key: VariableTracker, /) -> VariableTracker:
    if isinstance(array, ArrayVariable):
        return run(tx, np.ndarray.__getitem__, [array, key], {})
    items = key.items if isinstance(key, TupleVariable) else [key]
    places = [as_constant(item) for item in items if item.python_type in (int, np.int64)]
    if len(places) != len(items):
        _look_into(tx, "a part of an ndarray from outside is taken")
    return _element(tx, np.ndarray.__getitem__, array, tuple(map(int, places)))


@_of_all("item")
def _only_item(tx: Tracer, array: VariableTracker, /, *args: VariableTracker) -> VariableTracker:
    if isinstance(array, ArrayVariable):
        return run(tx, np.ndarray.item, [array, *args], {})
    if args:
        _look_into(tx, "an item of an ndarray from outside is asked for by its place")
    return _element(tx, np.ndarray.item, array)


def _elements(tx: Tracer, method: Callable[..., Any], array: VariableTracker) -> list[VariableTracker]:
    """What a method gives for each place of an array with one dimension."""
    if isinstance(array, ArrayVariable):
        return [run(tx, method, [array, ConstantVariable(place)], {}) for place in range(len(array.value))]
    real = array.value if isinstance(array, OpaqueVariable) else None
    if type(real) is not np.ndarray or real.ndim != 1 or len(real) > _MOST_ELEMENTS:
        _look_into(tx, "an ndarray from outside is looped over, or made a list")
    assert real is not None
    length = tx.call(np.ndarray.__len__, [array])
    unroll(tx, len(real), "a loop over an array")
    return [_element(tx, method, array, place) for place in range(as_constant(length))]


def _element(tx: Tracer, method: Callable[..., Any], array: VariableTracker, *places: Any) -> VariableTracker:
    """What a method gives for a number in an array from outside, as it is in front of the graph."""
    real, source = (array.value, array.source) if isinstance(array, OpaqueVariable) else (None, None)
    if type(real) is not np.ndarray or source is None or real.dtype.type not in NUMPY_SCALARS or tx.graph.subgraph:
        _look_into(tx, "an item of an ndarray is asked for")
    if tx.graph.may_have_written():
        _look_into(tx, "an ndarray is looked into behind a write to a tensor, which may share its memory")
    assert isinstance(array, OpaqueVariable) and isinstance(real, np.ndarray) and source is not None
    try:
        value = method(real, *places)
    except (IndexError, ValueError) as error:
        shape = _fact_of_argument(tx, array, "shape")
        assert shape is not None
        as_constant(shape)  # which is guarded by that
        tx.raises(error, exact=True)
    if isinstance(value, np.ndarray):
        _look_into(tx, "a part of an ndarray from outside is taken")
    given = [Constant(place, str(place)) for place in places]
    return tx.wrap(value, Element(Constant(method, f"numpy.ndarray.{method.__name__}"), (source, *given)))


def _look_into(tx: Tracer, what: str) -> NoReturn:
    why = "Of an array from outside, single numbers are read while tracing, up to 64 of one dimension."
    tx.break_graph("MD206", what, why=why, fix=INSTEAD["ndarray"])


# Tensors


def _tensor(tx: Tracer, array: ArrayVariable, kwargs: dict[str, VariableTracker]) -> TensorVariable:
    """A tensor with the contents of the array."""
    if array.shared is not None:
        tx.break_graph("MD208", "another tensor is made from an array", why="Its memory is that of a tensor by now.")
    dtype = ConstantVariable(torch.from_numpy(array.value.copy()).dtype)
    made = tx.emit(torch.tensor, [from_constant(array.value.tolist())], {"dtype": dtype, **kwargs})
    assert isinstance(made, TensorVariable)
    return made


def _memory_of_argument(tx: Tracer, array: VariableTracker) -> VariableTracker | None:
    """A new tensor over the memory of an array from outside; None for anything else."""
    if not isinstance(array, OpaqueVariable) or type(array.value) is not np.ndarray or array.source is None:
        return None
    try:
        real = torch.from_numpy(array.value)
    except (TypeError, ValueError):  # torch has no such dtype, or no such strides
        return None
    place = Called(Constant(torch.from_numpy, "torch.from_numpy"), (array.source,))
    return tx.emit("detach", [tx.wrap(real, place)])


@registry.attributes(OpaqueVariable)
def _fact_of_argument(tx: Tracer, obj: OpaqueVariable, name: str) -> VariableTracker | None:
    if type(obj.value) is not np.ndarray or name not in _FACTS or obj.source is None:
        return None
    return tx.wrap(getattr(obj.value, name), Attr(obj.source, name))


def _over_memory(tx: Tracer, function: Any, array: VariableTracker, args: Any, kwargs: Any) -> VariableTracker:
    outside = _memory_of_argument(tx, array)
    if outside is not None:
        return outside if function is torch.from_numpy else tx.emit(function, [outside, *args], kwargs)
    if not isinstance(array, ArrayVariable):
        return _of_numbers(tx, function, array, args, kwargs)
    array.shared = _tensor(tx, array, {})
    return array.shared if function is torch.from_numpy else tx.emit(function, [array.shared, *args], kwargs)


@registry.function(torch.from_numpy)
def _from_numpy(tx: Tracer, array: VariableTracker, /) -> VariableTracker:
    return _over_memory(tx, torch.from_numpy, array, [], {})


@registry.function(torch.as_tensor)
def _as_tensor(tx: Tracer, data: VariableTracker, *args: VariableTracker, **kwargs: VariableTracker) -> VariableTracker:
    return _over_memory(tx, torch.as_tensor, data, args, kwargs)


@registry.function(torch.asarray)
def _asarray(tx: Tracer, obj: VariableTracker, **kwargs: VariableTracker) -> VariableTracker:
    return _over_memory(tx, torch.asarray, obj, [], kwargs)


@registry.function(torch.tensor)
def _copy(tx: Tracer, data: VariableTracker, **kwargs: VariableTracker) -> VariableTracker:
    outside = None if kwargs else _memory_of_argument(tx, data)
    if outside is not None:
        return tx.emit("clone", [outside])
    return (
        _tensor(tx, data, kwargs)
        if isinstance(data, ArrayVariable)
        else _of_numbers(tx, torch.tensor, data, [], kwargs)
    )


def _of_numbers(tx: Tracer, function: Any, data: VariableTracker, args: Any, kwargs: Any) -> VariableTracker:
    """A tensor of numbers. Those of numpy's say its dtype, and are Python's in the graph."""
    if args or not _has_numpy_numbers(data):
        return tx.emit(function, [data, *args], kwargs)
    dtype = kwargs.get("dtype", ConstantVariable(None))
    varying = plain(tx, data) if "dtype" not in kwargs else None
    if varying is not None and isinstance(data, ConstantVariable):
        return tx.call(function, [varying], {**kwargs, "dtype": ConstantVariable(torch.tensor(data.here).dtype)})
    try:
        numbers = as_constant(data)
        dtype = ConstantVariable(torch.tensor(numbers, dtype=as_constant(dtype)).dtype)
        data = from_constant(_as_python(numbers))
    except (NotConstant, OverflowError, RuntimeError, TypeError, ValueError):  # it is Python that raises
        return tx.emit(function, [data], kwargs)
    return tx.emit(function, [data], {**kwargs, "dtype": dtype})


def _has_numpy_numbers(data: VariableTracker) -> bool:
    if isinstance(data, SequenceVariable) and data.cls in (list, tuple):
        return any(map(_has_numpy_numbers, data.items))
    return isinstance(data, ConstantVariable) and issubclass(data.python_type, (np.bool_, np.integer, np.floating))


def _as_python(numbers: Any) -> Any:
    if isinstance(numbers, list | tuple):
        return [*map(_as_python, numbers)]
    return numbers.item() if isinstance(numbers, np.generic) else numbers
