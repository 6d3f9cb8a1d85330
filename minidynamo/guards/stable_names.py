"""Owns names of sources that are the same in each process, for profiles and symbols.

The names are no source text: `source.py` defines the expressions.
"""

from __future__ import annotations

import enum
import itertools
from dataclasses import fields
from weakref import WeakKeyDictionary

import torch

from minidynamo import compat
from minidynamo.core.names import module_of, name_of
from minidynamo.guards.source import (
    Attr,
    CellContents,
    Computed,
    Constant,
    Derived,
    InstanceAttr,
    Item,
    Local,
    Referent,
    Size,
    Source,
    StorageItem,
    Stride,
)

# Numbers of objects without names.
_ORDER: WeakKeyDictionary[object, int] = WeakKeyDictionary()
_NUMBERS = itertools.count()


def stable_name(source: Source) -> str:
    """Returns the name of a source, the same in each process: `L['x'].weight.size()[0]`."""
    if isinstance(source, Derived):
        return _name_of_part(source, stable_name(source.of))
    if isinstance(source, Local):
        return f"L[{source.name!r}]"
    if isinstance(source, Constant):
        return source.name
    if isinstance(source, Computed):
        return source.template.format(*map(stable_name, source.operands))
    return source.display()


def _name_of_part(source: Derived, base: str) -> str:
    if isinstance(source, (Item, StorageItem)):
        return f"{base}[{_text_of_key(source.key)}]"
    if isinstance(source, (Attr, InstanceAttr)):
        return f"{base}.{source.name}"
    if isinstance(source, Size):
        return f"{base}.size()[{source.dim}]"
    if isinstance(source, Stride):
        return f"{base}.stride()[{source.dim}]"
    if isinstance(source, CellContents):
        return f"{base}.cell_contents"
    distinguishing_fields = [vars(source)[field.name] for field in fields(source) if field.name != "of"]
    return f"{type(source).__name__}({', '.join([base, *map(_stable_text, distinguishing_fields)])})"


def _text_of_key(key: object) -> str:
    """Returns a name for a key of a dict. Objects without names are numbered in order of first use. Tensors share a
    name: an optimizer treats the state of all parameters alike.
    """
    if type(key) is tuple:
        return f"({', '.join(map(_text_of_key, key))})"
    value = key.value if isinstance(key, Referent) else key
    if isinstance(value, enum.Enum):
        return f"{type(value).__name__}.{value._name_}"
    if isinstance(value, (str, int, float, type(None), compat.OpOverload, compat.OpOverloadPacket)):
        return repr(value)
    name = ".".join(filter(None, (module_of(value), name_of(value))))
    if not isinstance(key, Referent) or module_of(value) or isinstance(value, torch.Tensor):
        return name
    return f"{name} {_ORDER.setdefault(value, next(_NUMBERS))}"


def _stable_text(part: object) -> str:
    """Returns a field of a source as a part of its name."""
    if isinstance(part, Source):
        return stable_name(part)
    if isinstance(part, tuple):
        return f"[{', '.join(map(_stable_text, part))}]"
    return repr(part) if isinstance(part, (str, int)) else getattr(part, "__qualname__", type(part).__name__)
