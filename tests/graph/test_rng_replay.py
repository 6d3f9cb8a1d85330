"""Random numbers are drawn from a saved state, and drawn again."""

from __future__ import annotations

import pytest
import torch

from minidynamo.graph.rng_replay import STATE_BYTES, draw, draw_again, random_state

CPU = torch.device("cpu")


@pytest.mark.parametrize(
    ("name", "args"),
    [
        ("aten.bernoulli.p", (torch.empty(700), 0.3)),
        ("aten.rand_like.default", (torch.empty(9),)),  # takes a generator by another overload
        ("aten.native_dropout.default", (torch.ones(300), 0.5, True)),  # takes none
    ],
)
def test_what_torch_draws_and_the_same_once_more(name, args):
    def expected():
        packet, overload = name.split(".")[1:]
        made = getattr(getattr(torch.ops.aten, packet), overload)(*args)
        return made if isinstance(made, tuple) else (made,)

    torch.manual_seed(3)
    drawn, behind = expected(), torch.get_rng_state()
    torch.manual_seed(3)
    state = random_state(CPU)
    first = draw(name, CPU, state, *args)
    assert torch.equal(torch.get_rng_state(), behind) and len(state) == STATE_BYTES["cpu"]
    torch.rand(5)
    between = torch.get_rng_state()
    second = draw_again(name, CPU, state, *args)
    assert torch.equal(torch.get_rng_state(), between)
    for made in (first, second):
        assert all(map(torch.equal, made, (*drawn, behind)))


def test_what_others_draw_meanwhile_changes_nothing():
    torch.manual_seed(3)
    state = random_state(CPU)
    expected = torch.empty(8).bernoulli_(0.5)  # as another thread might, between reading the state and drawing
    (made, _) = draw("aten.bernoulli.p", CPU, state, torch.empty(8), 0.5)
    assert torch.equal(made, expected)


def test_an_error_leaves_the_generator_alone():
    state, before = torch.Generator().manual_seed(1).get_state(), torch.get_rng_state()
    with pytest.raises(RuntimeError):
        draw_again("aten.native_dropout.default", CPU, state, torch.ones(2, dtype=torch.int64), 2.0, True)
    assert torch.equal(torch.get_rng_state(), before)
