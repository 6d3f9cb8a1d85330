"""Backwards in several threads: one of them is captured, the others run eagerly."""

from __future__ import annotations

import contextlib
import threading

import pytest
import torch
from torch.autograd import Variable

import minidynamo
from minidynamo import captured_backward
from minidynamo.core.events import MinidynamoNotice
from minidynamo.errors import Unsupported
from minidynamo.testing import CompileCounterWithBackend


def while_another_backward_runs(capture, work):
    """Calls `work()` while a backward of another thread waits in a hook, in a block `capture`; returns its gradient."""
    x, started, go = torch.ones(3, requires_grad=True), threading.Event(), threading.Event()
    y = x * 2

    @minidynamo.disable
    def wait(gradient):
        started.set()
        assert go.wait(60)

    y.register_hook(wait)

    def run():
        with capture:
            y.sum().backward()

    thread = threading.Thread(target=run)
    thread.start()
    try:
        assert started.wait(60)
        work()
    finally:
        go.set()
        thread.join()
    assert torch.equal(x.grad, torch.full((3,), 2.0))


def sine(capture):
    """Returns the gradient of a sum of sines."""
    x = torch.ones(3, requires_grad=True)
    with torch.enable_grad(), capture:
        x.sin().sum().backward()
    return x.grad


COSINE = torch.ones(3).cos()


def test_a_second_captured_backward_runs_eagerly_meanwhile():
    counter = CompileCounterWithBackend("eager")

    def work():
        with pytest.warns(MinidynamoNotice, match="MD525 .* runs in another thread") as notices:
            assert torch.equal(sine(captured_backward(counter)), COSINE)
        assert notices[0].filename == __file__
        with pytest.raises(Unsupported, match="MD525"):
            sine(captured_backward(counter, fullgraph=True))

    while_another_backward_runs(captured_backward("eager"), work)
    assert counter.frame_count == 0
    assert torch.equal(sine(captured_backward(counter)), COSINE) and counter.frame_count == 1


@pytest.mark.parametrize("first", [True, False])
def test_a_block_applies_to_its_thread(first):
    counter = CompileCounterWithBackend("eager")
    blocks = [captured_backward("eager"), contextlib.nullcontext()]
    if not first:
        blocks = [contextlib.nullcontext(), captured_backward(counter)]
    while_another_backward_runs(blocks[0], lambda: torch.equal(sine(blocks[1]), COSINE) or pytest.fail("wrong"))
    assert counter.frame_count == (0 if first else 1)


def test_threads_with_backends_of_their_own():
    counters, errors = [CompileCounterWithBackend("eager") for _ in range(3)], []

    @minidynamo.config.patch(captured_backward=False)
    def train(counter):
        try:
            for size in (2, 3):
                x = torch.randn(size, requires_grad=True)
                with captured_backward(counter, dynamic=False):
                    x.exp().sum().backward()
                torch.testing.assert_close(x.grad, x.detach().exp(), rtol=0, atol=0)
        except BaseException as error:
            errors.append(error)

    threads = [threading.Thread(target=train, args=(counter,)) for counter in counters]
    with contextlib.suppress(MinidynamoNotice):
        for thread in threads:
            thread.start()
            thread.join()
    assert not errors and [counter.frame_count for counter in counters] == [2, 2, 2]


@pytest.mark.filterwarnings("ignore:MD525")
def test_backwards_of_four_threads_at_once():
    errors = []

    def train(number):
        try:
            for round_number in range(30):
                x = torch.full((4,), float(number), requires_grad=True)
                with captured_backward("eager") if number < 3 or round_number % 2 else contextlib.nullcontext():
                    (x * x * number).sum().backward()
                assert torch.equal(x.grad, torch.full((4,), 2.0 * number * number))
        except BaseException as error:
            errors.append(error)

    threads = [threading.Thread(target=train, args=(number,)) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not errors


def test_a_backward_inside_of_a_hook_runs_eagerly():
    found = []

    @minidynamo.disable
    def hook(gradient):
        found.append(sine(captured_backward("eager", fullgraph=True)))

    x = torch.ones(3, requires_grad=True)
    y = x * 2
    y.register_hook(hook)
    with captured_backward("eager"):
        y.sum().backward()
    assert torch.equal(found[0], COSINE) and torch.equal(x.grad, torch.full((3,), 2.0))


@pytest.mark.parametrize("capture", [contextlib.nullcontext(), captured_backward("eager")])
def test_callbacks_run_at_the_end_of_their_backward(capture):
    seen = []

    @minidynamo.disable
    def hook(gradient):
        Variable._execution_engine.queue_callback(lambda: seen.append("first"))
        Variable._execution_engine.queue_callback(
            lambda: Variable._execution_engine.queue_callback(lambda: seen.append("last"))
        )
        with torch.enable_grad():
            inner = torch.ones(3, requires_grad=True) * 2
            inner.register_hook(lambda g: Variable._execution_engine.queue_callback(lambda: seen.append("inner")))
            inner.sum().backward()
        seen.append("hook")

    x = torch.ones(3, requires_grad=True)
    y = x * 2
    y.register_hook(hook)
    x.register_hook(lambda g: seen.append("x"))
    with capture:
        y.sum().backward()
    assert seen == ["inner", "hook", "x", "first", "last"]


def test_torchs_engine_is_back_after_the_last_block():
    engine = Variable._execution_engine
    with captured_backward("eager"), captured_backward("eager"):
        assert Variable._execution_engine is not engine
    assert Variable._execution_engine is engine
