"""Memory that is freed and reallocated: `x.untyped_storage().resize_(n)`, as sharded training does with parameters."""

from __future__ import annotations

import pytest
import torch

import minidynamo
from minidynamo.errors import BackendError, MinidynamoError
from minidynamo.graph.storage_resize import resize_storage
from minidynamo.testing import AotEagerAndRecordGraphs, CompileCounter, CompileCounterWithBackend

BACKENDS = ["eager", "aot_eager", pytest.param("cpp", marks=pytest.mark.cpp)]
COMPILED = BACKENDS[1:]
COPY = torch.ops.aten.copy_.default


def nbytes(tensor):
    return tensor.untyped_storage().nbytes()


def full():
    return torch.arange(1.0, 5)


def empty():
    p = torch.zeros(4)
    p.untyped_storage().resize_(0)
    return p


def seen(tensor):
    """Returns the visible state of a tensor: its memory size, its contents, and its version."""
    return nbytes(tensor), tensor.tolist() if nbytes(tensor) else None, tensor._version


def check(program, make, backend, calls=2):
    """Compares the program with eager, in one graph. Returns the program's results and the first argument."""
    counter = CompileCounterWithBackend(backend)
    compiled = minidynamo.compile(program, backend=counter, fullgraph=True)
    for _ in range(calls):
        (p, q), (p_eager, q_eager) = (make(), full()), (make(), full())
        with torch.random.fork_rng():
            torch.manual_seed(0)
            made = compiled(p, q)
            torch.manual_seed(0)
            expected = program(p_eager, q_eager)
        several = made if isinstance(made, tuple) else (made,)
        others = expected if isinstance(expected, tuple) else (expected,)
        assert [value is p for value in several] == [value is p_eager for value in others]
        for value, other in zip(several, others, strict=True):
            assert seen(value)[:2] == seen(other)[:2] if isinstance(other, torch.Tensor) else value == other
        assert (seen(p), seen(q)) == (seen(p_eager), seen(q_eager))
    assert counter.frame_count == 1
    return made, p


def forward_graph(program, *inputs):
    recorder = AotEagerAndRecordGraphs()
    minidynamo.compile(program, backend=recorder, fullgraph=True)(*inputs)
    (graph,) = recorder.fw_graphs
    return [node.target for node in graph.graph.nodes if node.op == "call_function"]


# The operator


def test_RS_1_the_operator():
    x = torch.ones(4)
    for size, before in ((0, False), (16, True)):
        resize_storage(x, size, before)
        assert nbytes(x) == size and x.shape == (4,)
    with pytest.raises(RuntimeError):
        resize_storage(x, -1, False)
    for size in ("a", 3.5):
        with pytest.raises((RuntimeError, TypeError)):
            resize_storage(x, size, False)


@pytest.mark.parametrize("size", [-1, "a", 3.5])
@pytest.mark.parametrize("backend", BACKENDS)
def test_RS_1_what_is_no_size(backend, size):
    def program(x):
        x.untyped_storage().resize_(size)

    for f in (program, minidynamo.compile(program, backend=backend)):
        with pytest.raises((RuntimeError, TypeError)) as error:
            f(torch.ones(4))
        assert type(error.value) in (RuntimeError, TypeError)


def given_up(p, q):
    y = p + 1
    p.untyped_storage().resize_(0)
    return y


def given_up_through_a_view(p, q):
    v = p.view(2, 2)
    y = v + 1
    v.untyped_storage().resize_(0)
    return y


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("program", [given_up, given_up_through_a_view])
def test_RS_2_given_up(program, backend):
    _, p = check(program, full, backend)
    assert nbytes(p) == 0


@pytest.mark.parametrize("backend", BACKENDS)
def test_RS_2_an_argument_in_the_same_memory(backend):
    def program(x, y):
        z = y + 1
        x.untyped_storage().resize_(0)
        return z

    x = full()
    z = minidynamo.compile(program, backend=backend, fullgraph=True)(x, x.view(2, 2))
    assert torch.equal(z, full().view(2, 2) + 1) and nbytes(x) == 0


@pytest.mark.parametrize("backend", BACKENDS)
def test_RS_2_a_parameter(backend):
    p = torch.nn.Parameter(full())
    y = minidynamo.compile(given_up, backend=backend, fullgraph=True)(p, None)
    y.sum().backward()
    assert nbytes(p) == 0 and torch.equal(y, full() + 1) and torch.equal(p.grad, torch.ones(4))


@pytest.mark.parametrize("dynamic", [None, True])
@pytest.mark.parametrize("needed", [lambda x: x.shape[0] * 4, lambda x: x.nbytes])
@pytest.mark.parametrize("backend", BACKENDS)
def test_RS_3_as_many_bytes_as_the_shape_asks_for(backend, needed, dynamic):
    def program(x, q):
        x.untyped_storage().resize_(needed(x))
        x.copy_(q)
        return x * 2

    counter = CompileCounterWithBackend(backend)
    f = minidynamo.compile(program, backend=counter, fullgraph=True, dynamic=dynamic)
    for n in (4, 6, 7):
        x, q = torch.zeros(n), torch.rand(n)
        x.untyped_storage().resize_(0)
        assert torch.equal(f(x, q), q * 2) and nbytes(x) == n * 4 and torch.equal(x, q)
    assert counter.frame_count == (1 if dynamic else 2)


@pytest.mark.filterwarnings("ignore:TypedStorage is deprecated")
@pytest.mark.parametrize("dynamic", [None, True])
@pytest.mark.parametrize("backend", BACKENDS)
def test_RS_3_typed_storages(backend, dynamic):
    def program(x):
        storage = x.storage()
        facts = storage.nbytes(), storage.size(), storage.element_size(), storage.dtype
        y = x + 1
        x.storage().resize_(0)
        return y, facts

    counter = CompileCounterWithBackend(backend)
    f = minidynamo.compile(program, backend=counter, fullgraph=True, dynamic=dynamic)
    for n in (4, 6, 7):
        x = torch.rand(n)
        expected, made = program(x.clone()), f(x)
        assert torch.equal(made[0], expected[0]) and made[1] == expected[1] and nbytes(x) == 0
    assert counter.frame_count == 2  # the number of bytes varies from its second value on


@pytest.mark.parametrize("backend", BACKENDS)
def test_RS_4_the_size_by_now(backend):
    def program(p, q):
        before = p.untyped_storage().size()
        p.untyped_storage().resize_(0)
        return q + 1, before, p.untyped_storage().size(), p.view(2, 2).untyped_storage().nbytes()

    (_, *sizes), _ = check(program, full, backend)
    assert sizes == [16, 0, 0]


@pytest.mark.parametrize("backend", BACKENDS)
def test_RS_5_the_size_on_arrival_is_guarded(backend):
    def program(x, y):
        if x.untyped_storage().size() == 0:
            return y + 100
        return y + 1

    counter = CompileCounterWithBackend(backend)
    f = minidynamo.compile(program, backend=counter, fullgraph=True)
    for _ in range(2):
        assert [f(make(), torch.zeros(())).item() for make in (empty, full)] == [100, 1]
    assert counter.frame_count == 2


@pytest.mark.parametrize("backend", BACKENDS)
def test_a_graph_for_what_was_empty_is_not_used_for_what_is_full(backend):
    def program(p, q):
        if p.untyped_storage().nbytes() != 0:
            p.untyped_storage().resize_(0)
        p.untyped_storage().resize_(16)
        return p.copy_(q) * 2

    f = minidynamo.compile(program, backend=backend, fullgraph=True)
    for make in (empty, full, empty):
        p = make()
        assert torch.equal(f(p, full()), full() * 2) and torch.equal(p, full())


@pytest.mark.parametrize("backend", BACKENDS)
def test_sizes_of_one_storage_under_two_names(backend):
    def program(x, y, q):
        x.untyped_storage().resize_(0)
        return q + y.untyped_storage().size()

    f = minidynamo.compile(program, backend=backend)
    apart, same = full(), full()
    assert f(apart, full(), torch.zeros(())).item() == 16
    assert f(same, same.view(2, 2), torch.zeros(())).item() == 0
    assert nbytes(apart) == nbytes(same) == 0


@pytest.mark.parametrize("backend", BACKENDS)
def test_a_storage_that_leaves_the_graph(backend):
    def program(x):
        storage = (x + 1).untyped_storage()
        return x * 2, storage, x.untyped_storage()

    x = full()
    y, made, own = minidynamo.compile(program, backend=backend, fullgraph=True)(x)
    assert torch.equal(y, x * 2) and made.nbytes() == 16 and own.data_ptr() == x.data_ptr()


def test_an_address_breaks_the_graph():
    def program(x):
        y = x + 1
        return y * 2, x.untyped_storage().data_ptr()

    counter, x = CompileCounter(), full()
    y, address = minidynamo.compile(program, backend=counter)(x)
    assert torch.equal(y, (x + 1) * 2) and address == x.data_ptr() and counter.frame_count >= 1


# Three cases: freed memory, filled memory, and memory that is allocated and freed again


def full_to_nothing(p, q):
    y = p * 2
    p.untyped_storage().resize_(0)
    return y


def written_and_given_up(p, q):
    p.add_(1)
    y = p * 2
    p.untyped_storage().resize_(0)
    return y


def nothing_to_full(p, q):
    p.untyped_storage().resize_(16)
    p.copy_(q)
    return p * 3


def filled_in_parts(p, q):
    p.untyped_storage().resize_(16)
    p[:2].copy_(q[2:])
    p[2:].fill_(7)
    return p * 3


def drawn(p, q):
    p.untyped_storage().resize_(16)
    p.uniform_()
    return p * 3


def comes_and_goes(p, q):
    p.untyped_storage().resize_(16)
    p.copy_(q)
    y = p * 3
    p.untyped_storage().resize_(0)
    return y


def returned_as_well(p, q):
    return comes_and_goes(p, q), p


def seen_through_an_old_view(p, q):
    v = p.view(2, 2)
    p.untyped_storage().resize_(16)
    p.copy_(q)
    y = v * 3
    p.untyped_storage().resize_(0)
    return y


def two_rounds(p, q):
    return comes_and_goes(p, q).sum() / 3 + comes_and_goes(p, q * 2).sum() / 3


def goes_and_comes(p, q):
    y = p * 1.5
    p.untyped_storage().resize_(0)
    p.untyped_storage().resize_(16)
    p.copy_(q * 10)
    return p * 1.2, y


def memory_of_the_graph(p, q):
    t = q * 2
    t.untyped_storage().resize_(0)
    return q + 1


def copied_from_one_to_the_other(p, q):
    r = q + 1
    p.untyped_storage().resize_(16)
    p.copy_(q)
    r.untyped_storage().resize_(0)
    r.untyped_storage().resize_(16)
    r.copy_(p * 2)
    p.untyped_storage().resize_(0)
    return r * 2


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("program", [full_to_nothing, written_and_given_up])
def test_FR_1_full_to_nothing(program, backend):
    _, p = check(program, full, backend)
    assert nbytes(p) == 0
    assert forward_graph(full_to_nothing, full(), full()) == [torch.ops.aten.mul.Tensor, resize_storage]
    assert COPY not in forward_graph(written_and_given_up, full(), full())


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("program", [nothing_to_full, filled_in_parts, drawn])
def test_FR_2_nothing_to_full(program, backend):
    _, p = check(program, empty, backend)
    assert nbytes(p) == 16
    targets = forward_graph(program, empty(), full())
    assert targets[0] is resize_storage and targets.count(resize_storage) == 1 and COPY in targets


@pytest.mark.parametrize("backend", BACKENDS)
def test_FR_3_comes_and_goes(backend):
    y, p = check(comes_and_goes, empty, backend)
    assert y.tolist() == [3, 6, 9, 12] and nbytes(p) == 0
    assert {resize_storage, COPY}.isdisjoint(forward_graph(comes_and_goes, empty(), full()))


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("program", [returned_as_well, seen_through_an_old_view, two_rounds])
def test_FR_4_comes_and_goes_and_is_looked_at(program, backend):
    _, p = check(program, empty, backend)
    assert nbytes(p) == 0
    assert {resize_storage, COPY}.isdisjoint(forward_graph(program, empty(), full()))


@pytest.mark.parametrize("backend", BACKENDS)
def test_FR_5_goes_and_comes(backend):
    _, p = check(goes_and_comes, full, backend)
    assert p.tolist() == [10, 20, 30, 40]
    assert resize_storage not in forward_graph(goes_and_comes, full(), full())


@pytest.mark.parametrize("size", [64, 8])
@pytest.mark.parametrize("backend", BACKENDS)
def test_FR_6_part_of_the_memory(backend, size):
    def program(p, q):
        y = p * 2
        p.untyped_storage().resize_(size)
        return y

    p = full()
    with pytest.raises(MinidynamoError, match="MD219"):
        minidynamo.compile(program, backend=backend, fullgraph=True)(p, full())
    assert nbytes(p) == 16
    y = minidynamo.compile(program, backend=backend)(p, full())
    assert torch.equal(y, full() * 2) and nbytes(p) == size


def test_FR_6_too_little_from_nothing():
    def program(p, q):
        p.untyped_storage().resize_(8)
        return q + 1

    with pytest.raises(MinidynamoError, match="MD219"):
        minidynamo.compile(program, backend="eager", fullgraph=True)(empty(), full())


@pytest.mark.parametrize("backend", BACKENDS)
def test_FR_6_the_same_size_again(backend):
    def program(p, q):
        p.untyped_storage().resize_(16)
        return p * 2

    check(program, full, backend)


@pytest.mark.parametrize("backend", COMPILED)
def test_FR_7_read_before_it_is_filled(backend):
    def program(p, q):
        p.untyped_storage().resize_(16)
        return p * 3

    p = empty()
    with pytest.raises(BackendError, match="MD415"):
        minidynamo.compile(program, backend=backend)(p, full())
    assert nbytes(p) == 0


@pytest.mark.parametrize("use", [lambda p: p * 3, lambda p: p.add_(1), lambda p: p.fill_(1)])
@pytest.mark.parametrize("backend", COMPILED)
def test_FR_7_used_after_it_was_given_up(backend, use):
    def program(p, q):
        p.untyped_storage().resize_(0)
        return use(p)

    with pytest.raises(BackendError, match="MD415"):
        minidynamo.compile(program, backend=backend)(full(), full())


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("program", [memory_of_the_graph, copied_from_one_to_the_other])
def test_FR_8_memory_of_the_graph(program, backend):
    check(program, empty, backend)


@pytest.mark.filterwarnings("ignore:.*MD402")
@pytest.mark.parametrize("backend", BACKENDS)
def test_FR_8_memory_of_the_graph_that_is_returned(backend):
    def program(p, q):
        t = q * 2
        t.untyped_storage().resize_(0)
        return q + 1, t

    check(program, full, backend)


def refill(p, q):
    with torch.no_grad(), torch.autograd._unsafe_preserve_version_counter(p):
        p.untyped_storage().resize_(p.nbytes)
        p.copy_(q)


def unsharded_linear(x, p, q):
    with torch.no_grad():
        p.untyped_storage().resize_(p.nbytes)
        p.copy_(q)
    y = (x @ p.t()).sin()
    p.untyped_storage().resize_(0)
    return y


def unsharded_and_not_counted(x, p, q):
    p.untyped_storage().resize_(p.nbytes)
    with torch.no_grad(), torch.autograd._unsafe_preserve_version_counter(p):
        p.copy_(q)
    y = (x @ p.t()).sin()
    p.untyped_storage().resize_(0)
    return y


def given_up_for_backward(x, p, q):
    y = (x @ p.t()) @ p
    p.untyped_storage().resize_(0)
    return y


def training_step(f, make, again):
    torch.manual_seed(0)
    x, q = torch.rand(3, 4, requires_grad=True), torch.rand(5, 4)
    p = q.clone().requires_grad_()
    if make is empty:
        p.untyped_storage().resize_(0)
    y = f(x, p, q)
    sizes = [nbytes(p)]
    refill(p, q)
    if again:
        (grad,) = torch.autograd.grad((y * y).sum(), x, create_graph=True)
        (grad * grad).sum().backward()
    else:
        (y * y).sum().backward()
    return [y, x.grad, p.grad], [*sizes, p._version]


@pytest.mark.parametrize("again", [False, True])
@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize(
    ("program", "make"),
    [(unsharded_linear, empty), (unsharded_and_not_counted, empty), (given_up_for_backward, full)],
)
def test_FR_9_backward_reads_what_was_filled_in_again(program, make, backend, again):
    expected, facts = training_step(program, make, again)
    f = minidynamo.compile(program, backend=backend, fullgraph=True)
    for _ in range(2):
        made, others = training_step(f, make, again)
        torch.testing.assert_close(made, expected)
        assert others == facts


@pytest.mark.parametrize("backend", COMPILED)
def test_FR_9_the_input_is_kept_and_not_what_it_held(backend):
    f = minidynamo.compile(unsharded_linear, backend=backend, fullgraph=True)
    training_step(f, empty, again=False)
    kept = {value.name: value.op for value in f.saved()}
    assert kept["p"] == "input" and not any(op.startswith("aten.t") for op in kept.values())


@pytest.mark.parametrize("backend", COMPILED)
def test_backward_does_not_compute_from_other_data_what_forward_had(backend):
    """Values computed from freed memory are not recomputed from the new contents of the memory."""

    def program(x, p):
        y = ((x * p) + 1) @ x
        p.untyped_storage().resize_(0)
        return y

    def step(f):
        torch.manual_seed(0)
        x, p = torch.rand(3, 3, requires_grad=True), torch.rand(3, 3)
        y = f(x, p)
        refill(p, torch.full((3, 3), 0.5))
        y.sum().backward()
        return x.grad

    torch.testing.assert_close(step(minidynamo.compile(program, backend=backend, fullgraph=True)), step(program))


@pytest.mark.filterwarnings("ignore:.*MD402")
@pytest.mark.parametrize("backend", BACKENDS)
def test_a_write_that_autograd_sees(backend):
    def program(x, p):
        p.mul_(x)
        y = p * 2
        p.untyped_storage().resize_(0)
        return y

    p = torch.ones(4)
    y = minidynamo.compile(program, backend=backend, fullgraph=True)(full().requires_grad_(), p)
    assert torch.equal(y, full() * 2) and nbytes(p) == 0
