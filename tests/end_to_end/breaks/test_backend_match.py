"""Code compiled by one backend never runs for a different backend."""

from __future__ import annotations

import weakref

import pytest
import torch

import minidynamo
from minidynamo.errors import Unsupported
from minidynamo.testing import CompileCounter, no_recompile


def test_a_callee_behind_a_break_is_compiled_by_the_backend_of_its_caller():
    def callee(x):
        x = x * 2
        minidynamo.graph_break()
        return x + 1

    def f(x):
        return callee(x + 1) - 1

    first, second = CompileCounter(), CompileCounter()
    with_first, with_second = minidynamo.compile(f, backend=first), minidynamo.compile(f, backend=second)
    x = torch.randn(4)
    assert torch.equal(with_first(x), with_second(x))
    assert first.frame_count == second.frame_count > 1
    assert first.op_count == second.op_count == 4
    with no_recompile():
        assert torch.equal(with_second(x), with_first(x))


def test_settings_that_change_code_are_part_of_the_match():
    counter = CompileCounter()

    @minidynamo.compile(backend=counter)
    def f(x):
        x = x + 1
        minidynamo.graph_break()
        return x * 2

    x = torch.randn(4)
    f(x)
    assert counter.frame_count == 2
    with minidynamo.config.patch(fuse=False):
        f(x)
        assert counter.frame_count == 4
        assert "backend: expected CompileCounter, got CompileCounter with fuse=False" in f.why()
        with no_recompile():
            f(x)
    with no_recompile():
        f(x)
        with minidynamo.config.patch(fuse=False):
            f(x)
        with minidynamo.config.patch(verbose=True):
            f(x)
    assert "backend: CompileCounter with fuse=False" in f.guards()


def test_settings_given_to_compile_hold_whatever_the_others_are():
    seen = []

    def backend(gm, example_inputs):
        seen.append(minidynamo.config.fuse)
        return minidynamo.make_boxed_func(gm.forward)

    f = minidynamo.compile(lambda x: x + 1, backend=backend, options={"fuse": False})
    f(torch.ones(2))
    with minidynamo.config.patch(fuse=False), no_recompile():
        f(torch.ones(2))
    assert seen == [False] and minidynamo.config.fuse


def test_disable_runs_as_written_and_forgets_nothing():
    seen = []

    @minidynamo.compile(backend="eager")
    def f(x):
        if not minidynamo.is_compiling():
            seen.append("as written")
        return x + 1

    f(torch.ones(2))
    with minidynamo.config.patch(disable=True):
        f(torch.ones(2))
        assert seen == ["as written"]
    with no_recompile():
        f(torch.ones(2))
    assert seen == ["as written"]


# Behaviour checks


def doubled_and_halved(x):
    return torch.relu(x * 2) / 2


def test_BK_1_backends_coexist_and_equal_ones_share():
    def f(x):
        return torch.relu(x) + 1

    x = torch.randn(4)
    first, second = CompileCounter(), CompileCounter()
    with_first, with_second = minidynamo.compile(f, backend=first), minidynamo.compile(f, backend=second)
    with_first(x)
    assert (first.frame_count, second.frame_count) == (1, 0)
    with_second(x)
    for call in (with_first, with_second) * 2:
        call(x)
    assert (first.frame_count, second.frame_count) == (1, 1)
    eager, again, aot = (minidynamo.compile(f, backend=name) for name in ("eager", "eager", "aot_eager"))
    for call in (eager, again, aot):
        call(x)
    assert len(eager.graphs) == len(again.graphs) == len(aot.graphs) == 1
    assert again is eager and aot is not eager and aot.stats.compiles == 1


class Scale:
    def __init__(self, factor):
        self.factor = factor

    def __call__(self, x):
        return x * self.factor

    def shifted(self, x):
        return x + self.factor


@pytest.mark.parametrize("of", [lambda scale: scale, lambda scale: scale.shifted], ids=["object", "method"])
def test_BK_1_methods_of_one_object_share(of):
    two, three, counter = Scale(2), Scale(3), CompileCounter()
    first, again, other = (minidynamo.compile(of(scale), backend=counter) for scale in (two, two, three))
    for call in (first, again):
        assert torch.equal(call(torch.ones(4)), of(two)(torch.ones(4)))
    assert counter.frame_count == 1 and again.__func__ is first.__func__
    assert torch.equal(other(torch.ones(4)), of(three)(torch.ones(4)))
    assert counter.frame_count == 2 and first.stats.compiles == other.stats.compiles == 1
    assert minidynamo.compile(of(two), backend="eager").__func__ is not first.__func__
    assert minidynamo.compile(first.__func__.py_func, backend=counter) is not first.__func__


def test_methods_of_objects_without_weak_references_are_compiled_each_time():
    class Slotted:
        __slots__ = ()

        def double(self, x):
            return x * 2

    one = Slotted()
    first, again = (minidynamo.compile(one.double, backend="eager") for _ in range(2))
    assert torch.equal(first(torch.ones(2)), again(torch.ones(2)))
    assert first.__func__ is not again.__func__


def test_BK_1_options_count():
    settings = [{"fuse": True}, {"fuse": True}, {"fuse": False}]
    counter = CompileCounter()
    calls = [minidynamo.compile(doubled_and_halved, backend=counter, options=options) for options in settings]
    for call in calls * 2:
        call(torch.randn(4))
    assert counter.frame_count == 2


def test_BK_2_fullgraph_is_asked_for_again():
    def broken(x):
        x = x + 1
        minidynamo.graph_break()
        return x * 2

    assert torch.equal(minidynamo.compile(broken, backend="eager")(torch.ones(2)), torch.full((2,), 4.0))
    with pytest.raises(Unsupported, match="MD223 fullgraph=True"):
        minidynamo.compile(broken, backend="eager", fullgraph=True)(torch.ones(2))
    # Conversely, a frame refused with fullgraph is cut without fullgraph.
    assert torch.equal(minidynamo.compile(broken, backend="eager")(torch.ones(2)), torch.full((2,), 4.0))


def test_BK_3_each_backend_has_a_limit_of_its_own():
    used = []

    def backend(number):
        return lambda gm, example_inputs: used.append(number) or minidynamo.make_boxed_func(gm.forward)

    x = torch.randn(4)
    calls = [minidynamo.compile(doubled_and_halved, backend=backend(number)) for number in range(12)]
    for call in calls * 2:
        assert torch.equal(call(x), doubled_and_halved(x))
    assert used == list(range(12))
    assert all(call.stats.native_runs == 0 for call in calls)


def test_BK_4_a_compiled_function_that_is_called_is_part_of_the_caller():
    outer_backend, inner_backend = CompileCounter(), CompileCounter()

    @minidynamo.compile(backend=inner_backend)
    def inner(x):
        return x + 1

    @minidynamo.compile(backend=outer_backend)
    def outer(x):
        return inner(x) * 2

    assert torch.equal(outer(torch.ones(2)), torch.full((2,), 4.0))
    assert (outer_backend.frame_count, outer_backend.op_count, inner_backend.frame_count) == (1, 2, 0)
    inner(torch.ones(2))
    assert inner_backend.frame_count == 1


def test_a_function_that_was_changed_is_compiled_anew():
    def f(x, k=1):
        return x * k

    compiled = minidynamo.compile(f, backend="eager")
    f.__defaults__ = (3,)
    assert minidynamo.compile(f, backend="eager")(torch.ones(())) == 3
    f.__code__ = (lambda x, k: x - k).__code__
    assert minidynamo.compile(f, backend="eager")(torch.ones(())) == -2
    assert minidynamo.compile(f, backend="eager") is not compiled


def test_what_is_shared_dies_with_its_last_user():
    compiled = minidynamo.compile(doubled_and_halved, backend="eager", name="shared")
    compiled(torch.ones(2))
    alive = weakref.ref(compiled)
    del compiled
    assert alive() is None
    assert minidynamo.compile(doubled_and_halved, backend="eager", name="shared").stats.compiles == 0
