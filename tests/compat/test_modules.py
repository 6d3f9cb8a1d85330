"""Tests of minidynamo/compat/modules.py."""

from __future__ import annotations

import torch

from minidynamo import compat


def test_code_of_optimizers_and_schedulers_is_found():
    parameter = torch.nn.Parameter(torch.ones(2))
    optimizer = torch.optim.SGD([parameter], lr=0.1)
    torch.optim.lr_scheduler.StepLR(optimizer, 1)
    assert optimizer.step.__code__ is compat.SCHEDULED_STEP
    assert compat.OPTIMIZER_STEP_SWITCH.co_name == "_use_grad"
    assert compat.MODULE_CALL is torch.nn.Module._call_impl is compat.module_call(torch.nn.Linear)


def test_which_lists_an_operator_writes():
    assert compat.written_lists(torch._foreach_add_) == (0,)
    assert compat.written_lists(torch._foreach_add) == compat.written_lists(torch.add) == ()
    assert compat.written_lists(torch._fused_sgd_)[0] == 0
    assert {op.name() for op in compat.foreach_operators("neg")} == {"aten::_foreach_neg", "aten::_foreach_neg_"}
