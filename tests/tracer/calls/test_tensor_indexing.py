"""Subscripts of tensors by numbers that differ from call to call: one version serves all numbers."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor

import minidynamo

MASK = torch.tensor([True, False, True, True, False, True])
ROWS = torch.tensor([2, 0, 2])

READS: dict[str, Callable[[Tensor, int], Tensor]] = {
    "first": lambda x, i: x[i],
    "last": lambda x, i: x[..., i],
    "middle": lambda x, i: x[:, i],
    "from the end": lambda x, i: x[-i, ..., -i],
    "two": lambda x, i: x[i, i - 1],
    "all": lambda x, i: x[i, i, i],
    "beside a constant": lambda x, i: x[0, i, 1],
    "beside a new dimension": lambda x, i: x[None, i, None],
    "beside slices": lambda x, i: x[1:, i, ::2],
    "beside a slice that varies": lambda x, i: x[:i, i],
    "behind a new dimension and a constant": lambda x, i: x[None, 2, i, None],
    "behind an index": lambda x, i: x[ROWS, i],
    "between indices": lambda x, i: x[ROWS, i, ROWS],
    "between an index and a new dimension": lambda x, i: x[None, ROWS, i, None, 1:],
    "behind a mask": lambda x, i: x[MASK[:, None].expand(6, 6) & (x.sum(2) < 1e9), i].sum(0),
    "a list": lambda x, i: x[[0, 2], i],
    "called": lambda x, i: x.__getitem__((slice(None), i)),
}
WRITES: dict[str, Callable[[Tensor, int], object]] = {
    "number": lambda x, i: x.__setitem__(i, 1.5),
    "row": lambda x, i: x.__setitem__((slice(None), i), x[0].clone()),
    "broadcast": lambda x, i: x.__setitem__((..., i), torch.ones(1, 1, 1, 6)),
    "rows": lambda x, i: x.__setitem__((ROWS, i), 2),
    "part": lambda x, i: x.__setitem__((slice(i), i, slice(1, None)), -1),
}


@pytest.mark.parametrize("name", READS)
def test_reads(name: str) -> None:
    function = READS[name]
    compiled = {backend: minidynamo.compile(function, backend=backend) for backend in ("eager", "aot_eager")}
    for backend, f in compiled.items():
        for i in (2, 3, 5, 4):
            x, same = (torch.arange(216.0).view(6, 6, 6).requires_grad_() for _ in range(2))
            result, expected = f(x, i), function(same, i)
            assert torch.equal(result, expected) and result.stride() == expected.stride()
            assert (result._base is None) == (expected._base is None)
            gradients = [torch.autograd.grad(y.square().sum(), leaf)[0] for y, leaf in ((result, x), (expected, same))]
            assert torch.equal(*gradients)
        if name not in ("behind a mask", "a list"):
            assert (backend, f.stats.graphs, f.stats.graph_breaks) == (backend, 2, 0)


@pytest.mark.parametrize("name", WRITES)
def test_writes(name: str) -> None:
    write = WRITES[name]

    def function(x: Tensor, i: int) -> Tensor:
        y = x * 2
        write(y, i)
        write(x, i)
        return y.sum(0)

    for backend in ("eager", "aot_eager"):
        compiled = minidynamo.compile(function, backend=backend, fullgraph=True)
        for i in (2, 3, 5, 4):
            x, same = (torch.arange(216.0).view(6, 6, 6) for _ in range(2))
            assert torch.equal(compiled(x, i), function(same, i)) and torch.equal(x, same)
            assert x._version == same._version
        assert compiled.stats.graphs == 2


def test_a_place_is_a_view() -> None:
    place = minidynamo.compile(lambda x, i: x[:, i], backend="aot_eager")
    for i in (1, 2, 3, 2):
        x = torch.zeros(4, 4)
        place(x, i).add_(1)
        assert x[:, i].eq(1).all() and x.sum() == 4


@pytest.mark.parametrize("bad", [6, -7])
def test_a_place_that_is_not_there_raises_what_eager_raises(bad: int) -> None:
    def function(x: Tensor, i: int) -> Tensor:
        return x[:, i] + x[0, i]

    compiled = minidynamo.compile(function, backend="aot_eager")
    x = torch.randn(6, 6)
    for i in (2, 3, 4, 0, -1):
        assert torch.equal(compiled(x, i), function(x, i))
    with pytest.raises(IndexError) as expected:
        function(x, bad)
    with pytest.raises(IndexError) as raised:
        compiled(x, bad)
    assert str(raised.value) == str(expected.value)


@pytest.mark.parametrize("backend", ["eager", "aot_eager"])
@pytest.mark.parametrize("value", [2.7, True, 3])
def test_one_bool_says_whether_a_tensor_is_filled(backend: str, value: object) -> None:
    def function(x: Tensor, w: Tensor, fill: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        mean, whole, row = x.mean(), (x * 4).long(), x * w
        mean[fill] = value
        whole[~fill] = value
        row[1][fill & (mean < 9)] = torch.tensor(7.0)
        return mean, whole, row * w

    compiled = minidynamo.compile(function, backend=backend, fullgraph=True)
    w, same = (torch.full((2, 3), 0.5, requires_grad=True) for _ in range(2))
    for fill in (True, False):
        x = torch.randn(2, 3)
        results, expected = compiled(x, w, torch.tensor(fill)), function(x, same, torch.tensor(fill))
        assert all(torch.equal(result, one) for result, one in zip(results, expected, strict=True))
        results[2].sum().backward()
        expected[2].sum().backward()
        assert torch.equal(w.grad, same.grad)


def enqueue(queue: Tensor, pointer: Tensor, keys: Tensor) -> Tensor:
    """The queue of momentum contrast: a pointer in a buffer selects the columns that are replaced."""
    first = int(pointer)
    queue[:, first : first + keys.shape[0]] = keys.T
    pointer[0] = (first + keys.shape[0]) % queue.shape[1]
    return queue * 2


def after_largest(queue: Tensor, scores: Tensor, keys: Tensor) -> Tensor:
    first = int(scores.sin().argmax())
    queue[:, first : first + 2] = keys
    return queue * 2


def broadcast_after_largest(queue: Tensor, scores: Tensor, keys: Tensor) -> Tensor:
    last = int(scores.sin().argmax()) + 1
    queue[:, :last] = keys[:, :1]
    return queue * 2


@pytest.mark.parametrize("backend", ["eager", "aot_eager"])
@pytest.mark.parametrize(("function", "breaks"), [(enqueue, 0), (after_largest, 1), (broadcast_after_largest, 1)])
def test_slices_that_tensors_select_are_assigned(function: Callable[..., Tensor], breaks: int, backend: str) -> None:
    compiled = minidynamo.compile(function, backend=backend)
    queues = [torch.zeros(2, 6), torch.zeros(2, 6)]
    for step in range(5):
        chooser = torch.tensor([2 * step % 6]) if function is enqueue else torch.eye(6)[step % 4]
        keys, choosers = torch.randn(2, 2), (chooser, chooser.clone())
        results = [f(queue, each, keys) for f, queue, each in zip((compiled, function), queues, choosers)]
        assert torch.equal(*results) and torch.equal(*queues) and torch.equal(*choosers)
    assert compiled.stats.graph_breaks == breaks
