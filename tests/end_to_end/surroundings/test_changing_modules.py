"""Modules that change themselves while compiled code runs, call after call."""

from __future__ import annotations

import copy

import pytest
import torch
from torch import nn

from minidynamo import compile as compile_function
from minidynamo import graph_break
from minidynamo.core.events import MinidynamoNotice
from minidynamo.testing import assert_same_as_eager, no_recompile
from tests.end_to_end.histories import Histories, compare
from tests.end_to_end.programs import rows_of

histories = Histories()


def vectors():
    return torch.arange(6.0).reshape(2, 3)


def parts(module):
    return str(module), list(module.state_dict().items()), sorted(module._non_persistent_buffers_set)


@histories
class Cases:
    def another_activation_at_each_call(compiled):
        class M(nn.Module):
            def __init__(self):
                super().__init__()
                self.act = nn.ReLU()

            def forward(self, x):
                self.act = nn.Tanh() if isinstance(self.act, nn.ReLU) else nn.ReLU()
                return self.act(x)

        m = compiled(M())
        for _ in range(4):
            yield m(vectors()), parts(m)

    def everything_registered_at_each_call(compiled):
        class M(nn.Module):
            def __init__(self):
                super().__init__()
                self.a = nn.Parameter(torch.ones(3))
                self.b = None

            def forward(self, x):
                self.register_buffer("seen", x * 2)
                self.register_buffer("hidden", x, persistent=False)
                self.b = self.a
                self.extra = nn.Identity()
                return x * self.b + self.seen

        m = compiled(M())
        for _ in range(3):
            yield m(vectors()), parts(m), "b" in m.__dict__

    def parts_in_another_order(compiled):
        class M(nn.Module):
            def __init__(self):
                super().__init__()
                self.first, self.second = nn.ReLU(), nn.Tanh()

            def forward(self, x):
                kept = self.first
                del self.first
                self.first = kept
                self.first, self.second = self.second, self.first
                for m in self.children():
                    x = m(x) - 0.5
                return x

        m = compiled(M())
        for _ in range(4):
            yield m(vectors())
            yield parts(m)

    def a_module_made_and_kept(compiled):
        class M(nn.Module):
            def __init__(self):
                super().__init__()
                self.layers = nn.ModuleList([nn.ReLU()])

            def forward(self, x):
                made = nn.Sequential(*self.layers, nn.Tanh())
                made.tag = [1]
                self.layers.append(made[-1])
                self.kept = made
                return made(x)

        m = compiled(M())
        for _ in range(3):
            yield m(vectors()), parts(m)
            yield m.kept.tag, m.kept[0] is m.layers[0], m.layers[-1] is m.kept[-1], m.kept.training

    def parameters_swapped(compiled):
        class M(nn.Module):
            def __init__(self):
                super().__init__()
                self.a, self.b = nn.Parameter(torch.ones(3)), nn.Parameter(torch.full((3,), 2.0))

            def forward(self, x):
                self.a, self.b = self.b, self.a
                return x * self.a

        m = compiled(M())
        for _ in range(3):
            y = m(vectors())
            y.sum().backward()
            yield y, m.a, m.a.grad, m.b.grad

    def a_buffer_replaced_and_written(compiled):
        class M(nn.Module):
            def __init__(self):
                super().__init__()
                self.register_buffer("state", torch.zeros(3))

            def forward(self, x):
                old = self.state
                self.state = x[0] * 2
                self.state.add_(1)
                self.state += old
                return self.state * 1, old

        m = compiled(M())
        for _ in range(3):
            yield m(vectors()), m.state

    def evaluation_inside_of_a_call(compiled):
        m = nn.Sequential(nn.Linear(3, 3), nn.Dropout(0.5))

        @compiled
        def predict(x):
            was = m.training
            m.eval()
            y = m(x)
            m.train(was)
            return y

        for mode in (True, True, False):
            m.train(mode)
            yield predict(vectors()), [part.training for part in m.modules()]

    def what_nn_module_refuses(compiled):
        class M(nn.Module):
            def __init__(self):
                super().__init__()
                self.layer = nn.ReLU()
                self.p = nn.Parameter(torch.ones(3))
                self.register_buffer("b", torch.ones(3))

            def forward(self, x, kind):
                try:
                    if kind == "module":
                        self.layer = 3
                    elif kind == "parameter":
                        self.p = torch.ones(3)
                    elif kind == "buffer":
                        self.b = "text"
                    elif kind == "taken":
                        self.register_buffer("layer", x)
                    elif kind == "dot":
                        self.register_buffer("a.b", x)
                    elif kind == "method":
                        self.add_module("forward", nn.ReLU())
                    elif kind == "tensor":
                        self.register_parameter("q", x)
                    elif kind == "missing":
                        del self.nothing
                    elif kind == "none":
                        self.b = self.p = self.layer = None
                except Exception as error:
                    return x + 1, type(error).__name__, str(error)
                return x * 2

        m = compiled(M(), recompile_limit=64)
        for kind in ("module", "parameter", "buffer", "taken", "dot", "method", "tensor", "missing", "none", "nothing"):
            yield m(vectors(), kind)
            yield parts(m)

    def attributes_before_init(compiled):
        class M(nn.Module):
            def __init__(self, early):
                self.scale = 2
                if early:
                    self.layer = nn.ReLU()
                super().__init__()

            def forward(self, x):
                return x * self.scale

        @compiled
        def f(x, early):
            try:
                return M(early)(x)
            except AttributeError as error:
                return str(error)

        for early in (False, True, False):
            yield f(vectors(), early)

    def a_missing_part_that_comes(compiled):
        class M(nn.Module):
            def forward(self, x):
                try:
                    return self.part(x)
                except AttributeError as error:
                    return str(error)

        m = compiled(M())
        yield m(vectors())
        m.part = nn.Tanh()
        yield m(vectors())
        del m.part
        yield m(vectors())

    def averaged_weights(compiled):
        torch.manual_seed(0)
        model, average = nn.Linear(3, 3), nn.Linear(3, 3)

        @compiled(fullgraph=True)
        def update():
            with torch.no_grad():
                for new, old in zip(model.parameters(), average.parameters()):
                    old.mul_(0.9).add_(new, alpha=0.1)

        for _ in range(3):
            update()
            yield list(average.parameters())

    def tables_of_another_class(compiled):
        class Told(dict):
            asked = 0

            def __getitem__(self, name):
                Told.asked += 1
                return super().__getitem__(name)

        class M(nn.Module):
            def __init__(self):
                super().__init__()
                torch.manual_seed(0)
                self.lin = nn.Linear(3, 3)

            def forward(self, x):
                return self.lin(x)

        for table in ("_parameters", "_modules"):
            m = compiled(M())
            owner = m.lin if table == "_parameters" else m
            yield m(vectors())
            setattr(owner, table, Told(getattr(owner, table)))
            Told.asked = 0
            yield (m(vectors()), Told.asked), (m(vectors()), Told.asked)


@pytest.mark.parametrize("history", histories)
def test_same_as_eager(history):
    compare(history, "aot_eager")


# Copies that share tables, or all attributes, with the original module


class Scaled(nn.Module):
    def __init__(self, factor=2.0):
        super().__init__()
        self.linear = nn.Linear(3, 3)
        self.register_buffer("offset", torch.ones(3))
        self.factor = factor

    def forward(self, x):
        return self.linear(x) * self.factor + self.offset


def shared_attributes(module):
    other = Scaled.__new__(Scaled)
    other.__dict__ = module.__dict__
    return other


def made_with_its_own_tables(module, x):
    made = module.__class__.__new__(module.__class__)
    made.__dict__.update(module.__dict__)
    made._buffers = module._buffers.copy()
    made._modules = {**module._modules, "part": nn.Identity()}
    known = [hasattr(made, name) for name in ("offset", "linear", "part", "factor")]
    made.offset = x[0]
    return made(x), known, hasattr(module, "part"), module.offset


def test_a_module_may_be_made_with_tables_that_were_made_before():
    def make():
        torch.manual_seed(0)
        return Scaled(), vectors()

    assert_same_as_eager(made_with_its_own_tables, make, calls=2, graphs=1)


COPIES = {"shallow copy": copy.copy, "shared attributes": shared_attributes, "deep copy": copy.deepcopy}


class Copied:
    def add_a_part(one, other, x):
        other.part = nn.Identity()
        return one(x), other.part(x), hasattr(one, "part"), len(list(one.children()))

    def add_a_part_and_ask(one, other, x):
        other.part = nn.Identity()
        return other.part(x), hasattr(one, "part")

    def replace_a_part(one, other, x):
        before = one(x)
        other.linear, other.factor = nn.Identity(), 3.0
        return before, one(x), other(x), one.linear is other.linear, one.factor

    def replace_a_buffer(one, other, x):
        other.offset = x[0]
        return one(x), other(x), one.offset is other.offset


@pytest.mark.parametrize("how", [[name] for name in COPIES] + [["deep copy", "shallow copy"]], ids=" then ".join)
@pytest.mark.parametrize("program", rows_of(Copied))
def test_copies_of_modules(program, how):
    def inputs(name):
        def make():
            one = Scaled()
            return one, COPIES[name](one), torch.randn(2, 3)

        return make

    assert_same_as_eager(program, *map(inputs, how), calls=2, backward=False)


def test_a_copy_that_is_called_takes_no_break():
    def make():
        one = Scaled()
        other = copy.copy(one)
        other.factor = 5.0
        return one, other, torch.randn(2, 3)

    assert_same_as_eager(lambda one, other, x: one(x) + other(x), make, calls=3, graphs=1, breaks=0, recompiles=0)


def classes_with_one_forward(count):
    """Returns modules of `count` classes, whose shared forward has a graph break."""

    class Base(nn.Module):
        def forward(self, x):
            y = x * 2
            graph_break()
            return y + self.offset

    return [type(f"Part{number}", (Base,), {"offset": number})() for number in range(count)]


def run_in_turn(modules, x):
    for module in modules:
        x = module(x)
    return x


def test_the_recompile_limit_counts_per_class_of_module():
    modules = classes_with_one_forward(12)
    compiled = compile_function(run_in_turn, backend="eager")
    for _ in range(2):
        assert torch.equal(compiled(modules, vectors()), run_in_turn(modules, vectors()))
    assert len(compiled.graphs) == 13  # one for all before the break, one for each after
    with no_recompile():
        compiled(modules, vectors())


def test_modules_of_many_classes_come_to_a_limit_too():
    modules = classes_with_one_forward(12)
    compiled = compile_function(run_in_turn, backend="eager", recompile_limit=1)
    with pytest.warns(MinidynamoNotice, match="8 versions exist"):
        assert torch.equal(compiled(modules, vectors()), run_in_turn(modules, vectors()))
