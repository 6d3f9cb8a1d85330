"""A small, readable tracing compiler for PyTorch programs.

import minidynamo

@minidynamo.compile
def step(x, y):
    return torch.relu(x + y) * 2
"""

from __future__ import annotations

from minidynamo import deferred as _deferred  # noqa: F401, first: it says which modules run later
from minidynamo import errors, testing
from minidynamo.api import compile, explain, freeze, memory_plan, reset, saved, stats, uncompile, why
from minidynamo.backends import boxed_nop, list_backends, register_backend
from minidynamo.boxed import is_boxed, make_boxed_func
from minidynamo.comptime import comptime
from minidynamo.conditional import cond
from minidynamo.config import config
from minidynamo.events import on_event
from minidynamo.observe import logs as _logs
from minidynamo.observe import progress as _progress
from minidynamo.observe.memory_timeline import memory_timeline
from minidynamo.saved_tensor_hooks import inlineable_hook
from minidynamo.stealing import steal
from minidynamo.steering import (
    allow_in_graph,
    disable,
    graph_break,
    is_compiling,
    mark_dynamic,
    mark_static,
    set_stance,
)

__version__ = "0.1.0"

__all__ = [
    "allow_in_graph",
    "boxed_nop",
    "compile",
    "comptime",
    "cond",
    "config",
    "disable",
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
