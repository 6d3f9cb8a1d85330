"""Training with optimizers: compiled steps, whole compiled training steps, schedules that change the learning rate.

A step is captured whole, with eager's numbers. The step is compiled for the first call, which creates the state, and
once more for all later calls.
"""

# The programs keep the style of users, against the advice of linters.

from __future__ import annotations

import copy
import functools
import io
import re
from collections import defaultdict

import pytest
import torch
from torch import nn

import minidynamo
from minidynamo.observe.comparison import seed_generators
from minidynamo.testing import CompileCounter, no_recompile
from tests.end_to_end.programs import rows_of

optim = torch.optim
STEPS = 20  # more than the recompile limit of an entry
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
    "adamw foreach": (optim.AdamW, {"lr": 0.01, "foreach": True, "maximize": True}),
    "rmsprop": (optim.RMSprop, {"lr": 0.01, "momentum": 0.5, "centered": True}),
    "adagrad": (optim.Adagrad, {"lr": 0.01, "lr_decay": 0.1}),
    "adamax": (optim.Adamax, {"lr": 0.01}),
    "nadam": (optim.NAdam, {"lr": 0.01, "foreach": True}),
    "nadam one by one": (optim.NAdam, {"lr": 0.01, "foreach": False}),
    "radam": (optim.RAdam, {"lr": 0.01, "foreach": True}),
    "radam one by one": (optim.RAdam, {"lr": 0.01, "foreach": False}),
    "adadelta": (optim.Adadelta, {"lr": 0.5}),
    "asgd": (optim.ASGD, {"lr": 0.01, "t0": 5, "foreach": True}),
    "asgd one by one": (optim.ASGD, {"lr": 0.01, "t0": 5, "foreach": False}),
    "rprop": (optim.Rprop, {"lr": 0.01}),
}
# Numbers of the program with a branch on their value: from the sixth step on, RAdam divides by the second moment.
CHANGES = {"radam": 1, "radam one by one": 1, "asgd": 2, "asgd one by one": 2}
# Optimizers without state, or with state from construction; schedules are known to change the learning rate.
THE_SAME_FROM_THE_FIRST = {"adagrad", "sgd", "maximize"}


def model():
    seed_generators(0)
    return nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 2))


def train(make, options, how, backend="eager"):
    """Returns losses, parameters, optimizer state, and the number of graphs after 2 steps and at the end."""
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
        seed_generators(number)
        losses.append(train_step(torch.randn(3, 4)))
        schedule.step()
        graphs.append(counter.frame_count)
    parameters = [p.detach() for p in net.parameters()]
    return [losses, parameters, optimizer.state_dict()], (graphs[0], graphs[1], graphs[-1])


def assert_same_steps(run):
    """Checks that `run(compile_it)` returns the same with `minidynamo.compile` as in eager."""
    torch.testing.assert_close(
        run(functools.partial(minidynamo.compile, backend="eager")), run(unchanged), rtol=0, atol=0
    )


def unchanged(fn, **options):
    return fn


def step_often(net, step, times=4):
    """Computes gradients from random inputs before each of `times` steps."""
    for number in range(times):
        seed_generators(number)
        net(torch.randn(3, 4)).pow(2).sum().backward()
        step()


@pytest.mark.parametrize("name", CASES)
def test_steps_with_a_schedule(name):
    make, options = CASES[name]
    expected, _ = train(make, options, "eager")
    actual, graphs = train(make, options, "step")
    torch.testing.assert_close(actual, expected, rtol=0, atol=0)
    assert graphs[:2] == (1, 1 if name in THE_SAME_FROM_THE_FIRST else 2)
    assert graphs[2] <= 2 + CHANGES.get(name, 0)


@pytest.mark.parametrize("name", ["momentum", "adamw"])
def test_whole_training_steps_with_a_schedule(name):
    make, options = CASES[name]
    expected, _ = train(make, options, "eager")
    actual, graphs = train(make, options, "whole")
    torch.testing.assert_close(actual, expected, rtol=0, atol=0)
    assert graphs == (2, 4, 4)  # before and after `backward`; again with gradients, and initially with state


def test_a_schedule_inside_of_a_function_is_one_break():
    def program(optimizer, schedule):
        optimizer.step()
        schedule.step()
        return torch.ones(2) * schedule.get_last_lr()[0]

    results = []
    for compiled in (program, minidynamo.compile(program, backend="eager")):
        net = model()
        for p in net.parameters():
            p.grad = torch.ones_like(p)
        optimizer = optim.SGD(net.parameters(), lr=0.1)
        schedule = optim.lr_scheduler.CosineAnnealingLR(optimizer, 5)
        results.append([compiled(optimizer, schedule)])
        assert compiled is program or compiled.stats.graph_breaks == 1
        results[-1] += [compiled(optimizer, schedule) for _ in range(2)] + [p.detach() for p in net.parameters()]
    torch.testing.assert_close(results[1], results[0], rtol=0, atol=0)


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

    for rate in (0.01, 0.01, 0.02):  # the state is new; the state exists; the rate is a varying number
        optimizer.param_groups[0]["lr"] = rate
        train_step(torch.randn(3, 4))
    with no_recompile():
        for number in range(10):
            optimizer.param_groups[0]["lr"] = 0.5**number
            train_step(torch.randn(3, 4))
    assert all(isinstance(state["step"], torch.Tensor) and state["step"] == 13 for state in optimizer.state.values())


@pytest.mark.filterwarnings("ignore:MD105")  # torch.compile marks this step when first used in the process
@pytest.mark.parametrize("kind", [optim.LBFGS, functools.partial(optim.SGD, momentum=0.9)])
@pytest.mark.parametrize("is_compiled", [True, False])
def test_closure(kind, is_compiled):
    def run(compile_it):
        net, x = model(), torch.ones(3, 4)
        optimizer = kind(net.parameters(), lr=0.1)

        def closure():
            optimizer.zero_grad()
            loss = net(x).pow(2).sum()
            loss.backward()
            return loss

        step = compile_it(optimizer.step)
        called = compile_it(closure) if is_compiled else closure
        return [*(step(called).detach() for _ in range(4)), *net.parameters()]

    assert_same_steps(run)


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
    assert [graphs for _, graphs in results] == [(0, 0, 0), (1, 2, 3), (2, 4, 5)]  # new; first numbers; any numbers


class SignDescentWithClosure(SignDescent):
    @torch.no_grad()
    def step(self, closure=None):
        with torch.enable_grad():
            loss = closure()
        super().step()
        return loss


@pytest.mark.parametrize("kind", [SignDescentWithClosure, optim.SGD, optim.LBFGS])
def test_a_closure_ends_the_graph_at_backward_alone_and_the_advice_fits(kind):
    def step(net, optimizer, x):
        def closure():
            optimizer.zero_grad()
            loss = net(x).square().mean()
            loss.backward()
            return loss

        return optimizer.step(closure)

    results = []
    compiled = minidynamo.compile(step, backend="eager")
    for call in (step, compiled):
        net = model()
        optimizer = kind(net.parameters(), lr=0.1)
        losses = [call(net, optimizer, torch.ones(2, 4) * number).detach() for number in range(1, 4)]
        results.append([losses, [p.detach() for p in net.parameters()]])
    torch.testing.assert_close(results[1], results[0], rtol=0, atol=0)
    assert len({diagnostic.code for diagnostic in compiled.explain().break_reasons}) == 1
    assert "write in the closure: loss = compiled(x); loss.backward()" in compiled.breaks()


class ScheduleFree(optim.Optimizer):
    """Makes a rectified step towards a weighted mean of all iterates; the weights of the first steps are zero."""

    def __init__(self, params, lr=0.1, betas=(0.9, 0.99)):
        super().__init__(params, {"lr": lr, "betas": betas, "k": 0, "weight_sum": 0.0, "lr_max": -1.0})

    @torch.no_grad()
    def step(self, closure=None):
        for group in self.param_groups:
            count = group["k"] + 1
            beta1, beta2 = group["betas"]
            correction = 1 - beta2**count
            longest = 2 / (1 - beta2) - 1
            length = longest - 2 * count * beta2**count / correction
            rise = 0.0
            if length > 4:
                rise = ((length - 4) * (length - 2) * longest / ((longest - 4) * (longest - 2) * length)) ** 0.5
            lr = group["lr"] * rise
            group["lr_max"] = max(lr, group["lr_max"])
            weight = group["lr_max"] ** 2.0
            group["weight_sum"] = group["weight_sum"] + weight
            try:
                share = weight / group["weight_sum"]
            except ZeroDivisionError:
                share = 0
            for p in group["params"]:
                state = self.state[p]
                if "z" not in state:
                    state["z"], state["v"] = p.clone(), torch.zeros_like(p)
                state["v"].mul_(beta2).addcmul_(p.grad, p.grad, value=1 - beta2)
                if length > 4:
                    p.grad.div_(state["v"].div(correction).sqrt_().add_(1e-8))
                p.lerp_(state["z"], share).add_(p.grad, alpha=lr * (beta1 * (1 - share) - 1))
                state["z"].sub_(p.grad, alpha=lr)
            group["k"] = count


def test_weights_that_are_zero_at_first():
    counter = CompileCounter()

    def run(compile_it):
        net = model()
        optimizer = ScheduleFree(net.parameters())
        step = compile_it(optimizer.step, backend=counter, fullgraph=True)
        for number in range(STEPS):
            optimizer.zero_grad()
            net(torch.full((3, 4), number / STEPS)).square().mean().backward()
            step()
        return [*net.parameters(), optimizer.param_groups[0]["weight_sum"]]

    assert_same_steps(run)
    assert counter.frame_count == 3  # new; while the weights are zero; from then on


def test_state_of_the_whole_optimizer_among_that_of_parameters():
    class Counting(SignDescent):
        def step(self, closure=None):
            self.state.setdefault("steps", torch.zeros(()))
            self.state["steps"] += 1
            for group in self.param_groups:
                for p in group["params"]:
                    self.state[p].setdefault("sum", torch.zeros_like(p)).add_(p.grad)
            super().step(closure)

    model = nn.Linear(3, 2)
    optimizer = Counting(model.parameters())
    counter = CompileCounter()
    step = minidynamo.compile(optimizer.step, backend=counter)
    for _ in range(4):
        model(torch.ones(1, 3)).sum().backward()
        step()
    assert counter.frame_count == 3  # new; first numbers; any numbers
    assert optimizer.state["steps"] == 4
    assert torch.equal(optimizer.state[model.bias]["sum"], torch.full((2,), 10.0))


def test_update_written_out():
    counter = CompileCounter()

    def run(compile_it):
        net = model()

        def update():
            with torch.no_grad():
                for p in net.parameters():
                    p -= 0.1 * p.grad
                    p.grad = None

        step_often(net, compile_it(update, backend=counter, fullgraph=True))
        assert all(p.grad is None for p in net.parameters())
        return [*net.parameters()]

    assert_same_steps(run)
    assert counter.frame_count == 1


class Changes:
    def change_options(optimizer, net):
        optimizer.param_groups[0]["weight_decay"] = 0.5
        optimizer.param_groups[0]["betas"] = (0.8, 0.99)

    def switch_a_flag(optimizer, net):
        optimizer.param_groups[0]["maximize"] = True

    def add_a_group(optimizer, net):
        new = nn.Parameter(torch.ones(3))
        new.grad = torch.full((3,), 0.5)
        optimizer.add_param_group({"params": [new], "lr": 0.3})

    def load_its_state(optimizer, net):
        state = copy.deepcopy(optimizer.state_dict())
        state["param_groups"][0]["lr"] = 0.25
        for entry in state["state"].values():
            entry["step"] += 10
            entry["exp_avg"] *= 2
        optimizer.load_state_dict(state)

    def load_its_state_from_a_file(optimizer, net):
        file = io.BytesIO()
        torch.save(optimizer.state_dict(), file)
        file.seek(0)
        optimizer.load_state_dict(torch.load(file))

    def drop_a_gradient(optimizer, net):
        next(net.parameters()).grad = None

    def drop_all_gradients(optimizer, net):
        optimizer.zero_grad()

    def forget_a_state(optimizer, net):
        del optimizer.state[next(net.parameters())]

    def exchange_states(optimizer, net):
        optimizer.state = defaultdict(dict, reversed(optimizer.state.items()))

    def replace_a_step(optimizer, net):
        optimizer.state[next(net.parameters())]["step"] = torch.tensor(100.0)

    def share_a_step(optimizer, net):
        steps = [state["step"] for state in optimizer.state.values()]
        optimizer.state[next(net.parameters())]["step"] = steps[-1]

    def freeze_a_parameter(optimizer, net):
        net[0].weight.requires_grad_(False)

    def replace_a_parameter(optimizer, net):
        new = nn.Parameter(net[0].weight.detach() * 2)
        new.grad = torch.ones_like(new)
        optimizer.param_groups[0]["params"][0] = new

    def double_before_each_step(optimizer, net):
        optimizer.register_step_pre_hook(lambda opt, args, kwargs: [p.grad.mul_(2) for p in net.parameters()] and None)


@pytest.mark.filterwarnings("ignore::minidynamo.core.events.MinidynamoNotice")
@pytest.mark.parametrize("change", rows_of(Changes))
def test_changes_between_steps_are_noticed(change):
    def run(compile_it):
        net = model()
        optimizer = optim.AdamW(net.parameters(), lr=0.1)
        step = compile_it(optimizer.step)
        for number in range(5):
            seed_generators(number)
            for p in net.parameters():
                p.grad = torch.randn_like(p)
            if number == 3:
                change(optimizer, net)
            step()
        parameters = [p for group in optimizer.param_groups for p in group["params"]]
        return [parameters, [*optimizer.state.values()], optimizer.param_groups[0]["lr"]]

    assert_same_steps(run)


def test_groups_with_different_options_and_frozen_parameters():
    counter = CompileCounter()

    def run(compile_it):
        net = model()
        net[2].bias.requires_grad_(False)
        groups = [{"params": net[0].parameters(), "lr": 0.2}, {"params": net[2].parameters(), "momentum": 0.5}]
        optimizer = optim.SGD(groups, lr=0.1, weight_decay=0.1)

        def train_step():
            optimizer.step()
            optimizer.zero_grad()

        step_often(net, compile_it(train_step, backend=counter, fullgraph=True))
        assert all(p.grad is None for p in net.parameters())
        return [[*net.parameters()], optimizer.state_dict()]

    assert_same_steps(run)
    assert counter.frame_count == 2


@pytest.mark.cpp
@pytest.mark.parametrize("foreach", [False, True])
def test_one_kernel_updates_a_parameter(foreach):
    results = []
    for compiled in (False, True):
        net = model()
        optimizer = optim.AdamW(net.parameters(), lr=0.1, foreach=foreach)
        step = minidynamo.compile(optimizer.step, fullgraph=True) if compiled else optimizer.step
        step_often(net, step)
        results.append([[p.detach() for p in net.parameters()], optimizer.state_dict()])
    torch.testing.assert_close(results[1], results[0])
    host = str(step.code()).rpartition("# host program of")[2]
    kernels = "|".join(re.findall(r"^ENTRY\(kernel_(\w+)\)", str(step.code()), flags=re.MULTILINE))
    launches = re.findall(rf"\b({kernels})\(", host)
    assert host.count("aten_") == 0
    numbers = 1 if foreach else len(list(net.parameters()))  # of steps; one kernel counts all steps
    assert len(launches) == len(list(net.parameters())) + numbers  # a parameter with its state


@pytest.mark.parametrize("kind", [optim.SGD, optim.Adam])
def test_a_scaler_skips_the_step_after_gradients_that_are_not_finite(kind):
    def run(compile_it):
        net = model()
        optimizer = kind(net.parameters(), lr=0.1)
        scaler = torch.amp.GradScaler("cpu", init_scale=2.0**4, growth_interval=2)
        step = compile_it(lambda: scaler.step(optimizer))
        scales = []
        for k in range(5):
            optimizer.zero_grad()
            scaler.scale(net(torch.randn(2, 4) * (torch.inf if k == 2 else 1)).sum()).backward()
            step()
            scaler.update()
            scales.append(scaler.get_scale())
        return [*net.parameters()], scales

    expected, scales = run(lambda step: step)
    found = run(minidynamo.compile(backend="aot_eager"))
    assert found[1] == scales == [16, 32, 16, 16, 32]
    torch.testing.assert_close(found[0], expected, rtol=0, atol=0)
