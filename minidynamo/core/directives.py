"""Owns the functions with which a program directs its own capture, and their marks on functions and tensors.

Outside of a compile they act as their names say, or do nothing; the tracer recognizes them and acts.
"""

from __future__ import annotations

import functools
import types
from collections.abc import Callable, Iterable
from typing import Any, TypeVar, overload

import torch

from minidynamo.compat import is_allowed_by_torch_compile, is_disallowed_by_torch_compile
from minidynamo.config import STANCES, config
from minidynamo.core.records import record
from minidynamo.errors import ArgumentError, Diagnostic, UnknownName, nearest

F = TypeVar("F", bound=Callable[..., Any])

DISABLED = "__minidynamo_disabled__"
IN_GRAPH = "__minidynamo_in_graph__"
COMPILED = "__minidynamo__"


def own_mark(fn: Callable[..., Any], mark: str) -> Any:
    """Returns the mark of `fn` itself, or None: functools.wraps copies marks to functions with further code."""
    value = vars(fn).get(mark)
    inner = getattr(vars(fn).get("__wrapped__"), "__dict__", {})
    return None if value is inner.get(mark) else value


def is_graph_function(value: object) -> bool:
    """Returns whether the value is a Python function whose calls become graph nodes without tracing."""
    if not isinstance(value, types.FunctionType):
        return False
    return own_mark(value, IN_GRAPH) is not None or is_allowed_by_torch_compile(value)


def is_compiling() -> bool:
    """True while minidynamo captures the calling code, False while the code runs eagerly."""
    return False


def graph_break(message: str = "") -> None:
    """Cuts the graph here. `message` appears in reports. Does nothing in eager code."""


@overload
def disable(fn: None = None, *, reason: str = "") -> Callable[[F], F]: ...
@overload
def disable(fn: F, *, reason: str = "") -> F: ...
def disable(fn: Any = None, *, reason: str = "") -> Any:
    """Excludes `fn` from capture: a call breaks the graph and runs eagerly. Also a decorator, bare or with arguments.

    Returns a new function that calls `fn`; `fn` itself does not change.

    Raises ArgumentError for a class, a module, or an object that is not callable: disable a module's `forward` instead.
    """
    if fn is None:
        return functools.partial(disable, reason=reason)
    if isinstance(fn, (staticmethod, classmethod)):
        return type(fn)(disable(fn.__func__, reason=reason))
    if isinstance(fn, (type, torch.nn.Module)) or not callable(fn):
        fix = (
            f"Write @minidynamo.disable(reason={fn!r})." if isinstance(fn, str) else "Decorate the function or method."
        )
        raise ArgumentError(Diagnostic("MD112", f"minidynamo.disable got {_kind_of(fn)}", fix=fix))

    @functools.wraps(fn)
    def disabled(*args: Any, **kwargs: Any) -> Any:
        return fn(*args, **kwargs)

    setattr(disabled, DISABLED, reason or "it is marked with minidynamo.disable")
    return disabled


def allow_in_graph(fn: F) -> F:
    """Makes calls of `fn` graph nodes, without tracing inside; returns `fn`.

    `fn` must be a Python function that only computes with tensors and works on fake tensors. Raises ArgumentError for
    anything else.
    """
    if not isinstance(fn, types.FunctionType):
        fix = "Wrap it in a function: def in_graph(x): return ... . Operations of torch are in the graph anyway."
        raise ArgumentError(Diagnostic("MD112", f"minidynamo.allow_in_graph got {_kind_of(fn)}", fix=fix))
    setattr(fn, IN_GRAPH, object())  # unique, to recognize a copy of the mark on another function
    return fn


# The functions of torch that `disallow_in_graph` names, by identity.
_DISALLOWED: dict[int, Callable[..., Any]] = {}


def disallow_in_graph(fn: F) -> F:
    """Makes calls of `fn`, a function of torch, break the graph and run eagerly; returns `fn`.

    Operators and methods of tensors that compute the same are other functions. Functions compiled before keep their
    graphs. Raises ArgumentError for anything but a function of torch.
    """
    is_function = isinstance(fn, types.FunctionType | types.BuiltinFunctionType)
    if not is_function or (fn.__module__ or "").partition(".")[0] != "torch":
        name = getattr(fn, "__name__", type(fn).__name__)
        what = f"minidynamo.disallow_in_graph got {name}, which is not a function of torch"
        fix = f"Decorate it: @minidynamo.disable, or write disabled = minidynamo.disable({name})."
        raise ArgumentError(Diagnostic("MD112", what, fix=fix))
    _DISALLOWED[id(fn)] = fn
    return fn


def is_disallowed(value: object) -> bool:
    """Returns whether `disallow_in_graph`, of minidynamo or of torch._dynamo, excludes calls of `value` from graphs."""
    return id(value) in _DISALLOWED or is_disallowed_by_torch_compile(value)


def _kind_of(value: object) -> str:
    if isinstance(value, type):
        return f"the class {value.__name__}"
    return f"the module {type(value).__name__}" if isinstance(value, torch.nn.Module) else type(value).__name__


class set_stance:
    """Sets the behaviour of compiled functions from now on, inside a `with` block, or, as a decorator, during a call.

    - "default": compile calls that no version fits.
    - "force_eager": run everything eagerly.
    - "eager_on_recompile": use existing versions, and run other calls eagerly.
    - "fail_on_recompile": use existing versions, and raise RecompileRefused for other calls, also for the first call.

    The stance holds for all threads. Raises UnknownName for another stance.
    """

    def __init__(self, stance: str = "default") -> None:
        if stance not in STANCES:
            what = f"there is no stance {stance!r}.{nearest(str(stance), STANCES)}"
            raise UnknownName(Diagnostic("MD101", what, fix=f"Use one of {', '.join(STANCES)}."))
        self._stance = stance
        self._before = [config.stance]
        config.stance = stance

    def __enter__(self) -> None:
        if config.stance != self._stance:  # entered again, or later
            self._before.append(config.stance)
            config.stance = self._stance

    def __exit__(self, *error: object) -> None:
        config.stance = self._before.pop() if len(self._before) > 1 else self._before[0]

    def __call__(self, fn: F) -> F:
        """Returns `fn`, during whose calls the stance holds; the statement itself changes nothing."""
        config.stance = self._before[0]

        @functools.wraps(fn)
        def call(*args: Any, **kwargs: Any) -> Any:
            with set_stance(self._stance):
                return fn(*args, **kwargs)

        setattr(call, DISABLED, "set_stance changes how compiled functions run")
        return call  # type: ignore[return-value]


# The attribute of a tensor for declarations, by dimension.
_ATTRIBUTE = "__minidynamo_dimensions__"


@record(frozen=True)
class Dimension:
    """The declaration of a dimension."""

    #: whether the size varies
    varies: bool
    #: the smallest size; None without bound
    least: int | None = None
    #: the greatest size; None without bound
    most: int | None = None


def declare(tensor: torch.Tensor, dim: int, dimension: Dimension) -> None:
    """Stores a declaration with the tensor, and replaces an older declaration."""
    tensor.__dict__.setdefault(_ATTRIBUTE, {})[dim] = dimension


def declared(tensor: torch.Tensor) -> dict[int, Dimension]:
    """Returns the declarations of a tensor by dimension, including declarations by torch's functions."""
    attributes = tensor.__dict__
    declarations = dict.fromkeys(attributes.get("_dynamo_dynamic_indices", ()), Dimension(True))
    declarations |= dict.fromkeys(attributes.get("_dynamo_static_indices", ()), Dimension(False))
    declarations |= attributes.get(_ATTRIBUTE, {})
    return declarations


def mark_dynamic(
    tensor: torch.Tensor, dim: int | Iterable[int], *, min: int | None = None, max: int | None = None
) -> None:
    """Declares that a size of `tensor` varies, between `min` and `max`: it is symbolic from the first compile on.

    If the program works for a single size only, an error names the line that fixed the size. Sizes 0 and 1 are always
    compiled separately.
    """
    for name, bound in (("min", min), ("max", max)):
        if bound is not None and type(bound) is not int:
            what = f"mark_dynamic takes a whole number as {name}=, not {type(bound).__name__}"
            raise ArgumentError(Diagnostic("MD110", what, fix=f"Pass {name}= as int, or leave it out."))
    for position in _dimensions(tensor, dim):
        size = tensor.shape[position]
        if (min is not None and size < min) or (max is not None and size > max):
            words = f"at most {max}" if min is None else f"at least {min}" if max is None else f"from {min} to {max}"
            what = f"mark_dynamic declares dimension {position} to be {words}, but it is {size}"
            raise ArgumentError(Diagnostic("MD110", what, fix="Give bounds that hold for every call."))
        declare(tensor, position, Dimension(True, min, max))


def mark_static(tensor: torch.Tensor, dim: int | Iterable[int] | None = None) -> None:
    """Declares that a size of `tensor` (all when `dim` is None) never becomes symbolic: each value is compiled once."""
    every = dim is None and isinstance(tensor, torch.Tensor)
    for position in _dimensions(tensor, range(tensor.dim()) if every else dim):
        declare(tensor, position, Dimension(False))


def _dimensions(tensor: torch.Tensor, dim: int | Iterable[int] | None) -> list[int]:
    """Returns dimensions counted from 0. Raises ArgumentError for a wrong dimension, or an object that is no tensor."""
    if not isinstance(tensor, torch.Tensor):
        what = f"only a tensor has dimensions to declare, not {type(tensor).__name__}"
        raise ArgumentError(Diagnostic("MD110", what, fix="Pass the tensor and the number of the dimension."))
    positions: list[Any] = list(dim) if isinstance(dim, Iterable) else [dim]
    for position in positions:
        if not isinstance(position, int) or not -tensor.dim() <= position < tensor.dim():
            what = f"a tensor of {tensor.dim()} dimensions has no dimension {position!r}"
            raise ArgumentError(Diagnostic("MD110", what, fix="Dimensions count from 0, or from -1 for the last one."))
    return [position % tensor.dim() for position in positions]


for _function in (mark_dynamic, mark_static):
    setattr(_function, DISABLED, "its declaration only takes effect before a compile begins")
