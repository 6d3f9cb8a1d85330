import torch

from tests.end_to_end.programs import Programs, leaf
from tests.tracer.capturing import capture, targets

programs = Programs()
test_same_as_eager = programs.test()


MANAGER = torch.no_grad()


@programs(leaf)
class Cases:
    def manager_made_outside(x):
        with MANAGER:
            y = x * 2
        return y, x * 3


def test_a_block_without_effect_leaves_no_switch():
    def f(x):
        with torch.enable_grad():
            return x * 2

    assert len(targets(capture(f, torch.ones(2)))) == 1
