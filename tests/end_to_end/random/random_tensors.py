"""Owns a generator of random tensor programs: views, writes through views, grad modes, layouts, overlapping arguments.

Compares nothing: `test_random_tensors.py` does. A program is run as it is written, line by line, so that all shapes and
dtypes fit for its first call; its later calls change sizes, layouts and the leaves that require gradients.
"""

from __future__ import annotations

import itertools
import linecache
import random
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import Any

import torch
import torch.nn.functional as F

import minidynamo

_numbers = itertools.count()

# {t} is a tensor.
VIEWS = [
    *["{t}.t()", "{t}.transpose(0, -1)", "{t}[0]", "{t}[1:]", "{t}[..., ::2]", "{t}[:, None]", "{t}.view(-1)"],
    *["{t}.unsqueeze(0)", "{t}.squeeze()", "{t}.expand(2, *{t}.shape)", "{t}.diagonal()", "{t}.narrow(0, 0, 1)"],
    *["{t}.select(-1, 0)", "{t}.unbind(0)[0]", "{t}.chunk(2, -1)[-1]", "{t}.flatten()", "{t}.unfold(0, 2, 1)"],
    *["{t}.movedim(0, -1)", "{t}.split(1)[-1]", "{t}[0:0]", "{t}[n:]", "{t}.view({t}.shape)", "{t}.detach()"],
    *["{t}.reshape({t}.shape[0], -1)", "{t}.unflatten(-1, (-1, 1))", "{t}.contiguous()", "{t}.permute(-1, 0)"],
]
VALUES = [
    *["{t} + {t}", "{t} - {t}", "{t} * {t}", "{t} / 2", "{t} * 0.5", "-{t}", "{t} ** 2", "{t}.sin()", "{t}.exp()"],
    *["torch.where({t} > 0, {t}, {t})", "torch.tanh({t})", "torch.relu({t})", "{t}.abs()", "{t}.clamp(-1, 1)"],
    *["{t}.sum()", "{t}.sum(0)", "{t}.mean(-1)", "{t}.amax(0)", "{t}.cumsum(0)", "{t}.softmax(-1)", "{t} @ {t}"],
    *["torch.cat([{t}, {t}])", "torch.stack([{t}, {t}])", "{t}.flip(0)", "{t}.roll(1, -1)", "F.pad({t}, (1, 1))"],
    *["{t}.masked_fill({t} > 0.5, 0.25)", "{t}.float()", "{t}.double()", "{t}.bfloat16()", "{t}.long()", "{t}.clone()"],
    *["torch.rand_like({t})", "F.dropout({t}, 0.5)", "F.gelu({t})", "{t}.argmax(-1)", "{t}.logsumexp(-1)", "{t} > {t}"],
    *["{t}.new_zeros(2, 2)", "torch.addcmul({t}, {t}, {t})", "{t}.prod(-1)", "F.normalize({t}, dim=-1)", "{t}.tril()"],
    *["F.layer_norm({t}, {t}.shape[-1:])", "{t}.gather(0, torch.zeros_like({t}, dtype=torch.int64))", "{t}.std()"],
]
WRITES = [
    *["{t}.add_({t})", "{t}.mul_(2)", "{t}.zero_()", "{t}.fill_(0.5)", "{t}.copy_({t})", "{t}[0] = 1", "{t}.sin_()"],
    *["{t}[0] = {t}[-1]", "{t}[{t} > 0] = 0.5", "{t}.clamp_(-1, 1)", "{t}.relu_()", "{t}.masked_fill_({t} < 0, 0)"],
    *["{t}[..., 0] += 1", "{t}[1:] *= 2", "{t} += {t}", "{t} *= 0.5", "{t}.diagonal().add_(1)", "{t}.t().mul_(2)"],
    *["{t}.view(-1)[0] = 3", "{t}.detach().mul_(2)", "{t}.uniform_()", "{t}.index_fill_(0, torch.tensor([0]), 2)"],
    *["[part.mul_(2) for part in {t}.unbind(0)]", "F.dropout({t}, 0.5, True, True)", "torch._foreach_add_([{t}], 1)"],
    *["{t}.transpose_(0, -1)", "{t}.addcmul_({t}, {t})", "torch.add({t}, 1, out={t})", "{t}.lerp_({t}, 0.5)"],
]
HEADS = ["with torch.no_grad():", "with torch.enable_grad():", "if {t}.dim() > 1:", "for _ in range(n):"]
HEADS += ["if {t}.requires_grad:", "if {t}.is_contiguous():", "with torch.no_grad():"]

_DTYPES = [*[torch.float32] * 6, torch.float64, torch.bfloat16, torch.int64, torch.bool]
_SHAPES = [(3,), (2, 3), (3, 2), (2, 2), (1, 3), (3, 1), (), (0, 3), (2, 3, 2), (4, 4)]
_LAYOUTS = ["plain", "plain", "plain", "transposed", "offset", "steps"]


@dataclass(frozen=True)
class Argument:
    """A tensor, or an earlier argument: itself (`of`, "same") or a view of the argument (`of`, "part" or "turned")."""

    seed: int = 0
    shape: tuple[int, ...] = ()
    dtype: torch.dtype = torch.float32
    layout: str = "plain"
    gradient: bool = False
    is_leaf: bool = False
    of: int | None = None

    def make(self, made: list[torch.Tensor], leaves: list[torch.Tensor]) -> torch.Tensor:
        """Builds the tensor, and adds the leaf that it is computed from to `leaves`."""
        if self.of is not None:
            base = made[self.of]
            if self.layout == "turned":
                return base.transpose(0, -1)
            return base[1:] if self.layout == "part" and base.dim() else base
        drawn = self._drawn(torch.Generator().manual_seed(self.seed))
        if not self.gradient or not self.dtype.is_floating_point:
            return drawn
        leaves.append(drawn.detach().requires_grad_())
        return leaves[-1] if self.is_leaf else leaves[-1] * 1

    def _drawn(self, generator: torch.Generator) -> torch.Tensor:
        def draw(*shape: int) -> torch.Tensor:
            return torch.randn(shape, generator=generator).mul(2).to(self.dtype)

        shape = self.shape
        if self.layout == "transposed" and len(shape) == 2:
            return draw(*shape[::-1]).t()
        if self.layout == "offset" and shape:
            return draw(shape[0] + 1, *shape[1:])[1:]
        if self.layout == "steps" and shape:
            return draw(*shape[:-1], shape[-1] * 2)[..., ::2]
        return draw(*shape)


@dataclass(frozen=True)
class Call:
    """The arguments of one call, and whether the grad mode is on during the call."""

    arguments: tuple[Argument, ...]
    n: int
    grad_mode: bool

    def make(self) -> tuple[list[torch.Tensor], list[torch.Tensor]]:
        """Builds the tensors, and the leaves that they are computed from."""
        made: list[torch.Tensor] = []
        leaves: list[torch.Tensor] = []
        for argument in self.arguments:
            made.append(argument.make(made, leaves))
        return made, leaves


@dataclass(frozen=True)
class TensorProgram:
    """The text of a function of three tensors and an int, and its calls."""

    source: str
    calls: tuple[Call, ...]

    def __repr__(self) -> str:
        return f"\n{self.source}{self.calls}"

    def build(self) -> Callable[..., Any]:
        """Returns the function, with its lines available to tracebacks."""
        filename = f"<random tensors {next(_numbers)}>"
        linecache.cache[filename] = (len(self.source), None, self.source.splitlines(keepends=True), filename)
        names: dict[str, Any] = {"torch": torch, "F": F, "minidynamo": minidynamo}
        exec(compile(self.source, filename, "exec"), names)
        program: Callable[..., Any] = names["program"]
        return program


class Writer:
    """Writes one program, from a seed."""

    def __init__(self, seed: int) -> None:
        self.random = random.Random(seed)
        self.call = self._first_call()
        self.lines: list[str] = []
        self.names = ["a", "b", "c"]
        self.fresh = itertools.count()

    def program(self, calls: int) -> TensorProgram:
        wanted = self.random.randint(2, 8)
        for _ in range(60):
            lines, names = self._block() if self.random.random() < 0.15 else self._line(self.names)
            if wanted and self._runs([*self.lines, *lines]):
                self.lines += lines
                self.names += names
                wanted -= 1
        returned = [name for name in self.names if self.random.random() < 0.6] or self.names[-1:]
        source = self._source(self.lines, f"[{', '.join(returned)}]")
        return TensorProgram(source, (self.call, *itertools.islice(self._other_calls(), calls - 1)))

    def _first_call(self) -> Call:
        shape, dtype = self.random.choice(_SHAPES), self.random.choice(_DTYPES)
        found = [self._argument(0, shape, dtype), self._argument(1, shape, dtype), self._argument(2, shape, dtype)]
        return Call(tuple(found), self.random.choice([0, 1, 2]), self.random.random() < 0.8)

    def _argument(self, number: int, shape: tuple[int, ...], dtype: torch.dtype) -> Argument:
        choose, chance = self.random.choice, self.random.random
        if number and chance() < 0.2:
            return Argument(of=choose(range(number)), layout=choose(["same", "part", "turned"]))
        shape, dtype = choose([shape, shape, choose(_SHAPES)]), choose([dtype, dtype, choose(_DTYPES)])
        gradient, is_leaf = chance() < 0.6, chance() < 0.25
        return Argument(self.random.randrange(1000), shape, dtype, choose(_LAYOUTS), gradient, is_leaf)

    def _other_calls(self) -> Iterator[Call]:
        while True:
            size = {size: self.random.choice([0, 1, 2, 3, 5]) for size in range(5)}
            changed = [
                lambda one: replace(one, shape=tuple(size[n] for n in one.shape)),  # noqa: B023 (called at once)
                lambda one: replace(one, layout=self.random.choice(_LAYOUTS)) if one.of is None else one,
                lambda one: replace(one, gradient=not one.gradient),
            ]
            change = self.random.choice(changed)
            yield replace(self.call, arguments=tuple(map(change, self.call.arguments)), n=self.random.randint(0, 2))

    def _block(self) -> tuple[list[str], list[str]]:
        """Writes a head with lines below; names bound by these lines are bound before the head, too."""
        head = self._filled(self.random.choice(HEADS), self.names)
        names, under = list(self.names), []
        for _ in range(self.random.randint(1, 2)):
            lines, bound = self._line(names)
            names += bound
            under += [f"    {line}" for line in lines]
        new = names[len(self.names) :]
        return [*(f"{name} = {self.random.choice(self.names)}" for name in new), head, *under], new

    def _line(self, names: list[str]) -> tuple[list[str], list[str]]:
        kind = self.random.random()
        if kind > 0.95:
            return ["minidynamo.graph_break()"], []
        if kind > 0.65:
            return [self._filled(self.random.choice(WRITES), names)], []
        name = f"v{next(self.fresh)}"
        return [f"{name} = {self._filled(self.random.choice(VIEWS if kind < 0.3 else VALUES), names)}"], [name]

    def _filled(self, template: str, names: list[str]) -> str:
        return re.sub(r"\{t\}", lambda _: self.random.choice(names[-self.random.choice([3, 99]) :]), template)

    def _source(self, lines: list[str], result: str) -> str:
        return "\n".join(["def program(a, b, c, n):", *(f"    {line}" for line in lines), f"    return {result}", ""])

    def _runs(self, lines: list[str]) -> bool:
        names: dict[str, Any] = {"torch": torch, "F": F, "minidynamo": minidynamo}
        exec(self._source(lines, "0"), names)
        try:
            with torch.random.fork_rng(), torch.set_grad_enabled(self.call.grad_mode):
                names["program"](*self.call.make()[0], self.call.n)
        except Exception:
            return False
        return True
