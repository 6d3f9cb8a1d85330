"""Modules that run at their first use, and modules that a process never runs."""

import os
import subprocess
import sys
import threading
import types

import pytest

import minidynamo
from minidynamo.core import lazy_modules

RAN = """
import sys, types
def ran(*names):
    return [name for name in names if type(sys.modules.get(name)) is types.ModuleType]
COMPILING = (
    "minidynamo.codegen.compile_graph", "minidynamo.codegen.lowering", "minidynamo.codegen.scheduling",
    "minidynamo.codegen.ir.loops", "minidynamo.codegen.memory.planner", "minidynamo.codegen.printers.base",
)
NEEDLESS = ("minidynamo.testing", "minidynamo.observe.comparison")
"""
IMPORTED = """
import torch
foreign = ("sympy", "torch._dynamo", "torch._inductor", "networkx", "rich", "triton")
before = ran(*foreign)
import minidynamo
assert ran(*COMPILING, *NEEDLESS) == [], ran(*COMPILING, *NEEDLESS)
assert ran(*foreign) == before, ran(*foreign)
own = [name for name in sys.modules if name.split(".")[0] == "minidynamo"]
assert len(own) <= 120, sorted(own)
f = minidynamo.compile(lambda x: x + 1)
assert not any(name.startswith(("minidynamo.tracer", "minidynamo.variables")) for name in sys.modules)
assert "assert_same_as_eager" in dir(minidynamo.testing) and ran(*NEEDLESS) == list(NEEDLESS)
"""
STEP = """
import torch, minidynamo
step = minidynamo.compile(lambda x: torch.relu(x).sum())
step(torch.ones(2, 4, requires_grad=True)).backward()
"""
WARM = f"""
{STEP}
assert step.stats.cache_hits == 1
assert ran(*COMPILING, *NEEDLESS) == [], ran(*COMPILING, *NEEDLESS)
"""


def in_a_new_process(program, **environment):
    environment = {**os.environ, **environment}
    done = subprocess.run([sys.executable, "-c", RAN + program], capture_output=True, text=True, env=environment)
    assert done.returncode == 0, done.stderr


def test_an_import_runs_nothing_that_only_compiles():
    in_a_new_process(IMPORTED)


@pytest.mark.cpp
def test_a_warm_start_runs_nothing_that_only_compiles(tmp_path):
    here = {}
    with minidynamo.config.patch(cache_dir=str(tmp_path), graph_cache=True):
        exec(RAN + STEP, here)
    assert here["step"].stats.cache_misses == 1 and here["ran"](*here["COMPILING"]) == list(here["COMPILING"])
    in_a_new_process(WARM, MINIDYNAMO_CACHE_DIR=str(tmp_path), MINIDYNAMO_GRAPH_CACHE="1")


FIRST_CALL = """
import time, torch, minidynamo
f = minidynamo.compile(lambda x: x.sin() * 2, backend="aot_eager")
before = time.perf_counter()
f(torch.ones(2))
elapsed, seconds = time.perf_counter() - before, dict(f.stats.seconds_by_phase)
assert 0.8 * elapsed < sum(seconds.values()) <= elapsed, (elapsed, seconds)
assert seconds["imports"] > sum(seconds.values()) / 2, seconds
assert ", imports " in str(minidynamo.explain(f)) or ": imports " in str(minidynamo.explain(f))
f.stats.reset()
f(torch.ones(3)), f(torch.ones(4))
assert f.stats.seconds_by_phase["imports"] > 0  # of symbols
f.stats.reset()
f(torch.ones(5, dtype=torch.float64))
assert "capture" in f.stats.seconds_by_phase and "imports" not in f.stats.seconds_by_phase
"""


def test_the_imports_of_a_first_call_are_a_phase():
    in_a_new_process(FIRST_CALL, MINIDYNAMO_GRAPH_CACHE="0")


@pytest.fixture
def module(tmp_path, monkeypatch):
    """Creates a lazy module from source text."""

    def make(source):
        (tmp_path / "counted_module.py").write_text(source)
        lazy_modules.make_lazy("counted_module")
        return sys.modules["counted_module"]

    monkeypatch.syspath_prepend(str(tmp_path))
    yield make
    sys.modules.pop("counted_module", None)


def test_a_module_runs_once_however_many_threads_use_it(module):
    late = module("import time\ntime.sleep(0.05)\nvalue = object()\n")
    assert "value" not in vars(late)
    seen = []
    threads = [threading.Thread(target=lambda: seen.append(late.value)) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert seen == [late.value] * 4
    assert type(late) is types.ModuleType


def test_a_module_that_fails_runs_anew(module):
    late = module("import sys\nvalue = sys.counted_value\n")
    with pytest.raises(AttributeError, match="counted_value"):
        getattr(late, "other")  # noqa: B009
    sys.counted_value = 3
    try:
        assert late.value == 3
    finally:
        del sys.counted_value


def test_what_is_set_before_a_module_runs_is_not_undone_by_it(module, monkeypatch):
    late = module("value = 1\n")
    monkeypatch.setattr(late, "value", 2)
    assert late.value == 2
