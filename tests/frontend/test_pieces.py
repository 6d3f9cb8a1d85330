"""Pieces between graph breaks that hold less work than entering them costs are left to Python."""

from __future__ import annotations

import threading

import numpy
import pytest
import torch

import minidynamo
from minidynamo.bytecode.layout import FramePoint
from minidynamo.core.events import MinidynamoNotice
from minidynamo.frontend.pieces import Piece, left_to_python, piece_of
from minidynamo.testing import CompileCounter, assert_same_as_eager

LOCK = threading.Lock()


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
        return x + torch.from_numpy(numpy.random.rand(4))

    compiled, whole = minidynamo.compile(noisy), minidynamo.compile(noisy, fullgraph=True)
    for function in (compiled, whole):
        numpy.random.seed(0)
        want = noisy(torch.ones(4))
        numpy.random.seed(0)
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
