"""Owns the symbols of one traced frame: sizes and numbers that may differ from call to call, and decisions on them.

The symbols are torch's; the first use creates a `ShapeEnv`. This file maps symbols to sources, and turns decisions into
guards on sources. `profile.py` records varied values; `tracer/numbers/arithmetic.py` handles the program's arithmetic.
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
from minidynamo.core.directives import Dimension, declared
from minidynamo.core.lazy_modules import load_once
from minidynamo.errors import DeclaredSizeFixed, Diagnostic, UserLocation
from minidynamo.guards.guard import Guard, GuardKind
from minidynamo.guards.profile import FrameProfile, Line, TripCounts, relative_strides
from minidynamo.guards.source import (
    TENSOR_FACTS,
    Computed,
    Constant,
    Item,
    Local,
    Size,
    Source,
    Stride,
    SubclassItem,
    TensorFact,
    is_drawn,
    stable_name,
)
from minidynamo.guards.tensors import Layout, TensorFacts

# Larger numbers are no sizes, and do not fit into the integers of tensors.
_LARGEST = 2**62

# The functions called in torch's texts of conditions, as objects: the user may have rebound the names.
_CALLED = {
    **{name: getattr(math, name.removeprefix("math.")) for name in ("math.floor", "math.ceil", "math.trunc")},
    "torch.sym_float": float,
    "torch._sym_sqrt": math.sqrt,
    **{function.__name__: function for function in (abs, max, min, round)},
}
_CALLS = re.compile(r"\b(?:" + "|".join(map(re.escape, _CALLED)) + r")(?=\()")

# Guard kinds that fix a compared number or length.
_FIXING = (GuardKind.EQUALS, GuardKind.LENGTH, GuardKind.DICT_KEYS, GuardKind.SET_ITEMS)

# Inequalities, and their mirror images with the operands swapped.
_MIRRORED = {"<": ">", ">": "<", "<=": ">=", ">=": "<=", "!=": "!="}

Number = int | float


class _Located(list[Any]):
    """The guards of a ShapeEnv, with the user's line of each."""

    def __init__(self, where: Callable[[], UserLocation | None]) -> None:
        super().__init__()
        self._where = where
        self.lines: list[UserLocation | None] = []

    def append(self, guard: Any) -> None:
        super().append(guard)
        self.lines.append(self._where())

    def remove(self, guard: Any) -> None:
        del self.lines[self.index(guard)]
        super().remove(guard)


class Shapes:
    """The symbols of one attempt to trace a frame. `where()` returns the user's line."""

    def __init__(self, profile: FrameProfile, where: Callable[[], UserLocation | None]) -> None:
        self._profile = profile
        self._where = where
        self._env: Any = None
        self._guards = _Located(where)
        self._reported = 0  # number of decisions passed to `on_decision`
        # Called with the sources of numbers on which a decision was made.
        self.on_decision: Callable[[Source], object] = lambda source: None
        # Called with the source of a float that a decision has made constant, and the float.
        self.on_fixed: Callable[[Source, object], object] = lambda source, value: None
        self.varied_floats: set[Source] = set()  # sources of varied floats, and of values that hold one
        self._sources: dict[Any, list[Source]] = {}  # symbol -> sources from which it can be read
        self._tensors: dict[Source, tuple[list[Any], list[Any]]] = {}  # sizes and strides as expressions
        self._numbers: dict[Source, Any] = {}
        self._floats: dict[Any, tuple[Source, float]] = {}
        self._declared: dict[Source, Any] = {}
        self._used: set[Source] = set()  # tensors, and sizes of tensors that are not used otherwise
        self._relations: dict[Source, Guard] = {}
        # Per program line: the trip counts of the unrolled loop, where the trip count may vary.
        self.unrolled: dict[Line, set[float | str]] = {}
        # The lines with another trip count in an earlier capture, whether or not the count was known to vary.
        self.differing: set[Line] = set()
        # Per frame: the number of comparisons of symbolic numbers at each instruction.
        self.compared: WeakKeyDictionary[Any, Counter[int]] = WeakKeyDictionary()

    @property
    def is_symbolic(self) -> bool:
        """Returns whether symbols exist."""
        return self._env is not None

    @property
    def trip_counts(self) -> TripCounts | None:
        """Returns the trip counts of earlier captures; None if nothing may vary."""
        return None if self._profile.dynamic is False else self._profile.trip_counts

    @property
    def env(self) -> Any:
        """Returns torch's ShapeEnv of the frame, created on first use."""
        if self._env is None:
            load_once(compat.load_symbols)
            self._env = compat.symbolic().ShapeEnv(allow_scalar_outputs=False, allow_dynamic_output_shape_ops=False)
            self._env.guards = self._guards
        return self._env

    # Making symbols

    def layout(self, source: Source, value: torch.Tensor) -> Layout:
        """Returns sizes and strides of the tensor at a source, with symbols for dimensions that have varied or are
        declared to.
        """
        sizes, strides = tuple(value.shape), tuple(value.stride())
        if is_drawn(source):  # the same at each call
            return sizes, strides
        name = stable_name(source)
        varied, varied_strides = self._profile.layout(name, sizes, strides)
        wanted = [self._is_dynamic(value, k, varied[k]) for k in range(len(sizes))]
        if not any(wanted) and not any(varied_strides):
            return sizes, strides
        declarations = declared(value)
        symbolic_sizes = [
            self._size(Size(source, k), size, declarations.get(k)) if wanted[k] and size not in (0, 1) else size
            for k, size in enumerate(sizes)
        ]
        layout = tuple(symbolic_sizes), self._strides(source, symbolic_sizes, sizes, strides, varied_strides)
        if not any(isinstance(number, torch.SymInt) for part in layout for number in part):
            return sizes, strides
        self._tensors[source] = ([_expr(n) for n in layout[0]], [_expr(n) for n in layout[1]])
        return layout

    def _is_dynamic(self, value: torch.Tensor, dim: int, varied: bool) -> bool:
        declaration = declared(value).get(dim)
        if declaration is not None:
            return declaration.varies and self._profile.dynamic is not False
        if self._profile.dynamic and not isinstance(value, torch.nn.Parameter):
            return True
        return varied

    def is_declared(self, size: int | torch.SymInt) -> bool:
        """Returns whether a size depends on a size that is declared to vary."""
        return not _expr(size).free_symbols.isdisjoint(self._declared.values())

    def _size(self, source: Source, size: int, declaration: Dimension | None) -> Any:
        """Creates the symbol of a size. Equal sizes share a symbol, unless they are declared to vary."""
        env = self.env
        kinds = compat.symbolic().DimDynamic
        symbol = env.create_symbol(size, _torch_source(source), kinds.DUCK if declaration is None else kinds.DYNAMIC)
        size_symbol = self._symbol(source, size, symbol)
        if declaration is not None:
            self._declared[source] = symbol
            bool(declaration.least is None or size_symbol >= declaration.least)
            bool(declaration.most is None or size_symbol <= declaration.most)
        return size_symbol

    def _symbol(self, source: Source, value: int, symbol: Any) -> Any:
        self._sources.setdefault(symbol, []).append(source)
        return self.env.create_symintnode(symbol, hint=value)

    def _strides(
        self,
        source: Source,
        symbolic_sizes: Sequence[Any],
        sizes: Sequence[int],
        strides: Sequence[int],
        varied_strides: Sequence[bool],
    ) -> tuple[Any, ...]:
        """Returns the strides: computed from sizes where this call allows it, symbols where strides vary, else
        constants.
        """
        symbolic_strides: dict[int, Any] = {}
        facts = relative_strides(sizes, strides)
        for k in sorted(range(len(sizes)), key=lambda k: (strides[k], -k)):
            fact = facts[k]
            if isinstance(fact, str):
                inner = int(fact[2:-1])
                symbolic_strides[k] = symbolic_sizes[inner] * symbolic_strides[inner]
            elif varied_strides[k] and fact not in (0, 1):
                fact_source = Stride(source, k)
                dynamic = compat.symbolic().DimDynamic.DYNAMIC
                symbolic_strides[k] = self._symbol(
                    fact_source, fact, self.env.create_symbol(fact, _torch_source(fact_source), dynamic)
                )
            else:
                symbolic_strides[k] = fact
        return tuple(symbolic_strides[k] for k in range(len(sizes)))

    def varies(self, source: Source, value: int | float, of: Source | None = None) -> bool:
        """Returns whether the number at a source, an argument or a part of the object at `of`, should be symbolic."""
        varied = self._profile.varies(stable_name(source), value)
        if varied and isinstance(value, float):
            self.varied_floats.add(source)
        if self._profile.dynamic and _is_argument(of or source):
            varied = True
        return varied and (isinstance(value, float) or abs(value) < _LARGEST)

    def has_varied(self, source: Source, value: object) -> bool:
        """Returns whether a number or date of a class without symbols has had another value at its source."""
        plain = value.item() if isinstance(value, np.generic) else value  # a number of another class is the same number
        varied = self._profile.varies(stable_name(source), repr(plain))
        if varied and isinstance(value, numbers.Number) and not isinstance(value, numbers.Integral):
            self.varied_floats.add(source)
        return varied

    def text_varies(self, source: Source, value: str) -> bool:
        """Returns whether the text at a source was computed from a varying number at a graph break, or has been
        different in a frame after a graph break.
        """
        name = stable_name(source)
        if self._profile.dynamic is not False and self._profile.numbers.get(name, "") is None:
            self.varied_floats.add(source)
            return True
        return self._profile.text_varies(name, value)

    def object_varies(self, source: Source, value: object) -> bool:
        """Returns whether the object at a source, guarded by identity, has been different in a frame after a graph
        break.
        """
        return self._profile.text_varies(stable_name(source), str(id(value)))

    def expect_change(self, source: Source | None) -> None:
        """Makes the number at a source symbolic from its first value on."""
        if source is not None:
            self._profile.numbers[stable_name(source)] = None

    def integer(self, source: Source, value: int) -> Any:
        """Creates a symbol for the int at a source."""
        env = self.env
        dynamic = compat.symbolic().DimDynamic.DYNAMIC
        symbol = env.create_unspecified_symbol(value, _torch_source(source), dynamic)
        self._numbers[source] = symbol
        self._used.add(source)
        return self._symbol(source, value, symbol)

    def float(self, source: Source, value: float) -> Any:
        """Creates a symbol for the float at a source."""
        env = self.env
        dynamic = compat.symbolic().DimDynamic.DYNAMIC
        symbol = env.create_unspecified_symbol(value, _torch_source(source), dynamic)
        self._floats[symbol] = (source, value)
        return self.env.create_symfloatnode(symbol, hint=value)

    # Asking

    def use(self, source: Source) -> None:
        """Guards the facts of the tensor at a source from now on."""
        self._used.add(source)

    def use_size(self, source: Size) -> None:
        """Guards the size at `source` from now on, independently of the tensor's other facts."""
        self._used.add(source)

    def source_of(self, number: Any) -> Source:
        """Returns a source for a symbolic int, computed by Python from guarded sources."""
        return self._computed(_expr(number))

    def sources_of_sizes(self, tensor: torch.Tensor) -> list[Source]:
        """Lists the sources of the symbols in the sizes of a tensor."""
        sizes = [_expr(size) for size in tensor.shape if isinstance(size, torch.SymInt)]
        return [source for expr in sizes for symbol in expr.free_symbols for source in self._sources.get(symbol, ())]

    def known_constant(self, number: Any) -> int | None:
        """Returns the value of a symbolic int that has become constant; None if it is still symbolic."""
        return self._constant(_expr(number))

    def fixed(self, guards: Iterable[Guard]) -> Iterable[tuple[Source, Number | str, UserLocation | None]]:
        """Yields source, value and line of each varying number, text or object that has become a constant; the line
        needs the constant. `guards` are all guards of the frame.
        """
        for expr, where in self._located():
            equality, integer = compat.symbolic().Eq, compat.symbolic().Integer
            values = [side for side in expr.args if isinstance(side, integer)] if isinstance(expr, equality) else []
            for symbol in expr.free_symbols.intersection(self._sources) if values else ():
                yield self._source_of_symbol(symbol), int(values[0]), where
        for guard in guards:
            if (
                guard.kind is GuardKind.EQUALS
                and _is_fixed_without_symbol(guard.expected)
                and self._is_varying(guard.source)
            ):
                yield guard.source, guard.expected, guard.where
            elif guard.kind is GuardKind.IDENTITY and self._profile.texts.get(stable_name(guard.source), "") is None:
                yield guard.source, str(id(guard.expected)), guard.where

    def depends_on_float(self, number: torch.SymInt) -> bool:
        """Returns whether a size is computed from a float."""
        return not self._floats.keys().isdisjoint(number.node.expr.free_symbols)

    def report_decisions(self) -> None:
        """Passes new decisions on symbols to `on_decision`. This is separate from the decision, since torch must not
        see `on_decision` raise.
        """
        while self._reported < len(self._guards):
            self._reported += 1
            expr = self._guards[self._reported - 1].expr
            for symbol in expr.free_symbols:
                for source in self._sources.get(symbol, ()):
                    self.on_decision(source)
                if symbol in self._floats:
                    source, value = self._floats[symbol]
                    self.on_decision(source)
                    if self._compared(expr) is None:
                        self.on_fixed(source, value)

    def kind_varies(self, source: Source) -> bool:
        """Returns whether the kind of the value at a source differs from call to call."""
        items = self._profile.items
        return bool(items.patterns) and self._profile.dynamic is not False and items.has(source)

    def _is_varying(self, source: Source) -> bool:
        numbers, texts = self._profile.numbers, self._profile.texts
        names = map(stable_name, (source, *source.bases()))
        return any(numbers.get(name, 0) is None or texts.get(name, "") is None for name in names)

    def require(self, condition: Source, answer: bool) -> None:
        """Guards a condition over numbers that the ShapeEnv does not know."""
        self.on_decision(condition)
        self._relations.setdefault(condition, Guard(condition, GuardKind.RELATION, answer, self._where()))

    def _computed(self, expr: Any) -> Source:
        text, symbols = compat.symbolic().text(expr)
        if text == "{0}":
            return self._source_of_symbol(symbols[0])
        sources = [self._source_of_symbol(symbol) for symbol in symbols]
        operands = [f"({{{n}}})" if isinstance(source, Computed) else f"{{{n}}}" for n, source in enumerate(sources)]
        called = dict.fromkeys(_CALLS.findall(text))
        numbers = {name: len(sources) + n for n, name in enumerate(called)}
        text = _CALLS.sub(lambda found: f"{{{numbers[found[0]]}}}", text)
        functions = [Constant(_CALLED[name], _CALLED[name].__name__) for name in called]
        operands += [f"{{{n}}}" for n in numbers.values()]
        return Computed(text.format(*operands), (*sources, *functions))

    def _source_of_symbol(self, symbol: Any) -> Source:
        """Returns the first source of a symbol whose guards are installed."""
        sources = self._sources[symbol]
        return next((source for source in sources if self._is_used(source)), sources[0])

    def _is_used(self, source: Source) -> bool:
        return source in self._used or (isinstance(source, Size | Stride) and source.of in self._used)

    # Guards

    def guards(self, installed: Iterable[Guard]) -> list[Guard]:
        """Returns the installed guards, with the decisions on symbols; call this after the last decision."""
        if self._env is not None:
            self._check_declared()
        found = [self._refined(guard) if guard.source in self._tensors else guard for guard in installed]
        fixed = {guard.source for guard in found if guard.kind in _FIXING}
        tensors = {guard.source: guard.expected for guard in found if guard.kind is GuardKind.TENSOR}
        found = [guard for guard in found if not _is_part_of_known(guard, fixed, tensors)]
        relations = [guard for guard in self._relations.values() if not _is_covered(guard.source, fixed, tensors)]
        if self._env is None:
            return [*found, *relations]
        guards: list[Guard] = [*self._sizes(), *self._integers(), *self._decisions(), *self._ranges()]
        return list(dict.fromkeys([*found, *relations, *guards]))

    def _check_declared(self) -> None:
        """Raises DeclaredSizeFixed if a size that is declared to vary has become a constant."""
        for source, symbol in self._declared.items():
            constant = self._constant(symbol)
            if constant is None:
                continue
            lines = [where for expr, where in self._located() if symbol in expr.free_symbols and where is not None]
            what = f"`{source.display()}` is declared to vary, but the program works for {constant} only"
            why = "This line needs the number itself." if lines else "A stage after capture needs the number."
            fix = "Write the line without the number, or leave out mark_dynamic."
            raise DeclaredSizeFixed(Diagnostic("MD311", what, why, fix, where=lines[-1] if lines else None))

    def _refined(self, guard: Guard) -> Guard:
        """Returns the guard of a tensor, with the sizes that have become constants."""
        if guard.kind is not GuardKind.TENSOR:
            return guard
        facts: TensorFacts = guard.expected
        sizes, strides = ([self._constant(e) for e in part] for part in self._tensors[guard.source])
        return replace(guard, expected=replace(facts, shape=tuple(sizes), stride=tuple(strides)))

    def _constant(self, expr: Any) -> int | None:
        final = self.env.replace(expr)
        return int(final) if isinstance(final, int | compat.symbolic().Integer) else None

    def _sizes(self) -> Iterable[Guard]:
        """Yields guards for sizes and strides that equal, or follow from, other sizes."""
        for source, (sizes, strides) in self._tensors.items():
            for kind, exprs in ((Size, sizes), (Stride, strides)):
                for dim, expr in enumerate(exprs):
                    fact = kind(source, dim)
                    constant = self._constant(expr)
                    if constant is not None and fact in self._used and source not in self._used:
                        yield Guard(fact, GuardKind.EQUALS, constant)
                    elif constant is None and self._is_used(fact) and self._present_source(expr) != fact:
                        yield self._equal(fact, self.env.replace(expr))

    def _present_source(self, expr: Any) -> Source:
        return self._computed(self.env.replace(expr))

    def _equal(self, source: Source, expr: Any) -> Guard:
        other = self._computed(expr)
        if isinstance(other, Computed):
            text = f"{_shifted(other.template, 1)} == {{0}}"
            return Guard(Computed(text, (source, *other.operands)), GuardKind.RELATION, True)
        return Guard(Computed("{0} == {1}", (source, other)), GuardKind.RELATION, True)

    def _integers(self) -> Iterable[Guard]:
        for source, symbol in self._numbers.items():
            constant = self._constant(symbol)
            where = next((w for g, w in self._located() if symbol in g.free_symbols), None)
            if constant is not None:
                yield Guard(source, GuardKind.EQUALS, constant, where)
            elif self._computed(self.env.replace(symbol)) != source:
                yield replace(self._equal(source, self.env.replace(symbol)), where=where)

    def _located(self) -> Iterable[tuple[Any, UserLocation | None]]:
        return ((guard.expr, where) for guard, where in zip(self._guards, self._guards.lines))

    def _decisions(self) -> Iterable[Guard]:
        """Yields guards for evaluated conditions, unless they follow from sizes and ranges."""
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
            condition = self._computed(final)
            if all(self._is_used(p) for p in condition.bases() if isinstance(p, Size | Stride)):
                yield Guard(condition, GuardKind.RELATION, True, where)

    def _compared(self, expr: Any) -> Source | None:
        """Returns the decided condition if it compares a float with a number, as Python would. Any other condition may
        have been rearranged by rounding arithmetic, and fixes its floats.
        """
        sign, (left, right) = getattr(expr, "rel_op", "=="), (*expr.args, None, None)[:2]
        if right in self._floats:
            sign, left, right = _MIRRORED.get(sign, "=="), right, left
        if left not in self._floats or sign not in _MIRRORED or not getattr(right, "is_Number", False):
            return None
        return Computed(f"{{0}} {sign} {float(right)!r}", (self._floats[left][0],))

    def _follows_from_ranges(self, expr: Any) -> bool:
        answered: bool = compat.symbolic().follows(self.env, expr)
        return answered

    def _ranges(self) -> Iterable[Guard]:
        for symbol in self._sources:
            source = self._source_of_symbol(symbol)
            if not self._is_used(source) or self.env.replace(symbol) != symbol:
                continue
            bounds = self.env.var_to_range[symbol]
            lower, upper = _bound(bounds.lower), _bound(bounds.upper)
            where = next((w for g, w in self._located() if symbol in g.free_symbols), None)
            texts = [f"{lower} <= "] * (lower is not None), [f" <= {upper}"] * (upper is not None)
            if texts != ([], []):
                text = "".join([*texts[0], "{0}", *texts[1]])
                yield Guard(Computed(text, (source,)), GuardKind.RELATION, True, where if lower != 2 or upper else None)


def _is_fixed_without_symbol(value: object) -> bool:
    """Returns whether an EQUALS guard on `value` fixes a text, a date, or a finite number other than an int; ints are
    found by their symbols.
    """
    if isinstance(value, str | int):
        return type(value) is str
    if isinstance(value, datetime.date | datetime.time | datetime.timedelta):
        return True
    return isinstance(value, numbers.Complex) and cmath.isfinite(complex(value))


def _is_covered(condition: Source, fixed: Collection[Source], tensors: Mapping[Source, TensorFacts]) -> bool:
    """Returns whether the operands of a condition are all fixed: guarded values and lengths, constants, tensor
    facts.
    """
    operands = condition.operands if isinstance(condition, Computed) else (condition,)
    plain = (int, float, str, type(len))  # a constant container may grow
    return all(
        operand in fixed
        or (isinstance(operand, Constant) and type(operand.value) in plain)
        or (isinstance(operand, TENSOR_FACTS) and operand.of in tensors and _is_fixed(operand, tensors[operand.of]))
        for operand in operands
    )


def _is_part_of_known(guard: Guard, fixed: Collection[Source], tensors: Mapping[Source, TensorFacts]) -> bool:
    """Returns whether a guard covers a property of a value that is guarded as a whole."""
    is_part = guard.kind is GuardKind.EQUALS and isinstance(guard.source, Computed)
    return is_part and _is_covered(guard.source, fixed, tensors)


def _is_fixed(fact: Size | Stride | TensorFact, facts: TensorFacts) -> bool:
    """Returns whether the guard of the whole tensor fixes the fact."""
    if isinstance(fact, TensorFact):
        return True
    return (facts.shape if isinstance(fact, Size) else facts.stride)[fact.dim] is not None


def _expr(number: Any) -> Any:
    return number.node.expr if isinstance(number, torch.SymInt) else compat.symbolic().Integer(number)


def _bound(bound: Any) -> int | None:
    """Returns the bound of a range; None if infinite."""
    is_number = isinstance(bound, int | compat.symbolic().Integer) and abs(int(bound)) < _LARGEST
    return int(bound) if is_number else None


def _shifted(template: str, by: int) -> str:
    """Returns the template with operand numbers increased by `by`."""
    return template.format(*(f"{{{position + by}}}" for position in range(template.count("{"))))


def _is_argument(source: Source) -> bool:
    """Returns whether a value was passed to the frame, directly or in a list, tuple or dict."""
    return all(isinstance(part, Local | Item | SubclassItem) for part in (source, *source.bases()))


def _torch_source(source: Source) -> Any:
    return compat.symbolic().NamedSource(stable_name(source))
