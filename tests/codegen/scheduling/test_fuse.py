"""Fusion: loop nests that share a kernel, loop nests that must not, and the order of all steps."""

import torch

from minidynamo.codegen.ir.loops import Extern, Kernel
from minidynamo.codegen.scheduling.fuse import Fusion
from tests.codegen.graphs import kernels, scheduled

F = torch.nn.functional
X = torch.ones(8, 16)


def outline(function, *args, join=True):
    """Returns for each step the stored names of the kernel, or the extern call."""
    found = []
    for step in scheduled(function, *args, join=join):
        found.append([b.name for b in step.writes] if isinstance(step, Kernel) else step.out)
    return found


def test_values_used_inside_and_outside_are_one_kernel():
    assert outline(lambda x: ((e := x.exp()), e * 2, e + e.sum(1, keepdim=True)), X) == [["exp", "mul", "add"]]


def test_neighbours_on_the_same_memory_are_one_kernel():
    assert outline(lambda x: (x.exp(), x.sum(1), x.amax(1)), X) == [["exp", "sum_1", "amax"]]


def test_independent_small_kernels_are_one():
    assert outline(lambda x, y: (x + 1, y * 2), torch.ones(8), torch.ones(8)) == [["add", "mul"]]


def test_small_is_more_on_a_gpu():
    inputs = torch.ones(2, 1 << 16).unbind()
    for target, count in (("cpp", 2), ("triton", 1)):
        assert len(scheduled(lambda x, y: (x + 1, y * 2), *inputs, target=target)) == count


def test_a_reader_at_other_places_is_a_kernel_of_its_own():
    assert outline(lambda x: (e := x.exp()) * 2 + e.flip(0), X) == [["exp"], ["add"]]


def test_rows_and_columns_are_two_kernels():
    assert len(kernels(lambda x: (x.exp().sum(0), x.exp().sum(1)), X)) == 2


def test_no_circle_through_an_extern():
    # Both the first and the last operation read x; to fuse the two, mm would have to run before and after the kernel.
    result = outline(lambda x: ((a := x.exp()), x + a @ a), torch.ones(8, 8))
    assert result == [["exp"], "mm", ["add"]]


def test_no_circle_through_a_kernel():
    result = outline(lambda x: ((a := x.exp()), (b := a.flip(0).sin()) * 2, a + b.t()), torch.ones(8, 8))
    names = [n for step in result for n in step]
    assert names.index("exp") < names.index("sin")


def test_no_circle_is_looked_for_through_all_that_came_before(monkeypatch):
    realize, groups_before = [], Fusion._groups_before
    monkeypatch.setattr(Fusion, "_groups_before", lambda self, g: realize.append(g) or groups_before(self, g))

    def layers(count):
        def run(x):
            for _ in range(count):
                x = x.softmax(0).softmax(1)
            return x

        return run

    found = []
    for count in (4, 16):
        realize.clear()
        scheduled(layers(count), torch.ones(8, 8))
        found.append(len(realize))
    assert found[1] <= 5 * found[0]  # 4.1 times; 14 with a walk over all


def test_extern_calls_keep_their_order():
    def function(x):
        a = torch.ops.aten.bernoulli.p(x, 0.5)
        b = torch.ops.aten.bernoulli.p(x, 0.5)
        return b + 1, a * 2

    calls = [s.out for s in scheduled(function, X) if isinstance(s, Extern)]
    assert calls == ["bernoulli", "bernoulli_1"]


def test_a_value_is_made_before_the_extern_that_followed_it():
    assert outline(lambda x, y: (x + 1) * (y @ y), *torch.ones(2, 4, 4)) == [["add"], "mm", ["mul"]]


def test_a_view_that_is_only_returned_comes_as_soon_as_it_can():
    x = torch.ones(4, 4)
    assert outline(lambda x: ((y := x @ x)[1:], y @ y), x) == ["mm", "slice_1", "mm_1"]
    assert outline(lambda x: ((y := x @ x)[1:], y[:1] @ y), x) == ["mm", "slice_1", "slice_2", "mm_1"]
    assert outline(lambda x: (x[1:], x @ x), x) == ["mm", "slice_1"]  # a view of an argument may come late


def test_old_value_of_an_input_is_read_before_it_is_overwritten():
    def function(x):
        old = x.flip(0).exp()
        torch.ops.aten.copy_.default(x, x * 2)
        return old

    assert outline(function, X) == [["exp"], ["x_1"]]


def test_store_into_an_input_shares_the_kernel_of_its_value():
    def function(x):
        new = x * 2
        torch.ops.aten.copy_.default(x, new)
        return new

    assert outline(function, X) == [["mul", "x_1"]]


def test_few_long_rows_draw_in_nothing_large():
    x = torch.ones(2, 1 << 17)
    assert len(kernels(lambda x: (x.exp() * 2, x.argmax(1)), x)) == 2


def test_without_joining_each_nest_is_a_kernel():
    assert len(outline(lambda x: x.exp() * 2 + 1, X, join=False)) == 3


def test_results_do_not_depend_on_hashing():
    function = lambda x: (x.exp(), x.sum(1), x.t().softmax(0), x @ x.t(), x.sin() + x.amax(1, keepdim=True))  # noqa: E731
    assert outline(function, X) == outline(function, X)
