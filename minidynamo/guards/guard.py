"""Owns the closed list of guard kinds and the record of one guard.

Does not know how a guard is checked: `check.py` writes each kind as text.
"""

from __future__ import annotations

import enum
from dataclasses import dataclass
from typing import Any

import torch

from minidynamo.errors import UserLocation
from minidynamo.guards.source import Source


class GuardKind(enum.Enum):
    """The property of the value at the source that a guard checks; each comment describes `expected`."""

    PRESENT = "present"  # None: there is a value, of any kind
    NOT_NONE = "not none"  # None: there is a value other than None
    TYPE = "type"  # the exact class
    IDENTITY = "identity"  # the object itself; None, True, classes, functions, modules
    EQUALS = "equals"  # an int, float, complex, str, bytes or nested tuple: same type, and equal (NaN equals NaN)
    TENSOR = "tensor"  # TensorFacts
    LENGTH = "length"  # an int
    DICT_KEYS = "dict keys"  # a tuple of the keys, in order
    HAS_KEY = "has key"  # a key that the mapping has
    MISSING_KEY = "missing key"  # a key that the mapping lacks
    SET_ITEMS = "set items"  # a frozenset
    MISSING_ATTR = "missing attribute"  # a name that neither the instance's dictionary nor its class has
    NO_INSTANCE_ATTR = "not in instance"  # a name that the instance's dictionary lacks (the class has it)
    SLOT_EMPTY = "empty slot"  # the name of a slot of the class; the slot is empty
    # (name, object): the lookup of the name on the class (a class source) returns the object
    CLASS_ATTR = "class attribute"
    CLASS_NAMES = "class names"  # (names, bases): the names in the dictionary of the class at the source, and its bases
    CELL_EMPTY = "empty cell"  # None; the source is the cell
    UNNOTICED_DEATH = "unnoticed death"  # None: of the value; (key,): of the item under the key; (): of all contents
    SAME_OBJECT = "same object"  # a Source that holds the same object
    DISTINCT_OBJECTS = "distinct objects"  # tuple of Sources, none of which holds this object
    RELATION = "relation"  # True or False: the result of the source, a computed condition over numbers
    GLOBAL_STATE = "global state"  # GlobalState; the source is ignored
    BACKEND = "backend"  # the backend (and code-changing options) of this entry; the source is ignored

    # Members are compared by identity, so the hash of an object suffices. Enum's own is a slow Python function.
    __hash__ = object.__hash__


@dataclass(frozen=True)
class TensorFacts:
    """The properties of a tensor that a graph depends on."""

    #: the exact class
    cls: type
    dtype: torch.dtype
    device: torch.device
    #: sizes; None where any size fits
    shape: tuple[int | None, ...]
    #: strides, in items; None where any stride fits
    stride: tuple[int | None, ...]
    requires_grad: bool
    #: a torch.DispatchKeySet, compared by equality
    dispatch_keys: Any

    @property
    def summary(self) -> str:
        """Returns a short phrase such as ``float32[2, 3] on cpu``."""
        dtype = str(self.dtype).removeprefix("torch.")
        sizes = ", ".join("?" if size is None else str(size) for size in self.shape)
        return f"{dtype}[{sizes}] on {self.device}"


@dataclass(frozen=True)
class GlobalState:
    """The interpreter-wide torch settings that change the meaning of a program; `guards.state.current` reads them."""

    grad_enabled: bool
    inference_mode: bool
    #: (device type, enabled, dtype) of each device with autocast
    autocast: tuple[tuple[str, bool, torch.dtype], ...]
    default_dtype: torch.dtype
    default_device: torch.device
    deterministic: bool
    #: the devices of the open `torch.device` contexts, outermost first
    mode_devices: tuple[torch.device, ...]
    #: whether a transform of torch.func runs, or a level of forward-mode AD is open
    in_transform: bool = False
    #: whether autograd checks each gradient for anomalies
    detects_anomalies: bool = False


@dataclass(frozen=True)
class Guard:
    """A condition for reuse of a compiled entry: the value at `source` matches `expected` in the sense of `kind`."""

    #: the source of the guarded value
    source: Source
    kind: GuardKind
    #: the expected value; see `GuardKind`
    expected: Any = None
    #: the user's line that needs the guard
    where: UserLocation | None = None

    def __hash__(self) -> int:
        return hash((self.source, self.kind))
