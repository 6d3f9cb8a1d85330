"""Owns the public entry point `compile` and what it accepts.

It does not trace, guard or generate code. The keywords are checked in `arguments.py`, at once, not at the first call.
"""

from __future__ import annotations

import contextlib
import functools
import inspect
import types
import weakref
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, TypeVar, Unpack, cast, overload

import torch

from minidynamo.codegen.runtime import library
from minidynamo.compat import OpOverload, OpOverloadPacket, is_made_by_torch_compile, module_call
from minidynamo.config import config
from minidynamo.core.directives import COMPILED, own_mark
from minidynamo.core.events import forget_notices, notice
from minidynamo.core.stats import Stats
from minidynamo.errors import ArgumentError, Diagnostic
from minidynamo.frontend.arguments import CompileKeywords, checked_options
from minidynamo.frontend.compiled_function import CompiledFunction, all_compiled, compile_function, is_current
from minidynamo.frontend.donation import check_are_arguments, marked
from minidynamo.frontend.explain import Explanation
from minidynamo.graph.checked_results import forget_wrong_operators
from minidynamo.graph.options import CompileOptions
from minidynamo.guards import native_walk
from minidynamo.memory.plan import MemoryReport
from minidynamo.memory.saved import SavedTensors
from minidynamo.tracer.handlers.caches import CACHED_FUNCTION
from minidynamo.tracer.trace_rules import rule_for

T = TypeVar("T")

native_walk.build_with(library.load)


@overload
def compile(fn_or_module: None = None, **keywords: Unpack[CompileKeywords]) -> Callable[[T], T]: ...
@overload
def compile(fn_or_module: T, **keywords: Unpack[CompileKeywords]) -> T: ...
def compile(fn_or_module: Any = None, **keywords: Any) -> Any:
    """Compile a function or an nn.Module. Also a decorator, with and without arguments.

    A function comes back as a plain function with the same signature; an nn.Module comes back as the same object,
    compiled in place. Compilation happens at the first call, and again when something that was read has changed.

    Keywords:
        backend: "native" (the default), "cpp", "triton", "eager", "aot_eager", "inductor", a registered name, or a
            callable (gm, example_inputs) -> callable.
        fullgraph: raise Unsupported instead of cutting the graph.
        dynamic: None makes a size or number symbolic once it has changed, True from the start, False never.
        disable: return what was given, unchanged.
        mode, options: `options` sets code-changing config fields for this callable alone; `mode` is accepted for
            compatibility and changes nothing. Giving both is an error.
        steal: names of list arguments that the caller gives away; they are emptied while the call runs.
        save_policy: asked for each tensor that backward may want, a `SavedValue`: returns "save", "recompute", or None.
        on_error: "raise" a BackendError when a backend fails, or run "eager" with one notice.
        recompile_limit: versions of one frame for one backend; calls that fit none of them then run as written.
        limit_policy: "eager", or "raise" RecompileLimit when a call beyond the limit would have to be compiled.
        while_compiling: what calls do that need a compile while another thread compiles: "wait", or run "eager".
        name: the name in messages and file names.

    Whoever compiles a function, or a method of an object, again with equal keywords gets what was compiled for it, as
    long as that lives.

    Raises ArgumentError (a TypeError) for an unknown keyword, a bad type, or something that cannot be compiled;
    UnknownName (a ValueError) for an unknown backend, mode or option; ConflictingArguments (also a RuntimeError) for
    `mode` with `options`. What is callable but not written in Python, and generator and async functions, come back
    unchanged with one notice.
    """
    options = checked_options(**keywords)
    if fn_or_module is None:
        return functools.partial(_compile, options=options)
    return _compile(fn_or_module, options=options)


def _signature_of_compile() -> inspect.Signature:
    """What `help` and editors show: the keywords with their defaults."""
    keywords = list(inspect.signature(checked_options).parameters.values())[:-1]
    return inspect.Signature(
        [inspect.Parameter("fn_or_module", inspect.Parameter.POSITIONAL_OR_KEYWORD, default=None), *keywords]
    )


compile.__signature__ = _signature_of_compile()  # type: ignore[attr-defined]


def _compile(target: Any, *, options: CompileOptions) -> Any:
    """Compile by the kind of thing that `target` is."""
    if config.disable or options.disable:
        return target
    if type(target) in weakref.ProxyTypes:  # first, since they claim to be what they stand for
        raise ArgumentError(_not_compilable(target))
    if isinstance(target, torch.nn.Module):
        return _compile_module(target, options)
    if isinstance(target, (staticmethod, classmethod)):
        return type(target)(_compile(target.__func__, options=options))
    if isinstance(target, functools.partial):
        return functools.partial(_compile_inner(target.func, options), *target.args, **target.keywords)
    if isinstance(target, types.MethodType):
        return types.MethodType(_compile_inner(target.__func__, options, target.__self__), target.__self__)
    if isinstance(target, types.FunctionType):
        return _compile_once(target, options)
    if isinstance(target, type) or not callable(target):
        raise ArgumentError(_not_compilable(target))
    call = inspect.getattr_static(type(target), "__call__", None)
    if isinstance(call, types.FunctionType) and not isinstance(target, (OpOverload, OpOverloadPacket)):
        return types.MethodType(_compile_inner(call, options, target), target)
    if isinstance(target, CACHED_FUNCTION):
        return _unchanged(target, "a cache stands before the function; put @lru_cache above @minidynamo.compile")
    return _unchanged(target, "it is written in C; there is no bytecode to capture")


def _compile_inner(target: Any, options: CompileOptions, owner: Any = None) -> Any:
    """Compile what many objects call, for one of them: the others do not count towards its recompile_limit."""
    if isinstance(target, types.FunctionType):
        return _compile_function(target, options) if owner is None else _compile_once(target, options, owner)
    return _compile(target, options=options)


def _not_compilable(target: object) -> Diagnostic:
    if type(target) in weakref.ProxyTypes:
        return Diagnostic("MD104", "minidynamo.compile got a weak proxy", fix="Pass the object that it stands for.")
    if isinstance(target, type):
        what = f"minidynamo.compile got the class {target.__name__}"
        return Diagnostic("MD104", what, fix="Compile an instance, or decorate the method that does the work.")
    if isinstance(target, property):
        what = "minidynamo.compile got a property"
        return Diagnostic("MD104", what, fix="Decorate the function: @property above, @minidynamo.compile below.")
    what = f"minidynamo.compile got {type(target).__name__}, which is not callable"
    is_optimizer = isinstance(target, torch.optim.Optimizer)
    fix = (
        "Pass its method: minidynamo.compile(optimizer.step)."
        if is_optimizer
        else "Pass a function, a method or an nn.Module."
    )
    return Diagnostic("MD104", what, fix=fix)


def _name_of(target: object) -> str:
    """The name of a function or class; what else it is."""
    name = getattr(target, "__qualname__", None)
    return name if isinstance(name, str) else f"an object of class {type(target).__qualname__}"


def _unchanged(target: T, why: str) -> T:
    notice(Diagnostic("MD105", f"{_name_of(target)} is returned unchanged", why=f"It is not compiled: {why}."))
    return target


@dataclass(frozen=True)
class _Made:
    """A compiled function and, where it is that of a bound method, the object to which it was bound."""

    function: weakref.ref[types.FunctionType]
    owner: weakref.ref[Any] | None

    def is_for(self, owner: Any) -> bool:
        if self.owner is None or owner is None:
            return self.owner is owner
        return self.owner() is owner


# What `compile` made of each function, for those who ask for the same again.
_made: weakref.WeakKeyDictionary[types.FunctionType, list[_Made]] = weakref.WeakKeyDictionary()


def _compile_once(fn: types.FunctionType, options: CompileOptions, owner: Any = None) -> types.FunctionType:
    """One compiled function per function, owner and options, as long as somebody holds it."""
    options = _with_stolen(fn, options)
    made = [known for known in _made.get(fn, ()) if known.function() is not None]
    for function in (known.function() for known in made if known.is_for(owner)):
        if function is not None and compiled_record(function).options == options and is_current(function):
            return function
    function = _compile_function(fn, options)
    if function is not fn:
        with contextlib.suppress(TypeError):  # from an owner that cannot be referred to weakly: it gets one each time
            _made[fn] = [*made, _Made(weakref.ref(function), None if owner is None else weakref.ref(owner))]
    return function


def _compile_function(fn: types.FunctionType, options: CompileOptions) -> types.FunctionType:
    compiled = own_mark(fn, COMPILED)
    if isinstance(compiled, CompiledFunction):
        fn = compiled.py_func
    if is_made_by_torch_compile(fn):
        return _unchanged(fn, "torch.compile made it, or it is disabled for torch.compile; compile the original")
    if inspect.iscoroutinefunction(fn) or inspect.isasyncgenfunction(fn):
        return _unchanged(fn, "async functions hand control to an event loop in the middle")
    if inspect.isgeneratorfunction(fn):
        return _unchanged(fn, "a generator hands control to its caller in the middle; compile the function that loops")
    return compile_function(_entered(fn), _with_stolen(fn, options))


# The function that was given to `compile`, of each that calls it.
_entered_by: weakref.WeakKeyDictionary[types.FunctionType, types.FunctionType] = weakref.WeakKeyDictionary()


def _entered(fn: types.FunctionType) -> types.FunctionType:
    """A function that calls `fn`, where calls of that are traced otherwise than its own code; else `fn`."""
    if not rule_for(fn).takes_itself:
        return fn

    def call(*args: Any, **kwargs: Any) -> Any:
        return fn(*args, **kwargs)

    entered = cast(types.FunctionType, functools.wraps(fn)(call))
    _entered_by[entered] = fn
    return entered


def _with_stolen(target: types.FunctionType | torch.nn.Module, options: CompileOptions) -> CompileOptions:
    """`options`, also with what `steal` says of the target."""
    check_are_arguments(target, options.steal)
    return replace(options, steal=options.steal | marked(target))


# Under this name a module's call keeps what was compiled for it with each set of keywords.
_VERSIONS = "__minidynamo_versions__"


def _compile_module(module: torch.nn.Module, options: CompileOptions) -> torch.nn.Module:
    """Let the module's own `__call__` go through a compiled `_call_impl`; type, keys and identity stay."""
    if not _is_called_by_torch(type(module)):
        return _unchanged(
            module, "it is called by a `__call__` of its class alone; compile a function that calls the module"
        )
    named = replace(_with_stolen(module, options), name=options.name or type(module).__name__)
    made: list[types.FunctionType] = getattr(module.__dict__.get("_compiled_call_impl"), _VERSIONS, [])
    known = (function for function in made if compiled_record(function).options == named)
    function = next(known, None) or compile_function(module_call(type(module)), named, module=module)
    # A bound method would tie module and code into a cycle that only the garbage collector could free.
    owner = weakref.ref(module)

    def call(*args: Any, **kwargs: Any) -> Any:
        return function(owner(), *args, **kwargs)

    call.__dict__.update(function.__dict__)
    call.__dict__[_VERSIONS] = [*(other for other in made if other is not function), function]
    module.__dict__["_compiled_call_impl"] = call
    return module


def _is_called_by_torch(kind: type[torch.nn.Module]) -> bool:
    """Whether a call of such a module comes to `torch.nn.Module.__call__`, as far as can be seen: each `__call__` in
    front is torch's own, or calls on by that name."""
    for base in kind.__mro__[: kind.__mro__.index(torch.nn.Module)]:
        call = vars(base).get("__call__")
        if call is None or str(getattr(call, "__module__", "")).startswith("torch."):
            continue
        if not isinstance(call, types.FunctionType) or "__call__" not in call.__code__.co_names:
            return False
    return isinstance(module_call(kind), types.FunctionType)


def compiled_record(target: Any) -> CompiledFunction:
    """The record behind a compiled function, method or module.

    Raises ArgumentError for something that was not compiled.
    """
    if isinstance(target, functools.partial):
        return compiled_record(target.func)
    if isinstance(target, (staticmethod, classmethod)):
        return compiled_record(target.__func__)
    asked = target
    if isinstance(target, torch.nn.Module):
        target = target.__dict__.get("_compiled_call_impl")
    record = getattr(target, COMPILED, None)
    if not isinstance(record, CompiledFunction):
        what = f"{_name_of(asked)} is not something that minidynamo.compile returned"
        why = "A copy of a compiled module is a plain module." if isinstance(asked, torch.nn.Module) else ""
        why = "minidynamo.config.disable is set, so compile gives back what it gets." if config.disable else why
        fix = "Pass the compiled function or module itself."
        raise ArgumentError(Diagnostic("MD106", what, why=why, fix=fix))
    return record


def reset(target: Any = None) -> None:
    """Forget everything compiled for `target`, or for all functions and modules, and let notices be shown again."""
    records = list(all_compiled) if target is None else [compiled_record(target)]
    for record in records:
        record.reset()
    forget_notices()
    if target is None:
        forget_wrong_operators()


def uncompile(target: Any) -> Any:
    """Give back what `compile` was given: the original function, or the module without its compiled call."""
    function = compiled_record(target).py_func
    original = _entered_by.get(function, function)
    if isinstance(target, torch.nn.Module):
        del target.__dict__["_compiled_call_impl"]
        return target
    if isinstance(target, functools.partial):
        return functools.partial(uncompile(target.func), *target.args, **target.keywords)
    if isinstance(target, (staticmethod, classmethod)):
        return type(target)(original)
    if isinstance(target, types.MethodType):
        owner = target.__self__
        is_its_call = inspect.getattr_static(type(owner), "__call__", None) is original
        return owner if is_its_call else types.MethodType(original, owner)
    return original


def explain(target: Any) -> Explanation:
    """What is known of a compiled function or module: printed, an overview; see
    `minidynamo.frontend.explain.Explanation`.

    It has `breaks()`, `why()`, `guards()`, `code()`, `saved()`, `memory_plan()`, `stats` and `graphs`, as a compiled
    function does; a module has only this. `explain(target)(*args)` explains one call, of a function or module that need
    not be compiled: it is compiled for this call alone, and leaves what is compiled as it is.

    Raises ArgumentError for what is not compiled and cannot be.
    """
    owner = None if isinstance(target, torch.nn.Module) else getattr(target, "__self__", None)
    try:
        return Explanation(compiled_record(target), owner=owner)
    except ArgumentError:
        function = _compiled_apart(target)
        if function is None:
            raise
    return Explanation(compiled_record(function), owner=owner, function=function)


def _compiled_apart(target: Any) -> types.FunctionType | None:
    """What would be compiled of a function, method or module, which stays as it is; None where nothing would."""
    if config.disable:
        return None
    if isinstance(target, torch.nn.Module):
        options = checked_options(name=type(target).__name__)
        kind = type(target)
        return compile_function(module_call(kind), options, module=target) if _is_called_by_torch(kind) else None
    function = target.__func__ if isinstance(target, types.MethodType) else target
    return compile_function(function, checked_options()) if isinstance(function, types.FunctionType) else None


def stats(target: Any) -> Stats:
    """The counters of a compiled function or module: see `minidynamo.core.stats.Stats`."""
    return compiled_record(target).stats


def freeze(target: Any, *, check_every: int = 1000) -> Any:
    """A function that runs what is compiled of a function, method or module without looking at its guards.

    They are looked at in the first call and every `check_every` calls (0: never); what no longer fits raises
    FrozenCallDiffers. It is as fast as a call can be, and wrong without a word between two checks if what the guards
    name changes: see `f.guards()`. Of several versions, what tells them apart is looked at in each call. Raises
    ArgumentError where nothing is compiled.
    """
    function = compiled_record(target).freeze(check_every)
    owner = target if isinstance(target, torch.nn.Module) else getattr(target, "__self__", None)
    if owner is None:
        return function

    @functools.wraps(function)
    def call(*args: Any, **kwargs: Any) -> Any:
        return function(owner, *args, **kwargs)

    return call


def saved(target: Any) -> SavedTensors:
    """Every tensor that the graphs of a compiled function or module keep from forward to backward, and why."""
    return Explanation(compiled_record(target)).saved()


def memory_plan(target: Any) -> MemoryReport:
    """When each buffer of a compiled function or module is born, reused and freed, and the predicted peak."""
    return Explanation(compiled_record(target)).memory_plan()


def why(target: Any) -> str:
    """Why a compiled function or module was compiled more than once: one paragraph per recompile, latest first."""
    return Explanation(compiled_record(target)).why()
