"""Tests of minidynamo/autograd/mutation.py."""

import pytest
import torch

from minidynamo.autograd.mutation import (
    UNDECLARED,
    is_metadata_mutation,
    is_undeclared_write,
    is_view,
    mutation_of,
    named_arguments,
)

aten = torch.ops.aten

TWINS = {
    "add_.Tensor": "add.Tensor",
    "mul_.Scalar": "mul.Scalar",
    "normal_": "normal_functional",
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
    assert (norm.arguments, norm.results) == (("running_mean", "running_var"), 3)
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
