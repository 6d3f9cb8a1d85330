"""Owns the reading of sources in generated conditions: a value that several guards need is read once, into a temporary.

Writes no conditions; `guard.py` and `check.py` do. `guard.reader_of` enters the classes that guards fix.
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
from minidynamo.core.records import record
from minidynamo.guards.source import Attr, Computed, Constant, Derived, InstanceAttr, Item, Local, Source, TypeOf

_LIBRARIES = frozenset({"torch", "builtins", *sys.stdlib_module_names}) - {"__main__"}


@record(frozen=True)
class ReadValues:
    """Values that a walk has read, as the elements of a tuple."""

    #: the name of the tuple
    name: str
    #: the source of each element
    sources: Sequence[Source]

    @functools.cached_property
    def indices(self) -> dict[Source, int]:
        """Maps each source to its index."""
        return {source: index for index, source in enumerate(self.sources)}

    def part(self, first: int, count: int) -> str:
        """Returns text for `count` of the values as arguments of a call or items of a list."""
        if count == 1:
            return f"{self.name}[{first}]"
        return f"*{self.name}" if count == len(self.sources) else f"*{self.name}[{first}:{first + count}]"


# Marks the value of a numbered source in a text; no literal contains the character.
_MARK = re.compile("\0([0-9]+)\0")
# A value nested deeper than this is read before the text that needs it: Python parses at most 200 nested parentheses.
_MOST_NESTED = 50


class Reader:
    """Writes text for the values of sources.

    The texts from `read` contain marks for values. When all texts are written, `finished` replaces the marks: by the
    read itself if the value is needed once, else by a temporary. Values in `found` are not read again.
    """

    def __init__(self, names: Namespace, found: ReadValues | None = None) -> None:
        self.names = names
        #: the classes that guards fix, and the objects
        self.classes: dict[Source, type] = {}
        self.objects: dict[Source, object] = {}
        #: the ids of classes that guards keep alive
        self.held: set[int] = set()
        self._found = found or ReadValues("", ())
        self._numbers: dict[Source, int] = {}
        self._texts: list[str] = []
        #: the nesting of each text, and the numbers to bind before the text that contains their marks
        self._depths: list[int] = []
        self._early: set[int] = set()
        self._reads: Counter[int] = Counter()
        self._temporaries: dict[int, str] = {}
        self._bound: dict[str, None] = {}

    def fork(self) -> Reader:
        """Returns a reader for a separate condition, with the same names and the same texts of sources."""
        reader = Reader(self.names, self._found)
        reader.classes, reader.objects, reader.held = self.classes, self.objects, self.held
        reader._numbers, reader._texts = self._numbers, self._texts
        reader._depths, reader._early = self._depths, self._early
        return reader

    def read(self, source: Source) -> str:
        """Returns text, with marks, for the value at `source`."""
        index = self._found.indices.get(source)
        if index is not None:
            return self._found.part(index, 1)
        if not isinstance(source, (Derived, Computed)):
            return source.expression(self.names)
        number = self._numbers.get(source)
        if number is None:
            text = self._text(source)
            number = self._numbers[source] = len(self._texts)
            self._texts.append(text)
            self._depths.append(self._depth(text))
            if self._depths[number] > _MOST_NESTED:
                self._early.add(number)
        return f"\0{number}\0"

    def finished(self, texts: Sequence[str]) -> list[str]:
        """Returns the texts without marks, for evaluation in this order."""
        self.count(texts)
        return [self._conjunct(text) for text in texts]

    def _conjunct(self, text: str) -> str:
        early = [statement.replace(" = ", " := ", 1) for statement in self.statements(text)]
        # A list with items is true.
        return f"[{', '.join(early)}] and ({self.write(text)})" if early else self.write(text)

    def count(self, texts: Iterable[str]) -> None:
        """Counts the reads of the texts; all texts must be counted before the first is written."""
        for text in texts:
            for mark in _MARK.findall(text):
                number = int(mark)
                self._reads[number] += 1
                if self._reads[number] == 1:
                    self.count([self._texts[number]])

    def write(self, text: str) -> str:
        """Returns `text` without marks, for evaluation after all earlier written texts and `statements(text)`."""
        return _MARK.sub(self._value, text)

    def statements(self, text: str) -> list[str]:
        """Lists the statements that bind values before `text` is evaluated; call this before `text` is written."""
        return [self._statement(number) for number in self._early_in(text)]

    def _statement(self, number: int) -> str:
        text = self.write(self._texts[number])
        return f"{self._bind(number)} = {text}"

    def _early_in(self, text: str) -> list[int]:
        """Lists the values in `text` to bind before it, operands first."""
        found: set[int] = set()
        pending = [text] if self._early else []
        while pending:
            for mark in _MARK.findall(pending.pop()):
                number = int(mark)
                if number not in found and self._temporaries.get(number) not in self._bound:
                    found.add(number)
                    pending.append(self._texts[number])
        return sorted(found & self._early)  # the numbers of operands are lower

    def _depth(self, text: str) -> int:
        """Returns how deep the parentheses of a text without its early values are nested, or some more."""
        operands = [self._depths[number] for mark in _MARK.findall(text) if (number := int(mark)) not in self._early]
        return text.count("(") + text.count("[") + 1 + max(operands, default=0)

    def _value(self, mark: re.Match[str]) -> str:
        number = int(mark[1])
        name = self._temporaries.get(number)
        if name in self._bound:
            return name
        text = self.write(self._texts[number])
        if name is None and self._reads[number] == 1:
            return text
        return f"({self._bind(number)} := {text})"

    def _bind(self, number: int) -> str:
        if number not in self._temporaries:
            self._temporaries[number] = self.names.fresh("t")
        self._bound[self._temporaries[number]] = None
        return self._temporaries[number]

    def listed(self, sources: Iterable[Source]) -> str:
        """Returns text of the values, separated by commas; found values with consecutive indices become a range."""
        indices = self._found.indices
        numbered = ((indices.get(source), position, source) for position, source in enumerate(sources))
        texts: list[str] = []
        for _, group in itertools.groupby(numbered, lambda each: each[1] if each[0] is None else (each[1] - each[0],)):
            (first, _, source), *others = group
            texts.append(self.read(source) if first is None else self._found.part(first, len(others) + 1))
        return ", ".join(texts)

    def found_index(self, source: Source) -> int:
        """Returns the index of a found value; -1 for a value that is still to be read."""
        return self._found.indices.get(source, -1)

    def name(self, source: Source, hint: str) -> str:
        """Returns a name for the value at `source`, bound at the first read of the source."""
        mark = _MARK.fullmatch(text := self.read(source))
        if mark is None:
            return text
        number = int(mark[1])
        if number not in self._temporaries:
            self._temporaries[number] = self.names.fresh(hint)
        return self._temporaries[number]

    def assignment(self, source: Source) -> list[str]:
        """Lists the statements that bind the name of the value at `source`; none if the name is bound."""
        mark = _MARK.fullmatch(text := self.read(source))
        if mark is None or self._temporaries[number := int(mark[1])] in self._bound:
            return []
        statements = self.statements(text)
        return statements if number in self._early else [*statements, self._statement(number)]

    def _text(self, source: Derived | Computed) -> str:
        """Returns the text of a source in terms of its operands."""
        if isinstance(source, InstanceAttr):  # read through the instance's dictionary, which other guards share
            source = Item(Attr(source.of, "__dict__"), source.name)
        if isinstance(source, Attr) and (looks_up := _own_lookup(self.class_of(source.of))) is not None:
            past = self.constant(looks_up, "getattribute")
            return f"{past}({self.read(source.of)}, {source.name!r})"
        if isinstance(source, Derived):
            return dataclasses.replace(source, of=Local(self.read(source.of))).expression(self.names)
        # A skipped operand would leave its temporary unbound.
        skips = any(word in source.template for word in (" or ", " and ", " if "))
        return source.template.format(
            *(self._unskipped(part) if skips else self.read(part) for part in source.operands)
        )

    def _unskipped(self, source: Source) -> str:
        """Returns text for a value that is bound early, or read without temporaries."""
        if not isinstance(source, Computed):
            return source.expression(self.names)
        text = self.read(source)
        self._early.update(map(int, _MARK.findall(text)))
        return text

    def temporaries(self) -> list[str]:
        """Lists the names that the finished texts bind, in order."""
        return list(self._bound)

    def constant(self, value: object, hint: str) -> str:
        """Names an object that the condition may keep alive."""
        return self.names.constant(value, hint)

    def reference(self, value: object) -> tuple[str, bool]:
        """Returns a name for `value`, to compare by identity, and whether the name is a weak reference that must be
        called.

        Objects that a library module or a guard keeps alive are named directly; all others are named weakly if their
        type allows it.
        """
        hint = name_of(value)
        if id(value) not in self.held and not _is_from_library(value):
            weak = self.names.weak(value, hint)
            if weak is not None:
                return weak, True
        return self.names.constant(value, hint), False

    def class_of(self, source: Source) -> type | None:
        """Returns the guarded class of the value at `source`; None if no guard fixes the class."""
        if isinstance(source, Constant):
            return type(source.value)
        return self.classes.get(source)

    def class_at(self, source: Source) -> type | None:
        """Returns the class object at `source`, if the guards fix it."""
        if isinstance(source, TypeOf):
            return self.class_of(source.of)
        value = source.value if isinstance(source, Constant) else self.objects.get(source)
        return value if isinstance(value, type) else None


def _own_lookup(cls: type | None) -> Callable[[Any, str], Any] | None:
    """Returns a lookup that bypasses a user-defined `__getattribute__` of the class; None if the class has none."""
    if cls is None or not isinstance(cls.__getattribute__, types.FunctionType):
        return None
    return type.__getattribute__ if issubclass(cls, type) else object.__getattribute__


def _is_from_library(value: object) -> bool:
    """Returns whether torch or the standard library holds the object permanently, under its own name."""
    module = sys.modules.get(module_of(value))
    if module is None or module_of(value).partition(".")[0] not in _LIBRARIES:
        return False
    return value is module or vars(module).get(name_of(value)) is value
