"""Owns numpy arrays of constants (construction, computation, and tensors made from them) and numpy's functions of
numbers.

Everything runs during capture, on read-only arrays without other references. A result over the memory of another array
breaks the graph. An external array supports less: its dtype and shape facts are guarded, single numbers are read before
the graph, and tensors are made over its memory, also for tensor subscripts (`tracer/calls/tensor_indexing.py`).
Functions of other arrays, or of tensor values, break the graph. Numpy scalars are constants, see
`tracer/records/constants.py`.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, NoReturn

import numpy as np
import torch

from minidynamo.errors import an
from minidynamo.guards.source import Attr, Called, Constant, Element, is_drawn
from minidynamo.tracer.attributes.lookup import looks_up
from minidynamo.tracer.calls.operators import folded
from minidynamo.tracer.frames.exceptions import same_message, tracked
from minidynamo.tracer.frames.interpreter import Tracer
from minidynamo.tracer.frames.unrolling import limit_trip_counts
from minidynamo.tracer.numbers import numpy_numbers
from minidynamo.tracer.numbers.numpy_numbers import python_number
from minidynamo.tracer.records import registry
from minidynamo.tracer.records.constants import NotConstant, as_constant, from_constant
from minidynamo.tracer.records.fix_hints import HINTS_BY_CLASS
from minidynamo.tracer.records.immutable_classes import NUMPY_SCALARS
from minidynamo.variables.base import ConstantVariable, VariableTracker
from minidynamo.variables.callables import BoundBuiltin, BuiltinVariable
from minidynamo.variables.containers import ListVariable, SequenceVariable, TupleVariable
from minidynamo.variables.objects import OpaqueVariable
from minidynamo.variables.tensors import ArrayVariable, TensorVariable

LARGEST_RESULT = 10_000
_MOST_ELEMENTS_READ = 64
FACTS = ("dtype", "itemsize", "nbytes", "ndim", "shape", "size")
_METHODS = """
    all any argmax argmin argsort astype clip copy cumprod cumsum dot flatten max mean min prod repeat round std sum var
"""
_OPERATORS = """
    add and eq floordiv ge gt le lt matmul mod mul ne or pow radd rfloordiv rmul rpow rsub rtruediv sub truediv
    abs contains float int invert neg
"""


def run(tx: Tracer, function: Callable[..., Any], args: Sequence[VariableTracker], kwargs: Any) -> VariableTracker:
    """Runs a numpy function on constants and arrays of constants, or breaks the graph."""
    name = f"np.{getattr(function, '__name__', 'ndarray')}()"
    try:
        plain = [_numpy_value(arg) for arg in args]
        named = {key: _numpy_value(value) for key, value in kwargs.items()}
    except NotConstant as error:
        why, fix = "While tracing, numpy's functions run on constants alone.", HINTS_BY_CLASS.get(str(error), "")
        tx.break_graph("MD208", f"{name} is called with {an(str(error))}", why=why, fix=fix)
    try:
        result = function(*plain, **named)
    except Exception as error:
        if "read-only" in str(error):
            tx.break_graph("MD208", f"{name} writes to an array", why="Arrays are only read while tracing.")
        tx.raises(tracked(error, tx.side_effects, exact=same_message(error)))
    if type(result) is np.ndarray:
        if any(np.may_share_memory(result, array) for array in _arrays([*plain, *named.values()])):
            tx.break_graph(
                "MD208", f"{name} returns a second array over the same memory", why="Writes to one change both."
            )
        if result.dtype.kind not in "biufc" or not 0 < result.size <= LARGEST_RESULT:
            tx.break_graph(
                "MD208", f"{name} returns a large or empty array, or an array of objects", why="It is left to numpy."
            )
        value = result if result.base is None else result.copy(order="K")
        value.setflags(write=False)
        return ArrayVariable(value)
    try:
        return from_constant(result)
    except NotConstant as error:
        tx.break_graph(
            "MD208", f"{name} returns {an(str(error))}", why="Its contents can neither be tracked nor guarded."
        )


def _arrays(values: Iterable[Any]) -> Iterator[np.ndarray[Any, Any]]:
    for value in values:
        if isinstance(value, np.ndarray):
            yield value
        elif isinstance(value, (list, tuple)):
            yield from _arrays(value)


def _numpy_value(variable: VariableTracker) -> Any:
    if isinstance(variable, ArrayVariable):
        if variable.shared is not None:
            raise NotConstant("ndarray whose memory is that of a tensor")
        return variable.value
    if isinstance(variable, SequenceVariable) and variable.cls in (list, tuple):
        return variable.cls(_numpy_value(item) for item in variable.items)
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
    if name in FACTS:
        return from_constant(getattr(obj.value, name))
    if callable(getattr(np.ndarray, name, None)):
        return BoundBuiltin(obj, name)
    tx.break_graph("MD206", f"`{name}` of an ndarray is used", why="It would expose the memory of the array.")


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
        tx.break_graph("MD206", f"len() of {an(name)} is used", why="Its class may define the length.")
    if not tx.truth(shape):
        tx.raises(TypeError("len() of unsized object"), exact=True)
    return tx.call(operator.getitem, [shape, ConstantVariable(0)])


def _for_all_arrays(name: str) -> Callable[[registry.Handler], registry.Handler]:
    """Registers the handler of a method for arrays of constants and for external arrays."""

    def register(handler: registry.Handler) -> registry.Handler:
        return registry.opaque_method(getattr(np.ndarray, name))(registry.method(np.ndarray, name)(handler))

    return register


@_for_all_arrays("__iter__")
def _iterate(tx: Tracer, array: VariableTracker, /) -> VariableTracker:
    return tx.call(iter, [TupleVariable(_elements(tx, np.ndarray.__getitem__, array))])


@_for_all_arrays("tolist")
def _to_list(tx: Tracer, array: VariableTracker, /) -> VariableTracker:
    if isinstance(array, ArrayVariable):
        return run(tx, np.ndarray.tolist, [array], {})
    return ListVariable(_elements(tx, np.ndarray.item, array))


@_for_all_arrays("__getitem__")
def _item(tx: Tracer, array: VariableTracker, key: VariableTracker, /) -> VariableTracker:
    if isinstance(array, ArrayVariable):
        return run(tx, np.ndarray.__getitem__, [array, key], {})
    items = key.items if isinstance(key, TupleVariable) else [key]
    indices = [as_constant(item) for item in items if item.python_type in (int, np.int64)]
    if len(indices) != len(items):
        _refuse_read(tx, "a part of an external ndarray is read")
    return _element(tx, np.ndarray.__getitem__, array, tuple(map(int, indices)))


@_for_all_arrays("item")
def _only_item(tx: Tracer, array: VariableTracker, /, *args: VariableTracker) -> VariableTracker:
    if isinstance(array, ArrayVariable):
        return run(tx, np.ndarray.item, [array, *args], {})
    if args:
        _refuse_read(tx, "an item of an external ndarray is read by its position")
    return _element(tx, np.ndarray.item, array)


def _elements(tx: Tracer, method: Callable[..., Any], array: VariableTracker) -> list[VariableTracker]:
    """Calls a method for each index of an array with one dimension and returns the results."""
    if isinstance(array, ArrayVariable):
        return [run(tx, method, [array, ConstantVariable(index)], {}) for index in range(len(array.value))]
    real = array.value if isinstance(array, OpaqueVariable) else None
    if type(real) is not np.ndarray or real.ndim != 1 or len(real) > _MOST_ELEMENTS_READ:
        _refuse_read(tx, "a loop over an external ndarray, or a list of it")
    assert real is not None
    length = tx.call(np.ndarray.__len__, [array])
    limit_trip_counts(tx, len(real), "a loop over an array")
    return [_element(tx, method, array, index) for index in range(as_constant(length))]


def _element(tx: Tracer, method: Callable[..., Any], array: VariableTracker, *indices: Any) -> VariableTracker:
    """Calls a method that reads a number from an external array, before the graph."""
    real, source = (array.value, array.source) if isinstance(array, OpaqueVariable) else (None, None)
    if type(real) is not np.ndarray or source is None or real.dtype.type not in NUMPY_SCALARS or tx.graph.subgraph:
        _refuse_read(tx, "an item of an ndarray is read")
    if is_drawn(source):
        _refuse_read(tx, "an item of an array of random numbers is read")
    if tx.graph.may_have_written():
        _refuse_read(tx, "an ndarray is read after a write to a tensor, which may share its memory")
    assert isinstance(array, OpaqueVariable) and isinstance(real, np.ndarray) and source is not None
    try:
        value = method(real, *indices)
    except (IndexError, ValueError) as error:
        shape = _fact_of_argument(tx, array, "shape")
        assert shape is not None
        as_constant(shape)  # guards the shape
        tx.raises(error, exact=True)
    if isinstance(value, np.ndarray):
        _refuse_read(tx, "a part of an external ndarray is read")
    positions = [Constant(index, str(index)) for index in indices]
    return tx.wrap(value, Element(Constant(method, f"numpy.ndarray.{method.__name__}"), (source, *positions)))


def _refuse_read(tx: Tracer, what: str) -> NoReturn:
    why = "Of an external array, single numbers are read while tracing, up to 64 of one dimension."
    tx.break_graph("MD206", what, why=why, fix=HINTS_BY_CLASS["ndarray"])


# Tensors


def _tensor_of_array(tx: Tracer, array: ArrayVariable, kwargs: dict[str, VariableTracker]) -> TensorVariable:
    """Makes a tensor with the contents of the array."""
    if array.shared is not None:
        tx.break_graph("MD208", "another tensor is created from an array", why="A tensor already uses its memory.")
    dtype = ConstantVariable(torch.from_numpy(array.value.copy()).dtype)
    tensor = tx.emit(torch.tensor, [from_constant(array.value.tolist())], {"dtype": dtype, **kwargs})
    assert isinstance(tensor, TensorVariable)
    return tensor


def _tensor_over_external(tx: Tracer, array: VariableTracker) -> VariableTracker | None:
    """Makes a tensor over the memory of an external array; returns None for any other value."""
    if not isinstance(array, OpaqueVariable) or type(array.value) is not np.ndarray or array.source is None:
        return None
    try:
        real = torch.from_numpy(array.value)
    except (TypeError, ValueError):  # torch has no such dtype, or no such strides
        return None
    memory_source = Called(Constant(torch.from_numpy, "torch.from_numpy"), (array.source,))
    return tx.emit("detach", [tx.wrap(real, memory_source)])


@registry.attributes(OpaqueVariable)
def _fact_of_argument(tx: Tracer, obj: OpaqueVariable, name: str) -> VariableTracker | None:
    if type(obj.value) is not np.ndarray or name not in FACTS or obj.source is None:
        return None
    return tx.wrap(getattr(obj.value, name), Attr(obj.source, name))


def _tensor_over_memory(tx: Tracer, function: Any, array: VariableTracker, args: Any, kwargs: Any) -> VariableTracker:
    tensor = _tensor_over_external(tx, array)
    if tensor is not None:
        return tensor if function is torch.from_numpy else tx.emit(function, [tensor, *args], kwargs)
    if not isinstance(array, ArrayVariable):
        return _tensor_of_numbers(tx, function, array, args, kwargs)
    array.shared = _tensor_of_array(tx, array, {})
    return array.shared if function is torch.from_numpy else tx.emit(function, [array.shared, *args], kwargs)


@registry.function(torch.from_numpy)
def _from_numpy(tx: Tracer, array: VariableTracker, /) -> VariableTracker:
    return _tensor_over_memory(tx, torch.from_numpy, array, [], {})


@registry.function(torch.as_tensor)
def _as_tensor(tx: Tracer, data: VariableTracker, *args: VariableTracker, **kwargs: VariableTracker) -> VariableTracker:
    return _tensor_over_memory(tx, torch.as_tensor, data, args, kwargs)


@registry.function(torch.asarray)
def _asarray(tx: Tracer, obj: VariableTracker, **kwargs: VariableTracker) -> VariableTracker:
    return _tensor_over_memory(tx, torch.asarray, obj, [], kwargs)


@registry.function(torch.tensor)
def _copy(tx: Tracer, data: VariableTracker, **kwargs: VariableTracker) -> VariableTracker:
    tensor = None if kwargs else _tensor_over_external(tx, data)
    if tensor is not None:
        return tx.emit("clone", [tensor])
    if isinstance(data, ArrayVariable):
        return _tensor_of_array(tx, data, kwargs)
    return _tensor_of_numbers(tx, torch.tensor, data, [], kwargs)


def _tensor_of_numbers(tx: Tracer, function: Any, data: VariableTracker, args: Any, kwargs: Any) -> VariableTracker:
    """Makes a tensor of numbers. Numpy scalars decide its dtype, and are Python numbers in the graph."""
    if args or not _has_numpy_numbers(data):
        return tx.emit(function, [data, *args], kwargs)
    dtype = kwargs.get("dtype", ConstantVariable(None))
    varying = python_number(tx, data) if "dtype" not in kwargs else None
    if varying is not None and isinstance(data, ConstantVariable):
        return tx.call(
            function, [varying], {**kwargs, "dtype": ConstantVariable(torch.tensor(data.unguarded_value).dtype)}
        )
    try:
        numbers = as_constant(data)
        dtype = ConstantVariable(torch.tensor(numbers, dtype=as_constant(dtype)).dtype)
        data = from_constant(_as_python(numbers))
    except (NotConstant, OverflowError, RuntimeError, TypeError, ValueError):  # the emitted call raises the error
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


registry.fold_type(*NUMPY_SCALARS)
registry.fold(np.dtype, np.finfo, np.iinfo)

_PURE: tuple[Any, ...] = (
    *(np.all, np.allclose, np.amax, np.amin, np.any, np.argmax, np.argmin, np.array_equal, np.around, np.clip),
    *(np.count_nonzero, np.dot, np.isclose, np.max, np.mean, np.median, np.min, np.ndim, np.prod, np.ptp, np.round),
    *(np.size, np.std, np.sum, np.var),
)


@registry.instances(np.ufunc)
def _ufunc(
    tx: Tracer, function: BuiltinVariable, /, *args: VariableTracker, **kwargs: VariableTracker
) -> VariableTracker:
    varying = None if kwargs else numpy_numbers.numpy_call(tx, function.value, args)
    return run(tx, function.value, args, kwargs) if varying is None else varying


@registry.method(np.generic, "item")
def _item_of_scalar(tx: Tracer, number: VariableTracker, /, *args: VariableTracker) -> VariableTracker:
    plain = None if args else numpy_numbers.python_number(tx, number)
    if plain is not None:
        return plain
    method = getattr(number.python_type, "item")  # noqa: B009 (type checkers do not know the attribute)
    result = folded(tx, method, [number, *args], [as_constant(operand) for operand in (number, *args)], {})
    assert result is not None
    return result


def _pure(function: Any) -> registry.Handler:
    def handler(tx: Tracer, /, *args: VariableTracker, **kwargs: VariableTracker) -> VariableTracker:
        varying = None if kwargs else numpy_numbers.numpy_call(tx, function, args)
        return run(tx, function, args, kwargs) if varying is None else varying

    return handler


for _function in {id(function): function for function in _PURE}.values():
    registry.function(_function)(_pure(_function))


@registry.instances(type(np.prod))
def _other_function(
    tx: Tracer, function: BuiltinVariable, /, *args: VariableTracker, **kwargs: VariableTracker
) -> VariableTracker:
    why = "minidynamo does not know whether it runs on constants alone."
    tx.break_graph("MD207", f"np.{function.value.__name__}() cannot be captured", why=why)
