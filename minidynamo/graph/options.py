"""Owns the record of what the user asked of `compile`, and of the backend as frames need it.

It checks nothing; `frontend/compile.py` makes it from checked arguments.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import torch.fx

from minidynamo.config import Config, config, with_changes
from minidynamo.graph.boxed import BoxedCallable


@dataclass(frozen=True)
class BackendKey:
    """What decides, besides the program, about generated code: entries with other keys are not used.

    `backend` is the backend itself, `settings` the name and value of each setting that changes code.
    """

    name: str
    backend: Any
    settings: tuple[tuple[str, Any], ...]

    def __str__(self) -> str:
        usual = dict(Config().code_key())
        changed = [f"{name}={value!r}" for name, value in self.settings if usual[name] != value]
        return f"{self.name} with {', '.join(changed)}" if changed else self.name


@dataclass(frozen=True)
class GraphCompiler:
    """A backend as frames need it: `run(gm, example_inputs)` returns a boxed callable or raises BackendError.

    `options` are the settings that are in force while it works, whatever the others are; `save_policy` has a say in
    what its graphs keep for backward.
    """

    name: str
    backend: Any
    options: Mapping[str, Any]
    run: Callable[[torch.fx.GraphModule, Sequence[Any]], BoxedCallable] = field(compare=False)
    save_policy: Callable[..., Any] | None = None

    def key(self) -> BackendKey:
        """What an entry that is compiled now depends on."""
        settings = with_changes(config.current, dict(self.options)).code_key()
        return BackendKey(self.name, self.backend, settings)


@dataclass(frozen=True)
class CompileOptions:
    """What the user asked of `compile`, checked."""

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

    def for_callee(self) -> CompileOptions:
        """The options for a function that is called at a graph break: those that do not name this one's arguments."""
        return replace(self, steal=frozenset(), name=None)
