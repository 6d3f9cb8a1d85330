"""Owns who is told when an object dies, and the check that nobody is told of what a program lets go of.

What a program lets go of is found by the tracer (`tracer/capture/finalizers.py`, `tracer/capture/lost_objects.py`).
Nothing here runs code of the user's.
"""

from __future__ import annotations

import enum
import gc
import heapq
import sys
import types
import weakref
from collections import Counter, deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import chain
from typing import Any

import torch

from minidynamo import compat
from minidynamo.core.references import Reference

_LASTING = (type, types.ModuleType, types.BuiltinFunctionType, enum.Enum)
_TENSORS = (torch.Tensor, torch.nn.Parameter)
# The ids of classes without `__del__` whose instances hold nothing. A class itself, asked whether it is in a set, might
# run code of its metaclass.
_SIMPLE = {*map(id, (type(None), bool, int, float, complex, str, bytes))}
_count_references = weakref.getweakrefcount
# So many objects that hold others are followed; of more it is assumed that somebody is told.
_MOST = 10_000
# So many gradient functions that die are, the youngest. A state that a loop carries on has more of them each time:
# were all looked at, a loop would take the square of its rounds.
_MOST_HISTORY = 32


class Lost(enum.Enum):
    """What goes, where it is not held under a key."""

    ITSELF = "the owner, whatever else refers to it"
    KEY = "the owner, which is a key of a dict, or an item of a set"
    EVERYTHING = "all that the owner holds"
    WITHOUT_HISTORY = "the owner, a tensor without history in autograd"
    BUT_HISTORY = "the owner, a tensor, whose history lives on in that of a result"
    NO_HISTORY = "whatever goes, the history of the owner, a tensor, lives on in that of a result"
    HELD = "whatever goes, the owner, a tensor, is held behind the frame, with its history"


# What says of an owner that it does not go, nor what is behind it.
LIVING = (Lost.NO_HISTORY, Lost.HELD)
# By names of this module: what a class of enum looks up takes six times as long.
_ITSELF, _KEY, _EVERYTHING = Lost.ITSELF, Lost.KEY, Lost.EVERYTHING


def is_noticed(value: object) -> bool:
    """Whether code runs when a value dies: its own, or that of a weak reference."""
    has_finalizer = hasattr(type(value), "__del__")
    if (not has_finalizer and not weakref.getweakrefcount(value)) or issubclass(type(value), _LASTING):
        return False
    if type(value) is types.GeneratorType:
        has_finalizer = value.gi_suspended  # what waits behind its `yield`, in `finally` and `with`, is run
    return has_finalizer or any(_callback_of(reference) is not None for reference in watchers(value))


def watchers(value: object) -> list[Any]:
    """The weak references to a value, without those by which torch and minidynamo keep their own books.

    Torch's have callbacks made inside functions of its private modules, so that no program can have registered them.
    """
    return [reference for reference in weakref.getweakrefs(value) if not _keeps_books(reference)]


def _callback_of(reference: Any) -> Any:
    """What is called when what a weak reference refers to dies. A proxy, asked for it, would ask that object."""
    if issubclass(type(reference), weakref.ref):
        return reference.__callback__
    return next(iter(gc.get_referents(reference)), None)


def _keeps_books(reference: Any) -> bool:
    if type(reference) is Reference:
        return True
    told = _callback_of(reference)
    if isinstance(told, weakref.finalize):
        found = told.peek()
        told = None if found is None else found[1]
    if type(told) is not types.FunctionType or "<locals>" not in told.__qualname__:
        return False
    return str(told.__module__).startswith("torch._")


def any_dying(
    values: list[Any],
    are_such: Callable[[list[Any]], bool],
    surely: Callable[[object], bool] = lambda _: False,
    others: Mapping[int, int] = types.MappingProxyType({}),
    living: Iterable[Any] = (),
) -> bool:
    """Whether, of what dies when one reference to each of `values` goes, some objects are such.

    What dies is what nothing else refers to, in Python at least, and that of which `surely` says so. The caller must
    hold the values in this list alone, but for so many times as `others` says, by their ids. Gradient functions that
    are `living`, and those behind them, do not die. Of more than can be followed it is said that there are some.
    """
    # So many references to an object are known, which the name below and the call that counts them have besides.
    known = {place: count + 2 for place, count in others.items()}
    dead: set[int] = set()
    history = _DyingHistory(living)
    kept, room = [], _MOST
    while values:
        kept.append(values)
        batch = []
        for part in values:
            place = id(part)
            if place in dead:
                continue
            known[place] = count = known.get(place, 2) + 2  # one that has died has one, and a list here
            if sys.getrefcount(part) <= count or surely(part):
                dead.add(place)
                batch.append(part)
        if are_such(batch):
            return True
        holders = [part for part in batch if not holds_nothing(part)]
        room -= len(holders)
        values = gc.get_referents(*holders) if holders else []
        functions: list[Any] = []
        for part in holders:
            _add_gradients(part, values, functions)
        if functions:
            parts = [*chain.from_iterable(map(compat.kept_by, history.dies_with(functions)))]
            values += {id(part): part for part in parts if part is not None}.values()
            del parts
        if room < 0:
            return True
    return False


class _DyingHistory:
    """The gradient functions that die with some, unless they are behind others that live on.

    A function is younger than those behind it. So both kinds are followed at once, the youngest first, and no further
    than to where nothing dies any more: not through all that lives on from earlier calls. Where that order does not
    hold, between threads, more seems to die.
    """

    def __init__(self, living: Iterable[Any]) -> None:
        # Whether a function dies, of those that wait: the others have been looked at, or live.
        self._dies: dict[Any, bool] = {}
        self._todo: list[tuple[int, int, Any]] = []
        self._dying = 0  # of those that wait
        self._room, self._more = _MOST_HISTORY, _MOST
        self._add(living, False)

    def _add(self, functions: Iterable[Any], dies: bool) -> None:
        known, todo = self._dies, self._todo
        for function in functions:
            if function is None:
                continue
            before = known.get(function)
            if before is None:
                heapq.heappush(todo, (-function._sequence_nr(), id(function), function))
                known[function] = dies
                self._dying += dies
            elif before and not dies:
                known[function] = False
                self._dying -= 1

    def dies_with(self, functions: Iterable[Any]) -> list[Any]:
        """Gradient functions and those behind them that die, each once, the youngest of them."""
        known, todo, found = self._dies, self._todo, list[Any]()
        self._add(functions, True)
        while self._dying and self._room and self._more:
            _, _, function = heapq.heappop(todo)
            self._more -= 1
            dies = known[function]
            self._add([after for after, _ in function.next_functions], dies)
            if dies:
                known[function] = False
                self._dying -= 1
                self._room -= 1
                found.append(function)
        return found


def history_behind(functions: Iterable[Any], seen: set[Any]) -> Iterator[Any]:
    """Gradient functions and those behind them that are not `seen`, which they join, each once."""
    todo = [*functions]
    while todo:
        function = todo.pop()
        if function is not None and function not in seen:
            seen.add(function)
            todo += [after for after, _ in function.next_functions]
            yield function


def holds_nothing(value: Any) -> bool:
    """Whether nothing dies with a value."""
    cls = type(value)
    return id(cls) in _SIMPLE or (cls is torch.Tensor and _is_bare(value))


def _is_bare(tensor: torch.Tensor) -> bool:
    """Whether a tensor has no attributes of its own, no gradient, and no part in autograd."""
    return not (tensor.__dict__ or tensor.requires_grad or tensor.grad is not None)


def _add_gradients(value: Any, gradients: list[Any], functions: list[Any]) -> None:
    """Add the gradient and the gradient function of a tensor to lists, where there are such and looking at them runs no
    code and warns of nothing. No name here holds them any longer, since references are counted."""
    cls = type(value)
    if not (cls is torch.Tensor or cls is torch.nn.Parameter) or not compat.tells_history(value):
        return
    is_leaf = value.is_leaf
    if not is_leaf:
        functions.append(value.grad_fn)
    if (is_leaf or value.retains_grad) and value.grad is not None:
        gradients.append(value.grad)


def are_noticed(values: list[Any]) -> bool:
    """Whether code runs when one of the values dies."""
    classes = {id(cls): cls for cls in map(type, values)}
    finalized = any(hasattr(cls, "__del__") for place, cls in classes.items() if place not in _SIMPLE)
    return (finalized or any(map(weakref.getweakrefcount, values))) and any(map(is_noticed, values))


def are_watched(values: list[Any]) -> bool:
    """Whether somebody can see that one of the values is alive."""
    return are_noticed(values) or (any(map(_count_references, values)) and any(map(_is_referred_to, values)))


def _is_referred_to(value: object) -> bool:
    return bool(_count_references(value)) and not issubclass(type(value), _LASTING) and bool(watchers(value))


def ends_unseen(value: Any, _: Lost = _ITSELF, *held: Any) -> bool:
    """Whether nobody can see that a value dies now, rather than later; `held` are those that live on, and `Lost.HELD`
    behind each, so that their histories do not die with it."""
    if _is_plain(value):
        return True
    return not any_dying([value], are_watched, lambda part: part is value, living=_histories(held))


def loses_unnoticed(*losses: Any) -> bool:
    """Whether nobody is told when references go; `losses` are owners, each with the key under which it holds one.

    An owner may be a container, a closure cell, a tensor with its gradient, or an object with slots. It need not hold
    anything there. Instead of a key there may be a `Lost`.
    """
    if len(losses) == 2 and type(losses[0]) is dict and type(losses[1]) is str:  # nearly always
        if _is_plain(losses[0].get(losses[1])):
            return True
    elif _are_simple(losses):
        return True
    lost = _lost(losses)
    if are_noticed(lost):
        return False
    if all(map(holds_nothing, lost)):
        return True
    pairs = [*zip(losses[::2], losses[1::2], strict=True)]
    surely = {id(owner) for owner, key in pairs if key is _ITSELF}
    del pairs
    held = Counter(map(id, losses))
    return not any_dying(lost, are_noticed, lambda part: id(part) in surely, held, _histories(losses))


def _histories(losses: Sequence[Any]) -> list[Any]:
    """The gradient functions of tensors that live on."""
    pairs = zip(losses[::2], losses[1::2], strict=True)
    functions: list[Any] = []
    for owner, key in pairs:
        if isinstance(key, Lost) and key in LIVING:
            _add_gradients(owner, [], functions)
    return functions


def _are_simple(losses: tuple[Any, ...]) -> bool:
    """Whether it is seen at once that nobody is told of what is lost."""
    for owner, key in zip(losses[::2], losses[1::2]):
        if type(owner) is dict and type(key) is str:
            value = owner.get(key)
        elif type(key) is str and key == "grad" and type(owner) in _TENSORS and has_gradient(owner):
            value = owner.grad
        elif key is _ITSELF or key is _KEY:
            value = owner
        elif isinstance(key, Lost) and key in LIVING:
            continue
        else:
            return False
        if not _is_plain(value):
            return False
    return True


def _is_plain(value: Any, depth: int = 2) -> bool:
    """Whether it is seen at once that nobody is told when a value dies: it holds nothing, or, `depth` containers deep,
    what holds nothing."""
    cls = type(value)
    if cls is torch.Tensor:
        return not _count_references(value) and _is_bare(value)
    if id(cls) in _SIMPLE:
        return True
    if cls is dict:
        value = [*value, *value.values()]
    elif cls is not tuple and cls is not list:
        return False
    return depth > 0 and all(_is_plain(part, depth - 1) for part in value)


def _lost(losses: tuple[Any, ...]) -> list[Any]:
    """What is referred to, once for each reference that goes."""
    found: list[Any] = []
    for owner, key in zip(losses[::2], losses[1::2], strict=True):
        if key is _ITSELF or key is _KEY:
            found.append(owner)
        elif isinstance(key, Lost) and key in LIVING:
            continue
        elif key is _EVERYTHING:
            found += chain(owner, owner.values()) if isinstance(owner, Mapping) else owner
        else:
            try:
                found.append(_held(owner, key))
            except (LookupError, AttributeError, ValueError):
                continue
    return found


def has_gradient(tensor: torch.Tensor) -> bool:
    """Whether `tensor.grad` can be looked at: that runs no code, warns of nothing, and there may be one."""
    return type(tensor) in _TENSORS and compat.tells_history(tensor) and (tensor.is_leaf or tensor.retains_grad)


def _held(owner: Any, key: Any) -> object:
    cls = type(owner)
    if cls in _TENSORS:
        return owner.grad if has_gradient(owner) else None
    if issubclass(cls, dict):
        return dict.get(owner, key)  # `dict.__getitem__` asks `__missing__`: a defaultdict would make the item
    if issubclass(cls, list):
        return list.__getitem__(owner, key)
    if issubclass(cls, deque):
        return deque.__getitem__(owner, key)
    if cls is types.MappingProxyType:
        return owner[key]
    return owner.cell_contents if cls is types.CellType else object.__getattribute__(owner, key)
