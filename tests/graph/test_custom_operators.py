"""Tests of minidynamo/graph/custom_operators.py."""

import torch

from minidynamo import compat
from minidynamo.graph.custom_operators import define


def test_an_operator_and_its_form_without_data():
    op = define("tested_sum", "(Tensor x) -> Tensor", lambda x: x.sum(), lambda x: x.new_empty(7))
    assert op is torch.ops.minidynamo.tested_sum.default and compat.schema_of(op).name == "minidynamo::tested_sum"
    assert op(torch.ones(3)) == 3 and op(torch.ones(3, device="meta")).shape == (7,)


def test_autograd_knows_nothing_of_what_it_does_not_see():
    x = torch.ones(3, requires_grad=True)
    seen = define("tested_copy", "(Tensor x) -> Tensor", torch.zeros_like)
    unseen = define("tested_unseen_copy", "(Tensor x) -> Tensor", torch.zeros_like, unseen=True)
    assert seen(x).requires_grad and not unseen(x).requires_grad
