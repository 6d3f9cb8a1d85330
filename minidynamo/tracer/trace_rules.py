"""Owns the decision what to do with a real callable: into the graph, fold, handle, polyfill, inline or break.

It acts on nothing; `tracer/calls/call.py` does. It also says which code is trusted: libraries, whose functions, classes
and modules are taken as constants.
"""

from __future__ import annotations

import enum
import functools
import inspect
import sys
import threading
import types
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch

from minidynamo.compat import (
    OPERATOR_NAMESPACES,
    SCHEDULED_STEP,
    OpOverload,
    OpOverloadPacket,
    behind_tags,
    is_assumed_constant,
    is_made_by_torch_compile,
)
from minidynamo.core.directives import COMPILED, DISABLED, is_put_into_graphs, own_mark
from minidynamo.tracer.records.fix_hints import instead_of
from minidynamo.tracer.records.registry import CODE_POLYFILLS, FOLDABLE, FUNCTIONS, INSTANCES, LATE_FUNCTIONS, POLYFILLS


class Action(enum.Enum):
    """What `tracer/calls/call.py` does with a callable."""

    IN_GRAPH = "a node in the graph"
    FOLD = "run now, on constants"
    HANDLER = "a handler of the registry"
    POLYFILL = "trace its plain Python twin"
    INLINE = "trace its own code"
    UNWRAP = "trace the function that it is the compiled form of"
    BREAK = "cut the graph"


@dataclass(frozen=True)
class Rule:
    """An action, for BREAK with its reason, code and advice, for HANDLER and POLYFILL with the function to use.

    `takes_itself`: that function takes what is called in front of its arguments.
    """

    action: Action
    reason: str = ""
    code: str = "MD207"
    fix: str = ""
    function: Callable[..., Any] | None = None
    takes_itself: bool = False


TRUSTED_PACKAGES = frozenset({"torch", "triton", "minidynamo", "builtins", *sys.stdlib_module_names}) - {"__main__"}

# Functions of torch.nn.functional that call functions they are given.
_CALLS_BACK = ("triplet_margin_with_distance_loss",)

# The functions of torch.masked that compute, which define a class at each call.
_MASKED = tuple(name for name in torch.masked.__all__ if getattr(torch.masked, name).__module__ == "torch.masked._ops")

# Parts of them that are plain Python.
_TRACED = (
    "torch.autograd.function",
    "torch.autograd.functional",
    "torch.autograd.grad_mode",
    "torch.autograd.profiler",
)

# Library code that is never traced into: it registers, communicates or compiles, or computes with arrays of numpy.
_RUN_AS_WRITTEN = (
    "torch.autograd",
    "torch.distributed",
    "torch._dynamo",
    "torch._inductor",
    "torch.fx",
    "torch._functorch",
    "torch.func",
    "torch.jit",
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
_HEAP_TYPE = 1 << 9  # set for classes made at run time: all that are written in Python, and some made in C
_LIBRARY_VALUES = (types.FunctionType, types.BuiltinFunctionType, type, types.ModuleType, types.MethodDescriptorType)


def rule_for(value: Any) -> Rule:
    """What to do with a call of `value`, a real callable that is not an instance of a user's class."""
    key = id(value)
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
    return Rule(Action.BREAK, "It is not written in Python, and minidynamo does not know it.", fix=instead_of(name, ""))


def _function_rule(value: types.FunctionType) -> Rule:
    marks = value.__dict__
    if DISABLED in marks:
        return Rule(Action.BREAK, f"It is not captured: {marks[DISABLED]}.")
    if is_put_into_graphs(value):
        return Rule(Action.IN_GRAPH)
    if is_assumed_constant(value):
        return Rule(Action.FOLD)
    if own_mark(value, COMPILED) is not None and isinstance(marks.get("__wrapped__"), types.FunctionType):
        return Rule(Action.UNWRAP)
    if is_made_by_torch_compile(value):
        # torch.compile traces optimizers in its own way and marks their methods, once it is used in the process.
        if str(value.__module__).startswith("torch.optim.") and isinstance(
            marks.get("__wrapped__"), types.FunctionType
        ):
            return Rule(Action.UNWRAP)
        return Rule(Action.BREAK, "torch.compile made it, or it is disabled for torch.compile.")
    if value.__code__.co_flags & _ASYNCHRONOUS:
        return Rule(Action.BREAK, "It is a coroutine, which an event loop drives.", "MD209")
    late = LATE_FUNCTIONS.get((value.__module__, value.__qualname__))
    if late is not None:
        return Rule(Action.HANDLER, function=late)
    if value.__code__ in CODE_POLYFILLS:
        return Rule(Action.POLYFILL, function=CODE_POLYFILLS[value.__code__], takes_itself=True)
    tagged = behind_tags(value)
    if tagged is not None:
        return Rule(Action.POLYFILL, function=tagged)
    library = _run_as_written(value)
    if library:
        return Rule(
            Action.BREAK, f"Functions of {library} run as written.", fix=instead_of(value.__qualname__, library)
        )
    return Rule(Action.INLINE)


def runs_as_written(value: types.FunctionType) -> bool:
    """Whether it is library code that is neither inlined nor compiled for itself."""
    return bool(_run_as_written(value))


def _run_as_written(value: types.FunctionType) -> str:
    if value.__code__ is SCHEDULED_STEP:
        return ""
    # A decorator that calls functools.wraps gives what it makes the name of another module.
    for module in (value.__module__ or "", value.__globals__.get("__name__") or ""):
        found = any(module == name or module.startswith(f"{name}.") for name in _RUN_AS_WRITTEN)
        if found and module not in _TRACED:
            return module
    return ""


@functools.cache
def _graph_functions() -> dict[int, Any]:
    """Functions of torch that become graph nodes as they are, by identity."""
    found: dict[int, Any] = {}
    for space in OPERATOR_NAMESPACES:
        for name in dir(space):
            value = getattr(space, name)
            # Fake tensors know nothing of quantized ones, and take them for what they were made of.
            if isinstance(value, types.BuiltinFunctionType) and not name.startswith(("__", "quantize")):
                found[id(value)] = value
    for space, names in ((torch.functional, torch.functional.__all__), (torch.masked, _MASKED)):
        found.update((id(value), value) for value in (getattr(space, name) for name in names))
    for name, value in vars(torch.nn.functional).items():
        own = getattr(value, "__module__", None) == "torch.nn.functional"
        if own and isinstance(value, types.FunctionType) and not name.startswith("_") and name not in _CALLS_BACK:
            found[id(value)] = value
    return found


def is_trusted_module(name: object) -> bool:
    """Whether a module name belongs to a library whose functions and classes are taken as constants."""
    return isinstance(name, str) and name.partition(".")[0] in TRUSTED_PACKAGES


def is_trusted_class(cls: type) -> bool:
    """Whether the class belongs to such a library."""
    return is_trusted_module(getattr(cls, "__module__", None))  # one made where no module is named has none


def is_plain_class(cls: type) -> bool:
    """Whether all that the instances hold is in their dictionary and slots: no class in the MRO keeps state in C.

    The dictionary of a `threading.local` is that of the thread. A class of those with an `__init__` is no plain one: it
    runs in each thread that looks at an attribute for the first time. Nor is one with slots, which threads share.
    """
    if issubclass(cls, threading.local) and (cls.__init__ is not object.__init__ or _has_slots(cls)):
        return False
    plain = (object, types.SimpleNamespace, threading.local)
    return all(base in plain or _is_written_in_python(base) for base in cls.__mro__)


def _has_slots(cls: type) -> bool:
    return any(inspect.ismemberdescriptor(value) for base in cls.__mro__ for value in vars(base).values())


def _is_written_in_python(cls: type) -> bool:
    if not cls.__flags__ & _HEAP_TYPE or isinstance(cls.__dict__.get("__new__"), types.BuiltinFunctionType):
        return False
    return not any(isinstance(value, types.MethodDescriptorType) for value in cls.__dict__.values())


def is_library_value(value: object) -> bool:
    """Whether a value found in library code is a function, class or module, which is not guarded there."""
    return isinstance(value, (*_LIBRARY_VALUES, OpOverload, OpOverloadPacket))
