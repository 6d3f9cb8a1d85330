"""Owns what tensors of a library's class do differently from torch's: attributes of the class, and the calls that torch
passes to its `__torch_function__`, which is traced; and the nodes that call a class with `__torch_dispatch__`.

Calls of the program enter at `answer_call`, operators at `answer_operator`, attributes at `read_by_override`. All three
end in `call_method_of_class`. `refuse_override` is the check before and after each new node. Which classes a graph
takes is not here (`records/tensor_classes.py`), nor are the functions of torch that such a `__torch_function__` calls
(`handlers/torch_overrides.py`).
"""

from __future__ import annotations

import functools
import itertools
import operator
import types
from collections.abc import Callable, Iterable, Mapping, Sequence, Set
from typing import Any, NoReturn

import torch

from minidynamo.compat import OpOverload, OpOverloadPacket
from minidynamo.errors import an
from minidynamo.graph.wrapped_tensors import can_be_copied, wrapped_call
from minidynamo.guards.guard import GuardKind
from minidynamo.guards.source import Constant
from minidynamo.tracer.attributes import bind, guard_class_attribute, lookup_on_class
from minidynamo.tracer.attributes.binding import is_data_descriptor
from minidynamo.tracer.attributes.classes import written_class_attribute
from minidynamo.tracer.frames.inlining import inline_function
from minidynamo.tracer.frames.interpreter import Tracer
from minidynamo.tracer.records.constants import key_of
from minidynamo.tracer.records.operator_table import BINARY, UNARY
from minidynamo.tracer.records.side_effects import UNKNOWN
from minidynamo.tracer.records.tensor_classes import (
    OF_TORCH,
    has_own_dispatch,
    overrides_functions,
    replaces_method,
    replaces_methods,
)
from minidynamo.variables.base import ConstantVariable, VariableTracker
from minidynamo.variables.callables import BuiltinVariable, FunctionVariable
from minidynamo.variables.containers import DictVariable, SequenceVariable, TupleVariable
from minidynamo.variables.objects import OpaqueVariable
from minidynamo.variables.tensors import TensorVariable

# Attributes


def own_attribute(tx: Tracer, tensor: TensorVariable, name: str) -> VariableTracker | None:
    """Returns an attribute that a library's class defines; None for an attribute of torch or of the instance."""
    if tensor.cls is torch.Tensor or tensor.cls is torch.nn.Parameter:
        return None
    written, deleted = written_class_attribute(tx, tensor.cls, name)
    if written is not None or deleted:
        tx.break_graph(
            "MD206", f"`{name}` of {an(tensor.cls.__name__)} is used", why="This call has changed the class."
        )
    found, owner = lookup_on_class(tensor.cls, name)
    if owner is None or owner in OF_TORCH or name in ("__dict__", "__weakref__"):
        return None
    guard_class_attribute(tx, tensor.cls, owner, name, found)
    if not is_data_descriptor(found):
        if tx.side_effects.attr(tensor, name) is not UNKNOWN or name in instance_attributes(tx, tensor):
            return None
        tx.guard(tensor.source, GuardKind.NO_INSTANCE_ATTR, name)
    return bind(tx, found, owner, tensor, tensor.cls, name)


def instance_attributes(tx: Tracer, tensor: TensorVariable) -> dict[str, Any]:
    """Returns the attributes of a real tensor; breaks the graph if the program works with the dictionary itself."""
    real = tx.graph.real(tensor)
    if real is None:
        return {}
    if tx.graph.tracker_of(real.__dict__) is not None:
        tx.break_graph("MD212", "the `__dict__` of a tensor is used", why="The call may have changed it.")
    return real.__dict__


def read_by_override(tx: Tracer, tensor: TensorVariable, name: str) -> VariableTracker | None:
    """Returns an attribute of torch that the class reads with `__torch_function__`; None if torch reads it."""
    if overriding_class(tx, [tensor]) is None:
        return None
    descriptor, _ = lookup_on_class(torch.Tensor, name)
    if isinstance(descriptor, property):
        tx.break_graph("MD212", f"`{name}` of {an(tensor.cls.__name__)} is used", why="Its class decides the result.")
    if not isinstance(descriptor, types.GetSetDescriptorType) or not is_overridable(descriptor.__get__):
        return None
    return call_method_of_class(tx, BuiltinVariable(descriptor.__get__), [tensor], {})


# Calls


def overriding_class(tx: Tracer, args: Iterable[VariableTracker]) -> type | None:
    """Returns the class whose `__torch_function__` torch calls instead of a function with these arguments.

    Torch looks for tensors among the arguments and in sequences. Tensors of two such classes break the graph.
    """
    if tx.blocks_without_overrides:
        return None
    found: set[type] = set()
    for arg in args:
        items = arg.items if isinstance(arg, SequenceVariable) else (arg,)
        found |= {item.cls for item in items if isinstance(item, TensorVariable) and overrides_functions(item.cls)}
    if len(found) > 1:
        names = " and ".join(sorted(cls.__name__ for cls in found))
        tx.break_graph("MD214", f"a function of torch takes tensors of the classes {names}")
    return found.pop() if found else None


def is_overridable(function: object) -> bool:
    """Returns whether torch looks for a `__torch_function__` before it calls the function."""
    return isinstance(function, OpOverload | OpOverloadPacket) or function in _overridable()


def may_be_decided(tx: Tracer, function: object, args: Iterable[VariableTracker]) -> bool:
    """Returns whether a class may decide the call. Tracks tensors in new sequences, which torch reads."""
    if isinstance(function, types.BuiltinFunctionType) and function.__module__ == "torch":
        for arg in args:
            if isinstance(arg, SequenceVariable) and arg.source is None:
                list(arg.items)
    return tx.graph.has_tensor_classes and is_overridable(function)


@functools.cache
def _overridable() -> Set[Any]:
    return frozenset(itertools.chain.from_iterable(torch.overrides.get_overridable_functions().values()))


def answer_call(
    tx: Tracer,
    function: FunctionVariable | BuiltinVariable,
    args: list[VariableTracker],
    kwargs: dict[str, VariableTracker],
) -> VariableTracker | None:
    """Returns the result of a call that a class among its arguments decides; None if no class does."""
    if overriding_class(tx, [*args, *kwargs.values()]) is not None:
        return call_override(tx, function, args, kwargs)
    if isinstance(function.value, types.FunctionType):
        _refuse_other_methods(tx, function.value, [*args, *kwargs.values()])
    return _call_dispatched(tx, function, args, kwargs)


def _refuse_other_methods(tx: Tracer, function: types.FunctionType, args: Iterable[VariableTracker]) -> None:
    """Breaks the graph at a Python function of torch, which may call a method that a class has in place of torch's."""
    found = (arg.cls for arg in args if isinstance(arg, TensorVariable) and replaces_methods(arg.cls))
    for cls in found:
        why = "The class replaces methods of torch.Tensor, and the function may call them."
        tx.break_graph("MD214", f"{function.__name__}() takes {an(cls.__name__)}", why=why)


def _call_dispatched(
    tx: Tracer,
    function: FunctionVariable | BuiltinVariable,
    args: list[VariableTracker],
    kwargs: dict[str, VariableTracker],
) -> VariableTracker | None:
    """Adds a call that takes tensors with `__torch_dispatch__` to the graph; None if no argument is one, or if the call
    may write to one."""
    named = itertools.chain[tuple[int | str, VariableTracker]](enumerate(args), kwargs.items())
    instances = {
        key: arg for key, arg in named if isinstance(arg, OpaqueVariable) and has_own_dispatch(arg.python_type)
    }
    writes = "out" in kwargs or function.value.__name__.partition(".")[0].endswith("_")
    if not instances or writes or not all(can_be_copied(tensor.python_type) for tensor in instances.values()):
        return None
    for tensor in instances.values():
        tx.guard(tensor.source, GuardKind.IDENTITY, tensor.value)
    call = wrapped_call(function.value, {key: tensor.value for key, tensor in instances.items()})
    plain = [arg for position, arg in enumerate(args) if position not in instances]
    with tx.graph.real_tensors_in_calls():
        result = tx.emit(call, plain, {name: arg for name, arg in kwargs.items() if name not in instances})
    if not isinstance(result, TensorVariable):
        names = " and ".join(sorted({tensor.python_type.__name__ for tensor in instances.values()}))
        tx.break_graph("MD214", f"{call.__name__}() takes a tensor of the class {names}", why="It returns another one.")
    return result


def answer_opaque(
    tx: Tracer, tensor: OpaqueVariable, name: str, args: list[VariableTracker], kwargs: dict[str, VariableTracker]
) -> VariableTracker | None:
    """Returns the result of a method of torch of a tensor with `__torch_dispatch__`; None for other methods."""
    method, owner = lookup_on_class(tensor.python_type, name)
    if owner not in OF_TORCH or not callable(method) or not has_own_dispatch(tensor.python_type):
        return None
    return answer_call(tx, BuiltinVariable(method), [tensor, *args], kwargs)


def call_override(
    tx: Tracer, function: VariableTracker, args: Sequence[VariableTracker], kwargs: Mapping[str, VariableTracker]
) -> VariableTracker:
    """Traces the `__torch_function__` of the class among the arguments, for a call of `function` by the program.

    A Python function of torch is traced: it decides itself with which arguments it calls the method.
    """
    if isinstance(function, FunctionVariable) and isinstance(function.value, types.FunctionType):
        return inline_function(tx, function, [*args], {**kwargs})
    if isinstance(function, BuiltinVariable) and isinstance(function.value, types.MethodDescriptorType) and not kwargs:
        called, order = _function_of_operator(function.value, tuple(map(_kind, args)))
        return call_method_of_class(tx, tx.wrap(called, None), [args[position] for position in order], {})
    return call_method_of_class(tx, function, args, kwargs)


def call_method_of_class(
    tx: Tracer, function: VariableTracker, args: Sequence[VariableTracker], kwargs: Mapping[str, VariableTracker]
) -> VariableTracker:
    """Traces the `__torch_function__` of the class among the arguments."""
    cls = overriding_class(tx, [*args, *kwargs.values()])
    assert cls is not None
    tracked = tx.wrap(cls, Constant(cls, cls.__name__))
    named = DictVariable({key_of(ConstantVariable(name)): value for name, value in kwargs.items()})
    method = tx.getattr(tracked, "__torch_function__")
    result = tx.call(method, [function, TupleVariable([tracked]), TupleVariable([*args]), named])
    if isinstance(result, ConstantVariable) and result.value is NotImplemented:
        tx.break_graph("MD214", f"the `__torch_function__` of {cls.__name__} returns NotImplemented")
    return result


_OPERATORS = frozenset((*BINARY, *UNARY, operator.getitem))


def answer_operator(tx: Tracer, function: object, operands: Sequence[VariableTracker]) -> VariableTracker | None:
    """Returns the result of an operator of Python that a class among its operands decides; None for other operators."""
    if function not in _OPERATORS or overriding_class(tx, operands) is None:
        return None
    called, order = _function_of_operator(function, tuple(map(_kind, operands)))
    return call_method_of_class(tx, tx.wrap(called, None), [operands[position] for position in order], {})


def _kind(operand: VariableTracker) -> bool | None:
    return isinstance(operand, TensorVariable) and (overrides_functions(operand.cls) or None)


class _Asked(torch.Tensor):
    """A tensor that raises the function which torch calls."""

    @classmethod
    def __torch_function__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> NoReturn:
        raise _Answer(func, args)


class _Answer(Exception):
    """The function and the arguments of a call."""


@functools.cache
def _function_of_operator(function: Callable[..., Any], kinds: tuple[bool | None, ...]) -> tuple[Any, list[int]]:
    """Returns the function that torch passes to `__torch_function__` for an operator or method, which may have another
    name, and the order of its arguments.

    `kinds`: for each operand, whether its class decides; None for other tensors, False for other objects.
    """
    plain, same = torch.zeros(1), (function, [*range(len(kinds))])
    operands = [0 if kind is False else plain.as_subclass(_Asked) if kind else plain.clone() for kind in kinds]
    try:
        function(*operands)
    except _Answer as answer:
        called, arguments = answer.args
    except (TypeError, ValueError, IndexError, RuntimeError):  # these operands do not fit
        return same
    order = [position for argument in arguments for position, each in enumerate(operands) if each is argument]
    return (called, order) if sorted(order) == same[1] else same


def refuse_override(tx: Tracer, target: object, name: str, args: Sequence[VariableTracker]) -> None:
    """Breaks the graph at an operation that a class replaces or decides, and at most writes to an instance.

    The graph takes a plain view of the instance, which shares its values alone.
    """
    cls = overriding_class(tx, args)
    if isinstance(target, str) and isinstance(args[0], TensorVariable) and replaces_method(args[0].cls, target):
        cls = args[0].cls
    if cls is None and (name.endswith("_()") and not name.endswith("__()")):
        cls = next((a.cls for a in args if isinstance(a, TensorVariable) and overrides_functions(a.cls)), None)
    if cls is not None:
        why = "The class decides what the operation means."
        tx.break_graph("MD214", f"{name} takes {an(cls.__name__)}", why=why)
