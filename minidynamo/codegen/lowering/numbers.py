"""Owns the numbers of a graph: the symbols that the inputs bind, and sizes as extents.

Only facts that torch's ShapeEnv already has are used. A new decision of the ShapeEnv would be a guard without a check,
so none is requested. Numbers other than polynomials, quotients, remainders and extremes of bound symbols are left to
torch.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable
from typing import Any

import torch

from minidynamo.codegen.ir.expr import Scalar
from minidynamo.codegen.ir.loops import Compute, Name
from minidynamo.codegen.ir.size import Extent, Symbol, derived, product, size_of
from minidynamo.codegen.lowering.formula import V


class NotAnExtent(Exception):
    """Raised for a size that host programs and kernels have no expression for."""


class Numbers:
    """The bound symbols of a graph."""

    def __init__(self) -> None:
        # The steps that bind symbols other than inputs.
        self.prelude: list[Compute] = []
        self.floats: set[str] = set()
        self._symbols: dict[Any, Symbol] = {}
        self._known: dict[Any, Extent | None] = {}

    def bind_inputs(self, inputs: Iterable[tuple[str, Any]], fresh: Callable[[str], str]) -> None:
        """Binds each symbol that is an input, or else a size or stride of an input tensor."""
        tensors = []
        for name, value in inputs:
            self._bind(value, functools.partial(_input_name, name), large=True)
            if isinstance(value, torch.SymFloat):
                self.floats.add(name)
            elif isinstance(value, torch.Tensor) and value.layout == torch.strided:
                tensors.append((name, value))
        for method in (torch.Tensor.size, torch.Tensor.stride):
            for name, tensor in tensors:
                for d, value in enumerate(method(tensor)):
                    self._bind(value, functools.partial(self._read, method, name, d, fresh))

    def _read(self, method: Any, tensor: str, dimension: int, fresh: Callable[[str], str], symbol: str) -> str:
        out = fresh(symbol)
        self.prelude.append(Compute(out, method, (Name(tensor), dimension)))
        return out

    def _bind(self, value: Any, name: Callable[[str], str], large: bool = False) -> None:
        """Binds the symbol `value`, if it is a symbol; `name` returns its name in the host program."""
        symbol = value.node.expr if isinstance(value, torch.SymInt) else None
        if symbol is not None and symbol.is_Symbol and symbol not in self._symbols:
            self._symbols[symbol] = Symbol(name(str(symbol)), _lower_bound(value.node, symbol), _hint(value), large)

    def extent(self, value: Any) -> Extent | None:
        """Returns a size as an extent; None if it depends on numbers that only torch can compute."""
        if isinstance(value, int):
            return value
        if not isinstance(value, torch.SymInt):
            return None
        expr = value.node.expr
        if expr not in self._known:
            try:
                self._known[expr] = self._translate(expr, value.node)
            except NotAnExtent:
                self._known[expr] = None
        return self._known[expr]

    def extents(self, values: Iterable[Any]) -> tuple[Extent, ...] | None:
        """Returns several sizes as extents, or None."""
        extents = [self.extent(value) for value in values]
        result = tuple(value for value in extents if value is not None)
        return result if len(result) == len(extents) else None

    def value(self, name: str, fake: Any) -> Extent | V | float | bool | None:
        """Returns the form in which kernels use the number `name` of the host program; None if they cannot use it."""
        if isinstance(fake, (bool, float)):
            return fake
        if isinstance(fake, torch.SymFloat):
            return V(Scalar(name)) if name in self.floats else None
        return self.extent(fake)

    def _translate(self, expr: Any, node: Any) -> Extent:
        """Translates a sympy expression. Its class is compared by name, so that sympy is not imported here."""
        if expr.is_Symbol:
            if expr not in self._symbols:
                raise NotAnExtent
            return size_of(self._symbols[expr])
        if expr.is_Integer:
            return int(expr)
        args = [self._translate(a, node) for a in expr.args]
        match type(expr).__name__, args:
            case "Add", _:
                total: Extent = 0
                for a in args:
                    total = total + a
                return total
            case "Mul", _:
                return product(args)
            case (("Pow" | "PowByNatural"), [base, int(exponent)]) if exponent >= 0:
                return product([base] * exponent)
            case (("FloorDiv" | "CleanDiv"), [a, b]):
                return derived("floordiv", a, b, _lower_bound(node, expr))
            case (("Mod" | "PythonMod"), [a, b]):
                return derived("mod", a, b, _lower_bound(node, expr))
            case "ModularIndexing", [a, b, c]:
                return derived("mod", derived("floordiv", a, b), c, _lower_bound(node, expr))
            case ("Max" | "Min") as name, [first, *rest, last]:
                for a in rest:
                    first = derived(name.lower(), first, a)
                return derived(name.lower(), first, last, _lower_bound(node, expr))
        raise NotAnExtent


def _input_name(name: str, symbol: str) -> str:
    """Returns the name of an input that is a number: the host program has the number under this name."""
    return name


def _lower_bound(node: Any, expr: Any) -> int | None:
    """Returns the smallest value of `expr` under the present guards; None if there is none."""
    lower = node.shape_env.bound_sympy(expr).lower
    return int(lower) if lower.is_Integer else None


def _hint(value: torch.SymInt) -> int:
    """Returns the number in the traced call; 1 if unknown."""
    hint = value.node.hint
    return int(hint) if isinstance(hint, int) else 1
