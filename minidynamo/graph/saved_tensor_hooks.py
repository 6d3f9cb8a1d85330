"""Owns the choice of user hooks for saved tensors that become parts of graphs: torch.fx graphs, and marked functions.

All other hooks run as calls. `autograd/partition/packing.py` inserts hooks into graphs.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from contextvars import ContextVar
from typing import Any, TypeVar, overload

from torch import fx

from minidynamo import compat
from minidynamo.core.records import record
from minidynamo.errors import ArgumentError, Diagnostic
from minidynamo.graph.boxed import BoxedCallable, mark_boxed

F = TypeVar("F", bound=Callable[..., Any])

_MARK = "_minidynamo_inlineable_hook"


@record(frozen=True)
class Hooks:
    """A pair of hooks that become parts of graphs."""

    pack: Callable[..., Any]
    unpack: Callable[..., Any]


to_inline: ContextVar[Hooks | None] = ContextVar("hooks_to_inline", default=None)
"""The hooks in force at the capture of the graph that is being compiled."""


@overload
def inlineable_hook(function: F, *, user_cache_hash: str | None = None) -> F: ...
@overload
def inlineable_hook(function: None = None, *, user_cache_hash: str | None = None) -> Callable[[F], F]: ...
def inlineable_hook(function: Any = None, *, user_cache_hash: str | None = None) -> Any:
    """Lets a pack or unpack hook for saved tensors be traced into compiled graphs. A decorator.

    The function is called once per saved tensor while a graph is compiled, with a tensor without data, and never again.
    It may depend on dtype and sizes, not on data; all other inputs are fixed at compile time. With `user_cache_hash`,
    which must change whenever the function changes, graphs are stored for the next process. Raises ArgumentError for an
    object that is no function.
    """
    if function is None:
        return lambda found: inlineable_hook(found, user_cache_hash=user_cache_hash)
    try:
        setattr(function, _MARK, (user_cache_hash,))
    except (AttributeError, TypeError):
        what = f"inlineable_hook got {type(function).__name__}, not a Python function"
        raise ArgumentError(Diagnostic("MD108", what, fix="Decorate a function of one argument.")) from None
    return function


def hooks_in_force() -> tuple[Any, Any] | None:
    """Returns the pack and unpack hooks in force if both can become parts of graphs; else None."""
    hooks = compat.top_saved_tensor_hooks(False)
    if hooks is None or not all(isinstance(hook, fx.GraphModule) or hasattr(hook, _MARK) for hook in hooks):
        return None
    return hooks


def as_graph(hook: Any) -> fx.GraphModule:
    """Returns the form of a hook in a cache key: the graph itself, or a graph that calls the function."""
    if isinstance(hook, fx.GraphModule):
        return hook
    graph = fx.Graph()
    call = graph.call_function(hook, (graph.placeholder("value"),))
    (cache_hash,) = getattr(hook, _MARK)
    if cache_hash is not None:
        call.meta["user_cache_hash"] = cache_hash
    graph.output(call)
    return compat.graph_module({}, graph)


@contextlib.contextmanager
def inlining(hooks: tuple[Any, Any] | None) -> Iterator[None]:
    """Compiles graphs inside the block for these hooks, as `hooks_in_force` returns them."""
    token = to_inline.set(None if hooks is None else Hooks(*hooks))
    try:
        yield
    finally:
        to_inline.reset(token)


def mark_before_saving(error: BaseException) -> None:
    """Marks an error that a graph raised before autograd saved tensors."""
    error._minidynamo_before_saving = True  # type: ignore[attr-defined]


def raised_before_saving(error: BaseException) -> bool:
    """Returns whether the graph that raised `error` had passed no saved tensor to hooks."""
    return getattr(error, "_minidynamo_before_saving", False) is True


def without_hooks(call: BoxedCallable) -> BoxedCallable:
    """Returns `call` without saved-tensor hooks: the compiled graph already contains them."""

    def run(args: list[Any]) -> Any:
        with compat.no_saved_tensor_hooks():
            return call(args)

    return mark_boxed(run)
