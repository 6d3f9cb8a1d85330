"""Owns the closed list of guard kinds and the record of one guard.

It does not know how a guard is checked; `check.py` writes each kind as text.
"""

from __future__ import annotations

import enum
from dataclasses import dataclass
from typing import Any

import torch

from minidynamo.errors import UserLocation
from minidynamo.guards.source import Source


class GuardKind(enum.Enum):
    """What a guard checks about the value at its source; the comment says what `expected` holds."""

    PRESENT = "present"  # None: there is a value, whichever
    NOT_NONE = "not none"  # None: there is a value, and it is not None
    TYPE = "type"  # the exact class
    IDENTITY = "identity"  # the object itself; None, True, classes, functions, modules
    EQUALS = "equals"  # an int, float, complex, str, bytes or a nested tuple of them: same type and equal (NaN is NaN)
    TENSOR = "tensor"  # TensorFacts
    LENGTH = "length"  # an int
    DICT_KEYS = "dict keys"  # a tuple of the keys, in order
    HAS_KEY = "has key"  # a key that the mapping has
    MISSING_KEY = "missing key"  # a key that the mapping lacks
    SET_ITEMS = "set items"  # a frozenset
    MISSING_ATTR = "missing attribute"  # a name that neither the instance's dictionary nor its class has
    NO_INSTANCE_ATTR = "not in instance"  # a name that the instance's dictionary lacks (it was found on the class)
    SLOT_EMPTY = "empty slot"  # the name of a slot of the class that holds nothing
    CLASS_ATTR = "class attribute"  # (name, object): looking the name up on the class (a class source) gives the object
    CLASS_NAMES = "class names"  # (names, bases): the names in the dictionary of the class at the source, and its bases
    CELL_EMPTY = "empty cell"  # None; the source is the cell
    UNNOTICED_DEATH = "unnoticed death"  # None: of the value; (key,): of what it holds there; (): of all it holds
    SAME_OBJECT = "same object"  # another Source that holds the same object
    DISTINCT_OBJECTS = "distinct objects"  # tuple of other Sources, none of which holds this object
    RELATION = "relation"  # True or False: what the source, a computed condition over numbers, must give
    GLOBAL_STATE = "global state"  # GlobalState; the source is ignored
    BACKEND = "backend"  # the backend (and code-changing options) this entry was compiled for; the source is ignored

    # Members are compared by identity, so this will do. Enum's own is a Python function, and tables ask all the time.
    __hash__ = object.__hash__


@dataclass(frozen=True)
class TensorFacts:
    """What a graph takes for granted about a tensor. Sizes and strides that may be any number are None."""

    cls: type
    dtype: torch.dtype
    device: torch.device
    shape: tuple[int | None, ...]
    stride: tuple[int | None, ...]
    requires_grad: bool
    dispatch_keys: Any  # torch.DispatchKeySet, compared by equality

    @property
    def summary(self) -> str:
        """One short phrase such as ``float32[2, 3] on cpu``."""
        dtype = str(self.dtype).removeprefix("torch.")
        sizes = ", ".join("?" if size is None else str(size) for size in self.shape)
        return f"{dtype}[{sizes}] on {self.device}"


@dataclass(frozen=True)
class GlobalState:
    """Interpreter-wide torch settings that change what a program means. Read by `guards.state.current`."""

    grad_enabled: bool
    inference_mode: bool
    autocast: tuple[tuple[str, bool, torch.dtype], ...]
    default_dtype: torch.dtype
    default_device: torch.device
    deterministic: bool
    mode_devices: tuple[torch.device, ...]  # of each `torch.device` context, outermost first
    in_transform: bool = False  # whether a transform of torch.func runs, or a level of forward-mode AD is open
    detects_anomalies: bool = False  # whether autograd looks at each gradient


@dataclass(frozen=True)
class Guard:
    """One reason why reusing a compiled entry could be wrong: `source` must be `expected` in the sense of `kind`."""

    source: Source
    kind: GuardKind
    expected: Any = None
    where: UserLocation | None = None

    def __hash__(self) -> int:
        return hash((self.source, self.kind))
