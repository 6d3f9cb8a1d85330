"""Tests of set_stance, freeze and limit_policy: alternatives to a recompile."""

import gc
import threading
import warnings
import weakref

import pytest
import torch

import minidynamo
from minidynamo.core.events import MinidynamoNotice
from minidynamo.errors import ArgumentError, FrozenCallDiffers, RecompileLimit, RecompileRefused, UnknownName
from minidynamo.testing import CompileCounter, no_recompile


def double(x):
    return x * 2


def seen_by(counter):
    def f(x, n=1):
        return x * n if minidynamo.is_compiling() else x * -n

    return minidynamo.compile(f, backend=counter, dynamic=False)


def test_fail_on_recompile_uses_what_exists_and_names_what_differs():
    counter = CompileCounter()
    f, x = seen_by(counter), torch.ones(2)
    with minidynamo.set_stance("fail_on_recompile"):
        with pytest.raises(RuntimeError, match="No call of it was compiled"):
            f(x, 2)
        assert counter.frame_count == 0
    f(x, 2)
    with minidynamo.set_stance("fail_on_recompile"):
        assert torch.equal(f(x, 2), x * 2)
        with pytest.raises(RecompileRefused, match="value of `n`: expected 2, got 3") as caught:
            f(x, 3)
    assert caught.value.code == "MD304"
    assert torch.equal(f(x, 3), x * 3) and counter.frame_count == 2


def test_eager_on_recompile_uses_what_exists_and_runs_the_rest_as_written():
    counter = CompileCounter()
    f, x = seen_by(counter), torch.ones(2)
    f(x, 2)
    with minidynamo.set_stance("eager_on_recompile"):
        assert torch.equal(f(x, 2), x * 2)
        assert torch.equal(f(x, 3), x * -3)
    assert counter.frame_count == 1
    assert torch.equal(f(x, 3), x * 3)


def test_force_eager_runs_everything_as_written():
    counter = CompileCounter()
    f, x = seen_by(counter), torch.ones(2)
    f(x, 2)
    minidynamo.set_stance("force_eager")
    try:
        assert torch.equal(f(x, 2), x * -2)
    finally:
        minidynamo.set_stance("default")
    with no_recompile():
        assert torch.equal(f(x, 2), x * 2)


def test_a_stance_is_a_function_a_block_and_a_decorator():
    @minidynamo.set_stance("force_eager")
    def inside():
        return minidynamo.config.stance

    assert minidynamo.config.stance == "default"
    assert (inside(), minidynamo.config.stance) == ("force_eager", "default")
    with minidynamo.set_stance("eager_on_recompile"):
        with minidynamo.set_stance("fail_on_recompile"):
            assert minidynamo.config.stance == "fail_on_recompile"
        assert (inside(), minidynamo.config.stance) == ("force_eager", "eager_on_recompile")
    assert minidynamo.config.stance == "default"
    with pytest.raises(UnknownName, match="Did you mean 'force_eager'"):
        minidynamo.set_stance("force_eagre")


def test_a_stance_holds_for_all_threads():
    f, x, found = seen_by(CompileCounter()), torch.ones(2), []
    with minidynamo.set_stance("force_eager"):
        thread = threading.Thread(target=lambda: found.append(f(x, 2)))
        thread.start()
        thread.join()
    assert torch.equal(found[0], x * -2)


def test_a_stance_inside_of_a_compiled_function_cuts_the_graph():
    @minidynamo.compile(backend="eager")
    def f(x):
        x = x + 1
        with minidynamo.set_stance("force_eager"):
            return x * 2

    assert torch.equal(f(torch.ones(2)), torch.full((2,), 4.0))
    assert minidynamo.config.stance == "default" and f.stats.graph_breaks >= 1


def test_limit_policy_raises_at_every_call_beyond_the_limit():
    f = minidynamo.compile(lambda x, n: x + n, backend="eager", recompile_limit=1, limit_policy="raise", dynamic=False)
    x = torch.ones(2)
    f(x, 1)
    for _ in range(2):
        with pytest.raises(RecompileLimit, match="value of `n` changed"):
            f(x, 2)
    with no_recompile():
        assert torch.equal(f(x, 1), x + 1)
    with pytest.raises(UnknownName, match="limit_policy= cannot be 'stop'"):
        minidynamo.compile(double, limit_policy="stop")


def test_behind_the_limit_versions_are_still_used_and_one_warning_ranks_the_causes():
    f, x = seen_by(CompileCounter()), torch.ones(2)
    f = minidynamo.compile(f.py_func, backend="eager", recompile_limit=2, dynamic=False)
    f(x, 1), f(x, 2)
    with pytest.warns(MinidynamoNotice, match="MD302") as notices:
        assert torch.equal(f(x, 3), x * -3)
    assert "With dynamic=False each value has a version" in str(notices[0].message)
    with warnings.catch_warnings(), no_recompile():
        warnings.simplefilter("error")
        assert torch.equal(f(x, 4), x * -4)
        assert torch.equal(f(x, 2), x * 2)
    f.reset()
    assert torch.equal(f(x, 4), x * 4)


# freeze


def test_a_frozen_function_looks_at_its_guards_every_nth_call():
    f, x = minidynamo.compile(lambda x, n=2: x * n, backend="eager", dynamic=False), torch.ones(2)
    f(x)
    frozen = f.freeze(check_every=3)
    assert torch.equal(frozen(x), x * 2)
    assert torch.equal(frozen(x, 5), x * 2) and torch.equal(frozen(x, n=5), x * 2)  # nobody looks
    with pytest.raises(FrozenCallDiffers, match="value of `n`: expected 2, got 5") as caught:
        frozen(x, 5)
    assert caught.value.code == "MD305" and isinstance(caught.value, RuntimeError)
    assert f.stats.misses == 1


def test_the_first_call_is_checked_unless_no_call_is():
    f, x = minidynamo.compile(double, backend="eager"), torch.ones(2)
    f(x)
    with pytest.raises(FrozenCallDiffers, match="tensor `x`"):
        f.freeze()(x.double())
    assert f.freeze(check_every=0)(x.double()).dtype is torch.float64
    with minidynamo.set_stance("fail_on_recompile"):
        assert torch.equal(f.freeze()(x), x * 2)


def test_freezing_needs_a_version():
    f = minidynamo.compile(double, backend="eager")
    with pytest.raises(ArgumentError, match="there is none"):
        f.freeze()
    with pytest.raises(ArgumentError, match="check_every="):
        f.freeze(check_every=-1)


@pytest.mark.parametrize("check_every", [0, 2])
def test_several_versions_are_told_apart_and_nothing_else_is_looked_at(check_every):
    scale = 2

    def f(x, flip=False):
        return -x * scale if flip else x * scale

    compiled, x = minidynamo.compile(f, backend="eager", dynamic=False), torch.ones(2)
    for call in ((x,), (x, True), (x.double(),)):
        compiled(*call)
    frozen = compiled.freeze(check_every)
    for y in (x, x * 3):
        assert torch.equal(frozen(y), y * 2) and torch.equal(frozen(y, True), y * -2)
        assert frozen(y.double()).dtype is torch.float64
    scale = 3
    if check_every:
        with pytest.raises(FrozenCallDiffers, match="scale"):
            frozen(x)
    assert torch.equal(frozen(x), x * 2)  # nobody looks
    with pytest.raises(FrozenCallDiffers, match="tensor `x`"):
        frozen(x.long())


def test_a_module_and_a_method_can_be_frozen():
    net = minidynamo.compile(torch.nn.Linear(3, 2), backend="eager")
    x = torch.ones(1, 3)
    expected = net(x)
    frozen = minidynamo.freeze(net, check_every=2)
    assert torch.equal(frozen(x), expected)
    net.bias.requires_grad_(False)
    frozen(x)
    with pytest.raises(FrozenCallDiffers, match="requires_grad"):
        frozen(x)

    class Scale:
        def __call__(self, x):
            return x * 3

    scale = minidynamo.compile(Scale(), backend="eager")
    scale(x)
    assert torch.equal(minidynamo.freeze(scale)(x), x * 3)


def test_a_frozen_function_keeps_no_argument_and_dies_without_the_garbage_collector():
    f = minidynamo.compile(lambda xs: xs[0] * 2, backend="eager")
    f([torch.ones(2)])
    frozen = f.freeze(check_every=1)
    x = torch.ones(2)
    alive = weakref.ref(x)
    gc.disable()
    try:
        xs = [x]
        del x
        frozen(xs)
        xs.clear()
        assert alive() is None
        code = weakref.ref(frozen)
        del frozen
        assert code() is None
    finally:
        gc.enable()


# Modules


def test_BK_1_a_module_keeps_what_each_backend_compiled():
    first, second = CompileCounter(), CompileCounter()
    net, x = torch.nn.Linear(3, 2), torch.ones(1, 3)
    for backend in (first, second, first, second):
        minidynamo.compile(net, backend=backend)
        net(x)
    assert (first.frame_count, second.frame_count) == (1, 1)
    minidynamo.compile(net, backend=first, fullgraph=True)
    net(x)
    assert first.frame_count == 2
    with no_recompile():
        minidynamo.compile(net, backend=first)(x)
    alive = weakref.ref(net)
    gc.disable()
    try:
        del net
        assert alive() is None
    finally:
        gc.enable()
