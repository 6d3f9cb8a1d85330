"""`locals()` returns the bound names in the order of the frame's variables, `vars()` the same."""

from __future__ import annotations

import pytest
import torch

from minidynamo.compat import PY313
from minidynamo.errors import SkipFrame
from minidynamo.tracer.records.traced_frame import Break
from tests.tracer.capturing import capture, targets


@pytest.mark.parametrize("ask", [locals, vars])
def test_bound_names_in_order(ask):
    def program(x, flag):
        if not flag:
            missing = 1  # noqa: F841
        y = 2  # noqa: F841
        names = ask()
        return x * names["y"] * len(names), [*names] == ["x", "flag", "y", "ask"], names

    traced = capture(program, torch.ones(2), True)
    assert not isinstance(traced.exit, Break) and len(targets(traced)) == 2
    assert traced.exit.value.items[1].value is True


def test_a_second_call():
    def program(x):
        return [locals() is locals(), x]

    if PY313:
        assert not isinstance(capture(program, torch.ones(2)).exit, Break)
    else:
        with pytest.raises(SkipFrame, match="MD233"):
            capture(program, torch.ones(2))
