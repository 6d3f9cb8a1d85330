"""Compares the time of a captured backward with eager, with compiled backwards, and with torch's compiled autograd.

`python -m benchmarks captured_backward` prints the ratios of medians; the systems take turns. torch's compiled autograd
runs afterwards, in turns with eager: torch keeps one store of captured backwards, which either capture replaces.
Times are CPU times of backwards on one thread: on a machine with other work, threads wait for a core.

Then it prints, for other models, the peak memory of a step, and the kernels of its backwards: generated kernels, and
calls of torch's operators that compute.
"""

from __future__ import annotations

import contextlib
import statistics
import time
from collections.abc import Callable
from typing import Any

import torch
from torch import nn
from torch._dynamo import compiled_autograd
from torch.profiler import ProfilerActivity, profile

import minidynamo
from benchmarks.captured_programs import PROGRAMS, TwoRegions, one_process
from benchmarks.memory import peak_bytes
from minidynamo.codegen.runtime import library

ROUNDS = 101


def _model() -> nn.Module:
    return nn.Sequential(*(layer for _ in range(6) for layer in (nn.Linear(256, 256), nn.GELU(), nn.LayerNorm(256))))


def _compiled(model: nn.Module) -> nn.Module:
    return minidynamo.compile(model, backend="native")


def _torch_compiled(model: nn.Module) -> Any:
    return torch.compile(model)


SYSTEMS: dict[str, tuple[Callable[[nn.Module], nn.Module], Callable[[], Any]]] = {
    "eager": (lambda model: model, contextlib.nullcontext),
    "compiled model, not captured": (_compiled, contextlib.nullcontext),
    "torch's compiled autograd": (
        _torch_compiled,
        lambda: compiled_autograd._enable(torch.compile),
    ),
    "captured": (lambda model: model, lambda: minidynamo.captured_backward("native")),
    "compiled model, captured": (_compiled, lambda: minidynamo.captured_backward("native")),
}


def main(names: list[str]) -> None:
    """Prints the table for batches of 64."""
    torch.set_num_threads(1)
    torchs = "torch's compiled autograd"
    for group in ([name for name in SYSTEMS if name != torchs], ["eager", torchs]):
        medians = _medians(group)
        for name, median in medians.items():
            others = [other for other in list(medians)[:2] if other != name]
            ratios = ", ".join(f"{median / medians[other]:.2f} of {other}" for other in others)
            print(f"{name}: {median * 1e6:.0f} us; {ratios}")
    with one_process():
        rows()


WIDTH, BATCH = 256, (8, 32)
CAPTURES = ("eager", "aot_eager", "native")


def rows() -> None:
    """Prints the peaks in KiB and the kernels of each program."""
    print("program | peak: eager, captured with " + ", ".join(CAPTURES) + " | kernels: eager, pieces, captured")
    for name, (make, micro_batches) in PROGRAMS.items():

        def fresh(compiles: bool = False, make: Callable[[int], nn.Module] = make) -> nn.Module:
            torch.manual_seed(0)
            model = make(WIDTH)
            if not compiles:
                return model
            return model.compiled("native") if isinstance(model, TwoRegions) else _compiled(model)

        peaks = [peak_of_step(fresh(), contextlib.nullcontext(), micro_batches)]
        peaks += [peak_of_step(fresh(), minidynamo.captured_backward(each), micro_batches) for each in CAPTURES]
        found = [kernels_of_step(fresh(), contextlib.nullcontext(), micro_batches)]
        found += [kernels_of_step(fresh(True), contextlib.nullcontext(), micro_batches)]
        found += [kernels_of_step(fresh(True), minidynamo.captured_backward("native"), micro_batches)]
        in_kib = ", ".join(f"{peak / 1024:.0f}" for peak in peaks)
        print(f"{name} | {in_kib} | {', '.join(map(str, found))}")


Run = Callable[[Callable[[], None]], None]


def step(model: nn.Module, capture: Any, micro_batches: int, run: Run = lambda function: function()) -> None:
    """Runs a step, each backward by `run`; drops the gradients at the end."""
    for number in range(micro_batches):
        torch.manual_seed(number)
        loss = model(torch.randn(*BATCH, WIDTH)).square().mean()
        with capture:
            run(loss.backward)
    model.zero_grad(set_to_none=True)


def peak_of_step(model: nn.Module, capture: Any, micro_batches: int) -> int:
    """Returns the peak of the third step, in bytes."""
    for _ in range(2):
        step(model, capture, micro_batches)
    return peak_bytes(lambda: step(model, capture, micro_batches))


# Operators that compute nothing.
_FREE = {
    "t",
    "transpose",
    "permute",
    "view",
    "view_as",
    "flatten",
    "unflatten",
    "expand_as",
    "reshape_as",
    "reshape",
    "_unsafe_view",
    "expand",
    "detach",
    "as_strided",
    "select",
    "slice",
    "squeeze",
    "unsqueeze",
    "alias",
    "unbind",
    "split",
    "narrow",
    "empty",
    "empty_like",
    "empty_strided",
    "new_empty",
    "new_empty_strided",
    "result_type",
    "resolve_conj",
    "lift_fresh",
}


def kernels_of_step(model: nn.Module, capture: Any, micro_batches: int) -> int:
    """Returns the number of kernels in the backwards of the third step."""
    launched, total, load = [0], [0], library.load

    def counting(entry: Callable[..., Any]) -> Callable[..., Any]:
        def launch(*args: Any) -> Any:
            launched[0] += 1
            return entry(*args)

        return launch

    def counted(function: Callable[[], None]) -> None:
        launched[0] = 0
        with profile(activities=[ProfilerActivity.CPU]) as profiler:
            function()
        tops = [event for event in profiler.events() or () if not _in_operator(event.cpu_parent)]
        total[0] += launched[0] + sum(map(_kernels_in, tops))

    minidynamo.reset()  # kernels that are loaded already would not be counted
    library.load = lambda *args, **kwargs: {k: counting(v) for k, v in load(*args, **kwargs).items()}
    try:
        with minidynamo.config.patch(graph_cache=False):
            for _ in range(2):
                step(model, capture, micro_batches)
            step(model, capture, micro_batches, counted)
    finally:
        library.load = load
    return total[0]


def _in_operator(event: Any) -> bool:
    return event is not None and (event.name.startswith("aten::") or _in_operator(event.cpu_parent))


def _kernels_in(event: Any) -> int:
    """Returns 1 for an operator that computes, else the number of kernels that the operator calls."""
    if not event.name.startswith("aten::"):
        return 0
    is_free = event.name.removeprefix("aten::") in _FREE
    return sum(map(_kernels_in, event.cpu_children)) if is_free else 1


def _medians(names: list[str]) -> dict[str, float]:
    """Returns the median time of a backward, in seconds."""
    steps = {}
    for name in names:
        torch.manual_seed(0)
        transform, capture = SYSTEMS[name]
        steps[name] = (transform(_model()), capture)
    times: dict[str, list[float]] = {name: [] for name in names}
    for round_number in range(ROUNDS + 4):  # the first rounds compile, without and with `.grad`
        for name, (model, capture) in steps.items():
            loss = model(torch.randn(64, 256)).square().mean()
            with capture():
                start = time.process_time()
                loss.backward()
                spent = time.process_time() - start
            if round_number >= 4:
                times[name].append(spent)
    return {name: statistics.median(found) for name, found in times.items()}
