"""Owns the trackers of external containers: tuples, lists, deques, dicts, sets and their subclasses, item by item or as
a single input of the graph.

Reading, guarding and changing the contents is not here (`tracer/lazy/`).
"""

from __future__ import annotations

import collections
import functools
import gc
import types
from collections.abc import Callable, Sequence, Set, Sized
from typing import Any

import torch

from minidynamo.compat import GLOBAL_HOOKS, VERSION_INFO, OpOverload, OpOverloadPacket, is_made_at_run_time
from minidynamo.core.names import name_of
from minidynamo.guards.guard import GuardKind
from minidynamo.guards.source import (
    HOOK_TABLES,
    Attr,
    Computed,
    Constant,
    DictKeys,
    DictValues,
    InstanceAttr,
    Item,
    Referent,
    Source,
    SubclassItem,
    source_key,
)
from minidynamo.tracer.attributes import instance_dict, is_plain_namespace
from minidynamo.tracer.graph.output_graph import OutputGraph
from minidynamo.tracer.lazy.lazy_dicts import LazyDict, TableReader
from minidynamo.tracer.lazy.lazy_lists import LazyList, ListReader
from minidynamo.tracer.records.constants import is_constant_value, key_of, overrides_method
from minidynamo.tracer.records.registry import subclass_wrapper, wrapper
from minidynamo.tracer.wrap import constant, guard_alias, guard_names, lazy, wrap
from minidynamo.tracer.wrappers.callables import has_receiver
from minidynamo.tracer.wrappers.objects import instance_of_subclass, is_plain_tensor, opaque
from minidynamo.variables.base import ConstantVariable, VariableTracker
from minidynamo.variables.containers import (
    DictKey,
    DictVariable,
    ListVariable,
    SetVariable,
    TupleVariable,
    is_plain_namedtuple,
    storage_class,
)
from minidynamo.variables.objects import ObjectVariable

LARGEST_CONTAINER = 20_000  # a larger container is opaque


def size_of(source: Source, owner: type[Sized], exact: bool) -> Computed:
    """Returns the source of a container's length, which calls no method of a subclass."""
    function = len if exact else owner.__len__
    return Computed("{0}({1})", (Constant(function, "len"), source))


def item_source(source: Source, owner: type, exact: bool) -> Callable[[Any], Source]:
    """Returns a function from a position or key to the source of the item, which calls no method of a subclass."""

    def source_at(key: Any) -> Source:
        key = source_key(key)
        return Item(source, key) if exact else SubclassItem(source, key, owner)

    return source_at


def is_key(key: object) -> bool:
    """Returns whether the value can be tracked as a key of an external dict or set."""
    if is_constant_value(key):
        return not overrides_method(type(key), "__eq__", "__hash__")
    if type(key) is tuple:
        return all(map(is_key, key))
    cls = type(key)
    if cls is types.BuiltinFunctionType:
        return not has_receiver(key)
    if cls in (OpOverload, OpOverloadPacket):  # equal only to themselves, whatever their hash
        return True
    plain = cls.__hash__ is object.__hash__ and cls.__eq__ is object.__eq__
    return plain and not issubclass(cls, torch.Tensor)


def dict_key(graph: OutputGraph, key: object, source: Source | None) -> DictKey:
    """Returns the key of an external dict or set that can be read at `source`; a guard on all keys covers it."""
    if is_constant_value(key):
        return key_of(ConstantVariable(key))
    if type(key) is tuple:
        part_sources = [None if source is None else Item(source, position) for position in range(len(key))]
        items = [dict_key(graph, part, part_source).variable for part, part_source in zip(key, part_sources)]
        return key_of(TupleVariable(items, source=source))
    if type(key) is types.BuiltinFunctionType and source is not None:
        graph.guard(source, GuardKind.IDENTITY, key)  # a different object may be equal
    known = source_key(key)
    named = known if isinstance(known, Referent) else Constant(key, name_of(key))
    variable = wrap(graph, key, named)
    graph.identity_keys[variable] = None
    return key_of(variable)


def _elements(
    graph: OutputGraph,
    value: Any,
    source: Source,
    owner: type[list[Any] | collections.deque[Any]],
    wrap_all: Callable[[], list[VariableTracker]] | None = None,
) -> LazyList:
    """Returns the elements of a list or deque, to be tracked when the program reads them."""
    exact = type(value) is owner
    source_at, size = item_source(source, owner, exact), size_of(source, owner, exact)
    maxlen = object.__getattribute__(value, "maxlen") if owner is collections.deque else None
    reader = ListReader(value, owner, size, source_at, functools.partial(lazy, graph), wrap_all)
    return LazyList(graph, source, reader, maxlen)


@wrapper(list)
def _list(graph: OutputGraph, value: list[Any], source: Source) -> VariableTracker:
    if len(value) > LARGEST_CONTAINER:
        return opaque(graph, value, source)
    graph.guard(source, GuardKind.TYPE, type(value))
    variable = ListVariable([], source=source)
    graph.values.record_object(value, variable)
    at_once = graph.inputs.is_argument(source) and _is_list_of_tensors(value, graph.inputs.is_donated(source))
    wrap_all = functools.partial(_list_input, graph, value, variable, source) if at_once else None
    if at_once and not graph.inputs.is_donated(source):
        graph.inputs.may_become_list_input(variable)
    variable.items = _elements(graph, value, source, list, wrap_all)
    return variable


def _is_list_of_tensors(value: list[Any], is_donated: bool) -> bool:
    """Returns whether a list is passed to the graph as a whole.

    Numbers and texts in any other list are guarded when they are read."""
    tensors = sum(type(item) in (torch.Tensor, torch.nn.Parameter) and is_plain_tensor(item) for item in value)
    constants = sum(is_constant_value(item) if is_donated else item is None for item in value)
    return tensors > 0 and tensors + constants == len(value)


def _list_input(graph: OutputGraph, value: list[Any], variable: ListVariable, source: Source) -> list[VariableTracker]:
    """Adds a placeholder for the whole list; elements other than tensors become guarded constants."""
    constants = {k: constant(graph, v, Item(source, k)) for k, v in enumerate(value) if is_constant_value(v)}
    items = graph.inputs.list_of_tensors(value, variable, constants)
    for position, (item, tracker) in enumerate(zip(value, items)):
        if position not in constants:
            item_at = Item(source, position)
            graph.guard(item_at, GuardKind.TYPE, type(item))
            guard_alias(graph, item, tracker, item_at)
    variable.original = tuple(items)
    return items


@subclass_wrapper(list)
def _list_subclass(graph: OutputGraph, value: list[Any], source: Source) -> VariableTracker:
    variable = instance_of_subclass(graph, value, source)
    variable.storage = ListVariable(_elements(graph, value, source, list), source=source)
    return variable


@wrapper(collections.deque)
def _deque(graph: OutputGraph, value: collections.deque[Any], source: Source) -> VariableTracker:
    graph.guard(source, GuardKind.TYPE, type(value))
    graph.guard(Attr(source, "maxlen"), GuardKind.EQUALS, value.maxlen)
    items = _elements(graph, value, source, collections.deque)
    variable = ListVariable(items, collections.deque, maxlen=value.maxlen, source=source)
    graph.values.record_object(value, variable)
    return variable


@subclass_wrapper(collections.deque)
def _deque_subclass(graph: OutputGraph, value: collections.deque[Any], source: Source) -> VariableTracker:
    deque = collections.deque
    maxlen = vars(deque)["maxlen"]
    if getattr(type(value), "maxlen", None) is not maxlen:
        return opaque(graph, value, source)
    longest = object.__getattribute__(value, "maxlen")
    variable = instance_of_subclass(graph, value, source)
    graph.guard(Attr(source, "maxlen"), GuardKind.EQUALS, longest)
    items = _elements(graph, value, source, deque)
    variable.storage = ListVariable(items, deque, maxlen=longest, source=source)
    return variable


@wrapper(tuple, torch.Size)
@subclass_wrapper(tuple)
def _tuple(graph: OutputGraph, value: tuple[Any, ...], source: Source) -> VariableTracker:
    graph.guard(source, GuardKind.TYPE, type(value))
    if type(value) not in (tuple, torch.Size) and not is_plain_namedtuple(type(value)):
        return _tuple_subclass(graph, value, source)
    guard_names(graph, type(value))  # a namedtuple is no longer plain if its class gets a special method
    variable = TupleVariable(_items(graph, value, source), type(value), source=source)
    graph.values.record_object(value, variable)
    return variable


def _items(graph: OutputGraph, value: tuple[Any, ...], source: Source) -> LazyList:
    """Returns the items of a tuple, to be tracked when the program reads them."""
    exact = _is_read_as_tuple(type(value))
    source_at = item_source(source, tuple, exact)
    reader = ListReader(value, tuple, size_of(source, tuple, exact), source_at, functools.partial(lazy, graph))
    return LazyList(graph, source, reader)


def _is_read_as_tuple(cls: type) -> bool:
    """Returns whether reading the items runs no code of a subclass."""
    return all(getattr(cls, name) is getattr(tuple, name) for name in ("__getitem__", "__len__", "__getattribute__"))


def _tuple_subclass(graph: OutputGraph, value: tuple[Any, ...], source: Source) -> VariableTracker:
    if type(value).__module__ == "torch.return_types" or value is VERSION_INFO:
        return _structure(graph, value, source)
    if not is_made_at_run_time(type(value)):  # other structures made in C
        return opaque(graph, value, source)
    variable = instance_of_subclass(graph, value, source)
    variable.storage = TupleVariable(_items(graph, value, source), source=source)
    return variable


def _structure(graph: OutputGraph, value: tuple[Any, ...], source: Source) -> VariableTracker:
    """Wraps the result of `torch.max(x, 1)` and similar functions: a tuple made in C whose items have names."""
    variable = TupleVariable(_items(graph, value, source), type(value), source=source)
    graph.values.record_object(value, variable)
    return variable


_TENSOR_KEYS = {torch.Tensor, torch.nn.Parameter}


@wrapper(dict, collections.OrderedDict, collections.defaultdict, types.MappingProxyType)
@subclass_wrapper(dict)
def _dict(graph: OutputGraph, value: Any, source: Source) -> VariableTracker:
    cls = type(value)
    if cls is dict and "__builtins__" in value:  # globals: each item is already tracked as a variable
        return opaque(graph, value, source)
    if cls is types.MappingProxyType and type(gc.get_referents(value)[0]) not in (dict, collections.OrderedDict):
        return opaque(graph, value, source)  # of a mapping whose class may run code of its own
    owner = collections.OrderedDict if issubclass(cls, collections.OrderedDict) else dict
    raw = [*dict.__iter__(value)] if issubclass(cls, dict) else [*value]
    plain = cls in (dict, collections.defaultdict, collections.OrderedDict) and 0 < len(raw) <= LARGEST_CONTAINER
    kinds = {type(key) for key in raw}
    by_position = plain and kinds <= _TENSOR_KEYS | {str} and bool(kinds & _TENSOR_KEYS)
    has_hook_ids = plain and kinds == {int} and (_is_hook_table(graph, source) or any(value is t for t in GLOBAL_HOOKS))
    # nn.Module makes its many tables of hooks itself; for an empty table a guard on its length is enough.
    if raw or not _is_hook_table(graph, source):
        graph.guard(source, GuardKind.TYPE, cls)
    if len(raw) > LARGEST_CONTAINER or not (by_position or all(map(is_key, raw))):
        return opaque(graph, value, source)
    if owner is collections.OrderedDict:  # late, because iteration hashes each key
        raw = [*owner.__iter__(value)]
    guard_names(graph, cls)
    builtin = cls is storage_class(cls)
    holder = graph.values.owner_of(value)
    if holder is not None:
        return _namespace(graph, value, source, holder)
    if not builtin and instance_dict(value) is value:
        graph.guard(Attr(source, "__dict__"), GuardKind.SAME_OBJECT, source)
    elif not builtin and cls.__dictoffset__:
        graph.guard(source, GuardKind.DISTINCT_OBJECTS, (Attr(source, "__dict__"),))
    storage = DictVariable({}, storage_class(cls), source=source)
    storage.attributes = instance_dict(value) if builtin else None
    variable: VariableTracker = storage if builtin else ObjectVariable(value, cls, storage, source=source)
    graph.values.record_object(value, variable)
    if has_hook_ids:
        storage.items = _hook_entries(graph, value, source, raw)
    else:
        storage.items = _entries(
            graph, value, source, raw, owner if issubclass(cls, dict) else None, builtin, by_position
        )
    if issubclass(cls, collections.defaultdict):
        storage.default_factory = wrap(graph, value.default_factory, Attr(source, "default_factory"))
    return variable


def _namespace(graph: OutputGraph, value: Any, source: Source, owner: VariableTracker) -> VariableTracker:
    """Returns the tracker of a dict that holds the attributes of `owner`."""
    if not isinstance(owner, ObjectVariable) or not is_plain_namespace(value):
        return opaque(graph, value, source)
    namespace = graph.values.namespace_of(owner)
    assert namespace is not None, "a dict is read after the end of the trace"
    guard_alias(graph, value, namespace, source)
    return namespace


def _entries(
    graph: OutputGraph,
    value: Any,
    source: Source,
    raw: Sequence[Any],
    owner: type[dict[Any, Any]] | None,
    exact: bool,
    by_position: bool,
) -> LazyDict:
    """Returns the contents of a dict, to be tracked when the program reads them.

    `by_position`: keys are tensors, each an input of its own, and strings. Tensor keys are identified by position; the
    next call may use other tensors."""
    read = value.__getitem__ if owner is None else functools.partial(dict.__getitem__, value)
    source_at = item_source(source, owner or dict, exact or owner is None)
    has = value.__contains__ if owner is None else functools.partial(dict.__contains__, value)
    keys: Source = DictKeys(source)
    if owner is not None and type(value).__iter__ is not owner.__iter__:
        keys = DictKeys(Computed("{0}({1})", (Constant(owner.__iter__, "keys_of"), source)))
    positions = {id(key): position for position, key in enumerate(raw)} if by_position else {}

    def key_at(key: object, position: int) -> DictKey:
        if not by_position:
            return dict_key(graph, key, Item(keys, position))
        known = wrap(graph, key, Item(keys, position))
        if type(key) in _TENSOR_KEYS:
            graph.identity_keys[known] = None
        return key_of(known)

    def source_of(key: object) -> Source:
        return Item(DictValues(source), positions[id(key)]) if type(key) in _TENSOR_KEYS else source_at(key)

    size = size_of(source, dict, exact or owner is None)
    tracker = functools.partial(lazy, graph)
    # Programs change the learning rate in an optimizer's parameter group.
    if type(value) is dict and "params" in value and type(value.get("lr")) is float:
        graph.shapes.expect_change(source_at("lr"))
    kind = GuardKind.LENGTH if by_position else GuardKind.DICT_KEYS
    reader = TableReader((*raw,), size, read, source_of if by_position else source_at, key_at, tracker, has, kind)
    return LazyDict(graph, source, reader)


def _hook_entries(graph: OutputGraph, value: Any, source: Source, raw: Sequence[int]) -> LazyDict:
    """Returns the contents of a table of hooks, whose keys are torch's hook ids.

    A hook that is removed and registered again gets a new id. So entries are identified by position, and an id is
    guarded only if the program reads it."""
    keys, values = DictKeys(source), DictValues(source)

    def key_at(key: int, position: int) -> DictKey:
        key_source = Item(keys, position)
        graph.guard(key_source, GuardKind.TYPE, int)
        return DictKey(
            key,
            ConstantVariable(key, source=key_source, on_read=graph.guard_on_read(key_source, GuardKind.EQUALS, key)),
        )

    size, source_at = size_of(source, dict, True), item_source(source, type(value), True)
    wrapped = functools.partial(lazy, graph)
    at = functools.partial(Item, values)
    reader = TableReader(
        (*raw,), size, value.__getitem__, source_at, key_at, wrapped, value.__contains__, GuardKind.LENGTH, at
    )
    return LazyDict(graph, source, reader)


def _is_hook_table(graph: OutputGraph, source: Source) -> bool:
    if not isinstance(source, InstanceAttr) or source.name not in HOOK_TABLES:
        return False
    owner = graph.known(source.of)
    return owner is not None and issubclass(owner.python_type, torch.nn.Module)


@wrapper(set, frozenset)
def _set(graph: OutputGraph, value: Any, source: Source) -> VariableTracker:
    graph.guard(source, GuardKind.TYPE, type(value))
    items = (*value,)
    if not all(map(is_key, items)):
        return opaque(graph, value, source)
    variable = SetVariable(_members(graph, value, source, items, type(value)), type(value), value, source=source)
    graph.values.record_object(value, variable)
    return variable


@subclass_wrapper(set, frozenset)
def _set_subclass(graph: OutputGraph, value: Any, source: Source) -> VariableTracker:
    base = set if isinstance(value, set) else frozenset
    items = (*base.__iter__(value),)
    if not all(map(is_key, items)):
        return opaque(graph, value, source)
    variable = instance_of_subclass(graph, value, source)
    variable.storage = SetVariable(_members(graph, value, source, items, base), base, source=source)
    return variable


def elements_of(found: Set[Any]) -> dict[Any, Any]:
    """Returns a dict from each element's value to the element of the set itself."""
    base: Any = set if isinstance(found, set) else frozenset
    return {element: element for element in base.__iter__(found)}


def _members(graph: OutputGraph, value: Any, source: Source, items: tuple[Any, ...], owner: type[Set[Any]]) -> LazyDict:
    """Returns the elements of a set, to be tracked when the program reads them."""
    has = functools.partial(owner.__contains__, value)
    elements = Computed("{0}({1})", (Constant(elements_of, "elements_of"), source))

    def element(key: object, position: int) -> DictKey:
        return dict_key(graph, key, Item(elements, source_key(key)))

    size = size_of(source, owner, type(value) is owner)
    tracker = functools.partial(lazy, graph)
    reader = TableReader(items, size, lambda key: key, lambda _: None, element, tracker, has, GuardKind.SET_ITEMS)
    return LazyDict(graph, source, reader)
