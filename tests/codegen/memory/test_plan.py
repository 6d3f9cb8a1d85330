"""Tests of minidynamo/codegen/memory/plan.py: peak memory computed without a device, and the verifier of programs."""

from __future__ import annotations

import dataclasses

import pytest
import torch

from minidynamo.codegen.ir.loops import Buffer, Extern, GetItem, Name
from minidynamo.codegen.memory.plan import Allocate, Free, HostProgram, Launch, Return, Reuse, verify_host
from minidynamo.codegen.memory.planner import plan_memory
from minidynamo.codegen.memory.report import memory_plan
from minidynamo.codegen.scheduling.schedule import schedule
from minidynamo.errors import InternalError
from tests.codegen.graphs import lower

CPU = torch.device("cpu")


def buffer(name: str, n: int) -> Buffer:
    return Buffer(name, (n,), (1,), torch.float32, CPU)


def program(*steps) -> HostProgram:
    return HostProgram("p", ("x",), steps, (), (Name("c"),), {}, {"x": buffer("x", 10)})


def peak(plan: HostProgram) -> int:
    return memory_plan(plan).peak_with_inputs(plan.inputs)


def test_peak_counts_what_is_alive_together():
    plan = program(
        Allocate(buffer("a", 100)), Free(("x",)), Reuse(buffer("b", 100), "a"), Free(("b",)), Allocate(buffer("c", 60)),
        Return((Name("c"),)),
    )  # fmt: skip
    assert peak(plan) == 4 * 110


def test_results_of_externs_count_and_views_do_not():
    plan = program(
        Extern("pair", "op", (Name("x"),)),
        GetItem("c", "pair", 0, layout=buffer("c", 50)),
        Free(("pair",)),
        Extern("v", "view", (Name("c"),), aliases=("c",), layout=buffer("v", 50)),
        Return((Name("v"),)),
    )
    assert peak(plan) == 4 * 60


def test_unused_input_is_freed_first():
    plan = program(Free(("x",)), Allocate(buffer("c", 4)), Return((Name("c"),)))
    assert peak(plan) == 40


def test_tensors_that_are_not_read_count_until_the_tuple_is_freed():
    plan = program(
        Extern("pair", "op", (Name("x"),), unused=(buffer("_", 30),)),
        GetItem("c", "pair", 0, layout=buffer("c", 50)),
        Free(("pair",)),
        Allocate(buffer("d", 20)),
        Return((Name("c"),)),
    )
    assert peak(plan) == 4 * (10 + 30 + 50)


def host(function, *args):
    program, steps = schedule(lower(function, *args), join=True, verify=True)
    return plan_memory(steps, program, "test")


def with_steps(program, steps):
    return dataclasses.replace(program, steps=tuple(steps))


def test_what_the_planner_makes_is_right():
    x = torch.ones(4, 4)
    verify_host(host(lambda x: x.softmax(0).softmax(1), x))
    verify_host(host(lambda x, y, z: ((x @ y) + x, y.t().sin()), x, x, x))
    verify_host(host(lambda x: torch.split(x @ x, 2)[0] + 1, x))


@pytest.mark.parametrize("kind", [Launch, Extern, Return])
def test_a_name_that_has_died_before_it_is_read(kind):
    good = host(lambda x: x.sin() @ x, torch.ones(4, 4))
    k = next(k for k, step in enumerate(good.steps) if isinstance(step, kind))
    freed = good.outputs[0].name if kind is Return else "x_1"
    with pytest.raises(InternalError, match=f"MD510 the host program of test reads {freed}"):
        verify_host(with_steps(good, [*good.steps[:k], Free((freed,)), *good.steps[k:]]))


def test_a_name_that_is_freed_twice_or_never_made():
    good = host(lambda x: x.sin() @ x, torch.ones(4, 4))
    freed = next(step for step in good.steps if isinstance(step, Free))
    with pytest.raises(InternalError, match="MD510"):
        verify_host(with_steps(good, [step for each in good.steps for step in ([each] * (1 + (each is freed)))]))
    with pytest.raises(InternalError, match="MD510"):
        verify_host(with_steps(good, [step for step in good.steps if not isinstance(step, Allocate)]))
    with pytest.raises(InternalError, match="reads nothing"):
        verify_host(with_steps(good, [Return((Name("nothing"),))]))
