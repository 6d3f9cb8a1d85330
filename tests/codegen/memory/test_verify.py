"""The verifier of host programs accepts the planner's results, and rejects reads of unbound names."""

import dataclasses

import pytest
import torch

from minidynamo.codegen.ir.loops import Extern, Name
from minidynamo.codegen.memory.plan import Allocate, Free, Launch, Return
from minidynamo.codegen.memory.planner import plan_memory
from minidynamo.codegen.memory.verify import verify_host
from minidynamo.codegen.scheduling.schedule import schedule
from minidynamo.errors import InternalError
from tests.codegen.graphs import lower


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
