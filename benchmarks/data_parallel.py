"""Shows when `DistributedDataParallel` sends each bucket of gradients: how much of backward is still to come.

`python -m benchmarks data_parallel` counts products of matrices, so the counts do not depend on the load of the
machine. It also prints the CPU time of a step, as a ratio of medians; the systems take turns. One process is enough:
the order of events is the same with several ranks.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable
from typing import Any

import torch
from torch import distributed, nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils._python_dispatch import TorchDispatchMode

import minidynamo

ROUNDS = 41
WIDTH, LAYERS, ROWS = 512, 8, 64


def _model() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(*(layer for _ in range(LAYERS) for layer in (nn.Linear(WIDTH, WIDTH), nn.GELU())))


def _wrapped(model: nn.Module, megabytes: float = 2) -> DistributedDataParallel:
    return DistributedDataParallel(model, bucket_cap_mb=megabytes)


SYSTEMS: dict[str, Callable[[], Any]] = {
    "eager": lambda: _wrapped(_model()),
    "DDP(torch.compile(model))": lambda: _wrapped(torch.compile(_model())),  # type: ignore[arg-type]
    "torch.compile(DDP(model))": lambda: torch.compile(_wrapped(_model())),
    "DDP(compile(model))": lambda: _wrapped(minidynamo.compile(_model())),
    "compile(DDP(model))": lambda: minidynamo.compile(_wrapped(_model())),
    "DDP(compile(model)), one bucket": lambda: _wrapped(minidynamo.compile(_model()), 1000),
}


class _Products(TorchDispatchMode):
    """Counts products of matrices, and records the count at each bucket."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.count = 0
        self.buckets: list[int] = []

    def __torch_dispatch__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.count += str(function) in ("aten.mm.default", "aten.addmm.default", "aten.mm.out", "aten.addmm.out")
        return function(*args, **(kwargs or {}))


def main(names: list[str]) -> None:
    """Prints the table, for all systems or those with these names."""
    torch.set_num_threads(1)
    distributed.init_process_group("gloo", store=distributed.HashStore(), rank=0, world_size=1)  # type: ignore[attr-defined]
    systems = {name: make() for name, make in SYSTEMS.items() if not names or name in names}
    for name, model in systems.items():
        print(f"{name}: {_to_come(model)}")
    medians = _medians(systems)
    for name, median in medians.items():
        print(f"{name}: {median / next(iter(medians.values())):.2f} of the time of {next(iter(medians))}")
    distributed.destroy_process_group()


def _to_come(model: Any) -> str:
    """Returns the share of backward's products that follow each bucket."""
    products = _Products()
    wrapped = getattr(model, "_orig_mod", model)

    def send(state, bucket):  # type: ignore[no-untyped-def]  # torch reads the annotations
        products.buckets.append(products.count)
        work = distributed.all_reduce(bucket.buffer(), async_op=True)
        return work.get_future().then(lambda future: future.value()[0])

    wrapped.register_comm_hook(None, send)
    for _ in range(3):  # the first steps compile, and put the buckets into the order of backward
        loss = model(torch.ones(ROWS, WIDTH)).square().mean()
        products.count, products.buckets = 0, []
        with products:
            loss.backward()
    return ", ".join(f"{1 - count / products.count:.0%}" for count in products.buckets)


def _medians(systems: dict[str, Any]) -> dict[str, float]:
    """Returns the median CPU time of a step, in seconds."""
    times: dict[str, list[float]] = {name: [] for name in systems}
    for _ in range(ROUNDS):
        for name, model in systems.items():
            model.zero_grad()
            start = time.process_time()
            model(torch.ones(ROWS, WIDTH)).square().mean().backward()
            times[name].append(time.process_time() - start)
    return {name: statistics.median(found) for name, found in times.items()}
