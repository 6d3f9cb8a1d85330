"""Version counters and refusals of torch for inference tensors outside of inference mode: torch refuses writes to the
tensors and their views, but accepts and counts writes to `.data`."""

from __future__ import annotations

import pytest
import torch

import minidynamo
from minidynamo.testing import CompileCounterWithBackend
from tests.end_to_end.histories import attempt
from tests.end_to_end.programs import rows_of

BACKENDS = ["eager", "aot_eager", pytest.param("cpp", marks=pytest.mark.cpp)]


def doubled(x):
    with torch.inference_mode():
        return x * 2


def asked_again(x):
    y = doubled(x)
    y.data.add_(1)
    return y, y.data


class Programs:
    def alone(x):
        return doubled(x).data

    def written_twice(x):
        y = doubled(x)
        d = y.data
        d.add_(1)
        e = y.data
        d.mul_(2)
        e.sub_(1)
        return e, d, y

    def data_of_data(x):
        d = doubled(x).data
        e = d.data
        e.add_(1)
        return d, e

    def detached_of_a_turned_one(x):
        y = doubled(x)
        z = y.detach()
        w = z.t().detach()
        w.add_(1)
        return y, z, w, z.unbind(0)[1]

    def data_of_a_view(x):
        y = doubled(x)
        y[0].data.add_(1)
        return y

    def views(x):
        y = doubled(x)
        return y[0], y.data[0], y.reshape(-1), y.data.reshape(2, 3), y.expand(2, 2, 3), y.contiguous()

    def resized(x):
        y = doubled(x)
        d = y.data
        d.resize_(3)
        return y, d

    def enlarged(x):
        y = doubled(x)
        d = y.data
        d.resize_(3, 7)
        return y, d.zero_()

    def across_a_break(x):
        y = doubled(x)
        d = y.data
        minidynamo.graph_break()
        d.add_(1)
        return d, y

    def written_inside(x):
        y = doubled(x).data
        with torch.inference_mode():
            y.add_(1)
            z = x.data
            z.add_(1)
            return y, y.data, y[0], z, z[0], x.detach()

    def argument_written_inside(x):
        with torch.inference_mode():
            x.mul_(2)
            return x + 1

    def a_view_is_refused(x):
        y = doubled(x)
        y[0].add_(1)
        return y

    def a_view_of_its_data_is_refused(x):
        y = doubled(x)
        y.data[0].add_(1)
        return y

    def a_refusal_is_handled(x):
        y = doubled(x)
        a, b = y[0], y.data[0]
        try:
            a.mul_(2)
        except RuntimeError:
            return y, a + b
        return y


PROGRAMS = [*rows_of(Programs), asked_again]


def plain():
    return torch.arange(6.0).reshape(2, 3)


def leaf():
    return plain().requires_grad_()


def made_there():
    with torch.inference_mode():
        return plain()


def given_other_data():
    made = made_there()
    made.data = plain()
    return made


def data_of_one():
    return made_there().data


def seen(program, x):
    """Returns the visible state of the results and the argument."""
    results = attempt(program, x)
    if isinstance(results, RuntimeError):
        return str(results).partition("\n")[0], facts(x)
    results = results if isinstance(results, tuple) else (results,)
    memory = [value.untyped_storage().data_ptr() for value in (x, *results)]
    return [*map(facts, (x, *results))], [memory.index(place) for place in memory]


def facts(value):
    counted = attempt(lambda: value._version)
    written = "uncounted" if isinstance(counted, RuntimeError) else counted
    kind = value.is_inference(), value.requires_grad, value.is_leaf, value._is_view(), value.stride()
    return value.detach().tolist(), written, kind


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("make", [plain, leaf, made_there, given_other_data, data_of_one])
@pytest.mark.parametrize("program", PROGRAMS)
def test_same_as_eager(program, make, backend):
    compiled = minidynamo.compile(program, backend=backend)
    for _ in range(2):
        assert seen(compiled, make()) == seen(program, make())


@pytest.mark.parametrize("backend", ["aot_eager", pytest.param("cpp", marks=pytest.mark.cpp)])
def test_the_graph_writes_itself(backend):
    """No error makes the frame run again eagerly."""
    counter = CompileCounterWithBackend(backend)
    compiled = minidynamo.compile(asked_again, backend=counter, fullgraph=True)
    for _ in range(2):
        y, _ = compiled(made_there())
        assert y.tolist() == [[1, 3, 5], [7, 9, 11]]
    assert counter.frame_count == 1
