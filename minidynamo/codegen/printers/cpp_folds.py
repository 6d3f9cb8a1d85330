"""Owns the C++ text of reductions: start, step and result of a fold.

`cpp.py` places these statements in loops.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch

from minidynamo.codegen.ir.expr import Expr
from minidynamo.codegen.ir.index import Var, as_index, flatten, row_major
from minidynamo.codegen.ir.loops import MOMENTS, Accumulate, Statement
from minidynamo.codegen.printers.cpp_expressions import TYPES

# combine -> (start, fold of old {0} and new {1}, name of the fold in a reduction clause)
FOLDS = {
    "sum": ("0", "{0} + {1}", "+"),
    "prod": ("1", "{0} * {1}", "*"),
    "max": ("Limits<{type}>::low", "maximum({0}, {1})", "maximum"),
    "min": ("Limits<{type}>::high", "minimum({0}, {1})", "minimum"),
    "any": ("0", "{0} | {1}", "|"),
    "all": ("1", "{0} & {1}", "&"),
}
COMPARISONS = {"argmax": "exceeds", "argmin": "undercuts"}


@dataclass(frozen=True)
class Fold:
    """An Accumulate in C++.

    Moments fold blocks of a row at once. Moments of the same elements share an object, which the `leader` folds.
    """

    #: The statement.
    source: Accumulate
    #: Whether the fold is a long float sum: blocks are added in float (`part`), and the blocks in double.
    is_blocked: bool
    #: Whether the loops visit positions in ascending order, so that the first of equal values is met first.
    in_order: bool
    #: For moments: the name of the first moment of the same elements; else "".
    leader: str = ""
    #: Whether the fold is a short float sum, which runs in double from the start: no extra cost, and a single rounding.
    short: bool = False

    @staticmethod
    def of(s: Accumulate, axes: Sequence[Var], sum_block: int, short: bool = False) -> Fold:
        visited = flatten([as_index(v) for v in axes], row_major([v.extent for v in axes]))
        is_sum = s.combine == "sum" and s.dtype is torch.float32
        return Fold(s, sum_block > 0 and is_sum, s.position in (None, visited), short=short and is_sum)

    @staticmethod
    def all_of(body: Sequence[Statement], axes: Sequence[Var], sum_block: int, short: bool = False) -> list[Fold]:
        """Returns the folds of a loop. `short`: the loop has few steps per result."""
        folds = [Fold.of(s, axes, sum_block, short) for s in body if isinstance(s, Accumulate)]
        leaders: dict[tuple[Expr, torch.dtype], str] = {}
        for s in (fold.source for fold in folds if fold.is_moment):
            leaders.setdefault((s.value, s.dtype), s.name)
        return [replace(f, leader=leaders.get((f.source.value, f.source.dtype), "")) for f in folds]

    @property
    def is_moment(self) -> bool:
        """Returns whether the fold is in MOMENTS."""
        return self.source.combine in MOMENTS

    @property
    def leads(self) -> bool:
        """Returns whether the fold is the leader of its moments."""
        return self.is_moment and self.leader == self.source.name

    @property
    def combine(self) -> str:
        """Returns the row of FOLDS; on bools, max and min are any and all."""
        if self.source.dtype is torch.bool:
            return {"max": "any", "min": "all"}.get(self.source.combine, self.source.combine)
        return self.source.combine

    @property
    def compared(self) -> str:
        """Returns the type of the fold's operands. Half types fold as float, which is exact for comparisons."""
        dtype = torch.float32 if self.source.dtype in (torch.float16, torch.bfloat16) else self.source.dtype
        return "int32_t" if self.combine in ("any", "all") else TYPES[dtype]

    @property
    def type(self) -> str:
        if self.source.combine in COMPARISONS:
            return "int64_t"
        return "double" if self.is_blocked or self.short else self.compared

    @property
    def total(self) -> str:
        if self.is_moment:
            return f"moments_{self.leader}"
        return f"{self.source.combine}_{self.source.name}"

    @property
    def part(self) -> str:
        return f"part_{self.source.name}"

    @property
    def current(self) -> str:
        """Returns the variable that the innermost loop folds into."""
        return self.part if self.is_blocked else self.total

    @property
    def clause(self) -> str:
        return "" if self.source.combine in (*COMPARISONS, *MOMENTS) else FOLDS[self.combine][2]

    def moments(self, size: str) -> str:
        """Returns the declaration of the object that folds the moments of a row of `size` elements."""
        return f"Moments<{TYPES[self.source.dtype]}> {self.total}({size})"

    def declarations(self) -> list[str]:
        if self.is_moment:
            return []
        rows = [f"{self.type} {self.total}"]
        return [*rows, f"{self.compared} best_{self.source.name}"] if self.source.combine in COMPARISONS else rows

    def start(self, here: str) -> list[str]:
        if self.is_moment:
            return []
        if self.source.combine in COMPARISONS:
            return [f"{self.total}{here} = -1", f"best_{self.source.name}{here} = 0"]
        return [f"{self.total}{here} = {FOLDS[self.combine][0].format(type=self.compared)}"]

    def step(self, here: str, value: str, position: str) -> list[str]:
        """Returns the statements that fold `value` in."""
        if self.source.dtype in (torch.float16, torch.bfloat16):
            value = f"to_float({value})"
        if self.is_moment:
            return [f"{self.part}[{position}] = {value};"] if self.leads else []
        target = f"{self.current}{here}"
        if self.source.combine not in COMPARISONS:
            return [f"{target} = {FOLDS[self.combine][1].format(target, value)};"]
        name, best = self.source.name, f"best_{self.source.name}{here}"
        better = f"{COMPARISONS[self.source.combine]}(new_{name}, {best})"
        if not self.in_order:
            better += f" || ({position} < {target} && !{COMPARISONS[self.source.combine]}({best}, new_{name}))"
        return [
            f"const {self.compared} new_{name} = {value};",
            f"const bool take_{name} = {target} < 0 || {better};",
            f"{best} = take_{name} ? new_{name} : {best};",
            f"{target} = take_{name} ? {position} : {target};",
        ]

    def value(self, here: str) -> str:
        """Returns the result, as an expression of the type that readers expect."""
        if self.source.combine in COMPARISONS:
            return f"{self.total}{here}"
        if self.is_moment:
            return f"{self.total}.{self.source.combine}"
        return f"cast<{TYPES[self.source.dtype]}>({self.total}{here})"
