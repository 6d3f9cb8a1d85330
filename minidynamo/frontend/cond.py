"""Owns the public `cond`. A call outside of compiled code compiles itself.

`tracer/handlers/cond.py` captures calls and checks the branches.
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
from minidynamo.errors import Diagnostic, InvalidCond, an
from minidynamo.frontend.compile import compile, compiled_record

# Versions per call: closures with other constants, tensors of other sizes.
MOST_VERSIONS = 64


def cond(pred: Any, true_fn: Callable[..., Any], false_fn: Callable[..., Any], operands: Any = ()) -> Any:
    """Returns `true_fn(*operands)` if `pred` holds, else `false_fn(*operands)`.

    A Python number as `pred` selects the branch at once. A tensor with one element becomes a condition of the compiled
    graph: both functions are captured, only the selected one runs, and only `pred` is waited for. Both functions may
    use tensors of enclosing scopes; gradients flow into these tensors and into `operands`. They return tensors (or
    tuples, lists and dicts of tensors) of the same dtype, shape and device, none of which is an input or a view of an
    input.

    Outside of compiled code the call compiles itself with the eager backend, so that the same rules hold.

    Raises InvalidCond (a TypeError and RuntimeError) for arguments of another kind, Unsupported for a branch with side
    effects, such as a change of an external list.
    """
    _check(pred, true_fn, false_fn, operands)
    if not isinstance(pred, torch.Tensor) or config.disable:
        return (true_fn if pred else false_fn)(*operands)
    return _compiled_for(true_fn, false_fn)(pred, true_fn, false_fn, tuple(operands))


def _check(pred: Any, true_fn: Any, false_fn: Any, operands: Any) -> None:
    for branch in (true_fn, false_fn):
        if not callable(branch):
            raise _invalid(f"two functions, not {an(type(branch).__name__)}")
    if not isinstance(operands, (tuple, list)):
        raise _invalid(f"a tuple of tensors as operands, not {an(type(operands).__name__)}")
    if isinstance(pred, torch.Tensor):
        if pred.numel() != 1:
            raise _invalid(f"a pred with one element, not one of shape {tuple(pred.shape)}")
        other = next((leaf for leaf in _leaves(operands) if not isinstance(leaf, torch.Tensor)), pred)
        if other is not pred:
            raise _invalid(f"tensors as operands, not {an(type(other).__name__)}")
    elif type(pred) not in (bool, int, float):
        raise _invalid(f"a bool or a tensor as pred, not {an(type(pred).__name__)}")


def _invalid(takes: str) -> InvalidCond:
    what = f"cond(pred, true_fn, false_fn, operands) takes {takes}"
    return InvalidCond(Diagnostic("MD109", what, fix="See docs/api.md, `minidynamo.cond`."))


def _leaves(tree: Any) -> Iterator[Any]:
    if isinstance(tree, (tuple, list, dict)):
        for item in tree.values() if isinstance(tree, dict) else tree:
            yield from _leaves(item)
    else:
        yield tree


# One compiled function per pair of code objects, while both are alive. Its guards check all other conditions.
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
    """Returns the code object, or the class, that all functions from the same line share."""
    function = inspect.unwrap(function)
    if isinstance(function, types.FunctionType):
        return function.__code__
    if isinstance(function, types.MethodType):
        return _code_of(function.__func__)
    return _code_of(function.func) if isinstance(function, functools.partial) else type(function)
