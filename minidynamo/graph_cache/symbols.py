"""Owns the symbolic numbers of a graph in its key: their names, known facts, and decisions made while compiling.

A key numbers symbols in the order of first use, independent of torch's names. When a stage after capture decides
something about symbols, the decision becomes a guard of the frame. An entry therefore stores the decisions, and loading
a graph repeats them. Keys never contain the value of a number in the compiled call.
"""

from __future__ import annotations

import contextlib
import math
from collections.abc import Iterator, Sequence
from typing import Any

import torch

from minidynamo import compat
from minidynamo.graph_cache.encoding import Damaged, NotStorable

Number = torch.SymInt | torch.SymFloat | torch.SymBool

# Functions that the text of a decision may call.
_ON_NUMBERS = {"__builtins__": {}, "math": math, "max": max, "min": min, "abs": abs}
_ON_SYMBOLS = {**_ON_NUMBERS, "max": torch.sym_max, "min": torch.sym_min}


class Symbols:
    """The symbols of one graph. `text` must name them before any other method is called. `env` is their ShapeEnv."""

    def __init__(self) -> None:
        self._names: dict[Any, str] = {}
        self._numbers: dict[str, Number] = {}
        self.env: Any = None
        self._known = 0

    def text(self, number: Number) -> str:
        """Returns the expression of a number, or its value if it has become constant."""
        constant = compat.constant_of(number)
        if constant is not None:
            return repr(constant)
        if self.env is None:
            self.env = number.node.shape_env
            self._known = len(self.env.guards)
        if self.env is not number.node.shape_env:
            raise NotStorable("its numbers belong to different frames")
        text = self._written(number.node.expr)
        if text in self._names.values() and not isinstance(number, torch.SymBool):
            self._numbers.setdefault(text, number)
        return text

    def _written(self, expr: Any) -> str:
        torch_symbols = compat.symbolic()
        for symbol in torch_symbols.text(expr)[1]:
            self._names.setdefault(symbol, f"n{len(self._names)}")
        # Terms are ordered by symbol names: substitute the names of the key before printing.
        named = {old: torch_symbols.Symbol(name, **old.assumptions0) for old, name in self._names.items()}
        template, symbols = torch_symbols.text(expr.xreplace(named))
        return str(template).format(*(symbol.name for symbol in symbols))

    def written(self, number: Number) -> str:
        """Returns the text of a number computed from the named symbols, for `read`; raises NotStorable."""
        expr = number.node.expr
        if self.env is None or not expr.free_symbols <= self._names.keys():
            raise NotStorable("it computes with numbers that are not its own")
        text = self._written(expr)
        if isinstance(number, torch.SymInt) or text in self._numbers:
            with self.env.suppress_guards(), contextlib.suppress(Exception):
                if self.read(text).node.expr == expr:
                    return text
        raise NotStorable(f"it computes {text}, which has no written form")

    def read(self, text: str) -> Number:
        """Returns the number that `written` described, computed from the numbers of this graph."""
        value = eval(text, dict(_ON_SYMBOLS), dict(self._numbers))
        if type(value) is int:
            return self.env.create_symintnode(compat.symbolic().Integer(value), hint=value)  # type: ignore[no-any-return]
        if not isinstance(value, torch.SymInt | torch.SymFloat):
            raise Damaged(f"{text} is no number")
        return value

    def facts(self) -> Iterator[str]:
        """Yields the known facts about the symbols named so far: ranges and earlier decisions."""
        if self.env is None:
            return
        decided = sorted({self._written(expr) for expr in self._earlier_decisions()})
        for symbol, name in self._names.items():
            bounds = self.env.var_to_range.get(symbol)
            yield f"{name}: {'any' if bounds is None else f'{bounds.lower} to {bounds.upper}'}"
        yield from decided

    def _earlier_decisions(self) -> list[Any]:
        """Returns the decisions about the named symbols, and about all symbols that decisions connect to named ones.

        Decisions about other symbols are left out: inputs that the graph does not take may have a symbol only because
        of calls in earlier processes.
        """
        pending = [self.env.replace(guard.expr) for guard in self.env.guards[: self._known]]
        decisions: list[Any] = []
        connected = set(self._names)
        while bound := [expr for expr in pending if connected & expr.free_symbols]:
            pending = [expr for expr in pending if not connected & expr.free_symbols]
            decisions += bound
            connected = connected.union(*(expr.free_symbols for expr in bound))
        return decisions

    def decided(self) -> list[str]:
        """Returns the decisions since the symbols were named; raises NotStorable for decisions about other numbers."""
        if self.env is None:
            return []
        named = len(self._names)
        texts = [self._written(guard.expr) for guard in self.env.guards[self._known :]]
        if len(self._names) > named or (any(isinstance(n, torch.SymFloat) for n in self._numbers.values()) and texts):
            raise NotStorable("compiling it decided something on numbers that are not its own")
        return list(dict.fromkeys(texts))

    def decide(self, decisions: Sequence[str]) -> bool:
        """Repeats the decisions on the symbols of this graph; returns False, without deciding, if they do not hold
        here.
        """
        if not decisions:
            return True
        if not set(self._names.values()) <= self._numbers.keys():
            return False
        hints = {name: number.node.hint for name, number in self._numbers.items()}
        try:
            codes = [compile(decision, "decision", "eval") for decision in decisions]
            if not all(eval(code, dict(_ON_NUMBERS), hints) for code in codes):
                return False
            return all(bool(eval(code, dict(_ON_SYMBOLS), dict(self._numbers))) for code in codes)
        except Exception as error:
            raise Damaged(f"a decision cannot be read: {error}") from error
