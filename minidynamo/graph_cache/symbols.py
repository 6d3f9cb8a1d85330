"""Owns the symbolic numbers of a graph in its key: their names there, what is known of them, what compiling decided.

Whatever torch calls a symbol, a key counts them in the order in which it meets them. What the stages behind the capture
decide on symbols becomes guards of the frame, so an entry must say it, and a graph that comes from the cache decides it
again. What a number is in the call that is compiled for stands in no key.
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

# What the text of a decision may call.
_ON_NUMBERS = {"__builtins__": {}, "math": math, "max": max, "min": min, "abs": abs}
_ON_SYMBOLS = {**_ON_NUMBERS, "max": torch.sym_max, "min": torch.sym_min}


class Symbols:
    """The symbols of one graph. `text` names them; everything else is asked afterwards. `env` is their ShapeEnv."""

    def __init__(self) -> None:
        self._names: dict[Any, str] = {}
        self._numbers: dict[str, Number] = {}
        self.env: Any = None
        self._known = 0

    def text(self, number: Number) -> str:
        """The expression of a number; its value where that has turned out to be constant."""
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
        # The order of terms follows the names of symbols, so these must be those of the key before it is printed.
        named = {old: torch_symbols.Symbol(name, **old.assumptions0) for old, name in self._names.items()}
        template, symbols = torch_symbols.text(expr.xreplace(named))
        return str(template).format(*(symbol.name for symbol in symbols))

    def written(self, number: Number) -> str:
        """The text of a number that is computed of those which were named, for `read`; raises NotStorable."""
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
        """The number that `written` described, made of the numbers of this graph."""
        found = eval(text, dict(_ON_SYMBOLS), dict(self._numbers))
        if type(found) is int:
            return self.env.create_symintnode(compat.symbolic().Integer(found), hint=found)  # type: ignore[no-any-return]
        if not isinstance(found, torch.SymInt | torch.SymFloat):
            raise Damaged(f"{text} is no number")
        return found

    def facts(self) -> Iterator[str]:
        """What is known of the symbols that were named so far: their ranges, and what was decided before."""
        if self.env is None:
            return
        decided = sorted({self._written(expr) for expr in self._decided_before()})
        for symbol, name in self._names.items():
            bounds = self.env.var_to_range.get(symbol)
            yield f"{name}: {'any' if bounds is None else f'{bounds.lower} to {bounds.upper}'}"
        yield from decided

    def _decided_before(self) -> list[Any]:
        """The decisions on the symbols that were named, and on others that these bind to them.

        Which inputs that the graph does not take had a symbol for a while depends on what earlier processes have seen.
        """
        pending = [self.env.replace(guard.expr) for guard in self.env.guards[: self._known]]
        found: list[Any] = []
        own = set(self._names)
        while bound := [expr for expr in pending if own & expr.free_symbols]:
            pending = [expr for expr in pending if not own & expr.free_symbols]
            found += bound
            own = own.union(*(expr.free_symbols for expr in bound))
        return found

    def decided(self) -> list[str]:
        """What has been decided since the symbols were named; raises NotStorable when it cannot be said."""
        if self.env is None:
            return []
        named = len(self._names)
        found = [self._written(guard.expr) for guard in self.env.guards[self._known :]]
        if len(self._names) > named or (any(isinstance(n, torch.SymFloat) for n in self._numbers.values()) and found):
            raise NotStorable("compiling it decided something on numbers that are not its own")
        return list(dict.fromkeys(found))

    def decide(self, decisions: Sequence[str]) -> bool:
        """Decide the same on the symbols of this graph; False, and nothing is decided, when it is not so here."""
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
