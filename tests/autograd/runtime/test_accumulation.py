"""Tests of minidynamo/autograd/runtime/accumulation.py: gradients that are added to `.grad` while backward runs."""

from __future__ import annotations

import functools
import threading
import warnings

import pytest
import torch

from minidynamo.autograd.runtime import backward_call
from minidynamo.codegen.compile_graph import compile_graph
from minidynamo.codegen.memory import planner
from minidynamo.graph.boxed import hands_over, mark_boxed
from tests.autograd.programs import compile_program

taken = []


@pytest.fixture(autouse=True)
def clear(monkeypatch):
    """Lets the small gradients of these tests be handed over."""
    monkeypatch.setattr(planner, "SMALL_GRADIENTS", 0)
    taken.clear()


def watched(gm, examples):
    """Runs a backward graph, and records the positions of the gradients taken during the run."""
    call = compile_graph(gm, target="aten", handing_over=True).call

    def run(args, hand_over=None):
        def hand_on(place, gradient):
            left = hand_over(place, gradient)
            if left is None:
                taken.append(place)
            return left

        return call(args, hand_on if hand_over else None)

    run._hands_over = True
    return mark_boxed(run)


def test_small_gradients_are_returned(monkeypatch):
    monkeypatch.undo()
    graphs = []

    def backward(gm, examples):
        graphs.append(compile_graph(gm, target="aten", handing_over=True).call)
        return graphs[-1]

    call, tensors, wanted = compile_program(program, leaves(), backward=backward), leaves(), leaves()
    for _ in range(3):
        call([*tensors])[0].sum().backward()
        program(*wanted)[0].sum().backward()
    torch.testing.assert_close([x.grad for x in tensors], [x.grad for x in wanted])
    assert not any(map(hands_over, graphs))


def program(x, v):
    return ((x @ v).sin() * v,)


def leaves():
    torch.manual_seed(0)
    return [torch.randn(4, 4, requires_grad=True) for _ in range(2)]


@functools.cache
def ways():
    """Returns the outcome of eager `program`, then of compiled `program`."""
    compiled = compile_program(program, leaves(), backward=watched)
    return program, lambda x, v: compiled([x, v])


def total(call, x, v):
    return call(x, v)[0].sum()


def outcome(call, ask):
    """Returns the gradients after a second backward that `ask` runs, their identities and their versions."""
    x, v = leaves()
    total(call, x, v).backward()
    taken.clear()
    first = [x.grad, v.grad]
    versions = [grad._version for grad in first]
    made = ask(call, x, v) or ()
    same = [leaf.grad is grad for leaf, grad in zip((x, v), first)]
    counts = [grad._version - version for grad, version in zip(first, versions)]
    return [x.grad.clone(), v.grad.clone(), *made], same, counts


def assert_as_eager(ask):
    (expected, *facts), (got, *got_facts) = (outcome(call, ask) for call in ways())
    assert len(got) == len(expected) and got_facts == facts
    for ours, theirs in zip(got, expected):
        assert torch.equal(ours.to_dense(), theirs.to_dense())


def test_gradients_are_added_to_those_that_are_there():
    assert_as_eager(lambda call, x, v: total(call, x, v).backward())
    assert sorted(taken) == [0, 1]


def test_first_gradients_are_left_to_autograd():
    x, v = leaves()
    total(ways()[1], x, v).backward()
    assert taken == [] and x.grad is not None


def test_a_retained_graph_adds_each_time():
    def ask(call, x, v):
        loss = total(call, x, v)
        loss.backward(retain_graph=True)
        loss.backward()

    assert_as_eager(ask)
    assert sorted(taken) == [0, 0, 1, 1]


def test_only_the_leaves_that_were_asked_for():
    assert_as_eager(lambda call, x, v: total(call, x, v).backward(inputs=[v]))
    assert taken == [1]


@pytest.mark.parametrize("asked", [0, 1])
def test_gradients_that_nobody_asks_for_are_dropped_where_the_whole_is_computed(asked, monkeypatch):
    monkeypatch.setattr(backward_call, "MOST_PARTS", 0)
    ways.cache_clear()

    def of_leaves(call, x, v):
        return torch.autograd.grad(total(call, x, v), (x, v)[asked])

    def of_others(call, x, v):
        inner = x * 2, v * 3
        return torch.autograd.grad(total(call, *inner), inner[asked])

    for ask in (of_leaves, of_others):
        assert_as_eager(ask)
        assert taken == [1 - asked]


def test_a_leaf_that_no_longer_requires_grad():
    def ask(call, x, v):
        loss = total(call, x, v)
        x.requires_grad_(False)
        loss.backward()

    assert_as_eager(ask)


def test_a_hook_that_was_removed_does_not_count():
    def ask(call, x, v):
        x.register_hook(lambda grad: None).remove()
        loss = total(call, x, v)
        torch.autograd.graph.get_gradient_edge(x).node.register_prehook(lambda grads: None).remove()
        loss.backward()

    assert_as_eager(ask)
    assert sorted(taken) == [0, 1]


def with_hook(register):
    """Runs backward with a hook that records the gradients of x."""

    def ask(call, x, v):
        seen = []
        loss = total(call, x, v)
        register(x, torch.autograd.graph.get_gradient_edge(x).node, seen)
        loss.backward()
        return seen

    return ask


HOOKS = {
    "on the tensor": lambda x, node, seen: x.register_hook(lambda grad: seen.append(grad.clone())),
    "on the tensor, which changes the gradient": lambda x, node, seen: x.register_hook(lambda grad: grad * 2),
    "behind the sum": lambda x, node, seen: x.register_post_accumulate_grad_hook(lambda x: seen.append(x.grad.clone())),
    "on the node": lambda x, node, seen: node.register_prehook(lambda grads: seen.append(grads[0].clone())),
    "behind the node": lambda x, node, seen: node.register_hook(lambda _, grads: seen.append(grads[0].clone())),
    "of several tensors": lambda x, node, seen: torch.autograd.graph.register_multi_grad_hook(
        [x], lambda grads: seen.append(grads[0].clone())
    ),
}


@pytest.mark.parametrize("kind", HOOKS)
def test_a_hook_sees_what_it_sees_in_eager(kind):
    assert_as_eager(with_hook(HOOKS[kind]))
    assert taken == [1]


def differentiable(call, x, v):
    (first,) = torch.autograd.grad(total(call, x, v), x, create_graph=True)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # warning about the reference cycle
        first.square().sum().backward(create_graph=True)
    x.grad, v.grad = x.grad.detach(), v.grad.detach()


def sparse(call, x, v):
    x.grad, v.grad = x.grad.to_sparse(), torch.ones(4, 4).to_sparse()
    total(call, x, v).backward()


def gradients(call, x, v):
    return torch.autograd.grad(total(call, x, v), [x, v])


def from_what_is_there(call, x, v):
    call(x, v)[0].backward(v.grad)  # must not change while it is read


def with_anomalies_looked_for(call, x, v):
    with torch.autograd.detect_anomaly():
        total(call, x, v).backward()


def inner(call, x, v):
    total(call, x * 1, v * 1).backward()


ASKED = [differentiable, sparse, gradients, with_anomalies_looked_for, inner]


@pytest.mark.filterwarnings("ignore:Anomaly Detection")
@pytest.mark.parametrize("ask", ASKED, ids=lambda ask: ask.__name__)
def test_everything_else_is_left_to_autograd(ask):
    assert_as_eager(ask)
    assert taken == []


def test_what_backward_reads_does_not_change():
    (expected, *_), (got, *_) = (outcome(call, from_what_is_there) for call in ways())
    assert taken == [0]
    assert torch.equal(got[1], expected[1])


def test_an_output_without_gradient_adds_nothing():
    def two(x, v):
        return x.sin(), v.cos()

    x, v = leaves()
    call = compile_program(two, [x, v], backward=watched)
    sum(y.sum() for y in call([x, v])).backward()
    version = v.grad._version
    call([x, v])[0].sum().backward()
    assert taken == [call.signature.graph.inputs.index(0)] and v.grad._version == version


def test_a_leaf_that_comes_twice_gets_its_sum():
    x, _ = leaves()
    call = compile_program(lambda a, b: (a.sin() * b.cos(),), leaves(), backward=watched)
    for _ in range(2):
        call([x, x])[0].sum().backward()
    (once,) = torch.autograd.grad((x.sin() * x.cos()).sum(), x)
    assert taken == []
    torch.testing.assert_close(x.grad, 2 * once)


def test_a_leaf_of_several_graphs_gets_every_part():
    x, v = leaves()
    call = ways()[1]
    for _ in range(2):
        (total(call, x, v) + total(call, v, x) + x.sum()).backward()
    y, w = leaves()
    (2 * (total(program, y, w) + total(program, w, y) + y.sum())).backward()
    torch.testing.assert_close([x.grad, v.grad], [y.grad, w.grad])


def test_what_was_added_is_seen_through_what_grad_is_a_view_of():
    flat = torch.zeros(32)
    x, v = leaves()
    x.grad, v.grad = flat[:16].view(4, 4), flat[16:].view(4, 4)
    total(ways()[1], x, v).backward()
    y, w = leaves()
    total(program, y, w).backward()
    assert sorted(taken) == [0, 1]
    assert torch.equal(flat, torch.cat([y.grad.flatten(), w.grad.flatten()]))


def test_threads_lose_nothing():
    x = torch.zeros(50_000, requires_grad=True)
    x.grad = torch.zeros_like(x)
    call = compile_program(lambda x: ((x * 1.0).sum(),), [x], backward=watched)

    def work():
        for _ in range(10):
            call([x])[0].backward()

    threads = [threading.Thread(target=work) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert x.grad.eq(20).all()
