"""Owns the reading of sources in generated conditions: what several guards need is read once, into a temporary.

It writes no conditions; `writers.py` and `check.py` do.
"""

from __future__ import annotations

import dataclasses
import functools
import itertools
import re
import sys
import types
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from typing import Any

from minidynamo.core.names import Namespace, module_of, name_of
from minidynamo.guards.guard import Guard, GuardKind
from minidynamo.guards.source import Attr, Computed, Constant, Derived, InstanceAttr, Item, Local, Source, TypeOf

_LIBRARIES = frozenset({"torch", "builtins", *sys.stdlib_module_names}) - {"__main__"}


@dataclasses.dataclass(frozen=True)
class Found:
    """Values that have been read already: the name of the tuple that holds them, and where each of them is in it."""

    name: str
    sources: Sequence[Source]

    @functools.cached_property
    def places(self) -> dict[Source, int]:
        """The place of each source."""
        return {source: place for place, source in enumerate(self.sources)}

    def part(self, first: int, count: int) -> str:
        """Text that spells `count` of the values out, in a call or a list."""
        if count == 1:
            return f"{self.name}[{first}]"
        return f"*{self.name}" if count == len(self.sources) else f"*{self.name}[{first}:{first + count}]"


# Stands in a text for the value at the source of that number; no literal contains the character.
_MARK = re.compile("\0([0-9]+)\0")


class Reader:
    """Text for values at sources.

    What `read` gives holds marks for values. When everything is written, `finished` puts the reads in their places: of
    what is read once where it is needed, of what is read again into a temporary. What is `found` is not read again.
    """

    def __init__(self, guards: Iterable[Guard], names: Namespace, found: Found | None = None) -> None:
        self.names = names
        self._found = found or Found("", ())
        self._numbers: dict[Source, int] = {}
        self._ways: list[str] = []
        self._reads: Counter[int] = Counter()
        self._temporaries: dict[int, str] = {}
        self._bound: dict[str, None] = {}
        self._classes: dict[Source, type] = {}
        self._objects: dict[Source, object] = {}
        for guard in guards:
            if guard.kind is GuardKind.TYPE:
                self._classes[guard.source] = guard.expected
            elif guard.kind is GuardKind.TENSOR:
                self._classes[guard.source] = guard.expected.cls
            elif guard.kind is GuardKind.IDENTITY:
                self._classes[guard.source] = type(guard.expected)
                self._objects[guard.source] = guard.expected

    def afresh(self) -> Reader:
        """A reader for a condition of its own, with the same names: what was spelled once is spelled for both."""
        reader = Reader((), self.names, self._found)
        reader._classes, reader._objects = self._classes, self._objects
        reader._numbers, reader._ways = self._numbers, self._ways
        return reader

    def read(self, source: Source) -> str:
        """Text of the value at `source`, with marks."""
        place = self._found.places.get(source)
        if place is not None:
            return self._found.part(place, 1)
        if not isinstance(source, (Derived, Computed)):
            return source.expression(self.names)
        number = self._numbers.get(source)
        if number is None:
            way = self._text(source)
            number = self._numbers[source] = len(self._ways)
            self._ways.append(way)
        return f"\0{number}\0"

    def finished(self, texts: Sequence[str]) -> list[str]:
        """Texts without marks, to be evaluated in this order."""
        self.count(texts)
        return [self.write(text) for text in texts]

    def count(self, texts: Iterable[str]) -> None:
        """Note what the texts read; all have to be counted before the first one is written."""
        for text in texts:
            for mark in _MARK.findall(text):
                number = int(mark)
                self._reads[number] += 1
                if self._reads[number] == 1:
                    self.count([self._ways[number]])

    def write(self, text: str) -> str:
        """`text` without marks, to be evaluated behind what was written before."""
        return _MARK.sub(self._value, text)

    def _value(self, mark: re.Match[str]) -> str:
        number = int(mark[1])
        name = self._temporaries.get(number)
        if name in self._bound:
            return name
        text = self.write(self._ways[number])
        if name is None and self._reads[number] == 1:
            return text
        return f"({self._bind(number)} := {text})"

    def _bind(self, number: int) -> str:
        if number not in self._temporaries:
            self._temporaries[number] = self.names.fresh("t")
        self._bound[self._temporaries[number]] = None
        return self._temporaries[number]

    def listed(self, sources: Iterable[Source]) -> str:
        """Text of values with commas between; of those that were found one behind the other, only their range."""
        places = self._found.places
        numbered = ((places.get(source), position, source) for position, source in enumerate(sources))
        texts: list[str] = []
        for _, group in itertools.groupby(numbered, lambda each: each[1] if each[0] is None else (each[1] - each[0],)):
            (first, _, source), *others = group
            texts.append(self.read(source) if first is None else self._found.part(first, len(others) + 1))
        return ", ".join(texts)

    def as_found(self, guards: Iterable[Guard]) -> list[Guard]:
        """Guards in the order in which their values were found, behind those whose values are still to be read."""
        return sorted(guards, key=lambda guard: self._found.places.get(guard.source, -1))

    def name(self, source: Source, hint: str) -> str:
        """A name for the value at `source`, which is bound where that is read first."""
        mark = _MARK.fullmatch(text := self.read(source))
        if mark is None:
            return text
        number = int(mark[1])
        if number not in self._temporaries:
            self._temporaries[number] = self.names.fresh(hint)
        return self._temporaries[number]

    def assignment(self, source: Source) -> str | None:
        """The statement that binds the name of the value at `source`; None when it is bound."""
        mark = _MARK.fullmatch(self.read(source))
        if mark is None or self._temporaries[number := int(mark[1])] in self._bound:
            return None
        text = self.write(self._ways[number])
        return f"{self._bind(number)} = {text}"

    def _text(self, source: Derived | Computed) -> str:
        """The text of a source over what it is read from."""
        if isinstance(source, InstanceAttr):  # a way through the instance's dictionary, which others go, too
            source = Item(Attr(source.of, "__dict__"), source.name)
        if isinstance(source, Attr) and (looks_up := _own_lookup(self.class_of(source.of))) is not None:
            past = self.constant(looks_up, "getattribute")
            return f"{past}({self.read(source.of)}, {source.name!r})"
        if isinstance(source, Derived):
            return dataclasses.replace(source, of=Local(self.read(source.of))).expression(self.names)
        skips = any(word in source.template for word in (" or ", " and ", " if "))  # what it skips would stay unread
        operands = [operand.expression(self.names) if skips else self.read(operand) for operand in source.operands]
        return source.template.format(*operands)

    def temporaries(self) -> list[str]:
        """The names that the finished texts bind, in their order."""
        return list(self._bound)

    def constant(self, value: object, hint: str) -> str:
        """The name of an object that the condition may keep alive."""
        return self.names.constant(value, hint)

    def reference(self, value: object) -> tuple[str, bool]:
        """A name for `value` to compare by identity, and whether it is a weak reference that has to be called.

        What a library module holds anyway is named directly, everything else is referred to weakly if its type allows.
        """
        hint = name_of(value)
        if not _is_from_library(value):
            weak = self.names.weak(value, hint)
            if weak is not None:
                return weak, True
        return self.names.constant(value, hint), False

    def class_of(self, source: Source) -> type | None:
        """The class that the guards promise for the value at `source`; None when they promise nothing."""
        if isinstance(source, Constant):
            return type(source.value)
        return self._classes.get(source)

    def class_at(self, source: Source) -> type | None:
        """The class object that the guards promise at `source`."""
        if isinstance(source, TypeOf):
            return self.class_of(source.of)
        value = source.value if isinstance(source, Constant) else self._objects.get(source)
        return value if isinstance(value, type) else None


def _own_lookup(cls: type | None) -> Callable[[Any, str], Any] | None:
    """What reads attributes past the `__getattribute__` of the user's that a class has."""
    if cls is None or not isinstance(cls.__getattribute__, types.FunctionType):
        return None
    return type.__getattribute__ if issubclass(cls, type) else object.__getattribute__


def _is_from_library(value: object) -> bool:
    """Whether torch or the standard library holds the object for good, under its own name."""
    module = sys.modules.get(module_of(value))
    if module is None or module_of(value).partition(".")[0] not in _LIBRARIES:
        return False
    return value is module or vars(module).get(name_of(value)) is value
