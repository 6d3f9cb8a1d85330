"""DistributedDataParallel on two ranks, compiled inside and outside of the wrapper: parameters are those of eager."""

from __future__ import annotations

import contextlib
import warnings

import torch
from torch import distributed as dist
from torch import nn
from torch.distributed.algorithms.ddp_comm_hooks.default_hooks import fp16_compress_hook
from torch.nn.parallel import DistributedDataParallel

import minidynamo
from tests.ranks import Ranks

programs = Ranks(__name__)


class Model(nn.Module):
    def __init__(self, unused=False):
        super().__init__()
        self.inner, self.head = nn.Linear(8, 16), nn.Linear(16, 4)
        self.layers = nn.ModuleList(nn.Linear(16, 16) for _ in range(3))
        self.unused = nn.Linear(3, 3) if unused else None

    def forward(self, x):
        x = self.inner(x)
        for layer in self.layers:
            x = torch.relu(layer(x)) + x
        return self.head(x)


def train(rank, where, *, unused=False, hook=None, accumulate=False, **options):
    """Returns the parameters after six batches, and the counters of the compiled module."""
    torch.manual_seed(0)
    m = Model(unused)
    if where == "inside":
        minidynamo.compile(m, backend="aot_eager", fullgraph=True)
    wrapped = DistributedDataParallel(m, bucket_cap_mb=0.001, **options)
    if hook is not None:
        wrapped.register_comm_hook(None, hook)
    if where == "outside":
        minidynamo.compile(wrapped, backend="aot_eager")
    optimizer, generator = torch.optim.SGD(m.parameters(), lr=0.1), torch.Generator().manual_seed(rank)
    for number in range(6):
        is_last = not accumulate or number % 2 == 1
        with contextlib.nullcontext() if is_last else wrapped.no_sync():
            wrapped(torch.randn(4, 8, generator=generator)).pow(2).mean().backward()
        if is_last:
            optimizer.step()
            optimizer.zero_grad()
    graphs = minidynamo.stats(m if where == "inside" else wrapped).graphs if where else 0
    return [p.detach() for p in m.parameters()], graphs


def check(rank, **options):
    expected, _ = train(rank, "", **options)
    for where in ("inside", "outside"):
        made, graphs = train(rank, where, **options)
        assert all(map(torch.equal, made, expected)), where
        assert graphs == 1, where


@programs
def DDP_small_buckets(rank):
    check(rank)


@programs
def DDP_no_sync(rank):
    check(rank, accumulate=True)


@programs
def DDP_find_unused_parameters(rank):
    check(rank, unused=True, find_unused_parameters=True)


@programs
def DDP_static_graph(rank):
    check(rank, unused=True, static_graph=True)


@programs
def DDP_gradient_as_bucket_view(rank):
    check(rank, gradient_as_bucket_view=True, accumulate=True)


@programs
def DDP_comm_hook(rank):
    check(rank, hook=fp16_compress_hook)


def nodes_of(function, found):
    """Collects the nodes of autograd's graph from `function` on."""
    if function is not None and function not in found:
        found[function] = None
        for other, _ in function.next_functions:
            nodes_of(other, found)
    return found


@programs
def DDP_4_buckets_are_reduced_while_backward_runs(rank):
    for backend in ("aot_eager", "native"):
        events = []

        def reduce(state, bucket, events=events):
            events.append("bucket")
            return dist.all_reduce(bucket.buffer(), async_op=True).get_future().then(lambda f: f.value()[0])

        torch.manual_seed(0)
        m = minidynamo.compile(Model(), backend=backend, fullgraph=True)
        wrapped = DistributedDataParallel(m, bucket_cap_mb=0.001)
        wrapped.register_comm_hook(None, reduce)
        for _ in range(2):
            events.clear()
            loss = wrapped(torch.ones(4, 8)).sum()
            segments = [node for node in nodes_of(loss.grad_fn, {}) if "CompiledFunction" in node.name()]
            for node in segments:
                node.register_prehook(lambda gradients, events=events: events.append("segment"))
            loss.backward()
        # Buckets exist from the second iteration on. All but the last are sent before backward ends.
        assert minidynamo.stats(m).graphs == 1 and len(segments) >= 4 == events.count("segment")
        last = len(events) - 1 - events[::-1].index("segment")
        assert events.count("bucket") >= 3 and events[:last].count("bucket") >= 2, events


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
    for mode, backwards in ((True, 0), ("python_reducer", 2)):
        counter = minidynamo.testing.CompileCounterWithBackend("aot_eager")
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            made, events = captured(rank, minidynamo.captured_backward(counter), mode)
        assert all(map(torch.equal, made, expected)), mode
        assert events == order, mode
        assert counter.frame_count >= backwards, counter.frame_count
        assert any("MD525" in str(w.message) for w in caught) == (mode is True), mode


test_on_two_ranks = programs.test()
