"""Owns the keywords of `compile`: their types, their defaults, and the errors for wrong values.

It compiles nothing: checked keywords become a `CompileOptions`.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from typing import Any, TypedDict

from minidynamo.backends import registry
from minidynamo.config import config, with_changes
from minidynamo.core.events import notice
from minidynamo.errors import ArgumentError, ConflictingArguments, Diagnostic, UnknownName, nearest
from minidynamo.frontend.donation import checked_names
from minidynamo.graph.options import CompileOptions

_MODES = ("default", "reduce-overhead", "max-autotune", "max-autotune-no-cudagraphs")
_ON_ERROR = ("raise", "eager")
_WHILE_COMPILING = ("wait", "eager")
_LIMIT_POLICIES = ("eager", "raise")


class CompileKeywords(TypedDict, total=False):
    """The keywords of `compile`, for editors and type checkers; `checked_options` has the defaults."""

    backend: str | registry.Backend | None
    fullgraph: bool
    dynamic: bool | None
    mode: str | None
    options: dict[str, Any] | None
    disable: bool
    steal: Collection[str]
    save_policy: Callable[..., Any] | None
    on_error: str
    recompile_limit: int
    while_compiling: str
    limit_policy: str
    name: str | None
    repeated: bool


def checked_options(
    *,
    backend: str | registry.Backend | None = None,
    fullgraph: bool = False,
    dynamic: bool | None = None,
    mode: str | None = None,
    options: dict[str, Any] | None = None,
    disable: bool = False,
    steal: Collection[str] = (),
    save_policy: Callable[..., Any] | None = None,
    on_error: str = "raise",
    recompile_limit: int = 8,
    while_compiling: str = "wait",
    limit_policy: str = "eager",
    name: str | None = None,
    repeated: bool = False,
    **unknown: Any,
) -> CompileOptions:
    """Returns the keywords of `compile` as a `CompileOptions`. Raises the errors that `compile` documents."""
    for keyword in unknown:
        what = f"minidynamo.compile has no keyword {keyword!r}.{nearest(keyword, _KEYWORDS)}"
        raise ArgumentError(Diagnostic("MD103", what, fix=f"Keywords: {', '.join(_KEYWORDS)}."))
    _check_type("fullgraph", fullgraph, bool)
    _check_type("dynamic", dynamic, bool, type(None))
    _check_type("disable", disable, bool)
    _check_type("repeated", repeated, bool)
    _check_type("recompile_limit", recompile_limit, int)
    _check_type("name", name, str, type(None))
    _check_type("options", options, dict, type(None))
    if recompile_limit < 1:
        what = f"recompile_limit= must be at least 1, not {recompile_limit}"
        raise ArgumentError(Diagnostic("MD103", what, fix="To compile nothing, write disable=True."))
    if mode is not None and options is not None:
        what = "mode= and options= exclude each other"
        raise ConflictingArguments(Diagnostic("MD103", what, fix="Keep one of them."))
    _check_choice("mode", "default" if mode is None else mode, _MODES)
    if mode not in (None, "default"):
        fix = "Leave it out; options={...} has the settings of the code generator."
        notice(Diagnostic("MD114", f"mode={mode!r} changes nothing", why="minidynamo has one mode.", fix=fix))
    _check_choice("on_error", on_error, _ON_ERROR)
    _check_choice("while_compiling", while_compiling, _WHILE_COMPILING)
    _check_choice("limit_policy", limit_policy, _LIMIT_POLICIES)
    _check_settings(options or {})
    if save_policy is not None and not callable(save_policy):
        what = f"save_policy= must be a function, not {type(save_policy).__name__}"
        fix = 'Pass a function of a tensor that returns "save", "recompute" or None.'
        raise ArgumentError(Diagnostic("MD103", what, fix=fix))
    chosen = config.backend if backend is None else backend
    return CompileOptions(
        backend=registry.resolve(chosen, options, on_error=on_error, save_policy=save_policy),
        fullgraph=fullgraph,
        dynamic=dynamic,
        disable=disable,
        steal=checked_names(steal),
        on_error=on_error,
        recompile_limit=recompile_limit,
        while_compiling=while_compiling,
        limit_policy=limit_policy,
        name=name,
        repeated=repeated,
    )


_KEYWORDS = tuple(CompileKeywords.__annotations__)


def _check_type(keyword: str, value: object, *types: type) -> None:
    if type(value) not in types:
        expected = " or ".join("None" if t is type(None) else t.__name__ for t in types)
        what = f"{keyword}= must be {expected}, not {type(value).__name__}"
        raise ArgumentError(Diagnostic("MD103", what, fix=f"Pass {keyword}= as {expected}, or leave it out."))


def _check_choice(keyword: str, value: str, known: tuple[str, ...]) -> None:
    _check_type(keyword, value, str)
    if value not in known:
        what = f"{keyword}= cannot be {value!r}.{nearest(value, known)}"
        raise UnknownName(Diagnostic("MD103", what, fix=f"Use one of {', '.join(known)}."))


def _check_settings(options: dict[str, Any]) -> None:
    known = [name for name, _ in config.current.code_key()]
    for name in options:
        if name not in known:
            what = f"options= has no entry {name!r}.{nearest(str(name), known)}"
            raise UnknownName(Diagnostic("MD103", what, fix=f"Entries: {', '.join(known)}."))
    with_changes(config.current, options)
