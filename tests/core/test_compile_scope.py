"""Signals wait for the end of a compile; the tests of compat cover the state afterwards."""

import gc
import signal

import pytest
import torch

import minidynamo
from minidynamo.autograd.aot import aot_compile
from minidynamo.core.compile_scope import isolated
from minidynamo.graph.boxed import make_boxed


@pytest.fixture
def came():
    """Records the signals whose handler has run; the handler of SIGUSR1 raises."""
    seen = []

    def handle(number, frame):
        seen.append(number)
        if number == signal.SIGUSR1:
            raise TimeoutError

    before = {number: signal.signal(number, handle) for number in (signal.SIGUSR1, signal.SIGUSR2)}
    yield seen
    for number, handler in before.items():
        signal.signal(number, handler)


def test_signals_wait_and_come_again_at_once(came):
    with pytest.raises(TimeoutError), isolated():
        signal.raise_signal(signal.SIGUSR1)
        signal.raise_signal(signal.SIGUSR2)
        with isolated():
            assert came == []
        signal.raise_signal(signal.SIGUSR2)
        assert came == [signal.SIGUSR2]
    assert came == [signal.SIGUSR2, signal.SIGUSR1, signal.SIGUSR2]
    signal.raise_signal(signal.SIGUSR2)
    assert len(came) == 4


@pytest.mark.parametrize("stage", ["forward", "backward"])
def test_a_handler_that_raises_ends_the_call_and_the_next_one_compiles(came, stage):
    graphs = []

    def backend(gm, examples):
        graphs.append(gm)
        if len(graphs) == 1:
            signal.raise_signal(signal.SIGUSR1)
        return make_boxed(gm)

    def interrupted(gm, examples):
        return aot_compile(gm, examples, **{**stages, stage: backend})

    stages = dict.fromkeys(("forward", "backward", "inference"), lambda gm, examples: make_boxed(gm))
    compiled = minidynamo.compile(lambda x: x.sin() * 2, backend=interrupted)
    x = torch.ones(2, requires_grad=True)
    with pytest.raises(TimeoutError):
        compiled(x).sum().backward()
    assert came == [signal.SIGUSR1]
    compiled(x).sum().backward()
    assert torch.equal(x.grad, x.cos().mul(2))
    assert len(graphs) == 2


def test_cycles_are_collected_after_the_compile():
    with isolated():
        assert not gc.isenabled()
        with isolated():
            pass
        assert not gc.isenabled()
    assert gc.isenabled()
    with pytest.raises(ValueError), isolated():
        raise ValueError
    assert gc.isenabled()
    gc.disable()
    try:
        with isolated():
            pass
        assert not gc.isenabled()
    finally:
        gc.enable()
