"""Tests of minidynamo/autograd/trace/output_alias_sets.py: the kinds of a program's outputs."""

from __future__ import annotations

import pytest
import torch

from minidynamo.autograd.trace.output_alias_sets import classify, refuse_copies
from minidynamo.errors import GraphRefused
from minidynamo.graph.function_results import recording_copies, unaliased_result


def kinds(outputs, *inputs):
    entries, alias_sets = classify(outputs, dict(enumerate(inputs)))
    return [(entry.kind, entry.index) for entry in entries], alias_sets


def test_inputs_views_of_them_and_constants():
    x, y = torch.randn(2, 2), torch.randn(2)
    made, alias_sets = kinds([3, y, x.t(), x, None], x, y)
    assert made == [("constant", 0), ("input", 1), ("view", 0), ("input", 0), ("constant", 0)] and not alias_sets


def test_of_inputs_in_one_memory_a_view_is_one_of_the_input_that_it_was_made_of():
    x = torch.randn(2, 2, requires_grad=True)
    alias = x.detach()
    assert kinds([x[0], alias[0], alias[0].t()], x, alias)[0] == [("view", 0), ("view", 1), ("view", 1)]
    assert kinds([x[0], alias[0]], alias, x)[0] == [("view", 1), ("view", 0)]


def test_histories_of_their_own_are_refused():
    x = torch.randn(4)
    with pytest.raises(GraphRefused, match="MD404"):
        classify([x.view(2, 2).requires_grad_()], {0: x})


def copied(x, *others):
    """Returns copies of views of x, each recorded."""
    with recording_copies() as copies:
        made = [unaliased_result(x[:2], (x,)), *(unaliased_result(x[k:], (x,)) for k in others)]
        made.append(unaliased_result(made[0].view(2), (made[0],)))
    return copies, made


def test_copies_that_nobody_can_tell_are_taken():
    x, y = torch.randn(4), torch.randn(2)
    copies, (one, other) = copied(x)
    refuse_copies(copies, [one, one[1:], y, 3], {0: y})
    refuse_copies(copies, [other], {0: y})


@pytest.mark.parametrize(
    "outputs", [lambda x, made: [made[0]], lambda x, made: [made[-1][:1]]], ids=["a copy", "a copy of a copy"]
)
def test_a_copy_of_what_lies_in_an_input_is_refused(outputs):
    x = torch.randn(4)
    copies, made = copied(x)
    with pytest.raises(GraphRefused, match="MD404"):
        refuse_copies(copies, outputs(x, made), {0: x})


@pytest.mark.parametrize(
    "outputs", [lambda x, made: [made[0], x], lambda x, made: [made[0], made[1]]], ids=["beside it", "two of it"]
)
def test_a_copy_of_what_another_output_lies_in_is_refused(outputs):
    x = torch.randn(4)
    copies, made = copied(x, 1)
    with pytest.raises(GraphRefused, match="MD404"):
        refuse_copies(copies, outputs(x, made), {})


def test_copies_are_refused_where_there_is_written_to_the_memory():
    x = torch.randn(4)
    copies, _ = copied(x)
    x.add_(1)
    with pytest.raises(GraphRefused, match="written to"):
        refuse_copies(copies, [], {})


def test_what_counts_writes_for_parts():
    y = torch.ones(4, requires_grad=True) * 2
    data, parts = y[:2].data, [y[:2].detach(), y[2:].detach()]
    _, (family,) = classify([data, *parts], {})
    assert family.root is None and family.counter_owner is parts[0]
    with pytest.raises(GraphRefused, match="do not share a version counter"):
        classify([data[:1].detach(), data[1:].detach(), *parts], {})
