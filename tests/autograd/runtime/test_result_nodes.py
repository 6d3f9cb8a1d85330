"""Tests of minidynamo/autograd/runtime/result_nodes.py: autograd sees the dependences between the results of a
graph."""

from __future__ import annotations

import pytest
import torch

import minidynamo
from minidynamo.errors import Unsupported
from tests.autograd.programs import compile_program, interpret
from tests.end_to_end.programs import rows_of


def chain(x, w):
    a = (x * w).sin()
    b = a.exp()
    return a, b, (b * a).tanh()


def partial(x, w):
    """A part of the second result's gradient bypasses the first result."""
    y = x.sin()
    return y, y * w + x.cos()


def apart(x, w):
    return x.sin(), w.cos()


def halves(x, w):
    """The second result is computed from a view of the first."""
    y = (x * w).exp()
    return y, y[1:] * y[:-1]


def overwritten(x, w):
    """Depends on the earlier value of the first result."""
    y = x * w
    z = y.exp()
    y.add_(1)
    return y, z


PROGRAMS = [chain, partial, apart, halves, overwritten]


def leaves():
    torch.manual_seed(0)
    return [torch.randn(4, requires_grad=True) for _ in range(2)]


def total(results, places):
    return sum(((i + 1) * results[i]).sum() for i in places)


class Counted:
    """Compiles a program and counts its backward graphs."""

    def __init__(self, program):
        self.made = []
        self.call = compile_program(program, leaves(), backward=self.compiler)

    def compiler(self, gm, examples):
        self.made.append(gm)
        return interpret(gm, examples)

    def __call__(self, *args):
        return self.call([*args])


@pytest.mark.parametrize(
    ("program", "direct_inputs"),
    [
        (chain, ((), (0,), (0, 1))),
        (partial, ((), (0,))),
        (halves, ((), (0,))),
        (apart, ((), ())),
        (overwritten, ((), ())),
    ],
)
def test_which_results_are_computed_from_others(program, direct_inputs):
    graph = Counted(program).call.signature.graph
    assert tuple(target.inputs for target in graph.targets) == direct_inputs
    assert [*graph.gradients] == sorted({i for inputs in direct_inputs for i in inputs})


class Asks:
    def retained(results, given, place, loss):
        results[place].retain_grad()
        loss.backward()
        return [results[place].grad, *(leaf.grad for leaf in given)]

    def changed(results, given, place, loss):
        results[place].register_hook(lambda gradient: None if gradient is None else gradient * 3)
        loss.backward()
        return [leaf.grad for leaf in given]

    def all_at_once(results, given, place, loss):
        return torch.autograd.grad(loss, [*results, *given], allow_unused=True)

    def that_only(results, given, place, loss):
        return torch.autograd.grad(loss, results[place], allow_unused=True)

    def twice(results, given, place, loss):
        """Computes the second, unwatched backward as if the hook had never existed."""
        handle = results[place].register_hook(lambda gradient: None if gradient is None else gradient * 3)
        torch.autograd.grad(loss, results[place], retain_graph=True, allow_unused=True)
        loss.backward(retain_graph=True)
        handle.remove()
        loss.backward()
        return [leaf.grad for leaf in given]


@pytest.mark.parametrize("ask", rows_of(Asks))
@pytest.mark.parametrize("program", [chain, partial, halves])
def test_a_gradient_is_seen_on_its_way(program, ask):
    compiled = Counted(program)
    count = len(program(*leaves()))
    for place in range(count):
        for used in (range(count), range(count - 1, count)):
            got, expected = (
                ask(results, given, place, total(results, used))
                for fn in (compiled, program)
                for given in [leaves()]
                for results in [fn(*given)]
            )
            torch.testing.assert_close(got, expected)


def test_hooks_of_the_node_see_it():
    seen = []
    for fn in (Counted(partial), partial):
        y, z = fn(*leaves())
        y.grad_fn.register_prehook(lambda given: seen.append(given[0]))
        z.sum().backward()
    torch.testing.assert_close(*seen)


def test_the_whole_is_one_graph_unless_somebody_watches():
    compiled = Counted(chain)
    compiled(*leaves())[2].sum().backward()
    assert len(compiled.made) == 1
    results = compiled(*leaves())
    results[2].register_hook(lambda _: None)  # no result depends on it
    results[1].register_hook(lambda _: None).remove()
    results[2].sum().backward()
    assert len(compiled.made) == 1
    results = compiled(*leaves())
    results[0].retain_grad()
    results[2].sum().backward()
    assert len(compiled.made) == 4  # from third to both, from second to first, and to the inputs


def test_what_is_used_up_is_refused():
    results = Counted(chain)(*leaves())
    results[0].retain_grad()
    results[2].sum().backward()
    for result in results:
        with pytest.raises(RuntimeError, match="second time"):
            result.sum().backward()


@pytest.mark.parametrize("watch", [torch.Tensor.retain_grad, lambda y: y.register_hook(lambda gradient: None)])
def test_what_a_backward_cannot_show_is_refused(watch):
    results = Counted(chain)(*leaves())
    watch(results[0])
    with pytest.raises(Unsupported, match="MD411"):
        results[2].sum().backward(create_graph=True)
    with pytest.raises(Unsupported, match="MD411"):
        torch.autograd.grad(results[2], results[:1], torch.ones(2, 4), is_grads_batched=True, retain_graph=True)


@pytest.mark.parametrize("saves_its_result", [lambda x: x.exp(), lambda x: x.prod(-1), lambda x: x.cumprod(-1)])
def test_what_gradients_of_gradients_bring_to_a_saved_result_is_refused(saves_its_result):
    """Covers derivatives of a single call, too, which gets the result without its history."""
    for watched in (False, True):
        x = torch.tensor([[2.0, 3.0]], requires_grad=True)
        result = minidynamo.compile(saves_its_result, backend="aot_eager", fullgraph=True)(x)
        if watched:
            result.register_hook(lambda gradient: gradient * 2)
        (gradient,) = torch.autograd.grad(result.sum(), x, create_graph=True)
        if watched:
            with pytest.raises(Unsupported, match="MD411"):
                gradient.sum().backward()
        else:
            gradient.sum().backward()
