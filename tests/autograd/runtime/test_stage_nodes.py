"""Stages run a compiled backward until their gradients are final, and pass each gradient on once."""

from __future__ import annotations

import torch

from minidynamo.autograd.runtime.input_nodes import MOST_RUNS
from minidynamo.autograd.runtime.stage_nodes import Stages, stage_nodes


def steps(ran):
    """Hands over gradients 2 and 0; gradient 1 comes at the end."""
    for position in (2, 0):
        ran.append(position)
        handed = [torch.tensor(float(position))]
        yield position, handed
        assert not handed  # the caller has taken it
    ran.append("end")
    return None, torch.tensor(1.0), None


def test_each_stage_runs_as_far_as_it_must():
    stages = Stages(((2,), (0,), (1,)), torch.device("cpu"))
    ran = []
    stages.run_in_steps(steps(ran), None)
    assert ran == []
    assert stages.take(0) == [torch.tensor(2.0)] and ran == [2]
    assert stages.take(1) == [torch.tensor(0.0)] and ran == [2, 0]
    assert stages.take(2) == [torch.tensor(1.0)] and ran == [2, 0, "end"]
    assert not stages.runs


def test_gradients_that_come_early_wait_for_their_stage():
    stages = Stages(((1,), (0, 2)), torch.device("cpu"))
    ran = []
    stages.run_in_steps(steps(ran), None)
    assert stages.take(0) == [torch.tensor(1.0)] and ran == [2, 0, "end"]
    assert stages.take(1) == [torch.tensor(0.0), torch.tensor(2.0)]


def test_a_receiver_may_keep_gradients():
    stages = Stages(((2,), (0, 1)), torch.device("cpu"))
    kept = {}
    stages.run_in_steps(steps([]), lambda position, gradient: kept.update({position: gradient}))
    assert stages.take(0) == [None] and stages.take(1) == [None, torch.tensor(1.0)]
    assert kept == {2: torch.tensor(2.0), 0: torch.tensor(0.0)}


def test_unfinished_backwards_are_forgotten(monkeypatch):
    stages = Stages(((0,), (1,)), torch.device("cpu"))
    for number in range(MOST_RUNS + 5):
        monkeypatch.setattr("minidynamo.compat.current_backward", lambda number=number: number)
        stages.hold([None, None])
    assert len(stages.runs) == MOST_RUNS and min(stages.runs) == 5


def test_autograd_runs_the_leaves_of_a_stage_before_the_next_stage():
    ran = []
    leaves = [torch.zeros((), requires_grad=True) for _ in range(3)]
    for number, leaf in enumerate(leaves):
        leaf.register_post_accumulate_grad_hook(lambda _, number=number: ran.append(f"leaf {number}"))
    stages, following = stage_nodes(((2,), (0,), (1,)), leaves)

    def begin(_):
        stages.run_in_steps(steps(ran), None)

    following.grad_fn.register_prehook(begin)
    following.backward(torch.empty(0))
    assert [leaf.grad.item() for leaf in leaves] == [0, 1, 2]
    assert ran == [2, "leaf 2", 0, "leaf 0", "end", "leaf 1"]
