"""Owns the functions of torch that the `__torch_function__` of a class calls: the call without any override, and the
plain tensor of an instance.

Which class decides a call is not here (`calls/torch_overrides.py`).
"""

from __future__ import annotations

from types import MethodWrapperType

import torch

from minidynamo.compat import TensorBase, disabled_torch_function, make_subclass, without_class_overrides
from minidynamo.tracer.calls.torch_overrides import call_method_of_class
from minidynamo.tracer.frames.interpreter import Tracer
from minidynamo.tracer.handlers.values import constant, none
from minidynamo.tracer.records import registry
from minidynamo.variables.base import VariableTracker
from minidynamo.variables.callables import BuiltinVariable, ContextVariable
from minidynamo.variables.containers import DictVariable, TupleVariable
from minidynamo.variables.objects import ClassVariable
from minidynamo.variables.tensors import TensorVariable

_WHY = "Tracing does not create tensor subclasses."


@registry.function(disabled_torch_function)
def _call_disabled(
    tx: Tracer,
    function: VariableTracker,
    types: VariableTracker,
    args: VariableTracker | None = None,
    kwargs: VariableTracker | None = None,
) -> VariableTracker:
    named = {} if not isinstance(kwargs, DictVariable) else {str(k.token): v for k, v in kwargs.items.items()}
    tx.blocks_without_overrides += 1
    try:
        return tx.call(function, [] if args is None else tx.unpack(args), named)
    finally:
        tx.blocks_without_overrides -= 1


@registry.function(torch.overrides.handle_torch_function)
def _handle(
    tx: Tracer,
    function: VariableTracker,
    relevant_args: VariableTracker,
    *args: VariableTracker,
    **kwargs: VariableTracker,
) -> VariableTracker:
    return call_method_of_class(tx, function, args, kwargs)


@registry.function(without_class_overrides)
def _make_block(tx: Tracer) -> VariableTracker:
    return ContextVariable(without_class_overrides)


@registry.method(without_class_overrides, "__enter__")
def _enter_block(tx: Tracer, block: VariableTracker) -> VariableTracker:
    if len(tx.frames) == 1:  # a graph break inside would have to enter it again
        tx.break_graph("MD213", "DisableTorchFunctionSubclass is entered", why="It changes what each operation means.")
    tx.blocks_without_overrides += 1
    return none()


@registry.method(without_class_overrides, "__exit__")
def _leave_block(tx: Tracer, block: VariableTracker, *error: VariableTracker) -> VariableTracker:
    if not isinstance(block, ContextVariable):
        tx.break_graph("MD213", "a DisableTorchFunctionSubclass that was entered outside of the graph ends")
    tx.blocks_without_overrides -= 1
    return none()


@registry.method(MethodWrapperType, "__eq__")
def _is_same_reader(tx: Tracer, reader: BuiltinVariable, other: VariableTracker) -> VariableTracker:
    """Compares the function that reads an attribute, such as `Tensor.shape.__get__`, with another function."""
    return constant(isinstance(other, BuiltinVariable) and reader.value == other.value)


# Plain tensors of instances


@registry.method(TensorBase, "as_subclass")
def _as_subclass(tx: Tracer, tensor: TensorVariable, cls: VariableTracker) -> VariableTracker:
    if not isinstance(cls, ClassVariable) or cls.value is not torch.Tensor:
        tx.break_graph("MD212", "Tensor.as_subclass() is called", why=_WHY)
    return _call_disabled(tx, tx.wrap(torch.Tensor.view_as, None), none(), TupleVariable([tensor, tensor]))


@registry.function(make_subclass)
def _make_subclass(
    tx: Tracer, cls: VariableTracker, data: VariableTracker, require_grad: VariableTracker | None = None
) -> VariableTracker:
    is_plain = isinstance(cls, ClassVariable) and cls.value is torch.Tensor
    if not is_plain or (require_grad is not None and tx.truth(require_grad)):
        tx.break_graph("MD212", "Tensor._make_subclass() is called", why=_WHY)
    return _call_disabled(tx, tx.wrap(torch.Tensor.detach, None), none(), TupleVariable([data]))
