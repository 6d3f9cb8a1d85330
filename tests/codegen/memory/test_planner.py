"""The memory planner: allocation, reuse, in-place writes, frees. Needs no device."""

import pytest
import torch

from minidynamo.codegen.ir.loops import Extern, Kernel
from minidynamo.codegen.memory.plan import Allocate, Free, HandOver, Launch, Return, Reuse
from minidynamo.codegen.memory.planner import may_overwrite, plan_memory, same_layout
from minidynamo.codegen.memory.report import memory_plan
from minidynamo.codegen.scheduling.schedule import schedule
from tests.codegen.graphs import kernels, lower

X = torch.ones(4, 4)


@torch.library.custom_op("minidynamo_test_planner::same", mutates_args=())
def same(x: torch.Tensor) -> torch.Tensor:
    return x.clone()


same.register_fake(torch.clone)


def plan(function, *args):
    program, steps = schedule(lower(function, *args), join=True, verify=True)
    return plan_memory(steps, program, "test")


def peak(plan):
    return memory_plan(plan).peak_with_inputs(plan.inputs)


def steps_of(kind, plan):
    return [s for s in plan.steps if isinstance(s, kind)]


def names(plan):
    """Returns the kinds of steps in order, with the names that each step binds or frees."""
    found = []
    for s in plan.steps:
        match s:
            case Allocate() | Reuse():
                found.append((type(s).__name__, s.buffer.name))
            case Free():
                found.append(("Free", *s.names))
            case Extern():
                found.append(("Extern", s.out))
            case _:
                found.append((type(s).__name__,))
    return found


def test_unused_inputs_go_first_and_the_rest_behind_last_use():
    assert names(plan(lambda x, y, z: (x @ y) + x, *torch.ones(3, 4, 4))) == [
        ("Free", "z_1"), ("Extern", "mm"), ("Free", "y_1"), ("Reuse", "add"), ("Launch",), ("Free", "x_1"),
        ("Return",),
    ]  # fmt: skip


def test_intermediate_is_overwritten_in_place():
    made = plan(lambda x: x.softmax(0).softmax(1), X)
    first, second = steps_of(Launch, made)
    (step,) = steps_of(Reuse, made)
    assert len(steps_of(Allocate, made)) == 1
    assert step.source == first.args[-1]
    assert second.args == (step.buffer.name, step.buffer.name)


def test_dead_buffer_goes_to_the_next_kernel():
    made = plan(lambda x: x.softmax(1).flip(0).softmax(1).flip(0).softmax(1), X)
    first, second, third = steps_of(Launch, made)
    (step,) = steps_of(Reuse, made)
    assert step.source == first.args[-1] and step.buffer.name == third.args[-1]
    assert third.args[0] == second.args[-1]


def test_what_has_another_shape_is_laid_out_anew():
    def linear(x, w):
        return (x.view(4, 4) @ w).view(2, 2, 4).sin()

    (step,) = steps_of(Reuse, plan(linear, torch.ones(2, 2, 4), X))
    assert (step.buffer.name, step.source, step.relaid) == ("sin", "mm", True)
    assert steps_of(Return, plan(linear, torch.ones(2, 2, 4), X))[0].versions_to_reset == ("sin",)
    assert not steps_of(Reuse, plan(lambda x: (x @ x).t().contiguous().sin(), X))  # read elsewhere than written
    assert not steps_of(Reuse, plan(lambda x: (x @ x)[:, :2].sin(), X))


def test_nothing_dead_is_held_across_an_extern():
    made = plan(lambda x, y: (x.softmax(1).flip(0).softmax(1) @ y).flip(0).softmax(1), *torch.ones(2, 4, 4))
    order = names(made)
    assert order.index(("Free", "_softmax")) < order.index(("Extern", "mm"))


def test_inputs_are_never_overwritten():
    assert steps_of(Reuse, plan(lambda x: (x + 1).sum(0), X)) == []
    assert len(steps_of(Allocate, plan(lambda x: x + 1, X))) == 1


def test_dead_results_of_externs_are_overwritten():
    made = plan(lambda x, y: ((x @ y) + 1).exp(), *torch.ones(2, 4, 4))
    assert steps_of(Allocate, made) == []
    (step,) = steps_of(Reuse, made)
    assert step.source == "mm"


def test_dead_elements_of_a_tuple_are_overwritten():
    made = plan(lambda x: x.sort(1)[0] * 2, X)
    (step,) = steps_of(Reuse, made)
    assert step.source == "getitem"


def test_a_living_result_of_an_extern_is_not_overwritten():
    made = plan(lambda x, y: [m := x @ y, m.view(16), m + 1], *torch.ones(2, 4, 4))
    assert steps_of(Reuse, made) == []


def test_an_unsafe_view_keeps_what_it_views():
    def program(x, y):
        view = torch.ops.aten._unsafe_view(x + 1, [2, 8])
        return (y * 2, view @ view.t())

    made = plan(program, *torch.ones(2, 4, 4))
    assert steps_of(Extern, made)[0].aliases == ("add",)
    assert all(step.source != "add" for step in steps_of(Reuse, made))


def test_what_other_libraries_return_is_never_overwritten():
    made = plan(lambda x: torch.ops.minidynamo_test_planner.same(x) + 1, X)
    assert steps_of(Reuse, made) == []


def test_a_buffer_with_a_living_view_is_not_reused():
    made = plan(lambda x: [(a := (x + 1)).view(16), a.cumsum(0) * 2, a + 3], X)
    assert all(step.source != "add" for step in steps_of(Reuse, made))


def test_empty_tensors_are_allocated_but_not_computed():
    made = plan(lambda x: x + 1, torch.ones(0, 4))
    assert steps_of(Launch, made) == [] and len(steps_of(Allocate, made)) == 1


def test_outputs_are_never_freed():
    made = plan(lambda x: (x, x + 1, (x + 1).sum(0)), X)
    freed = {name for step in steps_of(Free, made) for name in step.names}
    assert freed.isdisjoint({v.name for v in made.outputs})
    assert isinstance(made.steps[-1], Return)


def test_torch_has_counted_what_lies_where_an_operator_has_filled_memory():
    made = plan(lambda x: (torch.randn(4, 4) + x, (x @ x) + x), X)
    filled, computed = (value.name for value in made.outputs)
    assert {filled, computed} <= {step.buffer.name for step in steps_of(Reuse, made)}
    assert made.steps[-1].versions_to_reset == (filled,)


def test_peak_is_not_above_one_tensor_per_living_value():
    made = plan(lambda x: (((x @ x).relu() @ x).relu() @ x).relu(), X)
    assert peak(made) == 3 * 64


def test_may_overwrite_needs_the_same_place():
    same = kernels(lambda x: x + 1, X)[0]
    assert may_overwrite(same, "x_1", "add")
    turned = kernels(lambda x: x.t() + x, X)[0]
    assert not may_overwrite(turned, "x_1", "add")
    row = kernels(lambda x: x.softmax(1), X)[0]
    assert may_overwrite(row, "x_1", "_softmax")
    two = kernels(lambda x: (x + 1, (x + 1) * x.flip(0)), X)[0]
    assert not may_overwrite(two, "x_1", "add")


def test_same_layout():
    a, b = (k.writes[0] for k in kernels(lambda x: (x + 1, (x * 2).t().clone().sum(0)), X)[:1] * 2)
    assert same_layout(a, b)
    assert isinstance(kernels(lambda x: x + 1, X)[0], Kernel)


def test_memory_is_not_reused_while_a_part_of_it_is_read():
    def program(x, w):
        made = x @ x
        first, second = made.unsafe_chunk(2, 1)  # torch declares no alias
        same_layout = (x * 3).sin()
        return first @ w, same_layout @ same_layout.t(), second @ w

    made = plan(program, X, torch.ones(2, 2))
    assert "mm" not in [step.source for step in steps_of(Reuse, made)]


def test_a_result_is_handed_over_behind_its_last_use():
    def backward(x, w):
        first = x @ w
        second = first.sin() @ w
        return first, second, second.t(), x

    program, steps = schedule(lower(backward, X, X), join=True, verify=True)
    found = plan_memory(steps, program, "test", handing_over=True)
    handed = [s.position for s in found.steps if isinstance(s, HandOver)]
    first = next(s for s in found.steps if isinstance(s, HandOver) and s.position == 0)
    behind = found.steps[found.steps.index(first) + 1 :]
    assert sorted(handed) == [0, 1, 2, 3] and any(isinstance(s, Extern) for s in behind)
    assert not steps_of(HandOver, plan_memory(steps, program, "test"))


def test_what_is_returned_twice_is_not_handed_over():
    program, steps = schedule(lower(lambda x: (y := x.sin(), x.cos(), y), X), join=True, verify=True)
    assert [s.position for s in steps_of(HandOver, plan_memory(steps, program, "test", handing_over=True))] == [1]


@pytest.mark.parametrize("rows, positions", [(8192, []), (8193, [0])])
def test_small_results_are_returned(rows, positions, monkeypatch):
    monkeypatch.undo()
    program, steps = schedule(lower(lambda x: (x.sin(),), torch.ones(rows)), join=True, verify=True)
    made = plan_memory(steps, program, "test", handing_over=True)
    assert [s.position for s in steps_of(HandOver, made)] == positions and made.handing_over


def test_what_is_put_into_a_dead_tensor_of_ours_takes_no_copy_of_it():
    v, i = torch.ones(2, 4), torch.tensor([0, 2])
    put = plan(lambda x, v, i: (x + 1).index_put((i,), v, accumulate=True) * 2, X, v, i)
    assert names(put) == [
        ("Allocate", "add"), ("Launch",), ("Free", "x_1"), ("Reuse", "index_put"), ("Extern", "index_put"),
        ("Free", "v_1", "i_1"), ("Reuse", "mul"), ("Launch",), ("Return",),
    ]  # fmt: skip
    assert peak(put) == 4 * (16 + 16 + 8) + 8 * 2 and memory_plan(put).peak() == 4 * 16
    (call,) = steps_of(Extern, put)
    assert call.op is torch.ops.aten.index_put_.default

    def read_later(x, v, i):
        y = x + 1
        return y.index_put((i,), v) + y

    def given(x, v, i):
        return x.index_put((i,), v)

    def window(x, v, i):
        return (x + 1).t().index_put((i,), v)

    for copied in (read_later, given, window):
        assert not any(call.mutates for call in steps_of(Extern, plan(copied, X, v, i)))
