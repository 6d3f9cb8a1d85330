"""The built-in backends on machines without a C++ compiler, and with a broken compiler."""

from __future__ import annotations

import stat

import pytest
import torch

import minidynamo
from minidynamo.codegen.runtime.toolchain import find_toolchain
from minidynamo.core.events import MinidynamoNotice


def sums(**keywords):
    """Returns the results of two calls of a function with few operations."""
    compiled = minidynamo.compile(lambda x: (x + 2).sum(), **keywords)
    return [compiled(torch.ones(2)).item() for _ in range(2)]


def script(path, text):
    path.write_text(f"#!/bin/sh\n{text}\n")
    path.chmod(path.stat().st_mode | stat.S_IXUSR)
    return str(path)


def train(**keywords):
    """Runs a training step; returns True if the step equals eager's."""
    # A constant unique to this test, so the cache cannot have an entry.
    torch.manual_seed(0)
    scale, x, w = torch.rand(()).item() + train.calls, torch.randn(3, 4), torch.randn(4, 4, requires_grad=True)
    train.calls += 1

    def step(x, w):
        return (torch.tanh(x @ w) * scale).sin().sum()

    results = []
    for function in (step, minidynamo.compile(step, **keywords)):
        loss = function(x, w)
        loss.backward()
        results.append((loss.detach(), w.grad.clone()))
        w.grad = None
    torch.testing.assert_close(*results)


train.calls = 0


@pytest.mark.parametrize("on_error", ["raise", "eager"])
@pytest.mark.parametrize("backend", ["native", "cpp"])
@pytest.mark.parametrize("where", ["setting", "path"])
def test_without_a_compiler_torchs_kernels_run_with_one_notice(where, backend, on_error, monkeypatch, tmp_path):
    if where == "path":
        monkeypatch.setenv("PATH", str(tmp_path))
    with (
        minidynamo.config.patch(cxx=str(tmp_path / "g++") if where == "setting" else ""),
        pytest.warns(MinidynamoNotice, match=r"MD501 no C\+\+ compiler was found") as notices,
    ):
        train(backend=backend, on_error=on_error)
        assert sums(backend=backend, on_error=on_error) == [6.0, 6.0]
    assert len(notices) == 1


BROKEN = {
    "does not run": ("exit 1", "MD502"),
    "refuses": ('[ "$1" = --version ] && echo g++ 1.0 && exit\necho "error: disk full" >&2\nexit 1', "MD502"),
    "writes nothing": ("echo g++ 1.0", "MD502"),
    "writes no library": ('echo g++ 1.0; while [ "$1" != -o ]; do shift; done; echo text > "$2"', "MD503"),
}


@pytest.mark.provokes_failures
@pytest.mark.parametrize("on_error", ["raise", "eager"])
@pytest.mark.parametrize("kind", BROKEN)
def test_with_a_broken_compiler_torchs_kernels_run_with_one_notice(kind, on_error, tmp_path):
    text, code = BROKEN[kind]
    with (
        minidynamo.config.patch(cxx=script(tmp_path / "g++", text)),
        pytest.warns(MinidynamoNotice, match=code) as notices,
    ):
        train(on_error=on_error)
        assert sums(on_error=on_error) == [6.0, 6.0]
    assert len(notices) == 1


FAILS_THE_SECOND_TIME = """
[ "$1" = --version ] && exec {cxx} --version
echo x >> {count}
[ $(wc -l < {count}) -gt 1 ] && echo "error: disk full" >&2 && exit 1
exec {cxx} "$@"
"""


@pytest.mark.cpp
@pytest.mark.provokes_failures
def test_a_compiler_that_breaks_before_backward(tmp_path):
    cxx = find_toolchain().command
    flaky = script(tmp_path / "g++", FAILS_THE_SECOND_TIME.format(cxx=cxx, count=tmp_path / "count"))
    with (
        minidynamo.config.patch(cxx=flaky, cache_dir=str(tmp_path)),
        pytest.warns(MinidynamoNotice, match="MD502 a kernel did not compile"),
    ):
        train()
