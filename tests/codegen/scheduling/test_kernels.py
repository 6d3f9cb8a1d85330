"""Kernels: registers, stores, shared loads."""

import torch

from minidynamo.codegen.ir.expr import Load, Ref
from minidynamo.codegen.ir.loops import Accumulate, Let, Store
from tests.codegen.graphs import kernels

X = torch.ones(8, 16)


def statements(function, *args):
    (kernel,) = kernels(function, *args)
    return kernel, list(kernel.statements())


def test_inner_values_are_registers():
    kernel, body = statements(lambda x: x.softmax(1), X)
    assert [b.name for b in kernel.writes] == ["_softmax"]
    assert {s.name for s in body if isinstance(s, Let) and s.kept} == {"_softmax_map"}


def test_inner_values_of_long_rows_lie_in_the_result():
    kernel, body = statements(lambda x: x.softmax(1), torch.ones(2, 20_000))
    first, last = [s for s in body if isinstance(s, Store)]
    assert first.buffer == last.buffer == "_softmax" and first.index == last.index
    assert Let("_softmax_map", Load("_softmax", (last.index,), torch.float32)) in body
    assert [b.name for b in kernel.reads] == ["x_1"]


def test_memory_that_is_read_twice_is_named():
    _, body = statements(lambda x: x * x + x, X)
    assert body[0] == Let("x_1_at", Load("x_1", body[0].value.index, torch.float32))
    assert sum(1 for s in body for _ in s.value.loads) == 1


def test_single_store_takes_its_value():
    _, body = statements(lambda x: x.exp() + 1, X)
    assert len(body) == 1 and isinstance(body[0], Store)


def test_several_stores_come_behind_all_values():
    _, body = statements(lambda x: ((e := x.exp()), e * 2), X)
    kinds = [isinstance(s, Store) for s in body]
    assert kinds == sorted(kinds)
    assert all(isinstance(s.value, Ref) for s in body if isinstance(s, Store))


def test_fold_of_half_is_cast_behind_the_loop():
    kernel, body = statements(lambda x: x.sum(1), X.bfloat16())
    (fold,) = [s for s in body if isinstance(s, Accumulate)]
    assert fold.dtype == torch.float32
    assert kernel.writes[0].dtype == torch.bfloat16


def test_a_store_into_an_input_is_a_write_of_it():
    def function(x, y):
        torch.ops.aten.copy_.default(x, x + y)
        return ()

    kernel, _ = statements(function, *torch.ones(2, 3))
    assert ([b.name for b in kernel.reads], [b.name for b in kernel.writes]) == (["y_1"], ["x_1"])
