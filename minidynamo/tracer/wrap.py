"""Owns the way from a real value to its tracker: a table type -> function, and the guards that the knowledge needs.

It never calls the tracer's verbs; a value is wrapped without running any code of its class.
"""

from __future__ import annotations

import collections
import contextvars
import datetime
import enum
import functools
import types
import weakref
from collections.abc import Callable, Sequence, Set, Sized
from typing import Any

import torch

from minidynamo.compat import VERSION_INFO, HigherOrderOperator, OpOverload, OpOverloadPacket, is_functorch_wrapped
from minidynamo.guards.guard import GuardKind
from minidynamo.guards.source import (
    HOOK_TABLES,
    PLAIN_VALUES,
    Attr,
    Computed,
    Constant,
    DictKeys,
    DictValues,
    InstanceAttr,
    Item,
    PlainValue,
    Referent,
    Source,
    StorageItem,
    stand_in,
)
from minidynamo.steering import COMPILED, own_mark
from minidynamo.tracer.attributes import instance_dict
from minidynamo.tracer.constants import NUMPY_SCALARS, has_own, is_constant_value, key_of
from minidynamo.tracer.graph.output_graph import OutputGraph
from minidynamo.tracer.outside_items import ListReader, OutsideItems, OutsideTable, TableReader
from minidynamo.tracer.outside_tuples import OutsideTuple, TupleReader
from minidynamo.tracer.registry import INSTANCES
from minidynamo.tracer.trace_rules import is_plain_class, is_trusted_class
from minidynamo.variables.base import VariableTracker
from minidynamo.variables.callables import (
    BoundBuiltin,
    BuiltinVariable,
    CellVariable,
    FunctionVariable,
    MethodVariable,
    PartialVariable,
)
from minidynamo.variables.constants import ConstantVariable
from minidynamo.variables.containers import (
    DictKey,
    DictVariable,
    ListVariable,
    SetVariable,
    TupleVariable,
    storage_class,
)
from minidynamo.variables.objects import (
    ClassVariable,
    ModuleVariable,
    ObjectVariable,
    OpaqueVariable,
    PythonModuleVariable,
)
from minidynamo.variables.references import ContextVarVariable, WeakReferenceVariable

Wrapper = Callable[[OutputGraph, Any, Source], VariableTracker]

_DATES = (datetime.date, datetime.datetime, datetime.timedelta, datetime.timezone)
_BY_VALUE = (
    int,
    float,
    complex,
    str,
    bytes,
    torch.device,
    range,
    slice,
    torch.finfo,
    torch.iinfo,
    *NUMPY_SCALARS,
    *_DATES,
)
_ONLY_ONES = (type(None), type(...), type(NotImplemented))  # classes of one value each
_LARGEST_CONTAINER = 20_000


def wrap(graph: OutputGraph, value: Any, source: Source | None) -> VariableTracker:
    """The tracker of `value`. One object has one tracker: a second source for it is guarded to be the same object."""
    if source is not None:
        known = graph.known(source)
        if known is not None:
            return known
    if is_constant_value(value):
        return _constant(graph, value, source)
    known = graph.values.of(value)
    if known is not None:
        _guard_alias(graph, value, known, source)
        return known
    if source is None:
        source = Constant(value, getattr(value, "__name__", type(value).__name__))
    return _wrapper(type(value))(graph, value, source)


def _guard_alias(graph: OutputGraph, value: object, known: VariableTracker, source: Source | None) -> None:
    if source is None or source == known.source:
        return
    graph.values.place(source, known)
    if isinstance(known, FunctionVariable | BuiltinVariable | ClassVariable | PythonModuleVariable):
        graph.guard(source, GuardKind.IDENTITY, value)
    elif known.source is not None:
        graph.guard(source, GuardKind.SAME_OBJECT, known.source)


def _wrapper(cls: type) -> Wrapper:
    exact = _EXACT.get(cls)
    if exact is not None:
        return exact
    if cls in INSTANCES:
        return _same_object(BuiltinVariable)
    for base, wrapper in _SUBCLASSES:
        if issubclass(cls, base):
            return wrapper
    return _object


def _constant(graph: OutputGraph, value: Any, source: Source | None) -> VariableTracker:
    may_vary = type(value) in (int, float) and source is not None and not isinstance(source, PlainValue)
    if may_vary and source is not None and graph.shapes.varies(source, value):
        if not isinstance(source, Computed):
            graph.guard(source, GuardKind.TYPE, type(value))
        number = graph.integer(value, source) if isinstance(value, int) else graph.floating(value, source)
        graph.values.place(source, number)
        return number
    if isinstance(value, enum.Enum):
        _guard_names(graph, type(value))
    if source is None:
        return ConstantVariable(value)
    kind = GuardKind.EQUALS if type(value) in _BY_VALUE else GuardKind.IDENTITY
    read = (
        None
        if type(value) in _ONLY_ONES or isinstance(source, Constant)
        else graph.guard_when_asked(source, kind, value)
    )
    variable = ConstantVariable(value, source=source, on_read=read)
    graph.guard(source, kind if read is None else GuardKind.TYPE, value if read is None else type(value))
    graph.values.place(source, variable)
    return variable


# Tensors


def _tensor(graph: OutputGraph, value: torch.Tensor, source: Source) -> VariableTracker:
    graph.guard(source, GuardKind.TYPE, type(value))
    if not _is_plain(value):
        return _opaque(graph, value, source)
    return graph.inputs.tensor(value, source)


def _is_plain(value: torch.Tensor) -> bool:
    """Whether dtype, device, shape, strides and requires_grad say everything about it but its values."""
    try:
        value.is_leaf  # noqa: B018 (of a view whose base was written to under another grad mode torch does not say)
    except RuntimeError:
        return False
    if value.layout is not torch.strided or value.is_quantized or value.is_nested or is_functorch_wrapped(value):
        return False
    if value.is_inference() and not torch.is_inference_mode_enabled():  # autograd refuses to keep it
        return False
    return not (value.is_conj() or value.is_neg())


# Containers


def _size(source: Source, owner: type[Sized], exact: bool) -> Computed:
    """Where the length of a container can be read, whatever its class defines."""
    function = len if exact else owner.__len__
    return Computed("{0}({1})", (Constant(function, "len"), source))


def _places(source: Source, owner: type, exact: bool) -> Callable[[Any], Source]:
    """Where a container has what it holds at a position or under a key, whatever its class defines."""

    def place(key: Any) -> Source:
        key = stand_in(key)
        return Item(source, key) if exact else StorageItem(source, key, owner)

    return place


def _elements(
    graph: OutputGraph,
    value: Any,
    source: Source,
    owner: type[list[Any] | collections.deque[Any]],
    together: Callable[[], list[VariableTracker]] | None = None,
) -> OutsideItems:
    """The elements of a list or deque, to be tracked when the program asks for them."""
    exact = type(value) is owner
    read = functools.partial(owner.__getitem__, value)

    place = _places(source, owner, exact)

    def element(position: int) -> VariableTracker:
        return wrap(graph, read(position), place(position))

    maxlen = object.__getattribute__(value, "maxlen") if owner is collections.deque else None
    reader = ListReader(owner.__len__(value), _size(source, owner, exact), read, place, element, together)
    return OutsideItems(graph, source, reader, maxlen)


def _list(graph: OutputGraph, value: list[Any], source: Source) -> VariableTracker:
    if len(value) > _LARGEST_CONTAINER:
        return _opaque(graph, value, source)
    graph.guard(source, GuardKind.TYPE, type(value))
    variable = ListVariable([], source=source)
    graph.values.remember(value, variable)
    at_once = graph.inputs.is_argument(source) and _is_list_of_tensors(value, graph.inputs.is_stolen(source))
    together = functools.partial(_list_input, graph, value, variable, source) if at_once else None
    variable.items = _elements(graph, value, source, list, together)
    return variable


def _is_list_of_tensors(value: list[Any], is_stolen: bool) -> bool:
    """Whether a list is handed to the graph as a whole. Numbers and text in others are guarded when they are read."""
    tensors = sum(type(item) in (torch.Tensor, torch.nn.Parameter) and _is_plain(item) for item in value)
    constants = sum(is_constant_value(item) if is_stolen else item is None for item in value)
    return tensors > 0 and tensors + constants == len(value)


def _list_input(graph: OutputGraph, value: list[Any], variable: ListVariable, source: Source) -> list[VariableTracker]:
    """One placeholder for the whole list; what is not a tensor in it is a guarded constant."""
    constants = {k: _constant(graph, v, Item(source, k)) for k, v in enumerate(value) if is_constant_value(v)}
    items = graph.inputs.list_of_tensors(value, variable, constants)
    for position, (item, tracker) in enumerate(zip(value, items)):
        if position not in constants:
            place = Item(source, position)
            graph.guard(place, GuardKind.TYPE, type(item))
            _guard_alias(graph, item, tracker, place)
    variable.original = tuple(items)
    return items


def _tuple(graph: OutputGraph, value: tuple[Any, ...], source: Source) -> VariableTracker:
    graph.guard(source, GuardKind.TYPE, type(value))
    if type(value) not in (tuple, torch.Size) and not _is_namedtuple(type(value)):
        return _tuple_subclass(graph, value, source)
    variable = TupleVariable(_items(graph, value, source), type(value), source=source)
    graph.values.remember(value, variable)
    return variable


def _items(graph: OutputGraph, value: tuple[Any, ...], source: Source) -> OutsideTuple:
    """The items of a tuple, to be tracked when the program asks for them."""
    exact = type(value) is tuple or _is_plain_namedtuple(type(value))
    places = _places(source, tuple, exact)
    reader = TupleReader(value, _size(source, tuple, exact), places, functools.partial(wrap, graph))
    return OutsideTuple(graph, source, reader)


def _is_namedtuple(cls: type) -> bool:
    """Whether it is a namedtuple that gives its items as a tuple does."""
    as_tuple = all(getattr(cls, name) is getattr(tuple, name) for name in ("__iter__", "__getattribute__"))
    return as_tuple and hasattr(cls, "_fields")


def _is_plain_namedtuple(cls: type) -> bool:
    """Whether nothing of its own runs when its items are read."""
    as_tuple = (getattr(cls, name) is getattr(tuple, name, None) for name in ("__getitem__", "__len__"))
    return hasattr(cls, "_fields") and all(as_tuple)


def _tuple_subclass(graph: OutputGraph, value: tuple[Any, ...], source: Source) -> VariableTracker:
    if type(value).__module__ == "torch.return_types" or value is VERSION_INFO:
        return _structure(graph, value, source)
    if type(value).__flags__ & _HEAP_TYPE == 0:  # other structures made in C
        return _opaque(graph, value, source)
    variable = _instance_of_subclass(graph, value, source)
    variable.storage = TupleVariable(_items(graph, value, source), source=source)
    return variable


def _structure(graph: OutputGraph, value: tuple[Any, ...], source: Source) -> VariableTracker:
    """What `torch.max(x, 1)` and its kin give: a tuple made in C whose items also have names."""
    variable = TupleVariable(_items(graph, value, source), type(value), source=source)
    graph.values.remember(value, variable)
    return variable


def _list_subclass(graph: OutputGraph, value: list[Any], source: Source) -> VariableTracker:
    variable = _instance_of_subclass(graph, value, source)
    variable.storage = ListVariable(_elements(graph, value, source, list), source=source)
    return variable


def _set_subclass(graph: OutputGraph, value: Any, source: Source) -> VariableTracker:
    base = set if isinstance(value, set) else frozenset
    items = (*base.__iter__(value),)
    if not all(map(_is_key, items)):
        return _opaque(graph, value, source)
    variable = _instance_of_subclass(graph, value, source)
    variable.storage = SetVariable(_members(graph, value, source, items, base), base, source=source)
    return variable


def _deque_subclass(graph: OutputGraph, value: collections.deque[Any], source: Source) -> VariableTracker:
    deque = collections.deque
    maxlen = vars(deque)["maxlen"]
    if getattr(type(value), "maxlen", None) is not maxlen:
        return _opaque(graph, value, source)
    longest = object.__getattribute__(value, "maxlen")
    variable = _instance_of_subclass(graph, value, source)
    graph.guard(Attr(source, "maxlen"), GuardKind.EQUALS, longest)
    items = _elements(graph, value, source, deque)
    variable.storage = ListVariable(items, deque, maxlen=longest, source=source)
    return variable


def _value_subclass(graph: OutputGraph, value: Any, source: Source) -> VariableTracker:
    base = next(base for base in type(value).__mro__ if base in PLAIN_VALUES)
    if type(value).__flags__ & _HEAP_TYPE == 0:  # numpy's scalars
        return _opaque(graph, value, source)
    variable = _instance_of_subclass(graph, value, source)
    variable.storage = wrap(graph, PLAIN_VALUES[base](value), PlainValue(source, base))
    return variable


def _instance_of_subclass(graph: OutputGraph, value: object, source: Source) -> ObjectVariable:
    graph.guard(source, GuardKind.TYPE, type(value))
    _guard_names(graph, type(value))
    variable = ObjectVariable(value, type(value), source=source)
    graph.values.remember(value, variable)
    return variable


def _deque(graph: OutputGraph, value: collections.deque[Any], source: Source) -> VariableTracker:
    graph.guard(source, GuardKind.TYPE, type(value))
    graph.guard(Attr(source, "maxlen"), GuardKind.EQUALS, value.maxlen)
    items = _elements(graph, value, source, collections.deque)
    variable = ListVariable(items, collections.deque, maxlen=value.maxlen, source=source)
    graph.values.remember(value, variable)
    return variable


def _is_key(key: object) -> bool:
    """Whether it can be tracked as the key of a dict from outside, or as an element of a set."""
    if is_constant_value(key):
        return not has_own(type(key), "__eq__", "__hash__")
    if type(key) is tuple:
        return all(map(_is_key, key))
    cls = type(key)
    plain = cls.__hash__ is object.__hash__ and cls.__eq__ is object.__eq__
    return plain and not isinstance(key, torch.Tensor)


def _dict_key(graph: OutputGraph, key: object) -> DictKey:
    """The key of a dict from outside; the guard on the keys covers it."""
    if is_constant_value(key):
        return key_of(ConstantVariable(key))
    if type(key) is tuple:
        return key_of(TupleVariable([_dict_key(graph, part).variable for part in key]))
    known = stand_in(key)
    named = known if isinstance(known, Referent) else Constant(key, getattr(key, "__name__", type(key).__name__))
    variable = wrap(graph, key, named)
    graph.identity_keys[variable] = None
    return key_of(variable)


def _dict_of_tensors(graph: OutputGraph, value: dict[Any, Any], source: Source) -> VariableTracker:
    """A dict whose keys are tensors, each of which is itself an input: its keys are known by their places."""
    graph.guard(source, GuardKind.TYPE, type(value))
    graph.guard(source, GuardKind.LENGTH, len(value))
    variable = DictVariable({}, type(value), source=source)
    graph.values.remember(value, variable)
    for position, key in enumerate(value):
        tensor = wrap(graph, key, Item(DictKeys(source), position))
        graph.identity_keys[tensor] = None
        variable.items[key_of(tensor)] = wrap(graph, value[key], Item(DictValues(source), position))
    if isinstance(value, collections.defaultdict):
        variable.default_factory = wrap(graph, value.default_factory, Attr(source, "default_factory"))
    return variable


def _is_hook_table(graph: OutputGraph, source: Source) -> bool:
    if not isinstance(source, InstanceAttr) or source.name not in HOOK_TABLES:
        return False
    owner = graph.known(source.of)
    return owner is not None and issubclass(owner.python_type, torch.nn.Module)


def _dict(graph: OutputGraph, value: Any, source: Source) -> VariableTracker:
    cls = type(value)
    if cls is dict and "__builtins__" in value:  # globals: each item is a variable, two ways to write one thing
        return _opaque(graph, value, source)
    owner = collections.OrderedDict if issubclass(cls, collections.OrderedDict) else dict
    raw = [*owner.__iter__(value)] if issubclass(cls, dict) else [*value]
    plain = cls in (dict, collections.defaultdict, collections.OrderedDict) and 0 < len(raw) <= _LARGEST_CONTAINER
    if plain and all(type(key) in (torch.Tensor, torch.nn.Parameter) for key in raw):
        return _dict_of_tensors(graph, value, source)
    # nn.Module makes its tables of hooks itself, and there are many of them: that they are empty is all that matters.
    if raw or not _is_hook_table(graph, source):
        graph.guard(source, GuardKind.TYPE, cls)
    if len(raw) > _LARGEST_CONTAINER or not all(map(_is_key, raw)):
        return _opaque(graph, value, source)
    _guard_names(graph, cls)
    builtin = cls is storage_class(cls)
    if graph.values.is_namespace(value) or (not builtin and instance_dict(value) is value):
        return _opaque(graph, value, source)  # each item is an attribute: two ways to write one thing
    if not builtin and cls.__dictoffset__:
        graph.guard(source, GuardKind.DISTINCT_OBJECTS, (Attr(source, "__dict__"),))
    storage = DictVariable({}, storage_class(cls), source=source)
    storage.attributes = instance_dict(value) if builtin else None
    variable: VariableTracker = storage if builtin else ObjectVariable(value, cls, storage, source=source)
    graph.values.remember(value, variable)
    storage.items = _entries(graph, value, source, raw, owner if issubclass(cls, dict) else None, builtin)
    if issubclass(cls, collections.defaultdict):
        storage.default_factory = wrap(graph, value.default_factory, Attr(source, "default_factory"))
    return variable


def _entries(
    graph: OutputGraph, value: Any, source: Source, raw: Sequence[Any], owner: type | None, exact: bool
) -> OutsideTable:
    """The contents of a dict, to be tracked when the program asks for them."""
    read = value.__getitem__ if owner is None else functools.partial(dict.__getitem__, value)
    place = _places(source, owner or dict, exact or owner is None)

    def entry(key: Any) -> VariableTracker:
        return wrap(graph, read(key), place(key))

    has = value.__contains__ if owner is None else functools.partial(dict.__contains__, value)
    key_of_raw = functools.partial(_dict_key, graph)
    size = _size(source, dict, exact or owner is None)
    reader = TableReader((*raw,), size, read, place, key_of_raw, entry, has, GuardKind.DICT_KEYS)
    return OutsideTable(graph, source, reader)


def _members(
    graph: OutputGraph, value: Any, source: Source, items: tuple[Any, ...], owner: type[Set[Any]]
) -> OutsideTable:
    """The elements of a set, to be tracked when the program asks for them."""
    has = functools.partial(owner.__contains__, value)
    key_of_raw = functools.partial(_dict_key, graph)
    size = _size(source, owner, type(value) is owner)
    reader = TableReader(
        items, size, lambda key: key, lambda _: None, key_of_raw, lambda _: None, has, GuardKind.SET_ITEMS
    )
    return OutsideTable(graph, source, reader)


def _set(graph: OutputGraph, value: Any, source: Source) -> VariableTracker:
    graph.guard(source, GuardKind.TYPE, type(value))
    items = (*value,)
    if not all(map(_is_key, items)):
        return _opaque(graph, value, source)
    variable = SetVariable(_members(graph, value, source, items, type(value)), type(value), value, source=source)
    graph.values.remember(value, variable)
    return variable


# Callables


def _by_identity(source: Source) -> bool:
    """Whether a function found here is the same object at every call: globals and attributes, not arguments."""
    if isinstance(source, Item):
        namespace = source.of
        return (isinstance(namespace, Constant) and namespace.hidden) or isinstance(namespace, Attr)
    return isinstance(source, Attr | InstanceAttr | Constant)


def _function(graph: OutputGraph, value: types.FunctionType, source: Source) -> VariableTracker:
    if _by_identity(source) or own_mark(value, COMPILED):  # a compiled one gets new code with each version
        graph.guard(source, GuardKind.IDENTITY, value)
    else:
        graph.guard(source, GuardKind.TYPE, types.FunctionType)
        graph.guard(Attr(source, "__code__"), GuardKind.IDENTITY, value.__code__)
        graph.guard(Attr(source, "__defaults__"), GuardKind.IDENTITY, None) if value.__defaults__ is None else None
    variable = FunctionVariable(value, source=source)
    graph.values.remember(value, variable)
    return variable


def _method(graph: OutputGraph, value: types.MethodType, source: Source) -> VariableTracker:
    graph.guard(source, GuardKind.TYPE, types.MethodType)
    function = wrap(graph, value.__func__, Attr(source, "__func__"))
    variable = MethodVariable(function, wrap(graph, value.__self__, Attr(source, "__self__")), source=source)
    graph.values.remember(value, variable)
    return variable


def _built_in(graph: OutputGraph, value: Any, source: Source) -> VariableTracker:
    owner = getattr(value, "__self__", None)
    if owner is None or issubclass(type(owner), types.ModuleType | type) or not _binds(value):
        return _same_object(BuiltinVariable)(graph, value, source)
    graph.guard(source, GuardKind.TYPE, type(value))
    graph.guard(Attr(source, "__name__"), GuardKind.EQUALS, value.__name__)
    variable = BoundBuiltin(wrap(graph, owner, Attr(source, "__self__")), value.__name__, source=source)
    graph.values.remember(value, variable)
    return variable


def _binds(value: Any) -> bool:
    """Whether it is a method of its owner's class, not a function that keeps its module or type there."""
    return hasattr(type(value.__self__), value.__name__)


def _partial(graph: OutputGraph, value: functools.partial[Any], source: Source) -> VariableTracker:
    graph.guard(source, GuardKind.TYPE, functools.partial)
    function = wrap(graph, value.func, Attr(source, "func"))
    args = wrap(graph, value.args, Attr(source, "args"))
    keywords = wrap(graph, value.keywords, Attr(source, "keywords"))
    if not isinstance(args, TupleVariable) or not isinstance(keywords, DictVariable):
        return _opaque(graph, value, source)
    variable = PartialVariable(function, args, keywords, source=source)
    graph.values.remember(value, variable)
    return variable


def _cell(graph: OutputGraph, value: types.CellType, source: Source) -> VariableTracker:
    variable = CellVariable(None, value, source=source)
    graph.values.remember(value, variable)
    return variable


def _guard_names(graph: OutputGraph, cls: type) -> None:
    """A name that a class gets later may hide what was found elsewhere, or be looked for by Python itself."""
    for base in cls.__mro__:
        if not is_trusted_class(base):
            graph.guard(Constant(base, base.__name__), GuardKind.CLASS_NAMES, (tuple(base.__dict__), base.__bases__))


def _class(graph: OutputGraph, value: type, source: Source) -> VariableTracker:
    _guard_names(graph, value)
    if not is_trusted_class(type(value)):
        graph.guard(source, GuardKind.TYPE, type(value))
        _guard_names(graph, type(value))
    return _same_object(ClassVariable)(graph, value, source)


def _same_object(tracker: Callable[..., VariableTracker]) -> Wrapper:
    def wrapper(graph: OutputGraph, value: Any, source: Source) -> VariableTracker:
        graph.guard(source, GuardKind.IDENTITY, value)
        variable = tracker(value, source=source)
        graph.values.remember(value, variable)
        return variable

    return wrapper


def _weak_reference(graph: OutputGraph, value: weakref.ref[Any], source: Source) -> VariableTracker:
    graph.guard(source, GuardKind.TYPE, weakref.ref)
    variable = WeakReferenceVariable(value, source=source)
    graph.values.remember(value, variable)
    return variable


# Objects

_HEAP_TYPE = 1 << 9


def _object(graph: OutputGraph, value: object, source: Source) -> VariableTracker:
    cls = type(value)
    if not is_plain_class(cls):
        return _opaque(graph, value, source)
    variable = ObjectVariable(value, cls, source=source)
    namespace = instance_dict(value)
    if namespace is not None and not graph.values.claim_namespace(namespace, variable):
        return _opaque(graph, value, source)  # its dictionary is tracked as that of another one, or as a plain dict
    graph.guard(source, GuardKind.TYPE, cls)
    _guard_names(graph, cls)
    graph.values.remember(value, variable)
    return variable


def _module(graph: OutputGraph, value: torch.nn.Module, source: Source) -> VariableTracker:
    graph.guard(source, GuardKind.TYPE, type(value))
    _guard_names(graph, type(value))
    variable = ModuleVariable(value, type(value), source=source)
    graph.values.remember(value, variable)
    return variable


def _opaque(graph: OutputGraph, value: object, source: Source) -> VariableTracker:
    graph.guard(source, GuardKind.TYPE, type(value))
    variable = OpaqueVariable(value, source=source)
    graph.values.remember(value, variable)
    return variable


_EXACT: dict[type, Wrapper] = {
    torch.Tensor: _tensor,
    torch.nn.Parameter: _tensor,
    list: _list,
    tuple: _tuple,
    torch.Size: _tuple,
    dict: _dict,
    collections.OrderedDict: _dict,
    collections.defaultdict: _dict,
    types.MappingProxyType: _dict,
    set: _set,
    frozenset: _set,
    collections.deque: _deque,
    types.FunctionType: _function,
    types.MethodType: _method,
    types.BuiltinFunctionType: _built_in,
    types.MethodWrapperType: _built_in,
    types.MethodDescriptorType: _same_object(BuiltinVariable),
    types.WrapperDescriptorType: _same_object(BuiltinVariable),
    types.ClassMethodDescriptorType: _same_object(BuiltinVariable),
    OpOverload: _same_object(BuiltinVariable),
    OpOverloadPacket: _same_object(BuiltinVariable),
    types.ModuleType: _same_object(PythonModuleVariable),
    types.CellType: _cell,
    functools.partial: _partial,
    weakref.ref: _weak_reference,
    contextvars.ContextVar: _same_object(ContextVarVariable),
}

# Looked through in order when there is no entry for the exact class.
_SUBCLASSES: tuple[tuple[type, Wrapper], ...] = (
    (torch.Tensor, _opaque),
    (torch.nn.Module, _module),
    (type, _class),
    (types.ModuleType, _same_object(PythonModuleVariable)),
    (HigherOrderOperator, _same_object(BuiltinVariable)),
    (list, _list_subclass),
    (tuple, _tuple),
    (dict, _dict),
    (set, _set_subclass),
    (frozenset, _set_subclass),
    (collections.deque, _deque_subclass),
    *((base, _value_subclass) for base in PLAIN_VALUES),
)
