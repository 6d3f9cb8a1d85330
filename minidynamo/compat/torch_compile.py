"""Owns private names of torch.compile and torch.jit: the marks set and read by them.

minidynamo uses none of their code, except the `inductor` backend, which is torch's code generator.
"""

from __future__ import annotations

import importlib
import sys
import types
import typing

import torch

_TORCH_COMPILE_MARKS = ("_torchdynamo_orig_callable", "_torchdynamo_disable")

# Marks for our functions: torch.compile does not trace into them, and shows this message where a break is an error.
NOT_FOR_TORCH_COMPILE = {
    "_torchdynamo_disable": "minidynamo",
    "_torchdynamo_disable_msg": "it is compiled by minidynamo; compile the function that it was made from",
}

# Return whether torch.fx traces the calling code symbolically.
FX_QUESTIONS = [
    vars(torch.fx._symbolic_trace)[name]
    for name in ("is_fx_tracing", "is_fx_symbolic_tracing")
    if name in vars(torch.fx._symbolic_trace)
]

# The attribute of a ScriptFunction with the Python function.
SCRIPTED_FROM = "_torchdynamo_inline"

_frame_evaluation: typing.Any = torch._C._dynamo.eval_frame

# Returns the state of torch.jit.trace; nn.Module.__call__ asks for it.
tracing_state = torch._C._get_tracing_state


def is_made_by_torch_compile(function: types.FunctionType) -> bool:
    """Returns whether torch.compile made or disabled a function; such functions are never traced into."""
    return any(vars(function).get(mark) not in (None, "minidynamo") for mark in _TORCH_COMPILE_MARKS)


def is_optimized_module(module: torch.nn.Module) -> bool:
    """Returns whether `torch.compile(module)` made the module."""
    return any(str(getattr(cls, "__module__", "")).startswith("torch._dynamo.") for cls in type(module).__mro__)


def scripted_original(scripted: typing.Any) -> types.FunctionType | None:
    """Returns the function that `torch.jit.script` compiled; None for a traced or loaded function."""
    is_scripted = vars(scripted).get("__qualname__") == "torch.jit.ScriptFunction"
    original = vars(scripted).get(SCRIPTED_FROM) if is_scripted else None
    return original if isinstance(original, types.FunctionType) else None


def is_assumed_constant(function: types.FunctionType) -> bool:
    """Returns whether `torch.compiler.assume_constant_result` has marked the function itself, not the function it
    wraps.
    """
    return "_dynamo_marked_constant" in vars(function) and "__wrapped__" not in vars(function)


def is_allowed_by_torch_compile(function: types.FunctionType) -> bool:
    """Returns whether `torch.compiler.allow_in_graph` has marked the function; torch stores the marks by identity."""
    rules = sys.modules.get("torch._dynamo.trace_rules")
    return rules is not None and rules.is_callable_allowed(function)


def is_disallowed_by_torch_compile(value: object) -> bool:
    """Returns whether `torch._dynamo.disallow_in_graph` has excluded a function other than torch's own directives."""
    rules = sys.modules.get("torch._dynamo.trace_rules")
    if rules is None or id(value) not in rules._disallowed_callable_ids:
        return False
    return not str(getattr(value, "__module__", "")).startswith("torch._dynamo")


def leave_to_python(code: types.CodeType) -> None:
    """Makes torch.compile run this code, and its callees, eagerly."""
    skip = _frame_evaluation._FrameAction.SKIP
    _frame_evaluation.set_code_exec_strategy(code, _frame_evaluation._FrameExecStrategy(skip, skip))


_TAGGED = {"patched_init": "init", "patched_setstate": "setstate"}


def original_of_tagged(function: types.FunctionType) -> types.FunctionType | None:
    """Returns nn.Module's `__init__` or `__setstate__` from the wrapper that torch.compile installs on first use.

    The wrapper only records, for torch.compile, when a module was made. Returns None for other functions.
    """
    if function.__module__ != "torch._dynamo.mutation_guard" or function.__name__ not in _TAGGED:
        return None
    position = function.__code__.co_freevars.index(_TAGGED[function.__name__])
    found = function.__closure__[position].cell_contents  # type: ignore[index]
    assert isinstance(found, types.FunctionType)
    return found


def compile_with_inductor(
    gm: torch.fx.GraphModule, example_inputs: list[typing.Any]
) -> typing.Callable[..., typing.Any]:
    """Compiles with torch's own code generator; imported on first use, since the import takes seconds."""
    compile_fx = importlib.import_module("torch._inductor.compile_fx")
    compiled: typing.Callable[..., typing.Any] = compile_fx.compile_fx(gm, example_inputs)
    return compiled
