"""Owns the public `cond`, and what a call outside of compiled code does: it compiles itself.

How it is captured, and what its branches may not do, is in `tracer/handlers/cond.py`.
"""

from __future__ import annotations

import functools
import inspect
import threading
import types
import weakref
from collections.abc import Callable, Iterator
from typing import Any

import torch

from minidynamo.config import config
from minidynamo.core.directives import is_compiling
from minidynamo.errors import Diagnostic, InvalidCond
from minidynamo.frontend.compile import compile, compiled_record
from minidynamo.tracer.handlers import cond as cond_handler
from minidynamo.tracer.records import registry

# Versions of one call that are kept: closures with other constants, tensors of other sizes.
MOST_VERSIONS = 64


def cond(pred: Any, true_fn: Callable[..., Any], false_fn: Callable[..., Any], operands: Any = ()) -> Any:
    """What `true_fn(*operands)` returns if `pred` holds, else what `false_fn(*operands)` does.

    A Python number as `pred` just chooses. A tensor with one element is a condition of the compiled graph: both
    functions are captured, the one that is chosen runs, and the only thing that is waited for is `pred`. Both may use
    tensors of their surroundings, and gradients flow into those and into `operands`. They return tensors (or tuples,
    lists and dicts of them) of the same dtype, shape and device, none of which is one of their inputs or a view of one.

    Outside of compiled code the call compiles itself with the eager backend, so that the same rules hold.

    Raises InvalidCond (a TypeError and RuntimeError) for arguments of another kind, Unsupported for a branch that does
    what only Python can do, such as changing a list from outside.
    """
    _check(pred, true_fn, false_fn, operands)
    if not isinstance(pred, torch.Tensor) or config.disable:
        return (true_fn if pred else false_fn)(*operands)
    return _compiled_for(true_fn, false_fn)(pred, true_fn, false_fn, tuple(operands))


registry.function(cond)(cond_handler.cond)


def _check(pred: Any, true_fn: Any, false_fn: Any, operands: Any) -> None:
    for branch in (true_fn, false_fn):
        if not callable(branch):
            raise _invalid(f"two functions, not a {type(branch).__name__}")
    if not isinstance(operands, (tuple, list)):
        raise _invalid(f"a tuple of tensors as operands, not a {type(operands).__name__}")
    if isinstance(pred, torch.Tensor):
        if pred.numel() != 1:
            raise _invalid(f"a pred with one element, not one of shape {tuple(pred.shape)}")
        other = next((leaf for leaf in _leaves(operands) if not isinstance(leaf, torch.Tensor)), pred)
        if other is not pred:
            raise _invalid(f"tensors as operands, not a {type(other).__name__}")
    elif type(pred) not in (bool, int, float):
        raise _invalid(f"a bool or a tensor as pred, not a {type(pred).__name__}")


def _invalid(takes: str) -> InvalidCond:
    what = f"cond(pred, true_fn, false_fn, operands) takes {takes}"
    return InvalidCond(Diagnostic("MD109", what, fix="See docs/api.md, `minidynamo.cond`."))


def _leaves(tree: Any) -> Iterator[Any]:
    if isinstance(tree, (tuple, list, dict)):
        for item in tree.values() if isinstance(tree, dict) else tree:
            yield from _leaves(item)
    else:
        yield tree


# One compiled function per pair of functions, as long as their code lives. Its guards look at everything else.
_compiled: weakref.WeakKeyDictionary[Any, weakref.WeakKeyDictionary[Any, types.FunctionType]]
_compiled = weakref.WeakKeyDictionary()
_lock = threading.Lock()


def _compiled_for(true_fn: Callable[..., Any], false_fn: Callable[..., Any]) -> types.FunctionType:
    with _lock:
        by_false = _compiled.setdefault(_code_of(true_fn), weakref.WeakKeyDictionary())
        key = _code_of(false_fn)
        function = by_false.get(key)
        if function is None:
            function = by_false[key] = _compile_call()
    if compiled_record(function).stats.compiles >= MOST_VERSIONS:
        compiled_record(function).reset()
    return function


def _compile_call() -> types.FunctionType:
    def call_cond(pred: Any, true_fn: Any, false_fn: Any, operands: Any) -> Any:
        if is_compiling():
            return cond(pred, true_fn, false_fn, operands)
        return (true_fn if pred else false_fn)(*operands)

    options: dict[str, Any] = {"backend": "eager", "fullgraph": True, "recompile_limit": MOST_VERSIONS, "name": "cond"}
    function: Any = compile(call_cond, **options)
    assert isinstance(function, types.FunctionType)
    return function


def _code_of(function: Any) -> Any:
    """What calls of a function have in common with calls of other functions from the same line."""
    function = inspect.unwrap(function)
    if isinstance(function, types.FunctionType):
        return function.__code__
    if isinstance(function, types.MethodType):
        return _code_of(function.__func__)
    return _code_of(function.func) if isinstance(function, functools.partial) else type(function)
