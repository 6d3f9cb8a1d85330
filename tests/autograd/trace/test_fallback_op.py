"""Tests of minidynamo/autograd/trace/fallback_op.py: derivatives that read data are eager's, to any order."""

import pytest
import torch

import minidynamo
from minidynamo.errors import Unsupported
from tests.autograd.programs import compile_program, intermediate_inputs

INDEX = torch.tensor([0, 1, 0, 2])


def derivatives(function, values):
    """Returns the first three derivatives of a function of inner tensors."""
    leaves = [value.clone().requires_grad_() for value in values]
    made, found = [function(*(leaf * 1 for leaf in leaves))], []
    for _ in range(3):
        total = sum(value.square().sum() for value in made)
        made = torch.autograd.grad(total, leaves, create_graph=True)
        found += made
    return found


def in_place(x, y):
    z = x * 1
    z.scatter_reduce_(0, INDEX, y, "prod")
    return z.sin()


def assigned(x, y):
    z = x * 1
    z[x > 0, ...] = y[1:]
    return z


def assigned_through_views(x, y):
    z = torch.stack([x, x * 2])
    z[0][x > 0] = y[1:]
    rest = z[:, 1:]
    rest[:, x[1:] > 0] = y[:2].exp()
    return z * z


TWO = [torch.tensor([0.5, -1.0, 2.0, 0.3]), torch.tensor([1.5, 0.0, 0.7, -2.0])]
PROGRAMS = {
    "scatter_reduce": (lambda x, y: x.scatter_reduce(0, INDEX, y, "prod"), TWO),
    "in place": (in_place, TWO),
    "assigned by a mask": (assigned, TWO),
    "assigned through views": (assigned_through_views, TWO),
    "assigned before": (lambda x, y: assigned(x, y).sin() * y, TWO),
    "index_reduce": (lambda x, y: x.index_reduce(0, INDEX, y, "prod") * x, TWO),
    "several zeros": (lambda x: x.relu().prod(0) + x.prod(), [torch.tensor([[0.5, -1.0, 2.0], [-2.0, -1.0, 3.0]])]),
    "equal singular values": (torch.linalg.det, [torch.eye(3, dtype=torch.float64) * 2]),
    "determinant of what is kept": (lambda x: (x.cumsum(0) + 1).det().exp(), [torch.eye(2, dtype=torch.float64) / 2]),
    "product of one": (lambda x: x.prod(0).exp() * x.sum().prod(), [torch.tensor([[3.0, 0.0]])]),
    "trace": (lambda x: torch.trace(x) ** 2 + x.trace().exp(), [torch.eye(3)]),
    "trace in place": (lambda x: (x * 2).add_(1).trace().exp(), [torch.eye(3)]),
}
if torch.autograd.functional.hessian(lambda x: x.det().exp(), torch.zeros(1, 1)).item() == 1.0:  # 0 in torch 2.11
    PROGRAMS["determinants of one"] = (lambda x: x.det().exp(), [torch.tensor([[[3.0]], [[0.0]]])])


@pytest.mark.filterwarnings("ignore:scatter_reduce:UserWarning", "ignore:index_reduce:UserWarning")
@pytest.mark.parametrize("name", PROGRAMS)
def test_derivatives_that_decide_on_data(name):
    program, values = PROGRAMS[name]
    compiled = minidynamo.compile(lambda *args: program(*args), backend="aot_eager", fullgraph=True)
    torch.testing.assert_close(derivatives(compiled, values), derivatives(program, values))
    assert compiled.stats.graphs == 1


def test_a_write_is_counted_once():
    """A masked write; its gradient has one element for each true element of the mask."""

    def program(x, values):
        x.mul_(2)
        x.index_put_((x > -5,), values)
        return x.sin()

    counts = []
    for function in (program, minidynamo.compile(program, backend="aot_eager", fullgraph=True)):
        x = torch.ones(3)
        function(x, torch.ones(3, requires_grad=True) * 1).sum().backward()
        counts.append(x._version)
    assert counts == [2, 2]


@pytest.mark.parametrize("name", ["eig", "eigh", "svd"])
def test_gradients_that_have_no_answer_are_refused(name):
    """Eigenvectors are determined up to a phase: a function that depends on the phase has no gradient."""
    decompose = getattr(torch.linalg, name)
    values = torch.polar(torch.arange(1.0, 10).cos(), torch.arange(9.0) ** 2).to(torch.complex128).reshape(3, 3)
    values = values + values.mH if name == "eigh" else values

    def asks(x):
        vectors = decompose(x)[1 if name != "svd" else 0]
        return vectors.real.sum() + vectors.imag.sum()

    def asks_not(x):
        return decompose(x)[1 if name != "svd" else 0].abs().sum()

    compiled = minidynamo.compile(asks, backend="aot_eager", fullgraph=True)
    for function in (asks, compiled):
        with pytest.raises(RuntimeError, match="specified up to"):
            function(values.clone().requires_grad_()).backward()
    compiled = minidynamo.compile(asks_not, backend="aot_eager", fullgraph=True)
    found = []
    for function in (asks_not, compiled):
        x = values.clone().requires_grad_()
        function(x).backward()
        found.append(x.grad)
    torch.testing.assert_close(*found)


def test_eager_refuses_and_so_do_we():
    """Two zeros in one product: torch has no second derivative."""

    def program(x, y):
        return x.scatter_reduce(0, INDEX, y, "prod")

    compiled = minidynamo.compile(program, backend="aot_eager")
    for call in (program, compiled):
        x, y = (torch.zeros(4, requires_grad=True) for _ in range(2))
        first = torch.autograd.grad(call(x * 1, y * 1).sum(), (x, y), create_graph=True)
        with pytest.raises(RuntimeError, match="Double backward is unsupported"):
            torch.autograd.grad(sum(g.square().sum() for g in first), y)


def test_data_that_derivatives_do_not_read_are_not_kept():
    make = intermediate_inputs((3, 3))
    compiled = minidynamo.compile(lambda x: x.trace().exp(), backend="aot_eager")
    (x,), (leaf,) = make()
    out = compiled(x)
    assert [value.shape for value in compiled.saved()] == [()]
    with torch.no_grad():
        x.zero_()  # eager saves only its sizes
    (first,) = torch.autograd.grad(out, leaf, create_graph=True)
    torch.testing.assert_close(torch.autograd.grad(first.sum(), leaf)[0], torch.eye(3) * out.detach() * 3 * 1.5**2)


def test_what_draws_random_numbers_is_not_run_again():
    """The whole program is a single operation of the graph."""

    def program(x, y, index):
        return (torch.nn.functional.dropout(x, 0.5).scatter_reduce(0, index, y, "prod"),)

    args, leaves = intermediate_inputs((4,), (4,))()
    compiled = compile_program(program, [*args, INDEX])
    tangent = torch.ones(4, requires_grad=True)
    first = torch.autograd.grad(compiled([*args, INDEX])[0], leaves, tangent, create_graph=True)
    with pytest.raises(Unsupported, match="draws random numbers"):
        first[0].sum().backward()


@pytest.mark.parametrize("dynamic", [None, True])
def test_the_first_derivative_is_one_call_in_a_graph(dynamic):
    """For `index_fill` with a tensor as the value, torch reads the positions."""

    def program(x, value, positions):
        return (x * 2).index_fill(0, positions, value * 1).sin()

    compiled = minidynamo.compile(program, backend="aot_eager", fullgraph=True, dynamic=dynamic)
    for size in (4, 5):
        found = []
        for call in (program, compiled):
            x, value = torch.arange(4.0 * size).reshape(size, 4).requires_grad_(), torch.ones((), requires_grad=True)
            first = torch.autograd.grad(call(x, value, INDEX[1:]).sum(), (x, value), create_graph=True)
            found.append([*first, *torch.autograd.grad(sum(g.square().sum() for g in first), (x, value))])
        assert all(map(torch.equal, *found))
    assert "gradients_of_index_fill(" in compiled.code()
    assert all(value.shape != (size, 4) for value in compiled.saved() if value.op == "aten.mul.Tensor")


@pytest.mark.parametrize("backend", ["aot_eager", pytest.param("native", marks=pytest.mark.cpp)])
@pytest.mark.filterwarnings("error")
def test_an_assignment_by_a_mask_is_in_a_graph_for_all_sizes(backend):
    def program(embeddings, mask, features):
        embeddings = embeddings * 1
        embeddings[mask] = features * 2
        return embeddings.sin()

    compiled = minidynamo.compile(program, backend=backend, fullgraph=True)
    for size in (3, 4, 5, 6):
        leaves = [torch.randn(2, size, 6, requires_grad=True), torch.randn(2, 6, requires_grad=True)]
        mask = torch.zeros(2, size, dtype=torch.bool)
        mask[0, 1], mask[1, size - 2] = True, True
        results = [f(leaves[0], mask, leaves[1]) for f in (compiled, program)]
        torch.testing.assert_close(*results)
        torch.testing.assert_close(*[torch.autograd.grad(result.exp().sum(), leaves) for result in results])
    assert compiled.stats.recompiles == 1
    with pytest.raises((RuntimeError, IndexError), match="shape mismatch"):
        compiled(leaves[0], mask, torch.randn(3, 6, requires_grad=True))
