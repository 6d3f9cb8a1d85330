"""Owns a generator of random programs that compute with sizes and numbers, and of calls whose sizes and numbers change.

Runs nothing: `test_random_sizes.py` compares the programs, call by call.
"""

from __future__ import annotations

import itertools
import linecache
import math
import operator
import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from hypothesis import strategies as st

import minidynamo

_numbers = itertools.count()

PARAMETERS = ["t0", "t1", "ts0", "n0", "n1", "f0"]

# Placeholders: n int, f float or int, b bool, t tensor of two dimensions, ts list of tensors, c small constant, d 0 or
# 1.
EXPRESSIONS = {
    "n": [
        *["{t}.shape[{d}]", "{t}.size({d})", "len({t})", "{t}.numel()", "{t}.stride({d})", "len({ts})", "{c}"],
        *["{n} + {n}", "{n} - {n}", "{n} * {n}", "{n} // {n}", "{n} % {n}", "{n} // {c}", "{n} % {c}", "-{n}"],
        *["abs({n})", "max({n}, {n})", "min({n}, {n})", "divmod({n}, {n})[{d}]", "math.gcd({n}, {n})"],
        *["int({f})", "round({f})", "math.floor({f})", "math.ceil({f})", "int({b})", "{b} + {n}", "~{n}"],
        *["math.isqrt(abs({n}))", "math.comb(abs({n}) % 9, 2)", "math.prod({t}.shape)", "sum({t}.shape)"],
        *["{t}.shape.numel()", "{t}.dim()", "{t}.storage_offset()", "{n} & {c}", "{n} << 1", "{n} >> 1", "{n} ^ {n}"],
        *["len(range({n} % 9, -3, -2))", "sum(range({n} % 5))", "({n}) ** 2", "sum(t.shape[0] for t in {ts})"],
        *["{n} if {b} else {n}", "({n}) .bit_length()", "{t}.shape[-1]", "{t}[{d}:].shape[0]", "len(str({n}))"],
        *["[*{t}.shape][{d}]", "{t}.shape[::-1][{d}]", "{t}.shape.count({n})", "hash({n}) % 7", "round({n}, -1)"],
        *["({b} and {n})", "({n} or {n})", "{t}.unsqueeze(0).shape[1]", "operator.index({n})", "n0", "n1", "n0", "n1"],
    ],
    "f": [
        *["{f} + {f}", "{f} - {f}", "{f} * {f}", "{n} / {n}", "{f} / {c}", "{n} * {f}", "-{f}", "abs({f})"],
        *["float({n})", "max({f}, {f})", "min({n}, {f})", "round({f}, 1)", "{f} // {c}", "{f} % {c}", "{f} ** 2"],
        *["math.sqrt(abs({f}))", "math.copysign(1.0, {f})", "{n} ** 0.5", "0.5 * {n}", "math.fmod({f}, 2)"],
        *["{t}.sum().item()", "math.sin({f})", "{f} if {b} else {f}", "sum([{f}, {n}])", "f0", "f0", "f0"],
        *["({f} or {f})", "math.hypot({f}, 1)", "math.exp(-abs({f}))", "{n} % 2.5", "{n} ** -1", "1.5", "-0.0"],
        *["math.log1p(abs({f}))", "math.floor({f}) + {f}", "{f} % {f}", "{f} // {f}", "divmod({f}, {c})[{d}]"],
    ],
    "b": [
        *["{n} == {n}", "{n} < {n}", "{n} != {c}", "{n} % 2 == 0", "{f} > {f}", "{f} == {n}", "bool({n})", "not {n}"],
        *["{n} in (2, 3, 5)", "{n} in {t}.shape", "{t}.shape == {t}.shape", "isinstance({n}, int)", "{f} == {f}"],
        *["isinstance({f}, float)", "{t}.is_contiguous()", "{n} == float({n})", "bool({f})", "not {b}", "{b} and {b}"],
        *["{t}.shape[0] == {t}.shape[1]", "{t}.shape < {t}.shape", "1 < {n} < 6", "math.isnan({f})", "{n} is True"],
        *["isinstance({n}, bool)", "type({f}) is int", "{f} is None", "{n} in {{2: 0, 4: 1}}", "math.isinf({f})"],
        *[
            "{f} in (1.0, 2.0)",
            "{t}.shape == (3, 4)",
            "math.isclose({f}, 1)",
            "({f}).is_integer()",
            "{t}.shape is None",
        ],
    ],
    "t": [
        *["t0", "t1", "t0", "t1", "{t} + {f}", "{t} * {n}", "{t} / {n}", "{t} + {b}", "{t}.t()", "{t}[{n}:]"],
        *["{t}[:, :{n}]", "{t}[::{c}]", "{t}.reshape(-1, 1)", "{t}.reshape({t}.shape[::-1])", "{t}.sum(0, True)"],
        *["{t}.expand({t}.shape)", "torch.cat([{t}, {t}])", "torch.zeros({n} % 5, {c})", "torch.full((2, 2), {f})"],
        *["torch.arange({n} % 7).view(-1, 1)", "{t}[-{n}:]", "torch.ones({t}.shape)", "{t} + {t}", "{t} @ {t}"],
        *["{t}.t() @ {t}", "{t}.view(-1, {t}.shape[0])", "{t}.flatten()[:, None]", "{t}.contiguous()", "{t}.clone()"],
        *["{t}.new_full(({c}, 1), {n})", "torch.tensor([[{n}]])", "torch.tensor([[{f}, {n}]])", "{t}.repeat(1, {c})"],
        *["{t}.narrow(0, 0, min({n}, {t}.shape[0]))", "torch.stack([t.sum() for t in {ts}]).view(1, -1)"],
        *["{ts}[{n} % len({ts})].view(-1, 1)", "{t}.unflatten(0, (-1, {c}))[:, 0]", "{t}.clamp(min={f})"],
        *["{t}[{n} % 3][None]", "{t}.transpose(0, 1)[1:]", "torch.where({t} > {f}, {t}, {n})", "{t}.mean(1, True)"],
        *[
            "{t}.chunk({c})[0]",
            "{t}.split({c})[-1]",
            "{t}.roll({n}, 0)",
            "torch.add({t}, {t}, alpha={n})",
            "{t} ** {f}",
        ],
    ],
    "ts": ["ts0", "ts0", "[{t}, {t}]", "{t}.unbind(0)", "{ts}[{d}:]", "list({t}.split(2))", "{ts}[::-1]", "ts0[:{n}]"],
}
STATEMENTS = [
    *["{N} = {n}", "{N} = {n}", "{F} = {f}", "{F} = {f}", "{B} = {b}", "{T} = {t}", "{T} = {t}", "{T} = {t}"],
    *["print({n}, {f}, {b})", "print(f'{{{n}}} {{{f}:.3f}} {{{n}:>4d}}')", "t0.mul_({n})", "t0.add_({f})"],
    *["ts0.append({t})", "ts0[0] = {t}", "t0[{d}:{n}] = {n}", "t1[..., 0] = {f}", "{N} += {n}", "{F} *= {f}"],
    *["print({t}.shape, {t}.stride())", "minidynamo.graph_break()", "print(type({n}), type({f}), type({b}))"],
    *["t1[{d}] += {n}", "log[{n}] = {f}", "log[{t}.shape] = {n}", "{N} = opaque({n})", "{T} = opaque({t})"],
    *["box.n = {n}", "box.f = {f}", "{N} = box.n", "{F} = box.f", "box.n += 1", "print('%s %r' % ({f}, {n}))"],
    *["{N}, {N} = {t}.shape", "{T} = (lambda k={n}: {t} + k)()", "ts0.pop()", "print([{n}] * ({n} % 4))"],
]


class Box:
    """State that lives on from call to call."""

    def __init__(self) -> None:
        self.n = 3
        self.f = 0.5


@dataclass(frozen=True)
class SizesProgram:
    """The text of a function of `PARAMETERS`, and a list of arguments for its calls."""

    source: str
    calls: list[tuple[Any, ...]]

    def __repr__(self) -> str:
        return f"\n{self.source}{self.calls}"

    def build(self, opaque: Callable[[Any], Any]) -> Callable[..., Any]:
        """Builds the function with a fresh environment."""
        filename = f"<random sizes {next(_numbers)}>"
        linecache.cache[filename] = (len(self.source), None, self.source.splitlines(keepends=True), filename)

        names = {
            "torch": torch,
            "minidynamo": minidynamo,
            "math": math,
            "operator": operator,
            "box": Box(),
            "log": {},
            "opaque": opaque,
        }
        exec(compile(self.source, filename, "exec"), names)
        program: Callable[..., Any] = names["program"]
        return program


class Writer:
    """Writes one program; later lines use the names bound by earlier lines."""

    def __init__(self, number: Callable[[int, int], int]) -> None:
        self.number = number
        self.names = {"n": ["n0", "n1"], "f": ["f0"], "t": ["t0", "t1"], "b": [], "ts": ["ts0"]}
        self.bound: list[str] = []

    def pick(self, choices: list[Any]) -> Any:
        return choices[self.number(0, len(choices) - 1)]

    def expression(self, kind: str, depth: int) -> str:
        if kind == "c":
            return str(self.pick([2, 3, 1, -1, -2, 0]))
        if kind == "d":
            return str(self.pick([0, 1]))
        if (depth <= 0 or self.pick([0, 1, 2]) == 0) and self.names[kind]:
            return self.pick(self.names[kind][-4:])
        return self.fill(self.pick(EXPRESSIONS[kind]), depth - 1) if depth > -6 else "t0.shape[0]"

    def fill(self, template: str, depth: int) -> str:
        def replace(match: re.Match[str]) -> str:
            kind = match[1]
            if kind.isupper():
                kind = kind.lower()
                name = f"{kind}{2 + len(self.bound)}"
                self.bound.append(name)
                return name
            text = self.expression(kind, depth)
            return text if re.fullmatch(r"\w+", text) else f"({text})"

        text = re.sub(r"\{([a-zA-Z]{1,2})\}", replace, template)
        return text.replace("{{", "{").replace("}}", "}")

    def statement(self, indent: str) -> list[str]:
        kind = self.number(0, 11)
        if kind == 0 and len(indent) < 8:
            heads = ["if {b}:", "for i in range(abs({n}) % 4):", "for i in {t}.shape:"]
            head = self.fill(self.pick(heads), 1)
            names = {key: list(value) for key, value in self.names.items()}
            inner = self.statement(indent + "    ")
            if head.startswith("for"):
                inner.append(f"    {indent}print(i, type(i))")
            self.names = names
            return [indent + head, *inner]
        before = len(self.bound)
        template = self.pick(STATEMENTS)
        if "{N} +=" in template or "{F} *=" in template:
            kind = "n" if "{N}" in template else "f"
            name = self.pick(self.names[kind])
            return [indent + self.fill(template.replace("{N}", name).replace("{F}", name), 2)]
        line = indent + self.fill(template, 2)
        for name in self.bound[before:]:
            self.names[name.rstrip("0123456789")].append(name)
        return [line]


_INTS = [3, 4, 7, 0, 1, 2, -1, -3, -8, 5, 6, 2**40, True, False]
_FLOATS = [0.5, 2.5, 1.0, 0.0, -0.0, math.nan, math.inf, -math.inf, 2, 3, True, 1e-3, -1.5, 3.0, 1e17]
_SIZES = [3, 4, 2, 5, 0, 1, 6, 7, 8]
_LAYOUTS = ["plain", "plain", "plain", "t", "offset", "step", "expand"]
_CHOICES: dict[str, list[Any]] = {
    **dict.fromkeys("abcd", _SIZES),
    "k": [1, 2, 3],
    "n": _INTS,
    "m": _INTS,
    "f": _FLOATS,
    "layout": _LAYOUTS,
}


@st.composite
def programs(draw: Callable[..., Any]) -> SizesProgram:
    """A program with six calls."""
    return write_program(lambda least, most: draw(st.integers(least, most)))


def write_program(number: Callable[[int, int], int]) -> SizesProgram:
    """Builds a program from the numbers that `number(least, most)` returns."""
    writer = Writer(number)
    lines = [line for _ in range(number(1, 6)) for line in writer.statement("    ")]
    names = [name for kind in writer.names.values() for name in kind]
    lines.append(f"    return [{', '.join(names)}]")
    source = "\n".join([f"def program({', '.join(PARAMETERS)}):", *lines, ""])
    return SizesProgram(source, _calls(writer))


def _calls(writer: Writer) -> list[tuple[Any, ...]]:
    """Draws six calls: some change one number, some several."""
    state: dict[str, Any] = {"a": 3, "b": 4, "c": 3, "d": 4, "k": 2, "n": 3, "m": 2, "f": 0.5, "layout": "plain"}
    calls = [tuple(state.values())]
    for _ in range(5):
        one = writer.pick(list(state)) if writer.number(0, 3) == 0 else None
        for key in state:
            if key == one or (one is None and writer.number(0, 1)):
                state[key] = writer.pick(_CHOICES[key])
        if writer.number(0, 1):
            state["c"], state["d"] = state["a"], state["b"]
        calls.append(tuple(state.values()))
    return calls


def arguments(call: tuple[Any, ...], *, gradients: bool = False) -> tuple[Any, ...]:
    """Builds the arguments that a call describes."""
    a, b, c, d, k, n, m, f, layout = call
    t0 = torch.arange(float(a * b)).reshape(a, b) / 4 - 1
    if layout == "t":
        t0 = t0.t().contiguous().t()
    elif layout == "offset":
        t0 = torch.arange(a * b + 5.0)[5:].view(a, b)
    elif layout == "step":
        t0 = torch.arange(2.0 * a * b).view(a, 2 * b)[:, ::2]
    t1 = torch.arange(float(c)).view(c, 1).expand(c, d) if layout == "expand" else torch.ones(c, d) * 2
    if gradients:
        t0, t1 = (t.clone().requires_grad_() for t in (t0, t1))
        t0, t1 = t0 * 1, t1 * 1
    return t0, t1, [torch.ones(size + 2) * size for size in range(k)], n, m, f
