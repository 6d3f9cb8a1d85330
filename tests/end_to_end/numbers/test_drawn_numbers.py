"""Random numbers that a program draws from Python's generators equal eager's, and so do the final states of the
generators."""

from __future__ import annotations

import functools
import random
import unittest.mock

import pytest
import torch

import minidynamo
from minidynamo.errors import Unsupported
from minidynamo.testing import assert_same_as_eager, no_recompile
from tests.end_to_end.programs import rows_of, table

GENERATOR = random.Random(3)
CUT = {}


def vector():
    GENERATOR.seed(3)
    return torch.randn(4)


def cut(breaks, recompiles):
    """Adds a program with these numbers of breaks and recompiles in five calls."""
    return table(lambda name, fn: CUT.update({name: (fn, breaks, recompiles)}), lambda fn: fn.__name__ in CUT)


class Captured:
    def one_of_each(x):
        a = random.random() + random.uniform(-1, b=2.5) + random.gauss(0, 1) + random.gauss(0.5, 2)
        b = random.randint(0, 5) - random.randrange(10) * random.randrange(0, 10, step=3) + random.getrandbits(5)
        c = random.triangular(0, 1, 0.3) + random.betavariate(1, 2) + random.expovariate(2) + random.normalvariate(0, 1)
        d = random.lognormvariate(0, 1) + random.gammavariate(2, 1) + random.vonmisesvariate(0, 1)
        return x * a + b, x + c, x + d, random.paretovariate(2), random.weibullvariate(1, 2)

    def chosen(x):
        strides = [1, 2, 2000]
        a, b = random.choice(strides), GENERATOR.choice((0.5, 1.5))
        return x * a + b, random.choice(range(5)), random.choice(seq=[7]), a, b, random.random()

    def in_a_loop(x):
        for _ in range(10):
            x = x * random.uniform(0.5, 1.5)
        return x, [random.random() for _ in range(3)]

    def in_callees(x):
        def numbers():
            for _ in range(3):
                yield random.random()

        some = numbers()
        first = next(some)
        between = random.random()
        return drawn(drawn(x)) * first * between + next(some) + functools.partial(drawn, low=0.5)(x)

    def several_generators(x):
        draw = GENERATOR.random
        return x * draw() + random.random() - GENERATOR.randrange(10) + random.Random.uniform(GENERATOR, 0, draw())

    def beside_torch(x):
        return torch.dropout(x, 0.5, True) * random.random() + torch.rand(4) * random.random()

    def numbers_of_python(x):
        a, i = random.random(), random.randint(1, 9)
        y = x * (i % 3) + i // 2 + i / 4 + (i & 3) - (-i) ** 2 + a * 2
        return y, a, [a, -a, abs(a), i], f"{a:.3f} {i}", a is a, isinstance(i, int)

    def stored(x):
        x.last = random.random()
        x.mul_(random.random()).add_(1, alpha=random.random())
        return x.clamp(0, random.random()) + torch.full((4,), random.random())

    def names_of_its_own(drawn_0):
        drawn_1 = random.random()
        return drawn_0 * drawn_1 + random.random()

    def with_a_position(x):
        return torch.roll(x, random.randint(0, 3)) + x.unsqueeze(0) * random.randint(-3, 3)

    def seeded(x):
        a = random.random()
        random.seed(7)
        GENERATOR.seed("seven {}", version=2)
        return x * a + random.random() + GENERATOR.gauss(0, 1)


def drawn(x, low=0):
    return x * random.uniform(low, 2)


@cut(breaks=1, recompiles=0)
class DecidedByPython:
    @cut(breaks=1, recompiles=1)
    def branch(x):
        if random.random() < 0.5:
            x = x * 2
        return x + 1

    @cut(breaks=4, recompiles=1)  # the body of the loop is captured once
    def stochastic_depth(x):
        for _ in range(3):
            if random.random() < 0.5:
                x = (x * 2).sin()
        return x + 1

    def index(x):
        y = x * random.random()
        return y[random.randint(0, 3)] + y.sum()

    def probability(x):
        return torch.nn.functional.dropout(x, random.random()) + random.random()

    def around_a_break(x):
        x = x * random.random()
        minidynamo.graph_break()
        print(end="")
        return x + random.random()

    @cut(breaks=2, recompiles=0)
    def drawn_twice(x):
        state = random.getstate()
        a = random.random()
        random.setstate(state)
        return x * a + random.random()

    def larger_than_a_graph_takes(x):
        return x * random.random(), random.randint(0, 2**70)

    def recomputed(x):
        return torch.utils.checkpoint.checkpoint(lambda x: x.sin() * random.random(), x, use_reentrant=False)

    @cut(breaks=2, recompiles=1)
    def behind_a_cache(x):
        cached.cache_clear()
        return x * cached(3)


@functools.cache
def cached(number):
    return random.random() * number


@pytest.mark.parametrize("backend", ["eager", "aot_eager"])
@pytest.mark.parametrize("program", rows_of(Captured))
def test_one_graph_for_all_numbers(program, backend):
    # Torch's kernels round as in eager; autograd's graphs give the same numbers.
    assert_same_as_eager(program, vector, calls=5, graphs=1, breaks=0, recompiles=0, backend=backend)


@pytest.mark.parametrize("name", CUT)
def test_decided_by_python(name):
    program, breaks, recompiles = CUT[name]
    compiled = assert_same_as_eager(program, vector, calls=5, breaks=breaks, recompiles=recompiles)
    random.seed(0)
    with no_recompile():
        compiled(torch.ones(4))


def test_kernels_take_them():
    for program in (Captured.in_a_loop, Captured.numbers_of_python, Captured.beside_torch):
        assert_same_as_eager(program, vector, calls=3, graphs=1, backend="native")

    def trained(x):
        return x * random.random() - x * x * random.randint(1, 3)

    assert_same_as_eager(trained, lambda: torch.ones(4, requires_grad=True), calls=3, graphs=1, backend="native")


def test_a_model_with_many_parameters():
    model = torch.nn.Sequential(*(torch.nn.Linear(4, 4) for _ in range(9)))

    def noisy(x):
        for layer in model:
            x = layer(x) * random.uniform(0.5, 1.5)
        return x

    assert_same_as_eager(noisy, vector, calls=3, graphs=1, breaks=0, backward=False)


class Halved(random.Random):
    def random(self):
        return super().random() / 2


def test_a_generator_may_be_replaced():
    class Model(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.generator, self.calls = random.Random(5), 0

        def forward(self, x):
            self.calls += 1
            return x * self.generator.random() + self.generator.uniform(-self.calls, 1)

    eager, model = Model(), Model()
    compiled = minidynamo.compile(model, backend="eager")

    def same():
        for _ in range(4):
            assert torch.equal(eager(torch.ones(3)), compiled(torch.ones(3)))
        assert eager.generator.getstate() == model.generator.getstate() and eager.calls == model.calls
        return minidynamo.stats(compiled).graphs

    before = same()
    eager.generator, model.generator = random.Random(6), random.Random(6)
    assert same() == before == 2  # the number of calls varies
    eager.generator, model.generator = Halved(7), Halved(7)
    assert same() > before
    eager.generator, model.generator = random.Random(8), random.Random(8)
    eager.generator.random = model.generator.random = lambda: 0.25
    assert compiled(torch.ones(1)) == eager(torch.ones(1))


def test_a_replaced_function_is_noticed():
    @minidynamo.compile(backend="eager")
    def f(x):
        return x * random.random() + random.uniform(0, 1)

    f(torch.ones(1))
    with unittest.mock.patch("random.uniform", return_value=4.0):
        assert f(torch.zeros(1)) == 4
    with unittest.mock.patch("random.random", return_value=0.5), unittest.mock.patch("random.uniform", lambda a, b: b):
        assert f(torch.ones(1)) == 1.5
    random.seed(0)
    expected = random.random() + random.uniform(0, 1)
    random.seed(0)
    with no_recompile():
        assert f(torch.ones(1)).item() == pytest.approx(expected)


@pytest.mark.parametrize("handled", [False, True])
def test_an_error_of_the_graph_leaves_the_generator_as_eager_does(handled):
    def fails(x, i):
        y = x * random.random()
        return y[i] + random.random()

    def handles(x, i):
        try:
            return fails(x, i)
        except IndexError:
            return x - random.random()

    program = handles if handled else fails
    good, bad = (lambda: (torch.ones(4), torch.tensor([1]))), (lambda: (torch.ones(4), torch.tensor([9])))
    assert_same_as_eager(program, good, bad, good, graphs=1, breaks=0)


def test_nothing_is_decided_in_one_graph():
    with pytest.raises(Unsupported, match=r"MD230.*decides by a random number"):
        minidynamo.compile(DecidedByPython.branch, backend="eager", fullgraph=True)(torch.ones(4))


@pytest.mark.filterwarnings("ignore::minidynamo.core.events.MinidynamoNotice")
def test_static_graphs_take_none():
    assert_same_as_eager(Captured.names_of_its_own, vector, calls=3, breaks=4, dynamic=False)


def test_what_is_shown():
    def f(x):
        return x * GENERATOR.uniform(0, 0.5)

    compiled = minidynamo.compile(f, backend="eager")
    compiled(torch.ones(3))
    assert "drawn_0 = uniform(G['GENERATOR'], 0, 0.5)" in compiled.code()
    assert "`drawn" not in compiled.guards()
