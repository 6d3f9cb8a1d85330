"""Owns sources: where a value lives, as an expression that guards and residual programs can evaluate.

A source does not check anything and holds no value except in `Constant`. It never runs user code: attributes found in
an instance's dictionary are read through that dictionary, elements of subclasses through the base class.
"""

from __future__ import annotations

import enum
import types
import weakref
from collections.abc import Callable, Hashable, Iterator
from dataclasses import dataclass
from typing import Any, Protocol, TypeVar


class Names(Protocol):
    """Gives identifiers to objects that generated code needs and that have no literal form."""

    def weak(self, value: object, hint: str) -> str | None:
        """An identifier that stands for a weak reference to `value`; None when its type allows none."""
        ...

    def constant(self, value: object, hint: str) -> str:
        """An identifier that stands for `value` (the same one for the same object); `hint` is the wished name."""
        ...


@dataclass(frozen=True)
class Source:
    """Where a value lives. Equality is structural, so equal sources mean the same place."""

    def expression(self, names: Names) -> str:
        """Python text that evaluates to the value, given the frame's arguments as locals."""
        raise NotImplementedError

    def display(self) -> str:
        """The place as the user would write it, for messages."""
        raise NotImplementedError

    @property
    def base(self) -> Source | None:
        """The source this one is read from; None for a root."""
        return None

    def bases(self) -> Iterator[Source]:
        """What the value is read from, nearest first."""
        source = self.base
        while source is not None:
            yield source
            source = source.base

    def depth(self) -> int:
        """How many reads away from its root the value is."""
        return len(tuple(self.bases()))

    def root(self) -> Source:
        """The outermost source of the chain."""
        source: Source = self
        while (base := source.base) is not None:
            source = base
        return source

    def roots(self) -> Iterator[Source]:
        """The outermost sources of all that is read."""
        yield self.root()


S = TypeVar("S", bound=Source)


@dataclass(frozen=True)
class Local(Source):
    """An argument of the frame: a parameter, or a local, cell or stack value that a resume point receives."""

    name: str

    def expression(self, names: Names) -> str:
        return self.name

    def display(self) -> str:
        return self.name


@dataclass(frozen=True, eq=False)
class Constant(Source):
    """An object that lives as long as the compiled function: its globals, its closure cells, a library module.

    `hidden` constants (a globals dictionary) do not show in messages. Equality is by identity of the object.
    """

    value: object
    name: str
    hidden: bool = False

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Constant) and self.value is other.value

    def __hash__(self) -> int:
        return id(self.value)

    def expression(self, names: Names) -> str:
        return names.constant(self.value, self.name)

    def display(self) -> str:
        return "" if self.hidden else self.name


class Referent(Constant):
    """An object that the program has met as a key, or in a set. Unlike a constant it is not kept alive."""

    def __init__(self, value: object, name: str) -> None:
        object.__setattr__(self, "reference", weakref.ref(value))
        object.__setattr__(self, "name", name)
        object.__setattr__(self, "_hash", id(value))

    @property
    def value(self) -> object:
        """The object; None when it is dead."""
        return self.reference()  # type: ignore[attr-defined]

    def __eq__(self, other: object) -> bool:
        return self is other or (isinstance(other, Constant) and self.value is other.value is not None)

    def __hash__(self) -> int:
        return self._hash  # type: ignore[attr-defined,no-any-return]

    def __repr__(self) -> str:
        return f"a {self.name}"

    def expression(self, names: Names) -> str:
        value = self.value
        return "None" if value is None else f"{names.weak(value, 'key')}()"


_LASTING = (type, types.ModuleType, types.FunctionType, types.BuiltinFunctionType, enum.Enum)


def stand_in(key: Any) -> Any:
    """What stands for a key in sources and guards: itself, or a `Referent` when it is compared by identity."""
    if type(key) is tuple:
        return tuple(map(stand_in, key))
    cls: Any = type(key)
    by_identity = cls.__eq__ is object.__eq__ and not issubclass(cls, _LASTING)
    return Referent(key, cls.__name__) if by_identity and cls.__weakrefoffset__ else key


def hash_once(cls: type[S]) -> type[S]:
    """Keep the hash of each instance: it goes through the whole chain of reads, and tables are asked all the time."""
    computed = cls.__hash__

    def __hash__(self: Any) -> int:
        kept: int | None = self._hash
        if kept is None:
            kept = computed(self)
            object.__setattr__(self, "_hash", kept)
        return kept

    cls.__hash__ = __hash__  # type: ignore[method-assign]
    cls._hash = None  # type: ignore[attr-defined]
    return cls


@dataclass(frozen=True)
class Derived(Source):
    """A source that reads from another one. Where code and message look alike, a kind of it defines `read` alone."""

    of: Source

    def read(self, of: str) -> str:
        """Python text for the read from what `of` is the text of."""
        raise NotImplementedError

    def expression(self, names: Names) -> str:
        return self.read(self.of.expression(names))

    def display(self) -> str:
        return self.read(self.of.display())

    @property
    def base(self) -> Source | None:
        return self.of


@hash_once
@dataclass(frozen=True)
class Attr(Derived):
    """A built-in attribute (slot, getset or function attribute) that runs no user code when read."""

    name: str

    def read(self, of: str) -> str:
        return f"{of}.{self.name}"


@hash_once
@dataclass(frozen=True)
class InstanceAttr(Derived):
    """An attribute found in the instance's own dictionary."""

    name: str

    def expression(self, names: Names) -> str:
        return f"{self.of.expression(names)}.__dict__[{self.name!r}]"

    def display(self) -> str:
        return f"{self.of.display()}.{self.name}"


# Dictionaries in which an nn.Module keeps what a user reads as an attribute or, under a number, as an element.
_MODULE_REGISTRIES = ("_modules", "_parameters", "_buffers")
# Those in which it keeps hooks: nobody asks for more than whether they are empty, as long as they are.
HOOK_TABLES = ("_forward_hooks", "_forward_pre_hooks", "_backward_hooks", "_backward_pre_hooks")


@hash_once
@dataclass(frozen=True)
class Item(Derived):
    """An element of a dict, list or tuple of exactly that type; `key` is a literal or an object used as dict key."""

    key: Hashable

    def expression(self, names: Names) -> str:
        return f"{self.of.expression(names)}[{key_expression(self.key, names)}]"

    def display(self) -> str:
        base = self.of
        if isinstance(base, InstanceAttr) and base.name in _MODULE_REGISTRIES and isinstance(self.key, str):
            owner = base.of.display()
            return f"{owner}[{self.key}]" if self.key.isdigit() else f"{owner}.{self.key}"
        shown = base.display()
        return f"{shown}[{self.key!r}]" if shown else str(self.key)


@hash_once
@dataclass(frozen=True)
class StorageItem(Derived):
    """An element of a container subclass, read through `owner` (list, tuple, dict) so that overrides do not run."""

    key: Hashable
    owner: type

    def expression(self, names: Names) -> str:
        owner = names.constant(self.owner, self.owner.__name__)
        return f"{owner}.__getitem__({self.of.expression(names)}, {key_expression(self.key, names)})"

    def display(self) -> str:
        return f"{self.of.display()}[{self.key!r}]"


# Immutable classes, and what gives the plain value of an instance of a subclass without running its overrides.
PLAIN_VALUES: dict[type, Callable[[Any], Any]] = {
    int: int.__int__,
    float: float.__float__,
    str: str.__str__,
}


@hash_once
@dataclass(frozen=True)
class PlainValue(Derived):
    """The number or text that an instance of a subclass of `owner` is."""

    owner: type

    def expression(self, names: Names) -> str:
        read = PLAIN_VALUES[self.owner].__name__
        return f"{names.constant(self.owner, self.owner.__name__)}.{read}({self.of.expression(names)})"

    def display(self) -> str:
        return self.of.display()


@hash_once
@dataclass(frozen=True)
class TypeOf(Derived):
    """The class of a value."""

    def expression(self, names: Names) -> str:
        return f"{names.constant(type, 'type')}({self.of.expression(names)})"

    def display(self) -> str:
        return f"type({self.of.display()})"


@hash_once
@dataclass(frozen=True)
class Result(Derived):
    """What a library function gives that is called without arguments and changes nothing."""

    def read(self, of: str) -> str:
        return f"{of}()"


def call_or_none(function: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    """What a function gives, None where it raises."""
    try:
        return function(*args, **kwargs)
    except Exception:
        return None


@hash_once
@dataclass(frozen=True)
class Called(Derived):
    """What a function gives for some arguments, the last of which have names; None where it raises.

    The function changes nothing: it belongs to a library, or has an `lru_cache` and only computes.
    """

    arguments: tuple[Source, ...]
    names: tuple[str, ...] = ()

    def expression(self, names: Names) -> str:
        texts = [argument.expression(names) for argument in self.arguments]
        split = len(texts) - len(self.names)
        named = [f"{name}={text}" for name, text in zip(self.names, texts[split:])]
        given = ", ".join([self.of.expression(names), *texts[:split], *named])
        return f"{names.constant(call_or_none, 'call_or_none')}({given})"

    def display(self) -> str:
        return f"{self.of.display()}({', '.join(argument.display() for argument in self.arguments)})"

    def bases(self) -> Iterator[Source]:
        yield from super().bases()
        for argument in self.arguments:
            yield argument
            yield from argument.bases()

    def roots(self) -> Iterator[Source]:
        yield self.root()
        for argument in self.arguments:
            yield from argument.roots()


@hash_once
@dataclass(frozen=True)
class Element(Called):
    """What a method of an array of numpy's gives for a place in it: another object at each look."""


class Unset:
    """Stands for the value of a context variable that has none in this context."""


@hash_once
@dataclass(frozen=True)
class ContextValue(Derived):
    """What a context variable holds in the context of the call, or `Unset`."""

    def expression(self, names: Names) -> str:
        return f"{self.of.expression(names)}.get({names.constant(Unset, 'unset')})"

    def display(self) -> str:
        return f"{self.of.display()}.get()"


@hash_once
@dataclass(frozen=True)
class DictKeys(Derived):
    """The keys of a dict, in order, as a tuple."""

    def expression(self, names: Names) -> str:
        return f"{names.constant(tuple, 'tuple')}({self.of.expression(names)})"

    def display(self) -> str:
        return f"tuple({self.of.display()})"


@hash_once
@dataclass(frozen=True)
class DictValues(Derived):
    """The values of a dict, in the order of its keys, as a tuple."""

    def expression(self, names: Names) -> str:
        return f"{names.constant(tuple, 'tuple')}({self.of.expression(names)}.values())"

    def display(self) -> str:
        return f"tuple({self.of.display()}.values())"


@hash_once
@dataclass(frozen=True)
class Held(Derived):
    """The number that a tensor holds."""

    def read(self, of: str) -> str:
        return f"{of}.item()"


@hash_once
@dataclass(frozen=True)
class CellContents(Derived):
    """What a closure cell holds."""

    def expression(self, names: Names) -> str:
        return f"{self.of.expression(names)}.cell_contents"

    def display(self) -> str:
        return self.of.display()


@hash_once
@dataclass(frozen=True)
class Size(Derived):
    """How long a tensor is in one dimension."""

    dim: int

    def expression(self, names: Names) -> str:
        return f"{self.of.expression(names)}.size({self.dim})"

    def display(self) -> str:
        return f"{self.of.display()}.shape[{self.dim}]"


@hash_once
@dataclass(frozen=True)
class Stride(Derived):
    """How far apart in memory the items of a tensor are in one dimension."""

    dim: int

    def read(self, of: str) -> str:
        return f"{of}.stride({self.dim})"


@hash_once
@dataclass(frozen=True)
class TensorFact(Derived):
    """What a tensor says of itself: an attribute, or a method called with numbers, as `text`."""

    text: str

    def read(self, of: str) -> str:
        return f"{of}.{self.text}"


# What a guard of the whole tensor settles, too.
TENSOR_FACTS = (Size, Stride, TensorFact)


@hash_once
@dataclass(frozen=True)
class Computed(Source):
    """A number that Python computes from others: `template` has `{0}`, `{1}`, ... where the operands stand.

    It never raises where the guards hold, and means the same however often it is evaluated.
    """

    template: str
    operands: tuple[Source, ...]

    def expression(self, names: Names) -> str:
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


@dataclass(frozen=True)
class Drawn(Source):
    """A random number that the program draws. Residual programs draw it, as `name`, before the graph runs; guards are
    checked before that, and cannot know it."""

    name: str

    def expression(self, names: Names) -> str:
        return self.name

    def display(self) -> str:
        return self.name


def is_drawn(source: Source) -> bool:
    """Whether a value hangs on a random number that the program draws."""
    return any(isinstance(place, Drawn) for place in (source, *source.bases()))


def is_read_anew(source: Source | None) -> bool:
    """Whether a look at the source may give another object each time, as one at a size of a tensor does."""
    return isinstance(source, Size | TensorFact | Computed | Element)


def key_expression(key: object, names: Names) -> str:
    """Python text for a dict key or list index: a literal where one exists, else a named constant."""
    if type(key) in (int, str, bool, bytes, type(None)):
        return repr(key)
    if isinstance(key, Referent):
        return key.expression(names)
    if type(key) is tuple:
        return f"({''.join(key_expression(part, names) + ', ' for part in key)})"
    return names.constant(key, "key")


def global_source(namespace: dict[str, object], name: str) -> Source:
    """The global variable `name` of the module whose `__dict__` is `namespace`."""
    return Item(Constant(namespace, "G", hidden=True), name)


def is_passed(source: Source) -> bool:
    """Whether a value is an argument, or an item of one: these differ before what a module holds does."""
    return source.base is None or (isinstance(source, Item) and source.of.base is None)
