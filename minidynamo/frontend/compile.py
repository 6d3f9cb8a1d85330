"""Owns the public entry point `compile`: which objects it accepts, and how each kind is compiled.

It does not trace, guard or generate code. `arguments.py` checks the keywords when `compile` is called, not at the first
call of the compiled function.
"""

from __future__ import annotations

import contextlib
import functools
import inspect
import types
import weakref
from collections.abc import Callable
from dataclasses import replace
from typing import Any, TypeVar, Unpack, cast, overload

import torch

from minidynamo.codegen.runtime import library
from minidynamo.compat import (
    CACHED_FUNCTION,
    OpOverload,
    OpOverloadPacket,
    is_made_by_torch_compile,
    is_optimized_module,
    module_call,
    module_in_data_parallel,
)
from minidynamo.config import config
from minidynamo.core.artifacts import own_frames_hidden
from minidynamo.core.directives import COMPILED, own_mark
from minidynamo.core.events import forget_notices, notice
from minidynamo.core.records import record
from minidynamo.core.stats import Stats
from minidynamo.errors import ArgumentError, Diagnostic
from minidynamo.frontend import convert_frame
from minidynamo.frontend.arguments import CompileKeywords, checked_options
from minidynamo.frontend.compiled_function import (
    CompiledFunction,
    all_compiled,
    compile_function,
    eager_function,
    is_current,
)
from minidynamo.frontend.data_parallel import call_wrapper
from minidynamo.frontend.donation import check_are_arguments, donated_names
from minidynamo.frontend.explain import Explanation, with_answers
from minidynamo.frontend.repeated import RepeatedBlocks, repeated_modules
from minidynamo.graph.checked_results import forget_wrong_operators
from minidynamo.graph.options import CompileOptions
from minidynamo.guards import native_walk
from minidynamo.memory.plan import MemoryReport, SavedTensors

T = TypeVar("T")

native_walk.build_with(library.load)


@overload
def compile(fn_or_module: None = None, **keywords: Unpack[CompileKeywords]) -> Callable[[T], T]: ...
@overload
def compile(fn_or_module: T, **keywords: Unpack[CompileKeywords]) -> T: ...
def compile(fn_or_module: Any = None, *positional: Any, **keywords: Any) -> Any:
    """Compiles a function or an nn.Module. Also a decorator, with and without arguments.

    A function is returned as a plain function with the same signature. An nn.Module is compiled in place and returned.
    Compilation happens at the first call, and again when a value that the function reads has changed.

    Keywords:
        backend: "native" (the default), "cpp", "triton", "eager", "aot_eager", "inductor", a registered name, or a
            callable (gm, example_inputs) -> callable.
        fullgraph: raise Unsupported instead of cutting the graph.
        dynamic: None makes a size or number symbolic once it has changed, True from the start, False never.
        disable: compile nothing; the result calls the target, and answers `stats`, `why()` and the others.
        mode, options: `options` sets code-changing config fields for this callable alone; `mode` is accepted for
            compatibility and changes nothing. Giving both is an error.
        steal: names of list arguments that the caller donates; the call empties these lists while it runs.
        save_policy: called with each tensor that backward may need, as a `SavedValue`; returns "save", "recompute", or
            None.
        on_error: "raise" a BackendError when a backend fails, or run "eager" with one notice.
        recompile_limit: versions of one frame for one backend; calls that fit no version then run eagerly.
        limit_policy: "eager", or "raise" RecompileLimit when a call beyond the limit would have to be compiled.
        while_compiling: behavior of calls that must compile while another thread compiles: "wait", or run "eager".
        name: the name in messages and file names.
        repeated: compile, instead of a whole model, the modules whose class occurs several times in the outermost
            nn.ModuleLists and nn.Sequentials, such as the layers of a transformer. They share what is compiled.

    Compiling a function, or a method of an object, again with equal keywords returns the existing compiled function
    while that is alive.

    Raises ArgumentError (a TypeError) for an unknown keyword, a bad type, or a target that cannot be compiled;
    UnknownName (a ValueError) for an unknown backend, mode or option; ConflictingArguments (also a RuntimeError) for
    `mode` with `options`. Callables that are not written in Python, generator functions and async functions are
    returned unchanged, with one notice.
    """
    if positional:
        what = f"minidynamo.compile takes one target, and got {positional[0]!r:.40} after it"
        fix = f"Pass it by keyword: minidynamo.compile(f, backend={positional[0]!r:.40})."
        raise ArgumentError(Diagnostic("MD103", what, fix=fix))
    options = checked_options(**keywords)
    if fn_or_module is None:
        return functools.partial(_compile, options=options)
    return _compile(fn_or_module, options=options)


def _signature_of_compile() -> inspect.Signature:
    """Returns the signature that `help` and editors show: the keywords with their defaults."""
    keywords = list(inspect.signature(checked_options).parameters.values())[:-1]
    return inspect.Signature(
        [inspect.Parameter("fn_or_module", inspect.Parameter.POSITIONAL_OR_KEYWORD, default=None), *keywords]
    )


compile.__signature__ = _signature_of_compile()  # type: ignore[attr-defined]


def _compile(target: Any, *, options: CompileOptions) -> Any:
    """Compiles `target` according to its kind."""
    if config.disable:
        options = replace(options, disable=True)
    if options.disable and not callable(target) and not isinstance(target, (staticmethod, classmethod)):
        return target
    if type(target) in weakref.ProxyTypes:  # first: a proxy claims the class of its referent
        raise ArgumentError(_not_compilable(target))
    if options.repeated:
        return _compile_repeated(target, replace(options, repeated=False))
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
        return _unchanged(target, "a cache wraps the function; put @lru_cache above @minidynamo.compile")
    return _unchanged(target, "it is written in C; there is no bytecode to capture")


def _compile_inner(target: Any, options: CompileOptions, owner: Any = None) -> Any:
    """Compiles the function of a method or partial. With `owner`, other objects do not count towards the
    recompile_limit.
    """
    if isinstance(target, types.FunctionType):
        return _compile_function(target, options) if owner is None else _compile_once(target, options, owner)
    return _compile(target, options=options)


def _not_compilable(target: object) -> Diagnostic:
    if type(target) in weakref.ProxyTypes:
        return Diagnostic("MD104", "minidynamo.compile got a weak proxy", fix="Pass the object itself.")
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
    """Returns the name of a function or class, or describes any other object by its class."""
    name = getattr(target, "__qualname__", None)
    return name if isinstance(name, str) else f"an object of class {type(target).__qualname__}"


def _unchanged(target: T, why: str) -> T:
    notice(Diagnostic("MD105", f"{_name_of(target)} is returned unchanged", why=f"It is not compiled: {why}."))
    return target


@record(frozen=True)
class _KnownCompile:
    """A compiled function and, for a bound method, the object to which the method was bound."""

    function: weakref.ref[types.FunctionType]
    owner: weakref.ref[Any] | None

    def belongs_to(self, owner: Any) -> bool:
        if self.owner is None or owner is None:
            return self.owner is owner
        return self.owner() is owner


# The compiled functions of each function: a repeated call of `compile` returns the same object.
_compiled: weakref.WeakKeyDictionary[types.FunctionType, list[_KnownCompile]] = weakref.WeakKeyDictionary()


def _compile_once(fn: types.FunctionType, options: CompileOptions, owner: Any = None) -> types.FunctionType:
    """Returns the compiled function for this function, owner and options; compiles only if none is alive."""
    options = _with_stolen(fn, options)
    versions = [known for known in _compiled.get(fn, ()) if known.function() is not None]
    for function in (known.function() for known in versions if known.belongs_to(owner)):
        if function is not None and compiled_record(function).options == options and is_current(function):
            return function
    function = _compile_function(fn, options)
    if function is not fn:
        with contextlib.suppress(TypeError):  # no weak reference to the owner: compile again each time
            _compiled[fn] = [
                *versions,
                _KnownCompile(weakref.ref(function), None if owner is None else weakref.ref(owner)),
            ]
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
    if options.disable:
        return with_answers(eager_function(fn, options))
    return with_answers(compile_function(_with_caller(fn), _with_stolen(fn, options)))


# Maps each function made by `_with_caller` to the function that was passed to `compile`.
_target_of_caller: weakref.WeakKeyDictionary[types.FunctionType, types.FunctionType] = weakref.WeakKeyDictionary()


def _with_caller(fn: types.FunctionType) -> types.FunctionType:
    """Returns a function that calls `fn` if a trace rule replaces calls of `fn`; otherwise `fn` itself."""
    is_made_by_decorator = fn.__globals__.get("__name__") != fn.__module__  # the question imports the tracer
    if not is_made_by_decorator or not convert_frame.is_replaced(fn):
        return fn

    def call(*args: Any, **kwargs: Any) -> Any:
        try:
            return fn(*args, **kwargs)
        except own_frames_hidden():
            raise

    entered = cast(types.FunctionType, functools.wraps(fn)(call))
    _target_of_caller[entered] = fn
    return entered


def _with_stolen(target: types.FunctionType | torch.nn.Module, options: CompileOptions) -> CompileOptions:
    """Returns `options` with the names that `steal` has declared for the target added."""
    check_are_arguments(target, options.steal)
    return replace(options, steal=options.steal | donated_names(target))


# Attribute of a module's compiled call: the list of the calls compiled with other sets of keywords.
_VERSIONS = "__minidynamo_versions__"


def _compile_module(module: torch.nn.Module, options: CompileOptions) -> torch.nn.Module:
    """Makes the module's own `__call__` use a compiled `_call_impl`; type, keys and identity do not change."""
    if isinstance(module, torch.jit.ScriptModule):
        return _unchanged(module, "torch.jit.script compiled it; there is no bytecode to capture")
    if is_optimized_module(module):
        return _unchanged(module, "torch.compile made it; compile the original module")
    if not _is_called_by_torch(type(module)):
        return _unchanged(
            module, "it is called by a `__call__` of its class alone; compile a function that calls the module"
        )
    wrapped = module_in_data_parallel(module)
    target = module if wrapped is None else wrapped
    named = replace(_with_stolen(target, options), name=options.name or type(target).__name__)
    # Only the installed function refers to the others: a cycle would need the garbage collector.
    installed: Any = module.__dict__.get("_compiled_call_impl")
    versions: list[types.FunctionType]
    versions = [*vars(installed).pop(_VERSIONS, ()), installed] if hasattr(installed, _VERSIONS) else []
    known = (each for each in versions if compiled_record(each).options == named)
    function = next((each for each in known if compiled_record(each).wrapper() is module), None)
    if function is None:
        function = _call_of(target, module, named)
    vars(function)[_VERSIONS] = [each for each in versions if each is not function]
    module.__dict__["_compiled_call_impl"] = function
    return module


def _call_of(module: torch.nn.Module, wrapper: torch.nn.Module, options: CompileOptions) -> types.FunctionType:
    """Returns a function that calls a module, without the module as argument. `wrapper` is the module that users call:
    the same, or a `DistributedDataParallel` around it.
    """
    fn, is_wrapped = module_call(type(module)), wrapper is not module
    is_bound = not is_wrapped and not options.disable and fn.__code__.co_argcount > len(fn.__defaults__ or ())
    if is_bound:
        return with_answers(compile_function(fn, options, module=module, wrapper=wrapper, bound=True))
    make = eager_function if options.disable else compile_function
    function, owner = with_answers(make(fn, options, module=module, wrapper=wrapper)), weakref.ref(wrapper)

    def call(*args: Any, **kwargs: Any) -> Any:
        called: Any = owner()
        try:
            return call_wrapper(called, function, args, kwargs) if is_wrapped else function(called, *args, **kwargs)
        except own_frames_hidden():
            raise

    call.__dict__.update(function.__dict__)
    return cast(types.FunctionType, call)


# The names of the blocks that `repeated=True` has compiled in a model.
_repeated: weakref.WeakKeyDictionary[torch.nn.Module, tuple[str, ...]] = weakref.WeakKeyDictionary()


def _compile_repeated(model: Any, options: CompileOptions) -> Any:
    """Compiles the repeated blocks of a model in place, and returns the model."""
    if not isinstance(model, torch.nn.Module):
        what = f"repeated=True takes an nn.Module, not {type(model).__name__}"
        raise ArgumentError(Diagnostic("MD103", what, fix="Leave it out, or pass the model."))
    blocks: dict[torch.nn.Module, str] = {}
    for name, module in repeated_modules(model):
        blocks.setdefault(module, name)
    if not blocks:
        return _unchanged(model, "no class of blocks occurs several times in its nn.ModuleLists and nn.Sequentials")
    for module, name in blocks.items():
        _compile_module(module, replace(options, name=f"{options.name or type(module).__name__} {name}"))
    _repeated[model] = tuple(blocks.values())
    return model


def _compiled_blocks(target: Any) -> dict[str, torch.nn.Module]:
    """Returns the blocks that `repeated=True` has compiled in a model, by name, unless the model itself is compiled."""
    if not isinstance(target, torch.nn.Module) or "_compiled_call_impl" in target.__dict__:
        return {}
    modules = dict(target.named_modules(remove_duplicate=False))
    found = {name: modules[name] for name in _repeated.get(target, ()) if name in modules}
    return {name: block for name, block in found.items() if "_compiled_call_impl" in block.__dict__}


def _is_called_by_torch(kind: type[torch.nn.Module]) -> bool:
    """Returns whether calls of such a module reach `torch.nn.Module.__call__`, as far as the classes show: each
    overriding `__call__` belongs to torch or itself uses the name `__call__`.
    """
    for base in kind.__mro__[: kind.__mro__.index(torch.nn.Module)]:
        call = vars(base).get("__call__")
        if call is None or str(getattr(call, "__module__", "")).startswith("torch."):
            continue
        if not isinstance(call, types.FunctionType) or "__call__" not in call.__code__.co_names:
            return False
    return isinstance(module_call(kind), types.FunctionType)


def compiled_record(target: Any) -> CompiledFunction:
    """Returns the record of a compiled function, method or module.

    Raises ArgumentError for an object that was not compiled.
    """
    if isinstance(target, functools.partial):
        return compiled_record(target.func)
    if isinstance(target, (staticmethod, classmethod)):
        return compiled_record(target.__func__)
    argument = target
    if isinstance(target, torch.nn.Module):
        target = target.__dict__.get("_compiled_call_impl")
    record = getattr(target, COMPILED, None)
    if not isinstance(record, CompiledFunction):
        what = f"{_name_of(argument)} was not returned by minidynamo.compile"
        if not callable(argument) and not isinstance(argument, (staticmethod, classmethod)):
            what = f"expected a compiled function, method or module, got {argument!r:.40} ({type(argument).__name__})"
        why = "A copy of a compiled module is a plain module." if isinstance(argument, torch.nn.Module) else ""
        fix = "Pass the compiled function or module itself."
        if blocks := _compiled_blocks(argument):
            what = f"of this {type(argument).__name__} the repeated blocks are compiled, not the model"
            why = "`explain(model)` lists the blocks."
            fix = f"Pass a block, such as model.get_submodule({next(iter(blocks))!r})."
        raise ArgumentError(Diagnostic("MD106", what, why=why, fix=fix))
    return record


def reset(target: Any = None) -> None:
    """Forgets all entries of `target`, or of all functions and modules, and lets notices be shown again."""
    targets = [*_compiled_blocks(target).values()] or [target]
    records = list(all_compiled.values()) if target is None else [compiled_record(each) for each in targets]
    for known in records:
        known.reset()
    forget_notices()
    if target is None:
        forget_wrong_operators()


def uncompile(target: Any) -> Any:
    """Returns the original target of `compile`: the function, or the module without its compiled call."""
    if blocks := _compiled_blocks(target):
        for block in blocks.values():
            uncompile(block)
        return target
    function = compiled_record(target).py_func
    original = _target_of_caller.get(function, function)
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


def explain(target: Any) -> Any:
    """Returns an `Explanation` of a compiled function or module; printed, it is an overview.

    It has `breaks()`, `why()`, `guards()`, `code()`, `saved()`, `memory_plan()`, `stats` and `graphs`, as a compiled
    function does; a module has only this. See `minidynamo.frontend.explain.Explanation`. `explain(target)(*args)`
    explains one call. The function or module need not be compiled: it is compiled for this call alone, and existing
    entries do not change.

    A model of which the repeated blocks are compiled has a `RepeatedBlocks` instead: printed, it lists the blocks.

    Raises ArgumentError for a target that is not compiled and cannot be compiled.
    """
    if blocks := _compiled_blocks(target):
        return RepeatedBlocks(type(target).__name__, {name: explain(block) for name, block in blocks.items()})
    owner = None if isinstance(target, torch.nn.Module) else getattr(target, "__self__", None)
    try:
        return Explanation(compiled_record(target), owner=owner)
    except ArgumentError:
        function = _compile_separately(target)
        if function is None:
            raise
    return Explanation(compiled_record(function), owner=owner, function=function)


def _compile_separately(target: Any) -> types.FunctionType | None:
    """Compiles a target without changing it; returns None if `compile` would return it unchanged."""
    if config.disable:
        return None
    if isinstance(target, torch.nn.Module):
        options = checked_options(name=type(target).__name__)
        module = module_in_data_parallel(target) or target
        if not _is_called_by_torch(type(module)):
            return None
        return compile_function(module_call(type(module)), options, module=module, wrapper=target, shares=False)
    function = target.__func__ if isinstance(target, types.MethodType) else target
    if not isinstance(function, types.FunctionType):
        return None
    return compile_function(function, checked_options(), shares=False)


def stats(target: Any) -> Stats:
    """Returns the counters of a compiled function or module: see `minidynamo.core.stats.Stats`."""
    return compiled_record(target).stats


def freeze(target: Any, *, check_every: int = 1000) -> Any:
    """Returns a function that runs the compiled code of a function, method or module without guard checks.

    The first call and every `check_every` calls check the guards (0: never); a call that does not fit then raises
    FrozenCallDiffers. A frozen function is as fast as a call can be, but after a change of a guarded value, calls
    between two checks return wrong results without an error: see `f.guards()`. With several versions, each call checks
    the distinguishing guards. Raises ArgumentError without a compiled version.
    """
    record = compiled_record(target)
    if record.options.disable:
        return target
    function = record.freeze(check_every)
    owner = target if isinstance(target, torch.nn.Module) else getattr(target, "__self__", None)
    if owner is None:
        return function

    @functools.wraps(function)
    def call(*args: Any, **kwargs: Any) -> Any:
        try:
            return function(owner, *args, **kwargs)
        except own_frames_hidden():
            raise

    return call


def saved(target: Any) -> SavedTensors:
    """Returns every tensor that the graphs of a compiled function or module save for backward, and the reason."""
    return Explanation(compiled_record(target)).saved()


def memory_plan(target: Any) -> MemoryReport:
    """Returns birth, reuse and death of each buffer of a compiled function or module, and the predicted peak."""
    return Explanation(compiled_record(target)).memory_plan()


def why(target: Any) -> str:
    """Explains each recompile of a compiled function or module: one paragraph per recompile, latest first."""
    return Explanation(compiled_record(target)).why()
