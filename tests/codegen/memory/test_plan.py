"""The host program as data: peak memory is computed without a device."""

import torch

from minidynamo.codegen.ir.loops import Buffer, Extern, GetItem, Name
from minidynamo.codegen.memory.plan import Allocate, Free, HostProgram, Return, Reuse
from minidynamo.codegen.memory.report import memory_plan

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
