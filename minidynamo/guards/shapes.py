"""Owns the symbols of one traced frame: sizes and numbers that differ from call to call, and what was decided on them.

Symbols are torch's; a `ShapeEnv` is made when the first one is needed. Here is which place in the program each one
stands for, and how the decisions become guards over places. What has varied is known by `profile.py`; what a program
does with numbers is in `tracer/numbers/arithmetic.py`.
"""

from __future__ import annotations

import cmath
import datetime
import math
import numbers
import re
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any
from weakref import WeakKeyDictionary

import numpy as np
import torch

from minidynamo import compat
from minidynamo.core.dynamic_dims import Dimension, declared
from minidynamo.errors import DeclaredSizeFixed, Diagnostic, UserLocation
from minidynamo.guards.guard import Guard, GuardKind, TensorFacts
from minidynamo.guards.profile import FrameProfile, Line, Turns, relative_strides
from minidynamo.guards.source import (
    TENSOR_FACTS,
    Computed,
    Constant,
    Item,
    Local,
    Size,
    Source,
    StorageItem,
    Stride,
    TensorFact,
)
from minidynamo.guards.stable_names import stable_name

Layout = tuple[tuple[Any, ...], tuple[Any, ...]]  # sizes and strides: ints, and torch.SymInt

# Numbers beyond are no sizes, and do not fit into the integers of tensors.
_LARGEST = 2**62

# What torch's texts of conditions call: the user's names may mean something else.
_CALLED = {
    **{name: getattr(math, name.removeprefix("math.")) for name in ("math.floor", "math.ceil", "math.trunc")},
    "torch.sym_float": float,
    "torch._sym_sqrt": math.sqrt,
    **{function.__name__: function for function in (abs, max, min, round)},
}
_CALLS = re.compile(r"\b(?:" + "|".join(map(re.escape, _CALLED)) + r")(?=\()")

# What a number or length that was compared is, if that turns out to matter.
_FIXING = (GuardKind.EQUALS, GuardKind.LENGTH, GuardKind.DICT_KEYS, GuardKind.SET_ITEMS)

# Comparisons that say less than which number it is, and how they read from the right.
_TURNED = {"<": ">", ">": "<", "<=": ">=", ">=": "<=", "!=": "!="}

Number = int | float


class _Located(list[Any]):
    """The guards of a ShapeEnv, which notes the user's line of each."""

    def __init__(self, where: Callable[[], UserLocation | None]) -> None:
        super().__init__()
        self._where = where
        self.places: list[UserLocation | None] = []

    def append(self, guard: Any) -> None:
        super().append(guard)
        self.places.append(self._where())


class Shapes:
    """The symbols of one attempt at tracing a frame. `where` tells the user's line."""

    def __init__(self, profile: FrameProfile, where: Callable[[], UserLocation | None]) -> None:
        self._profile = profile
        self._where = where
        self._env: Any = None
        self._guards = _Located(where)
        self._announced = 0  # how many of them
        # Called with the places of numbers by which something has been decided.
        self.on_decision: Callable[[Source], object] = lambda place: None
        # Called with the place of a float that has become a constant by that, and the float.
        self.on_fixed: Callable[[Source, object], object] = lambda place, value: None
        self.varied_floats: set[Source] = set()  # places of them, and of what is as good as one
        self._places: dict[Any, list[Source]] = {}  # symbol -> where it can be read
        self._tensors: dict[Source, tuple[list[Any], list[Any]]] = {}  # sizes and strides as expressions
        self._numbers: dict[Source, Any] = {}
        self._floats: dict[Any, tuple[Source, float]] = {}
        self._declared: dict[Source, Any] = {}
        self._used: set[Source] = set()  # tensors, and sizes of tensors of which no more is used
        self._relations: dict[Source, Guard] = {}
        # Per line of the program how often what is unrolled there is, where that may be another number next time.
        self.unrolled: dict[Line, set[float | str]] = {}
        # The lines at which an earlier capture had another number, whether it was known to vary or not.
        self.differing: set[Line] = set()
        # Per frame how often each of its instructions compared numbers that may vary.
        self.compared: WeakKeyDictionary[Any, Counter[int]] = WeakKeyDictionary()

    @property
    def is_symbolic(self) -> bool:
        """Whether there are symbols."""
        return self._env is not None

    @property
    def turns(self) -> Turns | None:
        """How often what is unrolled was in earlier captures; None where nothing is to vary."""
        return None if self._profile.dynamic is False else self._profile.turns

    @property
    def env(self) -> Any:
        """torch's ShapeEnv of the frame."""
        if self._env is None:
            compat.load_symbols()
            self._env = compat.symbolic().ShapeEnv(allow_scalar_outputs=False, allow_dynamic_output_shape_ops=False)
            self._env.guards = self._guards
        return self._env

    # Making symbols

    def layout(self, source: Source, value: torch.Tensor) -> Layout:
        """Sizes and strides of the tensor at a source, symbols where they have varied or are declared to."""
        sizes, strides = tuple(value.shape), tuple(value.stride())
        name = stable_name(source)
        varied, jumps = self._profile.layout(name, sizes, strides)
        wanted = [self._is_dynamic(value, k, varied[k]) for k in range(len(sizes))]
        if not any(wanted) and not any(jumps):
            return sizes, strides
        said = declared(value)
        made = [
            self._size(Size(source, k), size, said.get(k)) if wanted[k] and size not in (0, 1) else size
            for k, size in enumerate(sizes)
        ]
        layout = tuple(made), self._strides(source, made, sizes, strides, jumps)
        if not any(isinstance(number, torch.SymInt) for part in layout for number in part):
            return sizes, strides
        self._tensors[source] = ([_expr(n) for n in layout[0]], [_expr(n) for n in layout[1]])
        return layout

    def _is_dynamic(self, value: torch.Tensor, dim: int, varied: bool) -> bool:
        found = declared(value).get(dim)
        if found is not None:
            return found.varies and self._profile.dynamic is not False
        if self._profile.dynamic and not isinstance(value, torch.nn.Parameter):
            return True
        return varied

    def _size(self, source: Source, size: int, said: Dimension | None) -> Any:
        """The symbol of a size. Equal sizes share one, unless they are declared to vary."""
        env = self.env
        kinds = compat.symbolic().DimDynamic
        symbol = env.create_symbol(size, _named(source), kinds.DUCK if said is None else kinds.DYNAMIC)
        made = self._symbol(source, size, symbol)
        if said is not None:
            self._declared[source] = symbol
            bool(said.least is None or made >= said.least)
            bool(said.most is None or made <= said.most)
        return made

    def _symbol(self, source: Source, value: int, symbol: Any) -> Any:
        self._places.setdefault(symbol, []).append(source)
        return self.env.create_symintnode(symbol, hint=value)

    def _strides(
        self,
        source: Source,
        made: Sequence[Any],
        sizes: Sequence[int],
        strides: Sequence[int],
        jumps: Sequence[bool],
    ) -> tuple[Any, ...]:
        """Strides follow from the sizes where they do in this call, have a symbol where they jump, or are constant."""
        found: dict[int, Any] = {}
        facts = relative_strides(sizes, strides)
        for k in sorted(range(len(sizes)), key=lambda k: (strides[k], -k)):
            fact = facts[k]
            if isinstance(fact, str):
                inner = int(fact[2:-1])
                found[k] = made[inner] * found[inner]
            elif jumps[k] and fact not in (0, 1):
                place = Stride(source, k)
                dynamic = compat.symbolic().DimDynamic.DYNAMIC
                found[k] = self._symbol(place, fact, self.env.create_symbol(fact, _named(place), dynamic))
            else:
                found[k] = fact
        return tuple(found[k] for k in range(len(sizes)))

    def varies(self, source: Source, value: int | float, of: Source | None = None) -> bool:
        """Whether the number at a source, that of an object at `of`, is not to be taken for a constant."""
        varied = self._profile.varies(stable_name(source), value)
        if varied and isinstance(value, float):
            self.varied_floats.add(source)
        if self._profile.dynamic and _is_argument(of or source):
            varied = True
        return varied and (isinstance(value, float) or abs(value) < _LARGEST)

    def has_varied(self, source: Source, value: object) -> bool:
        """Whether the number or date at a source, of a class that no symbol stands for, has had another value."""
        plain = value.item() if isinstance(value, np.generic) else value  # another class is no other number
        varied = self._profile.varies(stable_name(source), repr(plain))
        if varied and isinstance(value, numbers.Number) and not isinstance(value, numbers.Integral):
            self.varied_floats.add(source)
        return varied

    def text_varies(self, source: Source, value: str) -> bool:
        """Whether the text at a source was made of a number that varies, by Python at a graph break, or has been
        another one in a frame behind a graph break."""
        name = stable_name(source)
        if self._profile.dynamic is not False and self._profile.numbers.get(name, "") is None:
            self.varied_floats.add(source)
            return True
        return self._profile.text_varies(name, value)

    def object_varies(self, source: Source, value: object) -> bool:
        """Whether what is guarded by its identity has been another one in a frame behind a graph break."""
        return self._profile.text_varies(stable_name(source), str(id(value)))

    def expect_change(self, source: Source | None) -> None:
        """Take the number at a source for one that varies, from the first value on."""
        if source is not None:
            self._profile.numbers[stable_name(source)] = None

    def integer(self, source: Source, value: int) -> Any:
        """A symbol for the int at a source, which may be any."""
        env = self.env
        dynamic = compat.symbolic().DimDynamic.DYNAMIC
        symbol = env.create_unspecified_symbol(value, _named(source), dynamic)
        self._numbers[source] = symbol
        self._used.add(source)
        return self._symbol(source, value, symbol)

    def float(self, source: Source, value: float) -> Any:
        """A symbol for the float at a source, which may be any."""
        env = self.env
        dynamic = compat.symbolic().DimDynamic.DYNAMIC
        symbol = env.create_unspecified_symbol(value, _named(source), dynamic)
        self._floats[symbol] = (source, value)
        return self.env.create_symfloatnode(symbol, hint=value)

    # Asking

    def use(self, source: Source) -> None:
        """The facts of the tensor at a source are guarded from now on."""
        self._used.add(source)

    def use_size(self, place: Size) -> None:
        """The size at a place is guarded from now on, whatever else the tensor is."""
        self._used.add(place)

    def place_of(self, number: Any) -> Source:
        """Where a symbolic int can be read, as Python computes it of what is guarded."""
        return self._computed(_expr(number))

    def sizes_behind(self, tensor: torch.Tensor) -> list[Source]:
        """The places of the symbolic sizes that those of a tensor are computed of."""
        sizes = [_expr(size) for size in tensor.shape if isinstance(size, torch.SymInt)]
        return [place for expr in sizes for symbol in expr.free_symbols for place in self._places.get(symbol, ())]

    def constant_behind(self, number: Any) -> int | None:
        """What a symbolic int has turned out to be; None when it may be any."""
        return self._constant(_expr(number))

    def fixed(self, guards: Iterable[Guard]) -> Iterable[tuple[Source, Number | str, UserLocation | None]]:
        """The numbers that may vary, texts, and objects, that have become constants nevertheless, and the line that
        needs each; `guards` are all those of the frame."""
        for expr, where in self._located():
            equality, integer = compat.symbolic().Eq, compat.symbolic().Integer
            values = [side for side in expr.args if isinstance(side, integer)] if isinstance(expr, equality) else []
            for symbol in expr.free_symbols.intersection(self._places) if values else ():
                yield self._place(symbol), int(values[0]), where
        for guard in guards:
            if guard.kind is GuardKind.EQUALS and _is_read(guard.expected) and self._has_varied(guard.source):
                yield guard.source, guard.expected, guard.where
            elif guard.kind is GuardKind.IDENTITY and self._profile.texts.get(stable_name(guard.source), "") is None:
                yield guard.source, str(id(guard.expected)), guard.where

    def depends_on_float(self, number: torch.SymInt) -> bool:
        """Whether a float is among what a size is computed of."""
        return not self._floats.keys().isdisjoint(number.node.expr.free_symbols)

    def announce_decisions(self) -> None:
        """Tell `on_decision` what has been decided on symbols: torch, which decides, must not see it raise."""
        while self._announced < len(self._guards):
            self._announced += 1
            expr = self._guards[self._announced - 1].expr
            for symbol in expr.free_symbols:
                for place in self._places.get(symbol, ()):
                    self.on_decision(place)
                if symbol in self._floats:
                    place, value = self._floats[symbol]
                    self.on_decision(place)
                    if self._compared(expr) is None:
                        self.on_fixed(place, value)

    def _has_varied(self, source: Source) -> bool:
        numbers, texts = self._profile.numbers, self._profile.texts
        names = map(stable_name, (source, *source.bases()))
        return any(numbers.get(name, 0) is None or texts.get(name, "") is None for name in names)

    def require(self, condition: Source, answer: bool) -> None:
        """Guard a condition over numbers that is not one of the ShapeEnv's."""
        self.on_decision(condition)
        self._relations.setdefault(condition, Guard(condition, GuardKind.RELATION, answer, self._where()))

    def _computed(self, expr: Any) -> Source:
        text, symbols = compat.symbolic().text(expr)
        if text == "{0}":
            return self._place(symbols[0])
        places = [self._place(symbol) for symbol in symbols]
        operands = [f"({{{n}}})" if isinstance(place, Computed) else f"{{{n}}}" for n, place in enumerate(places)]
        called = dict.fromkeys(_CALLS.findall(text))
        numbers = {name: len(places) + n for n, name in enumerate(called)}
        text = _CALLS.sub(lambda found: f"{{{numbers[found[0]]}}}", text)
        functions = [Constant(_CALLED[name], _CALLED[name].__name__) for name in called]
        operands += [f"{{{n}}}" for n in numbers.values()]
        return Computed(text.format(*operands), (*places, *functions))

    def _place(self, symbol: Any) -> Source:
        """The first place of a symbol whose guards are installed."""
        places = self._places[symbol]
        return next((place for place in places if self._is_used(place)), places[0])

    def _is_used(self, place: Source) -> bool:
        return place in self._used or (isinstance(place, Size | Stride) and place.of in self._used)

    # Guards

    def guards(self, given: Iterable[Guard]) -> list[Guard]:
        """The guards of the frame, with what was decided on symbols: call it when nothing more will be decided."""
        if self._env is not None:
            self._check_declared()
        found = [self._refined(guard) if guard.source in self._tensors else guard for guard in given]
        fixed = {guard.source for guard in found if guard.kind in _FIXING}
        tensors = {guard.source: guard.expected for guard in found if guard.kind is GuardKind.TENSOR}
        found = [guard for guard in found if not _is_part_of_known(guard, fixed, tensors)]
        relations = [guard for guard in self._relations.values() if not _is_settled(guard.source, fixed, tensors)]
        if self._env is None:
            return [*found, *relations]
        made: list[Guard] = [*self._sizes(), *self._integers(), *self._decisions(), *self._ranges()]
        return list(dict.fromkeys([*found, *relations, *made]))

    def _check_declared(self) -> None:
        """Raise DeclaredSizeFixed when a size that is declared to vary has become a constant."""
        for place, symbol in self._declared.items():
            constant = self._constant(symbol)
            if constant is None:
                continue
            lines = [where for expr, where in self._located() if symbol in expr.free_symbols and where is not None]
            what = f"`{place.display()}` is declared to vary, but the program works for {constant} only"
            why = "This line needs the number itself." if lines else "A stage behind the capture needs the number."
            fix = "Write the line without the number, or leave out mark_dynamic."
            raise DeclaredSizeFixed(Diagnostic("MD311", what, why, fix, where=lines[-1] if lines else None))

    def _refined(self, guard: Guard) -> Guard:
        """The guard of a tensor, with the sizes that were found to be constant."""
        if guard.kind is not GuardKind.TENSOR:
            return guard
        facts: TensorFacts = guard.expected
        sizes, strides = ([self._constant(e) for e in part] for part in self._tensors[guard.source])
        return replace(guard, expected=replace(facts, shape=tuple(sizes), stride=tuple(strides)))

    def _constant(self, expr: Any) -> int | None:
        final = self.env.replace(expr)
        return int(final) if isinstance(final, int | compat.symbolic().Integer) else None

    def _sizes(self) -> Iterable[Guard]:
        """That sizes and strides which are the same symbol are equal, or follow from the others."""
        for source, (sizes, strides) in self._tensors.items():
            for kind, exprs in ((Size, sizes), (Stride, strides)):
                for dim, expr in enumerate(exprs):
                    place = kind(source, dim)
                    constant = self._constant(expr)
                    if constant is not None and place in self._used and source not in self._used:
                        yield Guard(place, GuardKind.EQUALS, constant)
                    elif constant is None and self._is_used(place) and self._place_now(expr) != place:
                        yield self._equal(place, self.env.replace(expr))

    def _place_now(self, expr: Any) -> Source:
        return self._computed(self.env.replace(expr))

    def _equal(self, place: Source, expr: Any) -> Guard:
        other = self._computed(expr)
        if isinstance(other, Computed):
            text = f"{_shifted(other.template, 1)} == {{0}}"
            return Guard(Computed(text, (place, *other.operands)), GuardKind.RELATION, True)
        return Guard(Computed("{0} == {1}", (place, other)), GuardKind.RELATION, True)

    def _integers(self) -> Iterable[Guard]:
        for source, symbol in self._numbers.items():
            constant = self._constant(symbol)
            where = next((w for g, w in self._located() if symbol in g.free_symbols), None)
            if constant is not None:
                yield Guard(source, GuardKind.EQUALS, constant, where)
            elif self._computed(self.env.replace(symbol)) != source:
                yield replace(self._equal(source, self.env.replace(symbol)), where=where)

    def _located(self) -> Iterable[tuple[Any, UserLocation | None]]:
        return ((guard.expr, where) for guard, where in zip(self._guards, self._guards.places))

    def _decisions(self) -> Iterable[Guard]:
        """The conditions that were evaluated, unless they follow from sizes and ranges."""
        for expr, where in self._located():
            floats = [self._floats[s] for s in expr.free_symbols if s in self._floats]
            compared = self._compared(expr) if floats else None
            if compared is not None:
                yield Guard(compared, GuardKind.RELATION, True, where)
                continue
            if floats:
                yield from (Guard(source, GuardKind.EQUALS, value, where) for source, value in floats)
                continue
            final = self.env.replace(expr)
            if not getattr(final, "free_symbols", ()) or self._follows_from_ranges(final):
                continue
            place = self._computed(final)
            if all(self._is_used(p) for p in place.bases() if isinstance(p, Size | Stride)):
                yield Guard(place, GuardKind.RELATION, True, where)

    def _compared(self, expr: Any) -> Source | None:
        """The condition that is decided, where that compares a float with a number: the same to Python. Any other one
        may have been turned around by arithmetic that rounds, and fixes its floats."""
        sign, (left, right) = getattr(expr, "rel_op", "=="), (*expr.args, None, None)[:2]
        if right in self._floats:
            sign, left, right = _TURNED.get(sign, "=="), right, left
        if left not in self._floats or sign not in _TURNED or not getattr(right, "is_Number", False):
            return None
        return Computed(f"{{0}} {sign} {float(right)!r}", (self._floats[left][0],))

    def _follows_from_ranges(self, expr: Any) -> bool:
        answered: bool = compat.symbolic().follows(self.env, expr)
        return answered

    def _ranges(self) -> Iterable[Guard]:
        for symbol in self._places:
            place = self._place(symbol)
            if not self._is_used(place) or self.env.replace(symbol) != symbol:
                continue
            bounds = self.env.var_to_range[symbol]
            lower, upper = _bound(bounds.lower), _bound(bounds.upper)
            where = next((w for g, w in self._located() if symbol in g.free_symbols), None)
            texts = [f"{lower} <= "] * (lower is not None), [f" <= {upper}"] * (upper is not None)
            if texts != ([], []):
                text = "".join([*texts[0], "{0}", *texts[1]])
                yield Guard(Computed(text, (place,)), GuardKind.RELATION, True, where if lower != 2 or upper else None)


def _is_read(value: object) -> bool:
    """Whether a guard on a value says that a number, a text of one, or a date is needed; of ints, symbols tell."""
    if isinstance(value, str | int):
        return type(value) is str
    if isinstance(value, datetime.date | datetime.time | datetime.timedelta):
        return True
    return isinstance(value, numbers.Complex) and cmath.isfinite(complex(value))


def _is_settled(condition: Source, fixed: Collection[Source], tensors: Mapping[Source, TensorFacts]) -> bool:
    """Whether it is about values, lengths of containers, and facts about tensors that are what they are."""
    operands = condition.operands if isinstance(condition, Computed) else (condition,)
    plain = (int, float, str, type(len))  # a container that is a constant may grow
    return all(
        operand in fixed
        or (isinstance(operand, Constant) and type(operand.value) in plain)
        or (isinstance(operand, TENSOR_FACTS) and operand.of in tensors and _is_fixed(operand, tensors[operand.of]))
        for operand in operands
    )


def _is_part_of_known(guard: Guard, fixed: Collection[Source], tensors: Mapping[Source, TensorFacts]) -> bool:
    """Whether it tells something about a value that is guarded as a whole."""
    is_part = guard.kind is GuardKind.EQUALS and isinstance(guard.source, Computed)
    return is_part and _is_settled(guard.source, fixed, tensors)


def _is_fixed(fact: Size | Stride | TensorFact, facts: TensorFacts) -> bool:
    """Whether the guard of a whole tensor says what it is."""
    if isinstance(fact, TensorFact):
        return True
    return (facts.shape if isinstance(fact, Size) else facts.stride)[fact.dim] is not None


def _expr(number: Any) -> Any:
    return number.node.expr if isinstance(number, torch.SymInt) else compat.symbolic().Integer(number)


def _bound(bound: Any) -> int | None:
    """The bound of a range; None when it is infinite."""
    is_number = isinstance(bound, int | compat.symbolic().Integer) and abs(int(bound)) < _LARGEST
    return int(bound) if is_number else None


def _shifted(template: str, by: int) -> str:
    """The template with the operands counted from `by`."""
    return template.format(*(f"{{{position + by}}}" for position in range(template.count("{"))))


def _is_argument(source: Source) -> bool:
    """Whether a value was handed to the frame, alone or in a list, tuple or dict."""
    return all(isinstance(part, Local | Item | StorageItem) for part in (source, *source.bases()))


def _named(source: Source) -> Any:
    return compat.symbolic().NamedSource(stable_name(source))
