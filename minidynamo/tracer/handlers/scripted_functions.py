"""Owns calls of functions from `torch.jit.script`: the Python function itself is traced.

Python and TorchScript agree if no argument is converted to its declared type and the function does not ask whether it
is scripted. All other calls break the graph, and so do calls that raise: TorchScript raises different errors.
"""

from __future__ import annotations

import inspect
import types
from collections.abc import Mapping, Sequence
from typing import Any, NoReturn

import torch

from minidynamo.compat import SCRIPTED_FROM, scripted_original
from minidynamo.guards.guard import GuardKind
from minidynamo.guards.source import Attr
from minidynamo.tracer.frames.exceptions import catch_raised
from minidynamo.tracer.frames.interpreter import Tracer
from minidynamo.tracer.records import registry
from minidynamo.tracer.trace_rules import is_trusted_module
from minidynamo.variables.base import VariableTracker
from minidynamo.variables.objects import OpaqueVariable

# Classes of arguments that TorchScript does not convert, by declared type.
_DECLARED_CLASSES: dict[str, tuple[type, ...]] = {
    "Tensor": (torch.Tensor, torch.nn.Parameter),
    "float": (float,),
    "int": (int,),
    "bool": (bool,),
    "str": (str,),
}
_DECLARED_CLASSES |= {f"Optional[{name}]": (*classes, type(None)) for name, classes in _DECLARED_CLASSES.items()}
# Functions whose result differs in TorchScript: `print` formats differently, and `is_scripting` returns True.
_TORCHSCRIPT_DEPENDENT = {"print", "is_scripting"}


@registry.method(torch.jit.ScriptFunction, "__call__")
def _call(
    tx: Tracer, scripted: OpaqueVariable, /, *args: VariableTracker, **kwargs: VariableTracker
) -> VariableTracker:
    original = scripted_original(scripted.value)
    if original is None or scripted.source is None:
        _refuse(tx, "It was created by torch.jit.trace, or from a file.")
    if _depends_on_torchscript(original, set()):
        _refuse(tx, "It prints, or asks whether TorchScript runs it.")
    if not _needs_no_conversion(scripted.value, original, args, kwargs):
        _refuse(tx, "TorchScript converts an argument.")
    tx.guard(scripted.source, GuardKind.IDENTITY, scripted.value)
    function = tx.wrap(original, Attr(scripted.source, SCRIPTED_FROM))
    result = catch_raised(Exception, lambda: tx.call(function, [*args], kwargs), lambda _: None)
    if result is None:
        _refuse(tx, "TorchScript raises errors of its own.")
    return result


def _refuse(tx: Tracer, why: str) -> NoReturn:
    tx.break_graph("MD206", "a ScriptFunction is called", why=why, fix="Call the original function.")


def _depends_on_torchscript(function: types.FunctionType, seen: set[types.FunctionType]) -> bool:
    """Returns whether a function, or a function of the program that it calls, behaves differently in TorchScript."""
    seen.add(function)
    names = function.__code__.co_names
    called = [function.__globals__.get(name) for name in names]
    others = [scripted_original(value) if isinstance(value, torch.jit.ScriptFunction) else value for value in called]
    return not _TORCHSCRIPT_DEPENDENT.isdisjoint(names) or any(
        _depends_on_torchscript(other, seen)
        for other in others
        if isinstance(other, types.FunctionType) and other not in seen and not is_trusted_module(other.__module__)
    )


def _needs_no_conversion(
    scripted: Any,
    original: types.FunctionType,
    args: Sequence[VariableTracker],
    kwargs: Mapping[str, VariableTracker],
) -> bool:
    """Returns whether TorchScript converts no argument."""
    try:
        arguments = inspect.signature(original).bind(*args, **kwargs).arguments
    except TypeError:
        return False
    declared = {argument.name: str(argument.type) for argument in scripted.schema.arguments}
    return all(
        value.python_type in _DECLARED_CLASSES.get(declared.get(name, ""), ()) for name, value in arguments.items()
    )
