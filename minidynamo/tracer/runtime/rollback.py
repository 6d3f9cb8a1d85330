"""Owns the functions that residual programs call around a graph that may raise: keeping arguments for a rerun, and
restoring them.

`tracer/capture/rerun.py` decides whether a program can be rerun.
"""

from __future__ import annotations

import contextlib
import functools
import random
import weakref
from collections.abc import Callable
from typing import Any

import numpy as np
import torch

from minidynamo import compat
from minidynamo.core import artifacts
from minidynamo.graph.pytree import leaves
from minidynamo.graph.saved_tensor_hooks import raised_before_saving
from minidynamo.guards.values import CONTAINERS
from minidynamo.tracer.graph.written_memory import Writes, WrittenMemory
from minidynamo.tracer.runtime.graph_failures import KeptMemory, is_from_signal_handler


class HeldTensor(weakref.ref[torch.Tensor]):
    """A weak reference to a tensor argument, for a rerun: the tensor dies as early as in eager."""


def weakly_held(value: Any) -> Any:
    """Holds an argument that the frame may free before the end: tensors weakly, other values by reference."""
    return HeldTensor(value) if issubclass(type(value), torch.Tensor) else value


def firmly_held(value: Any) -> Any:
    """Holds an argument that must be alive after an error."""
    return value


def _restored(held: Any) -> Any:
    """Returns a held value; None for a tensor that has died."""
    return held() if type(held) is HeldTensor else held


class HeldList:
    """The elements of a list emptied by the graph, because the program pops the elements."""

    def __init__(self, items: list[Any], remaining: tuple[int, ...], hold: Callable[[Any], Any]) -> None:
        self._list = items
        #: all elements; popped elements are held by `hold`
        self._items = [item if k in remaining else hold(item) for k, item in enumerate(items)]

    def is_alive(self) -> bool:
        """Returns whether all elements are alive."""
        return all(_restored(item) is not None or item is None for item in self._items)

    def refill(self) -> None:
        """Restores the elements that are alive."""
        restored = [(_restored(item), item) for item in self._items]
        list.clear(self._list)
        list.extend(self._list, [item for item, held in restored if item is not None or held is None])


class HeldItem:
    """A container slot, or an entry of an instance dictionary, that is cleared while the graph runs because the program
    clears it.

    The tensor in the slot is held by `hold`.
    """

    def __init__(self, owner: Any, key: Any, hold: Callable[[Any], Any], *, is_removed: bool = True) -> None:
        self._owner, self._key, self._is_removed = owner, key, is_removed
        self._read, self._write, self._remove = self._access(owner)
        self._item = hold(self._read(owner, key))
        self._write(owner, key, None)

    @staticmethod
    def _access(owner: Any) -> tuple[Callable[..., Any], ...]:
        """Returns functions that read, write and remove an item without calling methods of a subclass."""
        builtin: Any = next(base for base in type(owner).__mro__ if base in CONTAINERS)
        return builtin.__getitem__, builtin.__setitem__, builtin.__delitem__

    def is_alive(self) -> bool:
        """Returns whether the tensor is alive."""
        return _restored(self._item) is not None

    def refill(self) -> None:
        """Restores the tensor. If it has died, leaves the slot as the program does."""
        if (item := _restored(self._item)) is not None:
            self._write(self._owner, self._key, item)
        elif self._is_removed:
            self._remove(self._owner, self._key)


class HeldSlot(HeldItem):
    """A cleared attribute outside the instance dictionary, or a cleared closure cell."""

    @staticmethod
    def _access(owner: Any) -> tuple[Callable[..., Any], ...]:
        return object.__getattribute__, object.__setattr__, object.__delattr__


RandomStates = list[tuple[torch.Generator, torch.Generator]]
DrawnStates = list[tuple[Callable[[Any], None], Any]]
"""For each generator of Python or numpy: the function that sets its state, and a state."""


def random_states() -> RandomStates:
    """Returns torch's own random number generators with copies. A copy is no tensor and takes half the memory of a
    state tensor."""
    on_gpus = torch.cuda.default_generators if torch.cuda.is_initialized() else ()
    return [(generator, generator.clone_state()) for generator in (torch.default_generator, *on_gpus)]


def states_of(*generators: Any) -> DrawnStates:
    """Returns the states of random number generators of Python and numpy, up to 20 KB each."""
    return [*map(_state_of, generators)]


def _state_of(generator: Any) -> tuple[Callable[[Any], None], Any]:
    if isinstance(generator, random.Random):
        return generator.setstate, generator.getstate()
    if isinstance(generator, np.random.RandomState):
        return generator.set_state, generator.get_state()
    bits = generator.bit_generator
    return functools.partial(setattr, bits, "state"), bits.state


class Overwritten:
    """The external memory that a graph is about to overwrite, with a copy of its contents.

    `cannot_raise`: no data makes the graph raise, so nothing is copied.
    """

    def __init__(self, writes: Writes, args: list[Any], cannot_raise: bool = False) -> None:
        args = [args[k] for k in writes.positions]
        self._writes = writes
        #: the contents at the time of an error, if the rerun must not change them
        self.kept: KeptMemory | None = None
        self.can_be_restored = writes.can_roll_back and not cannot_raise
        with torch.inference_mode():
            try:
                self._find = writes.find
                memory = self._read(args)
            except Exception:  # a position does not exist: the graph raises the error
                self._find = writes.find_all_memory
                memory = self._read(args)
        self._tensors = [HeldTensor(tensor) for tensor in memory.tensors]
        self._versions = list(map(compat.version_of, memory.tensors))
        if self.can_be_restored:
            self._args = [_each(weakly_held, arg) for arg in args]
            self._layouts = list(map(_layout_of, memory.tensors))
            self._sizes = [tensor.untyped_storage().nbytes() for tensor in memory.tensors]
            # A history has the same Python object as long as a reference to the object exists.
            self._histories = list(map(compat.function_of, memory.tensors))
            self._moved = [(HeldTensor(tensor), tensor.detach()) for tensor in memory.moved]

    def _read(self, args: list[Any]) -> WrittenMemory:
        memory = self._find(*args)
        if self.can_be_restored:
            self._kept = [view.clone() for view in memory.views], [part.read(*part.where) for part in memory.parts]
        return memory

    def keep(self, error: Exception) -> KeptMemory | None:
        """Copies the present contents of the memory, for a rerun; None if a tensor has died, or space is lacking."""
        tensors = [tensor for held in self._tensors if (tensor := held()) is not None]
        if len(tensors) == len(self._tensors):
            with contextlib.suppress(RuntimeError, MemoryError):
                self.kept = KeptMemory(tensors, self._versions, error)
        return self.kept

    def restore(self) -> str:
        """Restores the memory and returns ""; if that is impossible, changes nothing and returns the reason."""
        tensors = [tensor for held in self._tensors if (tensor := held()) is not None]
        if not self.can_be_restored:
            unwritten = len(tensors) == len(self._tensors) and None not in self._versions
            unwritten = unwritten and [tensor._version for tensor in tensors] == self._versions
            unwritten = unwritten and self._writes.are_counted
            return "" if unwritten else "a tensor was written to before"
        args = [_each(_restored, held) for held in self._args]
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
            memory, (views, parts) = self._find(*args), self._kept
            for view, values in zip(memory.views, views):
                view.copy_(values)
            for part, values in zip(memory.parts, parts):
                part.write(*part.where, values)
        counted = [(tensor, version) for tensor, version in zip(tensors, self._versions) if version is not None]
        compat.set_versions([tensor for tensor, _ in counted], [version for _, version in counted])
        return ""


def _each(function: Callable[[Any], Any], value: Any) -> Any:
    """Returns `function` of a value, or of each item of a list."""
    return list(map(function, value)) if issubclass(type(value), list) else function(value)


def _layout_of(tensor: torch.Tensor) -> tuple[Any, ...]:
    return tensor.shape, tensor.stride(), tensor.storage_offset()


def explain(error: BaseException, lost: str = "") -> None:
    """Adds notes to an error of the graph: the raising lines of the program, and the `lost` effects."""
    lines = artifacts.users_lines(error)
    for note in ["\n  ".join(["Raised while computing", *lines])] * bool(lines) + [lost] * bool(lost):
        error.add_note(note)


def undrawn(drawn: DrawnStates, values: list[Any]) -> list[Any]:
    """Returns `values`, after resetting the generators to their states before the numbers were drawn."""
    for set_state, state in drawn:
        set_state(state)
    return values


def revive(
    error: BaseException,
    held: list[Any],
    lost: str = "",
    taken: list[HeldList | HeldItem] = [],  # noqa: B006
    overwritten: Overwritten | None = None,
    random: RandomStates = [],  # noqa: B006
    drawn: DrawnStates = [],  # noqa: B006
    repeats: bool = False,
) -> list[Any] | None:
    """Returns the arguments, after restoring lists, slots, overwritten memory and generators. Returns None, with a note
    on `lost`, in these cases, and `error` propagates:

    - restoring is impossible
    - the error ends the program, such as KeyboardInterrupt
    - a signal handler raised the error

    `repeats`: if overwritten memory cannot be restored, the rerun may start from the present contents.
    """
    if not isinstance(error, Exception) or is_from_signal_handler(error):
        for cleared in taken:
            cleared.refill()
        return None
    values = [_restored(value) for value in held]
    reason = ""
    freed = any(value is None and type(holder) is HeldTensor for value, holder in zip(values, held))
    if freed or not all(cleared.is_alive() for cleared in taken):
        reason = "an argument has already been freed"
    elif compat.has_saved_tensor_hooks() and not raised_before_saving(error):
        reason = "hooks have seen the tensors that were saved"
    elif overwritten is not None:
        reason = overwritten.restore()
        if repeats and not overwritten.can_be_restored and reason and overwritten.keep(error) is not None:
            reason = ""
    for cleared in taken:
        cleared.refill()
    if not reason:
        for generator, before in random:
            generator.set_state(before.get_state())
        return undrawn(drawn, values)
    error.add_note(f"minidynamo could not run the function again eagerly: {reason}.")
    explain(error, lost)
    return None
