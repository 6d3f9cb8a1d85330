"""Call plans of real programs, stored and loaded."""

import json

import pytest
import torch
from torch import ones

from minidynamo.autograd.graph.layouts import GradientLayout
from minidynamo.autograd.runtime.call_plan import RECORDS, CallPlan, read_plan, write_plan
from minidynamo.graph_cache.encoding import Codec, Damaged, GraphContext, NotStorable
from tests.autograd.programs import graphs

ARGS = [ones(3, 3), ones(3, 3, requires_grad=True), ones(2)]
CODEC = Codec(GraphContext(), RECORDS)


def plan_of(program, args):
    made = graphs(program, args)
    sources = tuple(made.partition.sources)
    expected = tuple(node.meta["val"] for node in made.backward.graph.nodes if node.op == "placeholder")
    return CallPlan(made.layout, made.signature, saved=sources, expected=expected)


def write_and_view(x, w, z):
    y = (x @ w).sin()
    z.mul_(2)
    return y, y.t(), z[1:], 3, torch.tensor([1.0, 2.0]) + y.sum()


def test_a_plan_comes_back():
    plan = plan_of(write_and_view, ARGS)
    found = read_plan(json.loads(json.dumps(write_plan(plan, CODEC))), CODEC)
    assert found.signature.outputs == plan.signature.outputs
    assert found.signature.mutations == plan.signature.mutations
    assert len(found.signature.constants) == 1
    assert all(map(torch.equal, found.signature.constants, plan.signature.constants))
    assert (found.layout, found.saved, found.without_grad) == (plan.layout, plan.saved, plan.without_grad)
    first = len(plan.saved)
    assert found.expected[:first] == (None,) * first
    for written, value in zip(found.expected[first:], plan.expected[first:], strict=True):
        assert vars(GradientLayout(written)) == vars(GradientLayout(value))


def test_only_strided_tensors_have_a_layout():
    plan = plan_of(write_and_view, ARGS)
    with pytest.raises(NotStorable):
        write_plan(CallPlan(plan.layout, plan.signature, expected=(3,)), CODEC)


@pytest.mark.parametrize("form", [None, 3, {"record": ["WrittenLayout", {}]}, {"tuple": []}], ids=str)
def test_another_form_is_refused(form):
    with pytest.raises(Damaged):
        read_plan(form, CODEC)
