"""Compiled functions in forked processes, whatever the parent's threads were doing."""

from __future__ import annotations

import os
import signal
import threading
import time

import pytest
import torch
from torch.utils.data import DataLoader, Dataset

import minidynamo
from minidynamo.config import config
from minidynamo.graph.boxed import make_boxed

pytestmark = pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")


def program(x):
    return (x * 2).sin() + x


def child_is_right(function, *args, seconds=120):
    """True if a forked process gets eager's result from `function`; a hanging process is killed.

    The child compares Python numbers: torch's own kernels hang in the child once the parent has used several threads.
    """
    expected = program(*args).tolist()
    child = os.fork()
    if child == 0:
        good = False
        try:
            good = all(abs(a - b) < 1e-5 for a, b in zip(function(*args).tolist(), expected, strict=True))
        finally:
            os._exit(0 if good else 1)
    until = time.monotonic() + seconds
    while time.monotonic() < until:
        done, status = os.waitpid(child, os.WNOHANG)
        if done:
            return os.waitstatus_to_exitcode(status) == 0
        time.sleep(0.01)
    os.kill(child, signal.SIGKILL)
    os.waitpid(child, 0)
    return False


@pytest.mark.parametrize("backend", ["eager", pytest.param("cpp", marks=pytest.mark.cpp)])
def test_a_child_compiles_for_itself(backend):
    f = minidynamo.compile(program, backend=backend)
    assert child_is_right(f, torch.randn(5))
    assert f.stats.compiles == 0


@pytest.mark.cpp
def test_a_child_runs_kernels_whose_threads_only_the_parent_has():
    """Large enough for several threads, which OpenMP has started in the parent."""
    f = minidynamo.compile(program, backend="cpp")
    x = torch.randn(1 << 18)
    threads = torch.get_num_threads()
    torch.set_num_threads(2)
    try:
        f(x)
        assert child_is_right(f, x)
        assert torch.allclose(f(x), program(x), atol=1e-6)  # the parent's go on
    finally:
        torch.set_num_threads(threads)


@pytest.mark.cpp
def test_a_child_may_compile_more_kernels():
    f = minidynamo.compile(program, backend="cpp")
    f(torch.randn(1 << 18))
    g = minidynamo.compile(program, backend="cpp", options={"fuse": False})
    assert child_is_right(g, torch.randn(7))


def test_a_child_does_not_wait_for_a_compile_of_the_parent():
    compiling, go_on = threading.Event(), threading.Event()

    def slow(gm, example_inputs):
        if threading.current_thread() is not threading.main_thread():
            compiling.set()
            assert go_on.wait(120)
        return make_boxed(gm)

    f = minidynamo.compile(program, backend=slow)
    other = minidynamo.compile(program, backend="eager", name="other")
    other(torch.randn(4))
    x = torch.randn(3)
    thread = threading.Thread(target=f, args=(x,))
    thread.start()
    try:
        assert compiling.wait(60)
        assert child_is_right(f, x)
        assert child_is_right(other, torch.randn(4))
        assert child_is_right(other, torch.randn(5))
    finally:
        go_on.set()
        thread.join()
    assert torch.equal(f(x), program(x))
    assert f.stats.compiles == 1


class Compiled(Dataset):
    def __init__(self, function):
        self.function = function

    def __len__(self):
        return 8

    def __getitem__(self, index):
        with torch.no_grad():
            return self.function(torch.full((1 << 15,), float(index)))


@pytest.mark.cpp
@pytest.mark.parametrize("compiled_before", [False, True])
@pytest.mark.parametrize("graph_cache", [False, True])
def test_workers_of_a_data_loader_call_compiled_functions(compiled_before, graph_cache, tmp_path):
    f = minidynamo.compile(program, backend="cpp")
    with config.patch(graph_cache=graph_cache, cache_dir=str(tmp_path)):
        if compiled_before:
            f(torch.full((1 << 15,), 1.0))
        loader = DataLoader(Compiled(f), batch_size=2, num_workers=2, multiprocessing_context="fork", timeout=120)
        found = torch.cat(list(loader))
    expected = torch.stack([program(torch.full((1 << 15,), float(index))) for index in range(8)])
    torch.testing.assert_close(found, expected)
