"""Owns private names of torch.compile and torch.jit: marks that they leave, and those that they understand.

minidynamo takes nothing from them, but for the `inductor` backend, which is torch's code generator.
"""

from __future__ import annotations

import importlib
import sys
import types
import typing

import torch

_TORCH_COMPILE_MARKS = ("_torchdynamo_orig_callable", "_torchdynamo_disable")

# Put on functions of ours: torch.compile does not look into them, and says this where it must not break its graph.
NOT_FOR_TORCH_COMPILE = {
    "_torchdynamo_disable": "minidynamo",
    "_torchdynamo_disable_msg": "it is compiled by minidynamo; compile the function that it was made from",
}

# Where a ScriptFunction keeps the function that it was made from.
SCRIPTED_FROM = "_torchdynamo_inline"

_frame_evaluation: typing.Any = torch._C._dynamo.eval_frame

# What torch.jit.trace is doing; nn.Module.__call__ asks.
tracing_state = torch._C._get_tracing_state


def is_made_by_torch_compile(function: types.FunctionType) -> bool:
    """Whether torch.compile made a function, or it is disabled for that; such functions are never traced into."""
    return any(vars(function).get(mark) not in (None, "minidynamo") for mark in _TORCH_COMPILE_MARKS)


def scripted_original(scripted: typing.Any) -> types.FunctionType | None:
    """The function that `torch.jit.script` has compiled; None for what was traced or loaded."""
    is_scripted = vars(scripted).get("__qualname__") == "torch.jit.ScriptFunction"
    original = vars(scripted).get(SCRIPTED_FROM) if is_scripted else None
    return original if isinstance(original, types.FunctionType) else None


def is_assumed_constant(function: types.FunctionType) -> bool:
    """Whether `torch.compiler.assume_constant_result` has marked it, and not only what it wraps."""
    return "_dynamo_marked_constant" in vars(function) and "__wrapped__" not in vars(function)


def is_allowed_by_torch_compile(function: types.FunctionType) -> bool:
    """Whether `torch.compiler.allow_in_graph` has marked it; torch keeps the marks where it traces, by identity."""
    rules = sys.modules.get("torch._dynamo.trace_rules")
    return rules is not None and rules.is_callable_allowed(function)


def leave_to_python(code: types.CodeType) -> None:
    """Let torch.compile run this code, and what it calls, as it is."""
    skip = _frame_evaluation._FrameAction.SKIP
    _frame_evaluation.set_code_exec_strategy(code, _frame_evaluation._FrameExecStrategy(skip, skip))


_TAGGED = {"patched_init": "init", "patched_setstate": "setstate"}


def behind_tags(function: types.FunctionType) -> types.FunctionType | None:
    """The `__init__` or `__setstate__` of nn.Module behind the one that torch.compile, once used, puts in its place.

    That one only notes, for torch.compile, when a module was made. None for any other function.
    """
    if function.__module__ != "torch._dynamo.mutation_guard" or function.__name__ not in _TAGGED:
        return None
    place = function.__code__.co_freevars.index(_TAGGED[function.__name__])
    found = function.__closure__[place].cell_contents  # type: ignore[index]
    assert isinstance(found, types.FunctionType)
    return found


def compile_with_inductor(
    gm: torch.fx.GraphModule, example_inputs: list[typing.Any]
) -> typing.Callable[..., typing.Any]:
    """torch's own code generator; imported when it is asked for, since that takes seconds."""
    compile_fx = importlib.import_module("torch._inductor.compile_fx")
    compiled: typing.Callable[..., typing.Any] = compile_fx.compile_fx(gm, example_inputs)
    return compiled
