"""Owns the methods of dicts, OrderedDicts, defaultdicts, mapping proxies and their views, except polyfills.

Comparison, and copies that call the methods of a mapping, are in `tracer/polyfills/containers.py`.
"""

from __future__ import annotations

import collections
import operator
import types
from collections.abc import Callable, Mapping
from typing import Any, TypeGuard

from minidynamo.guards.guard import GuardKind
from minidynamo.guards.source import Attr, DictKeys, Item
from minidynamo.tracer.attributes import class_has, guard_class_attribute, lookup_on_class
from minidynamo.tracer.frames.exceptions import exception_with
from minidynamo.tracer.frames.interpreter import Tracer
from minidynamo.tracer.handlers.lists import length_of, storage_of
from minidynamo.tracer.handlers.values import expect_key, none, not_implemented
from minidynamo.tracer.lazy.lazy_dicts import LazyDict
from minidynamo.tracer.polyfills.containers import (
    dict_equal,
    dict_update,
    ordered_dict_equal,
    sequence_contains,
    set_difference_update,
    set_isdisjoint,
    set_symmetric_difference_update,
    set_update,
    view_intersection,
)
from minidynamo.tracer.polyfills.objects import own_attributes
from minidynamo.tracer.records import registry
from minidynamo.tracer.records.constants import keyword_key
from minidynamo.tracer.records.side_effects import DELETED
from minidynamo.variables.base import ConstantVariable, VariableTracker
from minidynamo.variables.containers import DictKey, DictVariable, DictViewVariable, SetVariable, TupleVariable
from minidynamo.variables.iterators import DictIterator
from minidynamo.variables.objects import NamespaceVariable

OrderedDict = collections.OrderedDict
defaultdict = collections.defaultdict
mappingproxy = types.MappingProxyType
MAPPINGS = (dict, OrderedDict, defaultdict, mappingproxy)
VIEWS = {kind: type(getattr({}, kind)()) for kind in ("keys", "values", "items")}
ORDERED_VIEWS = {kind: type(getattr(OrderedDict(), kind)()) for kind in VIEWS}
MISSING = object()


# --- reading ------------------------------------------------------------------------------------------------------


@registry.methods(MAPPINGS, "__len__")
def _len(tx: Tracer, self: DictVariable) -> VariableTracker:
    return length_of(tx, self.items)


@registry.methods(MAPPINGS, "__contains__")
def _contains(tx: Tracer, self: DictVariable, key: VariableTracker) -> VariableTracker:
    if _is_unread_external_key(key) and isinstance(self.items, LazyDict) and self.cls in (dict, OrderedDict):
        known = self.items.has_value_of(key.source, key.unguarded_value)
        if known is not None:
            return ConstantVariable(known)
    return ConstantVariable(expect_key(tx, key) in self.items)


def _is_unread_external_key(key: VariableTracker) -> TypeGuard[ConstantVariable]:
    """Returns whether the variable is an unread key of an external dict: the next call may have a different key."""
    is_key = isinstance(key.source, Item) and isinstance(key.source.of, DictKeys)
    return is_key and isinstance(key, ConstantVariable) and not key.is_read


@registry.methods(MAPPINGS, "__getitem__")
def _getitem(tx: Tracer, self: DictVariable, key: VariableTracker) -> VariableTracker:
    value = _find(self, expect_key(tx, key))
    return _missing(tx, self, key) if value is None else value


def _find(self: DictVariable, key: DictKey) -> VariableTracker | None:
    return self.items.lazy_at(key) if key in self.items else None


@registry.method(defaultdict, "__missing__")
@registry.subclass_method(defaultdict, "__missing__")
def _missing(tx: Tracer, self: VariableTracker, key: VariableTracker) -> VariableTracker:
    underlying = storage_of(self)
    assert isinstance(underlying, DictVariable)
    factory = underlying.default_factory
    if factory is None or (isinstance(factory, ConstantVariable) and factory.value is None):
        tx.raises(exception_with(KeyError, key))
    value = tx.call(factory, lazy=True)
    if underlying is self:
        _setitem(tx, underlying, key, value)
    else:
        tx.call_method(self, "__setitem__", [key, value])
    return value


@registry.methods(MAPPINGS, "get")
@registry.accepts_lazy("default")
def _get(
    tx: Tracer, self: DictVariable, key: VariableTracker, default: VariableTracker | None = None, /
) -> VariableTracker:
    return _find(self, expect_key(tx, key)) or default or none()


@registry.method(dict, "copy")
@registry.subclass_method(dict, "copy")
@registry.method(mappingproxy, "copy")
def _copy(tx: Tracer, self: VariableTracker) -> VariableTracker:
    return merge(tx, DictVariable({}), self)


@registry.method(OrderedDict, "copy")
@registry.method(defaultdict, "copy", "__copy__")
def _copy_of_class(tx: Tracer, self: DictVariable) -> VariableTracker:
    return DictVariable(self.items.lazy(), self.cls, self.default_factory)


@registry.methods(MAPPINGS, "keys")
def _keys(tx: Tracer, self: DictVariable) -> VariableTracker:
    return DictViewVariable(self, "keys")


@registry.methods(MAPPINGS, "values")
def _values(tx: Tracer, self: DictVariable) -> VariableTracker:
    return DictViewVariable(self, "values")


@registry.methods(MAPPINGS, "items")
def _items(tx: Tracer, self: DictVariable) -> VariableTracker:
    return DictViewVariable(self, "items")


# --- changing -----------------------------------------------------------------------------------------------------


@registry.methods(MAPPINGS, "__setitem__")
@registry.accepts_lazy("value")
def _setitem(tx: Tracer, self: DictVariable, key: VariableTracker, value: VariableTracker) -> VariableTracker:
    self.items[expect_key(tx, key)] = value
    tx.side_effects.contents_changed(self)
    return none()


@registry.methods((dict, OrderedDict), "setdefault")
@registry.accepts_lazy("default")
def _setdefault(
    tx: Tracer, self: DictVariable, key: VariableTracker, default: VariableTracker | None = None, /
) -> VariableTracker:
    found, value = expect_key(tx, key), none() if default is None else default
    if found in self.items:
        return self.items.lazy_at(found)
    self.items[found] = value
    tx.side_effects.contents_changed(self)
    return value


@registry.methods(MAPPINGS, "__delitem__")
def _delitem(tx: Tracer, self: DictVariable, key: VariableTracker) -> VariableTracker:
    _take(tx, self, expect_key(tx, key))
    return none()


@registry.methods(MAPPINGS, "pop")
@registry.accepts_lazy("default")
def _pop(
    tx: Tracer, self: DictVariable, key: VariableTracker, default: VariableTracker | None = None
) -> VariableTracker:
    return _take(tx, self, expect_key(tx, key), default)


@registry.method(dict, "popitem")
def _popitem(tx: Tracer, self: DictVariable) -> VariableTracker:
    return _pop_end(tx, self, last=True)


@registry.method(OrderedDict, "popitem")
def _ordered_popitem(tx: Tracer, self: DictVariable, last: VariableTracker | None = None) -> VariableTracker:
    return _pop_end(tx, self, last=last is None or tx.truth(last))


def _pop_end(tx: Tracer, self: DictVariable, *, last: bool) -> VariableTracker:
    if not self.items:
        message = "dictionary is empty" if self.cls is OrderedDict else "popitem(): dictionary is empty"
        tx.raises(KeyError(message), exact=True)
    keys = [*self.items]
    key = keys[-1 if last else 0]
    return TupleVariable([key.variable, _take(tx, self, key)])


def _take(tx: Tracer, self: DictVariable, key: DictKey, default: VariableTracker | None = None) -> VariableTracker:
    if key in self.items:
        value = self.items.lazy_at(key)
        del self.items[key]
    elif default is None:
        tx.raises(exception_with(KeyError, key.variable))
    else:
        return default
    tx.side_effects.contents_changed(self)
    return value


@registry.methods(MAPPINGS, "clear")
def _clear(tx: Tracer, self: DictVariable) -> VariableTracker:
    self.items.clear()
    tx.side_effects.contents_changed(self)
    return none()


@registry.method(OrderedDict, "move_to_end")
def _move_to_end(
    tx: Tracer, self: DictVariable, key: VariableTracker, last: VariableTracker | None = None
) -> VariableTracker:
    found = expect_key(tx, key)
    original = next((known for known in self.items if known == found), found)
    value = _take(tx, self, found)
    rest = self.items.lazy()
    at_end = last is None or tx.truth(last)
    self.items.clear()
    self.items.update({**rest, original: value} if at_end else {original: value, **rest})
    return none()


# --- comparing and merging ----------------------------------------------------------------------------------------


def _equality(expected: bool) -> Callable[..., VariableTracker]:
    def compared(tx: Tracer, self: DictVariable, other: VariableTracker) -> VariableTracker:
        other = storage_of(other)
        if not isinstance(other, DictVariable):
            return not_implemented()
        ordered = issubclass(self.cls, OrderedDict) and issubclass(other.cls, OrderedDict)
        polyfill = ordered_dict_equal if ordered else dict_equal
        return ConstantVariable(tx.truth(tx.call(polyfill, [self, other])) is expected)

    return compared


registry.methods(MAPPINGS, "__eq__")(_equality(True))
registry.methods(MAPPINGS, "__ne__")(_equality(False))


def is_dict(variable: VariableTracker) -> bool:
    """Returns whether the variable is a dict, of any class, whose contents are tracked."""
    return isinstance(storage_of(variable), DictVariable) and issubclass(variable.python_type, dict)


@registry.method(dict, "__or__")
@registry.subclass_method(dict, "__or__")
def _or(tx: Tracer, self: VariableTracker, other: VariableTracker) -> VariableTracker:
    if not is_dict(self) or not is_dict(other):
        return not_implemented()
    return merge(tx, merge(tx, DictVariable({}), self), other)


@registry.method(dict, "__ror__")
@registry.subclass_method(dict, "__ror__")
def _ror(tx: Tracer, self: VariableTracker, other: VariableTracker) -> VariableTracker:
    return _or(tx, other, self)


# --- construction -------------------------------------------------------------------------------------------------


# How CPython converts a container whose class overrides methods. Only conversions of the column "raw" call no method.
#
# | into            | by                                      | raw                           | else                 |
# |-----------------|-----------------------------------------|-------------------------------|----------------------|
# | a dict          | dict(), copy, update, |, |=, {**d},     | a dict class whose `__iter__` | `keys()`, `d[key]`,  |
# |                 | f(**d), defaultdict()                   | is that of `dict`             | or pairs             |
# | an OrderedDict  | OrderedDict(), update, |, |=            | dict                          | the same             |
# | a set           | set(), frozenset(), update, |, |=       | any set class                 | `iter(s)`            |
# | a list, a tuple | list(), tuple(), extend, +=, *s, sorted | list, tuple                   | `iter(s)`            |
# | a list, a tuple | +, *, slices                            | any list or tuple class       |                      |
#
# A subclass of OrderedDict stores entries by its own `__setitem__`; all other dicts store entries raw.


def _raw_entries(tx: Tracer, mapping: VariableTracker) -> Mapping[DictKey, VariableTracker] | None:
    """Returns the entries of a mapping that C copies into a dict without calling methods; None if C calls methods."""
    storage, cls = storage_of(mapping), mapping.python_type
    if not isinstance(storage, DictVariable):
        return None
    if storage is not mapping:
        found, owner = lookup_on_class(cls, "__iter__")
        assert owner is not None
        guard_class_attribute(tx, cls, owner, "__iter__", found)
        if found is not vars(dict)["__iter__"]:
            return None
    return storage.items.lazy()


def merge(tx: Tracer, target: VariableTracker, other: VariableTracker) -> VariableTracker:
    """Adds the contents of a mapping or of pairs to a dict, as `dict.update` does, and returns the dict."""
    underlying = storage_of(target)
    assert isinstance(underlying, DictVariable)
    entries = _raw_entries(tx, other)
    if entries is None:
        tx.call(dict_update, [underlying, other])
    else:
        underlying.items.update(entries)
        tx.side_effects.contents_changed(underlying)
    return target


def update_ordered(tx: Tracer, target: VariableTracker, other: VariableTracker) -> VariableTracker:
    """Adds the contents of a mapping or of pairs to an OrderedDict, as `OrderedDict.update` does, and returns it."""
    if isinstance(target, DictVariable) and isinstance(other, DictVariable):
        return merge(tx, target, other)  # no method of either is overridden
    tx.call(dict_update, [target, other])
    return target


def fill(
    tx: Tracer, target: DictVariable, args: tuple[VariableTracker, ...], kwargs: dict[str, VariableTracker]
) -> VariableTracker:
    """Adds the contents of a mapping or of pairs, and keywords, to a new dict."""
    for arg in args:
        (update_ordered if target.cls is OrderedDict else merge)(tx, target, arg)
    target.items.update({keyword_key(name): value for name, value in kwargs.items()})
    return target


@registry.method(dict, "update")
@registry.method(OrderedDict, "update")
@registry.accepts_lazy("kwargs")
def _update(
    tx: Tracer, self: DictVariable, iterable: VariableTracker | None = None, /, **kwargs: VariableTracker
) -> VariableTracker:
    fill(tx, self, () if iterable is None else (iterable,), kwargs)
    tx.side_effects.contents_changed(self)
    return none()


@registry.method(dict, "__ior__")
@registry.method(OrderedDict, "__ior__")
def _ior(tx: Tracer, self: DictVariable, other: VariableTracker) -> VariableTracker:
    _update(tx, self, other)
    return self


@registry.function(dict)
@registry.accepts_lazy("kwargs")
def _dict(tx: Tracer, iterable: VariableTracker | None = None, /, **kwargs: VariableTracker) -> VariableTracker:
    return fill(tx, DictVariable({}), () if iterable is None else (iterable,), kwargs)


@registry.function(OrderedDict)
@registry.accepts_lazy("kwargs")
def _ordered_dict(tx: Tracer, iterable: VariableTracker | None = None, /, **kwargs: VariableTracker) -> VariableTracker:
    return fill(tx, DictVariable({}, OrderedDict), () if iterable is None else (iterable,), kwargs)


@registry.function(own_attributes)
def _own_attributes(tx: Tracer, mapping: DictVariable) -> VariableTracker:
    names = dict.fromkeys(mapping.attributes or ())
    if mapping.source is not None:
        tx.guard(Attr(mapping.source, "__dict__"), GuardKind.DICT_KEYS, tuple(names))
    for name, value in tx.side_effects.written_attributes(mapping).items():
        if value is DELETED:
            names.pop(name, None)
        else:
            names[name] = None
    return TupleVariable([ConstantVariable(name) for name in names])


def checked_factory(tx: Tracer, arg: VariableTracker | None) -> VariableTracker:
    """Returns the `default_factory` for the first argument of a defaultdict."""
    factory = none() if arg is None else arg
    if factory.python_type is not type(None) and not class_has(factory.python_type, "__call__"):
        tx.raises(TypeError("first argument must be callable or None"), exact=True)
    return factory


@registry.function(defaultdict)
@registry.accepts_lazy("kwargs")
def _defaultdict(
    tx: Tracer,
    default_factory: VariableTracker | None = None,
    iterable: VariableTracker | None = None,
    /,
    **kwargs: VariableTracker,
) -> VariableTracker:
    variable = DictVariable({}, defaultdict, checked_factory(tx, default_factory))
    return fill(tx, variable, () if iterable is None else (iterable,), kwargs)


registry.method(dict, "__init__")(_update)


@registry.function(mappingproxy)
def _mappingproxy(tx: Tracer, mapping: VariableTracker) -> VariableTracker:
    if type(mapping) is not DictVariable:
        why = "Only a plain dict is followed."
        tx.break_graph("MD241", "making a read-only view of a mapping", why=why, fix="Pass the mapping itself.")
    return NamespaceVariable(mapping.items, mappingproxy, owner=mapping)


@registry.attributes(DictVariable)
def _attribute(tx: Tracer, obj: DictVariable, name: str) -> VariableTracker | None:
    if name == "default_factory" and obj.cls is defaultdict:
        return obj.default_factory or none()
    return None


# --- views --------------------------------------------------------------------------------------------------------


def view_items(view: DictViewVariable) -> list[VariableTracker]:
    """Returns the items of a view, in order."""
    pairs = view.mapping.items.items()
    if view.kind == "keys":
        return [key.variable for key, _ in pairs]
    if view.kind == "values":
        return [value for _, value in pairs]
    return [TupleVariable([key.variable, value]) for key, value in pairs]


@registry.methods(MAPPINGS, "__iter__")
def _iter(tx: Tracer, self: DictVariable) -> VariableTracker:
    return DictIterator(self, "keys", tuple(self.items))


@registry.methods(MAPPINGS, "__reversed__")
def _reversed(tx: Tracer, self: DictVariable) -> VariableTracker:
    return DictIterator(self, "keys", tuple([*self.items][::-1]), is_reversed=True)


def view_method(name: str, kinds: tuple[str, ...] = tuple(VIEWS)) -> Callable[[registry.F], registry.F]:
    """Registers a handler for the views of dicts and of OrderedDicts."""

    def register(handler: registry.F) -> registry.F:
        for table in (VIEWS, ORDERED_VIEWS):
            for kind in kinds:
                if name in vars(table[kind]):
                    registry.method(table[kind], name)(handler)
        return handler

    return register


@view_method("__len__")
def _view_len(tx: Tracer, self: DictViewVariable) -> VariableTracker:
    return ConstantVariable(len(self.mapping.items))


@view_method("__iter__")
def _view_iter(tx: Tracer, self: DictViewVariable) -> VariableTracker:
    return DictIterator(self.mapping, self.kind, tuple(self.mapping.items))


@view_method("__reversed__")
def _view_reversed(tx: Tracer, self: DictViewVariable) -> VariableTracker:
    return DictIterator(self.mapping, self.kind, tuple([*self.mapping.items][::-1]), is_reversed=True)


@view_method("__contains__")
def _view_contains(tx: Tracer, self: DictViewVariable, value: VariableTracker) -> VariableTracker:
    if self.kind == "keys":
        return _contains(tx, self.mapping, value)
    return tx.call(sequence_contains, [TupleVariable(view_items(self)), value])


def _as_set(tx: Tracer, view: DictViewVariable) -> SetVariable:
    return SetVariable({expect_key(tx, item): None for item in view_items(view)})


def _set_operator(change: Callable[..., Any], *, reflected: bool = False) -> Callable[..., VariableTracker]:
    """Returns an operator that copies its left operand to a new set and changes the set."""

    def operate(tx: Tracer, self: DictViewVariable, other: VariableTracker) -> VariableTracker:
        left, right = (other, self) if reflected else (self, other)
        if change is set_symmetric_difference_update and self.kind == "items" and isinstance(other, DictViewVariable):
            tx.break_graph("MD231", "`^` of items", why="Two equal sets may iterate in different orders.")
        if isinstance(left, DictViewVariable) and left.kind == "keys" and left.mapping.cls is dict:
            left = left.mapping
        result = tx.call(set, [left])
        tx.call(change, [result, right])
        return result

    return operate


def _intersection(tx: Tracer, self: DictViewVariable, other: VariableTracker) -> VariableTracker:
    return tx.call(view_intersection, [self, other])


def _is_disjoint(tx: Tracer, self: DictViewVariable, other: VariableTracker) -> VariableTracker:
    return tx.call(set_isdisjoint, [_as_set(tx, self), other])


_WITH_SETS = ("keys", "items")
for _name, _change in {
    "or": set_update,
    "sub": set_difference_update,
    "xor": set_symmetric_difference_update,
}.items():
    view_method(f"__{_name}__", _WITH_SETS)(_set_operator(_change))
    view_method(f"__r{_name}__", _WITH_SETS)(_set_operator(_change, reflected=True))
view_method("__and__", _WITH_SETS)(_intersection)
view_method("__rand__", _WITH_SETS)(_intersection)
view_method("isdisjoint", _WITH_SETS)(_is_disjoint)


def _comparison(compare: Callable[[Any, Any], Any]) -> Callable[..., VariableTracker]:
    def compared(tx: Tracer, self: DictViewVariable, other: VariableTracker) -> VariableTracker:
        other = storage_of(other)
        if isinstance(other, DictViewVariable) and other.kind != "values":
            other = _as_set(tx, other)
        if not isinstance(other, SetVariable):
            return not_implemented()
        return tx.call(compare, [_as_set(tx, self), other])

    return compared


for _compare in (operator.eq, operator.ne, operator.lt, operator.le, operator.gt, operator.ge):
    view_method(f"__{_compare.__name__}__", ("keys", "items"))(_comparison(_compare))
