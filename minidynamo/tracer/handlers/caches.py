"""Owns calls of functions with a `functools.lru_cache`.

- A function of constants that returns constants is traced, as if it had no cache.
- Any other function is called during capture. The cache keeps the result alive, as a module keeps its attributes, so
  guards and the residual program read the result by calling the function again. The time of the call must not be
  observable: a dry run must neither change anything nor draw random numbers, and the program must not have changed
  anything that the function reads.
- A function of symbolic numbers is traced. Containers in its result are stand-ins for the containers in the cache.
- A function that only writes a message, and returns None, is called after the graph: the cache decides at run time.
"""

from __future__ import annotations

import contextlib
import inspect
import types
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NoReturn, TypeGuard
from weakref import WeakSet

import torch.fx

from minidynamo.bytecode.instructions import Instruction, decode
from minidynamo.compat import CACHED_FUNCTION, FakeTensor, is_assumed_constant
from minidynamo.errors import Diagnostic, an
from minidynamo.guards.source import Called, Constant, Source, call_or_none
from minidynamo.tracer.frames.interpreter import Tracer
from minidynamo.tracer.graph.open_graphs import Subgraph
from minidynamo.tracer.handlers.dry_run import (
    defer_messages,
    draws_random_numbers,
    has_deferred_messages,
    without_side_effects,
)
from minidynamo.tracer.handlers.values import is_constant
from minidynamo.tracer.numbers.arithmetic import specialized
from minidynamo.tracer.reachable import is_external, target_of
from minidynamo.tracer.records import registry
from minidynamo.tracer.records.constants import NotConstant, as_constant, is_constant_value
from minidynamo.tracer.records.side_effects import GlobalSet
from minidynamo.tracer.trace_rules import is_library_value, is_trusted_class, is_trusted_module
from minidynamo.variables.base import ConstantVariable, NumberVariable, VariableTracker
from minidynamo.variables.callables import BuiltinVariable
from minidynamo.variables.containers import DictVariable, ListVariable, SequenceVariable, TupleVariable
from minidynamo.variables.objects import ClassVariable, ObjectVariable

# Code flags of generators and coroutines.
_SUSPENDED = inspect.CO_GENERATOR | inspect.CO_COROUTINE | inspect.CO_ASYNC_GENERATOR
_NUMBERS = (int, float, torch.SymInt, torch.SymFloat, torch.SymBool)
# The subgraphs of dry runs.
_DRY_RUNS: WeakSet[Subgraph] = WeakSet()
# Results of cached functions that were computed from constants alone: only the cache refers to their contents.
_FROM_CONSTANTS: WeakSet[VariableTracker] = WeakSet()


@registry.instances(CACHED_FUNCTION)
def _call_cached(
    tx: Tracer, cached: BuiltinVariable, /, *args: VariableTracker, **kwargs: VariableTracker
) -> VariableTracker:
    function = tx.wrap(cached.value.__wrapped__, None)
    if tx.graph.subgraph in _DRY_RUNS:
        return tx.call(function, args, kwargs)

    def refuse(why: str) -> NoReturn:
        name = _name(cached.value)
        fix = "Call it outside of the compiled function."
        tx.break_graph("MD244", f"{name} has an `lru_cache`", why=f"{why[:1].upper()}{why[1:]}.", fix=fix)

    if any(map(_has_symbolic_number, (*args, *kwargs.values()))):
        return _call_on_symbolic_numbers(tx, cached.value, function, args, kwargs, refuse)
    result_source = _result_source(cached, args, kwargs)
    known = None if result_source is None else tx.graph.known(result_source)
    if known is not None:
        return known
    with tx.graph.open_subgraph(()) as subgraph, without_side_effects(tx, refuse):
        _DRY_RUNS.add(subgraph)
        if result_source is not None and _returns_none(cached.value.__wrapped__):
            defer_messages(subgraph)
        result = tx.call(function, args, kwargs)
    if has_deferred_messages(subgraph) and not tx.graph.subgraph:
        tx.side_effects.record_call(cached, *args, **kwargs)
        return ConstantVariable(None)
    computes = any(node.op != "placeholder" for node in subgraph.graph.nodes)
    unambiguous_keys = all(map(_is_unambiguous_key, (result, *args, *kwargs.values())))
    if unambiguous_keys and not computes and _reads_arguments_only(cached.value, set()):
        return result
    if subgraph.take_written() is not None or subgraph.changed_facts() is not None:
        refuse("it writes to a tensor")
    if computes and _may_draw(tx, subgraph):
        refuse("it may draw random numbers")
    return _cached_result(tx, cached, [*args, *kwargs.values()], result_source, refuse)


def _returns_none(function: object) -> bool:
    """Returns whether a function always returns None."""
    if not isinstance(function, types.FunctionType) or function.__code__.co_flags & _SUSPENDED:
        return False
    code = decode(function.__code__)
    returned = [
        code[at - 1] if each.opname == "RETURN_VALUE" else each for at, each in enumerate(code) if _returns(each)
    ]
    return all(each.opname in ("LOAD_CONST", "RETURN_CONST") and each.argval is None for each in returned)


def _returns(instruction: Instruction) -> bool:
    return instruction.opname in ("RETURN_VALUE", "RETURN_CONST")


def _name(cached: Any) -> str:
    return getattr(cached.__wrapped__, "__name__", "a function")


def _result_source(
    cached: BuiltinVariable, args: tuple[VariableTracker, ...], kwargs: dict[str, VariableTracker]
) -> Called | None:
    """Returns the source of the cached result; None if an argument is created during capture."""
    argument_sources = [_argument_source(arg) for arg in (*args, *kwargs.values())]
    known = tuple(source for source in argument_sources if source is not None)
    if len(known) < len(argument_sources) or not all(map(str.isidentifier, kwargs)):
        return None
    return Called(cached.source or Constant(cached.value, cached.value.__name__), known, tuple(kwargs))


def _argument_source(variable: VariableTracker) -> Source | None:
    variable = specialized(variable)
    with contextlib.suppress(NotConstant):
        if isinstance(variable, ConstantVariable | TupleVariable):
            value = as_constant(variable)
            return Constant(value, repr(value))
    if _is_trusted_class(variable):
        return Constant(variable.value, variable.value.__qualname__)
    return variable.source if isinstance(variable, ObjectVariable) and variable.value is not None else None


def _is_trusted_class(variable: VariableTracker) -> TypeGuard[ClassVariable]:
    return isinstance(variable, ClassVariable) and is_trusted_class(variable.value)


def _call_on_symbolic_numbers(
    tx: Tracer,
    cached: Any,
    function: VariableTracker,
    args: tuple[VariableTracker, ...],
    kwargs: dict[str, VariableTracker],
    refuse: Callable[[str], NoReturn],
) -> VariableTracker:
    """Traces a function of symbolic numbers, and compares the result with the cached result for the present numbers.

    The cache has a result per number, so containers in the traced result are stand-ins.
    """
    arguments = [*args, *kwargs.values()]
    if not all(map(_is_constant, arguments)):
        refuse("an argument may have changed since the result was cached")
    before = frozenset(tx.graph.graph.nodes)
    with without_side_effects(tx, refuse):
        result = tx.call(function, args, kwargs)
    new_values = (node.meta.get("example_value") for node in tx.graph.graph.nodes if node not in before)
    if any(not isinstance(value, _NUMBERS) for value in new_values):
        refuse("it computes tensors of numbers that vary")
    if not _reads_constants_only(tx, cached):
        refuse("it reads more than its arguments, which may have changed since the result was cached")
    real = [_current_value(each, refuse) for each in arguments]
    cached_value = call_or_none(cached, *real[: len(args)], **dict(zip(kwargs, real[len(args) :])))
    if repr(cached_value) != repr(_current_value(result, refuse)):
        refuse("the cache has another result")
    diagnostic = Diagnostic(
        "MD244",
        f"graph break: a container from the `lru_cache` of {_name(cached)} is kept or changed",
        "The cache returns the same container at each hit.",
        "Copy the container.",
        where=tx.frames[-1].location,
    )
    for container in _containers(result):
        tx.side_effects.record_stand_in(container, diagnostic)
    return result


def _has_symbolic_number(variable: VariableTracker) -> bool:
    """Returns whether the variable is, or contains, a symbolic number that is not specialized."""
    if isinstance(variable, TupleVariable):
        return any(map(_has_symbolic_number, variable.items))
    return isinstance(variable, NumberVariable) and variable.specialized is None


def _is_constant(variable: VariableTracker) -> bool:
    """Returns whether the value cannot change: a number, text, a library's class, a tuple of these, or a cached result
    computed from these."""
    if isinstance(variable, TupleVariable):
        return all(map(_is_constant, variable.items))
    is_constant = isinstance(variable, NumberVariable | ConstantVariable) or _is_trusted_class(variable)
    return is_constant or variable in _FROM_CONSTANTS


def _current_value(variable: VariableTracker, refuse: Callable[[str], NoReturn]) -> Any:
    """Returns the value in this call; guards nothing."""
    if isinstance(variable, NumberVariable):
        return variable.unguarded_value
    if isinstance(variable, ConstantVariable):
        return variable.value
    if isinstance(variable, SequenceVariable) and variable.python_type in (list, tuple, torch.Size):
        return variable.python_type(_current_value(item, refuse) for item in variable.items)
    if type(variable) is DictVariable and variable.cls is dict:
        return {key.token: _current_value(value, refuse) for key, value in variable.items.items()}
    if isinstance(variable, ObjectVariable) and variable.value is not None:
        return variable.value
    refuse(f"{an(variable.python_type.__name__)} depends on numbers that vary")


def _containers(variable: VariableTracker) -> Iterator[ListVariable | DictVariable]:
    if isinstance(variable, SequenceVariable):
        if isinstance(variable, ListVariable):
            yield variable
        for item in variable.items:
            yield from _containers(item)
    elif isinstance(variable, DictVariable):
        yield variable
        for item in variable.items.values():
            yield from _containers(item)


def _cached_result(
    tx: Tracer,
    cached: BuiltinVariable,
    arguments: Sequence[VariableTracker],
    result_source: Called | None,
    refuse: Callable[[str], NoReturn],
) -> VariableTracker:
    """Calls the function and tracks the object that the cache holds."""
    if result_source is None:
        refuse("an argument is created by the program, and the cache would keep it")
    from_constants = all(map(_is_constant, arguments)) and _reads_constants_only(tx, cached.value)
    if _has_outside_effects(tx) and not from_constants:
        refuse("something was changed before, which the function would have to see")
    if tx.graph.subgraph is not None:
        refuse("it is called in a part of the graph that may run twice")
    values = [_real_argument(tx, argument) for argument in result_source.arguments]
    split = len(values) - len(result_source.names)
    try:
        result = cached.value(*values[:split], **dict(zip(result_source.names, values[split:])))
    except Exception as error:
        refuse(f"it raises {type(error).__name__}")
    tracked = tx.wrap(result, result_source)
    if from_constants:
        _FROM_CONSTANTS.add(tracked)
    return tracked


def _has_outside_effects(tx: Tracer) -> bool:
    """Returns whether the program has changed external values so far: these changes happen only at run time."""
    targets = [target_of(effect) for effect in tx.side_effects.journal]
    written = any(node.meta.get("mutates") for node in tx.graph.graph.nodes)
    return written or any(target is None or is_external(target) for target in targets)


def _reads_constants_only(tx: Tracer, cached: Any) -> bool:
    """Returns whether a function reads only its arguments, constants, classes and other functions, all unchanged so
    far.

    Objects in caches must be unchanged, too.
    """
    targets = [target_of(effect) for effect in tx.side_effects.journal]
    sources = [target.source for target in targets if target is not None and target.source is not None]
    if any(isinstance(effect, GlobalSet) for effect in tx.side_effects.journal):
        return False
    if any(isinstance(base, Called) for source in sources for base in (source, *source.bases())):
        return False
    return _reads_arguments_only(cached, set(), _is_constant_or_class)


def _is_constant_or_class(value: object) -> bool:
    if type(value) in (tuple, frozenset):
        return all(map(_is_constant_or_class, value))  # type: ignore[call-overload]
    return is_constant_value(value) or isinstance(value, type)


def _real_argument(tx: Tracer, argument: Source) -> Any:
    if isinstance(argument, Constant):
        return argument.value
    known = tx.graph.known(argument)
    assert isinstance(known, ObjectVariable)
    return known.value


def _may_draw(tx: Tracer, subgraph: Subgraph) -> bool:
    """Returns whether the subgraph of a dry run draws random numbers, or may do so."""
    if any(node.op == "get_attr" for node in subgraph.graph.nodes):
        return True
    subgraph.graph.output(())
    module = torch.fx.GraphModule(torch.nn.Module(), subgraph.graph)
    examples = (node.meta.get("example_value") for node in subgraph.graph.nodes)
    mode = next((example.fake_mode for example in examples if isinstance(example, FakeTensor)), None)
    return mode is None or draws_random_numbers(module, [tx.graph.use(tensor) for tensor in subgraph.tensors], mode)


def _is_unambiguous_key(variable: VariableTracker) -> bool:
    """Returns whether the value is an immutable constant that equals no constant of another type, as 1.0 equals 1."""
    if isinstance(variable, TupleVariable):
        return all(_is_unambiguous_key(item) for item in variable.items)
    variable = specialized(variable)
    if not isinstance(variable, ConstantVariable) or not is_constant(variable):
        return False
    value = variable.value
    return not (isinstance(value, float | complex) and value == int(value.real)) if value == value else False


def _reads_arguments_only(
    function: object, seen: set[object], may_read: Callable[[object], bool] = lambda value: False
) -> bool:
    """Returns whether a function reads only its arguments, library code and functions for which the same holds.

    `may_read` allows more values. A function that is marked as constant passes, too.
    """
    if isinstance(function, CACHED_FUNCTION):
        function = function.__wrapped__  # type: ignore[attr-defined]
    if isinstance(function, types.FunctionType) and (function in seen or is_assumed_constant(function)):
        return True
    if not isinstance(function, types.FunctionType) or function.__closure__:
        return False
    seen.add(function)
    defaults = [*(function.__defaults__ or ()), *(function.__kwdefaults__ or {}).values()]
    read = [function.__globals__[name] for name in _names(function.__code__) if name in function.__globals__]
    return all(is_constant_value(value) for value in defaults) and all(
        _is_of_library(value) or may_read(value) or _reads_arguments_only(value, seen, may_read) for value in read
    )


def _is_of_library(value: object) -> bool:
    module = value.__name__ if isinstance(value, types.ModuleType) else getattr(value, "__module__", None)
    return is_library_value(value) and is_trusted_module(module)


def _names(code: types.CodeType) -> Iterator[str]:
    yield from code.co_names
    for constant in code.co_consts:
        if isinstance(constant, types.CodeType):
            yield from _names(constant)
