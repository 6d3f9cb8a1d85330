"""DistributedDataParallel on two ranks, compiled inside and outside of the wrapper: parameters are those of eager."""

from __future__ import annotations

import contextlib
import warnings
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from types import MethodType
from typing import Any

import torch
from torch import distributed as dist
from torch import nn
from torch.distributed.algorithms.ddp_comm_hooks import powerSGD_hook
from torch.distributed.algorithms.ddp_comm_hooks.default_hooks import fp16_compress_hook
from torch.nn.parallel import DistributedDataParallel
from torch.utils.checkpoint import checkpoint

import minidynamo
from tests.ranks import Ranks
from tests.recorded_products import RecordedProducts

programs = Ranks(__name__)


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.inner, self.head = nn.Linear(8, 16), nn.Linear(16, 4)
        self.layers = nn.ModuleList(nn.Linear(16, 16) for _ in range(3))

    def forward(self, x):
        x = self.inner(x)
        for layer in self.layers:
            x = torch.relu(layer(x)) + x
        return self.head(x)


class Unused(Model):
    """Never uses a layer."""

    def __init__(self):
        super().__init__()
        self.unused = nn.Linear(3, 3)


class Alternating(Model):
    """Uses other layers in every second step."""

    def __init__(self):
        super().__init__()
        self.other, self.is_even = nn.Linear(16, 4), True

    def forward(self, x):
        self.is_even = not self.is_even
        x = self.layers[0](torch.relu(self.inner(x)))
        return self.head(self.layers[1](x)) if self.is_even else self.other(self.layers[2](x))


class Normalized(Model):
    """Has buffers, which rank 0 sends before each forward."""

    def __init__(self):
        super().__init__()
        self.norm = nn.BatchNorm1d(8)

    def forward(self, x):
        return super().forward(self.norm(x))


class Tied(Model):
    """Uses a parameter twice."""

    def forward(self, x):
        return super().forward(self.layers[1](self.inner(x)) @ self.inner.weight)


class Broken(Model):
    """Has a graph break: two graphs, which both have parameters."""

    def forward(self, x):
        x = torch.relu(self.layers[0](self.inner(x)))
        minidynamo.graph_break()
        return self.head(self.layers[1](self.layers[2](x)))


class Checkpointed(Model):
    def forward(self, x):
        x = self.inner(x)
        for layer in self.layers:
            x = checkpoint(lambda x, layer=layer: torch.relu(layer(x)) + x, x, use_reentrant=False)
        return self.head(x)


class Several(Model):
    """Returns a dict of results, of which the loss uses one."""

    def forward(self, x):
        x = self.layers[0](self.inner(x))
        return {"result": self.head(x), "hidden": self.layers[1](x), "input": x}


def ignoring(m):
    """Leaves a parameter to the program: each rank has its own gradient of it."""
    DistributedDataParallel._set_params_and_buffers_to_ignore_for_model(m, ["layers.1.weight"])


def autocast_forward(m):
    """Replaces the forward of the module as `Accelerator.prepare` does for mixed precision."""
    forward = torch.autocast("cpu", torch.bfloat16)(type(m).forward)
    m.forward = MethodType(lambda self, x: forward(self, x).float(), m)


def power_sgd(wrapped):
    state = powerSGD_hook.PowerSGDState(None, matrix_approximation_rank=2, start_powerSGD_iter=2)
    wrapped.register_comm_hook(state, powerSGD_hook.powerSGD_hook)


def halving(wrapped):
    wrapped.register_comm_hook(None, fp16_compress_hook)


@dataclass(frozen=True)
class Case:
    """A model, how it is wrapped, and how it is trained."""

    model: type[Model] = Model
    options: dict[str, Any] = field(default_factory=dict)
    #: is called with the model before it is wrapped
    before: Callable[[Any], None] = lambda m: None
    #: is called with the wrapper
    after: Callable[[Any], None] = lambda wrapped: None
    #: backwards per step of the optimizer
    batches: int = 1
    #: batches that rank 1 has more than rank 0
    uneven: int = 0
    backend: str = "aot_eager"
    graphs: int = 1


SMALL = {"bucket_cap_mb": 0.001}
CASES = {
    "small_buckets": Case(options=SMALL),
    "default_buckets": Case(),
    "a_list_of_bucket_sizes": Case(options={"bucket_cap_mb_list": [0.0005, 0.002, 0.001]}),
    "no_sync": Case(options=SMALL, batches=2),
    "unused": Case(Unused, SMALL | {"find_unused_parameters": True}),
    "alternating": Case(Alternating, SMALL | {"find_unused_parameters": True}, graphs=2),
    "alternating_no_sync": Case(Alternating, SMALL | {"find_unused_parameters": True}, batches=2, graphs=2),
    "static_graph": Case(Unused, SMALL | {"static_graph": True}),
    "bucket_view": Case(options=SMALL | {"gradient_as_bucket_view": True}),
    "bucket_view_no_sync": Case(options=SMALL | {"gradient_as_bucket_view": True}, batches=2),
    "fp16_hook": Case(options=SMALL, after=halving),
    "power_sgd_hook": Case(options={"gradient_as_bucket_view": True}, after=power_sgd),
    "join": Case(options=SMALL, uneven=2),
    "ignored_parameter": Case(options=SMALL, before=ignoring),
    "buffers": Case(Normalized, SMALL),
    "autocast_forward": Case(options=SMALL, before=autocast_forward),
    "generated_kernels": Case(Normalized, SMALL, backend="native"),
    "tied": Case(Tied, SMALL),
    "graph_break": Case(Broken, SMALL, graphs=2),
    "checkpoint": Case(Checkpointed, SMALL),
    "several_results": Case(Several, SMALL | {"find_unused_parameters": True}),
}

FAST = {"small_buckets", "bucket_view_no_sync", "alternating", "static_graph", "join"}


def train(rank, case, where):
    """Returns the state after five steps, and the counters of the compiled module."""
    torch.manual_seed(0)
    m = case.model()
    m.register_buffer("mine", torch.full((1,), float(rank)))
    compile_it = partial(minidynamo.compile, backend=case.backend, fullgraph=case.model is not Broken)
    case.before(m)
    if where == "inside":
        compile_it(m)
    wrapped = DistributedDataParallel(m, **case.options)
    case.after(wrapped)
    if where == "outside":
        compile_it(wrapped)
    optimizer, generator = torch.optim.SGD(m.parameters(), lr=0.1), torch.Generator().manual_seed(rank)
    with wrapped.join() if case.uneven else contextlib.nullcontext():
        for number in range(5 * case.batches + case.uneven * rank):
            is_last = (number + 1) % case.batches == 0
            with contextlib.nullcontext() if is_last else wrapped.no_sync():
                y = wrapped(torch.randn(4, 8, generator=generator))
                y = y["result"] if isinstance(y, dict) else y
                y.pow(2).mean().backward()
            if is_last:
                optimizer.step()
                optimizer.zero_grad()
    stats = minidynamo.stats(m if where == "inside" else wrapped) if where else None
    return {name: value.clone() for name, value in m.state_dict().items()}, stats


def check(rank, case):
    expected, _ = train(rank, case, "")
    for where in ("inside", "outside"):
        found, stats = train(rank, case, where)
        tolerance = 0 if case.backend == "aot_eager" else 1e-5
        wrong = [n for n, value in expected.items() if not torch.allclose(value, found[n], tolerance, tolerance)]
        assert not wrong, (where, wrong)
        assert stats.graphs == case.graphs and not stats.fallbacks, (where, str(stats))
        assert case.model is Broken or not stats.graph_breaks, where


def _program(name, case):
    def program(rank):
        check(rank, case)

    program.__name__ = f"DDP_{name}"
    return programs(program, slow=name not in FAST)


for name, case in CASES.items():
    _program(name, case)


def nodes_of(function, found):
    """Collects the nodes of autograd's graph from `function` on."""
    if function is not None and function not in found:
        found[function] = None
        for other, _ in function.next_functions:
            nodes_of(other, found)
    return found


@programs
def DDP_4_gradients_leave_one_by_one(rank):
    """Each bucket is sent as early as in eager, between the same products of matrices."""
    events = []

    def reduce(state, bucket):
        events.append(f"bucket of {len(bucket.parameters())}")
        return dist.all_reduce(bucket.buffer(), async_op=True).get_future().then(lambda f: f.value()[0])

    def last_step(backend, where):
        torch.manual_seed(0)
        m = Model()
        if where == "inside":
            minidynamo.compile(m, backend=backend, fullgraph=True)
        wrapped = DistributedDataParallel(m, **SMALL)
        wrapped.register_comm_hook(None, reduce)
        if where == "outside":
            minidynamo.compile(wrapped, backend=backend, fullgraph=True)
        for _ in range(2):  # buckets are in the order of the first backward from the second iteration on
            loss = wrapped(torch.ones(4, 8)).sum()
            events.clear()
            with RecordedProducts(events):
                loss.backward()
        return [*events]

    expected = last_step(None, "")
    assert sum(event != "mm" for event in expected) >= 4 and expected[-3:-1] == ["bucket of 2", "mm"]
    buckets = [event for event in expected if event != "mm"]
    for where in ("inside", "outside"):
        assert last_step("aot_eager", where) == expected, where
        # Kernels compute small products.
        assert [event for event in last_step("native", where) if event != "mm"] == buckets, where


@programs
def DDP_explain_shows_the_stages(rank):
    wrapped = minidynamo.compile(DistributedDataParallel(Model(), **SMALL), backend="aot_eager")
    wrapped(torch.ones(4, 8)).sum().backward()
    for explanation in (minidynamo.explain(wrapped), minidynamo.explain(wrapped)(torch.ones(4, 8))):
        assert "gradients leave backward in 4 stages, as buckets are full: 4, 2, 2, 2" in str(explanation)


@programs
def DDP_in_a_compiled_function(rank):
    """The call of the wrapper is the only graph break; the wrapped module is compiled."""

    def train(compile_it):
        torch.manual_seed(0)
        wrapped = DistributedDataParallel(Model(), **SMALL)
        loss_of = compile_it(lambda x: wrapped(x * 2).pow(2).mean())
        for number in range(3):
            loss_of(torch.full((4, 8), rank + number + 1.0)).backward()
        return loss_of, [p.grad for p in wrapped.parameters()]

    loss_of, gradients = train(lambda f: minidynamo.compile(f, backend="aot_eager"))
    assert all(map(torch.equal, gradients, train(lambda f: f)[1]))
    assert (minidynamo.stats(loss_of).graphs, minidynamo.stats(loss_of).graph_breaks) == (3, 1)


@programs
def DDP_4_a_graph_outside_of_a_wrapper_is_not_cut(rank):
    m = minidynamo.compile(Model(), backend="aot_eager")
    found = nodes_of(m(torch.ones(4, 8)).sum().grad_fn, {})
    assert sum("CompiledFunction" in node.name() for node in found) == 1


def captured(rank, capture, mode):
    """Returns the gradients after two backwards, and the order of the hooks."""
    torch.manual_seed(0)
    with torch._dynamo.config.patch(optimize_ddp=mode):
        m, events = Model(), []
        wrapped = DistributedDataParallel(m, bucket_cap_mb=0.001)
    for name, parameter in m.named_parameters():
        parameter.register_hook(lambda g, name=name: events.append(name))
    m.head.register_full_backward_hook(lambda *_: events.append("module"))
    generator = torch.Generator().manual_seed(rank)
    for _ in range(2):
        y = wrapped(torch.randn(4, 8, generator=generator))
        y.register_hook(lambda g: events.append("result") or g * 2)
        with capture:
            y.pow(2).mean().backward()
    return [p.grad for p in m.parameters()], events


@programs
def DDP_captured_backward(rank):
    """torch's reducer written in C++ cannot be captured, its reducer written in Python can."""
    expected, order = captured(rank, contextlib.nullcontext(), True)
    modes = (True, 0, "aot_eager"), ("python_reducer", 2, "eager"), ("python_reducer", 2, "aot_eager")
    for mode, backwards, backend in modes:
        counter = minidynamo.testing.CompileCounterWithBackend(backend)
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            made, events = captured(rank, minidynamo.captured_backward(counter), mode)
        assert all(map(torch.equal, made, expected)), mode
        assert events == order, mode
        assert counter.frame_count >= backwards, counter.frame_count
        assert any("MD525" in str(w.message) for w in caught) == (mode is True), mode


test_on_two_ranks = programs.test()
