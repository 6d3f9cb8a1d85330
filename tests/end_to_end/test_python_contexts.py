import contextlib

import pytest
import torch

from tests.end_to_end.programs import Programs, leaf

programs = Programs()


@pytest.mark.parametrize("program", programs)
def test_same_as_eager(program):
    program.check()


@programs(leaf)
def nested_grad_modes(x):
    with torch.no_grad():
        a = x + 1
        with torch.enable_grad():
            b = x * 2
        c = a * 2
    return a, b, c, torch.is_grad_enabled()


@programs(leaf)
def grad_mode_by_a_flag(x):
    with torch.set_grad_enabled(x.shape[0] > 10):
        y = x * 2
    return y, x * 3


@programs(leaf)
def grad_mode_of_a_called_function(x):
    def inner(v):
        with torch.no_grad():
            return v * 2

    return inner(x) + x


@torch.no_grad()
def without_gradient(x):
    return x * 2


@programs(leaf)
def grad_mode_as_decorator(x):
    return without_gradient(x) + x


@programs(leaf, breaks=None, graphs=None)
def break_inside_a_grad_mode(x):
    with torch.no_grad():
        y = x * 2
        print(y.shape)
        z = y + 1
    return z, x * 3, torch.is_grad_enabled()


@programs()
def nullcontext(x):
    with contextlib.nullcontext(3) as n, contextlib.nullcontext():
        y = x * n
    return y


class Level:
    depth = 0

    def __init__(self, log, name):
        self.log, self.name = log, name

    def __enter__(self):
        self.log.append(("in", self.name))
        return self.name

    def __exit__(self, *error):
        self.log.append(("out", self.name, error[0] is None))


@programs()
def several_of_the_user(x):
    log = []
    with Level(log, "a") as a, Level(log, "b") as b:
        y = x + len(a + b)
        with Level(log, "c"):
            y = y * 2
    return y, log


@programs()
def leaving_by_return(x):
    log = []

    def inner(v):
        for i in range(3):
            with Level(log, i):
                if i == 1:
                    return v + i
        return v

    return inner(x), log


@programs(breaks=None, graphs=None)
def break_inside_one_of_the_user(x):
    log = []
    with Level(log, "a"):
        y = x + 1
        print(len(log))
        y = y * 2
    return y, log


@programs(breaks=None, graphs=None)
def exception_inside_one_of_the_user(x):
    log = []
    try:
        with Level(log, "a"):
            y = x + 1
            raise ValueError("no")
    except ValueError as error:
        log.append(str(error))
    return y, log


@programs(breaks=None, graphs=None)
def inference_mode(x):
    with torch.inference_mode():
        y = x * 2
    return y.is_inference(), x + 1


@programs(lambda: torch.randn(4, 4), breaks=None, graphs=None)
def autocast(x):
    with torch.autocast("cpu", dtype=torch.bfloat16):
        y = x @ x
    return y, y.dtype, x + 1


@contextlib.contextmanager
def noted(log):
    log.append("in")
    yield len(log)
    log.append("out")


@programs(breaks=None, graphs=None)
def made_by_contextmanager(x):
    log = []
    with noted(log) as n:
        y = x + n
    return y, log


@programs(breaks=None, graphs=None)
def seed_inside(x):
    y = x + 1
    torch.manual_seed(3)
    return y + torch.rand(4)


@programs(breaks=None, graphs=None)
def parameter_made_inside(x):
    p = torch.nn.Parameter(torch.ones(4))
    return (x * p).sum().detach()
