"""Calls near the recursion limit: first calls, for which the compiler needs more of the stack than is left, and
compiled functions that call themselves at graph breaks."""

import sys

import pytest
import torch

import minidynamo


def below(depth, call):
    return call() if depth == 0 else below(depth - 1, call)


def used():
    frame, count = sys._getframe(), 0
    while frame is not None:
        frame, count = frame.f_back, count + 1
    return count


@pytest.mark.parametrize("backend", ["eager", "native"])
@pytest.mark.parametrize("left", [120, 30, 20, 12, 8, 4, 2])
def test_a_first_call_near_the_limit_leaves_a_function_that_works(left, backend):
    x = torch.ones(3)
    compiled = minidynamo.compile(lambda x: x.sin() * 2, backend=backend)
    limit = sys.getrecursionlimit()
    try:
        below(limit - used() - left, lambda: compiled(x))
    except RecursionError:
        assert left < 30
    assert sys.getrecursionlimit() == limit
    assert torch.equal(compiled(x), x.sin() * 2)
    assert minidynamo.stats(compiled).compiles == 1


# The test machinery uses some frames; a level of a compiled function uses two.
FRAMES = 600


def recursive():
    @minidynamo.compile(backend="eager")
    def count(x, levels):
        if levels == 0:
            return x
        minidynamo.graph_break()
        return count(x, levels - 1) + 1

    return count


def method():
    class Counter:
        @minidynamo.compile(backend="eager")
        def count(self, x, levels):
            if levels == 0:
                return x
            minidynamo.graph_break()
            return self.count(x, levels - 1) + 1

    return Counter().count


@pytest.fixture
def little_room():
    before, depth, frame = sys.getrecursionlimit(), 0, sys._getframe()
    while frame is not None:
        depth, frame = depth + 1, frame.f_back
    yield depth
    sys.setrecursionlimit(before)


def in_two_functions():
    def helper(x, levels):
        return count(x, levels - 1) + 1

    @minidynamo.compile(backend="eager")
    def count(x, levels):
        if levels == 0:
            return x
        minidynamo.graph_break()
        return helper(x, levels)

    return count


def without_breaks():
    @minidynamo.compile(backend="native")
    def count(x, levels):
        return x if levels == 0 else count(x + 1, levels - 1)

    return count


@pytest.mark.parametrize(
    ("make", "levels"), [(recursive, 900), (method, 900), (without_breaks, 900), (in_two_functions, 450)]
)
def test_a_recursion_is_as_deep_as_in_eager(make, levels, little_room):
    count, limit = make(), little_room + 940
    sys.setrecursionlimit(limit)
    for _ in range(2):
        assert count(torch.zeros(2), levels).tolist() == [levels] * 2
        assert sys.getrecursionlimit() == limit
    for _ in range(2):
        with pytest.raises(RecursionError):
            count(torch.zeros(2), 2 * levels)
        assert sys.getrecursionlimit() == limit
    assert count(torch.zeros(2), levels).tolist() == [levels] * 2


def test_a_limit_of_the_program_stays(little_room):
    @minidynamo.compile(backend="eager")
    def count(x, levels):
        if levels == 0:
            sys.setrecursionlimit(4321)
            return x
        minidynamo.graph_break()
        return count(x, levels - 1) + 1

    sys.setrecursionlimit(little_room + 940)
    assert count(torch.zeros(2), 500).tolist() == [500] * 2
    assert sys.getrecursionlimit() == 4321


@pytest.mark.parametrize("make", [recursive, method])
def test_a_level_takes_two_frames(make, little_room):
    count = make()
    for levels in (1, 2, 3):  # the third version serves any number of levels
        assert count(torch.zeros(2), levels).tolist() == [levels] * 2
    compiles = count.stats.compiles
    sys.setrecursionlimit(little_room + FRAMES)
    assert count(torch.zeros(2), FRAMES // 2 - 30).tolist() == [FRAMES // 2 - 30] * 2
    with pytest.raises(RecursionError) as caught:
        count(torch.zeros(2), FRAMES)
    assert type(caught.value) is RecursionError and not hasattr(caught.value, "__notes__")
    assert count(torch.zeros(2), 20).tolist() == [20] * 2
    assert count.stats.compiles == compiles
