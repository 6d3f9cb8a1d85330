"""The reports of a compiled function about itself, and the lifetimes of the objects in its record."""

from __future__ import annotations

import functools
import gc
import re
import sys
import threading
import weakref
from pathlib import Path

import pytest
import torch

import minidynamo
from minidynamo.core import artifacts
from minidynamo.core.events import MinidynamoNotice, on_event
from minidynamo.errors import RecompileLimit, UnknownName
from minidynamo.frontend.compiled_function import all_compiled
from minidynamo.testing import CompileCounter, no_recompile


def double(x):
    return x * 2


def with_break(x):
    y = x + 1
    minidynamo.graph_break("on purpose")
    return y * 2


def scaled_with_break(scale, x, *, shift):
    y = x + 1
    minidynamo.graph_break("on purpose")
    return y * scale + shift


def compiled(fn, **keywords):
    return minidynamo.compile(fn, **({"backend": "eager"} | keywords))


def test_counters_and_graphs():
    f = compiled(with_break)
    assert f.graphs == [] and f.stats.misses == 0
    f(torch.ones(2)), f(torch.ones(2))
    stats = f.stats
    assert (stats.misses, stats.compiles, stats.recompiles, stats.graphs, stats.graph_breaks) == (2, 2, 0, 2, 1)
    assert (stats.native_runs, stats.fallbacks) == (0, 0)
    targets = [[n.target.__name__ for n in g.graph.nodes if n.op == "call_function"] for g in f.graphs]
    assert targets == [["add"], ["mul"]]
    f(torch.ones(3))
    assert (stats.compiles, stats.recompiles, len(f.graphs)) == (4, 2, 4)


def test_seconds_are_those_of_this_function():
    f, other = compiled(double, backend="aot_eager"), compiled(double)
    f(torch.ones(2)), other(torch.ones(2))
    assert {"capture", "autograd", "residual", "guards"} <= set(f.stats.seconds_by_phase)
    assert "autograd" not in other.stats.seconds_by_phase
    assert all(seconds >= 0 for seconds in f.stats.seconds_by_phase.values())
    before = dict(f.stats.seconds_by_phase)
    f(torch.ones(2))
    assert f.stats.seconds_by_phase == before


def test_guards_name_what_is_checked_and_the_users_line():
    f = compiled(with_break)
    assert f.guards() == ""
    f(torch.ones(2))
    text = f.guards()
    line = with_break.__code__.co_firstlineno + 1
    assert "with_break [0]" in text and f"test_compiled_function.py:{line}" in text
    assert "from_line_" in text and "float32" in text
    f(torch.ones(3))
    assert "with_break [1]" in f.guards()


def test_code_shows_dispatchers_and_residual_programs():
    f = compiled(with_break)
    assert "# dispatcher of with_break" in f.code() and "# residual program" not in f.code()
    f(torch.ones(2))
    text = f.code()
    assert text.count("# dispatcher of with_break") == 2  # the function and its resume point
    assert text.count("# residual program of with_break") == 2
    assert "def with_break(x):" in text and "# graph break: the program asks for it: on purpose" in text
    for part in text.split("\n# ")[1:]:
        compile(part.partition("\n")[2], "part", "exec")


def test_why_is_latest_first():
    f = compiled(lambda x, n: x + n, name="adds")
    x = torch.ones(2)
    assert f.why() == "adds was not recompiled."
    f(x, 1), f(x, 2), f(x.double(), 1)
    first, second = f.why().index("got float64[2]"), f.why().index("`n`: expected 1, got 2")
    assert first < second and f.why().count("MD301 recompiled adds") == 2


def test_a_callee_behind_a_break_shares_counters_and_graphs_with_its_caller():
    f = compiled(lambda x: with_break(x + 1) - 1)
    assert f(torch.ones(1)).item() == 5
    assert f.stats.graph_breaks >= 1 and len(f.graphs) == f.stats.graphs == 4
    f.reset()
    assert (f.stats.compiles, f.graphs, f.guards()) == (0, [], "")
    assert f(torch.ones(1)).item() == 5 and f.stats.graphs == 4


def test_the_function_of_a_partial_is_compiled_after_a_break():
    f = compiled(lambda x, call: call(x) - 1)
    assert f(torch.ones(1), functools.partial(functools.partial(scaled_with_break, 2.0), shift=1.0)).item() == 4
    assert f.stats.graphs == 3  # before and after the break, and after the call


def test_fresh_closures_over_one_code_object_are_not_compiled_for_ever():
    def make(n):
        def callee(x):
            y = x + n
            minidynamo.graph_break()
            return y * n

        return callee

    counter = CompileCounter()
    f = compiled(lambda x, callee: callee(x) + 1, backend=counter, recompile_limit=100)
    for n in range(30):
        assert f(torch.ones(1), make(n)).item() == (1 + n) * n + 1
    for n in range(30):
        assert f(torch.ones(1), make(n)).item() == (1 + n) * n + 1
    assert f.__minidynamo__._callees == {}
    compiled_so_far = f.stats.compiles
    with no_recompile():
        for n in range(2, 30):
            assert f(torch.ones(1), make(n)).item() == (1 + n) * n + 1
    assert f.stats.compiles == compiled_so_far


def test_how_closures_over_one_code_object_are_entered_is_found_out_once(monkeypatch):
    def make(n):
        def add(x, /, step=n, *boxed, cell=2, **run_steps):
            def inner():
                return cell, n

            minidynamo.graph_break()
            return (x + step).tolist(), boxed, inner(), run_steps

        return add

    def calls(x, add):
        return [add(x), add(x, 2, 3, cell=4, call=5), add(*[x], step=6)]

    f, x = compiled(calls, backend="eager"), torch.ones(1)
    assert f(x, make(1)) == calls(x, make(1))
    monkeypatch.setattr("minidynamo.frontend.compiled_function.frame_point", None)
    assert f(x, make(2)) == calls(x, make(2))
    with pytest.raises(TypeError, match=r"add\(\) missing 1 required positional argument: 'x'"):
        compiled(lambda add: (minidynamo.graph_break(), add(step=1)), backend="eager")(make(1))


def test_the_recompile_limit_is_an_error_with_fullgraph():
    f = compiled(lambda x, n: x + n, recompile_limit=2, fullgraph=True, name="adds", dynamic=False)
    x = torch.ones(1)
    f(x, 1), f(x, 2)
    with pytest.raises(RecompileLimit, match="2 versions exist") as caught:
        f(x, 3)
    assert caught.value.code == "MD302"
    assert f(x, 1).item() == 2


def test_the_limit_counts_for_each_backend_and_each_setting_on_its_own():
    f = compiled(double, recompile_limit=1)
    f(torch.ones(1))
    with minidynamo.config.patch(fuse=False):
        f(torch.ones(1))
    assert f.stats.compiles == 2
    with pytest.warns(MinidynamoNotice, match="MD302"):
        f(torch.ones(2))


def test_compiles_are_published():
    seen = []
    stop = on_event(lambda event: seen.append((event.kind, event.name)))
    f = compiled(double)
    f(torch.ones(1))
    f(torch.ones(1))
    stop()
    assert seen.count(("compile_start", "double")) == seen.count(("compile_end", "double")) == 1
    assert seen.index(("compile_start", "double")) < seen.index(("phase_start", "capture"))


def test_compile_end_is_published_when_the_compile_fails():
    seen = []
    stop = on_event(lambda event: seen.append(event.kind))
    with pytest.raises(minidynamo.errors.BackendError):
        compiled(double, backend=lambda gm, inputs: 1 / 0)(torch.ones(1))
    stop()
    assert seen.count("compile_start") == seen.count("compile_end") == 1


@pytest.mark.parametrize("program", [double, with_break])
def test_everything_dies_with_the_function_at_once(program):
    gc.collect()
    gc.disable()
    try:
        f = compiled(program)
        f(torch.ones(2))
        record = weakref.ref(f.__minidynamo__)
        assert record() in all_compiled.values()
        function = weakref.ref(f)
        del f
        assert function() is None
        gc.collect()  # graph modules are cycles of their own
        assert record() is None
    finally:
        gc.enable()


def test_a_compiled_module_dies_with_its_last_reference():
    module = minidynamo.compile(torch.nn.Linear(2, 2), backend="eager")
    module(torch.ones(2))
    gone = weakref.ref(module.weight)
    del module
    gc.collect()
    assert gone() is None


def test_two_threads_share_entries_and_count_once():
    counter = CompileCounter()
    f = compiled(with_break, backend=counter)
    results = []
    threads = [threading.Thread(target=lambda: results.append(f(torch.ones(1)).item())) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert results == [4.0] * 4 and counter.frame_count == 2


def headings(text):
    return [line.partition(":")[0] for line in text.splitlines() if re.match(r"# [\w ]+ of [^:]+: /", line)]


@pytest.mark.cpp
def test_code_shows_every_stage_in_the_order_of_the_data():
    f = compiled(double, backend="cpp")
    x = torch.ones(4, requires_grad=True)
    out = f(x)
    forward = ["# ATen graph of forward", "# loops and kernels of forward", "# source of the kernels of forward"]
    start = ["# dispatcher of double", "# residual program of double", "# autograd node of forward"]
    start.append("# captured graph of double")
    assert headings(f.code()) == [*start, *forward, "# host program of forward"]
    out.sum().backward()
    assert headings(f.code()) == [
        *start, *(name.replace("forward", stage) for name in forward for stage in ("forward", "backward")),
        "# host program of forward", "# host program of backward",
    ]  # fmt: skip
    for line in f.code().splitlines():
        if re.match(r"# [\w ]+ of [^:]+: /", line):
            text = Path(line.partition(": ")[2]).read_text()
            assert text in f.code()


@pytest.mark.cpp
def test_code_of_one_kind():
    f = compiled(double, backend="cpp")
    f(torch.ones(4))
    sections = {kind: f.code(kind) for kind in artifacts.STAGES}
    assert sections["guards"] == ""
    assert all(sections[kind] for kind in artifacts.STAGES if kind not in ("guards", "node"))
    assert "x * 2" in sections["graph"] and "aten.mul" in sections["aten"] and "* 2.0f" in sections["kernel"]
    line = double.__code__.co_firstlineno + 1
    for kind in ("graph", "aten", "loops", "kernel", "host"):
        assert f"test_compiled_function.py:{line} in double: return x * 2" in sections[kind]
    with pytest.raises(UnknownName, match="Did you mean 'kernel'"):
        f.code("kernels")
    f(torch.ones(4, requires_grad=True))
    assert "def backward(ctx" in f.code("node")


def test_code_of_frames_behind_a_break():
    f = compiled(with_break)
    f(torch.ones(2))
    stages = ["residual program", "captured graph", "host program"]
    described = [line.partition(" of ")[0].removeprefix("# ") for line in headings(f.code())]
    assert described == ["dispatcher", *stages, "dispatcher", *stages]
    assert len(set(headings(f.code("dispatch")))) == 2
    f.reset()
    assert headings(f.code("host")) == []


def test_code_of_functions_called_at_a_break():
    def called(x):
        minidynamo.graph_break()
        return x * 3

    f = compiled(lambda x: called(x + 1) - 1)
    f(torch.ones(2))
    assert "x * 3" in f.code("graph")
    assert any("called" in heading for heading in headings(f.code("dispatch")))


def test_functions_made_anew_in_each_call_are_part_of_what_is_told():
    def f(x, k):
        def inner(y):
            minidynamo.graph_break()
            return (y * k).exp()

        return inner(x)

    compiled = minidynamo.compile(f, backend="aot_eager")
    for _ in range(3):
        compiled(torch.ones(3, requires_grad=True), 2.0).sum().backward()
    assert "exp     float32[3]" in str(compiled.saved())


def test_new_versions_of_a_compiled_argument_compile_nothing_again() -> None:
    step = minidynamo.compile(lambda x: x + 1, backend="eager")
    outer = minidynamo.compile(lambda f, x: f(x) * 2, backend="eager")
    x = torch.ones(3)
    step(x)
    assert torch.equal(outer(step, x), torch.full((3,), 4.0))
    step(x.double())
    assert torch.equal(outer(step, x), torch.full((3,), 4.0))
    assert minidynamo.stats(outer).recompiles == 0
    other = minidynamo.compile(lambda x: x + 2, backend="eager")
    assert torch.equal(outer(other, x), torch.full((3,), 6.0))


def test_a_recursion_that_python_survives_is_survived():
    def down(n, x):
        return x if n == 0 else down(n - 1, x) + 1

    f = minidynamo.compile(down, backend="eager")
    depth = sys.getrecursionlimit() // 2
    assert f(depth, torch.zeros(1)).item() == f(depth, torch.zeros(1)).item() == depth
