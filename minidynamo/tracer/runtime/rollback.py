"""Owns what residual programs call around a graph that may raise: arguments held for a second run, and given back.

Whether a program recovers at all is decided in `tracer/capture/rerun.py`.
"""

from __future__ import annotations

import random
import weakref
from collections.abc import Callable, Mapping
from typing import Any

import torch

from minidynamo import compat
from minidynamo.core import artifacts
from minidynamo.graph.pytree import leaves
from minidynamo.graph.saved_tensor_hooks import came_before_saving
from minidynamo.guards.writers import CONTAINERS
from minidynamo.tracer.graph.written_places import Places, Writes
from minidynamo.tracer.runtime.graph_failures import is_from_signal_handler


class HeldTensor(weakref.ref[torch.Tensor]):
    """A tensor argument, in case its frame has to run again; it dies when it would in the frame as written."""


def weakly_held(value: Any) -> Any:
    """An argument that the frame may give up before its end: tensors weakly, everything else as it is."""
    return HeldTensor(value) if issubclass(type(value), torch.Tensor) else value


def firmly_held(value: Any) -> Any:
    """An argument that has to be there behind an error."""
    return value


def _given_back(held: Any) -> Any:
    """What was held, or None for a tensor that has died."""
    return held() if type(held) is HeldTensor else held


class HeldList:
    """A list that the graph empties, since the program takes elements from it. `remaining` are the positions of those
    that it leaves, which live on anyway; the others are held as `hold` says.

    `takings` has, by positions, behind how many calls of the user's operators an element is taken, whether nothing is
    there then, or None, and whether a call finds it that the graph has outlived.
    """

    def __init__(
        self,
        items: list[Any],
        remaining: tuple[int, ...],
        hold: Callable[[Any], Any],
        takings: Mapping[int, tuple[int, bool, bool]] = {},
    ) -> None:
        self._list = items
        firm = {*remaining, *(k for k, (_, _, is_idle) in takings.items() if is_idle)}
        self._items = [item if k in firm else hold(item) for k, item in enumerate(items)]
        self._remaining = [items[k] for k in remaining]
        self._takings = takings

    def is_whole(self) -> bool:
        """Whether all elements are alive."""
        return all(_given_back(item) is not None or item is None for item in self._items)

    def refill(self, number: int = 0) -> None:
        """Put the elements back that are there when the operator with this number is called. If it is not known, put
        all back; if some have died, those that the program does not take."""
        items = list(map(_given_back, self._items)) if number or self.is_whole() else self._remaining
        for k, (behind, is_removed, _) in sorted(self._takings.items(), reverse=True) if number else ():
            if behind < number:
                items[k : k + 1] = [] if is_removed else [None]
        list.clear(self._list)
        list.extend(self._list, items)


class HeldPlace:
    """A place of a tensor that is emptied for the time of the graph, since the program empties it, `behind` so many
    calls of the user's operators: an item of a container, or of the dictionary of an object. The tensor is held as
    `hold` says."""

    def __init__(
        self, owner: Any, key: Any, hold: Callable[[Any], Any], *, is_removed: bool = True, behind: int = 0
    ) -> None:
        self._owner, self._key, self._is_removed, self._behind = owner, key, is_removed, behind
        self._read, self._write, self._remove = self._access(owner)
        self._item = hold(self._read(owner, key))
        self._write(owner, key, None)

    @staticmethod
    def _access(owner: Any) -> tuple[Callable[..., Any], ...]:
        """How to read, write and remove an item past what a subclass overrides."""
        builtin: Any = next(base for base in type(owner).__mro__ if base in CONTAINERS)
        return builtin.__getitem__, builtin.__setitem__, builtin.__delitem__

    def is_whole(self) -> bool:
        """Whether the tensor is alive."""
        return _given_back(self._item) is not None

    def refill(self, number: int = 0) -> None:
        """Put the tensor back; if it has died, or has been taken when the operator with this number is called, let the
        place be as the program leaves it."""
        is_taken = number > self._behind
        if (item := _given_back(self._item)) is not None and not is_taken:
            self._write(self._owner, self._key, item)
        elif self._is_removed:
            self._remove(self._owner, self._key)


class HeldSlot(HeldPlace):
    """The same for an attribute that does not lie in a dictionary, and for what a closure cell holds."""

    @staticmethod
    def _access(owner: Any) -> tuple[Callable[..., Any], ...]:
        return object.__getattribute__, object.__setattr__, object.__delattr__


RandomStates = list[tuple[torch.Generator, torch.Generator]]
DrawnStates = list[tuple[random.Random, tuple[Any, ...]]]


def random_states() -> RandomStates:
    """Torch's own generators of random numbers, each with a copy, which is no tensor and takes half as much as one."""
    on_gpus = torch.cuda.default_generators if torch.cuda.is_initialized() else ()
    return [(generator, generator.clone_state()) for generator in (torch.default_generator, *on_gpus)]


def states_of(*generators: random.Random) -> DrawnStates:
    """The states of generators of Python's, of about 20 KB each."""
    return [(generator, generator.getstate()) for generator in generators]


class Overwritten:
    """What a graph is about to write to outside, with what it holds, so that the graph may be run and taken back.

    `sure`: it is known that no data will make it raise, so that nothing needs to be kept.
    """

    def __init__(self, writes: Writes, args: list[Any], sure: bool = False) -> None:
        args = [args[k] for k in writes.positions]
        self._writes = writes
        self._can_be_put_back = writes.can_be_put_back and not sure
        with torch.inference_mode():
            try:
                self._find = writes.find
                places = self._read(args)
            except Exception:  # a position does not exist, which is for the graph to say
                self._find = writes.find_memories
                places = self._read(args)
        self._tensors = [HeldTensor(tensor) for tensor in places.tensors]
        self._versions = list(map(compat.version_of, places.tensors))
        if self._can_be_put_back:
            self._args = [_each(weakly_held, arg) for arg in args]
            self._layouts = list(map(_layout_of, places.tensors))
            self._sizes = [tensor.untyped_storage().nbytes() for tensor in places.tensors]
            # Python's object for a piece of history is one and the same as long as somebody holds it.
            self._histories = list(map(compat.function_of, places.tensors))
            self._moved = [(HeldTensor(tensor), tensor.detach()) for tensor in places.moved]

    def _read(self, args: list[Any]) -> Places:
        places = self._find(*args)
        if self._can_be_put_back:
            self._kept = [whole.clone() for whole in places.wholes], [part.read(*part.where) for part in places.parts]
        return places

    def put_back(self) -> str:
        """Let everything be as it was. Where that cannot be done, nothing is touched, and this says why; else ""."""
        tensors = [tensor for held in self._tensors if (tensor := held()) is not None]
        if not self._can_be_put_back:
            unwritten = len(tensors) == len(self._tensors) and None not in self._versions
            unwritten = unwritten and [tensor._version for tensor in tensors] == self._versions
            unwritten = unwritten and self._writes.are_counted
            return "" if unwritten else "a tensor was written to before"
        args = [_each(_given_back, held) for held in self._args]
        if len(tensors) < len(self._tensors) or any(leaf is None for leaf in leaves(args)):
            return "an argument has already been freed"
        if any(compat.function_of(tensor) is not history for tensor, history in zip(tensors, self._histories)):
            return "autograd has recorded a write to a tensor"
        for held, data in self._moved:
            if (tensor := held()) is not None:
                tensor.data = data
        with torch.inference_mode():
            for tensor, layout, nbytes in zip(tensors, self._layouts, self._sizes):
                if (storage := tensor.untyped_storage()).nbytes() != nbytes:
                    storage.resize_(nbytes)
                if _layout_of(tensor) != layout:
                    tensor.as_strided_(*layout)
            places, (wholes, parts) = self._find(*args), self._kept
            for whole, values in zip(places.wholes, wholes):
                whole.copy_(values)
            for part, values in zip(places.parts, parts):
                part.write(*part.where, values)
        counted = [(tensor, version) for tensor, version in zip(tensors, self._versions) if version is not None]
        compat.set_versions([tensor for tensor, _ in counted], [version for _, version in counted])
        return ""


def _each(function: Callable[[Any], Any], value: Any) -> Any:
    """`function` of a value, or of each in a list."""
    return list(map(function, value)) if issubclass(type(value), list) else function(value)


def _layout_of(tensor: torch.Tensor) -> tuple[Any, ...]:
    return tensor.shape, tensor.stride(), tensor.storage_offset()


def explain(error: BaseException, lost: str = "") -> None:
    """Note on an error of the graph which lines of the program it comes from, and what is `lost`."""
    lines = artifacts.users_lines(error)
    for note in ["\n  ".join(["Raised while computing", *lines])] * bool(lines) + [lost] * bool(lost):
        error.add_note(note)


def _refill(taken: list[HeldList | HeldPlace], number: int = 0) -> None:
    for one in taken:
        one.refill(number)


def undrawn(drawn: DrawnStates, values: list[Any]) -> list[Any]:
    """`values`, with the generators as they were before numbers were drawn from them."""
    for generator, state in drawn:
        generator.setstate(state)
    return values


def revive(
    error: BaseException,
    held: list[Any],
    lost: str = "",
    taken: list[HeldList | HeldPlace] = [],  # noqa: B006
    overwritten: Overwritten | None = None,
    random: RandomStates = [],  # noqa: B006
    drawn: DrawnStates = [],  # noqa: B006
    is_numbered: bool = False,
) -> list[Any] | None:
    """The arguments again, and lists, places, what was overwritten and generators as they were. None when that cannot
    be had, so that `error` goes on, with a note on what is `lost`; or when it asks for the end of the program, or a
    handler of a signal raised it.

    `is_numbered`: lists and places are all that has changed, and the operators of the user's have numbers.
    """
    number = artifacts.raised_operator(error) if is_numbered else 0
    if not isinstance(error, Exception) or is_from_signal_handler(error):
        _refill(taken, number)
        return None
    values = [_given_back(value) for value in held]
    reason = ""
    freed = any(value is None and type(was) is HeldTensor for value, was in zip(values, held))
    if freed or not all(one.is_whole() for one in taken):
        reason = "an argument has already been freed"
    elif compat.has_saved_tensor_hooks() and not came_before_saving(error):
        reason = "hooks have seen the tensors that were saved"
    elif overwritten is not None:
        reason = overwritten.put_back()
    _refill(taken, number if reason else 0)
    if not reason:
        for generator, before in random:
            generator.set_state(before.get_state())
        return undrawn(drawn, values)
    if not number or overwritten is not None:
        error.add_note(f"minidynamo could not run the function again as written: {reason}.")
    explain(error, "" if number else lost)
    return None
