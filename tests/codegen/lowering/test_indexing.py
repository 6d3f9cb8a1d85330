"""Reads through indices, concatenation and padding, against eager."""

import pytest
import torch

import minidynamo
from minidynamo.codegen.ir.loops import Extern
from minidynamo.codegen.scheduling.schedule import optimize
from minidynamo.config import config
from tests.codegen.graphs import check, lower

pytestmark = pytest.mark.cpp

F = torch.nn.functional
X = torch.arange(60.0).view(3, 4, 5)
I = torch.tensor([[2, 0], [1, 1]])  # noqa: E741


def test_reading_through_indices():
    check(lambda x, i: (x.index_select(1, i[0]), F.embedding(i, x[0]), x[0].gather(1, i), x.sum(2).gather(0, i)), X, I)
    check(lambda x, i: x[:0].gather(0, i), X, I[0, :0])  # an empty index may have any number of dimensions
    check(lambda x, i: (x[i], x[:, i], x[i, i - 3], x[:, i, i.int()], x[:, i - 1, 1:].sum(0)), X, I)


def test_separated_indices_are_left_to_torch():
    program = lower(lambda x, i: x[i, :, i] + 1, X, I)
    assert any(isinstance(n, Extern) for n in program.nodes)


def test_joining():
    check(lambda x: (torch.cat([x, x + 1, x[:, :1]], 1), torch.stack([x, x * 2], -1), torch.cat([x])), X, exact=True)
    check(lambda x: torch.cat([x, torch.empty(0), (x * 2).to(torch.float64)], 0), X, exact=True)
    many = lower(lambda x: torch.cat([x] * 20), X)
    assert isinstance(many.nodes[0], Extern)


def test_stacking():
    wide = X.to(torch.float64) * 2
    for target in ("cpp", "triton"):
        check(lambda x, y: (torch.stack([x, y]), torch.stack([y, x, x], 1)), X, wide, target=target, exact=True)
        check(lambda x: (torch.stack([x, x], -1), torch.stack([x[0, 0, 0], x[1, 0, 0]])), X, target=target, exact=True)
    assert isinstance(lower(lambda x: torch.stack([x] * 20), X, target="triton").nodes[0], Extern)


def test_a_gpu_stacks_in_the_layout_of_the_reader():
    def gradient_of_unbind(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        return torch.stack([x @ y, y @ x, x @ x]).permute(1, 0, 2).reshape(8, 24) @ y.repeat(3, 1)

    inputs = torch.randn(8, 8), torch.randn(8, 8)
    for target, count in (("cpp", 1), ("triton", 0)):
        nodes = lower(gradient_of_unbind, *inputs, target=target).nodes
        assert sum(isinstance(n, Extern) and n.op is torch.ops.aten.stack.default for n in nodes) == count
        check(gradient_of_unbind, *inputs, target=target)


def test_padding():
    check(lambda x: (F.pad(x, (1, 2)), F.pad(x, (0, -1, 2, 0, -1, 1), value=3.0), F.pad(x + 1, (2, 2)).exp()), X)


def test_triangles_and_scatters():
    aten = torch.ops.aten
    check(lambda x: (x.tril(), x.triu(1), x.tril(-2)), X, exact=True)
    check(
        lambda x: (
            aten.select_scatter(x, x[:, 0] * 2, 1, -1),
            aten.slice_scatter(x, x[:, :2] + 9, 1, 1, 3),
            aten.slice_scatter(x, x[..., :2] + 9, 2, 1, 5, 2),
        ),
        X, exact=True,
    )  # fmt: skip


def of_rows_and_columns(x, rows, columns):
    return (x * 2)[rows, columns] + 1


def of_columns(x, rows, columns):
    return (x * 2)[:, columns] + 1


def gathered(x, rows, columns):
    return torch.gather(x * 2, 1, columns[:, None]) + 1


@pytest.mark.parametrize("function, threads", [(of_rows_and_columns, 1), (of_columns, 4), (gathered, 1)])
def test_errors_name_the_index_as_eager_does(function, threads):
    x, rows = torch.ones(3, 5), torch.zeros(3, dtype=torch.int64)
    with config.patch(threads=threads, min_parallel_elements=1):
        compiled = minidynamo.compile(function, backend="native")
        for wrong in (7, -9):
            columns = torch.tensor([0, wrong, 1])
            with pytest.raises((IndexError, RuntimeError)) as of_eager:
                function(x, rows, columns)
            with pytest.raises(of_eager.type) as error:
                compiled(x, rows, columns)
            assert str(error.value) == str(of_eager.value)


UNREAD = {
    "a constant": lambda x, i: F.embedding(i, torch.ones(3, 4)),
    "a constant, by the end": lambda x, i: torch.zeros(3)[-1 - i],
    "one row seen three times": lambda x, i: x[0].expand(3, 5).index_select(0, i),
    "a part of the result": lambda x, i: x[i][:1] + 1,
    "a sum of a part": lambda x, i: F.embedding(i, x)[:, 0][:1].sum(),
    "a smaller result": lambda x, i: F.pad(x[i, 0], (0, -1)),
    "through constants": lambda x, i: x[torch.zeros(3, dtype=torch.int64)[i]],
    "the size alone": lambda x, i: x[i].new_zeros(2),
    "nothing": lambda x, i: (torch.zeros_like(x[i]), x * 2)[1],
    "where another is taken": lambda x, i: torch.where(i > 2, 0.0, x[i, 0]),
}


@pytest.mark.parametrize("function", [pytest.param(function, id=name) for name, function in UNREAD.items()])
def test_an_index_is_checked_whether_or_not_what_it_chooses_is_read(function):
    x, right, wrong = torch.ones(3, 5), torch.tensor([0, 2]), torch.tensor([0, 5])
    compiled = minidynamo.compile(function, backend="native")
    assert torch.equal(compiled(x, right), function(x, right))
    with pytest.raises(IndexError):
        compiled(x, wrong)


REPEATED = {
    "a copy": lambda x, i: x.contiguous().gather(1, i[:, None]),
    "what is computed": lambda x, i: (x * 2)[:, i],
    "a row": lambda x, i: (x + 1)[0][i],
    "a table": lambda x, i: F.embedding(i, x.t() * 2),
    "other sizes": lambda x, i: (x * 2).reshape(3, 2, 2).index_select(1, i),
    "classes": lambda x, i: F.nll_loss(x.contiguous(), i),
}


@pytest.mark.parametrize("function", [pytest.param(function, id=name) for name, function in REPEATED.items()])
def test_an_index_is_checked_in_a_dimension_that_an_input_repeats(function):
    x, right, wrong = torch.randn(3, 1).expand(3, 4), torch.tensor([0, 1, 1]), torch.tensor([0, 1, 9])
    compiled = minidynamo.compile(function, backend="native")
    assert torch.equal(compiled(x, right), function(x, right))
    with pytest.raises((IndexError, RuntimeError), match=r"\b9\b|out of range in self"):
        compiled(x, wrong)


@pytest.mark.parametrize("shape", [(3, 4), (3, 4, 2)])
@pytest.mark.parametrize("classes", [4, 1, 0])
def test_a_loss_over_classes_has_its_own_words_whatever_its_classes_are(shape, classes):
    x = torch.randn(shape)[:, :classes]
    x = x.expand(shape) if classes == 1 else x
    target = torch.full((3, *shape[2:]), 9)
    with pytest.raises((IndexError, RuntimeError)) as of_eager:
        F.nll_loss(x, target)
    with pytest.raises(of_eager.type) as error:
        minidynamo.compile(lambda x, y: F.nll_loss(x, y), backend="native")(x, target)
    assert str(error.value) == str(of_eager.value)


def test_what_is_chosen_is_computed_where_all_of_it_is_read():
    for read in (lambda t: t + 1, lambda t: t.reshape(-1) + 1, lambda t: t.transpose(0, 2) * 2, lambda t: t.flatten(1)):
        program = lower(lambda x, i: read(F.embedding(i, x)).tanh(), X[0], I)  # noqa: B023 (called at once)
        assert len(optimize(program, join=True).nodes) == 1
