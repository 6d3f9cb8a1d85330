"""Pieces between graph breaks that hold less work than entering them costs are left to Python."""

from __future__ import annotations

import random
import threading

import pytest
import torch

import minidynamo
from minidynamo.bytecode.layout import FramePoint
from minidynamo.core.events import MinidynamoNotice
from minidynamo.frontend.pieces import Piece, is_small_loop, left_to_python, piece_of
from minidynamo.testing import CompileCounter, assert_same_as_eager

LOCK = threading.Condition()  # with a graph break before it is taken, and one before it is released


def locked(x):
    with LOCK:
        y = x * 2
    return y + 1


def long_after_the_break(x):
    with LOCK:
        y = x * 2
    for _ in range(20):
        y = torch.sin(y) + 1
    return y


def point(index):
    return FramePoint(locked.__code__, index)


def small(*exits, calls_compiled=False):
    return Piece(1.0, 3.0, frozenset(exits), calls_compiled)


LARGE = Piece(50.0, 3.0, frozenset(), False)


@pytest.mark.parametrize(
    ("pieces", "left"),
    [
        ({None: small()}, []),  # no break
        ({None: Piece(1.0, 3.0, frozenset(), False, draws=True)}, [None]),
        ({None: small(point(1)), point(1): small()}, [None, point(1)]),
        ({None: small(point(1))}, []),  # the piece that follows is not known yet
        ({None: small(point(1)), point(1): LARGE}, []),
        ({None: LARGE, point(1): small()}, [point(1)]),
        ({None: small(point(1)), point(1): small(point(1), point(2)), point(2): small()}, [None, point(1), point(2)]),
        ({None: small(point(1), calls_compiled=True), point(1): small()}, [point(1)]),
    ],
)
def test_what_is_left(pieces, left):
    assert left_to_python(pieces) == left


@pytest.mark.parametrize(
    ("piece", "is_small", "is_small_for_counters"),
    [
        (Piece(0.0, 3.0, frozenset([point(1), point(2)]), False), True, True),
        (small(point(1), point(2)), True, False),
        (small(point(2)), False, False),  # no loop, or a graph break in its body
        (Piece(50.0, 3.0, frozenset([point(1)]), False), False, False),
        (small(point(1), calls_compiled=True), False, False),
        (Piece(0.0, 3.0, frozenset([point(1)]), False, inlines=True), False, False),
        (Piece(0.0, 3.0, frozenset([point(1)]), False, draws=True), False, False),
    ],
)
def test_which_loops_are_left(piece, is_small, is_small_for_counters):
    assert is_small_loop(point(1), piece, fuses=True) is is_small
    assert is_small_loop(point(1), piece, fuses=False) is is_small_for_counters


def discounted(rewards, x):
    total, returns = 0.0, []
    for reward in rewards[::-1]:
        total = reward + 0.9 * total
        returns.insert(0, total)
    for _ in range(20):
        x = torch.sin(x) + total
    return x, returns


def halved(k):
    return torch.sin(torch.tensor(k)).item() if k > 3 else k / 2


def summed_halves(n, x):
    total = 0
    for k in range(n):
        total += halved(k)
    return x * total


def test_a_loop_without_tensors_runs_in_one_step():
    compiled = minidynamo.compile(discounted, backend="eager")
    x = torch.ones(3)
    for length in (2, 3, 4, 5, 6, 7):
        got, want = compiled([1.5] * length, x), discounted([1.5] * length, x)
        assert torch.equal(got[0], want[0]) and got[1] == want[1]
    explained = str(compiled.explain())
    assert "MD308 the loop in discounted.from_line" in explained and "for reward in rewards[::-1]:" in explained
    assert compiled.stats.fallbacks == 1
    frames = compiled.stats.frames
    for length in (40, 50):
        compiled([1.5] * length, x)
    assert compiled.stats.frames - frames < 20  # not a frame per iteration; the code after the loop is compiled
    with minidynamo.config.patch(disable=True):
        assert compiled([1.5] * 8, x)[1] == discounted([1.5] * 8, x)[1]
    compiled.reset()
    assert compiled([1.5] * 9, x)[1] == discounted([1.5] * 9, x)[1]


def test_an_error_in_such_a_loop_is_the_programs_error():
    compiled = minidynamo.compile(discounted, backend="eager")
    for length in range(2, 8):
        compiled([1.5] * length, torch.ones(3))
    with pytest.raises(TypeError, match="concatenate") as caught:
        compiled([1.5, "no reward", 2.5, 1.0, 2.0, 3.0, 4.0, 5.0], torch.ones(3))
    assert caught.traceback[-1].lineno + 1 == discounted.__code__.co_firstlineno + 3


def test_a_loop_whose_function_may_do_more_later_stays_compiled():
    compiled = minidynamo.compile(summed_halves, backend="eager")
    for n in (1, 2, 3, 4, 5, 6, 7):
        assert torch.allclose(compiled(n, torch.ones(2)), summed_halves(n, torch.ones(2)))
    assert compiled.stats.fallbacks == 0


@pytest.mark.cpp
def test_a_loop_of_small_graphs_runs_in_one_step():
    def weighted(parts, x):
        for part in parts:
            x = x + part
        for _ in range(30):
            x = torch.sin(x) + 1
        return x

    compiled = minidynamo.compile(weighted)
    for length in (2, 3, 4, 5, 6, 7):
        parts = [torch.full((3,), float(k)) for k in range(length)]
        torch.testing.assert_close(compiled(parts, torch.ones(3)), weighted(parts, torch.ones(3)))
    assert "MD308 the loop in" in str(compiled.explain()) and compiled.stats.fallbacks == 1


def test_estimates():
    def graph(x, n):
        counter = CompileCounter()

        def f(x):
            for _ in range(n):
                x = torch.sin(x)
            return x

        minidynamo.compile(f, backend=counter)(x)
        return piece_of(counter.graphs[0])

    x = torch.ones(4)
    assert piece_of(None).saved == 0 < piece_of(None).cost
    assert graph(x, 1).saved < graph(x, 5).saved < graph(torch.ones(100_000), 5).saved
    assert graph(x.requires_grad_(), 1).cost > graph(torch.ones(4), 1).cost


@pytest.mark.cpp
def test_a_function_of_small_pieces_runs_eagerly():
    compiled = minidynamo.compile(locked)
    for k in range(3):
        assert torch.equal(compiled(torch.full((4,), float(k))), torch.full((4,), 2.0 * k + 1))
    explained = str(compiled.explain())
    assert compiled.stats.graph_breaks == 2 and "MD308 locked runs eagerly" in explained
    assert "| def locked(x):" in explained and "Remove the graph breaks to compile it" in explained
    frames = compiled.stats.frames
    compiled(torch.ones(4))
    assert compiled.stats.frames == frames
    compiled.reset()
    compiled(torch.ones(4))
    assert compiled.stats.graph_breaks == 2


@pytest.mark.cpp
def test_a_large_piece_keeps_the_function_compiled():
    compiled = minidynamo.compile(long_after_the_break)
    for _ in range(2):
        assert torch.allclose(compiled(torch.ones(4)), long_after_the_break(torch.ones(4)))
    assert compiled.stats.fallbacks == 0


def test_a_counter_gets_every_graph():
    counter = CompileCounter()
    compiled = minidynamo.compile(locked, backend=counter)
    for _ in range(3):
        compiled(torch.ones(4))
    assert (counter.frame_count, compiled.stats.fallbacks) == (2, 0)


@pytest.mark.cpp
@pytest.mark.parametrize("requires_grad", [False, True])
def test_results_and_gradients(requires_grad):
    assert_same_as_eager(locked, lambda: (torch.arange(4.0, requires_grad=requires_grad),), backend="native", calls=3)


@pytest.mark.filterwarnings("ignore")
def test_calls_that_fit_no_version_end_the_checks():
    def f(x, n):
        return x * n

    compiled = minidynamo.compile(f, backend="eager", dynamic=False, recompile_limit=2)
    x = torch.ones(2)
    for n in range(80):
        assert compiled(x, n)[0] == n
    frames = compiled.stats.frames
    assert frames < 80 and compiled.stats.compiles == 2
    assert compiled(x, 0)[0] == 0 and compiled.stats.frames == frames
    compiled.reset()
    assert compiled(x, 1)[0] == 1 and compiled.stats.compiles == 1


@pytest.mark.filterwarnings("ignore")
def test_calls_that_fit_a_version_keep_the_checks():
    compiled = minidynamo.compile(lambda x, n: x * n, backend="eager", dynamic=False, recompile_limit=2)
    for n in range(200):
        compiled(torch.ones(2), n % 40)
    assert compiled.stats.frames == 200


@pytest.mark.cpp
def test_a_draw_and_a_small_graph_run_eagerly_unless_the_user_wants_a_graph():
    def noisy(x):
        return x * random.uniform(0.5, 1.5)

    compiled, whole = minidynamo.compile(noisy), minidynamo.compile(noisy, fullgraph=True)
    for function in (compiled, whole):
        random.seed(0)
        want = noisy(torch.ones(4))
        random.seed(0)
        assert torch.equal(function(torch.ones(4)), want)
        function(torch.ones(4))
    assert compiled.stats.hits == 0 and "MD308" in str(compiled.explain())
    assert whole.stats.hits == 1


@pytest.mark.cpp
def test_a_function_whose_rest_has_too_many_versions_runs_eagerly():
    def many(x, kind):
        with LOCK:
            y = x * 2
        for _ in range(20):
            y = torch.sin(y) + 1
        return y, kind()

    compiled = minidynamo.compile(many, recompile_limit=2)
    with pytest.warns(MinidynamoNotice, match="MD302"):
        for k in range(90):
            x, kind = torch.full((3,), float(k)), type(f"Kind{k}", (), {})
            found, made = compiled(x, kind)
            assert torch.equal(found, many(x, kind)[0]) and type(made) is kind
    assert "many runs eagerly" in str(compiled.explain())
    frames = compiled.stats.frames
    compiled(torch.ones(3), type("Kind", (), {}))
    assert compiled.stats.frames == frames
