"""Owns functions behind `functools.lru_cache`: what they give is read through the cache, or taken out of it.

A function of constants that gives constants is traced, as if there were no cache. Otherwise it is called while tracing:
what the cache holds then lives there, as what a module holds lives in the module, and guards and the residual program
read it by calling the function again. That is allowed where nobody can tell when it ran: it is traced first, for
nothing, and must neither change anything nor draw random numbers; and nothing that it sees may have changed before the
call. What it computes of numbers that vary is traced: containers among that are stand-ins for the cache's own.

A function that only writes a message, and gives nothing, is called behind the graph: there the cache decides.
"""

from __future__ import annotations

import contextlib
import functools
import inspect
import types
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NoReturn
from weakref import WeakSet

import torch.fx

from minidynamo.bytecode.instructions import Instruction, decode
from minidynamo.compat import FakeTensor, is_assumed_constant
from minidynamo.errors import Diagnostic
from minidynamo.guards.source import Called, Constant, Source, call_or_none
from minidynamo.tracer.graph.subgraphs import Subgraph
from minidynamo.tracer.handlers.dry_run import (
    changing_nothing,
    draws_random_numbers,
    may_be_called_later,
    writes_messages,
)
from minidynamo.tracer.handlers.values import is_constant
from minidynamo.tracer.numbers.arithmetic import pinned
from minidynamo.tracer.protocol import Tracer
from minidynamo.tracer.reachable import is_outside, target_of
from minidynamo.tracer.records import registry
from minidynamo.tracer.records.constants import NotConstant, as_constant, is_constant_value
from minidynamo.tracer.records.side_effects import GlobalSet
from minidynamo.tracer.trace_rules import is_library_value, is_trusted_module
from minidynamo.variables.base import VariableTracker
from minidynamo.variables.callables import BuiltinVariable
from minidynamo.variables.constants import ConstantVariable
from minidynamo.variables.containers import DictVariable, ListVariable, SequenceVariable, TupleVariable
from minidynamo.variables.numbers import NumberVariable
from minidynamo.variables.objects import ObjectVariable

CACHED_FUNCTION: type = type(functools.lru_cache(int))
# Flags of code that is no plain function: generators and coroutines.
_SUSPENDED = inspect.CO_GENERATOR | inspect.CO_COROUTINE | inspect.CO_ASYNC_GENERATOR
_NUMBERS = (int, float, torch.SymInt, torch.SymFloat, torch.SymBool)
# The graphs of functions that are traced for nothing.
_TRIALS: WeakSet[Subgraph] = WeakSet()
# Objects that caches have, and functions have made of constants alone: nothing else refers to what they hold.
_OF_CONSTANTS: WeakSet[VariableTracker] = WeakSet()


@registry.instances(CACHED_FUNCTION)
def _call_cached(
    tx: Tracer, cached: BuiltinVariable, /, *args: VariableTracker, **kwargs: VariableTracker
) -> VariableTracker:
    function = tx.wrap(cached.value.__wrapped__, None)
    if tx.graph.subgraph in _TRIALS:
        return tx.call(function, args, kwargs)

    def refuse(why: str) -> NoReturn:
        name = _name(cached.value)
        fix = "call it outside of the compiled function"
        tx.break_graph("MD244", f"{name} has an `lru_cache`", why=f"{why[:1].upper()}{why[1:]}.", fix=fix)

    if any(map(_varies, (*args, *kwargs.values()))):
        return _of_numbers(tx, cached.value, function, args, kwargs, refuse)
    place = _place(cached, args, kwargs)
    known = None if place is None else tx.graph.known(place)
    if known is not None:
        return known
    with tx.graph.open_subgraph(()) as subgraph, changing_nothing(tx, refuse):
        _TRIALS.add(subgraph)
        if place is not None and _gives_nothing(cached.value.__wrapped__):
            may_be_called_later(subgraph)
        result = tx.call(function, args, kwargs)
    if writes_messages(subgraph) and not tx.graph.subgraph:
        tx.side_effects.call_later(cached, *args, **kwargs)
        return ConstantVariable(None)
    computes = any(node.op != "placeholder" for node in subgraph.graph.nodes)
    telling = all(map(_is_telling_key, (result, *args, *kwargs.values())))
    if telling and not computes and _sees_arguments_only(cached.value, set()):
        return result
    if subgraph.take_written() is not None or subgraph.changed_facts() is not None:
        refuse("it writes to a tensor")
    if computes and _may_draw(tx, subgraph):
        refuse("it may draw random numbers")
    return _taken_out(tx, cached, [*args, *kwargs.values()], place, refuse)


def _gives_nothing(function: object) -> bool:
    """Whether a function returns None, whatever it does."""
    if not isinstance(function, types.FunctionType) or function.__code__.co_flags & _SUSPENDED:
        return False
    code = decode(function.__code__)
    given = [code[at - 1] if each.opname == "RETURN_VALUE" else each for at, each in enumerate(code) if _returns(each)]
    return all(each.opname in ("LOAD_CONST", "RETURN_CONST") and each.argval is None for each in given)


def _returns(instruction: Instruction) -> bool:
    return instruction.opname in ("RETURN_VALUE", "RETURN_CONST")


def _name(cached: Any) -> str:
    return getattr(cached.__wrapped__, "__name__", "a function")


def _place(
    cached: BuiltinVariable, args: tuple[VariableTracker, ...], kwargs: dict[str, VariableTracker]
) -> Called | None:
    """Where the cache has the result; None when an argument is made while tracing."""
    places = [_argument(arg) for arg in (*args, *kwargs.values())]
    known = tuple(place for place in places if place is not None)
    if len(known) < len(places) or not all(map(str.isidentifier, kwargs)):
        return None
    return Called(cached.source or Constant(cached.value, cached.value.__name__), known, tuple(kwargs))


def _argument(variable: VariableTracker) -> Source | None:
    variable = pinned(variable)
    with contextlib.suppress(NotConstant):
        if isinstance(variable, ConstantVariable | TupleVariable):
            value = as_constant(variable)
            return Constant(value, repr(value))
    return variable.source if isinstance(variable, ObjectVariable) and variable.value is not None else None


def _of_numbers(
    tx: Tracer,
    cached: Any,
    function: VariableTracker,
    args: tuple[VariableTracker, ...],
    kwargs: dict[str, VariableTracker],
    refuse: Callable[[str], NoReturn],
) -> VariableTracker:
    """What a function computes of numbers that vary: the cache has it for each of them, so containers that it makes are
    stand-ins. What the cache has for the present numbers is compared."""
    given = [*args, *kwargs.values()]
    if not all(map(_is_constant, given)):
        refuse("an argument may have changed since the cache got its result")
    before = frozenset(tx.graph.graph.nodes)
    with changing_nothing(tx, refuse):
        result = tx.call(function, args, kwargs)
    made = (node.meta.get("example_value") for node in tx.graph.graph.nodes if node not in before)
    if any(not isinstance(value, _NUMBERS) for value in made):
        refuse("it computes tensors of numbers that vary")
    if not _sees_constants_only(tx, cached):
        refuse("it looks at more than its arguments, as that was when the cache got its result")
    real = [_here(each, refuse) for each in given]
    there = call_or_none(cached, *real[: len(args)], **dict(zip(kwargs, real[len(args) :])))
    if repr(there) != repr(_here(result, refuse)):
        refuse("the cache has another result")
    diagnostic = Diagnostic(
        "MD244",
        f"graph break: a container is kept or changed that the `lru_cache` of {_name(cached)} gives",
        "The cache gives the same one at each hit.",
        "copy it",
        where=tx.frames[-1].location,
    )
    for container in _containers(result):
        tx.side_effects.stands_in(container, diagnostic)
    return result


def _varies(variable: VariableTracker) -> bool:
    """Whether it is a number, or has one, that is no constant so far."""
    if isinstance(variable, TupleVariable):
        return any(map(_varies, variable.items))
    return isinstance(variable, NumberVariable) and variable.pinned is None


def _is_constant(variable: VariableTracker) -> bool:
    """Whether it stays as it is: a number, text, a tuple of them, or what a cache has that was made of those."""
    if isinstance(variable, TupleVariable):
        return all(map(_is_constant, variable.items))
    return isinstance(variable, NumberVariable | ConstantVariable) or variable in _OF_CONSTANTS


def _here(variable: VariableTracker, refuse: Callable[[str], NoReturn]) -> Any:
    """The value in this call; nothing is guarded."""
    if isinstance(variable, NumberVariable):
        return variable.here
    if isinstance(variable, ConstantVariable):
        return variable.value
    if isinstance(variable, SequenceVariable) and variable.python_type in (list, tuple, torch.Size):
        return variable.python_type(_here(item, refuse) for item in variable.items)
    if type(variable) is DictVariable and variable.cls is dict:
        return {key.token: _here(value, refuse) for key, value in variable.items.items()}
    if isinstance(variable, ObjectVariable) and variable.value is not None:
        return variable.value
    refuse(f"a {variable.python_type.__name__} depends on numbers that vary")


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


def _taken_out(
    tx: Tracer,
    cached: BuiltinVariable,
    given: Sequence[VariableTracker],
    place: Called | None,
    refuse: Callable[[str], NoReturn],
) -> VariableTracker:
    """The object that the cache holds."""
    if place is None:
        refuse("an argument is made by the program, and the cache would keep it")
    made_of_constants = all(map(_is_constant, given)) and _sees_constants_only(tx, cached.value)
    if _has_changed_something(tx) and not made_of_constants:
        refuse("something was changed before, which the function would have to see")
    if tx.graph.subgraph is not None:
        refuse("it is called in a part of the graph that may run twice")
    values = [_real(tx, argument) for argument in place.arguments]
    split = len(values) - len(place.names)
    try:
        result = cached.value(*values[:split], **dict(zip(place.names, values[split:])))
    except Exception as error:
        refuse(f"it raises {type(error).__name__}")
    tracked = tx.wrap(result, place)
    if made_of_constants:
        _OF_CONSTANTS.add(tracked)
    return tracked


def _has_changed_something(tx: Tracer) -> bool:
    """Whether the program so far has changed what exists outside, which only happens when it runs."""
    targets = [target_of(effect) for effect in tx.side_effects.journal]
    written = any(node.meta.get("mutates") for node in tx.graph.graph.nodes)
    return written or any(target is None or is_outside(target) for target in targets)


def _sees_constants_only(tx: Tracer, cached: Any) -> bool:
    """Whether all that a function looks at besides its arguments are constants, classes and other functions, and the
    program has changed neither those nor what caches have."""
    targets = [target_of(effect) for effect in tx.side_effects.journal]
    sources = [target.source for target in targets if target is not None and target.source is not None]
    if any(isinstance(effect, GlobalSet) for effect in tx.side_effects.journal):
        return False
    if any(isinstance(place, Called) for source in sources for place in (source, *source.bases())):
        return False
    return _sees_arguments_only(cached, set(), _is_constant_or_class)


def _is_constant_or_class(value: object) -> bool:
    if type(value) in (tuple, frozenset):
        return all(map(_is_constant_or_class, value))  # type: ignore[call-overload]
    return is_constant_value(value) or isinstance(value, type)


def _real(tx: Tracer, argument: Source) -> Any:
    if isinstance(argument, Constant):
        return argument.value
    known = tx.graph.known(argument)
    assert isinstance(known, ObjectVariable)
    return known.value


def _may_draw(tx: Tracer, subgraph: Subgraph) -> bool:
    """Whether what was traced for nothing draws random numbers; also when that cannot be found out."""
    if any(node.op == "get_attr" for node in subgraph.graph.nodes):
        return True
    subgraph.graph.output(())
    module = torch.fx.GraphModule(torch.nn.Module(), subgraph.graph)
    examples = (node.meta.get("example_value") for node in subgraph.graph.nodes)
    mode = next((example.fake_mode for example in examples if isinstance(example, FakeTensor)), None)
    return mode is None or draws_random_numbers(module, [tx.graph.use(tensor) for tensor in subgraph.tensors], mode)


def _is_telling_key(variable: VariableTracker) -> bool:
    """Whether it is an immutable constant that equals no constant of another kind, as 1.0 equals 1."""
    if isinstance(variable, TupleVariable):
        return all(_is_telling_key(item) for item in variable.items)
    variable = pinned(variable)
    if not isinstance(variable, ConstantVariable) or not is_constant(variable):
        return False
    value = variable.value
    return not (isinstance(value, float | complex) and value == int(value.real)) if value == value else False


def _sees_arguments_only(
    function: object, seen: set[object], may_see: Callable[[object], bool] = lambda value: False
) -> bool:
    """Whether all that a function reads besides its arguments are library code and functions of the same kind, or it
    is marked as one whose result is a constant. What else it `may_see` is for the caller to say."""
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
        _is_of_library(value) or may_see(value) or _sees_arguments_only(value, seen, may_see) for value in read
    )


def _is_of_library(value: object) -> bool:
    module = value.__name__ if isinstance(value, types.ModuleType) else getattr(value, "__module__", None)
    return is_library_value(value) and is_trusted_module(module)


def _names(code: types.CodeType) -> Iterator[str]:
    yield from code.co_names
    for constant in code.co_consts:
        if isinstance(constant, types.CodeType):
            yield from _names(constant)
