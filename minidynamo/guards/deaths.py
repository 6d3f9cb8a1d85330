"""Owns the search for finalizers of objects, and the check that losing references runs none.

`tracer/capture/finalizers.py` finds the references that a program drops.
Nothing here runs user code.
"""

from __future__ import annotations

import enum
import gc
import sys
import types
import weakref
from collections import Counter, deque
from collections.abc import Callable, Iterable, Mapping
from itertools import chain
from typing import Any

import torch

from minidynamo import compat
from minidynamo.core.names import Namespace
from minidynamo.core.references import Reference
from minidynamo.guards.reader import Reader
from minidynamo.guards.source import Referent, Source, key_expression

_LASTING = (type, types.ModuleType, types.BuiltinFunctionType, enum.Enum)
_TENSORS = (torch.Tensor, torch.nn.Parameter)
# The ids of classes without `__del__` whose instances hold nothing. Ids, because testing whether a class is in a set
# might run code of its metaclass.
_SIMPLE_CLASSES = {*map(id, (type(None), bool, int, float, complex, str, bytes))}
_count_references = weakref.getweakrefcount
# The most container objects to follow; beyond this number a finalizer is assumed to exist.
_MOST = 10_000


class Lost(enum.Enum):
    """The lost reference, for a guard or a check without a key."""

    ITSELF = "the owner, even if other references exist"
    KEY = "the owner, which is a key of a dict, or an item of a set"
    EVERYTHING = "all contents of the owner"
    LEAF = "the owner, a leaf tensor or a tensor without gradient"
    RESULT = "the owner, a result of differentiable operations"


# As names of this module: a member lookup on the enum class takes six times as long.
_ITSELF, _KEY, _EVERYTHING = Lost.ITSELF, Lost.KEY, Lost.EVERYTHING


def has_finalizers(value: object) -> bool:
    """Returns whether code runs when a value dies: its own finalizer, or the callback of a weak reference."""
    has_finalizer = hasattr(type(value), "__del__")
    if (not has_finalizer and not weakref.getweakrefcount(value)) or issubclass(type(value), _LASTING):
        return False
    if type(value) is types.GeneratorType:
        has_finalizer = value.gi_suspended  # a suspended generator runs `finally` and `with` blocks after its `yield`
    return has_finalizer or any(_callback_of(reference) is not None for reference in watchers(value))


def watchers(value: object) -> list[Any]:
    """Lists the weak references to a value, without the bookkeeping of torch and minidynamo.

    The callbacks of torch's bookkeeping are defined inside functions of private modules, so no program can have
    registered them.
    """
    return [reference for reference in weakref.getweakrefs(value) if not _is_bookkeeping(reference)]


def _callback_of(reference: Any) -> Any:
    """Returns the callback of a weak reference. Attribute lookup on a proxy would ask its referent."""
    if issubclass(type(reference), weakref.ref):
        return reference.__callback__
    return next(iter(gc.get_referents(reference)), None)


def _is_bookkeeping(reference: Any) -> bool:
    if type(reference) is Reference:
        return True
    callback = _callback_of(reference)
    if isinstance(callback, weakref.finalize):
        found = callback.peek()
        callback = None if found is None else found[1]
    if type(callback) is not types.FunctionType or "<locals>" not in callback.__qualname__:
        return False
    return str(callback.__module__).startswith("torch._")


def any_dying(
    values: list[Any],
    predicate: Callable[[list[Any]], bool],
    always_dies: Callable[[object], bool] = lambda _: False,
    known_references: Mapping[int, int] = types.MappingProxyType({}),
) -> bool:
    """Returns whether `predicate` holds for some object that dies when one reference to each of `values` is dropped.

    An object dies if nothing else refers to it, in Python at least, or if `always_dies` returns True for it. The caller
    must hold the values in this list only, apart from `known_references[id]` more references. Objects that autograd
    alone holds are not followed. If there are too many objects to follow, the answer is True.
    """
    # The references that are expected: `known_references`, the name below, and the call of getrefcount.
    known = {identity: count + 2 for identity, count in known_references.items()}
    dead: set[int] = set()
    kept, room = [], _MOST
    while values:
        kept.append(values)
        batch = []
        for part in values:
            identity = id(part)
            if identity in dead:
                continue
            known[identity] = count = known.get(identity, 2) + 2  # a dead object, and a list here
            if sys.getrefcount(part) <= count or always_dies(part):
                dead.add(identity)
                batch.append(part)
        if predicate(batch):
            return True
        holders = [part for part in batch if not holds_nothing(part)]
        room -= len(holders)
        values = gc.get_referents(*holders) if holders else []
        values += [part.grad for part in holders if has_gradient(part) and part.grad is not None]
        if room < 0:
            return True
    return False


def holds_nothing(value: Any) -> bool:
    """Returns whether no object dies with a value."""
    cls = type(value)
    return id(cls) in _SIMPLE_CLASSES or (cls is torch.Tensor and _is_bare(value))


def _is_bare(tensor: torch.Tensor) -> bool:
    """Returns whether a tensor has no attributes and no gradient."""
    if tensor.__dict__:
        return False
    if not tensor.requires_grad:
        return tensor.grad is None
    return not has_gradient(tensor) or tensor.grad is None


def any_has_finalizers(values: list[Any]) -> bool:
    """Returns whether code runs when some of the values die."""
    classes = {id(cls): cls for cls in map(type, values)}
    finalized = any(hasattr(cls, "__del__") for identity, cls in classes.items() if identity not in _SIMPLE_CLASSES)
    return (finalized or any(map(weakref.getweakrefcount, values))) and any(map(has_finalizers, values))


def any_is_observed(values: list[Any]) -> bool:
    """Returns whether the program can observe that some of the values are alive."""
    return any_has_finalizers(values) or (
        any(map(_count_references, values)) and any(map(_has_weak_references, values))
    )


def _has_weak_references(value: object) -> bool:
    return bool(_count_references(value)) and not issubclass(type(value), _LASTING) and bool(watchers(value))


def dies_unobserved(value: Any, _: Lost = _ITSELF) -> bool:
    """Returns whether the program cannot observe that a value dies now, not later."""
    if _trivially_unnoticed(value):
        return True
    return not any_dying([value], any_is_observed, lambda part: part is value)


def loses_unnoticed(*losses: Any) -> bool:
    """Returns whether dropping references runs no code. `losses` alternates owners and the keys of the dropped
    references.

    An owner is a container, a closure cell, a tensor with its gradient, or an object with slots. The key may be absent
    from the owner. A `Lost` may replace a key.
    """
    if len(losses) == 2 and type(losses[0]) is dict and type(losses[1]) is not Lost:  # the usual case
        if _trivially_unnoticed(losses[0].get(losses[1])):
            return True
    elif _all_trivially_unnoticed(losses):
        return True
    lost = _lost(losses)
    if any_has_finalizers(lost):
        return False
    lost = [value for value in lost if not holds_nothing(value)]
    if not lost:
        return True
    pairs = [*zip(losses[::2], losses[1::2], strict=True)]
    always_dies = {id(owner) for owner, key in pairs if key is _ITSELF}
    del pairs
    held = Counter(map(id, losses))
    return not any_dying(lost, any_has_finalizers, lambda part: id(part) in always_dies, held)


def _all_trivially_unnoticed(losses: tuple[Any, ...]) -> bool:
    """Returns whether a cheap test shows that the losses run no code."""
    for owner, key in zip(losses[::2], losses[1::2]):
        depth = 2
        if type(owner) is dict and type(key) is not Lost:
            value = owner.get(key)
        elif type(key) is int and (type(owner) is deque or type(owner) is list):
            value, depth = owner[key] if -len(owner) <= key < len(owner) else None, 0
        elif type(key) is str and key == "grad" and type(owner) in _TENSORS and has_gradient(owner):
            value = owner.grad
        elif key is _ITSELF or key is _KEY:
            value = owner
        else:
            return False
        if type(value) is torch.Tensor and not value.requires_grad:  # `_trivially_unnoticed` without calls
            if _count_references(value) or value.__dict__ or value.grad is not None:
                return False
        elif not _trivially_unnoticed(value, depth):
            return False
    return True


def _trivially_unnoticed(value: Any, depth: int = 2) -> bool:
    """Returns whether a cheap test shows that the death of a value runs no code: the value holds nothing, or contains,
    up to `depth` containers deep, only values that hold nothing.
    """
    cls = type(value)
    if cls is torch.Tensor:
        return not _count_references(value) and _is_bare(value)
    if id(cls) in _SIMPLE_CLASSES:
        return True
    if cls is dict:
        value = [*value, *value.values()]
    elif cls is not tuple and cls is not list:
        return False
    return depth > 0 and all(_trivially_unnoticed(part, depth - 1) for part in value)


def _lost(losses: tuple[Any, ...]) -> list[Any]:
    """Lists the objects whose references are dropped, once per reference."""
    found: list[Any] = []
    for owner, key in zip(losses[::2], losses[1::2], strict=True):
        if key is _ITSELF or key is _KEY:
            found.append(owner)
        elif key is _EVERYTHING:
            found += chain(owner, owner.values()) if isinstance(owner, Mapping) else owner
        else:
            try:
                found.append(_held(owner, key))
            except (LookupError, AttributeError, ValueError):
                continue
    return found


def has_gradient(tensor: torch.Tensor) -> bool:
    """Returns whether `tensor.grad` may be set, and reading it runs no code and raises no warning."""
    return type(tensor) in _TENSORS and compat.knows_history(tensor) and (tensor.is_leaf or tensor.retains_grad)


def _held(owner: Any, key: Any) -> object:
    cls = type(owner)
    if cls in _TENSORS:
        return owner.grad if has_gradient(owner) else None
    if issubclass(cls, dict):
        return dict.get(owner, key)  # `dict.__getitem__` would call `__missing__`: a defaultdict would insert the item
    if issubclass(cls, list):
        return list.__getitem__(owner, key)
    if issubclass(cls, deque):
        return deque.__getitem__(owner, key)
    if cls is types.MappingProxyType:
        return owner[key]
    return owner.cell_contents if cls is types.CellType else object.__getattribute__(owner, key)


# The text of UNNOTICED_DEATH guards, whose `expected` value is `lost`

# Further objects, besides attributes, that may die with a tensor.
_HELD_BY_TENSORS = {Lost.LEAF: "{}.grad is not None", Lost.RESULT: "{}.retains_grad"}


def death_in_words(lost: tuple[object, ...] | None) -> str:
    """Describes the guard."""
    if lost is None or (lost and isinstance(lost[0], Lost)):
        dying = "it dies"
    else:
        dying = f"the value at {lost[0]!r} dies" if lost else "its contents die"
    return f"no finalizer to run when {dying}"


def death_conditions(reader: Reader, source: Source, lost: Any) -> list[str]:
    """Writes the check of one guard; `check.py` writes one check for all guards of an entry."""
    if lost and isinstance(lost[0], Lost):
        return [last_reference(reader, source, lost, None)]
    return [unnoticed_deaths(reader.names, [lost_reference(reader, source, lost)])]


def last_reference(reader: Reader, source: Source, expected: tuple[Any, ...], own: int | None) -> str:
    """Writes the check of a value dropped by the frame: either other references exist, or the expected check passes.

    The expected number of the frame's references is 1 + `more`; the checks hold `own` references, or None to skip the
    count.
    """
    lost, more, check = expected
    names, value = reader.names, reader.read(source)
    text = f"{names.constant(check, check.__name__)}({value}, {names.constant(Lost.ITSELF, 'itself')})"
    if own is None:
        return text
    references = names.constant(sys.getrefcount, "references")
    texts = [f"{references}({value}) > {2 + own + more}", text]
    if lost in _HELD_BY_TENSORS:
        count = names.constant(weakref.getweakrefcount, "count_references")
        texts.insert(1, f"not ({count}({value}) or {value}.__dict__ or {_HELD_BY_TENSORS[lost].format(value)})")
    return f"({' or '.join(texts)})"


def unnoticed_deaths(names: Namespace, losses: Iterable[str]) -> str:
    """Writes one check for all lost references: an object held by several of them dies with the last."""
    return f"{names.constant(loses_unnoticed, 'loses_unnoticed')}({', '.join(losses)})"


def lost_reference(reader: Reader, source: Source, lost: Any) -> str:
    """Returns the owner and the key of the lost reference."""
    if lost:
        key = key_expression(lost[0], reader.names)
    else:
        here = Lost.KEY if isinstance(source, Referent) else Lost.ITSELF
        what = here if lost is None else Lost.EVERYTHING
        key = reader.constant(what, what.name.lower())
    return f"{reader.read(source)}, {key}"
