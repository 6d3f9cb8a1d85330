"""Functions that `torch.jit.script` has compiled are traced; functions with a different meaning in Python are left to
torch."""

import warnings

import torch

import minidynamo
from tests.end_to_end.programs import Programs, vector

programs = Programs()
test_same_as_eager = programs.test()


def script(function):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)
        return torch.jit.script(function)


@script
def capped(x, bound: float, factor: int | None = None, turn: bool = False):
    y = (x / bound).tanh() * bound
    if factor is not None:
        y = y * factor
    return -y if turn else y


@script
def both(x):
    return capped(x, 2.0), x.size(0)


@script
def scaled(x, factor: float):
    return x * factor


@script
def refused(x):
    if x.size(0) > 3:
        raise ValueError("too long")
    return x + 1


@script
def asked(x):
    return x + 1 if torch.jit.is_scripting() else x - 1


@script
def asked_inside(x):
    return asked(x) * 2


with warnings.catch_warnings():
    warnings.simplefilter("ignore", DeprecationWarning)
    traced = torch.jit.trace(lambda x: x * 3, torch.ones(2))


@programs(lambda: (vector(),), graphs=0, breaks=1)
class Cases:
    @programs(lambda: (vector(),))
    def scripted_functions(x):
        return capped(x, 2.0), capped(x, bound=3.0, factor=2, turn=True), both(x), scaled(x, 1.5), refused(x[:3])

    @programs(lambda: (torch.tensor([1, 2]),), graphs=0, breaks=1)
    def a_number_that_is_converted(x):
        return scaled(x, 2)

    def a_function_that_asks_who_runs_it(x):
        return asked_inside(x)

    def a_function_that_was_traced(x):
        return traced(x)


def test_errors_are_those_of_torchscript():
    @minidynamo.compile(backend="eager")
    def attempt(x):
        try:
            return refused(x)
        except ValueError:
            return "Python's"
        except torch.jit.Error:
            return "TorchScript's"

    assert attempt(torch.ones(2)).tolist() == [2, 2]
    assert attempt(torch.ones(5)) == "TorchScript's"


def test_which_function_is_called_is_guarded():
    called = [capped]
    compiled = minidynamo.compile(lambda x: called[0](x, 2.0), backend="eager", fullgraph=True)
    for function in (capped, scaled, capped):
        called[0] = function
        torch.testing.assert_close(compiled(torch.ones(3)), function(torch.ones(3), 2.0))
