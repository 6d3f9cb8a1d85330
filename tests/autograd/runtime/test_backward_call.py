"""Tests of minidynamo/autograd/runtime/backward_call.py: gradients of any form, and a backward that is compiled
once."""

import threading

import pytest
import torch

import minidynamo
from tests.autograd.programs import compile_program, interpret


def sines(x):
    return (x.sin().sin().sum(),)


def test_gradients_of_any_layout_are_accepted():
    x, w = torch.randn(4, 5, requires_grad=True), torch.randn(5, 3, requires_grad=True)

    def program(x, w):
        return ((x @ w).exp(),)

    call = compile_program(program, [x, w])
    gradients = [
        torch.randn(4, 3),
        torch.randn(3, 4).t(),
        torch.randn(1).expand(4, 3),
        torch.randn(8, 6)[::2, ::2],
    ]
    for gradient in gradients:
        got = torch.autograd.grad(call([x, w])[0], (x, w), gradient)
        want = torch.autograd.grad(program(x, w)[0], (x, w), gradient)
        for a, b in zip(got, want):
            torch.testing.assert_close(a, b)


def test_unused_outputs_give_no_gradient_or_zeros():
    x, w = torch.randn(3, requires_grad=True), torch.randn(3, requires_grad=True)
    call = compile_program(lambda x, w: (x * w, x.sin(), w.cos()), [x, w])
    call([x, w])[1].sum().backward()
    torch.testing.assert_close(x.grad, x.detach().cos())
    assert w.grad is None
    call([x, w])[0].sum().backward()
    torch.testing.assert_close(w.grad, x.detach())


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
