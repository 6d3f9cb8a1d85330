"""The call of a `DistributedDataParallel` runs eagerly around the compiled module."""

from __future__ import annotations

import pytest
import torch
from torch import distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

import minidynamo
from minidynamo.frontend.data_parallel import call_wrapper
from tests.ranks import available

pytestmark = [available, pytest.mark.filterwarnings("ignore")]


@pytest.fixture(autouse=True)
def one_rank():
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    yield
    dist.destroy_process_group()


class Raises(nn.Linear):
    def forward(self, x):
        if x.numel() == 0:
            raise ValueError("empty")
        return super().forward(x)


def test_the_call_of_the_module_is_replaced_for_the_duration_of_the_call():
    wrapped = DistributedDataParallel(Raises(2, 2))
    seen = []

    def call(module, x):
        seen.append(module)
        return module.forward(x)

    call_wrapper(wrapped, call, (torch.ones(1, 2),), {})
    with pytest.raises(ValueError, match="empty"):
        call_wrapper(wrapped, call, (torch.ones(0, 2),), {})
    wrapped(torch.ones(1, 2))
    assert seen == [wrapped.module] * 2 and "_compiled_call_impl" not in vars(wrapped.module)


def test_hooks_of_wrapper_and_module():
    def outputs(compile_it):
        torch.manual_seed(0)
        wrapped = DistributedDataParallel(nn.Linear(2, 2))
        wrapped.register_forward_hook(lambda module, args, output: output * 2)
        wrapped.module.register_forward_pre_hook(lambda module, args: (args[0] + 1,))
        return compile_it(wrapped)(torch.ones(1, 2))

    actual = outputs(lambda m: minidynamo.compile(m, backend="aot_eager", fullgraph=True))
    assert torch.equal(actual, outputs(lambda m: m))


def test_a_module_that_is_compiled_already_gets_the_keywords_of_the_wrapper():
    inner = minidynamo.compile(nn.Linear(2, 2), backend="eager")
    wrapped = minidynamo.compile(DistributedDataParallel(inner), backend="aot_eager", fullgraph=True)
    wrapped(torch.ones(1, 2))
    assert (minidynamo.stats(wrapped).graphs, minidynamo.stats(inner).graphs) == (1, 0)
    inner(torch.ones(1, 2))
    assert minidynamo.stats(inner).graphs == 1


def test_a_subclass_with_a_forward_of_its_own_is_compiled_as_a_whole():
    class Scaled(DistributedDataParallel):
        def forward(self, x):
            return self.module(x) * 3

    torch.manual_seed(0)
    wrapped = Scaled(nn.Linear(2, 2))
    expected = wrapped(torch.ones(1, 2))
    minidynamo.compile(wrapped, backend="aot_eager", fullgraph=True)
    assert torch.equal(wrapped(torch.ones(1, 2)), expected) and minidynamo.stats(wrapped).graphs == 1


def test_a_compiled_wrapper_without_gradients():
    torch.manual_seed(0)
    wrapped = DistributedDataParallel(nn.Linear(2, 2))
    expected = wrapped(torch.ones(1, 2))
    minidynamo.compile(wrapped, backend="aot_eager", fullgraph=True)
    with torch.no_grad():
        assert torch.equal(wrapped(torch.ones(1, 2)), expected)
