"""Owns donated list arguments: the declaration on a function, and the sources in a frame.

The graph that takes a list and the residual program decide when to empty the list and when the elements die.
"""

from __future__ import annotations

import inspect
import types
from collections.abc import Collection, Iterator, Mapping
from typing import Any, TypeVar

import torch

from minidynamo.compat import MODULE_CALL
from minidynamo.core.directives import COMPILED
from minidynamo.errors import ArgumentError, Diagnostic, nearest
from minidynamo.guards.source import Item, Local, Source

T = TypeVar("T")
MARK = "__minidynamo_steal__"


def steal(target: T, names: Collection[str]) -> T:
    """Declares that callers of `target` donate the list arguments called `names`; returns `target`.

    `target` is a function or a module (an fx.GraphModule, say), whose `forward` has these arguments. The declaration
    applies to later calls of `minidynamo.compile`: a compiled call empties the lists, and their elements die at their
    last use. Tensors that the caller also holds elsewhere stay alive. Run eagerly, the target does not change.

    Raises ArgumentError (a TypeError) for a name that is no argument, and for a target of another kind.
    """
    names = checked_names(names)
    function = getattr(target, "__func__", target)
    if not isinstance(function, (types.FunctionType, torch.nn.Module)):
        what = f"minidynamo.steal got {type(target).__name__}, which has no arguments to donate"
        raise ArgumentError(Diagnostic("MD407", what, fix="Pass a function or an nn.Module."))
    if COMPILED in vars(function) or COMPILED in vars(vars(function).get("_compiled_call_impl", function)):
        what = "minidynamo.steal got something that is compiled already"
        raise ArgumentError(Diagnostic("MD407", what, fix="Compile afterwards: `compile(steal(f, names))`."))
    check_are_arguments(function, names, "MD407", "minidynamo.steal")
    vars(function)[MARK] = names | donated_names(function)
    return target


def donated_names(target: object) -> frozenset[str]:
    """Returns the names that were declared with `steal` for a function or module."""
    found: frozenset[str] = getattr(target, "__dict__", {}).get(MARK, frozenset())
    return found


def checked_names(names: Any) -> frozenset[str]:
    """Returns `names` as a set. Raises ArgumentError for anything but a collection of names."""
    if not isinstance(names, (tuple, list, set, frozenset)) or not all(isinstance(name, str) for name in names):
        raise ArgumentError(Diagnostic("MD103", "steal= takes names of list arguments", fix='Write steal=("xs",).'))
    return frozenset(names)


def check_are_arguments(
    target: types.FunctionType | torch.nn.Module, names: Collection[str], code: str = "MD103", who: str = "steal="
) -> None:
    """Raises ArgumentError when one of `names` is no argument of the function, or of the module's `forward`."""
    if not names:
        return
    takes = target.forward if isinstance(target, torch.nn.Module) else target
    # A wrapper that takes *args has no argument of that name, even if the wrapped function has.
    parameters = inspect.signature(takes, follow_wrapped=False).parameters
    where = getattr(takes, "__qualname__", type(target).__name__)
    for name in sorted(names):
        if name not in parameters:
            what = f"{who} names {name!r}, which is not an argument of {where}.{nearest(name, parameters)}"
            raise ArgumentError(Diagnostic(code, what, fix=f"Arguments: {', '.join(parameters)}."))


def stolen_arguments(
    fn: types.FunctionType, names: Collection[str], arguments: Mapping[str, Any]
) -> Iterator[tuple[str, Source, Any]]:
    """Yields name, source and value of each donated argument in this call of `fn`.

    The frame that calls a module has a tuple and a dict of arguments; names are those of `forward`.
    """
    if fn is not MODULE_CALL:
        yield from ((name, Local(name), arguments[name]) for name in sorted(names) if name in arguments)
        return
    positional, keywords = arguments["args"], arguments["kwargs"]
    order = [*inspect.signature(arguments["self"].forward, follow_wrapped=False).parameters]
    for name in sorted(names):
        index = order.index(name) if name in order else len(positional)
        if index < len(positional):
            yield name, Item(Local("args"), index), positional[index]
        elif name in keywords:
            yield name, Item(Local("kwargs"), name), keywords[name]
