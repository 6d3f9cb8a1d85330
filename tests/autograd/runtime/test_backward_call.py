"""Tests of minidynamo/autograd/runtime/backward_call.py: gradients of any form, and a backward that is compiled
once."""

import threading

import pytest
import torch

import minidynamo
from tests.autograd.programs import compile_program, interpret


def sines(x):
    return (x.sin().sin().sum(),)


def test_threads_share_one_backward():
    compiled = []

    def backward(gm, examples):
        compiled.append(gm)
        return interpret(gm, examples)

    x = torch.randn(20, requires_grad=True)
    call = compile_program(sines, [x], backward=backward)
    want = torch.autograd.grad(sines(x)[0], x)[0]
    results = []

    def work():
        results.append(torch.autograd.grad(call([x])[0], x)[0])

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(compiled) == 1 and all(torch.equal(r, want) for r in results) and len(results) == 4


@pytest.mark.cpp
def test_lazily_negated_gradients_are_made_before_kernels_read_them():
    x, z = torch.randn(3, requires_grad=True), torch.randn(3, dtype=torch.complex64)
    y = minidynamo.compile(lambda x: x.sin(), backend="cpp")(x)
    (got,) = torch.autograd.grad(y, x, z.conj().imag.detach())
    torch.testing.assert_close(got, -z.imag * x.detach().cos())
