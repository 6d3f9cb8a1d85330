"""Backward does not notice writes to `y.data` after the graph that returns y, as `y` does not count such writes."""

from __future__ import annotations

import itertools

import pytest
import torch

import minidynamo
from tests.end_to_end.programs import rows_of

BACKENDS = ["eager", "aot_eager", pytest.param("cpp", marks=pytest.mark.cpp)]


def part_of_it(x):
    y = x.exp()
    return y, y.data[1:], y.detach()


class Results:
    def of_a_result(x):
        y = x.exp()
        return y, y.data

    def twice(x):
        y = x.exp()
        return y, y.data, y.data

    def of_an_argument(x):
        return x * 2, x.data

    def first_of_it(x):
        y = x.exp()
        return y, y.data[0]

    def first_of_it_before(x):
        y = x.exp()
        return y.data[:1], y[1:], y

    def seen_twice(x):
        y = x.exp()
        d = y.data
        return y, d, d.view(-1, 1)

    def written(x):
        y = x.exp()
        d = y.data
        d.mul_(2)
        return y, d

    def argument_written(x):
        d = x.data
        d.mul_(2)
        return (d,)

    def written_and_viewed(x):
        d = x.data
        d.mul_(2)
        return d[1:], d[0], x * 2

    def written_and_detached(x):
        d = x.exp().data
        d.mul_(2)
        return d.detach(), d[1:], d

    def parts(x):
        k, v = x.exp().chunk(2)
        return k.data, v.detach(), v.data[:1], k.detach()

    def parts_written(x):
        k, v = x.exp().chunk(2)
        d = k.detach()
        d.add_(1)
        return d, v.detach(), d.data


def counts(program, requires_grad):
    """Returns the version of each tensor, after a write to each in sequence."""
    x = torch.ones(3, requires_grad=requires_grad) * 1
    tensors = [*program(x), x]
    found = [[t._version for t in tensors]]
    for tensor in tensors:
        with torch.no_grad():
            tensor.add_(1)
        found.append([t._version for t in tensors])
    return found


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize(
    ("program", "requires_grad"),
    [
        *itertools.product(rows_of(Results), [False, True]),
        (part_of_it, True),
    ],
)
def test_writes_are_counted_as_in_eager(program, requires_grad, backend):
    compiled = minidynamo.compile(program, backend=backend, fullgraph=True)
    assert counts(compiled, requires_grad) == counts(program, requires_grad)


@pytest.mark.parametrize("backend", BACKENDS)
def test_what_backward_needs_notices_writes(backend):
    def program(x, w):
        d = x.exp().data
        return d, w * d

    compiled = minidynamo.compile(program, backend=backend, fullgraph=True)
    for run in (program, compiled):
        d, z = run(torch.ones(3, requires_grad=True), torch.ones(3, requires_grad=True))
        d.zero_()
        with pytest.raises(RuntimeError, match="modified by an inplace operation"):
            z.sum().backward()


@pytest.mark.parametrize("backend", BACKENDS)
def test_what_backward_needs_of_two_notices_writes(backend):
    def program(x, w):
        y = x.exp()
        d = y.data
        return y, d, w * d

    compiled = minidynamo.compile(program, backend=backend, fullgraph=True)
    for run in (program, compiled):
        _, d, z = run(torch.ones(3, requires_grad=True), torch.ones(3, requires_grad=True))
        d.zero_()
        with pytest.raises(RuntimeError, match="modified by an inplace operation"):
            z.sum().backward()
