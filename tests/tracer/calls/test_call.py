# The programs keep the style of users, against the advice of linters.
# ruff: noqa: B008

import functools

import torch

from minidynamo import disable
from minidynamo.tracer.records import registry
from minidynamo.variables.base import ConstantVariable
from minidynamo.variables.objects import LazyVariable
from tests.end_to_end.programs import Programs, vector
from tests.tracer.capturing import capture, guards_on, targets

programs = Programs()
test_same_as_eager = programs.test()


def scaled(x, factor=2, *, offset=torch.ones(4)):
    return x * factor + offset


class Multiplier:
    def __init__(self, factor):
        self.factor = factor

    def __call__(self, x):
        return x * self.factor


@disable
def as_written(x):
    return x + 1


@programs()
class Cases:
    @programs(lambda: (vector(), Multiplier(3), scaled, functools.partial(scaled, factor=5), torch.relu, vector().add))
    def callables_as_arguments(x, obj, function, partial, builtin, method):
        return obj(x) + function(x) + partial(x, offset=1) + builtin(x) + method(x)

    def unbound_methods(x):
        words = []
        list.append(words, "a")
        return torch.Tensor.add(x, 1), str.upper("a"), dict.fromkeys("ab", 1), words, "-".join(["a", "b"])

    @programs(graphs=2, breaks=1)
    def disabled_function(x):
        return as_written(x * 2) * 3


def test_a_handler_gets_unread_what_it_only_moves():
    seen = {}

    def kinds(name, *values):
        seen[name] = [isinstance(value, LazyVariable) for value in values]
        return ConstantVariable(None)

    def first(moved, read, *rest, named=None, **others):
        raise NotImplementedError

    def second(read, *rest, moved=None, **others):
        raise NotImplementedError

    @registry.function(first)
    @registry.accepts_lazy("moved", "rest", "others")
    def handle_first(tx, moved, read, *rest, named=None, **others):
        return kinds("first", moved, read, *rest, named, *others.values())

    @registry.function(second)
    @registry.accepts_lazy("moved")
    def handle_second(tx, read, *rest, moved=None, **others):
        return kinds("second", read, *rest, moved, *others.values())

    def program(a, b, c, d):
        first(a, b, c, d, named=c, more=d)
        second(a, b, moved=d, more=c)

    capture(program, 1, 2, 3, 4)
    assert seen == {"first": [True, False, True, True, False, True], "second": [False, False, True, False]}


def test_a_global_function_is_guarded_by_identity():
    traced = capture(lambda x: scaled(x), torch.ones(4))
    assert next(iter(guards_on(traced, "scaled").values())) is scaled


def test_torch_functions_become_nodes_as_written():
    def several(x):
        return torch.nn.functional.gelu(torch.relu(x) @ x).sum(0).exp_()

    assert targets(capture(several, torch.ones(2, 2)))[0] is torch.relu
    assert targets(capture(several, torch.ones(2, 2)))[2:] == [torch.nn.functional.gelu, "sum", "exp_"]
