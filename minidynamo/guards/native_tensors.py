"""Owns the quick check of many tensors that modules hold: whether their memory is as it was when torch's checker took
them.

Comparing a tensor's memory takes a tenth of what torch's checker takes for it. What is where in it is found out by
changing tensors and looking; where that gives no clear answer, torch's checker stays. `tensors.py` makes that one, and
it decides whenever anything differs.
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

# With fewer tensors than this, torch's checker alone is as quick.
MANY = 12
# So many snapshots in a row are made in vain before torch's checker is left alone; one that served as often is not.
_PATIENCE = 8

_SOURCE = Path(__file__).with_name("native_tensors.cpp")
_WORD = 8
_IMPL_AT = 2  # the word of a Python tensor that points to torch's
# Number of dimensions, 5 sizes, 5 strides, offset, number of elements, dtype with device and flags, dispatch keys
_LAYOUT_WORDS = 15
_DIMENSIONS = 5  # as many lie there; more lie elsewhere
_FLAGS = 40  # as many bits hold dtype and device; flags follow, and a bit that means nothing
_ALL_FLAGS = (1 << 23) - 1
_HISTORY_WORDS = 3
_AUTOGRAD_WORDS = 22  # of autograd's record of a tensor: fewer than it has

# As in native_tensors.cpp: Snapshot, Record.
_HEADER = struct.Struct(f"qqqqqq{_HISTORY_WORDS}q")
_RECORD = struct.Struct(f"PPPQ{_LAYOUT_WORDS}QPQ{_HISTORY_WORDS}Q")
_UNKNOWN = bytes(_RECORD.size)
_KEYS = slice((4 + _LAYOUT_WORDS - 1) * _WORD, (4 + _LAYOUT_WORDS) * _WORD)  # the dispatch keys of a record

# Those of users are kept alive by nothing here.
_CLASSES = (torch.Tensor, torch.nn.Parameter)

_DTYPES = (torch.float32, torch.float64, torch.float16, torch.bfloat16, torch.int64, torch.uint8, torch.bool)

Check = Callable[..., bool]


def _words(address: int, count: int) -> list[int]:
    return list(struct.unpack(f"{count}Q", ctypes.string_at(address, count * _WORD)))


def _flags(layout: Sequence[int]) -> int:
    return layout[-2] >> _FLAGS & _ALL_FLAGS


@dataclass(frozen=True)
class Places:
    """Where a tensor has what torch's checker looks at, in words; only for tensors of these classes with these flags.

    In torch's tensor the layout begins at `layout`, and `autograd` points to autograd's record of it; in that,
    `history` are the words that change with whether it requires gradients.
    """

    layout: int
    autograd: int
    history: tuple[int, ...]
    impl_class: int
    autograd_class: int
    flags: int

    def record(self, tensor: torch.Tensor) -> bytes | None:
        """What is compared of a tensor; None where its memory does not tell all."""
        impl = compat.address_of(tensor)
        words = _words(impl, self.layout + _LAYOUT_WORDS)
        layout = words[self.layout :]
        if words[0] != self.impl_class or layout[0] > _DIMENSIONS or _flags(layout) & ~self.flags:
            return None
        autograd = words[self.autograd]
        about = _words(autograd, _AUTOGRAD_WORDS) if autograd else [0] * _AUTOGRAD_WORDS
        if autograd and about[0] != self.autograd_class:
            return None  # such as a view's, which looks at what it is a view of
        history = [about[place] for place in self.history]
        return _RECORD.pack(id(tensor), id(type(tensor)), impl, words[0], *layout, autograd, about[0], *history)


@functools.cache
def places() -> Places | None:
    """What is where, in this torch; None when that cannot be told for sure."""
    found: list[Places | None] = []

    def find() -> None:
        try:
            found.append(_find_places())
        except Exception:  # an operation that this torch refuses
            found.append(None)

    # On a thread of its own, modes and settings of whoever calls do not change what tensors are.
    thread = threading.Thread(target=find)
    thread.start()
    thread.join()
    return found[0]


def _find_places() -> Places | None:
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
    (autograd,) = (place for place in range(start) if before[place] != after[place])
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
    for tensor in _plain_tensors():
        flags |= _flags(_words(compat.address_of(tensor), start + _LAYOUT_WORDS))
    made = Places(start, autograd, tuple(watched), words[0], about[0][0], flags)
    return made if _is_right(made) else None


def _position(part: Sequence[int], words: Sequence[int]) -> int | None:
    found = [k for k in range(len(words)) if [*words[k : k + len(part)]] == [*part]]
    return found[0] if len(found) == 1 else None


def _plain_tensors() -> Iterator[torch.Tensor]:
    """Tensors whose layout lies in memory as it is, of all sorts."""
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


def _is_right(places: Places) -> bool:
    """Whether what is read of tensors of all sorts is what Python says of them."""
    codes: dict[object, set[int]] = {}
    for tensor in _plain_tensors():
        words = _words(id(tensor), _IMPL_AT + 1)
        impl = _words(words[_IMPL_AT], places.layout + _LAYOUT_WORDS)
        dimensions, layout = impl[places.layout], impl[places.layout + 1 :]
        says = (tensor.dim(), tensor.storage_offset(), tensor.numel(), compat.raw_dispatch_keys(tensor))
        sizes, strides = layout[:dimensions], layout[_DIMENSIONS : _DIMENSIONS + dimensions]
        if words[1] != id(type(tensor)) or words[_IMPL_AT] != compat.address_of(tensor) or impl[0] != places.impl_class:
            return False
        if (dimensions, layout[-4], layout[-3], layout[-1]) != says:
            return False
        if (tuple(sizes), tuple(strides)) != (tuple(tensor.shape), tensor.stride()):
            return False
        codes.setdefault((tensor.dtype, tensor.device), set()).add(layout[-2] & ((1 << _FLAGS) - 1))
    each = [code for (code,) in codes.values()]
    view = torch.zeros(3, dtype=torch.float32, device="cpu")[:2]
    sparse = torch.zeros(3, dtype=torch.float32, device="cpu").to_sparse()
    return len({*each}) == len(each) and places.record(view) is None and places.record(sparse) is None


class HeldTensors:
    """What decides about tensors that are not as they were, and notes how they are then.

    It keeps neither the tensors nor the function alive that asks it.
    """

    def __init__(self, facts: Sequence[TensorFacts], full: Check, places: Places, compare: Check) -> None:
        self._facts = facts
        self._full = full
        self._places = places
        self._compare = compare
        self._left = _PATIENCE
        self._records: list[bytes | None] = []
        self._restless: set[int] = set()  # tensors that are replaced from call to call
        self._known = [(bytearray(_HEADER.pack(-1, *[0] * (5 + _HISTORY_WORDS))), full)]  # fits nothing

    def check(self) -> Check:
        """A function of the tensors that tells whether all fit."""
        return functools.partial(self._compare, self._known, self.decide)

    def decide(self, *tensors: Any) -> bool:
        """What torch's checker says; tensors that it takes are known from now on."""
        if not self._full(*tensors):
            return False
        served = _HEADER.unpack_from(self._known[0][0])[2]
        self._left = _PATIENCE if served > _PATIENCE else self._left - 1
        if self._left >= 0 and not compat.torch_dispatch_mode_count():  # no mode sees what is made here
            with compat.without_torch_function():
                self._note(tensors)
        return True

    def _note(self, tensors: Sequence[torch.Tensor]) -> None:
        """Take a snapshot; torch is asked about what it does not tell, and about one tensor of each other kind."""
        records = [self._places.record(tensor) for tensor in tensors]
        changed = {k for k, (was, now) in enumerate(zip(self._records, records)) if was != now}
        if len(changed) * 2 < len(records):
            self._restless |= changed
        self._records = records
        compared = [None if k in self._restless else record for k, record in enumerate(records)]
        kinds = {record[_KEYS]: k for k, record in enumerate(compared) if record is not None}
        asked = [k for k, record in enumerate(compared) if record is None or kinds[record[_KEYS]] == k]
        few = batched_checker([self._facts[k] for k in asked]) if len(asked) * 2 < len(records) else None
        if few is None:
            return
        # Another thread may have changed a tensor: torch has to take them while they are as noted.
        everything = self._snapshot(compared, range(len(records)))
        if self._compare([(everything, self._full)], _refuse, *tensors):
            self._known[0] = (self._snapshot(compared, asked), few)

    def _snapshot(self, records: Sequence[bytes | None], asked: Collection[int]) -> bytearray:
        places = self._places
        header = _HEADER.pack(len(records), len(asked), 0, _IMPL_AT, places.layout, places.autograd, *places.history)
        positions = struct.pack(f"{len(asked)}q", *asked)
        return bytearray(header + b"".join(record or _UNKNOWN for record in records) + positions)


def is_worthwhile(facts: Sequence[TensorFacts]) -> bool:
    """Whether tensors with these facts may be checked here. It keeps the facts, and with them the classes."""
    return len(facts) >= MANY and all(each.cls in _CLASSES for each in facts)


def _refuse(*tensors: Any) -> bool:
    return False


@dataclass(frozen=True)
class TensorSlot:
    """The name in a condition's globals under which it finds torch's checker for tensors with these facts."""

    namespace: dict[str, Any]
    name: str
    facts: tuple[TensorFacts, ...]
    full: Check

    def make_native(self) -> None:
        """Put a quicker check there if there can be one."""
        if self.namespace[self.name] is not self.full:
            return
        compare = built(_SOURCE, "check")
        where = None if compare is None else places()
        if compare is not None and where is not None:
            self.namespace[self.name] = HeldTensors(self.facts, self.full, where, compare).check()
