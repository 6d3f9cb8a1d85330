"""`compile(model, repeated=True)`: the repeated blocks of a model are compiled, and nothing else."""

from __future__ import annotations

import pytest
import torch
from torch import nn

import minidynamo
from minidynamo.core.events import MinidynamoNotice
from minidynamo.errors import ArgumentError


class Block(nn.Module):
    def __init__(self, size=4):
        super().__init__()
        self.inner = nn.Sequential(nn.Linear(size, size), nn.ReLU(), nn.Linear(size, size))

    def forward(self, x):
        return x + self.inner(x)


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.embed = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 4))
        self.layers = nn.ModuleList([Block() for _ in range(3)])
        self.head = nn.Sequential(nn.Sequential(Block(), nn.Tanh()), nn.Linear(4, 2))

    def forward(self, x):
        x = self.embed(x)
        for layer in self.layers:
            x = layer(x)
        return self.head(x)


def compiled_names(model):
    return [name for name, module in model.named_modules() if "_compiled_call_impl" in module.__dict__]


def test_repeated_blocks_are_compiled_and_share():
    torch.manual_seed(0)
    model, x = Model(), torch.randn(2, 4)
    expected = model(x)
    assert minidynamo.compile(model, backend="eager", repeated=True) is model
    assert compiled_names(model) == ["layers.0", "layers.1", "layers.2", "head.0.0"]
    torch.testing.assert_close(model(x), expected)
    blocks = minidynamo.explain(model).blocks
    assert [(block.stats.compiles, block.stats.shared) for block in blocks.values()] == [(1, 0), (0, 1), (0, 1), (0, 1)]
    assert str(minidynamo.explain(model)) == (
        "Model: 4 repeated blocks compiled, the rest is as it was\n"
        "  layers.0: 1 compile, 0 versions of equal blocks\n"
        "  layers.1: 0 compiles, 1 version of equal blocks\n"
        "  layers.2: 0 compiles, 1 version of equal blocks\n"
        "  head.0.0: 0 compiles, 1 version of equal blocks"
    )
    assert blocks["layers.1"].shared() == (
        "Block layers.1 [0]: shared with 3 others: Block layers.0, Block layers.2, Block head.0.0"
    )
    shown = str(blocks["layers.1"])
    assert blocks["layers.1"].shared() in shown and "nothing compiled here" in shown
    minidynamo.reset(model)
    assert [block.stats.shared for block in blocks.values()] == [0] * 4
    assert minidynamo.uncompile(model) is model and compiled_names(model) == []


def test_a_module_that_occurs_twice_is_compiled_once():
    block, last = Block(), nn.Linear(4, 4)
    model = minidynamo.compile(nn.Sequential(block, block, last), backend="eager", repeated=True)
    assert compiled_names(model) == ["0"]
    x = torch.ones(1, 4)
    torch.testing.assert_close(model(x), last(block.forward(block.forward(x))))


def test_a_class_that_occurs_once_may_contain_blocks():
    class Stage(nn.Module):
        def __init__(self):
            super().__init__()
            self.parts = nn.ModuleList([Block(), Block()])

    model = minidynamo.compile(nn.Sequential(Stage(), Block()), backend="eager", repeated=True)
    assert compiled_names(model) == ["0.parts.0", "0.parts.1"]


def test_a_model_without_repeated_blocks_is_unchanged():
    model = nn.Sequential(nn.Linear(4, 4), nn.ReLU(), nn.Linear(4, 4), Block())
    with pytest.warns(MinidynamoNotice, match="occurs several times"):
        assert minidynamo.compile(model, repeated=True) is model
    assert compiled_names(model) == []


def test_only_a_module_has_blocks():
    with pytest.raises(ArgumentError, match="repeated=True takes"):
        minidynamo.compile(lambda x: x, repeated=True)


def test_questions_about_the_model_name_a_block():
    model = minidynamo.compile(nn.Sequential(Block(), Block()), backend="eager", repeated=True)
    with pytest.raises(ArgumentError, match="get_submodule\\('0'\\)"):
        minidynamo.stats(model)
    assert minidynamo.stats(model.get_submodule("0")).compiles == 0
