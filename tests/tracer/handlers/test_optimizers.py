"""Fused optimizer updates of torch take varying learning rates."""

from __future__ import annotations

import pytest
import torch

import minidynamo
from minidynamo.testing import CompileCounter


@pytest.mark.parametrize("make", [torch.optim.SGD, torch.optim.AdamW, torch.optim.Adagrad])
def test_a_learning_rate_that_varies(make):
    results = []
    counter = CompileCounter()
    for compiled in (False, True):
        parameter = torch.nn.Parameter(torch.linspace(0, 1, 4))
        optimizer = make([parameter], lr=0.1, fused=True)
        step = minidynamo.compile(optimizer.step, backend=counter, fullgraph=True) if compiled else optimizer.step
        for number in range(5):
            optimizer.param_groups[0]["lr"] = 0.1 + 0.01 * number
            parameter.grad = torch.ones(4) * number
            step()
        results.append(parameter.detach())
    torch.testing.assert_close(results[1], results[0], rtol=0, atol=0)
    assert counter.frame_count == 2
