"""Tests of minidynamo/autograd/runtime/graph_node.py: tensors saved for one result alone die with the result."""

from __future__ import annotations

import gc
import threading
import weakref

import pytest
import torch
from torch.multiprocessing.reductions import StorageWeakRef
from torch.nn.functional import binary_cross_entropy_with_logits as softened
from torch.nn.functional import dropout, pairwise_distance

import minidynamo
from minidynamo.autograd import build_signature
from minidynamo.autograd.graph.signature import GraphSignature, Node, NodeGraph
from minidynamo.autograd.runtime.result_nodes import ResultNodes
from minidynamo.graph.boxed import mark_boxed
from tests.autograd.programs import compile_program, inputs, interpret


def two(x, w):
    return torch.tanh(x @ w), torch.sin(x) @ w


def chain(x, w):
    """Returns three results, each computed from the results before."""
    one = (x @ w).sin()
    two = (one @ w).sin()
    return one, two, (two @ w).sin()


def halves(x, w):
    """Returns parts of one tensor, whose gradients are joined."""
    one, other = (x @ w).chunk(2)
    return one.sin() @ w, other.sin().cumsum(0).sin()


def separate(x, w):
    return (x @ w).sin(), (w * 2).sin().cumsum(0)


PROGRAMS = [two, chain, halves, separate]


def square():
    return [leaf.detach().double().requires_grad_() for leaf in inputs((4, 4), (4, 4))()[0]]


class Watched:
    """Compiles a program and records the results that its forward graph saves for backward."""

    def __init__(self, program, args):
        self.kept = []
        self.call = compile_program(program, args, forward=self.compiler)
        self.signature = self.call.signature

    def compiler(self, gm, examples):
        run = interpret(gm, examples)

        def noting(args):
            made = run(args)
            self.kept = [weakref.ref(value) for value in made[self.signature.results :]]
            return made

        return mark_boxed(noting)

    def alive(self):
        return sum(value() is not None for value in self.kept)


@pytest.fixture(autouse=True)
def without_collector(monkeypatch):
    """Frees each tensor at once, as if the tensors of these tests were large."""
    monkeypatch.setattr(build_signature, "SMALL_SAVED", 0)
    gc.disable()
    yield
    gc.enable()


def test_saved_tensors_of_the_same_targets_share_a_holder():
    graph = NodeGraph(tuple(map(Node, range(3))), readers=((0,), (), (0, 2), (0,)))
    nodes = ResultNodes(GraphSignature((), (), graph=graph), {5: (1, 2), 6: (0, 1, 2), 7: ()}, lambda *_: ())
    assert nodes.common == [1] and nodes.holders == [({0}, [0, 3]), ({0, 2}, [2])]
    assert nodes.held == {5: (1, 2)}


def test_what_a_result_needs_alone_dies_with_it():
    watched = Watched(chain, square())
    one, two, three = watched.call(square())
    before = watched.alive()
    assert before >= 2
    del three
    after = watched.alive()
    assert after < before
    del one
    assert watched.alive() == after  # the second needs all saved tensors of the first
    del two
    assert watched.alive() == 0


def test_one_node_keeps_small_tensors(monkeypatch):
    monkeypatch.undo()
    watched = Watched(chain, square())
    assert watched.signature.graph.keeps_all
    one, two, three = watched.call(square())
    before = watched.alive()
    assert {type(value.grad_fn).__name__ for value in (one, two)} <= {"CompiledFunctionBackward", "ResultNodeBackward"}
    del three, one
    assert watched.alive() == before
    del two
    assert watched.alive() == 0


def tanh_and_exp(x, w):
    return x.tanh(), (w * 2).exp()


@pytest.mark.parametrize("used", [0, 1])
@pytest.mark.parametrize("written", [0, 1])
def test_a_write_to_a_small_saved_tensor_is_noticed_where_it_is_read(used, written, monkeypatch):
    monkeypatch.undo()
    outcomes, examples = [], square()
    compiled = compile_program(tanh_and_exp, examples)
    for call in (tanh_and_exp, lambda *args: compiled([*args])):
        leaves = [example.detach().requires_grad_() for example in examples]
        results = call(*leaves)
        with torch.no_grad():
            results[written].add_(1)
        try:
            results[used].sum().backward()
            outcomes.append([leaf.grad for leaf in leaves])
        except RuntimeError as error:
            outcomes.append(str(error).partition("]")[0])
    if used == written:
        assert outcomes[1] == outcomes[0] and "modified by an inplace operation" in outcomes[0]
    else:
        torch.testing.assert_close(outcomes[1], outcomes[0])


def test_hooks_see_small_saved_tensors(monkeypatch):
    monkeypatch.undo()
    packed = []
    compiled = compile_program(two, square())
    leaves = square()
    wanted = [leaf.detach().requires_grad_() for leaf in leaves]
    with torch.autograd.graph.saved_tensors_hooks(lambda value: packed.append(value) or value, lambda value: value):
        results = compiled([*leaves])
    sum(result.sum() for result in results).backward()
    sum(result.sum() for result in two(*wanted)).backward()
    torch.testing.assert_close([leaf.grad for leaf in leaves], [leaf.grad for leaf in wanted])
    assert packed


def test_what_is_computed_of_a_result_holds_what_it_needs():
    x, w = leaves = square()
    watched = Watched(two, leaves)
    one, other = watched.call([x, w])
    loss = other.exp().sum()
    del other, one
    assert watched.alive() == 1
    wanted = torch.autograd.grad(two(x, w)[1].exp().sum(), leaves)
    for got, expected in zip(torch.autograd.grad(loss, leaves), wanted, strict=True):
        torch.testing.assert_close(got, expected)
    assert watched.alive() == 0


@pytest.mark.parametrize("program", PROGRAMS)
@pytest.mark.parametrize("dynamic, small", [(False, False), (True, False), (False, True)])
def test_gradients_with_results_that_died(program, dynamic, small, monkeypatch):
    """Runs backward of some results, twice, and of their gradients; only `retain_graph` keeps saved tensors."""
    leaves = square()
    if small:
        monkeypatch.undo()
    call, fixed = (compile_program(program, leaves, dynamic=varies) for varies in (dynamic, False))
    assert any(fixed.signature.graph.readers) and call.signature.graph.readers == fixed.signature.graph.readers
    for used in range(len(program(*leaves))):
        outcomes = []
        for function in (lambda *args: call([*args]), program):
            result = function(*leaves)[used]
            gradients = torch.autograd.grad(result.square().sum(), leaves, create_graph=True, allow_unused=True)
            penalty = sum(g.square().sum() for g in gradients if g is not None)
            second = torch.autograd.grad(penalty, leaves, allow_unused=True)
            result = function(*leaves)[used].square().sum()
            once = torch.autograd.grad(result, leaves, retain_graph=True, allow_unused=True)
            again = torch.autograd.grad(result, leaves, allow_unused=True)
            with pytest.raises(RuntimeError, match="a second time"):
                torch.autograd.grad(result, leaves, allow_unused=True)
            outcomes.append([*gradients, *second, *once, *again])
        for got, wanted in zip(*outcomes, strict=True):
            if wanted is not None and got is not None:
                torch.testing.assert_close(got, wanted)
            else:
                assert got is None or not got.any()
                assert wanted is None or not wanted.any()


def test_writes_are_noticed_wherever_a_value_is_kept():
    x, w = square()
    x.requires_grad_(False)
    call = compile_program(two, [x, w])
    one, other = call([x, w])
    one.detach().mul_(2)
    torch.autograd.grad(other.sum(), w)  # does not read it
    one, other = call([x, w])
    one.detach().mul_(2)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        one.sum().backward()
    one, other = call([x, w])
    assert not other._is_view() and other._base is None
    other.mul_(2)
    other.sum().backward()
    torch.testing.assert_close(w.grad, torch.autograd.grad(two(x, w)[1].sum() * 2, w)[0])


def test_hooks_of_the_user_see_each_value_once():
    x, w = leaves = square()
    call = compile_program(two, leaves)
    packed, unpacked = [], []

    def pack(value):
        packed.append(value.shape)
        return value.clone()

    def unpack(value):
        unpacked.append(value.shape)
        return value

    with torch.autograd.graph.saved_tensors_hooks(pack, unpack):
        other = call([x, w])[1]
    assert len(packed) == len(call.signature.saved)
    got = torch.autograd.grad(other.sum(), leaves)
    assert 0 < len(unpacked) < len(packed)
    for gradient, wanted in zip(got, torch.autograd.grad(two(x, w)[1].sum(), leaves), strict=True):
        torch.testing.assert_close(gradient, wanted)
    seen = []
    other = call([x, w])[1]
    other.register_hook(lambda gradient: seen.append(gradient.sum().item()))
    other.retain_grad()
    other.sum().backward()
    assert seen == [16.0] and other.grad.sum() == 16
    names = [type(node).__name__ for node in (other.grad_fn, other.grad_fn.next_functions[0][0])]
    assert names == ["ResultNodeBackward", "CompiledFunctionBackward"]


def test_a_program_whose_results_share_all_values_has_one_node():
    x = torch.randn(4, requires_grad=True)

    def shared(x):
        y = x.exp()
        return y * 2, y * 3

    call = compile_program(shared, [x])
    assert call.signature.graph.readers == ()
    assert {type(y.grad_fn).__name__ for y in call([x])} == {"CompiledFunctionBackward"}


class Exp(torch.autograd.Function):
    """Saves a tensor that its result does not depend on."""

    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x.exp())
        return x.exp()

    @staticmethod
    def backward(ctx, gradient):
        return gradient * ctx.saved_tensors[0]


APART = {
    "nothing in common": lambda h, w: (h.sin() * w.sum(), (w * 3).cos()),
    "one saves nothing": lambda h, w: (w + h, w.exp() * h),
    "one value for both": lambda h, w: (lambda y: (y * 2, y * 3))(w.exp()),
    "an argument in common": lambda h, w: ((h * w).sum(), (h.sin() * w).sum(), w * w),
    "a sum in common": lambda h, w: (lambda y: (y.sin(), y.cos(), (y * w).exp()))(h + w),
    "two that share a function": lambda h, w: (lambda y: (y * w, y + 1, w.cos()))(w.exp()),
    "a chain of two": lambda h, w: (w.exp(), w.tanh(), (w.tanh() * h).sin()),
    "inputs are held": lambda h, w: (softened(w, h), softened(w * 2, h)),
    "an input is held for one": lambda h, w: (softened(w, h), w.exp()),
}


@pytest.mark.parametrize("program", APART)
@pytest.mark.parametrize("retained", [False, True])
def test_backward_through_one_result_and_later_through_another(program, retained):
    """Refuses the same calls as eager: both backward passes reach a function with saved tensors."""
    outcomes = []
    for function in (lambda h, w: compile_program(APART[program], [h, w])([h, w]), APART[program]):
        h, w = torch.linspace(0, 1, 16).view(4, 4), torch.linspace(-1, 1, 16).view(4, 4).requires_grad_()
        results, found = function(h, w), []
        for which in (0, 1, 0, 1, -1, 0):
            try:
                found += torch.autograd.grad(results[which].sum(), w, retain_graph=retained and len(found) == 0)
            except RuntimeError as error:
                found.append(str(error))
        outcomes.append(found)
    for got, wanted in zip(*outcomes, strict=True):
        torch.testing.assert_close(got, wanted) if isinstance(wanted, torch.Tensor) else None
        assert isinstance(wanted, torch.Tensor) or got == wanted


def test_what_several_results_need_dies_with_the_last_of_them():
    def program(h, w):
        y = h + w
        return y.sin(), y.cos()

    leaves = square()
    for used, dropped in ((0, 1), (1, 0)):
        watched = Watched(program, leaves)
        results = list(watched.call(list(leaves)))
        assert watched.alive() == 1
        torch.autograd.grad(results[used].sum(), leaves)
        assert watched.alive() == 1
        results[dropped] = None
        assert watched.alive() == 0 and results[used] is not None
        results = list(watched.call(list(leaves)))
        torch.autograd.grad(sum(result.sum() for result in results), leaves)
        assert watched.alive() == 0


@pytest.mark.parametrize("backend", ["aot_eager", "native"])
def test_an_input_that_second_derivatives_read_dies_with_the_results_that_it_is_held_for(backend):
    w = torch.linspace(-1, 1, 4).requires_grad_()
    compiled = minidynamo.compile(lambda h, i: (softened(w, h), softened(w, i)), backend=backend)
    for order in ((0, 1), (1, 0)):
        given = [torch.rand(4), torch.rand(4)]
        watched, results = list(map(weakref.ref, given)), compiled(*given)
        del given
        for place in order:
            assert watched[place]() is not None
            results[place].sum().backward()
            assert watched[place]() is None


def memories(given):
    return [StorageWeakRef(value.untyped_storage()) for value in given]


@pytest.mark.parametrize("shared", [False, True])
def test_an_input_that_second_derivatives_read_dies_with_results_that_nobody_uses(shared):
    w = torch.linspace(-1, 1, 4).requires_grad_()

    def program(h, i):
        v = w.exp() if shared else w  # backward through one result frees saved tensors of the second
        return pairwise_distance(h * 2, v), pairwise_distance(i * 2, v)

    outcomes = []
    for call in (program, minidynamo.compile(program, backend="aot_eager")):
        given = [torch.linspace(0, 1, 4), torch.linspace(1, 2, 4)]
        watched, results = memories(given), list(call(*given))
        del given
        results[0] = None
        assert watched[0].expired()
        (retained,) = torch.autograd.grad(results[1].sum(), w, retain_graph=True)
        (gradient,) = torch.autograd.grad(results[1].sum(), w, create_graph=True)
        outcomes.append([retained, gradient, *torch.autograd.grad(gradient.sum(), w)])
        given = [torch.rand(4), torch.rand(4)]
        watched, (first, second) = memories(given), call(*given)
        del given
        (first + second).backward()
        assert all(memory.expired() for memory in watched)
    torch.testing.assert_close(*outcomes)


def test_what_is_read_for_gradients_whose_sizes_are_asked_for_dies_with_a_result():
    def program(h, w):
        return (h @ w).reshape(-1, 4).sum(0), w.exp()

    outcomes = []
    for call in (program, minidynamo.compile(program, backend="aot_eager", dynamic=True)):
        h, w = torch.linspace(-1, 1, 64).view(8, 8), torch.linspace(0, 1, 64).view(8, 8).requires_grad_()
        (watched,), results = memories([h]), list(call(h, w))
        del h
        results[0] = None
        assert watched.expired()
        outcomes += torch.autograd.grad(results[1].square().sum(), w)
    torch.testing.assert_close(*outcomes)


@pytest.mark.parametrize("backend", ["aot_eager", "native"])
def test_backward_through_one_custom_function_and_later_through_another(backend):
    def program(w):
        return Exp.apply(w), Exp.apply(w * 2)

    outcomes = []
    for call in (program, minidynamo.compile(program, backend=backend)):
        w = torch.linspace(-1, 1, 4).requires_grad_()
        one, other = call(w)
        outcomes.append([torch.autograd.grad(result.sum(), w)[0] for result in (other, one)])
        with pytest.raises(RuntimeError, match="second time"):
            one.sum().backward()
    torch.testing.assert_close(*outcomes)


def random_numbers(h, w):
    return softened(w, h), dropout(w.sin(), 0.5)


@pytest.mark.parametrize("backend", ["aot_eager", "native"])
@pytest.mark.parametrize("program", [APART["inputs are held"], random_numbers])
def test_second_derivatives_by_one_result_after_backward_through_another(program, backend):
    outcomes = []
    for call in (program, minidynamo.compile(program, backend=backend)):
        torch.manual_seed(0)
        h, w = torch.linspace(0, 1, 4), torch.linspace(-1, 1, 4).requires_grad_()
        one, other = call(h, w)
        one.sum().backward()
        (gradient,) = torch.autograd.grad(other.sum(), w, create_graph=True)
        outcomes.append((w.grad, gradient, *torch.autograd.grad(gradient.sum(), w)))
    torch.testing.assert_close(*outcomes)


@pytest.mark.parametrize("program", [lambda h, w: h.add_(w) * 2, lambda h, w: h.copy_(w).sin()], ids=["add", "copy"])
def test_a_buffer_that_collects_history_is_walked_in_each_step(program):
    outcomes = []
    for eager in (True, False):
        call = program if eager else minidynamo.compile(program, backend="aot_eager")
        h, w = torch.linspace(0, 1, 16), torch.linspace(-1, 1, 16).requires_grad_()
        for _ in range(3):
            call(h, w).sum().backward()
        outcomes.append((w.grad, h.detach()))
    torch.testing.assert_close(*outcomes)


def test_backward_from_several_threads():
    x, w = leaves = square()
    call = compile_program(two, leaves)
    results = call([x, w])
    wanted = [torch.autograd.grad(result.sum(), leaves) for result in two(x, w)]
    outcomes = []

    def work(which):
        for _ in range(10):
            got = torch.autograd.grad(results[which].sum(), leaves, retain_graph=True)
            outcomes.append(all(map(torch.allclose, got, wanted[which])))

    threads = [threading.Thread(target=work, args=(i % 2,)) for i in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert outcomes == [True] * 40
