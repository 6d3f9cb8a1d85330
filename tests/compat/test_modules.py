"""Tests of minidynamo/compat/modules.py."""

from __future__ import annotations

import torch

import minidynamo
from minidynamo import compat


def test_code_of_optimizers_and_schedulers_is_found():
    parameter = torch.nn.Parameter(torch.ones(2))
    optimizer = torch.optim.SGD([parameter], lr=0.1)
    torch.optim.lr_scheduler.StepLR(optimizer, 1)
    assert optimizer.step.__code__ is compat.SCHEDULED_STEP
    assert compat.OPTIMIZER_STEP_SWITCH.co_name == "_use_grad"
    assert compat.MODULE_CALL is torch.nn.Module._call_impl is compat.module_call(torch.nn.Linear)


def test_which_arguments_an_operator_writes():
    assert compat.written_arguments(torch._foreach_add_) == {"self": 0}
    assert compat.written_arguments(torch.ops.aten._foreach_add_.List) == {"self": 0}
    assert compat.written_arguments(torch._foreach_add) == compat.written_arguments(torch.sort) == {}
    assert compat.written_arguments(len) == {}
    assert compat.written_arguments(torch._fused_sgd_) == {"self": 0, "grads": 1, "momentum_buffer_list": 2}
    check = torch._amp_foreach_non_finite_check_and_unscale_
    assert compat.written_arguments(check) == {"self": 0, "found_inf": 1}


def test_operators_on_lists():
    assert {op.name() for op in compat.foreach_operators("neg")} == {"aten::_foreach_neg", "aten::_foreach_neg_"}


def doubled():
    graph = torch.fx.Graph()
    graph.output(graph.call_function(torch.mul, (graph.placeholder("x"), 2)))
    return graph


def is_written(module):
    return "_code" in vars(module)


def test_code_is_written_when_somebody_runs_or_reads_it():
    for use in (lambda module: module(torch.ones(1)), lambda module: module.code, str):
        module = compat.graph_module({}, doubled())
        assert not is_written(module)
        use(module)
        assert is_written(module) and module(torch.ones(1)) == 2
    with compat.traced_lazily():
        assert not is_written(torch.fx.symbolic_trace(lambda x: x * 2))


def test_somebody_elses_backend_is_given_ordinary_modules():
    given = []

    def backend(gm, example_inputs):
        given.append([is_written(part) for part in gm.modules() if isinstance(part, torch.fx.GraphModule)])
        return minidynamo.make_boxed_func(gm)

    @minidynamo.compile(backend=backend, fullgraph=True)
    def f(x):
        return minidynamo.cond(x.sum() > 0, lambda x: x * 2, lambda x: x - 1, (x,))

    assert f(torch.ones(1)) == 2
    assert given == [[True, True, True]]
