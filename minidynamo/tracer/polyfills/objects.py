"""Owns the polyfills about objects: copying, iteration by index, cached properties, and counting for collections.

Polyfills of builtin functions over iterables are not here (`builtins.py`)."""

# Polyfills are traced, not called, and accept all arguments of the original, so annotations would add nothing.
# mypy: allow-untyped-defs, allow-untyped-calls

from __future__ import annotations

import collections
import collections.abc
import copy
import copyreg
import enum
import functools
import types
from typing import Any

import torch

from minidynamo.compat import share_memory
from minidynamo.tracer.handlers.tensors import is_copied_by_clone
from minidynamo.tracer.records import registry
from minidynamo.tracer.records.registry import cannot_trace, polyfill

_NOTHING = object()

# If at least this many tensors are copied together, pairs are not checked for shared memory.
_MANY_TENSORS = 16

# --- iteration ----------------------------------------------------------------------------------------------------


@polyfill(enum.EnumType.__iter__)
def enum_iter(cls):
    return iter([cls._member_map_[name] for name in cls._member_names_])


@polyfill(collections.abc.Sequence.__iter__)
def sequence_iter(self):
    position = 0
    while True:
        try:
            item = self[position]
        except IndexError:
            return
        yield item
        position += 1


# --- classes ------------------------------------------------------------------------------------------------------


def has_members(obj, names, methods):
    """Returns whether an object has the members of a protocol."""
    for name in names:
        if not hasattr(obj, name):
            return False
        if name in methods and getattr(obj, name) is None:
            return False
    return True


def is_marked_as_buffer(tensor):
    """Returns whether a tensor was created by `nn.Buffer`, which marks plain tensors."""
    return bool(getattr(tensor, "_is_buffer", False))


# --- attributes ---------------------------------------------------------------------------------------------------


@polyfill(functools.cached_property.__get__)
def cached_property_get(self, instance, owner=None):
    if instance is None:
        return self
    values = instance.__dict__
    if self.attrname in values:
        return values[self.attrname]
    value = self.func(instance)
    values[self.attrname] = value
    return value


@polyfill(types.SimpleNamespace.__init__)
def simple_namespace_init(self, mapping=(), /, **kwargs):
    """Executes types.SimpleNamespace.__init__."""
    self.__dict__.update(mapping)
    self.__dict__.update(kwargs)


# --- text ---------------------------------------------------------------------------------------------------------


def list_repr(items):
    """Returns `repr` of a list."""
    return "[" + ", ".join([repr(item) for item in items]) + "]"


def tuple_repr(items):
    """Returns `repr` of a tuple."""
    return f"({items[0]!r},)" if len(items) == 1 else "(" + ", ".join([repr(item) for item in items]) + ")"


def dict_repr(mapping):
    """Returns `repr` of a dict."""
    return "{" + ", ".join([f"{key!r}: {value!r}" for key, value in mapping.items()]) + "}"


def set_repr(items):
    """Returns `repr` of a set, a frozenset, or an instance of a subclass."""
    texts = ", ".join([repr(item) for item in items])
    if type(items) is set and texts:
        return "{" + texts + "}"
    return f"{type(items).__name__}({{{texts}}})" if texts else f"{type(items).__name__}()"


# --- counting -----------------------------------------------------------------------------------------------------


@polyfill(collections._count_elements)  # type: ignore[attr-defined]
def count_elements(mapping, iterable, /):
    get = mapping.get
    for item in iterable:
        mapping[item] = get(item, 0) + 1


# --- copying ------------------------------------------------------------------------------------------------------

_ATOMS = (
    *(type(None), type(...), type(NotImplemented), bool, int, float, complex, str, bytes, range, type),
    *(types.FunctionType, types.BuiltinFunctionType, property, enum.Enum, torch.dtype, torch.device),
)
_CONTAINERS = (list, dict, set, collections.deque, collections.OrderedDict, collections.defaultdict)


def own_attributes(mapping: collections.OrderedDict[Any, Any]) -> tuple[str, ...]:
    """Returns the names of an OrderedDict's own attributes. The tracer handles this function."""
    return tuple(vars(mapping))


def _is_atom(value):
    cls = type(value)
    return cls in _ATOMS or issubclass(cls, (type, enum.Enum))


@polyfill(copy.copy)
def copy_copy(x):
    cls = type(x)
    if _is_atom(x) or cls in (tuple, frozenset, slice):
        return x
    if cls in _CONTAINERS:
        y = x.copy()
        for name in own_attributes(x) if cls is collections.OrderedDict else ():
            setattr(y, name, getattr(x, name))
        return y
    if issubclass(cls, torch.Tensor):
        return cannot_trace(
            "`copy.copy` of a tensor", "it makes another tensor of the same memory", "Write x.view_as(x)."
        )
    if hasattr(cls, "__copy__"):
        return cls.__copy__(x)
    return _rebuilt(x, _reduced(x), None)


@polyfill(copy.deepcopy)
def copy_deepcopy(x, memo=None, _nil=()):
    if _is_atom(x):
        return x
    if memo is None:
        memo = {}
    copies = memo.setdefault(_NOTHING, [])
    for original, copied in copies:
        if original is x:
            return copied
    if len(memo) > 1 and id(x) in memo:  # put there by a `__deepcopy__`
        return memo[id(x)]
    y = _deep_copy(x, memo)
    if y is not x:
        copies.append((x, y))
    return y


def _deep_copy(x, memo):
    cls = type(x)
    if cls is list:
        y: list[object] = []
        memo[_NOTHING].append((x, y))
        for item in x:
            y.append(copy_deepcopy(item, memo))
        return y
    if cls is dict:
        return _deep_copied_dict(x, memo)
    if cls is tuple:
        items = [copy_deepcopy(item, memo) for item in x]
        for copied, item in zip(items, x):
            if copied is not item:
                return tuple(items)
        return x
    if issubclass(cls, torch.Tensor):
        return _deep_copied_tensor(x, memo)
    if issubclass(cls, torch.nn.Module):
        return cannot_trace(
            "`copy.deepcopy` of a module",
            "it copies every parameter",
            "Copy it once, outside of the compiled function.",
        )
    if cls is types.MethodType:
        return types.MethodType(x.__func__, copy_deepcopy(x.__self__, memo))
    if cls in (set, frozenset, collections.deque, collections.OrderedDict, collections.defaultdict):
        return _deep_copied_container(cls, x, memo)
    copier = getattr(x, "__deepcopy__", None)
    if copier is not None:
        return copier(memo)
    return _rebuilt(x, _reduced(x), memo)


def _deep_copied_tensor(x, memo):
    why, fix = "the copy has its own memory and gradient", "x.detach().clone()"
    if not is_copied_by_clone(x) or not x.is_leaf or x.grad is not None:
        return cannot_trace("`copy.deepcopy` of this tensor", why, fix)
    tensors = [original for original, _ in memo[_NOTHING] if isinstance(original, torch.Tensor)]
    if len(tensors) >= _MANY_TENSORS:
        return cannot_trace("`copy.deepcopy` of so many tensors", why, fix)
    for original in tensors:
        if share_memory(original, x):
            return cannot_trace("`copy.deepcopy` of tensors in the same memory", why, fix)
    return x.detach().clone().requires_grad_() if x.requires_grad else x.clone()


def _deep_copied_dict(x, memo):
    y: dict[object, object] = {}
    memo[_NOTHING].append((x, y))
    for key, value in x.items():
        y[copy_deepcopy(key, memo)] = copy_deepcopy(value, memo)
    return y


def _deep_copied_container(cls, x, memo):
    if cls is set or cls is frozenset:
        return cls([copy_deepcopy(item, memo) for item in x])
    y = x.copy()
    y.clear()
    memo[_NOTHING].append((x, y))
    for name in own_attributes(x) if cls is collections.OrderedDict else ():
        setattr(y, name, copy_deepcopy(getattr(x, name), memo))
    if cls is collections.deque:
        y.extend([copy_deepcopy(item, memo) for item in x])
    else:
        for key, value in x.items():
            y[copy_deepcopy(key, memo)] = copy_deepcopy(value, memo)
    return y


# Methods that `copy` looks up on an object, in this order.
_COPY_METHODS = ("__reduce_ex__", "__reduce__", "__getstate__")


def slot_names(cls: type) -> tuple[str, ...] | None:
    """Returns the slots that belong to the state of an object; None if the class defines how it is copied."""
    if issubclass(cls, collections.OrderedDict) and cls.__reduce__ is collections.OrderedDict.__reduce__:
        return ()
    inherited = ("__reduce_ex__", "__reduce__") if has_own_getstate(cls) else _COPY_METHODS
    if (
        any(getattr(cls, name) is not getattr(object, name) for name in inherited)
        or cls in copyreg.dispatch_table
        or hasattr(cls, "__getnewargs_ex__")
    ):
        return None
    if not cls.__flags__ & (1 << 9):  # made in C
        return None
    if has_own_getstate(cls):
        return ()
    slots = tuple(copyreg._slotnames(cls))  # type: ignore[attr-defined]
    return None if slots and hasattr(cls, "__setstate__") else slots


def has_own_getstate(cls: type) -> bool:
    """Returns whether the class defines `__getstate__` in Python."""
    return isinstance(cls.__getstate__, types.FunctionType)


def has_own_getattribute(cls: type) -> bool:
    """Returns whether the class defines `__getattribute__` in Python."""
    return isinstance(cls.__getattribute__, types.FunctionType)


def _has_dict(cls: type) -> bool:
    return cls.__dictoffset__ != 0


for _question in (slot_names, has_own_getstate, has_own_getattribute, _has_dict):
    registry.fold(_question)


def _reduced(x):
    """Returns the parts of a copy of `x`: the arguments of `__new__`, and the state."""
    cls = type(x)
    slots = slot_names(cls)
    if slots is None:
        return cannot_trace(f"a copy of a {cls.__name__}", "its class decides how it is copied")
    if has_own_getattribute(cls):
        for name in _COPY_METHODS:
            method = getattr(x, name)
            if type(method) is not types.BuiltinMethodType or method.__self__ is not x or method.__name__ != name:
                return cannot_trace(f"a copy of a {cls.__name__}", f"it defines `{name}`")
    args = x.__getnewargs__() if hasattr(cls, "__getnewargs__") else ()
    if has_own_getstate(cls):
        return args, x.__getstate__()
    state = object.__getattribute__(x, "__dict__") if _has_dict(cls) else {}
    if hasattr(cls, "__setstate__"):
        return args, state or None
    state = dict(state)
    for name in slots:
        if hasattr(x, name):
            state[name] = getattr(x, name)
    return args, state or None


def _set_state(y, cls, state):
    if hasattr(cls, "__setstate__"):
        return y.__setstate__(state)
    # A class that computes missing attributes is also asked for `__setstate__`.
    if (hasattr(cls, "__getattr__") or has_own_getattribute(cls)) and hasattr(y, "__setstate__"):
        cannot_trace(f"a copy of a {cls.__name__}", "it defines `__setstate__`")
    if has_own_getattribute(cls) and y.__dict__ is not object.__getattribute__(y, "__dict__"):
        cannot_trace(f"a copy of a {cls.__name__}", "it defines `__dict__`")
    if type(state) is not dict:
        cannot_trace(f"a copy of a {cls.__name__}", "its state is no dict")
    for name, value in state.items():
        object.__setattr__(y, name, value)
    return None


def _rebuilt(x, reduced, memo):
    cls = type(x)
    args, state = reduced
    if memo is not None and args:
        args = [copy_deepcopy(arg, memo) for arg in args]
    y: Any = cls() if issubclass(cls, collections.OrderedDict) else cls.__new__(cls, *args)
    if memo is not None:
        memo[_NOTHING].append((x, y))
        state = copy_deepcopy(state, memo)
    if state is not None:
        _set_state(y, cls, state)
    if issubclass(cls, list):
        add = y.append
        for item in x:
            add(item if memo is None else copy_deepcopy(item, memo))
    elif issubclass(cls, dict):
        for key, value in x.items():
            y[key if memo is None else copy_deepcopy(key, memo)] = value if memo is None else copy_deepcopy(value, memo)
    elif issubclass(cls, (set, frozenset, collections.deque)):
        cannot_trace(f"a copy of a {cls.__name__}", "it is made by calling its class")
    return y
