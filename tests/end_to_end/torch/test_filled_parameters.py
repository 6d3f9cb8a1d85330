"""`torch.ops.minidynamo.copy_`: a copy that autograd does not see fills a parameter, and a parameter filled and freed
within a graph takes no memory."""

from __future__ import annotations

import warnings

import pytest
import torch

import minidynamo
from minidynamo.core import events
from minidynamo.core.events import MinidynamoNotice
from minidynamo.errors import Unsupported
from minidynamo.graph.storage_resize import copy_unseen, resize_storage
from minidynamo.testing import AotEagerAndRecordGraphs, EagerAndRecordGraphs

BACKENDS = ["eager", "aot_eager", pytest.param("cpp", marks=pytest.mark.cpp)]
COPY = torch.ops.aten.copy_.default
fill = torch.ops.minidynamo.copy_


def nbytes(tensor):
    return tensor.untyped_storage().nbytes()


def full(factor=1.0):
    return torch.arange(1.0, 5) * factor


def empty():
    p = torch.zeros(4)
    p.untyped_storage().resize_(0)
    return p


def compiled(program, backend):
    return minidynamo.compile(program, backend=backend, fullgraph=True)


def forward_graph(program, *inputs):
    recorder = AotEagerAndRecordGraphs()
    compiled(program, recorder)(*inputs)
    (graph,) = recorder.fw_graphs
    return [node.target for node in graph.graph.nodes if node.op == "call_function"]


def test_FS_1_a_copy_and_no_other_memory():
    p = torch.ones(4)
    alias = p.view(2, 2)
    fill(p, torch.full((4,), 3.0))
    assert torch.equal(alias, torch.full((2, 2), 3.0)) and p._version == 0


@pytest.mark.parametrize("backend", BACKENDS)
def test_FS_1_in_a_graph(backend):
    def program(p, q):
        fill(p, q)
        return p + 1

    p, q = torch.ones(4), torch.full((4,), 3.0)
    alias = p.view(2, 2)
    y = compiled(program, backend)(p, q)
    assert torch.equal(alias, torch.full((2, 2), 3.0)) and torch.equal(y, q + 1) and p._version == 0


@pytest.mark.parametrize("write", [fill, torch.Tensor.copy_])
@pytest.mark.parametrize("backend", BACKENDS)
def test_FS_2_nothing_is_shared_across_a_write(backend, write):
    def program(x):
        z0, z1 = x.sin(), x.sin()
        write(x, x + 1)
        z2, z3 = x.sin(), x.sin()
        return z0, z1, z2, z3

    x = full()
    made = compiled(program, backend)(x)
    torch.testing.assert_close(made, (full().sin(), full().sin(), (full() + 1).sin(), (full() + 1).sin()))
    assert torch.equal(x, full() + 1)


def once(p, q):
    p.untyped_storage().resize_(16)
    fill(p, q)
    y = p * 3
    p.untyped_storage().resize_(0)
    return y


def twice(p, q, r):
    return once(p, q), once(p, r)


@pytest.mark.parametrize("backend", BACKENDS)
def test_FS_3_memory_that_comes_and_goes(backend):
    p, f = empty(), compiled(twice, backend)
    for _ in range(2):
        made = f(p, full(), full(10))
        torch.testing.assert_close(made, (full(3), full(30)))
        assert nbytes(p) == 0 and p._version == 0


def test_FS_3_what_was_gathered_is_read_itself():
    assert forward_graph(once, empty(), full()) == [torch.ops.aten.mul.Tensor]
    assert forward_graph(twice, empty(), full(), full(10)) == [torch.ops.aten.mul.Tensor] * 2


@pytest.mark.parametrize("backend", BACKENDS)
def test_FS_3_what_is_written_meanwhile_is_read_as_it_was(backend):
    def program(p, q):
        p.untyped_storage().resize_(16)
        fill(p, q)
        q.add_(1)
        y = p * 3
        p.untyped_storage().resize_(0)
        return y

    q = full()
    assert torch.equal(compiled(program, backend)(empty(), q), full(3)) and torch.equal(q, full() + 1)


def half(p, q):
    p.untyped_storage().resize_(16)
    fill(p, q)
    return p * 3


@pytest.mark.parametrize("backend", BACKENDS)
def test_FS_4_memory_that_stays(backend):
    p = empty()
    assert torch.equal(compiled(half, backend)(p, full()), full(3)) and torch.equal(p, full())
    targets = forward_graph(half, empty(), full())
    assert targets.count(resize_storage) == 1 and targets.count(COPY) == 1


@pytest.mark.parametrize("program", [half, lambda p, q: half(p, q) + freed(p)])
def test_FS_4_warns_of_memory_that_stays(program, monkeypatch):
    monkeypatch.setattr(events, "_noticed", set())
    with warnings.catch_warnings(record=True) as seen:
        warnings.simplefilter("always", MinidynamoNotice)
        compiled(program, "aot_eager")(empty(), full())
    assert any("MD416" in str(one.message) for one in seen) is (program is half)


def freed(p):
    p.untyped_storage().resize_(0)
    return 0


@pytest.mark.parametrize("backend", BACKENDS)
def test_FS_4_written_otherwise_as_well(backend):
    def program(p, q):
        p.untyped_storage().resize_(16)
        fill(p, q)
        p.add_(1)
        y = p * 3
        p.untyped_storage().resize_(0)
        return y

    p = empty()
    assert torch.equal(compiled(program, backend)(p, full()), full(3) + 3) and nbytes(p) == 0


@pytest.mark.parametrize("backend", BACKENDS)
def test_FS_5_what_cannot_be_filled(backend):
    def intermediate(x):
        y = x * 2
        fill(y, x)
        return y

    with pytest.raises(Unsupported, match="MD212"):
        compiled(intermediate, backend)(full())
    assert torch.equal(minidynamo.compile(intermediate, backend=backend)(full()), full())

    def shape(x, y):
        fill(x, y)

    with pytest.raises(RuntimeError):
        compiled(shape, backend)(full(), torch.ones(3))


@pytest.mark.parametrize("backend", BACKENDS)
def test_FS_5_data_are_expanded_and_converted(backend):
    def program(x, y):
        fill(x, y)
        return x + 0

    x = full()
    y = compiled(program, backend)(x, torch.tensor([2.5], dtype=torch.float64))
    assert torch.equal(x, torch.full((4,), 2.5)) and torch.equal(x, y)


@pytest.mark.parametrize("backend", BACKENDS)
def test_FS_6_backward_reads_what_was_filled_in_again(backend):
    def step(f):
        p, x = empty().requires_grad_(), full().requires_grad_()

        def program(p, q, x):
            p.untyped_storage().resize_(16)
            fill(p, q)
            y = p * x
            p.untyped_storage().resize_(0)
            return y

        y = f(program)(p, full(3), x)
        size = nbytes(p)
        p.untyped_storage().resize_(16)
        fill(p, full(3))
        y.sum().backward()
        return y, size, x.grad, p.grad, p._version

    made, expected = step(lambda program: compiled(program, backend)), step(lambda program: program)
    torch.testing.assert_close(made, expected)


@pytest.mark.parametrize("backend", BACKENDS)
def test_FS_7_a_view_is_up_to_date_when_it_is_copied(backend):
    def program(x, buffer):
        v = buffer.view(-1)
        torch.add(x, 1, out=v)
        fill(x, buffer.view(-1))
        return x * 1

    x = full()
    y = compiled(program, backend)(x, torch.zeros(4))
    assert torch.equal(x, full() + 1) and torch.equal(y, x)


def test_the_operator_is_in_the_captured_graph():
    recorder = EagerAndRecordGraphs()
    compiled(half, recorder)(empty(), full())
    targets = [node.target for graph in recorder.graphs for node in graph.graph.nodes if node.op == "call_function"]
    assert targets[:2] == [resize_storage, copy_unseen]
