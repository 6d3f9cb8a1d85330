"""Random numbers equal eager's, and the generators end in eager's state."""

from __future__ import annotations

import torch
import torch.nn.functional as F

import minidynamo
from tests.end_to_end.programs import Programs, vector

programs = Programs()
test_same_as_eager = programs.test()


@programs(vector)
class Cases:
    def made(x):
        new = torch.rand(3), torch.randn(2, 2), torch.randint(0, 10, (3,))
        new += torch.randperm(5), torch.normal(0.0, 1.0, (2,))
        return new, torch.rand_like(x), torch.randn_like(x), torch.bernoulli(x.sigmoid()), torch.poisson(x.abs())

    def drawn_in_place(x):
        in_place = x.clone().normal_(), x.clone().uniform_(-1, 1), x.clone().exponential_(), x.clone().random_(0, 5)
        return in_place, x.clone().bernoulli_(0.3), torch.multinomial(torch.ones(4), 2), F.dropout(x, 0.5)

    def unused_numbers_are_drawn(x):
        torch.rand(3)
        torch.nn.init.normal_(torch.empty(2))
        return torch.rand(1) + x

    @programs(lambda: torch.empty(3, 4))
    def initializations(x):
        several = (
            torch.nn.init.xavier_uniform_(x).sum(),
            torch.nn.init.kaiming_normal_(x).sum(),
            torch.nn.init.zeros_(x).sum(),
        )
        made = several, torch.nn.init.constant_(x, 2.0).sum(), torch.nn.init.uniform_(x)
        return *made, torch.nn.init.calculate_gain("relu")

    @programs(lambda: (vector(), torch.Generator().manual_seed(3)), graphs=2, breaks=1)
    def generator_as_argument(x, generator):
        y = x * 2
        return torch.randn(4, generator=generator) + y

    @programs(vector, graphs=2, breaks=1)
    def seeded_inside(x):
        y = x * 2
        torch.manual_seed(7)
        return torch.randn(4) + y


def test_a_state_that_is_put_back():
    def program(x):
        state = torch.get_rng_state()
        first = torch.randn(3)
        torch.set_rng_state(state)
        return first, torch.randn(3), x + 1

    first, again, _ = minidynamo.compile(program, backend="eager")(vector())
    assert torch.equal(first, again)


def test_sizes_vary_where_the_generator_is_none():
    def noisy(x):
        kwargs = {"generator": None, "dtype": x.dtype}
        made = x + torch.randn(x.shape, **kwargs), torch.rand(x.shape[0], 2, **kwargs)
        return *made, torch.randint(9, x.shape, **kwargs)

    compiled = minidynamo.compile(noisy, backend="aot_eager", fullgraph=True)
    for size in (2, 3, 4, 5):
        got, expected = (torch.manual_seed(0) and fn(torch.ones(size, 3)) for fn in (compiled, noisy))
        torch.testing.assert_close(got, expected, rtol=0, atol=0)
    assert compiled.stats.compiles == 2
