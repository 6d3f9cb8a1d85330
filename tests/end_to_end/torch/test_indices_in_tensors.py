"""Subscripts by tensors of one integer: views whose position depends on data; read, written, returned."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import pytest
import torch

import minidynamo
from minidynamo.core.events import MinidynamoNotice
from minidynamo.testing import assert_same_as_eager
from tests.end_to_end.programs import rows_of

Program = Callable[..., Any]
READS: dict[str, Program] = {
    "rows": lambda x, i, j: x[i] * 2 + x[j],
    "columns": lambda x, i, j: (x[:, i].exp(), x[..., j], x[i, 1:], x[None, j, :, None], x[i, j, -1]),
    "numbers from the end": lambda x, i, j: (x[-i - 1] * 2, x[j - 2] * 2),
    "items of a tensor": lambda x, i, j: x[torch.stack([j, i, j])[i]] + 1,
    "beside rows": lambda x, i, j: (x[i, torch.tensor([1, 0])], x[torch.tensor([1, 0]), j]),
    "views": lambda x, i, j: (x[i], x[i][j], x[i].t(), x[j].view(-1)),
    "views of what is computed": lambda x, i, j: (y := x * 2, y[i], y[:, j], y[i].unsqueeze(0)),
    "windows": lambda x, i, j: (x[i].as_strided((2, 2), (1, 2)), x[j].as_strided((3,), (1,), 1)),
    "products": lambda x, i, j: x[i] @ x[j].t(),
}


class Writes:
    def elements_of_an_input(x, i, j):
        old = x[i] * 2
        x.add_(1)
        return old, x[i]

    def an_input_from_its_own_part(x, i, j):
        x.copy_(x + x[i])
        return x * 1

    def parts_of_an_input(x, i, j):
        x[i] += 1
        x[:, j] *= 2
        x[i, j] = 7
        return x * 3

    def one_part_from_another(x, i, j):
        x[i] = x[j] * 2
        x[j].copy_(x[i] + 1)
        return x.sum()

    def views_that_may_be_one(x, i, j):
        a, b = x[i], x[j]
        a.add_(1)
        b.mul_(3)
        a.sub_(2)
        return a, b * 1, x * 1

    def parts_of_what_is_computed(x, i, j):
        h = x * 2
        h[i] = h[j] * 3 + 1
        h[j, i] = 5
        view = h[i]
        view += 1
        return h, view, h[j]

    def an_index_that_changes(x, i, j):
        i = i * 1
        y = x[i]
        i.fill_(0)
        return y + 10, x[i] * 2, y

    def a_part_of_a_part_that_is_copied(x, i, j):
        h = torch.stack([x, x + 1])
        part = h[j]
        part[i] = 5
        x.copy_(part)
        return x + 1

    def in_a_loop(x, i, j):
        x = x.clone()
        for k in range(3):
            x = x + x[i] * k
            x[i] = x[i] * 2 + k
            i = (i + 1) % 2
        return x

    def without_gradients(x, i, j):
        with torch.no_grad():
            weights = x[i] * 2
        return x[j] * weights


WRITES: Sequence[Program] = rows_of(Writes)
PROGRAMS = {**READS, **{program.__name__: program for program in WRITES}}
PLACES = [(1, 0), (0, 1), (1, 1), (-1, 1), (9, 0), (0, -7)]
IN_KERNELS = ("rows", "views of what is computed", "an_input_from_its_own_part", "parts_of_an_input", "in_a_loop")


def outcome(program: Program, requires_grad: bool, i: int, j: int) -> list[Any]:
    """Returns the result of a program, its memory, and its gradients; then, the effects of writes to its views."""
    leaf = (torch.arange(24.0).reshape(2, 3, 4) / 7).requires_grad_(requires_grad)
    x = leaf * 1
    try:
        made = program(x, torch.tensor(i), torch.tensor(j))
    except IndexError as error:
        return [str(error)]
    results = made if isinstance(made, tuple) else (made,)
    found: list[Any] = [[result.tolist() for result in results], x.tolist()]
    memory = [tensor.untyped_storage().data_ptr() for tensor in (*results, x)]
    found.append([(t._is_view(), t.storage_offset(), t.stride(), t.requires_grad) for t in results])
    found.append([memory.index(each) for each in memory])
    if requires_grad:
        loss = sum(result.square().sum() for result in results if result.requires_grad)
        found.append(torch.autograd.grad(loss, leaf)[0].tolist())
    with torch.no_grad():
        for result in results:
            result.add_(1)
    return [*found, x.tolist()]


def same(one: Any, other: Any) -> bool:
    if isinstance(one, (list, tuple)):
        return len(one) == len(other) and all(map(same, one, other))
    return one == (pytest.approx(other, rel=1e-4, abs=1e-4) if isinstance(one, float) else other)


@pytest.mark.parametrize(
    ("backend", "name"),
    [*((backend, name) for backend in ("eager", "aot_eager") for name in PROGRAMS)]
    + [pytest.param("native", name, marks=pytest.mark.cpp) for name in IN_KERNELS],
)
def test_same_as_eager_for_all_places(backend, name):
    program = PROGRAMS[name]
    compiled = minidynamo.compile(program, backend=backend)
    for requires_grad in (False, True):
        for i, j in PLACES:
            assert same(outcome(compiled, requires_grad, i, j), outcome(program, requires_grad, i, j)), (i, j)
    assert (compiled.stats.graphs, compiled.stats.graph_breaks) == (2, 0)  # with gradients, and without


@pytest.mark.parametrize("backend", ["eager", "aot_eager", pytest.param("native", marks=pytest.mark.cpp)])
def test_one_version_for_all_sizes(backend):
    def program(x, i):
        x = x * 1
        x[:, i] = x[i] * 2
        return x[i], x[i] + x[-1]

    inputs = [
        lambda n=n, i=i: (torch.arange(float(n * n)).view(n, n), torch.tensor(i)) for n in (2, 3, 5) for i in (0, -1, 1)
    ]
    assert_same_as_eager(program, *inputs, backend=backend, breaks=0)


@pytest.mark.parametrize("dynamic", [False, True])
def test_gradients_of_gradients(dynamic):
    program = lambda x, i: (x[i] ** 3).sum() + (x[i] * x).pow(2).sum()
    compiled = minidynamo.compile(program, backend="aot_eager", dynamic=dynamic)
    for i in (0, 1, -1):
        found = []
        for function in (program, compiled):
            x = torch.arange(6.0).view(2, 3).requires_grad_()
            (first,) = torch.autograd.grad(function(x, torch.tensor(i)), x, create_graph=True)
            (second,) = torch.autograd.grad(first.square().sum(), x, create_graph=True)
            found.append(torch.stack([first, second, *torch.autograd.grad(second.sum(), x)]))
        torch.testing.assert_close(*found)


@pytest.mark.parametrize("backend", ["eager", "aot_eager", pytest.param("native", marks=pytest.mark.cpp)])
def test_a_place_out_of_range_is_an_error_that_the_program_can_catch(backend):
    def unused(x, i):
        x[i]
        return x + 1

    def caught(x, i, log):
        log.append("before")
        try:
            y = x[i]
        except IndexError:
            return x - 1
        log.append("behind")
        return y * 2

    compiled_unused, compiled = (minidynamo.compile(f, backend=backend) for f in (unused, caught))
    for size, i in ((3, 1), (3, 3), (3, -4), (1, 0), (1, 1), (1, -2), (0, 0)):
        x = torch.ones(size, 2)
        logs: list[list[str]] = [[], []]
        made = compiled(x, torch.tensor(i), logs[0])
        assert torch.equal(made, caught(x, torch.tensor(i), logs[1])) and logs[0] == logs[1]
        if -size <= i < size:
            assert torch.equal(compiled_unused(x, torch.tensor(i)), x + 1)
        else:
            with pytest.raises(IndexError, match=f"index {i} is out of bounds for dimension 0 with size {size}"):
                compiled_unused(x, torch.tensor(i))


@pytest.mark.parametrize("mask", [torch.tensor(True), torch.tensor(False), torch.tensor(1, dtype=torch.uint8)])
def test_masks_are_no_places(mask):
    program = lambda x, mask: x[mask] + 1
    assert_same_as_eager(program, lambda: (torch.ones(2, 3), mask), backend="aot_eager", breaks=1)


def test_positions_of_a_schedule():
    """A schedule as in diffusion models: a number of a table, for each step."""
    table = torch.linspace(1, 0.01, 50)

    def step(x, noise, t):
        now, before = table[t], torch.where(t > 0, table[t - 1], torch.ones(()))
        clean = (x - (1 - now).sqrt() * noise) / now.sqrt()
        return before.sqrt() * clean + (1 - before).sqrt() * noise

    inputs = [lambda t=t: (torch.randn(4), torch.randn(4), torch.tensor(t)) for t in (49, 20, 0)]
    assert_same_as_eager(step, *inputs, backend="aot_eager", graphs=1, breaks=0)


def test_the_code_generator_of_torch_takes_none():
    program = lambda x, i: x[i] * 2
    compiled = minidynamo.compile(program, backend="inductor")
    with pytest.warns(MinidynamoNotice, match="operation by operation"):
        assert torch.equal(compiled(torch.ones(2, 2), torch.tensor(1)), torch.full((2,), 2.0))
