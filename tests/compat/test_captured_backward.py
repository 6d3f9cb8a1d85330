"""torch's capture of autograd graphs."""

from __future__ import annotations

import torch

from minidynamo import compat


class Refuses(Exception):
    pass


def _refuse():
    raise Refuses


def test_the_compiler_is_asked_inside_of_the_block_only():
    x = torch.ones(2, requires_grad=True)
    compat.forget_captured_backwards()
    try:
        with compat.backward_compiler(_refuse), torch.autograd.set_multithreading_enabled(False):
            x.tanh().sum().backward()
        raise AssertionError("torch has not asked the compiler")
    except Refuses:
        pass
    with compat.backward_compiler(_refuse), compat.backward_compiler(None):
        x.tanh().sum().backward()
    assert x.grad is not None


def test_symbolic_numbers_have_values_and_texts():
    mode = compat.fake_mode_for_backward()
    a, b = compat.symbolic_number(mode, 4, "sizes[0]"), compat.symbolic_number(mode, 5, "sizes[1]")
    with compat.on_fakes(mode):
        assert a * 2 > b
    assert compat.hint_of_number(a * b) == 20
    assert compat.text_of_number(a + b).count(compat.text_of_number(a)) == 1


def test_the_running_backward_is_found_by_its_frame():
    seen, x, y = [], torch.ones(2, requires_grad=True), torch.ones(2, requires_grad=True)
    assert compat.running_backward() is None
    z = x * y
    z.register_hook(lambda g: seen.append(compat.running_backward()))
    torch.autograd.grad(z.sum(), [y])
    ((_, requested),) = seen
    assert len(requested) == 1 and requested[0] is y
