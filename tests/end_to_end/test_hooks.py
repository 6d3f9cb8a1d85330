"""Hooks that come or go after the first call take effect on the next one."""

from __future__ import annotations

import torch
from torch import nn

import minidynamo
from minidynamo.testing import CompileCounter, no_recompile


def model():
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(4, 4), nn.ReLU())


def test_a_forward_hook_added_later_takes_effect_and_its_removal_too():
    counter = CompileCounter()
    module = minidynamo.compile(model(), backend=counter)
    x = torch.randn(2, 4)
    plain = module(x)
    assert counter.frame_count == 1

    handle = module.register_forward_hook(lambda module, args, output: output * 2)
    assert torch.equal(module(x), plain * 2)
    assert counter.frame_count == 2
    with no_recompile():
        assert torch.equal(module(x), plain * 2)

    handle.remove()
    with no_recompile():
        assert torch.equal(module(x), plain)


def test_a_hook_that_keeps_a_record_keeps_it():
    module = minidynamo.compile(model(), backend="eager")
    x = torch.randn(2, 4)
    calls = []
    handle = module.register_forward_hook(lambda module, args, output: calls.append((module, args[0])))
    for _ in range(3):
        module(x)
    handle.remove()
    module(x)
    assert len(calls) == 3
    assert all(owner is module and argument is x for owner, argument in calls)


def test_a_hook_of_a_submodule_counts_as_well():
    module = minidynamo.compile(model(), backend="eager")
    x = torch.randn(2, 4)
    plain = module(x)
    handle = module[0].register_forward_pre_hook(lambda module, args: (torch.zeros_like(args[0]),))
    assert torch.equal(module(x), torch.relu(module[0].bias).expand(2, 4))
    handle.remove()
    assert torch.equal(module(x), plain)


def test_a_global_hook_is_noticed():
    module = minidynamo.compile(model(), backend="eager")
    x = torch.randn(2, 4)
    plain = module(x)
    seen = []
    handle = nn.modules.module.register_module_forward_hook(lambda module, args, output: seen.append(type(module)))
    try:
        assert torch.equal(module(x), plain)
    finally:
        handle.remove()
    assert seen == [nn.Linear, nn.ReLU, nn.Sequential]


def test_gradient_hooks_of_parameters_run():
    module = minidynamo.compile(model(), backend="aot_eager")
    seen = []
    handle = module[0].weight.register_hook(lambda grad: seen.append(grad.shape))
    module(torch.randn(2, 4)).sum().backward()
    handle.remove()
    module(torch.randn(2, 4)).sum().backward()
    assert seen == [(4, 4)]
