"""Operators with symbolic float arguments equal their ATen originals."""

import pytest
import torch

from minidynamo.autograd.graph.mutation import mutation_of
from minidynamo.autograd.trace.number_operators import native_dropout, taking_numbers

aten = torch.ops.aten


def test_dropout_is_the_operator_of_torch():
    results = []
    for f in (native_dropout, lambda x, p: torch.native_dropout(x, p, True)[0]):
        torch.manual_seed(0)
        x = torch.linspace(-1.0, 1.0, 40).requires_grad_()
        made = f(x, 0.3)
        (first,) = torch.autograd.grad(made.pow(3).sum(), x, create_graph=True)
        (second,) = torch.autograd.grad(first.pow(2).sum(), x)
        results.append((made, first, second))
    for one, other in zip(*results, strict=True):
        assert torch.equal(one, other) and one.requires_grad == other.requires_grad


@pytest.mark.parametrize("name", ["_fused_adam_", "_fused_sgd_", "_fused_adagrad_"])
@pytest.mark.parametrize("overload", ["default", "tensor_lr"])
def test_what_is_written_is_returned_by_another_operator(name, overload):
    op = getattr(getattr(aten, name), overload)
    mine, theirs = mutation_of(taking_numbers(op)), mutation_of(op)
    assert mine.arguments == theirs.arguments and mine.returns == theirs.returns
    assert mine.functional is not None and mine.functional.namespace == "minidynamo"
    assert len(mine.functional._schema.returns) == len(theirs.arguments)


def test_an_operator_is_made_once():
    assert taking_numbers(aten.native_dropout.default) is taking_numbers(aten.native_dropout.default)
    assert torch.Tag.nondeterministic_seeded in taking_numbers(aten.native_dropout.default).tags
