"""Tests of minidynamo/tracer/capture/cutting.py: the instruction before which a trace ends, and the frame's values
there."""

import pytest
import torch

import minidynamo
from minidynamo.errors import SkipFrame
from minidynamo.tracer.capture.frame import trace_frame
from minidynamo.tracer.records.traced_frame import Break, FrameRequest, Null
from tests.tracer.capturing import capture


def ones(**options):
    return torch.ones(3, **options)


def test_a_break_ends_the_frame_before_the_call_group():
    def f(x, scale):
        y = x + 1
        return scale * y.numpy(), y

    end = capture(f, ones(), 2).exit
    assert isinstance(end, Break) and end.diagnostic.code == "MD212"
    assert list(end.local_variables) == ["y"]  # x and scale are not read again
    assert any(isinstance(value, Null) for value in end.stack)
    assert end.compiled_callee is None


def test_a_frame_that_cannot_be_cut_is_skipped():
    def f(x):
        try:
            raise ValueError
        except ValueError:
            minidynamo.graph_break()
            print(x)

    first = capture(f, ones()).exit
    assert isinstance(first, Break)
    with pytest.raises(SkipFrame, match="MD220"):
        trace_frame(FrameRequest(compile("x = 1", "f", "exec"), {}, {}))


def test_a_break_in_a_handler_moves_to_what_raised():
    def f(x):
        y = x + 1
        try:
            raise ValueError
        except ValueError:
            return y.numpy()

    end = capture(f, ones()).exit
    assert isinstance(end, Break) and list(end.local_variables) == ["y"]
    assert "raise ValueError" in end.diagnostic.where.source_line() or "numpy" in end.diagnostic.what


@pytest.mark.parametrize("kind", ["function", "module", "method of torch"])
def test_what_the_user_wrote_is_called_in_its_compiled_form(kind):
    def helper(x):
        return x.numpy()

    class Child(torch.nn.Module):
        def forward(self, x):
            return x.numpy()

    def f(x, call):
        return call(x)

    call = {"function": helper, "module": Child(), "method of torch": torch.Tensor.numpy}[kind]
    end = capture(f, ones(), call).exit
    assert isinstance(end, Break) and (end.compiled_callee is None) == (kind == "method of torch")
