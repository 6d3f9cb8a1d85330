"""A list argument is one placeholder. A donated list is empty after the call, and its elements die one by one, after
their last use."""

from __future__ import annotations

import operator
import types
import weakref

import pytest
import torch
from torch.multiprocessing.reductions import StorageWeakRef

import minidynamo
from minidynamo.backends.registry import resolve
from minidynamo.errors import ArgumentError
from minidynamo.testing import CompileCounterWithBackend, StorageWatch, no_recompile, probe
from tests.custom_functions import Doubled

BACKENDS = ["eager", "aot_eager", pytest.param("native", marks=pytest.mark.cpp)]
ones = torch.ones


def placeholders(gm):
    return [node for node in gm.graph.nodes if node.op == "placeholder"]


def elements(gm):
    """Returns the list positions that a graph reads."""
    return [node.args[1] for node in gm.graph.nodes if node.target is operator.getitem]


def same_values(fn, backend, *calls, **options):
    """Calls the compiled function with each of `calls`, twice, and compares with eager; returns the counter."""
    counter = CompileCounterWithBackend(backend)
    f = minidynamo.compile(fn, backend=counter, **options)
    for make in calls:
        for _ in range(2):
            assert torch.equal(f(*make()), fn(*make()))
    return counter


@pytest.mark.parametrize("backend", BACKENDS)
def test_LST_1_tensors_that_are_one_object_are_one_input(backend):
    t, u = ones(3), ones(3) * 2
    calls = [lambda: ([t, t],), lambda: ([t, u],), lambda: ([t, t, t],)]
    counter = same_values(lambda ls: ls[0] + ls[1], backend, *calls)
    assert counter.frame_count == 3
    # Each graph takes one list; the number of tensors read from the list differs.
    assert [len(placeholders(gm)) for gm in counter.graphs] == [1, 1, 1]
    assert [len(elements(gm)) for gm in counter.graphs] == [1, 2, 1]


@pytest.mark.parametrize("backend", BACKENDS)
def test_LST_2_one_placeholder_and_an_item_per_used_element(backend):
    def forward(activations):
        return activations[0].sum() + activations[2].sum()

    for steal in ((), ("activations",)):
        counter = same_values(forward, backend, lambda: ([ones(2), ones(3), ones(4)],), steal=steal)
        (gm,) = counter.graphs
        (given,) = placeholders(gm)
        assert given.name == "activations" and type(given.meta["example_value"]) is list
        assert bool(given.meta.get("steal_arg")) == bool(steal)
        assert elements(gm) == [0, 2]


def used_one_by_one(inputs):
    a, b, c = inputs
    inputs.clear()
    out = a + 1
    del a
    out = probe(out)
    out = out + b
    del b
    out = probe(out)
    out = out + c
    del c
    return probe(out)


def popped(inputs):
    out = inputs.pop(0) + 1
    out = probe(out)
    out = out + inputs.pop(0)
    out = probe(out)
    out = out + inputs.pop()
    return probe(out)


def sliced_away(inputs):
    moved = inputs[:]
    del inputs[:]
    return popped(moved)


def taken_in_a_loop(inputs):
    out = torch.zeros(3)
    while inputs:
        out = probe(out + inputs.pop(0))
    return out


class Clearing(torch.nn.Module):
    def forward(self, inputs):
        return used_one_by_one(inputs)


@pytest.mark.parametrize("backend", [None, *BACKENDS])
@pytest.mark.parametrize("fn", [used_one_by_one, popped, sliced_away, taken_in_a_loop, Clearing])
def test_LST_3_elements_of_a_list_that_the_frame_empties_die_as_in_eager(fn, backend):
    fn = fn() if isinstance(fn, type) else fn
    f = fn if backend is None else minidynamo.compile(fn, backend=backend)
    for _ in range(2):
        xs = [ones(3), ones(3), ones(3)]
        watch = StorageWatch(a=xs[0], b=xs[1], c=xs[2])
        out = f(xs)
        assert watch.seen == [["b", "c"], ["c"], []]
        assert xs == [] and out.tolist() == [4.0 if fn is not taken_in_a_loop else 3.0] * 3


@pytest.mark.parametrize("backend", BACKENDS)
def test_LST_4_the_same_tensor_twice(backend):
    t = ones(3)
    counter = same_values(lambda ls, t: ls[0] * 2 + t, backend, lambda: ([t, ones(3)], t), steal=("ls",))
    assert counter.frame_count == 1
    counter = same_values(lambda ls: ls[0] * 2 + ls[1], backend, lambda: ([t, t],), steal=("ls",))
    assert counter.frame_count == 1
    f = minidynamo.compile(lambda ls, t: ls[0] * 2 + t, backend=backend, steal=("ls",))
    kept = [t, ones(3)]
    assert f(kept, t).tolist() == [3.0] * 3 and kept == [] and t.tolist() == [1.0] * 3


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("other", [2, None, "text", 2.5, (1, 2), [ones(3)], {"k": ones(3)}], ids=repr)
def test_LST_5_other_values_in_a_stolen_list(other, backend):
    f = minidynamo.compile(lambda ls: (ls[0] * 2, ls[1]), backend=backend, steal=("ls",))
    for _ in range(2):
        ls = [ones(3), other]
        doubled, found = f(ls)
        assert doubled.tolist() == [2.0] * 3 and (found is other or found == 2.5) and ls == []


@pytest.mark.parametrize("backend", BACKENDS)
def test_LST_6_a_list_that_grows(backend):
    def mixed(ls, d):
        ls.append(ls[0] * d["k"][1])
        return ls[0] + d["k"][0]

    counter = CompileCounterWithBackend(backend)
    f = minidynamo.compile(mixed, backend=counter)
    for _ in range(2):
        ls = [ones(2), 5, "s"]
        assert f(ls, {"k": [ones(2), 3]}).tolist() == [2.0, 2.0]
        assert ls[1:3] == [5, "s"] and ls[3].tolist() == [3.0, 3.0]
    (gm,) = counter.graphs
    assert len(next(node.args[0] for node in gm.graph.nodes if node.op == "output")) == 2


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("steal", [(), ("ls",)])
def test_LST_7_an_unused_element_may_change(steal, backend):
    calls = [lambda: ([ones(3), ones(3)],), lambda: ([ones(3), ones(4, dtype=torch.int64)],)]
    assert same_values(lambda ls: ls[0] + 1, backend, *calls, steal=steal).frame_count == 1


@pytest.mark.parametrize("steal", [(), ("ls",)])
def test_a_length_that_matters_is_compiled_once(steal):
    f = minidynamo.compile(lambda ls: ls[0] + ls[-1], backend="eager", steal=steal)
    for _ in range(2):
        for count in (2, 3):
            assert f([ones(3)] * count).tolist() == [2.0] * 3
    assert f.stats.compiles == 2 and "length of `ls`: expected 2, got 3" in f.why()


@pytest.mark.parametrize("steal", [(), ("ls",)])
def test_bad_lists(steal):
    f = minidynamo.compile(lambda ls: ls[0] + 1, backend="eager", steal=steal)
    f([ones(3)])
    with pytest.raises(IndexError, match="list index out of range"):
        f([])
    assert f([ones(3), 5]).tolist() == [2.0] * 3
    given = [ones(3)]
    f(given)
    if steal:
        with pytest.raises(IndexError, match="list index out of range"):
            f(given)
        with pytest.raises(ArgumentError, match=r"MD111(?s:.*)`ls`(?s:.*)tuple"):
            f((ones(3),))


def behind_a_break(acts, x):
    a = acts[0] + 1
    minidynamo.graph_break()
    return a + acts[1] + x


def only_returned(acts, x):
    return acts[0]


def not_used(acts, x):
    return x + 1


def dead_behind_a_break(acts, x):
    n = len(acts)
    minidynamo.graph_break()
    return x + n


def with_a_constant(acts, x):
    return acts[0] * acts[-1]


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("fn", (behind_a_break, only_returned, not_used, dead_behind_a_break, with_a_constant))
def test_stolen_lists_end_empty(fn, backend):
    compiled = minidynamo.compile(fn, backend=backend, steal=("acts",))
    for acts in ([ones(3), ones(3)], [ones(3), ones(3)], [ones(3), 2], [ones(3)] * 2):
        expected = fn(list(acts), ones(3))
        assert torch.equal(compiled(acts, ones(3)), expected)
        assert acts == []


def test_a_local_that_was_assigned_to_is_not_the_stolen_list():
    @minidynamo.compile(backend="eager", steal=("xs",))
    def f(xs, ys):
        a = xs[0] + 1
        xs = ys
        minidynamo.graph_break()
        return a + xs[0]

    for _ in range(2):
        xs, ys = [ones(2)], [ones(2)]
        assert torch.equal(f(xs, ys), ones(2) * 3)
        assert xs == [] and len(ys) == 1


def test_elements_are_gone_behind_the_break_at_which_a_stolen_list_is_dead():
    given, alive = [], []

    def count(x):
        alive.append(sum(not storage.expired() for storage in given))

    def f(xs, y):
        y = xs[0] * 2 + y + xs[1]
        minidynamo.disable(count)(y)
        return y

    compiled = minidynamo.compile(f, backend="eager", steal=("xs",))
    for _ in range(2):
        xs = [ones(2), ones(2)]
        given[:] = [StorageWeakRef(x.untyped_storage()) for x in xs]
        assert torch.equal(compiled(xs, ones(2)), ones(2) * 4)
    assert alive == [0, 0]


def test_only_lists_can_be_stolen():
    f = minidynamo.compile(lambda xs=None: 1 if xs is None else xs[0] + 1, backend="eager", steal=("xs",))
    f([ones(2)])
    with pytest.raises(ArgumentError, match=r"MD111(?s:.*)`xs`(?s:.*)tuple"):
        f((ones(2),))
    assert f() == 1
    with no_recompile():
        f([ones(2)])


def sum_of_the_first(activations):
    return (probe(activations[0].sum()),)


@pytest.mark.parametrize("steal", ["keyword", "mark", "module", "graph module"])
@pytest.mark.parametrize("backend", ["aot_eager", pytest.param("native", marks=pytest.mark.cpp)])
def test_STL_1_an_element_dies_behind_its_last_use(backend, steal):
    free_activation_memory(backend, steal)


@pytest.mark.parametrize("steal", ["keyword", "mark", "module", "graph module"])
def test_STL_2_the_eager_backend_steals_as_well(steal):
    free_activation_memory("eager", steal)


class SumOfTheFirst(torch.nn.Module):
    def forward(self, activations):
        return sum_of_the_first(activations)


def free_activation_memory(backend, steal):
    counter = CompileCounterWithBackend(backend)
    if steal == "keyword":
        f = minidynamo.compile(sum_of_the_first, backend=counter, steal=("activations",))
    elif steal == "mark":
        fresh = types.FunctionType(sum_of_the_first.__code__, globals())
        f = minidynamo.compile(minidynamo.steal(fresh, ["activations"]), backend=counter)
    else:
        module = SumOfTheFirst() if steal == "module" else torch.fx.symbolic_trace(SumOfTheFirst())
        f = minidynamo.compile(minidynamo.steal(module, ["activations"]), backend=counter)
    for _ in range(2):
        acts = [ones(1000), ones(7)]
        first, watch = weakref.ref(acts[0]), StorageWatch(first=acts[0])
        (out,) = f(acts)
        assert watch.seen == [[]] and first() is None
        assert acts == [] and out.item() == 1000.0
    assert counter.frame_count == 1


@pytest.mark.parametrize("backend", BACKENDS)
def test_STL_3_a_returned_element_lives(backend):
    def forward(activations):
        s = activations[0].sum() + activations[1].sum()
        return probe(s), activations[0]

    f = minidynamo.compile(forward, backend=backend, steal=("activations",))
    for _ in range(2):
        acts = [ones(5), ones(7)]
        first, watch = weakref.ref(acts[0]), StorageWatch(first=acts[0], second=acts[1])
        _, kept = f(acts)
        assert kept is first() and watch.seen == [["first"]] and acts == []


@pytest.mark.parametrize("backend", BACKENDS)
def test_STL_4_a_stolen_list_across_a_break(backend):
    f = minidynamo.compile(behind_a_break, backend=backend, steal=("acts",))
    for _ in range(2):
        acts = [ones(3), ones(3)]
        assert f(acts, ones(3)).tolist() == [4.0] * 3 and acts == []


class Broken(torch.nn.Module):
    def forward(self, acts, x):
        return behind_a_break(acts, x)


class BrokenInside(torch.nn.Module):
    def forward(self, acts, x):
        a = acts[0] + 1
        minidynamo.graph_break()
        return a + acts[1] + x


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("cls", [Broken, BrokenInside])
def test_STL_4_a_stolen_list_across_a_break_in_a_module(cls, backend):
    f = minidynamo.compile(minidynamo.steal(cls(), ["acts"]), backend=backend)
    for keyword in (False, False, True, True):
        acts = [ones(3), ones(3)]
        out = f(x=ones(3), acts=acts) if keyword else f(acts, ones(3))
        assert out.tolist() == [4.0] * 3 and acts == []


@pytest.mark.parametrize("backend", BACKENDS)
def test_STL_5_two_lists(backend):
    def fn(acts, more):
        x = probe(acts[0] + more[0])
        x = x + acts[1] + more[1]
        return probe(x)

    def run(f):
        acts, more = [ones(3), ones(3)], [ones(3), ones(3)]
        watch = StorageWatch(a0=acts[0], a1=acts[1], b0=more[0], b1=more[1])
        assert f(acts, more).tolist() == [4.0] * 3
        return watch.seen, len(acts), len(more)

    both = minidynamo.compile(fn, backend=backend, steal=("acts", "more"))
    one = minidynamo.compile(fn, backend=backend, steal=("more",))
    for _ in range(2):
        assert run(both) == ([["a1", "b1"], []], 0, 0)
        assert run(one) == ([["a0", "a1", "b1"], ["a0", "a1"]], 2, 0)


@pytest.mark.parametrize("backend", BACKENDS)
def test_STL_6_the_structure_of_the_arguments_is_checked(backend):
    class Nested(torch.nn.Module):
        def forward(self, pair, named):
            return (pair[0] + pair[1] * 2 + named["k"] * 4,)

    def values(*structure):
        return [*structure]

    a, b, c = ones(1), ones(1), ones(1)
    call = resolve(backend).run(torch.fx.symbolic_trace(Nested()), [[a, b], {"k": c}])
    assert call(values([a, b], {"k": c}))[0].item() == 7.0
    for wrong in (values([a], {"k": b, "z": c}), values(a, b, c), values([a, b], {"z": c}), values([a, b], c)):
        with pytest.raises(TypeError, match="structure mismatch"):
            call(wrong)


kept_by_forward: list[StorageWeakRef] = []
seen_in_backward: list[int] = []


@torch.library.custom_op("minidynamo_tests::kept", mutates_args=())
def kept(x: torch.Tensor) -> torch.Tensor:
    made = x.clone()
    kept_by_forward.append(StorageWeakRef(made.untyped_storage()))
    return made


@torch.library.custom_op("minidynamo_tests::count_kept", mutates_args=())
def count_kept(grad: torch.Tensor) -> torch.Tensor:
    seen_in_backward.append(sum(not storage.expired() for storage in kept_by_forward))
    return grad.clone()


kept.register_fake(torch.empty_like)
count_kept.register_fake(torch.empty_like)
kept.register_autograd(lambda ctx, grad: count_kept(grad))


def assert_dying_one_by_one(five, backend):
    f = five if backend is None else minidynamo.compile(five, backend=backend, fullgraph=True)
    for _ in range(2):
        kept_by_forward.clear()
        seen_in_backward.clear()
        f(torch.rand(4, requires_grad=True)).backward()
        assert seen_in_backward == [4, 3, 2, 1, 0]


@pytest.mark.parametrize("backend", [None, *BACKENDS])
def test_STL_7_saved_tensors_die_one_by_one_in_backward(backend):
    def five(x):
        for _ in range(5):
            x = kept(x).sin()
        return x.sum()

    assert_dying_one_by_one(five, backend)


@pytest.mark.parametrize("backend", [None, *BACKENDS])
def test_STL_7_a_custom_function_in_the_chain_keeps_nothing(backend):
    def five(x):
        for _ in range(5):
            x = Doubled.apply(kept(x)).sin()
        return x.sum()

    assert_dying_one_by_one(five, backend)


@pytest.mark.parametrize("backend", BACKENDS)
def test_STL_8_stolen_leaves_that_the_caller_holds(backend):
    f = minidynamo.compile(lambda acts: (acts[0] * acts[1]).sum(), backend=backend, steal=("acts",))
    for _ in range(2):
        p, q = ones(3, requires_grad=True), torch.full((3,), 2.0, requires_grad=True)
        acts = [p, q]
        f(acts).backward()
        assert acts == [] and p.grad.tolist() == [2.0] * 3 and q.grad.tolist() == [1.0] * 3
