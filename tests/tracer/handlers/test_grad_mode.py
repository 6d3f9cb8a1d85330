import pytest
import torch

from tests.end_to_end.programs import Programs, leaf
from tests.tracer.capturing import capture, targets

programs = Programs()


@pytest.mark.parametrize("program", programs)
def test_same_as_eager(program):
    program.check()


@programs(leaf)
def nested_modes(x):
    with torch.no_grad():
        a = x * 2
        with torch.enable_grad():
            b = x * 3
        with torch.set_grad_enabled(False):
            c = x * 4
        mode = torch.is_grad_enabled()
    return a, b, c, mode, a.requires_grad, b.requires_grad, x * 5


@torch.no_grad()
def decorated(x):
    return x * 2


@programs(leaf)
def decorated_function(x):
    return decorated(x), x * 3


@programs(leaf, graphs=2, breaks=1)
def break_inside_the_block(x):
    with torch.no_grad():
        y = x * 2
        print("here")
        z = y + x
    return z, x * y


MANAGER = torch.no_grad()


@programs(leaf)
def manager_made_outside(x):
    with MANAGER:
        y = x * 2
    return y, x * 3


@programs(leaf)
def left_by_return(x):
    with torch.no_grad():
        return x * 2


def test_a_block_without_effect_leaves_no_switch():
    def f(x):
        with torch.enable_grad():
            return x * 2

    assert len(targets(capture(f, torch.ones(2)))) == 1
