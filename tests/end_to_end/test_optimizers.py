"""Training with optimizers: compiled steps, whole compiled training steps, schedules that change the learning rate.

Optimizers run as written: their numbers change from step to step. What is compiled around them is compiled once.
"""

# Programs are written as users write them, not as a linter would.

from __future__ import annotations

import pytest
import torch
from torch import nn

import minidynamo
from minidynamo.testing import CompileCounter, no_recompile

optim = torch.optim
STEPS = 10  # more than an entry may be compiled anew
CASES = {
    "sgd": (optim.SGD, {"lr": 0.1}),
    "momentum": (optim.SGD, {"lr": 0.1, "momentum": 0.9, "weight_decay": 0.01, "dampening": 0.1}),
    "nesterov": (optim.SGD, {"lr": 0.1, "momentum": 0.9, "nesterov": True, "foreach": False}),
    "maximize": (optim.SGD, {"lr": 0.01, "maximize": True, "foreach": True}),
    "adam": (optim.Adam, {"lr": 0.01}),
    "adam one by one": (optim.Adam, {"lr": 0.01, "foreach": False, "amsgrad": True}),
    "adam foreach": (optim.Adam, {"lr": 0.01, "foreach": True, "weight_decay": 0.1}),
    "adam fused": (optim.Adam, {"lr": 0.01, "fused": True}),
    "adamw": (optim.AdamW, {"lr": 0.01, "weight_decay": 0.1}),
    "adamw foreach": (optim.AdamW, {"lr": 0.01, "foreach": True}),
    "rmsprop": (optim.RMSprop, {"lr": 0.01}),
    "adagrad": (optim.Adagrad, {"lr": 0.01}),
}


def model():
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 2))


def train(make, options, how, backend="eager"):
    """Losses, parameters, optimizer state, and the number of graphs after 2 steps and at the end."""
    net = model()
    optimizer = make(net.parameters(), **options)
    schedule = optim.lr_scheduler.ExponentialLR(optimizer, 0.9)
    counter = CompileCounter()
    update = optimizer.step
    if how == "step":
        update = minidynamo.compile(optimizer.step, backend=counter)

    def train_step(x):
        optimizer.zero_grad()
        loss = net(x).pow(2).sum()
        loss.backward()
        update()
        return loss.detach()

    if how == "whole":
        train_step = minidynamo.compile(train_step, backend=counter)
    losses, graphs = [], []
    for number in range(STEPS):
        torch.manual_seed(number)
        losses.append(train_step(torch.randn(3, 4)))
        schedule.step()
        graphs.append(counter.frame_count)
    parameters = [p.detach() for p in net.parameters()]
    return [losses, parameters, optimizer.state_dict()["state"]], (graphs[1], graphs[-1])


@pytest.mark.parametrize("how", ["step", "whole"])
@pytest.mark.parametrize("case", CASES.values(), ids=CASES.keys())
def test_training_with_a_schedule(case, how):
    make, options = case
    expected, _ = train(make, options, "eager")
    actual, graphs = train(make, options, how)
    torch.testing.assert_close(actual, expected, rtol=0, atol=0)
    assert graphs == ((0, 0) if how == "step" else (2, 2))  # the loss, and its copy behind the step


def test_a_step_is_compiled_once():
    net = model()
    optimizer = optim.AdamW(net.parameters(), lr=0.01)

    @minidynamo.compile(backend="eager")
    def train_step(x):
        optimizer.zero_grad(set_to_none=True)
        loss = net(x).pow(2).sum()
        loss.backward()
        optimizer.step()
        return loss

    train_step(torch.randn(3, 4))
    with no_recompile():
        for group in optimizer.param_groups:
            group["lr"] = 0.5
        train_step(torch.randn(3, 4))
    assert all(isinstance(state["step"], torch.Tensor) and state["step"] == 2 for state in optimizer.state.values())


@pytest.mark.filterwarnings("ignore:MD105")  # torch.compile marks this step once it is used in the process
def test_closure():
    results = []
    for compiled in (False, True):
        net = model()
        optimizer = optim.LBFGS(net.parameters(), lr=0.1, max_iter=4)
        x = torch.ones(3, 4)

        def closure(net=net, optimizer=optimizer, x=x):
            optimizer.zero_grad()
            loss = net(x).pow(2).sum()
            loss.backward()
            return loss

        step = optimizer.step
        if compiled:
            step = minidynamo.compile(step, backend="eager")
            closure = minidynamo.compile(closure, backend="eager")
        results.append([step(closure), *net.parameters()])
    torch.testing.assert_close(results[1], results[0], rtol=0, atol=0)


class SignDescent(optim.Optimizer):
    def __init__(self, params, lr=0.1):
        super().__init__(params, {"lr": lr})

    @torch.no_grad()
    def step(self, closure=None):
        for group in self.param_groups:
            for p in group["params"]:
                if p.grad is not None:
                    state = self.state[p]
                    state["step"] = state.get("step", 0) + 1
                    p.add_(p.grad.sign(), alpha=-group["lr"] / state["step"])


def test_optimizer_of_the_users():
    results = [train(SignDescent, {"lr": 0.1}, how) for how in ("eager", "step", "whole")]
    for actual, _ in results[1:]:
        torch.testing.assert_close(actual[:2], results[0][0][:2], rtol=0, atol=0)
        assert actual[2] == results[0][0][2]
    assert results[2][1] == (2, 2)


def test_update_written_out():
    results = []
    for compiled in (False, True):
        net = model()
        counter = CompileCounter()

        def update(net=net):
            with torch.no_grad():
                for p in net.parameters():
                    p -= 0.1 * p.grad
                    p.grad = None

        if compiled:
            update = minidynamo.compile(update, backend=counter, fullgraph=True)
        for number in range(4):
            torch.manual_seed(number)
            net(torch.randn(3, 4)).pow(2).sum().backward()
            update()
            assert all(p.grad is None for p in net.parameters())
        results.append([p.detach() for p in net.parameters()])
    torch.testing.assert_close(results[1], results[0], rtol=0, atol=0)
    assert counter.frame_count == 1
