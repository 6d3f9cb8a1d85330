"""Owns sources: expressions through which guards and residual programs read a value.

A source checks nothing and holds no value, except `Constant`. Reading runs no user code: instance attributes are read
through the instance's dictionary, elements of container subclasses through the base class.
"""

from __future__ import annotations

import enum
import itertools
import types
from collections.abc import Callable, Hashable, Iterator, Mapping
from dataclasses import fields, replace
from typing import Any, TypeVar, dataclass_transform

import torch

from minidynamo import compat
from minidynamo.core.names import Namespace, module_of, name_of
from minidynamo.core.records import record
from minidynamo.core.references import Reference
from minidynamo.errors import an

# For messages: builtins keep their names.
_BUILTINS = Namespace()


@record(frozen=True)
class Source:
    """The expression through which a value is found. Equality is structural: equal sources read the same value."""

    def expression(self, names: Namespace) -> str:
        """Returns Python text that evaluates to the value, with the frame's arguments as locals."""
        raise NotImplementedError

    def display(self) -> str:
        """Returns the expression as the user would write it, for messages."""
        raise NotImplementedError

    @property
    def base(self) -> Source | None:
        """Returns the source that this source reads from; None for a root."""
        return None

    def bases(self) -> Iterator[Source]:
        """Yields the sources on the path to the root, nearest first."""
        source = self.base
        while source is not None:
            yield source
            source = source.base

    def depth(self) -> int:
        """Returns the number of reads between root and value."""
        return len(tuple(self.bases()))

    def root(self) -> Source:
        """Returns the outermost source of the chain."""
        source: Source = self
        while (base := source.base) is not None:
            source = base
        return source

    def roots(self) -> Iterator[Source]:
        """Yields the outermost sources of all reads."""
        if self.base is None:
            yield self
        else:
            yield from self.base.roots()


S = TypeVar("S", bound=Source)


@record(frozen=True)
class Local(Source):
    """An argument of the frame: a parameter, or a local, cell or stack value of a resume function."""

    name: str

    def expression(self, names: Namespace) -> str:
        return self.name

    def display(self) -> str:
        return self.name


@record(frozen=True, eq=False)
class Constant(Source):
    """An object that lives as long as the compiled function: its globals, its closure cells, a library module.

    Equality is by identity of the object.
    """

    #: the object
    value: object
    #: its name in generated code and messages
    name: str
    #: whether messages omit the name, as for a globals dictionary
    hidden: bool = False

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Constant) and self.value is other.value

    def __hash__(self) -> int:
        return id(self.value)

    def expression(self, names: Namespace) -> str:
        return names.constant(self.value, self.name)

    def display(self) -> str:
        return "" if self.hidden else self.name


class Referent(Constant):
    """An object that the program uses as a key, or as an item of a set. Unlike a constant, it is referred to weakly."""

    def __init__(self, value: object, name: str) -> None:
        object.__setattr__(self, "reference", Reference(value))
        object.__setattr__(self, "name", name)
        object.__setattr__(self, "_hash", id(value))

    @property
    def value(self) -> object:
        """Returns the object; None if it is dead."""
        return self.reference()  # type: ignore[attr-defined]

    def __eq__(self, other: object) -> bool:
        return self is other or (isinstance(other, Constant) and self.value is other.value is not None)

    def __hash__(self) -> int:
        return self._hash  # type: ignore[attr-defined,no-any-return]

    def __repr__(self) -> str:
        return an(self.name)

    def expression(self, names: Namespace) -> str:
        value = self.value
        return "None" if value is None else f"{names.weak(value, 'key')}()"


_LASTING = (type, types.ModuleType, types.FunctionType, types.BuiltinFunctionType, enum.Enum)


def source_key(key: Any) -> Any:
    """Returns the form of a key for sources and guards: a `Referent` if it is compared by identity, else the key
    itself.
    """
    if type(key) is tuple:
        return tuple(map(source_key, key))
    cls: Any = type(key)
    by_identity = cls.__eq__ is object.__eq__ and not issubclass(cls, _LASTING)
    return Referent(key, cls.__name__) if by_identity and cls.__weakrefoffset__ else key


@dataclass_transform(frozen_default=True)
def derived(cls: type[S]) -> type[S]:
    """Makes a frozen dataclass that caches its hash, which covers the whole chain of reads: dicts ask for it often."""
    cls = record(frozen=True)(cls)
    computed = cls.__hash__

    def __hash__(self: Any) -> int:
        known_hash: int | None = self._hash
        if known_hash is None:
            known_hash = computed(self)
            object.__setattr__(self, "_hash", known_hash)
        return known_hash

    cls.__hash__ = __hash__  # type: ignore[method-assign]
    cls._hash = None  # type: ignore[attr-defined]
    return cls


@record(frozen=True)
class Derived(Source):
    """A source that reads from the source `of`. A class whose code and message are alike defines only `read`."""

    of: Source

    def read(self, of: str, names: Namespace) -> str:
        """Returns Python text of the read, where `of` is the text of the base."""
        raise NotImplementedError

    def expression(self, names: Namespace) -> str:
        return self.read(self.of.expression(names), names)

    def display(self) -> str:
        return self.read(self.of.display(), _BUILTINS)

    @property
    def base(self) -> Source | None:
        return self.of


@derived
class Attr(Derived):
    """A built-in attribute (slot, getset or function attribute) that runs no user code when read."""

    name: str

    def read(self, of: str, names: Namespace) -> str:
        return f"{of}.{self.name}"


@derived
class InstanceAttr(Derived):
    """An attribute in the instance's own dictionary."""

    name: str

    def expression(self, names: Namespace) -> str:
        return f"{self.of.expression(names)}.__dict__[{self.name!r}]"

    def display(self) -> str:
        return f"{self.of.display()}.{self.name}"


# Dictionaries of an nn.Module whose items are attributes for the user, or, under a number, elements.
_MODULE_REGISTRIES = ("_modules", "_parameters", "_buffers")
# Dictionaries of hooks: guarded by emptiness alone while they are empty.
HOOK_TABLES = ("_forward_hooks", "_forward_pre_hooks", "_backward_hooks", "_backward_pre_hooks")


@derived
class Item(Derived):
    """An element of a dict, list or tuple of exactly that type; `key` is a literal or an object used as dict key."""

    key: Hashable

    def expression(self, names: Namespace) -> str:
        return f"{self.of.expression(names)}[{key_expression(self.key, names)}]"

    def display(self) -> str:
        base = self.of
        if isinstance(base, InstanceAttr) and base.name in _MODULE_REGISTRIES and isinstance(self.key, str):
            owner = base.of.display()
            return f"{owner}[{self.key}]" if self.key.isdigit() else f"{owner}.{self.key}"
        shown = base.display()
        return f"{shown}[{self.key!r}]" if shown else str(self.key)


@derived
class SubclassItem(Derived):
    """An element of an instance of a subclass of `owner` (list, tuple, dict), read without running overrides."""

    key: Hashable
    owner: type

    def expression(self, names: Namespace) -> str:
        owner = names.constant(self.owner, self.owner.__name__)
        return f"{owner}.__getitem__({self.of.expression(names)}, {key_expression(self.key, names)})"

    def display(self) -> str:
        return f"{self.of.display()}[{self.key!r}]"


# Immutable classes, each with a method that returns the plain value of a subclass instance without running overrides.
PLAIN_VALUES: dict[type, Callable[[Any], Any]] = {
    int: int.__int__,
    float: float.__float__,
    str: str.__str__,
}


@derived
class PlainValue(Derived):
    """The plain number or text of an instance of a subclass of `owner`."""

    owner: type

    def expression(self, names: Namespace) -> str:
        read = PLAIN_VALUES[self.owner].__name__
        return f"{names.constant(self.owner, self.owner.__name__)}.{read}({self.of.expression(names)})"

    def display(self) -> str:
        return self.of.display()


@derived
class TypeOf(Derived):
    """The class of a value."""

    def read(self, of: str, names: Namespace) -> str:
        return f"{names.constant(type, 'type')}({of})"


@derived
class Result(Derived):
    """The result of a library function that takes no arguments and has no side effects."""

    def read(self, of: str, names: Namespace) -> str:
        return f"{of}()"


@derived
class NewObject(Derived):
    """A new object of the class `of`, called `name`. The residual program creates it; guards cannot read it."""

    name: str

    def expression(self, names: Namespace) -> str:
        return f"{self.of.expression(names)}()"

    def display(self) -> str:
        return self.name


def call_or_none(function: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    """Returns the result of a function; None if it raises."""
    try:
        return function(*args, **kwargs)
    except Exception:
        return None


@derived
class Called(Derived):
    """The result of a function for some arguments, the last of them by keyword; None if the function raises.

    The function has no side effects: it belongs to a library, or is a pure function with an `lru_cache`.
    """

    arguments: tuple[Source, ...]
    names: tuple[str, ...] = ()

    def expression(self, names: Namespace) -> str:
        texts = [argument.expression(names) for argument in self.arguments]
        split = len(texts) - len(self.names)
        named = [f"{name}={text}" for name, text in zip(self.names, texts[split:])]
        arguments = ", ".join([self.of.expression(names), *texts[:split], *named])
        return f"{names.constant(call_or_none, 'call_or_none')}({arguments})"

    def display(self) -> str:
        return f"{self.of.display()}({', '.join(argument.display() for argument in self.arguments)})"

    def bases(self) -> Iterator[Source]:
        yield from super().bases()
        for argument in self.arguments:
            yield argument
            yield from argument.bases()

    def roots(self) -> Iterator[Source]:
        yield from super().roots()
        for argument in self.arguments:
            yield from argument.roots()


@derived
class Element(Called):
    """The result of a numpy array method for an index: a new object at each read."""


class Unset:
    """Replaces the value of a context variable that is unset in the present context."""


@derived
class ContextValue(Derived):
    """The value of a context variable in the context of the call, or `Unset`."""

    def expression(self, names: Namespace) -> str:
        return f"{self.of.expression(names)}.get({names.constant(Unset, 'unset')})"

    def display(self) -> str:
        return f"{self.of.display()}.get()"


@derived
class DictKeys(Derived):
    """The keys of a dict, in order, as a tuple."""

    def read(self, of: str, names: Namespace) -> str:
        return f"{names.constant(tuple, 'tuple')}({of})"


@derived
class DictValues(Derived):
    """The values of a dict, in the order of its keys, as a tuple."""

    def read(self, of: str, names: Namespace) -> str:
        return f"{names.constant(tuple, 'tuple')}({of}.values())"


@derived
class TensorNumber(Derived):
    """The number in a tensor of one element."""

    def read(self, of: str, names: Namespace) -> str:
        return f"{of}.item()"


@derived
class CellContents(Derived):
    """The contents of a closure cell."""

    def expression(self, names: Namespace) -> str:
        return f"{self.of.expression(names)}.cell_contents"

    def display(self) -> str:
        return self.of.display()


@derived
class Size(Derived):
    """The size of a tensor in one dimension."""

    dim: int

    def expression(self, names: Namespace) -> str:
        return f"{self.of.expression(names)}.size({self.dim})"

    def display(self) -> str:
        return f"{self.of.display()}.shape[{self.dim}]"


@derived
class Stride(Derived):
    """The stride of a tensor in one dimension, in items."""

    dim: int

    def read(self, of: str, names: Namespace) -> str:
        return f"{of}.stride({self.dim})"


@derived
class TensorFact(Derived):
    """An attribute of a tensor, or the result of a method called with numbers, as `text`."""

    text: str

    def read(self, of: str, names: Namespace) -> str:
        return f"{of}.{self.text}"


# Sources that the guard of the whole tensor covers, too.
TENSOR_FACTS = (Size, Stride, TensorFact)


@derived
class Computed(Source):
    """A number that Python computes from others: `template` has `{0}`, `{1}`, ... in place of the operands.

    Evaluation never raises where the guards hold, and always has the same result.
    """

    template: str
    operands: tuple[Source, ...]

    def expression(self, names: Namespace) -> str:
        return self.template.format(*(operand.expression(names) for operand in self.operands))

    def display(self) -> str:
        return self.template.format(*(operand.display() for operand in self.operands))

    def bases(self) -> Iterator[Source]:
        for operand in self.operands:
            yield operand
            yield from operand.bases()

    def root(self) -> Source:
        return self

    def roots(self) -> Iterator[Source]:
        for operand in self.operands:
            yield from operand.roots()


@record(frozen=True)
class Drawn(Source):
    """A random number that the program draws. The residual program draws it, into the local `name`, before the graph
    runs. Guards are checked earlier, and cannot read it.
    """

    name: str

    def expression(self, names: Namespace) -> str:
        return self.name

    def display(self) -> str:
        return self.name


def is_drawn(source: Source) -> bool:
    """Returns whether a value depends on a random number that the program draws."""
    return any(isinstance(part, Drawn) for part in (source, *source.bases()))


def is_new_each_read(source: Source | None) -> bool:
    """Returns whether each read of the source may create a new object, such as the size of a tensor."""
    return isinstance(source, Size | TensorFact | Computed | Element)


def key_expression(key: object, names: Namespace) -> str:
    """Returns Python text for a dict key or list index: a literal where possible, else a named constant."""
    if type(key) in (int, str, bool, bytes, type(None)):
        return repr(key)
    if isinstance(key, Referent):
        return key.expression(names)
    if type(key) is tuple:
        return f"({''.join(key_expression(part, names) + ', ' for part in key)})"
    return names.constant(key, "key")


def global_source(namespace: dict[str, object], name: str) -> Source:
    """Returns the source of the global variable `name` of the module whose `__dict__` is `namespace`."""
    return Item(Constant(namespace, "G", hidden=True), name)


def is_argument_or_item(source: Source) -> bool:
    """Returns whether a value is an argument, or an item of one: arguments differ more often than module contents."""
    return source.base is None or (isinstance(source, Item) and source.of.base is None)


def with_constants(part: Any, others: Mapping[int, object]) -> Any:
    """Returns a source, or a tuple that contains sources, which reads other constants: `others` maps the id of an
    object to the object to read instead.
    """
    if not others:
        return part
    if isinstance(part, Constant):
        known = id(part.value) in others
        return Constant(others[id(part.value)], part.name, part.hidden) if known else part
    if isinstance(part, Source):
        old = {field.name: getattr(part, field.name) for field in fields(part)}
        new = {name: with_constants(value, others) for name, value in old.items()}
        return replace(part, **new) if any(new[name] is not old[name] for name in old) else part
    if type(part) is not tuple:
        return part
    items = tuple(with_constants(item, others) for item in part)
    return items if any(item is not known for item, known in zip(items, part)) else part  # guards compare identity


# Names of sources that are the same in each process, for profiles and symbols

# Numbers of objects without names.
_ORDER: dict[Reference, int] = {}
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
    if isinstance(source, (Item, SubclassItem)):
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
    return f"{name} {_ORDER.setdefault(Reference(value, _forget), next(_NUMBERS))}"


def _forget(dead: Reference) -> None:
    _ORDER.pop(dead, None)


def _stable_text(part: object) -> str:
    """Returns a field of a source as a part of its name."""
    if isinstance(part, Source):
        return stable_name(part)
    if isinstance(part, tuple):
        return f"[{', '.join(map(_stable_text, part))}]"
    return repr(part) if isinstance(part, (str, int)) else getattr(part, "__qualname__", type(part).__name__)
