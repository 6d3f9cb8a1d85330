"""Tests of minidynamo/compat/operators.py."""

from __future__ import annotations

import operator

import pytest
import torch

from minidynamo import compat
from minidynamo.fake.mode import FakeTensorMode


@torch.library.custom_op("minidynamo_compat::twice", mutates_args=())
def twice(x: torch.Tensor) -> torch.Tensor:
    return x * 2


@twice.register_fake
def _(x: torch.Tensor) -> torch.Tensor:
    return torch.empty_like(x)


@torch.library.custom_op("minidynamo_compat::thrice", mutates_args=())
def thrice(x: torch.Tensor) -> torch.Tensor:
    return x * 3


thrice.register_autocast("cpu", torch.bfloat16)


def test_what_is_known_of_a_custom_operator():
    op = compat.overload_of(twice)
    assert op is torch.ops.minidynamo_compat.twice.default
    assert compat.schema_of(op).name == "minidynamo_compat::twice"
    known = compat.definition_of(op)
    assert known.backward is None and not known.casts
    assert compat.definition_of(compat.overload_of(thrice)).casts
    assert compat.definition_of(torch.ops.aten.sin.default) is None


def test_the_form_without_data_of_a_custom_operator():
    run = compat.fake_implementation_of(compat.overload_of(twice))
    mode = FakeTensorMode()
    assert run is not None and run(mode, mode.from_tensor(torch.ones(3))).shape == (3,)
    assert compat.fake_implementation_of(torch.ops.aten.sin.default) is None


def test_what_calling_an_operator_comes_to():
    x = torch.ones(2)
    assert torch.equal(compat.operator_function(torch.ops.aten.sin.default)(x), x.sin())
    assert compat.operator_function(torch.sin) is torch.sin


X, SQUARE, BATCH = (
    torch.arange(12.0).view(3, 4).sin(),
    torch.arange(9.0).view(3, 3).cos(),
    torch.arange(24.0).view(2, 3, 4),
)
IMAGE, FILTERS, HEADS = torch.arange(96.0).view(1, 6, 4, 4).sin(), torch.ones(2, 3, 3, 3), torch.rand(1, 2, 3, 4)
ONES, INDEX = torch.ones(6), torch.tensor([[0, 1], [2, 0]])
ARGUMENTS = {
    "mm": (SQUARE, X),
    "addmm": (X, SQUARE, X),
    "bmm": (BATCH, BATCH.mT),
    "baddbmm": (torch.ones(3), BATCH, BATCH.mT),
    "mv": (X, ONES[:4]),
    "addmv": (ONES[:3], X, ONES[:4]),
    "dot": (ONES, ONES),
    "convolution": (IMAGE, FILTERS, None, [1, 2], [1, 0], [1, 1], False, [0, 0], 2),
    "_scaled_dot_product_flash_attention_for_cpu": (HEADS, HEADS, HEADS, 0.0, True),
    "native_batch_norm": (IMAGE, ONES, None, None, None, True, 0.1, 1e-5),
    "native_group_norm": (IMAGE, ONES, None, 1, 6, 16, 3, 1e-5),
    "native_layer_norm": (X, [4], None, ONES[:4], 1e-5),
    "_softmax": (X, -1, False),
    "_log_softmax": (X, 0, False),
    "cat": ([X, SQUARE], 1),
    "clone": (X.t(),),
    "constant_pad_nd": (X, [1, 2], 3.0),
    "cumsum": (X, 1),
    "embedding": (X, INDEX, 1),
    "gather": (X, 1, INDEX),
    "index_select": (X, 1, INDEX[0]),
    "scatter_add": (X, 1, INDEX, SQUARE),
    "sort": (X, 0, True),
    "topk": (X, 2, -1, False),
    "max_pool2d_with_indices": (IMAGE, [2, 2], [1, 2], [1, 1]),
}


@pytest.mark.parametrize("name", ARGUMENTS)
def test_a_python_function_computes_what_its_operator_computes(name):
    op, args = getattr(torch.ops.aten, name).default, ARGUMENTS[name]
    function = compat.operator_function(op)
    assert function is not op._op
    torch.testing.assert_close([*_values(function(*args))], [*_values(op(*args))], rtol=0, atol=0)


def test_the_python_function_of_attention_on_gpus_takes_the_arguments_of_its_operator():
    op = torch.ops.aten._scaled_dot_product_efficient_attention.default
    heads = torch.empty(1, 2, 3, 8, dtype=torch.float16, device="meta")
    args = (heads, heads, heads, None, True, 0.0, True)
    function = compat.operator_function(op)
    assert function is not op._op
    assert [value.shape for value in function(*args)] == [value.shape for value in op(*args)]


def _values(result):
    return [result] if isinstance(result, torch.Tensor) else [value for value in result if value is not None]


@pytest.mark.parametrize(("reads_workspace", "target"), [(True, "recurrent_layer_for_training"), (False, "default")])
def test_a_recurrent_layer_whose_workspace_is_read_is_called_for_training(reads_workspace, target):
    graph = torch.fx.Graph()
    layer = graph.call_function(torch.ops.aten.mkldnn_rnn_layer.default, (graph.placeholder("x"),))
    if reads_workspace:
        graph.call_function(operator.getitem, (layer, 3))
    assert compat.runtime_target(layer).__name__.endswith(target)
