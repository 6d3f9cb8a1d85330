"""First calls near the recursion limit: the compiler's own calls need more of the stack than is left."""

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
