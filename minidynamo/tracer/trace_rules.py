"""Owns the decision how to trace a call of a real callable: into the graph, fold, handle, polyfill, inline or break.

Executes nothing: `tracer/calls/call.py` does. Also decides which code is trusted: libraries, whose functions, classes
and modules are constants.
"""

from __future__ import annotations

import enum
import functools
import inspect
import sys
import threading
import types
from collections.abc import Callable
from typing import Any

import torch

from minidynamo.compat import (
    FUNCTIONAL_COLLECTIVES,
    OPERATOR_NAMESPACES,
    SCHEDULED_STEP,
    OpOverload,
    OpOverloadPacket,
    is_assumed_constant,
    is_made_at_run_time,
    is_made_by_torch_compile,
    original_of_tagged,
)
from minidynamo.core.directives import COMPILED, DISABLED, is_disallowed, is_graph_function, own_mark
from minidynamo.core.records import record
from minidynamo.tracer.records.fix_hints import hint_for
from minidynamo.tracer.records.registry import CODE_POLYFILLS, FOLDABLE, FUNCTIONS, INSTANCES, LATE_FUNCTIONS, POLYFILLS


class Action(enum.Enum):
    """The ways in which `tracer/calls/call.py` traces a call."""

    IN_GRAPH = "a node in the graph"
    FOLD = "run now, on constants"
    HANDLER = "a handler of the registry"
    POLYFILL = "trace its polyfill"
    INLINE = "trace its own code"
    UNWRAP = "trace the function that it is the compiled form of"
    BREAK = "cut the graph"


@record(frozen=True)
class Rule:
    """The decision for one callable."""

    action: Action
    #: for BREAK: why the call cannot be traced
    reason: str = ""
    #: for BREAK: the code of the diagnostic
    code: str = "MD207"
    #: for BREAK: a hint for the user
    fix: str = ""
    #: for HANDLER and POLYFILL: the function to use
    function: Callable[..., Any] | None = None
    #: whether `function` takes the callable before the arguments
    takes_itself: bool = False


TRUSTED_PACKAGES = frozenset({"torch", "triton", "minidynamo", "builtins", *sys.stdlib_module_names}) - {"__main__"}

# Functions of torch.nn.functional that call a function argument.
_TAKES_FUNCTION = ("triplet_margin_with_distance_loss",)

# The computing functions of torch.masked: each call defines a class.
_MASKED = tuple(name for name in torch.masked.__all__ if getattr(torch.masked, name).__module__ == "torch.masked._ops")

# Modules inside `_NEVER_INLINED` that are plain Python.
_TRACED = (
    "torch.autograd.function",
    "torch.autograd.functional",
    "torch.autograd.grad_mode",
    "torch.autograd.profiler",
    "torch.distributed.algorithms._checkpoint.checkpoint_wrapper",
    FUNCTIONAL_COLLECTIVES,
)

# Library code that is never inlined: it registers, communicates or compiles, or computes with numpy arrays.
_NEVER_INLINED = (
    "torch.autograd",
    "torch.distributed",
    "torch._dynamo",
    "torch._inductor",
    "torch.fx",
    "torch._functorch",
    "torch.func",
    "torch.jit",
    "torch.nn.parallel.distributed",
    "torch.optim.lbfgs",
    "torch.optim.lr_scheduler",
    "torch.random",
    "torch.serialization",
    "torch.utils.checkpoint",
    "torch.utils.data",
    "logging",
    "threading",
    "matplotlib",
    "numpy",
    "pandas",
    "PIL",
    "scipy",
    "sklearn",
)

_ASYNCHRONOUS = inspect.CO_COROUTINE | inspect.CO_ASYNC_GENERATOR
_LIBRARY_VALUES = (types.FunctionType, types.BuiltinFunctionType, type, types.ModuleType, types.MethodDescriptorType)


def rule_for(value: Any) -> Rule:
    """Returns the rule for a call of `value`, a real callable that is not an instance of a user's class."""
    key = id(value)
    if is_disallowed(value):
        return Rule(Action.BREAK, "It is marked with disallow_in_graph.")
    if key in FUNCTIONS:
        return Rule(Action.HANDLER, function=FUNCTIONS[key])
    if key in POLYFILLS:
        return Rule(Action.POLYFILL, function=POLYFILLS[key])
    if key in FOLDABLE:
        return Rule(Action.FOLD)
    if key in _graph_functions():
        return Rule(Action.IN_GRAPH)
    if isinstance(value, types.FunctionType):
        return _function_rule(value)
    if type(value) in INSTANCES:
        return Rule(Action.HANDLER, function=INSTANCES[type(value)], takes_itself=True)
    name = getattr(value, "__name__", "")
    return Rule(Action.BREAK, "It is not written in Python, and minidynamo does not know it.", fix=hint_for(name, ""))


def _function_rule(value: types.FunctionType) -> Rule:
    marks = value.__dict__
    if DISABLED in marks:
        return Rule(Action.BREAK, f"It is not captured: {marks[DISABLED]}.")
    if is_graph_function(value):
        return Rule(Action.IN_GRAPH)
    if is_assumed_constant(value):
        return Rule(Action.FOLD)
    if own_mark(value, COMPILED) is not None and isinstance(marks.get("__wrapped__"), types.FunctionType):
        return Rule(Action.UNWRAP)
    if is_made_by_torch_compile(value):
        # torch.compile traces optimizers specially: after its first use in the process their methods are marked.
        if str(value.__module__).startswith("torch.optim.") and isinstance(
            marks.get("__wrapped__"), types.FunctionType
        ):
            return Rule(Action.UNWRAP)
        return Rule(Action.BREAK, "torch.compile made it, or it is disabled for torch.compile.")
    if value.__code__.co_flags & _ASYNCHRONOUS:
        return Rule(Action.BREAK, "It is a coroutine, which an event loop drives.", "MD209")
    late = LATE_FUNCTIONS.get((value.__module__, value.__qualname__))
    if late is not None and _is_of_its_package(value):
        return Rule(Action.HANDLER, function=late)
    if value.__code__ in CODE_POLYFILLS:
        return Rule(Action.POLYFILL, function=CODE_POLYFILLS[value.__code__], takes_itself=True)
    tagged = original_of_tagged(value)
    if tagged is not None:
        return Rule(Action.POLYFILL, function=tagged)
    library = _never_inlined(value)
    if library:
        return Rule(Action.BREAK, f"Functions of {library} run eagerly.", fix=hint_for(value.__qualname__, library))
    return Rule(Action.INLINE)


def _is_of_its_package(value: types.FunctionType) -> bool:
    """Returns whether the package that `value` names has its code: a user's functools.wraps copies names."""
    package, _, _ = str(value.__globals__.get("__name__")).partition(".")
    return package == str(value.__module__).partition(".")[0]


def is_never_inlined(value: types.FunctionType) -> bool:
    """Returns whether a function is library code that is neither inlined nor compiled separately."""
    return bool(_never_inlined(value))


def _never_inlined(value: types.FunctionType) -> str:
    if value.__code__ is SCHEDULED_STEP:
        return ""
    own_module = value.__globals__.get("__name__") or ""
    # A decorator copies `__module__` from the wrapped function; minidynamo's stand-ins copy it from the original.
    is_copy = own_module and not own_module.startswith("minidynamo.") and not _is_of_its_package(value)
    for module in (own_module, "" if is_copy else value.__module__ or ""):
        found = any(module == name or module.startswith(f"{name}.") for name in _NEVER_INLINED)
        if found and module not in _TRACED:
            return module
    return ""


@functools.cache
def _graph_functions() -> dict[int, Any]:
    """Returns the functions of torch that become graph nodes, by identity."""
    functions: dict[int, Any] = {}
    for space in OPERATOR_NAMESPACES:
        for name in dir(space):
            value = getattr(space, name)
            # Fake tensors ignore quantization: a quantized tensor would be taken for its unquantized input.
            if isinstance(value, types.BuiltinFunctionType) and not name.startswith(("__", "quantize")):
                functions[id(value)] = value
    for space, names in ((torch.functional, torch.functional.__all__), (torch.masked, _MASKED)):
        functions.update((id(value), value) for value in (getattr(space, name) for name in names))
    for name, value in vars(torch.nn.functional).items():
        is_function = isinstance(value, types.FunctionType) and value.__module__ == "torch.nn.functional"
        if is_function and not name.startswith("_") and name not in _TAKES_FUNCTION:
            functions[id(value)] = value
    return functions


def is_trusted_module(name: object) -> bool:
    """Returns whether a module belongs to a library whose functions and classes are constants."""
    return isinstance(name, str) and name.partition(".")[0] in TRUSTED_PACKAGES


def is_trusted_class(cls: type) -> bool:
    """Returns whether the class belongs to a trusted library."""
    return is_trusted_module(getattr(cls, "__module__", None))  # a class may have no `__module__`


def is_plain_class(cls: type) -> bool:
    """Returns whether all state of the instances is in dictionary and slots: no class in the MRO keeps state in C.

    A `threading.local` has one dictionary per thread. Its `__init__` runs at the first access in each thread: a guard
    that reads an attribute may run it first. A subclass with slots is not plain, because threads share slots.
    """
    if issubclass(cls, threading.local) and _has_slots(cls):
        return False
    plain = (object, types.SimpleNamespace, threading.local)
    return all(base in plain or _is_written_in_python(base) for base in cls.__mro__)


def _has_slots(cls: type) -> bool:
    return any(inspect.ismemberdescriptor(value) for base in cls.__mro__ for value in vars(base).values())


def _is_written_in_python(cls: type) -> bool:
    if not is_made_at_run_time(cls) or isinstance(cls.__dict__.get("__new__"), types.BuiltinFunctionType):
        return False
    return not any(isinstance(value, types.MethodDescriptorType) for value in cls.__dict__.values())


def is_library_value(value: object) -> bool:
    """Returns whether a value in library code is a function, class or module, which gets no guard."""
    return isinstance(value, (*_LIBRARY_VALUES, OpOverload, OpOverloadPacket))
