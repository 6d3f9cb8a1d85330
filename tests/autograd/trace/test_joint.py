"""Tests of minidynamo/autograd/trace/joint.py."""

import pytest
import torch

from minidynamo.autograd.graph.inputs import layout_of
from minidynamo.autograd.trace.joint import trace_joint
from minidynamo.errors import BackendError
from tests.autograd.programs import graph_of, graphs


def trace(program, args):
    gm, examples = graph_of(program, args)
    return trace_joint(gm, layout_of(gm, examples), examples, {})


def leaf():
    return torch.randn(3, requires_grad=True)


def test_parts_of_the_trace():
    made = trace(lambda x, y: (x * y, x, 5, x[1:]), [leaf(), torch.randn(3)])
    assert made.training and len(made.tangents) == 1
    assert [output.kind for output in made.outputs] == ["member", "input", "constant", "view"]
    assert made.requires_grad == {0: True, 1: False}
    assert list(made.gradients) == [0] and made.gradients[0] is not None


def test_inner_inputs_may_be_written_and_leaves_not():
    made = trace(lambda x: (x.add_(1) * 2,), [leaf() * 1])
    assert list(made.mutated_with_grad) == [0] and len(made.input_copies) == 1
    with pytest.raises(BackendError, match="a leaf Variable that requires grad") as caught:
        trace(lambda x: (x.add_(1) * 2,), [leaf()])
    assert caught.value.code == "MD401" and isinstance(caught.value.__cause__, RuntimeError)


def test_data_dependent_programs_are_refused():
    with pytest.raises(BackendError, match="MD401"):
        trace(lambda x: (x * x.sum().item(),), [leaf()])


def test_what_torch_refuses_is_said_once(logged):
    with pytest.raises(BackendError, match="MD401") as caught:
        trace(lambda x: (x @ torch.ones(7),), [leaf()])
    assert caught.value.diagnostic.what == "the graph cannot be traced for autograd"
    assert "On tensors without data torch raises RuntimeError" in caught.value.diagnostic.why
    assert not [record for record in logged if record.name == "torch._subclasses.fake_tensor"]


def test_backward_is_traced_without_autocast():
    with torch.autocast("cpu", dtype=torch.bfloat16):
        made = graphs(lambda x, w: (x @ w,), [torch.randn(3, 3, requires_grad=True) for _ in range(2)])
    products = [n for n in made.backward.graph.nodes if "mm" in str(n.target)]
    assert {n.meta["val"].dtype for n in products} == {torch.bfloat16}
    assert {g.meta["val"].dtype for n in made.backward.graph.nodes if n.op == "output" for g in n.args[0]} == {
        torch.float32
    }


def test_what_eager_refuses_is_not_made_a_call():
    def program(x):
        y = x.exp()
        return (y.add_(1),)

    with pytest.raises(BackendError, match="modified by an inplace operation"):
        trace(program, [leaf()])
