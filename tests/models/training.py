"""Compares two training steps of a compiled model with eager's: values, graphs, and peak memory.

A float64 run of the same model is the judge of values: the compiled run may be a few times as far from the judge as
eager is. So rounding passes whatever the model's condition, and a wrong formula does not. A rounded number may fall on
the opposite side of zero before a relu; a difference counts only if it persists with different data.
"""

from __future__ import annotations

import contextlib
import copy
import dataclasses
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy
import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

import minidynamo
from benchmarks.library_worker import tensors_in
from benchmarks.memory import peak_bytes
from minidynamo.core.events import Event
from minidynamo.observe.comparison import seed_generators
from tests.models.cases import Case

BACKENDS = ("eager", "aot_eager", "native")
STEPS = 2

#: The allowed ratio of the compiled error to eager's error, and an allowance relative to the largest element.
FACTOR, FLOOR = 16.0, 1e-5
#: Relative to the largest element of its kind; elements of smaller tensors are measured by this element.
SMALLEST = 1e-2
#: The largest allowed distance of eager itself from the judge.
CONDITION = 0.2

Values = dict[str, Tensor | None]


@dataclass
class Counts:
    """The needs of one compiled model."""

    graphs: int = 0
    breaks: int = 0
    recompiles: int = 0
    fallbacks: int = 0
    #: Texts of breaks, recompiles and fallbacks, for failures.
    details: list[str] = field(default_factory=list)

    def numbers(self) -> dict[str, int]:
        """The counters alone."""
        return {name: getattr(self, name) for name in ("graphs", "breaks", "recompiles", "fallbacks")}


@dataclass(frozen=True)
class Run:
    """A compiled model next to eager."""

    #: A line per value that is too far from the judge.
    differences: list[str]
    counts: Counts
    #: The peak as a share of eager's.
    peak: float


def seed(number: int) -> None:
    """Seeds every generator that models draw from."""
    seed_generators(number)
    numpy.random.seed(number)  # wav2vec2 masks with numpy


def parts_of(output: Any) -> dict[str, Any]:
    """Returns the results of a model, by name."""
    if isinstance(output, Mapping):
        return dict(output)
    return vars(output) if dataclasses.is_dataclass(output) else {"result": output}


def loss_of(output: Any) -> Tensor:
    """Returns the model's own loss; without a loss, a mean of squares of its results."""
    own = parts_of(output).get("loss")
    if own is not None:
        return own
    differentiable = [tensor for tensor in tensors_in(parts_of(output)) if tensor.requires_grad]
    return torch.stack([tensor.square().mean() for tensor in differentiable]).sum()


def one_step(case: Case, model: nn.Module, number: int) -> list[Tensor]:
    """Runs forward and backward with the data of step `number`; returns the results, gradients stay in the model."""
    args, kwargs = case.inputs(number)
    seed(number)
    output = model(*args, **kwargs)
    loss = loss_of(output)
    loss.backward()
    return [loss.detach(), *(tensor.detach() for tensor in tensors_in(parts_of(output)))]


def train(case: Case, model: nn.Module) -> Values:
    """Returns every value of two steps, by name."""
    # A large epsilon: updates by gradients of pure rounding noise stay small.
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, eps=1e-2)
    values: Values = {}
    for number in range(STEPS):
        results = one_step(case, model, number)
        values.update({f"step {number}, result: {index}": tensor for index, tensor in enumerate(results)})
        for name, parameter in model.named_parameters():
            gradient = parameter.grad
            values[f"step {number}, gradient: {name}"] = None if gradient is None else gradient.clone()
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        for kind, tensors in (("parameter", model.named_parameters()), ("buffer", model.named_buffers())):
            values.update({f"step {number}, {kind}: {name}": tensor.detach().clone() for name, tensor in tensors})
    return values


class DrawnInFloat32(TorchFunctionMode):
    """Draws the numbers of a float32 run: float64 draws different numbers, and therefore different masks."""

    DRAW = (torch.rand, torch.randn, torch.rand_like, torch.randn_like)

    def __torch_function__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if function in self.DRAW:
            return function(*args, **{**(kwargs or {}), "dtype": torch.float32}).double()
        return function(*args, **(kwargs or {}))


def train_in_float64(case: Case, model: nn.Module) -> Values:
    """Returns every value of two steps in float64."""
    # Models create tensors of the default dtype, too.
    torch.set_default_dtype(torch.float64)
    try:
        with DrawnInFloat32():
            return train(case, model.double())
    finally:
        torch.set_default_dtype(torch.float32)


def peak(case: Case, model: nn.Module) -> int:
    """Returns the peak bytes of one more step, gradients included."""
    return peak_bytes(lambda: one_step(case, model, STEPS))


@contextlib.contextmanager
def counted(counts: Counts) -> Iterator[None]:
    """Counts breaks, recompiles and fallbacks of the block."""

    def note(event: Event) -> None:
        counts.breaks += event.kind == "graph_break"
        counts.recompiles += event.kind == "recompile"
        small = event.kind == "fallback" and event.data["diagnostic"].code == "MD308"  # captured, and left to Python
        counts.fallbacks += event.kind == "fallback" and not small
        if event.kind in ("graph_break", "recompile", "fallback"):
            counts.details.append(event.data["diagnostic"].render())

    unsubscribe = minidynamo.on_event(note)
    try:
        yield
    finally:
        unsubscribe()


class Comparison:
    """A model in eager and in float64; compiled copies of the model are compared with both."""

    def __init__(self, case: Case) -> None:
        seed(0)
        self.case = case
        self.model = case.make().train()
        reference = copy.deepcopy(self.model)
        if hasattr(reference, "set_experts_implementation"):
            reference.set_experts_implementation("eager")  # no other backend supports float64
        self.judge = train_in_float64(case, reference)
        eager = copy.deepcopy(self.model)
        self.eager = train(case, eager)
        self.peak = peak(case, eager)

    def run(self, backend: str) -> Run:
        """Compiles a copy, and compares the copy with eager."""
        minidynamo.reset()
        counts = Counts()
        with counted(counts):
            model = minidynamo.compile(copy.deepcopy(self.model), backend=backend)
            values = train(self.case, model)
            ratio = peak(self.case, model) / self.peak
        counts.graphs = minidynamo.stats(model).graphs
        return Run(differences(values, self.eager, self.judge), counts, ratio)


def compared(case: Case) -> dict[str, Run]:
    """Returns the results of each backend for a model."""
    comparison = Comparison(case)
    runs = {backend: comparison.run(backend) for backend in BACKENDS}
    if any(run.differences for run in runs.values()):
        again = Comparison(case.with_other_data())
        for backend, run in runs.items():
            if run.differences and not again.run(backend).differences:
                run.differences.clear()
    return runs


def differences(actual: Values, eager: Values, judge: Values) -> list[str]:
    """Returns each value that is further from the judge than rounding explains, with its error and eager's."""
    found = []
    if list(actual) != list(eager):
        found.append(f"has {sorted(actual.keys() ^ eager.keys())} alone")
    largest: dict[str, float] = {}
    for name, value in judge.items():
        kind = name.partition(":")[0]
        largest[kind] = max(largest.get(kind, 0.0), _largest(value))
    for name in actual.keys() & eager.keys():
        scale = max(_largest(judge[name]), SMALLEST * largest[name.partition(":")[0]])
        complaint = _difference(actual[name], eager[name], judge[name], scale)
        if complaint:
            found.append(f"{name}: {complaint}")
    return sorted(found)


def _largest(value: Tensor | None) -> float:
    """Returns the largest finite element of a floating point tensor."""
    if value is None or not value.is_floating_point() or not value.numel():
        return 0.0
    finite = value.double().abs().nan_to_num(0.0, 0.0, 0.0)
    # Masks contain the lowest number of their dtype, which is no scale.
    return finite.masked_fill(finite > 1e30, 0.0).max().item()


def _difference(actual: Tensor | None, eager: Tensor | None, judge: Tensor | None, scale: float) -> str:
    if actual is None or eager is None or judge is None:
        return "" if actual is eager is judge else f"{actual} for {eager}"
    if (actual.shape, actual.dtype) != (eager.shape, eager.dtype):
        return f"{actual.dtype} of {tuple(actual.shape)} for {eager.dtype} of {tuple(eager.shape)}"
    if not actual.is_floating_point():
        return "" if torch.equal(actual, eager) else "other elements"
    mine, rounding = _distance(actual, judge), _distance(eager, judge)
    if rounding > CONDITION * scale:
        return f"eager itself is {rounding:.2g} off, of {scale:.2g}"
    return "" if mine <= FACTOR * rounding + FLOOR * scale else f"{mine:.2g} off, eager {rounding:.2g}, of {scale:.2g}"


def _distance(actual: Tensor, judge: Tensor) -> float:
    """Returns the largest distance between elements; infinite if only one of the two elements is finite."""
    actual = actual.double()
    limit = torch.finfo(torch.float32).max / 2
    same = (actual == judge) | (actual.isnan() & judge.isnan()) | ((actual < -limit) & (judge < -limit))
    gap = (actual - judge).abs().masked_fill(same, 0.0)
    return gap.nan_to_num(float("inf")).max().item() if gap.numel() else 0.0
