"""Owns calls of what `torch.jit.script` has made of a function: the function itself is traced.

Python's meaning is TorchScript's where the arguments are of the very types that it has declared, so that none is
converted, and where the function does not ask who runs it. Else the call is left to torch, and so is one that raises:
TorchScript raises errors of its own.
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
from minidynamo.tracer.frames.exceptions import caught
from minidynamo.tracer.protocol import Tracer
from minidynamo.tracer.records import registry
from minidynamo.tracer.trace_rules import is_trusted_module
from minidynamo.variables.base import VariableTracker
from minidynamo.variables.objects import OpaqueVariable

# The classes of arguments that arrive as they are, by the declared types.
_CLASSES: dict[str, tuple[type, ...]] = {
    "Tensor": (torch.Tensor, torch.nn.Parameter),
    "float": (float,),
    "int": (int,),
    "bool": (bool,),
    "str": (str,),
}
_CLASSES |= {f"Optional[{name}]": (*classes, type(None)) for name, classes in _CLASSES.items()}
# What gives something else in TorchScript: it prints in words of its own, and is the one that is scripting.
_TELLTALES = {"print", "is_scripting"}


@registry.method(torch.jit.ScriptFunction, "__call__")
def _call(
    tx: Tracer, scripted: OpaqueVariable, /, *args: VariableTracker, **kwargs: VariableTracker
) -> VariableTracker:
    original = scripted_original(scripted.value)
    if original is None or scripted.source is None:
        _leave(tx, "It was made by torch.jit.trace, or from a file.")
    if _tells(original, set()):
        _leave(tx, "It prints, or asks whether TorchScript runs it.")
    if not _fit(scripted.value, original, args, kwargs):
        _leave(tx, "TorchScript converts what it is given.")
    tx.guard(scripted.source, GuardKind.IDENTITY, scripted.value)
    function = tx.wrap(original, Attr(scripted.source, SCRIPTED_FROM))
    result = caught(Exception, lambda: tx.call(function, [*args], kwargs), lambda _: None)
    if result is None:
        _leave(tx, "TorchScript raises errors of its own.")
    return result


def _leave(tx: Tracer, why: str) -> NoReturn:
    tx.break_graph("MD206", "a ScriptFunction is called", why=why, fix="call the function that it was made from")


def _tells(function: types.FunctionType, seen: set[types.FunctionType]) -> bool:
    """Whether a function, or one of the program's that it calls, gives something else in TorchScript."""
    seen.add(function)
    names = function.__code__.co_names
    called = [function.__globals__.get(name) for name in names]
    others = [scripted_original(value) if isinstance(value, torch.jit.ScriptFunction) else value for value in called]
    return not _TELLTALES.isdisjoint(names) or any(
        _tells(other, seen)
        for other in others
        if isinstance(other, types.FunctionType) and other not in seen and not is_trusted_module(other.__module__)
    )


def _fit(
    scripted: Any,
    original: types.FunctionType,
    args: Sequence[VariableTracker],
    kwargs: Mapping[str, VariableTracker],
) -> bool:
    """Whether all arguments arrive as they are."""
    try:
        given = inspect.signature(original).bind(*args, **kwargs).arguments
    except TypeError:
        return False
    declared = {argument.name: str(argument.type) for argument in scripted.schema.arguments}
    return all(value.python_type in _CLASSES.get(declared.get(name, ""), ()) for name, value in given.items())
