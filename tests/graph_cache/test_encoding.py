"""Values as JSON: decoded values equal the originals, bit by bit; unsupported values are refused both ways."""

import json
import math

import pytest
import torch

from minidynamo.autograd.graph.signature import InputMutation, OutputPlan, ViewStep
from minidynamo.errors import UserLocation
from minidynamo.graph_cache.encoding import Codec, Damaged, GraphContext, NotStorable

aten = torch.ops.aten
PLACE = UserLocation("/home/somebody/train.py", 3, "step")
GPU = torch.device("cuda", 1)
VALUES = [
    *(None, True, 3, -(2**70), 1.5, -0.0, float("inf"), "text", 1 + 2j),
    *([1, [2]], (1, (2.5, None)), {"a": (1,), 2: []}, torch.float32, torch.strided, torch.channels_last),
    *(torch.device("cpu"), torch.device("meta"), GPU, PLACE, aten.add.Tensor, aten.relu.default),
    *(InputMutation(1, None), OutputPlan("input", 2, steps=(ViewStep(aten.view.default, ((2, 3),)),), detach=True)),
]
CODEC = Codec(GraphContext(GPU, (None, PLACE)), (InputMutation, OutputPlan, ViewStep))


def through_json(codec, value):
    return codec.decode(json.loads(json.dumps(codec.encode(value))))


@pytest.mark.parametrize("value", VALUES, ids=str)
def test_values_come_back(value):
    found = through_json(CODEC, value)
    assert found == value and type(found) is type(value)
    if value == 0:
        assert math.copysign(1, found) == math.copysign(1, value)


def test_sizes_become_tuples():
    assert through_json(CODEC, torch.Size([2, 3])) == (2, 3)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.bool, torch.int64, torch.complex64])
def test_small_tensors_come_back_bit_by_bit(dtype):
    tensor = torch.tensor([[0, 1, 3], [2, 0, 1]]).to(dtype).t()
    found = through_json(CODEC, tensor)
    assert torch.equal(found, tensor) and found.dtype is dtype and found.stride() == tensor.stride()
    nan = torch.tensor([float("nan"), -0.0])
    assert torch.equal(through_json(CODEC, nan).view(torch.int32), nan.view(torch.int32))
    assert through_json(CODEC, torch.empty(0, 2)).shape == (0, 2)


def test_the_one_accelerator_has_no_index_in_what_is_written():
    assert "1" not in json.dumps(CODEC.encode(GPU))
    elsewhere = Codec(GraphContext(torch.device("cuda", 5)))
    assert elsewhere.decode(CODEC.encode(GPU)) == torch.device("cuda", 5)
    assert elsewhere.decode(CODEC.encode(torch.device("cuda", 7))) == torch.device("cuda", 7)


def test_no_path_of_the_user_is_written():
    written = json.dumps(CODEC.encode(PLACE))
    assert "train" not in written
    moved = UserLocation("/elsewhere/train.py", 30, "step")
    assert Codec(GraphContext(None, (None, moved))).decode(json.loads(written)) == moved


def test_comments_follow_the_users_lines():
    text = f"def call():\n    # {PLACE.comment()}\n    x = 1  # {PLACE.comment()}\n    # else\n"
    written = CODEC.context.written(text)
    assert written == f"def call():\n    # @1@\n    x = 1  # {PLACE.comment()}\n    # else\n"
    assert CODEC.context.read(written) == text
    assert "else" in GraphContext().read(written)


@pytest.mark.parametrize(
    ("value", "why"),
    [
        (object(), "object"),
        (torch.nn.Parameter(torch.ones(2)), "Parameter"),
        (torch.ones(2, requires_grad=True), "tensor"),
        (torch.ones(1 << 20), "large"),
        (torch.ones(2, device="meta"), "tensor"),
        (lambda: None, "function"),
        ((1, [PLACE, {"x": object()}]), "object"),
        (GraphContext(), "GraphContext"),
    ],
    ids=lambda value: value if isinstance(value, str) else type(value).__name__,
)
def test_what_has_no_written_form(value, why):
    with pytest.raises(NotStorable, match=why):
        CODEC.encode(value)


def test_operators_of_others_have_no_written_form():
    with torch.library._scoped_library("mdcodec", "DEF") as library:
        library.define("twice(Tensor x) -> Tensor")
        with pytest.raises(NotStorable, match="may change"):
            CODEC.encode(torch.ops.mdcodec.twice.default)


@pytest.mark.parametrize(
    "form",
    [
        {"op": "aten::no_such.thing"},
        {"op": "os::system"},
        {"op": "builtins"},
        {"torch": "load"},
        {"torch": "float33"},
        {"record": ["GraphContext", {}]},
        {"record": ["OutputPlan", {"nonsense": 1}]},
        {"tensor": [1, 2]},
        {"location": 99},
        {"unknown": 1},
        {"op": "aten::relu", "torch": "float32"},
        {},
    ],
    ids=str,
)
def test_forms_that_nobody_wrote_are_refused(form):
    with pytest.raises(Damaged):
        CODEC.decode(form)
    with pytest.raises(Damaged):
        CODEC.decode([{"tuple": [form]}])


def test_an_accelerator_that_is_not_there_is_refused():
    with pytest.raises(Damaged, match="accelerator"):
        Codec(GraphContext()).decode({"device": None})
