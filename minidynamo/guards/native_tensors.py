"""Owns the fast check of many tensors held by modules: whether their memory equals a snapshot of tensors that passed.

Comparing the memory of a tensor takes a tenth of the time of torch's checker. The offsets of the compared fields are
found by changing tensors and reading memory; without a clear result, torch's checker stays. `tensors.py` makes torch's
checker, which decides whenever anything differs.
"""

from __future__ import annotations

import ctypes
import functools
import itertools
import struct
import sys
import threading
from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from minidynamo import compat
from minidynamo.guards.guard import TensorFacts
from minidynamo.guards.native_walk import built
from minidynamo.guards.tensors import batched_checker

# With fewer tensors, torch's checker alone is as fast.
MANY = 12
# The most snapshots in a row that serve few calls. After them only torch's checker is used; a snapshot that served more
# than this many calls resets the count.
_PATIENCE = 8

_SOURCE = Path(__file__).with_name("native_tensors.cpp")
_WORD = 8
_IMPL_AT = 2  # the word of a Python tensor that points to torch's TensorImpl
# Number of dimensions, 5 sizes, 5 strides, offset, number of elements, dtype with device and flags, dispatch keys
_LAYOUT_WORDS = 15
_DIMENSIONS = 5  # the most dimensions that are stored in place; more are stored elsewhere
_FLAGS = 40  # bits of dtype and device; followed by flags and an unused bit
_ALL_FLAGS = (1 << 23) - 1
_HISTORY_WORDS = 3
_AUTOGRAD_WORDS = 22  # of autograd's record of a tensor: fewer words than the record has

# The structs Snapshot and Record of native_tensors.cpp.
_HEADER = struct.Struct(f"qqqqqq{_HISTORY_WORDS}q")
_RECORD = struct.Struct(f"PPPQ{_LAYOUT_WORDS}QPQ{_HISTORY_WORDS}Q")
_UNKNOWN = bytes(_RECORD.size)
_KEYS = slice((4 + _LAYOUT_WORDS - 1) * _WORD, (4 + _LAYOUT_WORDS) * _WORD)  # the dispatch keys of a record

# User classes would be kept alive by the recorded facts.
_CLASSES = (torch.Tensor, torch.nn.Parameter)

_DTYPES = (torch.float32, torch.float64, torch.float16, torch.bfloat16, torch.int64, torch.uint8, torch.bool)

Check = Callable[..., bool]


def _words(address: int, count: int) -> list[int]:
    return list(struct.unpack(f"{count}Q", ctypes.string_at(address, count * _WORD)))


def _flags(layout: Sequence[int]) -> int:
    return layout[-2] >> _FLAGS & _ALL_FLAGS


@dataclass(frozen=True)
class Offsets:
    """The offsets, in words, of the fields that torch's checker reads; for tensors of known classes and flags only."""

    #: offset of the layout in torch's TensorImpl
    layout: int
    #: offset of the pointer to autograd's record in torch's TensorImpl
    autograd: int
    #: offsets, in autograd's record, of the words that depend on whether the tensor requires gradients
    history: tuple[int, ...]
    #: first word of every known TensorImpl (its vtable)
    impl_class: int
    #: first word of every known autograd record (its vtable)
    autograd_class: int
    #: mask of the flag bits that known tensors may have
    flags: int

    def record(self, tensor: torch.Tensor) -> bytes | None:
        """Returns the compared memory of a tensor; None if the memory does not determine all facts."""
        impl = compat.address_of(tensor)
        words = _words(impl, self.layout + _LAYOUT_WORDS)
        layout = words[self.layout :]
        if words[0] != self.impl_class or layout[0] > _DIMENSIONS or _flags(layout) & ~self.flags:
            return None
        autograd = words[self.autograd]
        about = _words(autograd, _AUTOGRAD_WORDS) if autograd else [0] * _AUTOGRAD_WORDS
        if autograd and about[0] != self.autograd_class:
            return None  # such as the record of a view, with a reference to the base
        history = [about[offset] for offset in self.history]
        return _RECORD.pack(id(tensor), id(type(tensor)), impl, words[0], *layout, autograd, about[0], *history)


@functools.cache
def offsets() -> Offsets | None:
    """Finds the offsets for the running torch; None without a clear result."""
    found: list[Offsets | None] = []

    def find() -> None:
        try:
            found.append(_find_offsets())
        except Exception:  # an operation that this torch refuses
            found.append(None)

    # On a new thread, because modes and settings of the calling thread change tensors.
    thread = threading.Thread(target=find)
    thread.start()
    thread.join()
    return found[0]


def _find_offsets() -> Offsets | None:
    probe = torch.empty((2, 3, 5, 7, 4), dtype=torch.float32, device="cpu")
    words = _words(compat.address_of(probe), 22)
    start = _position([5, *probe.shape, *probe.stride()], words)
    if start is None or sys.byteorder != "little":
        return None
    leaf = torch.zeros(3, dtype=torch.float32, device="cpu")
    impl = compat.address_of(leaf)
    before = _words(impl, start)
    leaf.requires_grad_()
    after = _words(impl, start)
    (autograd,) = (offset for offset in range(start) if before[offset] != after[offset])
    if before[autograd]:
        return None
    about = [_words(after[autograd], _AUTOGRAD_WORDS)]
    leaf.requires_grad_(False)
    about.append(_words(after[autograd], _AUTOGRAD_WORDS))
    leaf.add_(torch.ones(3, dtype=torch.float32, device="cpu", requires_grad=True))  # has a history now
    about.append(_words(after[autograd], _AUTOGRAD_WORDS))
    flag, history = ([k for k, (a, b) in enumerate(zip(*pair)) if a != b] for pair in itertools.pairwise(about))
    watched = [*flag, *history]
    if len(flag) != 1 or not history or len(watched) > _HISTORY_WORDS or words[0] != before[0]:
        return None
    watched += watched[-1:] * (_HISTORY_WORDS - len(watched))
    flags = 0
    for tensor in _sample_tensors():
        flags |= _flags(_words(compat.address_of(tensor), start + _LAYOUT_WORDS))
    made = Offsets(start, autograd, tuple(watched), words[0], about[0][0], flags)
    return made if _is_right(made) else None


def _position(part: Sequence[int], words: Sequence[int]) -> int | None:
    found = [k for k in range(len(words)) if [*words[k : k + len(part)]] == [*part]]
    return found[0] if len(found) == 1 else None


def _sample_tensors() -> Iterator[torch.Tensor]:
    """Yields tensors of many kinds whose layout is stored in place."""
    for shape in ((), (0,), (3,), (2, 3), (2, 3, 4, 5), (2, 3, 4, 5, 6)):
        for dtype in _DTYPES:
            yield torch.empty(shape, dtype=dtype, device="cpu")
        yield torch.empty(shape, dtype=torch.complex64, device="cpu").conj()
        yield torch.empty(shape, dtype=torch.float32, device="meta").detach()
        yield torch.nn.Parameter(torch.empty(shape, dtype=torch.float32, device="cpu"))
        yield torch.empty(shape, dtype=torch.float32, device="cpu").data.mT if len(shape) > 1 else torch.tensor(1)
    yield torch.empty((2, 3, 4, 5), device="cpu").to(memory_format=torch.channels_last)
    yield torch.empty((2, 3, 4, 5, 6), device="cpu").to(memory_format=torch.channels_last_3d)
    yield torch.empty(3, device="cpu").expand(2, 3)
    yield torch.empty(3, device="cpu").resize_(2)
    with torch.inference_mode():
        yield torch.empty(3, device="cpu")


def _is_right(offsets: Offsets) -> bool:
    """Returns whether the values read at `offsets` match Python's answers, for tensors of many kinds."""
    codes: dict[object, set[int]] = {}
    for tensor in _sample_tensors():
        words = _words(id(tensor), _IMPL_AT + 1)
        impl = _words(words[_IMPL_AT], offsets.layout + _LAYOUT_WORDS)
        dimensions, layout = impl[offsets.layout], impl[offsets.layout + 1 :]
        says = (tensor.dim(), tensor.storage_offset(), tensor.numel(), compat.raw_dispatch_keys(tensor))
        sizes, strides = layout[:dimensions], layout[_DIMENSIONS : _DIMENSIONS + dimensions]
        if (
            words[1] != id(type(tensor))
            or words[_IMPL_AT] != compat.address_of(tensor)
            or impl[0] != offsets.impl_class
        ):
            return False
        if (dimensions, layout[-4], layout[-3], layout[-1]) != says:
            return False
        if (tuple(sizes), tuple(strides)) != (tuple(tensor.shape), tensor.stride()):
            return False
        codes.setdefault((tensor.dtype, tensor.device), set()).add(layout[-2] & ((1 << _FLAGS) - 1))
    each = [code for (code,) in codes.values()]
    view = torch.zeros(3, dtype=torch.float32, device="cpu")[:2]
    sparse = torch.zeros(3, dtype=torch.float32, device="cpu").to_sparse()
    return len({*each}) == len(each) and offsets.record(view) is None and offsets.record(sparse) is None


class HeldTensors:
    """Checks tensors that differ from the snapshot, and takes a new snapshot.

    Keeps alive neither the tensors nor the function that calls the check.
    """

    def __init__(self, facts: Sequence[TensorFacts], full: Check, offsets: Offsets, compare: Check) -> None:
        self._facts = facts
        self._full = full
        self._offsets = offsets
        self._compare = compare
        self._left = _PATIENCE
        self._records: list[bytes | None] = []
        self._changing: set[int] = set()  # positions of tensors that are replaced from call to call
        self._known = [(bytearray(_HEADER.pack(-1, *[0] * (5 + _HISTORY_WORDS))), full)]  # fits no tensors

    def check(self) -> Check:
        """Returns a function of the tensors that checks whether all fit."""
        return functools.partial(self._compare, self._known, self.decide)

    def decide(self, *tensors: Any) -> bool:
        """Returns the answer of torch's checker; takes a snapshot of tensors that pass."""
        if not self._full(*tensors):
            return False
        served = _HEADER.unpack_from(self._known[0][0])[2]
        self._left = _PATIENCE if served > _PATIENCE else self._left - 1
        if self._left >= 0 and not compat.torch_dispatch_mode_count():  # no mode sees the tensors that are made here
            with compat.without_torch_function():
                self._take_snapshot(tensors)
        return True

    def _take_snapshot(self, tensors: Sequence[torch.Tensor]) -> None:
        """Takes a snapshot. Torch's checker stays for tensors without a record, and for one tensor of each dispatch key
        set.
        """
        records = [self._offsets.record(tensor) for tensor in tensors]
        changed = {k for k, (was, now) in enumerate(zip(self._records, records)) if was != now}
        if len(changed) * 2 < len(records):
            self._changing |= changed
        self._records = records
        compared = [None if k in self._changing else record for k, record in enumerate(records)]
        kinds = {record[_KEYS]: k for k, record in enumerate(compared) if record is not None}
        asked = [k for k, record in enumerate(compared) if record is None or kinds[record[_KEYS]] == k]
        few = batched_checker([self._facts[k] for k in asked]) if len(asked) * 2 < len(records) else None
        if few is None:
            return
        # Another thread may have changed a tensor: torch must accept the tensors while they match the records.
        everything = self._snapshot(compared, range(len(records)))
        if self._compare([(everything, self._full)], _refuse, *tensors):
            self._known[0] = (self._snapshot(compared, asked), few)

    def _snapshot(self, records: Sequence[bytes | None], asked: Collection[int]) -> bytearray:
        offsets = self._offsets
        header = _HEADER.pack(len(records), len(asked), 0, _IMPL_AT, offsets.layout, offsets.autograd, *offsets.history)
        positions = struct.pack(f"{len(asked)}q", *asked)
        return bytearray(header + b"".join(record or _UNKNOWN for record in records) + positions)


def is_worthwhile(facts: Sequence[TensorFacts]) -> bool:
    """Returns whether tensors with these facts may be checked here. The check keeps the facts alive, and so their
    classes.
    """
    return len(facts) >= MANY and all(each.cls in _CLASSES for each in facts)


def _refuse(*tensors: Any) -> bool:
    return False


@dataclass(frozen=True)
class TensorSlot:
    """A global of a condition: torch's checker for tensors with these facts, which a faster check may replace."""

    #: the globals of the condition
    namespace: dict[str, Any]
    #: the name of the checker
    name: str
    #: the facts, one per tensor
    facts: tuple[TensorFacts, ...]
    #: torch's checker
    full: Check

    def make_native(self) -> None:
        """Replaces torch's checker by a faster check where possible."""
        if self.namespace[self.name] is not self.full:
            return
        compare = built(_SOURCE, "check")
        where = None if compare is None else offsets()
        if compare is not None and where is not None:
            self.namespace[self.name] = HeldTensors(self.facts, self.full, where, compare).check()
