"""Owns which of the user's hooks for saved tensors are put into graphs: torch.fx graphs, and functions that say so.

All others run as calls. How hooks become parts of graphs is known to `autograd/partition/packing.py`.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from contextvars import ContextVar
from dataclasses import dataclass
from typing import Any, TypeVar, overload

from torch import fx

from minidynamo import compat
from minidynamo.errors import ArgumentError, Diagnostic
from minidynamo.graph.boxed import BoxedCallable, mark_boxed

F = TypeVar("F", bound=Callable[..., Any])

_MARK = "_minidynamo_inlineable_hook"


@dataclass(frozen=True)
class Hooks:
    """A pair of hooks that are put into graphs."""

    pack: Callable[..., Any]
    unpack: Callable[..., Any]


to_inline: ContextVar[Hooks | None] = ContextVar("hooks_to_inline", default=None)
"""The hooks that were in force when the graph that is being compiled was captured."""


@overload
def inlineable_hook(function: F, *, user_cache_hash: str | None = None) -> F: ...
@overload
def inlineable_hook(function: None = None, *, user_cache_hash: str | None = None) -> Callable[[F], F]: ...
def inlineable_hook(function: Any = None, *, user_cache_hash: str | None = None) -> Any:
    """Let a pack or unpack hook for saved tensors be traced into compiled graphs. A decorator.

    The function is called once for each saved tensor while a graph is compiled, with a tensor without data, and never
    again: it may decide on dtype and sizes, not on data, and what else it reads is as it was then. With
    `user_cache_hash`, which has to change whenever the function does, graphs are kept for the next process.
    Raises ArgumentError for what is no function.
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
    """The pack and unpack hooks in force when both can be put into graphs; None for all others, and where there are
    none."""
    hooks = compat.saved_tensor_hooks()
    if hooks is None or not all(isinstance(hook, fx.GraphModule) or hasattr(hook, _MARK) for hook in hooks):
        return None
    return hooks


def as_graph(hook: Any) -> fx.GraphModule:
    """What a cache key says of a hook: the graph that it is, or a call of the function."""
    if isinstance(hook, fx.GraphModule):
        return hook
    graph = fx.Graph()
    call = graph.call_function(hook, (graph.placeholder("value"),))
    (given,) = getattr(hook, _MARK)
    if given is not None:
        call.meta["user_cache_hash"] = given
    graph.output(call)
    return compat.graph_module({}, graph)


@contextlib.contextmanager
def inlining(hooks: tuple[Any, Any] | None) -> Iterator[None]:
    """Inside, graphs are compiled for these hooks, as `hooks_in_force` gives them."""
    token = to_inline.set(None if hooks is None else Hooks(*hooks))
    try:
        yield
    finally:
        to_inline.reset(token)


class _BeforeSaving:
    """What a graph raises in such a block, it raises before autograd comes to what it keeps."""

    def __enter__(self) -> None:
        pass

    def __exit__(self, kind: object, error: BaseException | None, traceback: object) -> None:
        if error is not None:
            error._minidynamo_before_saving = True  # type: ignore[attr-defined]


before_saving = _BeforeSaving()


def came_before_saving(error: BaseException) -> bool:
    """Whether hooks have seen nothing of what the graph that raised `error` keeps."""
    return getattr(error, "_minidynamo_before_saving", False) is True


def without_hooks(call: BoxedCallable) -> BoxedCallable:
    """`call`, inside of which what autograd saves goes through no hooks: they are a part of it."""

    def run(args: list[Any]) -> Any:
        with compat.no_saved_tensor_hooks():
            return call(args)

    return mark_boxed(run)
