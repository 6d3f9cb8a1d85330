"""Owns torch functions that return an answer immediately instead of computing a tensor in the graph, and fused updates
of optimizers.

Grad mode, autocast and functions that become graph nodes are in the tracer.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch

from minidynamo.compat import (
    FUSED_UPDATES,
    FX_QUESTIONS,
    MODULE_CALL,
    group_tensors,
    is_function_mode_enabled,
    is_onednn_lstm,
    log_api_usage,
    torch_dispatch_mode_count,
)
from minidynamo.core import directives
from minidynamo.tracer.calls.torch_overrides import overriding_class
from minidynamo.tracer.frames.interpreter import Tracer
from minidynamo.tracer.frames.unrolling import limit_trip_counts, size_here
from minidynamo.tracer.handlers.values import constant
from minidynamo.tracer.records import registry
from minidynamo.tracer.records.constants import key_of
from minidynamo.variables.base import ConstantVariable, NumberVariable, VariableTracker
from minidynamo.variables.containers import DictKey, DictVariable, ListVariable, TupleVariable
from minidynamo.variables.objects import ClassVariable
from minidynamo.variables.tensors import TensorVariable

aten = torch.ops.aten

# Answers during capture.
_FIXED_ANSWERS: dict[Any, int] = {
    torch.jit.is_scripting: False,  # type: ignore[attr-defined]
    torch.jit.is_tracing: False,  # type: ignore[attr-defined]
    **dict.fromkeys(FX_QUESTIONS, False),
    torch.compiler.is_dynamo_compiling: False,
    torch.compiler.is_exporting: False,
    directives.is_compiling: True,
    is_function_mode_enabled: False,  # frames are not captured under modes other than `torch.device` contexts
    torch_dispatch_mode_count: 0,  # a frame runs eagerly while a dispatch mode is open
    torch.distributed.is_available: torch.distributed.is_available(),
}


def _answer(value: int) -> registry.Handler:
    def handle(tx: Tracer) -> VariableTracker:
        return ConstantVariable(value)

    return handle


for _function, _value in _FIXED_ANSWERS.items():
    registry.function(_function)(_answer(_value))


# Code of torch whose results differ if `is_compiling()` is True: nn.Module's call skips hooks that must run when
# forward raises, the encoder computes different values for padded inputs, optimizers round numbers to float32.
_SAME_AS_EAGER = (MODULE_CALL.__code__, torch.nn.TransformerEncoder.forward.__code__)
_OPTIMIZERS = str(Path(inspect.getfile(torch.optim)).parent)


@registry.function(torch.compiler.is_compiling)
def _is_compiling(tx: Tracer) -> VariableTracker:
    code = tx.frames[-1].code
    return ConstantVariable(code not in _SAME_AS_EAGER and not code.co_filename.startswith(_OPTIMIZERS))


@registry.function(
    torch.overrides.has_torch_function,
    torch.overrides.has_torch_function_unary,
    torch.overrides.has_torch_function_variadic,
)
def _has_torch_function(tx: Tracer, *args: VariableTracker) -> VariableTracker:
    if overriding_class(tx, args) is not None:
        return ConstantVariable(True)
    for arg in args:
        if isinstance(arg, TupleVariable | ListVariable):
            _has_torch_function(tx, *arg.items)
        elif not isinstance(arg, TensorVariable) and hasattr(arg.python_type, "__torch_function__"):
            tx.break_graph(
                "MD243",
                f"a torch function of a `{arg.python_type.__name__}`",
                why="The class takes over torch functions with `__torch_function__`.",
                fix="Pass plain tensors.",
            )
    return ConstantVariable(False)


@registry.function(log_api_usage)
def _log_api_usage(tx: Tracer, name: VariableTracker) -> VariableTracker:
    return ConstantVariable(None)  # for statistics; nn.Module calls it when a module is created


@registry.function(group_tensors)
def _group_tensors(tx: Tracer, lists: VariableTracker, with_indices: VariableTracker | None = None) -> VariableTracker:
    """Groups tensors by device and dtype, in the order of torch's own hash table."""
    columns = [tx.unpack(column) for column in tx.unpack(lists)]
    fakes = [[tx.graph.use(t) if isinstance(t, TensorVariable) else None for t in column] for column in columns]
    groups: dict[DictKey, VariableTracker] = {}
    for key, (_, indices) in group_tensors(fakes, True).items():
        parts = [ListVariable([column[index] for index in indices] if column else []) for column in columns]
        returned_indices = indices if with_indices is not None and tx.truth(with_indices) else []
        groups[key_of(constant(key))] = TupleVariable([ListVariable([*parts]), constant(returned_indices)])
    return DictVariable(groups)


@registry.function(torch.nn.functional.one_hot)
def _one_hot(tx: Tracer, *args: VariableTracker, **kwargs: VariableTracker) -> VariableTracker:
    """Emits `one_hot` on a contiguous index: a fake result has the layout of the index, a real result is row-major."""
    if args and isinstance(args[0], TensorVariable) and not tx.graph.use(args[0]).is_contiguous():
        args = (tx.call_method(args[0], "contiguous", []), *args[1:])
    return tx.emit(torch.nn.functional.one_hot, args, kwargs)


def _max_pool1d(
    function: Callable[..., Any], tx: Tracer, *args: VariableTracker, **kwargs: VariableTracker
) -> VariableTracker:
    """Emits `max_pool1d` with the strides of the real result.

    On a CPU, without gradients and indices, torch uses a separate kernel, whose results are row-major and no views. A
    fake result has the layout of the kernel that also returns indices, whose results are views. The separate kernel
    would specialize all sizes, so symbolic sizes use the kernel with indices, which returns the same values.
    """
    x = args[0] if args else kwargs.get("input")
    indices = args[6] if len(args) > 6 else kwargs.get("return_indices")
    if not isinstance(x, TensorVariable) or (indices is not None and tx.truth(indices)):
        return tx.emit(function, args, kwargs)
    fake = tx.graph.use(x)
    differentiated = fake.requires_grad and torch.is_grad_enabled()
    plain = not differentiated and fake.device.type == "cpu"
    if plain and not fake.is_contiguous():
        rows = tx.call_method(x, "contiguous", [])
        args, kwargs = ((rows, *args[1:]), kwargs) if args else (args, {**kwargs, "input": rows})
    if any(isinstance(size, torch.SymInt) for size in fake.shape):
        kwargs = {name: value for name, value in kwargs.items() if name != "return_indices"}
        pooled = tx.unpack(tx.emit(torch.nn.functional.max_pool1d_with_indices, args[:6], kwargs))[0]
    else:
        pooled = tx.emit(function, args, kwargs)
    if not plain:
        return pooled
    if fake.ndim == 3:
        return tx.emit(aten._unsafe_view.default, [pooled, tx.getattr(pooled, "shape")], {})
    batch = tx.call_method(pooled, "unsqueeze", [constant(0)])  # torch removes it in place, and counts a write
    rows = tx.emit(aten._unsafe_view.default, [batch, tx.getattr(batch, "shape")], {})
    return tx.call_method(rows, "squeeze_", [constant(0)])


for _function in (torch.max_pool1d, torch.nn.functional.max_pool1d):
    registry.function(_function)(functools.partial(_max_pool1d, _function))


# The most cells (steps, in each layer and direction) of a recurrent layer in a graph. A GRU of 120 cells took 27 s to
# compile for training on two cores of a Xeon, one of 240 cells 63 s.
_MOST_CELLS = 64


def _recurrent(
    function: Callable[..., Any], tx: Tracer, *args: VariableTracker, **kwargs: VariableTracker
) -> VariableTracker:
    """Emits a recurrent layer, which fake tensors unroll. With a packed sequence, the second argument is its sizes."""
    x, packed = args[0] if args else None, len(args) > 2 and isinstance(args[2], TensorVariable | TupleVariable)
    if isinstance(x, TensorVariable) and not packed:
        shape, batch_first = tx.graph.use(x).shape, len(args) > 8 and tx.truth(args[8])
        steps = shape[batch_first] if len(shape) == 3 else 1
        limit_trip_counts(tx, size_here(steps), f"{function.__name__}()", varies=isinstance(steps, torch.SymInt))
        if len(args) > 7:
            _limit_cells(tx, function, args, size_here(steps))
    return tx.emit(function, args, kwargs)


def _limit_cells(tx: Tracer, function: Callable[..., Any], args: Sequence[VariableTracker], steps: int) -> None:
    """Breaks the graph before a layer that the graph would divide into more than `_MOST_CELLS` cells."""
    x, hidden, weights = (_fakes(tx, arg) for arg in args[:3])
    layers, both_ways = (arg.value if isinstance(arg, ConstantVariable) else 1 for arg in (args[4], args[7]))
    cells = steps * layers * (1 + both_ways)
    is_one_kernel = x[0].device.type != "cpu" or (function is torch.lstm and is_onednn_lstm(x[0], hidden, weights))
    if cells > _MOST_CELLS and not is_one_kernel and tx.graph.may_break_here:
        tx.break_graph(
            "MD221",
            f"{function.__name__}() has {cells} cells: steps, in each layer and direction",
            why=f"A graph contains each cell, and at most {_MOST_CELLS} cells; torch runs a longer layer.",
            fix="Cut the sequence into chunks, or accept the break.",
        )


def _fakes(tx: Tracer, arg: VariableTracker) -> list[torch.Tensor]:
    """Returns the fake tensor of an argument, or those of the items of a list or tuple."""
    items = arg.items if isinstance(arg, ListVariable | TupleVariable) else [arg]
    return [tx.graph.use(item) for item in items if isinstance(item, TensorVariable)]


for _function in (torch.lstm, torch.gru, torch.rnn_tanh, torch.rnn_relu):
    registry.function(_function)(functools.partial(_recurrent, _function))


@registry.function(torch.is_tensor)
def _is_tensor(tx: Tracer, obj: VariableTracker, /) -> VariableTracker:
    return tx.call(isinstance, [obj, ClassVariable(torch.Tensor)])


@registry.function(torch.is_floating_point)
def _is_floating_point(tx: Tracer, input: VariableTracker) -> VariableTracker:
    return tx.getattr(tx.getattr(input, "dtype"), "is_floating_point")


@registry.function(torch.is_complex)
def _is_complex(tx: Tracer, input: VariableTracker) -> VariableTracker:
    return tx.getattr(tx.getattr(input, "dtype"), "is_complex")


# --- masks of bytes ---------------------------------------------------------------------------------------------------


def _as_mask(tx: Tracer, condition: VariableTracker) -> VariableTracker:
    """Converts the condition of `where` to bool: kernels accept a mask of bytes, fake tensors do not."""
    is_bytes = isinstance(condition, TensorVariable) and tx.graph.use(condition).dtype == torch.uint8
    return tx.emit("bool", [condition]) if is_bytes else condition


@registry.function(torch.where)
def _where(tx: Tracer, condition: VariableTracker, *args: Any, **kwargs: VariableTracker) -> VariableTracker:
    return tx.emit(torch.where, [_as_mask(tx, condition) if args or kwargs else condition, *args], kwargs)


@registry.method(torch.Tensor, "where")
def _where_of_tensor(
    tx: Tracer, self: TensorVariable, condition: VariableTracker, *args: VariableTracker, **kwargs: VariableTracker
) -> VariableTracker:
    return tx.emit("where", [self, _as_mask(tx, condition), *args], kwargs)


# --- averages ---------------------------------------------------------------------------------------------------------

_EXACT = (torch.float32, torch.float64)


def _weight(tx: Tracer, tensors: Sequence[VariableTracker], weight: VariableTracker) -> VariableTracker:
    """Returns the weight of `lerp`; a symbolic number becomes a tensor, so that the call can be fused.

    Otherwise torch treats it as a plain number. With gradients, the derivative would round the weight once more.
    """
    fakes = [tx.graph.use(tensor) for tensor in tensors if isinstance(tensor, TensorVariable)]
    if not isinstance(weight, NumberVariable) or not fakes or any(fake.dtype not in _EXACT for fake in fakes):
        return weight
    if torch.is_grad_enabled() and any(fake.requires_grad for fake in fakes):
        return weight
    options = {"dtype": ConstantVariable(fakes[0].dtype), "device": ConstantVariable(fakes[0].device)}
    return tx.emit(torch.scalar_tensor, [weight], options)


@registry.function(torch.lerp)
def _lerp(
    tx: Tracer, input: VariableTracker, end: VariableTracker, weight: VariableTracker, **kwargs: VariableTracker
) -> VariableTracker:
    return tx.emit(torch.lerp, [input, end, _weight(tx, [input, end], weight)], kwargs)


def _lerp_method(name: str) -> None:
    @registry.method(torch.Tensor, name)
    def lerp(tx: Tracer, self: VariableTracker, end: VariableTracker, weight: VariableTracker) -> VariableTracker:
        return tx.emit(name, [self, end, _weight(tx, [self, end], weight)])


for _name in ("lerp", "lerp_"):
    _lerp_method(_name)


# --- attention that is written by the user ----------------------------------------------------------------------------


@registry.late_function("torch.nn.attention.flex_attention", "flex_attention")
def _flex_attention(tx: Tracer, *args: VariableTracker, **kwargs: VariableTracker) -> VariableTracker:
    why = "Its score function works on single numbers; only torch.compile makes a kernel of it."
    fix = "Call torch.compile(flex_attention): the graph breaks there as well, and its kernel runs."
    tx.break_graph("MD207", "flex_attention() cannot be captured", why=why, fix=fix)


def _update(function: Callable[..., Any]) -> registry.Handler:
    def handle(tx: Tracer, *args: VariableTracker, **kwargs: VariableTracker) -> VariableTracker:
        """Emits the update. A symbolic learning rate is passed in a tensor: as a number it would be specialized."""
        rate = kwargs.get("lr")
        if isinstance(rate, NumberVariable):
            kwargs["lr"] = tx.emit(torch.full, [TupleVariable([]), rate], {"dtype": constant(torch.float64)})
        return tx.emit(function, args, kwargs)

    return handle


for _function in FUSED_UPDATES:
    registry.function(_function)(_update(_function))
