"""A small, readable tracing compiler for PyTorch programs.

import minidynamo

@minidynamo.compile
def step(x, y):
    return torch.relu(x + y) * 2
"""

from __future__ import annotations

from minidynamo.core import lazy_modules as _lazy_modules  # noqa: F401, first: it defers other imports
from minidynamo.core.garbage import collections_delayed as _collections_delayed

# isort: split
with _collections_delayed():
    from minidynamo import errors, testing
    from minidynamo.backends.registry import boxed_nop, list_backends, register_backend
    from minidynamo.comptime import comptime
    from minidynamo.config import config
    from minidynamo.core.directives import (
        allow_in_graph,
        disable,
        disallow_in_graph,
        graph_break,
        is_compiling,
        mark_dynamic,
        mark_static,
        set_stance,
    )
    from minidynamo.core.events import on_event
    from minidynamo.frontend.captured.backward import captured_backward
    from minidynamo.frontend.compile import compile, explain, freeze, memory_plan, reset, saved, stats, uncompile, why
    from minidynamo.frontend.cond import cond
    from minidynamo.frontend.donation import steal
    from minidynamo.graph.boxed import is_boxed, make_boxed_func
    from minidynamo.graph.saved_tensor_hooks import inlineable_hook
    from minidynamo.observe import logs as _logs
    from minidynamo.observe import progress as _progress
    from minidynamo.observe.memory_timeline import memory_timeline

__version__ = "0.1.0"

__all__ = [
    "allow_in_graph",
    "boxed_nop",
    "captured_backward",
    "compile",
    "comptime",
    "cond",
    "config",
    "disable",
    "disallow_in_graph",
    "errors",
    "explain",
    "freeze",
    "graph_break",
    "inlineable_hook",
    "is_boxed",
    "is_compiling",
    "list_backends",
    "make_boxed_func",
    "mark_dynamic",
    "mark_static",
    "memory_plan",
    "memory_timeline",
    "on_event",
    "register_backend",
    "reset",
    "saved",
    "set_stance",
    "stats",
    "steal",
    "testing",
    "uncompile",
    "why",
]

_progress.install()
_logs.install()
