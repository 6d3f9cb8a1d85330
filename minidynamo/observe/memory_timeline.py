"""Owns the memory of a training step over time: the live bytes after each allocation and release, and the figure.

It counts the memory from torch's allocators, on the CPU and on GPUs, for eager operations and generated code alike. The
planned lives of the buffers of a compiled graph are in `f.memory_plan()`.
"""

from __future__ import annotations

import copy
import itertools
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch.profiler import ProfilerActivity, profile, record_function

from minidynamo.config import set_default_variable
from minidynamo.core.directives import COMPILED
from minidynamo.core.records import record
from minidynamo.errors import ArgumentError, Diagnostic
from minidynamo.frontend.compile import compile as compile_function
from minidynamo.frontend.compile import uncompile
from minidynamo.graph.pytree import tensors_in

set_default_variable("KINETO_LOG_LEVEL", "99")  # the profiler announces each start and stop on standard error

_BACKWARD = "minidynamo: backward"
_COLORS = ("#4269d0", "#efb118", "#ff725c", "#6cc5b0", "#9c6b4e", "#a463f2")
_KIB, _MIB = 2**10, 2**20


@record(frozen=True)
class Series:
    """The live bytes of a step."""

    #: After each allocation and release, on top of those at the start.
    bytes: tuple[int, ...]
    #: The number of allocations and releases before backward begins.
    backward_start: int

    @property
    def peak(self) -> int:
        """Returns the most bytes at one time."""
        return max(self.bytes)

    @property
    def peak_position(self) -> float:
        """Returns the position of the peak in the step, from 0 to 1."""
        return self.bytes.index(self.peak) / max(1, len(self.bytes) - 1)

    @property
    def after_forward(self) -> int:
        """Returns the bytes that live between forward and backward."""
        return self.bytes[self.backward_start]

    def at(self, position: float) -> int:
        """Returns the live bytes at a position from 0 to 1."""
        return self.bytes[round(position * (len(self.bytes) - 1))]


class MemoryTimeline(dict[str, Series]):
    """Series of a training step, by the name of the variant. Printed, it is a table."""

    def table(self) -> str:
        """Returns peak, bytes after forward, and position of the peak, one line per series."""
        width, unit = max(map(len, self), default=0), _unit(self)
        head = f"{'':{width}}  {'peak':>12}  {'after forward':>14}  {'at the end':>12}  peak at"
        rows = [
            f"{name:{width}}  {unit(s.peak):>12}  {unit(s.after_forward):>14}  {unit(s.bytes[-1]):>12}  "
            f"{s.peak_position:.0%} of the step"
            for name, s in self.items()
        ]
        return "\n".join([head, *rows])

    def __str__(self) -> str:
        return self.table()

    def svg(self) -> str:
        """Returns the curves as the text of an SVG file."""
        return _svg(self)

    def save(self, path: str | Path) -> Path:
        """Writes the figure as an .svg file. Raises ArgumentError (MD410) for another suffix."""
        path = Path(path)
        if path.suffix != ".svg":
            what = f"a figure cannot be saved as {path.suffix or 'a file without a suffix'}"
            fix = "Save it as .svg, or draw the numbers: timeline[name].bytes."
            raise ArgumentError(Diagnostic("MD410", what, fix=fix))
        path.write_text(self.svg(), encoding="utf-8")
        return path


def memory_timeline(
    fn: Callable[..., Any], *args: Any, backend: Any = None, backward: bool = True, **others: Callable[..., Any]
) -> MemoryTimeline:
    """Measures the memory of a training step, eager and compiled: `fn(*args)`, a loss of all outputs, and backward.

    `fn` is a function or a module, compiled or not; modules and arguments are copied. `backend` is that of
    `minidynamo.compile`; `others` are further variants of the step, by the name of their series. A step runs twice
    before the measurement, so that nothing is compiled meanwhile. Gradients of these runs are released before the
    measurement.

    >>> timeline = minidynamo.memory_timeline(model, batch)  # doctest: +SKIP
    >>> print(timeline)  # doctest: +SKIP
    >>> timeline.save("memory.svg")  # doctest: +SKIP
    """
    eager = _uncompiled(fn)
    variants: dict[str, Callable[..., Any]] = {"eager": eager}
    if eager is fn or backend is not None:
        target = copy.deepcopy(eager) if isinstance(eager, torch.nn.Module) else eager
        variants["compiled"] = compile_function(target, backend=backend)
    else:
        variants["compiled"] = fn
    return MemoryTimeline({name: record_step(variant, args, backward) for name, variant in (variants | others).items()})


def _uncompiled(fn: Callable[..., Any]) -> Callable[..., Any]:
    if isinstance(fn, torch.nn.Module):
        if fn.__dict__.get("_compiled_call_impl") is None:
            return fn
        uncompiled = copy.copy(fn)  # the same parameters, without the compiled call
        uncompiled.__dict__.pop("_compiled_call_impl", None)
        return uncompiled
    original: Callable[..., Any] = uncompile(fn) if hasattr(fn, COMPILED) else fn
    return original


def record_step(fn: Callable[..., Any], args: Sequence[Any], backward: bool = True) -> Series:
    """Returns the memory of one step, after two unmeasured steps."""
    inputs = _copied(args)
    leaves = [value for value in tensors_in(inputs) if value.is_leaf and value.requires_grad]
    if isinstance(fn, torch.nn.Module):
        leaves += fn.parameters()

    def step() -> None:
        result = fn(*inputs)
        with record_function(_BACKWARD):
            pass
        roots = [value for value in tensors_in(result) if value.requires_grad and backward]
        del result
        if roots:
            # Only autograd holds the gradients of the loss, and frees them during backward.
            loss = torch.stack([root if root.ndim == 0 else root.abs().square().mean() for root in roots]).sum()
            roots.clear()
            loss.backward()

    for _ in range(2):
        step()
        for leaf in leaves:
            leaf.grad = None
    series = record_memory(step)
    for leaf in leaves:
        leaf.grad = None
    return series


def record_memory(function: Callable[[], object]) -> Series:
    """Records the allocations and releases of `function`, through torch's profiler."""
    activities = [ProfilerActivity.CPU]
    if torch.cuda.is_available():
        activities.append(ProfilerActivity.CUDA)
    with profile(activities=activities, profile_memory=True, acc_events=True) as recorded:
        function()
    events = list(recorded.profiler.kineto_results.events())
    changes = sorted((e.start_ns(), e.nbytes()) for e in events if e.name() == "[memory]")
    backward_starts = [e.start_ns() for e in events if e.name() == _BACKWARD]
    backward_start = sum(time < backward_starts[0] for time, _ in changes) if backward_starts else len(changes)
    return Series(tuple(itertools.accumulate((size for _, size in changes), initial=0)), backward_start)


def _copied(args: Sequence[Any]) -> Sequence[Any]:
    if any(not value.is_leaf for value in tensors_in(args)):
        return args  # a copy would lose the autograd history
    return copy.deepcopy(args)


class _Unit(NamedTuple):
    """A unit of size."""

    name: str
    bytes: int

    def __call__(self, size: int) -> str:
        return f"{size / self.bytes:,.2f} {self.name}"


def _unit(timeline: Mapping[str, Series]) -> _Unit:
    """Returns the unit in which the curves can be distinguished."""
    small = all(series.peak < _MIB for series in timeline.values())
    return _Unit("KiB", _KIB) if small else _Unit("MiB", _MIB)


# The figure


def _points(series: Series, most: int = 600) -> list[tuple[float, int]]:
    """Returns at most about `most` points: the largest value of each stretch, so that no peak is lost."""
    count = len(series.bytes)
    width = max(1, count // most)
    starts = range(0, count, width)
    return [(start / max(1, count - 1), max(series.bytes[start : start + width])) for start in starts]


def _svg(timeline: Mapping[str, Series], width: int = 760, height: int = 420) -> str:
    left, right, top, bottom = 64, 16, 16, 44
    most = max((series.peak for series in timeline.values()), default=1) or 1
    step, unit = _tick(most), _unit(timeline)

    def point(x: float, y: float) -> str:
        across = left + x * (width - left - right)
        return f"{across:.1f},{height - bottom - y / most * (height - top - bottom):.1f}"

    lines = [
        '<svg xmlns="http://www.w3.org/2000/svg" font-family="sans-serif" font-size="12" '
        f'viewBox="0 0 {width} {height}">',
        f'<rect width="{width}" height="{height}" fill="white"/>',
    ]
    for value in range(0, most + 1, step):
        (x1, y), (x2, _) = point(0, value).split(","), point(1, value).split(",")
        lines.append(f'<line x1="{x1}" x2="{x2}" y1="{y}" y2="{y}" stroke="#ddd"/>')
        lines.append(f'<text x="{left - 6}" y="{float(y) + 4:.1f}" text-anchor="end">{value / unit.bytes:g}</text>')
    lines.append(f'<text x="6" y="{top + 2}">{unit.name}</text>')
    label = "% of the step's allocations and releases; the dot is where backward begins"
    lines.append(f'<text x="{width / 2}" y="{height - 10}" text-anchor="middle">{label}</text>')
    for number, (name, series) in enumerate(timeline.items()):
        color = _COLORS[number % len(_COLORS)]
        points = " ".join(point(x, y) for x, y in _points(series))
        lines.append(f'<polyline points="{points}" fill="none" stroke="{color}" stroke-width="1.6"/>')
        x, y = point(series.backward_start / max(1, len(series.bytes) - 1), series.after_forward).split(",")
        lines.append(f'<circle cx="{x}" cy="{y}" r="3.5" fill="{color}"/>')
        row = top + 14 + 18 * number
        text = f"{name}: peak {unit(series.peak)}"
        lines.append(f'<rect x="{left + 12}" y="{row - 9}" width="14" height="4" fill="{color}"/>')
        lines.append(f'<text x="{left + 32}" y="{row - 2}">{text}</text>')
    return "\n".join([*lines, "</svg>", ""])


def _tick(most: int) -> int:
    """Returns a round distance between grid lines, for four to eight lines."""
    size = 1
    while most > 8 * size:
        size *= 2
    return size
