"""Tests of minidynamo/autograd/graph/mutation.py: written arguments, functional forms and in-place variants of
operators."""

from __future__ import annotations

import pytest
import torch

import minidynamo
from minidynamo.autograd.graph.mutation import (
    UNDECLARED,
    define_functional,
    in_place,
    inplace_variant_of,
    is_metadata_mutation,
    is_undeclared_write,
    is_view,
    mutation_of,
    named_arguments,
)
from minidynamo.errors import BackendError
from tests.autograd.programs import assert_same, graphs, inputs
from tests.codegen.graphs import trace

aten = torch.ops.aten

TWINS = {
    "add_.Tensor": "add.Tensor",
    "mul_.Scalar": "mul.Scalar",
    "normal_": "normal_functional",
    "conj_physical_": "_conj_physical",
    "bernoulli_.float": "bernoulli.p",
    "uniform_": "uniform",
    "masked_fill_.Scalar": "masked_fill.Scalar",
    "index_put_": "index_put",
    "scatter_.src": "scatter.src",
    "add.out": "add.Tensor",
    "max.dim_max": "max.dim",
    "_native_batch_norm_legit": "_native_batch_norm_legit_functional",
    "_foreach_add_.Scalar": "_foreach_add.Scalar",
    "transpose_": "transpose.int",
    "rrelu_with_noise": "rrelu_with_noise_functional",
}


def find(name):
    packet, _, overload = name.partition(".")
    return getattr(getattr(aten, packet), overload or "default")


@pytest.mark.parametrize("name", TWINS)
def test_each_writing_operator_has_a_functional_twin(name):
    mutation = mutation_of(find(name))
    assert mutation is not None and mutation.functional is find(TWINS[name])


def test_what_is_written_and_what_is_returned():
    norm = mutation_of(aten._native_batch_norm_legit.default)
    assert (norm.arguments, norm.returns) == (("running_mean", "running_var"), (None, None, None))
    assert mutation_of(aten.add_.Tensor).returns == ("self",)
    assert mutation_of(aten.max.dim_max).dropped == ("max", "max_values")
    assert mutation_of(aten.add.Tensor) is None


def test_views():
    assert is_view(aten.view.default) and is_view(aten.split.Tensor) and is_view(aten.detach.default)
    assert not is_view(aten.add.Tensor) and not is_view(aten.add_.Tensor) and not is_view(aten._unsafe_view.default)


def test_metadata():
    assert is_metadata_mutation(aten.unsqueeze_.default) and is_metadata_mutation(aten.set_.source_Tensor)
    assert not is_metadata_mutation(aten.add_.Tensor)


def test_batch_norm_writes_in_training_only():
    (op,) = UNDECLARED
    stats = (None, "mean", "var")
    assert is_undeclared_write(op, ("x", None, *stats, True, 0.1, 1e-5))
    assert not is_undeclared_write(op, ("x", None, *stats, False, 0.1, 1e-5))
    assert not is_undeclared_write(op, ("x", None, None, None, None, True, 0.1, 1e-5))


def test_arguments_by_name_include_defaults():
    named = named_arguments(aten.bernoulli_.float, ("x",), {})
    assert named["self"] == "x" and named["p"] == 0.5
    assert named_arguments(aten.add_.Tensor, ("x", "y"), {"alpha": 2})["alpha"] == 2


@pytest.fixture(scope="module")
def own_operators():
    library = torch.library.Library("minidynamo_test_mutation", "DEF")
    library.define("scale_(Tensor(a!) x, float s=3.0) -> ()")
    library.define("mixed(Tensor(a!) x, Tensor(b!)[] ys, Tensor z, *, int k=2) -> (Tensor, Tensor(a!))")
    library.define("maybe(Tensor(a!)? x, Tensor y) -> Tensor")

    def mixed(x, ys, z, k=2):
        x.add_(z)
        for y in ys:
            y.mul_(k)
        return z + k, x

    library.impl("scale_", lambda x, s=3.0: None, "Meta")
    library.impl("scale_", lambda x, s=3.0: (x.mul_(s), None)[1], "CPU")
    library.impl("mixed", mixed, "CompositeExplicitAutograd")
    yield torch.ops.minidynamo_test_mutation
    library._destroy()


def test_a_writing_operator_of_the_user_gets_a_twin(own_operators):
    twin = mutation_of(own_operators.mixed.default).functional
    x, y, z = torch.ones(2), torch.ones(2), torch.ones(2)
    plain, new_x, (new_y,) = twin(x, [y], z, k=5)
    assert torch.equal(plain, torch.full((2,), 6.0)) and torch.equal(new_x, torch.full((2,), 2.0))
    assert torch.equal(new_y, torch.full((2,), 5.0)) and torch.equal(x, y)
    assert torch.equal(mutation_of(own_operators.scale_.default).functional(x), torch.full((2,), 3.0))
    assert define_functional(own_operators.maybe.default) is None


def test_programs_with_writing_operators_of_the_user(own_operators):
    def program(x, y):
        a = x * 2
        with torch.no_grad():
            own_operators.scale_(a)
            out, _ = own_operators.mixed(a, [y], x)
        return a, out, y * 1

    assert_same(program, inputs((3, 4), (3, 4), grad=False))

    def twice(x, y):
        own_operators.mixed(x, [x], y)
        return (y,)

    with pytest.raises(BackendError, match="same memory twice"):
        graphs(twice, inputs((3, 4), (3, 4), grad=False)()[0])


def dtype_of_output(x, y):
    exact = [torch.empty(n, dtype=dtype) for n, dtype in ((5, torch.float64), (5, torch.int32), (4, torch.float64))]
    torch.arange(2.1, -2.9, -1.0, out=exact[0])
    torch.arange(2.1, -2.9, -1.0, out=exact[1])
    torch.sum(x / 3, 1, out=exact[2])
    return tuple(exact)


def unseen_writes(x, y):
    product, rank = torch.empty(8, 10), torch.empty((), dtype=torch.int64)
    returned = torch.kron(x.detach()[:2, :2], y.detach(), out=product)
    torch.linalg.matrix_rank(y.detach(), out=rank)
    return product.sin(), returned + 1, rank


@pytest.mark.parametrize("mode", [torch.enable_grad, torch.no_grad, torch.inference_mode], ids=lambda m: m.__name__)
@pytest.mark.parametrize("program", [dtype_of_output, unseen_writes], ids=lambda program: program.__name__)
def test_outputs_that_are_given_get_what_eager_writes(program, mode):
    x, y = torch.randn(4, 5), torch.randn(4, 5)
    with mode():
        expected = program(x, y)
        made = minidynamo.compile(program, backend="aot_eager", fullgraph=True)(x, y)
    for a, b in zip(made, expected, strict=True):
        assert a.dtype == b.dtype
        torch.testing.assert_close(a, b, rtol=0, atol=0)


def test_an_operator_on_lists_writes_to_no_tensor():
    assert mutation_of(torch.ops.aten.add_.t) is None
    assert mutation_of(torch.ops.aten.add_.Tensor).arguments == ("self",)


@pytest.mark.parametrize(
    ("functional", "writes", "written", "own"),
    [
        (aten.add.Tensor, aten.add_.Tensor, (0,), 0),
        (aten.normal_functional.default, aten.normal_.default, (0,), 0),
        (aten.bernoulli.p, aten.bernoulli_.float, (0,), 0),
        (aten._foreach_mul.Scalar, aten._foreach_mul_.Scalar, (0,), 0),
        (aten._native_batch_norm_legit_functional.default, aten._native_batch_norm_legit.default, (3, 4), 3),
    ],
)
def test_the_operator_that_writes(functional, writes, written, own):
    twin = inplace_variant_of(functional)
    assert (twin.op, twin.written, twin.own_results) == (writes, written, own)


def test_an_operator_that_nothing_does_in_place():
    assert inplace_variant_of(aten.mm.default) is None
    assert inplace_variant_of(torch.ops.prims.sin.default) is None


def test_what_takes_the_same_arguments_may_be_called_instead():
    graph = trace(lambda x, y: (x.cumsum(0), x @ y, x.sort()), *torch.ones(2, 4, 4)).graph
    found = {node.target: in_place(node) for node in graph.nodes}
    assert found[aten.cumsum.default] is aten.cumsum_.default
    assert found[aten.mm.default] is None and found[aten.sort.default] is None
