"""Hooks added or removed after the first call take effect on the next call."""

from __future__ import annotations

import functools

import pytest
import torch
from torch import nn
from torch.utils.hooks import RemovableHandle

import minidynamo
from minidynamo.testing import CompileCounter, no_recompile
from tests.end_to_end.programs import rows_of


def model():
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(4, 4), nn.ReLU())


def test_a_forward_hook_added_later_takes_effect_and_its_removal_too():
    counter = CompileCounter()
    module = minidynamo.compile(model(), backend=counter)
    x = torch.randn(2, 4)
    plain = module(x)
    assert counter.frame_count == 1

    handle = module.register_forward_hook(lambda module, args, output: output * 2)
    assert torch.equal(module(x), plain * 2)
    assert counter.frame_count == 2
    with no_recompile():
        assert torch.equal(module(x), plain * 2)

    handle.remove()
    with no_recompile():
        assert torch.equal(module(x), plain)


def test_a_hook_that_keeps_a_record_keeps_it():
    module = minidynamo.compile(model(), backend="eager")
    x = torch.randn(2, 4)
    calls = []
    handle = module.register_forward_hook(lambda module, args, output: calls.append((module, args[0])))
    for _ in range(3):
        module(x)
    handle.remove()
    module(x)
    assert len(calls) == 3
    assert all(owner is module and argument is x for owner, argument in calls)


def test_a_hook_of_a_submodule_counts_as_well():
    module = minidynamo.compile(model(), backend="eager")
    x = torch.randn(2, 4)
    plain = module(x)
    handle = module[0].register_forward_pre_hook(lambda module, args: (torch.zeros_like(args[0]),))
    assert torch.equal(module(x), torch.relu(module[0].bias).expand(2, 4))
    handle.remove()
    assert torch.equal(module(x), plain)


def test_hooks_of_every_kind_in_the_order_of_nn_module():
    def run(compiled):
        log = []
        net = model()
        net.register_forward_pre_hook(lambda m, args, kwargs: ((args[0] + 1,), kwargs), with_kwargs=True)
        net[0].register_forward_pre_hook(lambda m, args: args[0] * 2)
        net[1].register_forward_hook(lambda m, args, out: log.append("second") or out * 3)
        net[1].register_forward_hook(
            lambda m, args, kwargs, out: log.append("first") or out + 1, prepend=True, with_kwargs=True
        )
        if compiled:
            minidynamo.compile(net, backend="eager", fullgraph=True)
        return [net(torch.ones(2, 4)), net(torch.ones(2, 4)), log]

    expected, actual = run(False), run(True)
    assert actual[2] == expected[2] == ["first", "second"] * 2
    assert torch.equal(actual[0], expected[0]) and torch.equal(actual[1], expected[1])


def test_a_hook_that_is_replaced_takes_effect_with_one_recompile():
    counter = CompileCounter()
    net = minidynamo.compile(model(), backend=counter)
    x = torch.randn(2, 4)
    plain = net(x)
    for versions, factor in ((2, 2), (3, 3), (3, 4)):  # the factor is an input from its second value on
        handle = net.register_forward_hook(lambda m, args, out, factor=factor: out * factor)
        assert torch.equal(net(x), plain * factor)
        assert counter.frame_count == versions
        handle.remove()
        with no_recompile():
            assert torch.equal(net(x), plain)


REGISTRATIONS = {
    "hook": lambda net, log: net[0].register_forward_hook(lambda m, args, out: log.append(out.detach() * 2)),
    "pre-hook": lambda net, log: net[1].register_forward_pre_hook(lambda m, args: (args[0] * 3,)),
    "with keywords": lambda net, log: net[1].register_forward_pre_hook(
        lambda m, args, kwargs: ((args[0] + 1,), kwargs), with_kwargs=True
    ),
    "backward": lambda net, log: net[1].register_full_backward_hook(
        lambda m, grads, out: log.append(out[0]) or (grads[0] * 5,)
    ),
    "of all modules": lambda net, log: nn.modules.module.register_module_forward_hook(lambda m, args, out: out * 7),
}


@pytest.mark.parametrize("kinds", [*([kind] for kind in REGISTRATIONS), [*REGISTRATIONS]], ids="+".join)
def test_hooks_that_are_registered_anew_for_each_call(kinds):
    def attributed(net, x):
        log, x = [], x.clone().requires_grad_()
        handles = [REGISTRATIONS[kind](net, log) for kind in kinds]
        net(x).sum().backward()
        for handle in handles:
            handle.remove()
        return [x.grad, *log]

    net = minidynamo.compile(model(), backend="eager")
    for turn in range(6):
        x = torch.randn(2, 4)
        assert all(map(torch.equal, attributed(net, x), attributed(model(), x)))
        if turn == 1:
            known = minidynamo.stats(net).compiles
    assert minidynamo.stats(net).compiles == known, minidynamo.why(net)


def without_a_key(net, x):
    net._forward_hooks.pop(7, None)
    return net(x)


class Cases:
    def sum_of_keys(net, x):
        return net(x) * sum(net._forward_hooks)

    def chosen_by_key(net, x):
        return x if 7 in net._forward_hooks else net(x)

    def chosen_behind(net, x):
        return net(x) * (2 if 7 in net._forward_hooks else 3)

    def without_it_behind(net, x):
        y = net(x)
        return y + without_a_key(net, x)

    def with_another(net, x):
        y = net(x)
        net._forward_hooks[7] = lambda m, args, out: out - 1
        return y + net(x)


@pytest.mark.parametrize("program", [*rows_of(Cases), without_a_key])
def test_keys_of_hooks_that_a_program_asks_for(program):
    hooks = [lambda m, args, out: out * 2, lambda m, args, out: out + 3]
    compiled = minidynamo.compile(program, backend="eager", recompile_limit=20)
    for keys in ((1, 2), (1, 7), (7, 1), (5, 6), (7,), (8,), (1, 2)):
        results, left = [], []
        for function in (program, compiled):
            net = model()
            net._forward_hooks.update(zip(keys, hooks))
            results.append(function(net, torch.ones(2, 4)))
            left.append([*net._forward_hooks])
        assert torch.equal(*results) and left[0] == left[1]


def test_hooks_that_keep_features():
    class Extractor(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.net = model()
            self.features = {}
            for name, layer in self.net.named_children():
                layer.register_forward_hook(functools.partial(self.keep, name))

        def keep(self, name, module, args, out):
            self.features[name] = out

        def forward(self, x):
            return self.net(x), self.features["0"] * 2

    extractor = minidynamo.compile(Extractor(), backend="eager", fullgraph=True)
    for x in (torch.randn(2, 4), torch.randn(2, 4)):
        out, doubled = extractor(x)
        linear = extractor.net[0].forward(x)
        assert torch.equal(doubled, linear * 2) and torch.equal(extractor.features["1"], out)
        assert torch.equal(extractor.features["0"], linear)


def test_hooks_that_the_first_call_installs():
    class Recording(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.net = model()
            self.is_ready = False

        def forward(self, x):
            seen = []
            if not self.is_ready:
                for layer in self.net:
                    layer.register_forward_hook(lambda module, args, out: self.seen.append(out))
                self.is_ready = True
            self.seen = seen
            return self.net(x), seen

    recording = Recording()
    minidynamo.compile(recording, backend="aot_eager", fullgraph=True)
    before = RemovableHandle.next_id
    x = torch.randn(2, 4, requires_grad=True)
    for _ in range(3):
        out, seen = recording(x)
        linear = recording.net[0].forward(x)
        assert len(seen) == 2 and torch.equal(seen[0], linear) and torch.equal(seen[1], out)
    identities = [key for layer in recording.net for key in layer._forward_hooks]
    assert len({*identities}) == 2 and min(identities) >= before
    assert recording.net[0].register_forward_hook(lambda *_: None).id not in identities
    assert RemovableHandle.next_id >= before + 3


def test_a_counter_of_a_library_is_set_to_what_the_program_says(monkeypatch):
    """Holds even if the program has not read the counter."""

    def program(x):
        RemovableHandle.next_id = 1000
        return x + 1

    monkeypatch.setattr(RemovableHandle, "next_id", 7)
    compiled = minidynamo.compile(program, backend="eager", fullgraph=True)
    for before in (7, 8, 1000, 7):
        RemovableHandle.next_id = before
        assert compiled(torch.ones(())) == 2 and RemovableHandle.next_id == 1000


@pytest.mark.filterwarnings("ignore:MD302")
def test_a_hook_that_counts_calls_sees_every_call():
    class Counting:
        def __init__(self):
            self.calls = 0

        def __call__(self, module, args, out):
            self.calls += 1
            return out * 2

    hook = Counting()
    net = minidynamo.compile(model(), backend="eager")
    net[0].register_forward_hook(hook)
    reference = model()
    reference[0].register_forward_hook(Counting())
    x = torch.randn(2, 4)
    for calls in range(1, 13):  # more often than the recompile limit of the hook
        assert torch.equal(net(x), reference(x))
        assert hook.calls == calls


def test_a_hook_that_always_runs_runs_when_forward_raises():
    log = []
    net = minidynamo.compile(model(), backend="eager")
    net[0].register_forward_hook(lambda module, args, out: log.append(out is None), always_call=True)
    net(torch.randn(2, 4))
    with pytest.raises(RuntimeError):
        net(torch.randn(2, 5))
    assert log == [False, True]


@pytest.mark.parametrize("kind", ["hook", "pre-hook", "global"])
def test_backward_hooks_of_modules_run(kind):
    results = []
    for compiled in (False, True):
        net, log = model(), []
        if compiled:
            minidynamo.compile(net, backend="aot_eager")
        x = torch.ones(2, 4, requires_grad=True)
        net(x).sum().backward()
        if kind == "hook":
            handle = net[0].register_full_backward_hook(lambda m, grads_in, grads_out: (grads_in[0] * 10,))
        elif kind == "pre-hook":
            handle = net[1].register_full_backward_pre_hook(lambda m, grads_out: (grads_out[0] * 10,))
        else:
            register = torch.nn.modules.module.register_module_full_backward_hook
            handle = register(lambda m, grads_in, grads_out, log=log: log.append(type(m).__name__))
        net(x).sum().backward()
        handle.remove()
        net(x).sum().backward()
        results.append([x.grad, *(p.grad for p in net.parameters()), log])
    assert all(torch.equal(a, b) for a, b in zip(results[0][:-1], results[1][:-1]))
    assert results[0][-1] == results[1][-1]


def test_hooks_of_tensors_inside_the_program():
    results = []
    for compiled in (False, True):
        log = []

        def program(x, log=log):
            y = x * 2
            y.register_hook(lambda grad: log.append(grad.clone()) or grad * 10)
            y.retain_grad()
            return (y * 3).sum(), y

        if compiled:
            program = minidynamo.compile(program, backend="aot_eager")
        for _ in range(2):
            x = torch.ones(4, requires_grad=True)
            loss, y = program(x)
            loss.backward()
            results.append([x.grad, y.grad, *log])
    for expected, actual in zip(results[:2], results[2:]):
        assert all(torch.equal(a, b) for a, b in zip(expected, actual, strict=True))


def test_a_hook_that_forward_registers_and_removes():
    class Doubling(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.linear = torch.nn.Linear(3, 3)

        def forward(self, x):
            handle = self.linear.register_forward_hook(lambda m, args, out: out * 2)
            y = self.linear(x)
            handle.remove()
            return y

    module = minidynamo.compile(Doubling(), backend="eager")
    x = torch.randn(2, 3)
    for _ in range(3):
        assert torch.equal(module(x), module.linear(x) * 2)
        assert not module.linear._forward_hooks


# Guards on hooks: a miss after adding, removing or replacing a hook; a hit for the same hooks


def forward_hooks(net):
    yield net.register_forward_pre_hook, lambda m, args: (args[0] + 1,)
    yield net.register_forward_hook, lambda m, args, out: out * 2
    yield net.register_full_backward_pre_hook, lambda m, grads: (grads[0] * 2,)
    yield net.register_full_backward_hook, lambda m, grads_in, grads_out: (grads_in[0] * 3,)
    module = nn.modules.module
    yield module.register_module_forward_pre_hook, lambda m, args: (args[0] + 1,)
    yield module.register_module_forward_hook, lambda m, args, out: out * 2
    yield module.register_module_full_backward_pre_hook, lambda m, grads: (grads[0] * 2,)
    yield module.register_module_full_backward_hook, lambda m, grads_in, grads_out: (grads_in[0] * 3,)


def observed(net):
    x = torch.ones(2, 4, requires_grad=True)
    out = net(x)
    out.sum().backward()
    return out.detach(), x.grad


@pytest.mark.parametrize("which", range(8))
@pytest.mark.parametrize("place", ["root", "inside"])
def test_a_hook_of_each_kind_is_guarded(which, place):
    net, twin = minidynamo.compile(model(), backend="eager"), model()
    for same in (net, twin):
        observed(same)
    owners = (net, twin) if place == "root" else (net[0], twin[0])

    def check():
        for mine, expected in zip(observed(net), observed(twin)):
            assert torch.equal(mine, expected)

    check()
    if which < 4:
        handles = []
        for owner in owners:
            register, hook = [*forward_hooks(owner)][which]
            handles.append(register(hook))
    else:
        register, hook = [*forward_hooks(net)][which]
        handles = [register(hook)]
    try:
        check()
        check()  # nn.Module builds a new function for backward hooks in each call; the second call checks this
        with no_recompile():
            check()
    finally:
        for handle in handles:
            handle.remove()
    check()
    with no_recompile():
        check()


def test_a_hook_of_a_tensor_that_was_traced_is_guarded():
    def program(x, hook):
        y = x * 2
        y.register_hook(hook)
        return (y * x).sum()

    double = lambda grad: grad * 2
    triple = lambda grad: grad * 3
    f = minidynamo.compile(program, backend="aot_eager")

    def check(hook):
        gradients = []
        for run in (program, f):
            x = torch.ones(3, requires_grad=True)
            run(x, hook).backward()
            gradients.append(x.grad)
        assert torch.equal(*gradients)

    check(double)
    check(triple)
    compiles = f.stats.compiles
    for hook in (double, triple, double):
        check(hook)
    assert f.stats.compiles == compiles


def pair_of_graphs():
    pack = lambda x: x.to(torch.float16)
    unpack = lambda x: x.to(torch.float32)
    return torch.fx.symbolic_trace(pack), torch.fx.symbolic_trace(unpack)


def test_HK_3_saved_tensor_hooks_match_by_identity():
    counter = CompileCounter()
    f = minidynamo.compile(lambda x: (x + 1).sin().exp(), backend=counter)
    first, second = pair_of_graphs(), pair_of_graphs()
    eager, other = (lambda x: x, lambda x: x), (lambda x: x * 1, lambda x: x)

    def compiles(pair):
        x, before = torch.ones(3, 4, requires_grad=True), counter.frame_count
        if pair is None:
            f(x).sum().backward()
        else:
            with torch.autograd.graph.saved_tensors_hooks(*pair):
                y = f(x)
            y.sum().backward()
        assert torch.allclose(x.grad, torch.full((3, 4), -1.0331169), atol=2e-3)
        return counter.frame_count - before

    pairs = (None, first, first, None, second, first, eager, other, (first[0], eager[1]))
    assert [compiles(pair) for pair in pairs] == [1, 1, 0, 0, 1, 0, 0, 0, 0]
    assert "saved_tensors_hooks()" in f.guards() and "saved_tensors_hooks()" in f.why()


def test_without_gradients_saved_tensor_hooks_do_not_matter():
    f = minidynamo.compile(lambda x: x * 2, backend="eager")
    f(torch.ones(3))
    with torch.autograd.graph.saved_tensors_hooks(*pair_of_graphs()), no_recompile():
        f(torch.ones(3))


@pytest.mark.parametrize("backend", ["aot_eager", pytest.param("native", marks=pytest.mark.cpp)])
@pytest.mark.filterwarnings("ignore:MD401")
def test_hooks_that_copy_see_what_was_saved_before_it_was_written_to(backend):
    def program(x, w):
        x = x * 1
        x.mul_(w)
        y = x.sin()
        x.add_(1)  # with hooks, autograd does not notice this write: it holds the results of the hooks
        return (y * x).exp()

    def gradients(function):
        x, w = torch.full((3,), 0.3, requires_grad=True), torch.full((3,), 0.7, requires_grad=True)
        with torch.autograd.graph.saved_tensors_hooks(torch.clone, torch.clone):
            y = function(x, w)
        y.sum().backward()
        return [y, x.grad, w.grad]

    compiled = minidynamo.compile(program, backend=backend)
    for mine, expected in zip(gradients(compiled), gradients(program)):
        assert torch.allclose(mine, expected)
