"""Programs with `cond`: captured whole, differentiated, and refused if a branch has side effects."""

from __future__ import annotations

import gc
import weakref
from typing import NamedTuple

import pytest
import torch

import minidynamo
from minidynamo import cond
from minidynamo.bytecode.instructions import decode
from minidynamo.errors import InvalidCond, Unsupported
from minidynamo.observe.comparison import assert_equal_observations, observe
from minidynamo.testing import (
    CompileCounter,
    CompileCounterWithBackend,
    StorageWatch,
    assert_same_as_eager,
    no_recompile,
    probe,
)
from tests.end_to_end.programs import Program, Programs, leaf, rows_of, vector

programs = Programs()
BACKENDS = ("eager", "aot_eager", pytest.param("native", marks=pytest.mark.cpp))
TRUE, FALSE = torch.tensor(True), torch.tensor(False)
one = torch.ones(())


class Counter:
    """An external object that a branch may try to change."""

    a = 0


def in_a_graph():
    """`cond` in captured code."""
    call_cond = lambda *args: cond(*args)
    return minidynamo.compile(call_cond, backend="eager")


# Behaviour checks


def test_CND_1_eager_cond_chooses_and_compiles_once_for_both_values():
    assert torch.equal(cond(TRUE, torch.sin, torch.cos, (one,)), one.sin())
    assert torch.equal(cond(FALSE, torch.sin, torch.cos, (one,)), one.cos())
    y = torch.tensor(2.0)
    double = lambda x: x * y + 2
    less = lambda x: x * y - 8
    counts = []
    with minidynamo_graphs(counts):
        found = [cond(torch.tensor(pred), double, less, (2 * one,)).item() for pred in (True, False, True)]
    assert found == [6, -4, 6]
    assert sum(counts) == 1


def _advance(x, outer):
    next(outer)
    return x * 2


class Cases:
    def _append(x, outer):
        outer.append(x)
        return x * 2

    def _set_attribute(x, outer):
        Counter.a = 5
        return x * 2

    def _set_on_object(x, outer):
        outer[0].a = 5
        return x * 2

    def _set_global(x, outer):
        global BACKENDS
        BACKENDS = ()
        return x * 2

    def _print(x, outer):
        print("in a branch")
        return x * 2

    def _break(x, outer):
        minidynamo.graph_break()
        return x * 2

    def _pop(x, outer):
        outer.pop()
        return x * 2


@pytest.mark.parametrize("change", [*rows_of(Cases), _advance])
@pytest.mark.parametrize("captured", [False, True])
@pytest.mark.parametrize("first", [True, False])
def test_CND_2_changes_of_the_surroundings_are_refused_and_not_made(change, captured, first, capsys):
    counter = Counter()
    outer = iter([counter]) if change is _advance else [counter]
    branches = [lambda x: change(x, outer), lambda x: x * 3]
    call = in_a_graph() if captured else cond
    with pytest.raises(Unsupported, match=r"MD224 cond cannot capture its (true|false) branch") as caught:
        call(TRUE, *(branches if first else reversed(branches)), (one,))
    assert f"in {change.__name__}" in str(caught.value)
    assert list(outer) == [counter] and counter.a == 0 and BACKENDS
    assert capsys.readouterr().out == ""


def test_CND_2_variables_of_an_enclosing_function_cannot_be_assigned():
    def f(x):
        calls = 0

        def count(x):
            nonlocal calls
            calls += 1
            return x * 2

        return cond(x.sum() > 0, count, torch.sin, (x,)), calls

    with pytest.raises(Unsupported, match="assigns to a variable of an enclosing function"):
        minidynamo.compile(f, backend="eager")(one)
    with pytest.raises(Unsupported, match="assigns to a variable of an enclosing function"):
        f(one)


@programs(lambda: one, lambda: -one)
def a_branch_may_change_what_it_makes(x):
    def branch(x):
        found, total = [], {}
        for k in range(3):
            found.append(x * k)
        total["sum"] = found[1] + found.pop()
        counter = Counter()
        counter.a = total["sum"]
        return counter.a

    return cond(x.sum() > 0, branch, torch.sin, (x,))


@pytest.mark.parametrize("backend", BACKENDS)
def test_CND_3_gradients_of_operands_and_of_closures(backend):
    w = torch.tensor(2.0, requires_grad=True)

    def f(pred, a):
        return cond(pred, lambda x: x * w, lambda x: x + w, (a,))

    compiled = minidynamo.compile(f, backend=backend, fullgraph=True)
    for call in (f, compiled):
        for pred, wanted in ((TRUE, (2, 1)), (FALSE, (1, 1))):
            a = torch.tensor(1.0, requires_grad=True)
            found = torch.autograd.grad(call(pred, a), (a, w))
            assert found == wanted


def test_CND_4_both_subgraphs_take_operands_and_what_is_lifted():
    w = torch.tensor(3.0)

    def f(x):
        z = x * 2
        return cond(x.sum() > 0, lambda x: w * x + z, lambda x: w * x, (x,))

    counter = CompileCounter()
    compiled = minidynamo.compile(f, backend=counter, fullgraph=True)
    assert torch.equal(compiled(torch.ones(2)), torch.full((2,), 5.0))
    assert torch.equal(compiled(-torch.ones(2)), torch.full((2,), -3.0))
    (graph,) = counter.graphs
    (node,) = (node for node in graph.graph.nodes if node.name == "cond")
    assert [operand.name for operand in node.args[3]] == ["x", "w", "mul"]
    for branch in node.args[1:3]:
        inputs = graph.get_submodule(branch.target).graph.find_nodes(op="placeholder")
        assert [placeholder.target for placeholder in inputs] == ["x", "w", "mul"]


@pytest.mark.parametrize("branch", [lambda x: x, lambda x: x.view(-1), lambda x: x.detach(), lambda x: (x * 2,) * 2])
@pytest.mark.parametrize("captured", [False, True])
def test_CND_5_results_have_memory_of_their_own(branch, captured):
    call = in_a_graph() if captured else cond
    with pytest.raises(Unsupported, match=r"MD224 .*(view of one|share memory)"):
        call(TRUE, branch, lambda x: x.clone(), (one,))


def test_CND_5_writes():
    def write(x):
        x.add_(1)
        return x.sin()

    assert torch.equal(cond(TRUE, lambda x: x.sin().add_(1), torch.cos, (one,)), one.sin() + 1)
    x = torch.ones(())
    with pytest.raises(Unsupported, match="writes to a tensor from outside while grad mode is enabled"):
        cond(TRUE, write, torch.cos, (x,))
    with pytest.raises(Unsupported, match="writes to a tensor from outside while grad mode is enabled"):
        cond(TRUE, lambda x: x.data.add_(1).sin(), torch.cos, (x,))
    assert x == 1
    with torch.no_grad():
        assert torch.equal(cond(TRUE, write, torch.cos, (x,)), torch.tensor(2.0).sin())
    assert x == 2


def test_CND_5_a_write_to_a_known_value_is_refused():
    @torch.no_grad()
    def f(x):
        count = torch.tensor(0.0)
        y = cond(x.sum() > 0, lambda: x + count.add_(1), lambda: x - 1)
        return y if count > 0 else -y

    with pytest.raises(Unsupported, match="whose value was known"):
        minidynamo.compile(f, backend="eager")(one)


@pytest.mark.parametrize("backend", BACKENDS)
def test_CND_5_a_write_without_grad_reaches_the_operand(backend):
    def write(x):
        x.add_(1)
        return x.sin()

    def f(pred, x):
        y = x * 2
        with torch.no_grad():
            made = cond(pred, write, torch.cos, (y,))
        return made, y + 1

    compiled = minidynamo.compile(f, backend=backend, fullgraph=True)
    for pred in (TRUE, FALSE):
        x = torch.randn(4)
        for expected, found in zip(f(pred, x), compiled(pred, x)):
            assert torch.equal(expected, found)


@pytest.mark.parametrize(
    ("args", "error"),
    [
        ((torch.tensor([True, False]), torch.sin, torch.cos, (one,)), "a pred with one element"),
        (("yes", torch.sin, torch.cos, (one,)), "a bool or a tensor as pred, not a str"),
        ((TRUE, 3, torch.cos, (one,)), "two functions, not an int"),
        ((TRUE, torch.sin, torch.cos, one), "a tuple of tensors as operands, not a Tensor"),
        ((TRUE, torch.sin, torch.cos, (3,)), "tensors as operands, not an int"),
        ((TRUE, torch.sin, torch.cos, ([one, None],)), "tensors as operands, not a NoneType"),
    ],
)
@pytest.mark.parametrize("captured", [False, True])
def test_CND_6_arguments_of_another_kind(args, error, captured):
    call = in_a_graph() if captured else cond
    with pytest.raises(InvalidCond, match=f"MD109 .*{error}") as caught:
        call(*args)
    assert isinstance(caught.value, RuntimeError)


@pytest.mark.parametrize(
    ("branch", "error"),
    [
        (lambda x: x.double(), "a result has dtype torch.float64, and torch.float32 in the true branch"),
        (lambda x: x.expand(3) + 1, r"a result has shape \(3,\), and \(\) in the true branch"),
        (lambda x: (x.sin(), x.cos()), "the true branch returns 1 values, the false branch 2"),
        (lambda x: [x.sin()], "the branches return different structures"),
        (lambda x: 1, "the branches return different structures"),
        (lambda x: None, "it returns None"),
        (lambda x: "text", "it returns str"),
        (lambda x, y: x + y, r" <lambda>\(x, y\): the program raises an exception here"),
        (lambda x: x @ x, "the program raises an exception here"),
        (lambda x: x * x.item(), r"Tensor.item\(\) is called"),
    ],
)
def test_CND_6_branches_that_do_not_fit(branch, error):
    def f(x):
        return cond(x.sum() > 0, torch.sin, branch, (x,))

    for call in (f, minidynamo.compile(f, backend="eager")):
        with pytest.raises(Unsupported, match=f"MD224 cond cannot capture its false branch.*{error}") as caught:
            call(one)
        assert "test_cond.py" in str(caught.value)


@programs(leaf, lambda: leaf().neg().detach().requires_grad_())
def nested(x):
    y = x * 2

    def inner(v):
        return cond(v.sum() > 1, lambda: v * y, lambda: v + y)

    return cond(y.sum() > 0, inner, lambda v: cond(y.max() > 0, torch.sin, torch.cos, (v,)), (x,)) + y


class Step:
    scale = 3

    def up(self, x):
        return x * self.scale

    def down(self, x):
        return x - self.scale


@programs(leaf)
def grad_mode_around_and_inside(x):
    def branch(v):
        with torch.no_grad():
            scale = v.abs().max()
        return v / scale

    with torch.no_grad():
        first = cond(x.sum() > 0, branch, torch.sin, (x,))
    return cond(first.sum() > 0, branch, torch.sin, (x,)) * first


class Pair(NamedTuple):
    a: torch.Tensor
    b: list[torch.Tensor]


test_program = programs.test()


@programs(vector, lambda: -vector())
class Branches:
    torch_cond_is_cond = lambda x: torch.cond(x.sum() > 0, torch.sin, torch.cos, (x,))
    keywords = lambda x: cond(operands=[x], false_fn=torch.cos, pred=x.sum() > 0, true_fn=torch.sin)

    def python_numbers_choose_at_once(x):
        kept = []

        def branch(x):
            kept.append(1)
            return x

        return cond(len(x.shape), branch, torch.sin, (x,)), cond(False, branch, torch.cos, (x,)), kept

    def structures(x):
        def branch(k):
            return lambda parts: {"a": parts["x"] * k, "b": (parts["x"] + k, [parts["x"] - k]), "n": 1}

        made = cond(x.sum() > 0, branch(1), branch(2), ({"x": x},))
        return made["b"][1][0] + made["a"], made["n"], type(made["b"][1])

    @programs(lambda: torch.randn(3, 4).abs(), lambda: -torch.randn(3, 4).abs())
    def other_strides(x):
        made = cond(x.sum() > 0, lambda x: x * 2, lambda x: x.t().contiguous().t() + 1, (x,))
        return (made * x).contiguous()

    def in_a_loop_and_a_method(x):
        step = Step()
        for _ in range(3):
            x = cond(x.mean() > 0, step.up, step.down, (x,))
        return x

    @programs(lambda: ([torch.randn(3), torch.randn(3)],))
    def elements_of_lists(xs):
        return cond(xs[0].sum() > 0, lambda: xs[0] + xs[1], lambda: xs[1] * 2)

    @programs(lambda: (torch.nn.Linear(4, 4), torch.randn(2, 4, requires_grad=True)))
    def parameters(module, x):
        return cond(x.sum() > 0, module, lambda x: torch.nn.functional.dropout(module(x).relu(), 0.5), (x,))

    @programs(vector, graphs=2, breaks=1)
    def behind_a_break(x):
        y = cond(x.sum() > 0, torch.sin, torch.cos, (x,))
        minidynamo.graph_break()
        return cond(x.sum() > 0, torch.sin, torch.cos, (y,))

    @programs(leaf, vector, lambda: -vector().abs(), graphs=2)
    def results_are_tensors_like_others(x):
        y = cond(x.sum() > 0, lambda: x * 2, lambda: x * 3)
        y.add_(1)
        return y[:2], y.view(2, 2) * 2, y

    @programs(vector, lambda: -vector().abs())
    def named_tuples_and_nothing(x):
        nothing = cond(x.sum() > 0, lambda: (), lambda: ())
        return cond(x.sum() > 0, lambda: Pair(x + 1, [x * 2]), lambda: Pair(x - 1, [x * 3])), nothing

    @programs(lambda: vector().abs(), lambda: -vector().abs())
    def comprehensions_and_recursion(x):
        def deeper(k, v):
            return cond(v.sum() > k, lambda: deeper(k - 1, v * 2), lambda: v - k) if k else v.sin()

        return sum(cond(v > 0, lambda: v * 2, lambda: v * 3) for v in x), deeper(3, x)  # noqa: B023

    @programs(leaf, lambda: -vector().abs(), graphs=2)
    def random_numbers(x):
        return cond(x.sum() > 0, lambda: x + torch.randn(4), lambda: x * torch.rand(4)) + torch.rand(4)


@pytest.mark.parametrize("program", programs)
def test_program_outside(program: Program):
    for make in program.inputs:
        with minidynamo.config.patch(disable=True):
            expected = observe(program.fn, make, seed=0, backward=True)
        assert_equal_observations("outside", expected, observe(program.fn, make, seed=0, backward=True), {})


@pytest.mark.parametrize("program", programs)
def test_program_with_aot_eager(program: Program):
    expected = {**program.expected, "backend": "aot_eager", "rtol": 1e-5, "atol": 1e-6}
    assert_same_as_eager(program.fn, *program.inputs, **expected)


@pytest.mark.cpp
@pytest.mark.parametrize("fn", [nested, grad_mode_around_and_inside])
def test_program_with_native(fn):
    assert_same_as_eager(fn, leaf, backend="native", graphs=1, rtol=1e-5, atol=1e-6)


# Caches and memory


def test_a_later_compile_by_another_backend_gets_graphs_of_its_own():
    up = lambda x: x * 2
    down = lambda x: x - 1
    f = lambda x: cond(x.sum() > 0, up, down, (x,))
    f(one)
    counter = CompileCounterWithBackend("aot_eager")
    compiled, branch = minidynamo.compile(f, backend=counter), minidynamo.compile(up, backend=counter)
    assert torch.equal(compiled(one), f(one)) and torch.equal(branch(one), one * 2)
    assert counter.frame_count == 2
    with no_recompile():
        f(one), compiled(one), branch(one)


def test_surroundings_are_guarded():
    class Scale:
        by = 2.0

    scale = Scale()
    up = lambda x: x * scale.by
    for by in (2.0, 3.0, 2.0):
        scale.by = by
        assert cond(TRUE, up, torch.sin, (one,)) == by


def test_fresh_functions_from_one_line_share_their_graphs():
    cond(TRUE, *_closures(torch.ones(())), (one,))
    with no_recompile():
        for k in range(20):
            w = torch.tensor(float(k))
            assert cond(TRUE, *_closures(w), (one,)) == k


def _closures(w):
    return lambda x: x * w, lambda x: x - w


def test_more_versions_than_are_kept():
    for k in range(70):
        assert cond(TRUE, lambda x: x * k, torch.sin, (one,)) == k  # noqa: B023


def test_nothing_of_an_eager_cond_outlives_its_functions():
    namespace = {"torch": torch, "cond": cond}
    exec("def up(x):\n    return x * w\ndef down(x):\n    return x - w\n", namespace)
    namespace["w"] = torch.ones(())
    assert cond(TRUE, namespace["up"], namespace["down"], (one,)) == 1
    code, w = weakref.ref(namespace["up"].__code__), weakref.ref(namespace["w"])
    namespace.clear()
    decode.cache_clear()
    gc.collect()
    assert code() is None and w() is None


@pytest.mark.parametrize("backend", BACKENDS)
def test_operands_die_at_their_last_use(backend):
    watches = []

    def f(xs):
        y = cond(xs[0].sum() > 0, lambda x: x * 2, torch.sin, (xs.pop(),))
        return probe(y)

    compiled = minidynamo.compile(f, backend=backend, fullgraph=True)

    def call():
        x = torch.ones(1000)
        watches.append(StorageWatch(x=x))
        xs = [x]
        del x
        return compiled(xs)

    with torch.no_grad():
        call(), call()
    assert watches[-1].seen == [[]]


class minidynamo_graphs:
    """Counts the compiles in a block into `counts`."""

    def __init__(self, counts):
        self.counts = counts

    def __enter__(self):
        self.stop = minidynamo.on_event(lambda event: self.counts.append(event.kind == "compile_start"))

    def __exit__(self, *_):
        self.stop()


weight = torch.randn(3, generator=torch.Generator().manual_seed(0))


def sizes_in_branches(choose):
    def program(x, n, s):
        m = x.shape[0]

        def positive(x):
            k = x.shape[0] * 2
            return (x * weight).view(m * 3)[: n * 3].sum(0) * k + x.sin().sum() * n

        def other(x):
            inner = choose((x > 0).all(), lambda: x.sum() * n + m, lambda: x.sum() * s - x.shape[0] * m, ())
            return (x - m).sum() * inner

        ones = lambda x: (torch.ones(x.shape[0], n) * 2, [x.shape[0] // x.shape[0]])
        return choose(x.sum() > 0, positive, other, (x,)), choose(x.sum() > 0, ones, ones, (x,))

    return program


@pytest.mark.parametrize("backend", BACKENDS)
def test_sizes_and_numbers_in_branches_may_be_any(backend):
    torch.manual_seed(0)  # some sums nearly cancel out, and last bits show
    program = sizes_in_branches(cond)
    expected = sizes_in_branches(lambda pred, true_fn, false_fn, operands: (true_fn if pred else false_fn)(*operands))
    compiled = minidynamo.compile(program, backend=backend, fullgraph=True)
    for rows, n, s in ((4, 2, 0.5), (5, 3, 0.25), (6, 4, 0.75), (9, 6, 0.1)):
        for sign in (1, -1):
            x = (torch.rand(rows, 3) * sign).requires_grad_()
            y = x.detach().clone().requires_grad_()
            (got, (made, [one])), (wanted, (other, _)) = compiled(x, n, s), expected(y, n, s)
            torch.testing.assert_close(got, wanted)
            assert torch.equal(made, other) and one == 1
            got.backward(), wanted.backward()
            torch.testing.assert_close(x.grad, y.grad)
    assert compiled.stats.graphs == 2
