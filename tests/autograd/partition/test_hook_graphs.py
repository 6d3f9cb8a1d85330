"""Tests of minidynamo/autograd/partition/hook_graphs.py."""

from __future__ import annotations

import pytest
import torch
from torch import fx

from minidynamo.autograd.partition.hook_graphs import HookTracer
from minidynamo.autograd.trace.decompositions import decomposition_table
from minidynamo.errors import HookReturnsSubclass, InvalidHook, UserLocation
from minidynamo.fake.mode import FakeTensorMode
from minidynamo.graph.saved_tensor_hooks import Hooks
from minidynamo.graph.torch_settings import settings
from minidynamo.memory.plan import SavedValue

WHERE = UserLocation("model.py", 7, "forward")
RECORD = SavedValue("add", (2, 3), torch.float32, 24, "aten.add.Tensor", WHERE, "")
aten = torch.ops.aten


def traced(pack, value=None):
    with FakeTensorMode() as mode:
        value = torch.empty(2, 3) if value is None else mode.from_tensor(value)
    tracer = HookTracer(Hooks(pack, pack), decomposition_table(frozenset()), settings())
    return tracer.trace("pack", "x", {"x": value}, RECORD)


def test_tensors_and_constants_keep_their_structure():
    made = traced(lambda x: {"data": (x.half(), x), "rest": [x.dtype, x.shape, 7, "text", None, x.device]})
    half, given = made.returned["data"]
    assert half.target is aten._to_copy.default and half.meta["val"].dtype == torch.float16
    assert [given] == made.inputs and half.meta["user_location"] == WHERE
    assert made.returned["rest"] == [torch.float32, (2, 3), 7, "text", None, torch.device("cpu")]


def test_a_graph_is_traced_like_a_function_and_writes_to_its_own_tensors_become_values():
    def pack(x):
        y = x * 1
        y.add_(1)
        return y.view(-1)

    for hook in (pack, fx.symbolic_trace(pack)):
        made = traced(hook)
        targets = [node.target for node in made.graph.nodes if node.op == "call_function"]
        assert targets == [aten.mul.Tensor, aten.add.Tensor, aten.view.default]


class Twice(torch.Tensor):
    @staticmethod
    def __new__(cls, inner):
        return torch.Tensor._make_wrapper_subclass(cls, inner.shape, dtype=inner.dtype)

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        raise NotImplementedError


def writes(x):
    x.add_(1)
    return x


OWN = torch.ones(2, 3)

INVALID = {
    "it writes to its argument": writes,
    "it draws random numbers": lambda x: x + torch.rand_like(x),
    "it returns set": lambda x: (x, {1}),
    "it returns a tensor that is not its argument": lambda x: OWN,
    "it reads the data of its tensor": lambda x: x if x.sum() > 0 else x * 2,
    "ZeroDivisionError: division by zero": lambda x: x * (1 / 0),
}


@pytest.mark.parametrize("what", INVALID)
def test_what_cannot_be_a_part_of_a_graph_names_hook_tensor_and_line(what):
    INVALID[what].__qualname__ = "my_hook"
    with pytest.raises(InvalidHook) as caught:
        traced(INVALID[what])
    text = str(caught.value)
    assert f"MD413 the pack hook my_hook cannot be put into a graph: {what}" in text
    assert "model.py:7 in forward" in text and "tensor add, float32[2, 3], computed by aten.add.Tensor" in text
    assert isinstance(caught.value, TypeError) and not isinstance(caught.value, NotImplementedError)


def test_a_tensor_that_is_read_besides_the_given_one():
    with pytest.raises(InvalidHook, match="MD413"):
        traced(lambda x: x * OWN)


def test_subclasses_are_to_be_taken_apart():
    with pytest.raises(HookReturnsSubclass, match=r"(?s)it returns Twice.*Return its inner tensors") as caught:
        traced(Twice)
    assert isinstance(caught.value, NotImplementedError)


def test_packing_is_a_part_of_forward_as_far_as_autocast_goes():
    with torch.autocast("cpu", torch.bfloat16):
        made = traced(lambda x: x @ x.t())
    assert made.returned.meta["val"].dtype == torch.bfloat16
