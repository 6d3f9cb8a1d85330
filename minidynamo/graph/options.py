"""Owns the checked arguments of `compile`, and the backend in the form that frames need.

Checks nothing; `frontend/compile.py` builds the record from checked arguments.
"""

from __future__ import annotations

import contextvars
from collections.abc import Callable, Mapping, Sequence
from dataclasses import field, replace
from typing import Any

import torch.fx

from minidynamo.config import Config, config, with_changes
from minidynamo.core.records import record
from minidynamo.graph.boxed import BoxedCallable

# Options of the function that is being compiled. A backward graph is compiled too late for a rerun of the function.
on_error_in_force: contextvars.ContextVar[str] = contextvars.ContextVar("on_error", default="raise")
save_policy_in_force: contextvars.ContextVar[Callable[..., Any] | None]
save_policy_in_force = contextvars.ContextVar("save_policy", default=None)


@record(frozen=True)
class BackendKey:
    """The settings, besides the program, that generated code depends on: entries with other keys are not used."""

    #: the name, for messages
    name: str
    #: the backend itself
    backend: Any
    #: (name, value) of each setting that changes code
    settings: tuple[tuple[str, Any], ...]

    def __str__(self) -> str:
        usual = dict(Config().code_key())
        changed = [f"{name}={value!r}" for name, value in self.settings if usual[name] != value]
        return f"{self.name} with {', '.join(changed)}" if changed else self.name


@record(frozen=True)
class GraphCompiler:
    """A backend in the form that frames need."""

    #: the name, for messages
    name: str
    #: the backend itself
    backend: Any
    #: settings that are in force while the backend works
    options: Mapping[str, Any]
    #: `run(gm, example_inputs)` returns a boxed callable, or raises BackendError
    run: Callable[[torch.fx.GraphModule, Sequence[Any]], BoxedCallable] = field(compare=False)
    #: whether kernels that fuse operations are generated
    fuses: bool = False
    #: chooses the tensors that a graph saves for backward
    save_policy: Callable[..., Any] | None = None

    def key(self) -> BackendKey:
        """Returns the key of an entry that is compiled now."""
        settings = with_changes(config.current, dict(self.options)).code_key()
        return BackendKey(self.name, self.backend, settings)


@record(frozen=True)
class CompileOptions:
    """The user's arguments of `compile`, checked."""

    backend: GraphCompiler
    fullgraph: bool = False
    dynamic: bool | None = None
    disable: bool = False
    steal: frozenset[str] = frozenset()
    on_error: str = "raise"
    recompile_limit: int = 8
    while_compiling: str = "wait"
    limit_policy: str = "eager"
    name: str | None = None
    repeated: bool = False

    def for_callee(self) -> CompileOptions:
        """Returns the options for a function called at a graph break, without `steal` and `name` of this function."""
        return replace(self, steal=frozenset(), name=None)


def instead(action: str) -> str:
    """Returns the fix for a failed backend; without advising what the user has chosen already."""
    if on_error_in_force.get() == "eager":
        return f"The function runs eagerly. To compile it, {action}."
    return f'Run the function eagerly with on_error="eager", or {action}.'
