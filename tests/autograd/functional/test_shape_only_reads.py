"""Tests of minidynamo/autograd/functional/shape_only_reads.py: tensors of which backward reads only the shape are not
saved."""

import pytest
import torch
import torch.nn.functional as F

from minidynamo.autograd.functional.shape_only_reads import SHAPE_ONLY, replace_unread
from tests.autograd.programs import assert_same, graphs, inputs, module_program

IMAGE, VOLUME, LINE = (2, 3, 6, 6), (2, 3, 4, 4, 4), (2, 3, 6)

PROGRAMS = {
    "max_pool2d": (lambda x: (F.max_pool2d(x.sin(), 2),), IMAGE),
    "max_pool3d": (lambda x: (F.max_pool3d(x.sin(), 2),), VOLUME),
    "adaptive_max_pool2d": (lambda x: (F.adaptive_max_pool2d(x.sin(), 2),), IMAGE),
    "adaptive_max_pool3d": (lambda x: (F.adaptive_max_pool3d(x.sin(), 2),), VOLUME),
    "avg_pool2d": (lambda x: (F.avg_pool2d(x.sin(), 2),), IMAGE),
    "avg_pool3d": (lambda x: (F.avg_pool3d(x.sin(), 2),), VOLUME),
    "adaptive_avg_pool2d": (lambda x: (F.adaptive_avg_pool2d(x.sin(), 2),), IMAGE),
    "adaptive_avg_pool3d": (lambda x: (F.adaptive_avg_pool3d(x.sin(), 2),), VOLUME),
    "reflection_pad1d": (lambda x: (F.pad(x.sin(), (1, 2), "reflect"),), LINE),
    "reflection_pad2d": (lambda x: (F.pad(x.sin(), (1, 2, 1, 1), "reflect"),), IMAGE),
    "reflection_pad3d": (lambda x: (F.pad(x.sin(), (1, 2, 1, 1, 1, 1), "reflect"),), VOLUME),
    "replication_pad1d": (lambda x: (F.pad(x.sin(), (1, 2), "replicate"),), LINE),
    "replication_pad2d": (lambda x: (F.pad(x.sin(), (1, 2, 1, 1), "replicate"),), IMAGE),
    "replication_pad3d": (lambda x: (F.pad(x.sin(), (1, 2, 1, 1, 1, 1), "replicate"),), VOLUME),
}


@pytest.mark.parametrize("name", PROGRAMS)
def test_what_is_asked_for_its_shape_is_not_kept(name):
    program, shape = PROGRAMS[name]
    saved = graphs(program, inputs(shape)()[0]).signature.saved
    assert [value.op for value in saved if value.op == "aten.sin.default"] == []
    assert all(value.dtype == torch.int64 or value.op == "input" for value in saved)
    assert_same(program, inputs(shape))


def test_every_entry_is_covered():
    for op in SHAPE_ONLY:
        name = str(op).removeprefix("aten.").replace("_with_indices", "").removesuffix("_backward.default").strip("_")
        assert name in PROGRAMS


def test_another_memory_format_is_kept():
    def program(x):
        return (F.max_pool2d(x.sin().to(memory_format=torch.channels_last), 2),)

    assert_same(program, inputs(IMAGE))


def test_running_statistics_are_not_kept_in_training():
    program, values = module_program(torch.nn.BatchNorm2d(3))

    def make():
        (x,), _ = inputs(IMAGE)()
        state, leaves = values()
        return [x, *state], [x, *leaves]

    saved = [value.name for value in graphs(program, make()[0]).signature.saved]
    assert not {"arg3", "arg4"} & set(saved)
    assert_same(program, make, tolerance=1e-5)


def test_other_operators_keep_their_arguments():
    args = (object(), object())
    assert replace_unread(None, torch.ops.aten.add.Tensor, args) is args
