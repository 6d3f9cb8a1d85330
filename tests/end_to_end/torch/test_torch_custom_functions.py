"""Custom autograd Functions and operators: the user's forward and backward run inside the graph, as in eager."""

from __future__ import annotations

import pytest
import torch
from torch.autograd import Function
from torch.autograd.function import once_differentiable

import minidynamo
from minidynamo.testing import CompileCounter, assert_same_as_eager
from tests.end_to_end.programs import Programs, leaf, rows_of, vector

programs = Programs()
test_same_as_eager = programs.test()


class Scaled(Function):
    """Has a gradient that differs from the true derivative, so that a mix-up shows."""

    @staticmethod
    def forward(ctx, x, scale):
        ctx.save_for_backward(x)
        ctx.scale = scale
        return x * x * scale

    @staticmethod
    def backward(ctx, gradient):
        (x,) = ctx.saved_tensors
        return gradient * 5 * x * ctx.scale, None


class WithSetup(Function):
    @staticmethod
    def forward(x):
        return x * x

    @staticmethod
    def setup_context(ctx, inputs, output):
        ctx.save_for_backward(*inputs, output)

    @staticmethod
    def backward(ctx, gradient):
        x, y = ctx.saved_tensors
        return gradient * 7 * x + y


class Several(Function):
    @staticmethod
    def forward(ctx, x, y):
        positive = x > 0
        ctx.mark_non_differentiable(positive)
        ctx.set_materialize_grads(False)
        ctx.save_for_backward(x, y)
        return x * y, positive, x + y

    @staticmethod
    @once_differentiable
    def backward(ctx, product, positive, total):
        x, y = ctx.saved_tensors
        product = torch.zeros_like(x) if product is None else product
        total = torch.zeros_like(x) if total is None else total
        return product * y + total * 2, product * x + total if ctx.needs_input_grad[1] else None


class InPlace(Function):
    @staticmethod
    def forward(ctx, x):
        ctx.mark_dirty(x)
        return x.mul_(2)

    @staticmethod
    def backward(ctx, gradient):
        return gradient * 3


class Reversed(Function):
    @staticmethod
    def forward(ctx, x):
        return x.view_as(x)

    @staticmethod
    def backward(ctx, gradient):
        return -gradient


class Straight(Function):
    @staticmethod
    def forward(ctx, x):
        return x.round()

    @staticmethod
    def backward(ctx, gradient):
        return gradient


scaled = Scaled.apply


@programs(leaf)
def saved_tensor_and_attribute(x):
    return Scaled.apply(x, 3.0) + 1


@programs(leaf)
def with_setup_context(x):
    return WithSetup.apply(x) + 1


@programs(leaf)
def gradient_reversal(x):
    return Reversed.apply(x) * 2


@programs(leaf)
def straight_through(x):
    return Straight.apply(x * 3) * x


class Layer(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.weight = torch.nn.Parameter(torch.randn(4))

    def forward(self, x):
        return Scaled.apply(x * self.weight, 2.0)


log: list[str] = []


class Logs(Function):
    @staticmethod
    def forward(ctx, x):
        log.append("forward")
        return x * 2

    @staticmethod
    def backward(ctx, gradient):
        log.append("backward")
        return gradient * 2


class Prints(Function):
    @staticmethod
    def forward(ctx, x):
        return x * 2

    @staticmethod
    def backward(ctx, gradient):
        print("backward")
        return gradient * 2


class Branches(Function):
    @staticmethod
    def forward(ctx, x):
        return x * 2 if x.sum() > 0 else x * 3

    @staticmethod
    def backward(ctx, gradient):
        return gradient * 4


class Detached(Function):
    """Returns a tensor that shares memory with the argument, but is not a view."""

    @staticmethod
    def forward(ctx, x):
        return x.detach()

    @staticmethod
    def backward(ctx, gradient):
        return gradient * 3


class Sharing:
    def of_the_argument(x):
        return Reversed.apply(x)

    def part_of_the_argument(x):
        return Detached.apply(x)[1:], x.sin()

    def beside_another_view(x):
        y = x * 2
        return Detached.apply(y), y.view(2, 2)

    def written_afterwards(x):
        y = x * 2
        z = Detached.apply(y)
        with torch.no_grad():
            y.add_(1)
        return z * 1

    def written_through(x):
        y = x.detach() * 2
        Reversed.apply(y).mul_(3)
        return y + 1


class Turned(Function):
    @staticmethod
    def forward(ctx, x):
        return x.t()

    @staticmethod
    def backward(ctx, gradient):
        return gradient.t() * 3


class FirstRow(Function):
    @staticmethod
    def forward(ctx, x):
        ctx.shape = x.shape
        return x[0]

    @staticmethod
    def backward(ctx, gradient):
        whole = gradient.new_zeros(ctx.shape)
        whole[0] = gradient * 3
        return whole


class Repeated(Function):
    @staticmethod
    def forward(ctx, x):
        return x.expand(2, *x.shape)

    @staticmethod
    def backward(ctx, gradient):
        return gradient.sum(0) * 3


VIEWS_OF_RESULTS = {
    "turned": lambda x: Turned.apply(x * 2),
    "a part": lambda x: FirstRow.apply(x * 2),
    "of a part": lambda x: FirstRow.apply((x * 2)[:, 1:]),
    "twice": lambda x: FirstRow.apply(Turned.apply(x * 2)),
    "and a view of that": lambda x: Turned.apply(x * 2)[1],
    "written before": lambda x: Turned.apply((x * 2).mul_(3)),
}


FACTOR = 2.0


class ReadsGlobal(Function):
    @staticmethod
    def forward(ctx, x):
        return x * 1

    @staticmethod
    def backward(ctx, gradient):
        return gradient * FACTOR


@torch.library.custom_op("minidynamo_tests::scaled", mutates_args=())
def scaled_op(x: torch.Tensor, scale: float) -> torch.Tensor:
    return x * scale


@scaled_op.register_fake
def _(x, scale):
    return torch.empty_like(x)


@torch.library.custom_op("minidynamo_tests::add_one_", mutates_args={"x"})
def add_one_(x: torch.Tensor) -> None:
    x.add_(1)


@torch.library.custom_op("minidynamo_tests::without_fake", mutates_args=())
def without_fake(x: torch.Tensor) -> torch.Tensor:
    return x * 2


scaled_op.register_autograd(
    lambda ctx, gradient: (gradient * ctx.scale, None),
    setup_context=lambda ctx, inputs, output: setattr(ctx, "scale", inputs[1]),
)


@torch.library.triton_op("minidynamo_tests::decomposed", mutates_args=())
def decomposed_op(x: torch.Tensor) -> torch.Tensor:
    return x.sin() + 1


@programs(leaf)
class Cases:
    called_twice_through_a_name = lambda x: scaled(x * 2, 3) * scaled(x, 4)
    operator_of_the_user = lambda x: scaled_op(x, 2.0) + torch.ops.minidynamo_tests.scaled(x, 3.0)

    @programs(vector)
    def without_gradients(x):
        return Scaled.apply(x, 2)

    def inside_no_grad(x):
        with torch.no_grad():
            y = Scaled.apply(x, 2)
        return y, y.requires_grad

    @programs(lambda: (leaf(), vector()), lambda: (leaf(), leaf()), graphs=2)
    def several_outputs(x, y):
        product, positive, total = Several.apply(x, y)
        return product, positive, total * 2

    @programs(lambda: (leaf(), leaf()))
    def an_output_that_nobody_uses(x, y):
        return Several.apply(x, y)[2]

    def writes_to_its_input(x):
        y = x * 1
        return InPlace.apply(y) + y

    @programs(lambda: (Layer(), leaf()))
    def inside_a_module(module, x):
        return module(x) + 1

    @programs(leaf, graphs=1)
    def prints_in_backward(x):
        return Prints.apply(x) + 1

    @programs(leaf, graphs=1, breaks=1)
    def needs_values_in_forward(x):
        return Branches.apply(x) + 1

    def overloads_by_name(x):
        both = torch.ops.minidynamo_tests.scaled.default(x, 3.0), torch.ops.aten.add.Tensor(x, x, alpha=2)
        return both, torch.ops.aten.mul(x, x)

    @programs(vector)
    def operator_that_writes(x):
        y = x * 1
        add_one_(y)
        torch.ops.minidynamo_tests.add_one_(x)
        return y * 2

    @programs(vector, graphs=1, breaks=1)
    def operator_without_fake_form(x):
        return without_fake(x) + 1


def test_a_function_with_effects_runs_as_written():
    program = lambda x: Logs.apply(x) + 1
    log.clear()
    compiled = minidynamo.compile(program, backend="eager")
    for _ in range(2):
        compiled(leaf()).sum().backward()
    assert log == ["forward", "backward"] * 2


@pytest.mark.parametrize("fn", [saved_tensor_and_attribute, with_setup_context, straight_through, gradient_reversal])
def test_with_a_graph_for_backward(fn):
    assert_same_as_eager(fn, leaf, backend="aot_eager", calls=2, graphs=1, breaks=0)


@pytest.mark.filterwarnings("ignore:MD404")
def test_a_result_in_the_memory_of_an_argument_has_its_own_gradient():
    def program(x):
        y = x * 2
        return y, Reversed.apply(y)

    x = leaf()
    for y, reversed_y in (program(x), minidynamo.compile(program, backend="aot_eager")(x)):
        (gradient,) = torch.autograd.grad((y * 3 + reversed_y).sum(), x)
        assert torch.equal(gradient, torch.full((4,), 4.0))


@pytest.mark.parametrize("view", [lambda y: y, lambda y: y[1:]], ids=["it", "a view of it"])
@pytest.mark.parametrize("inside", [True, False], ids=["inside", "behind"])
def test_writes_to_a_result_in_the_memory_of_an_argument_are_refused(view, inside):
    def program(x):
        y = view(Reversed.apply(x * 2))
        return y.mul_(3) if inside else y

    for fn in (program, minidynamo.compile(program, backend="aot_eager")):
        with pytest.raises(RuntimeError, match="is a view and is being modified inplace"):
            fn(leaf()).mul_(3)


@pytest.mark.filterwarnings("ignore:MD404")
@pytest.mark.parametrize("backend", ["eager", "aot_eager", pytest.param("native", marks=pytest.mark.cpp)])
@pytest.mark.parametrize("program", rows_of(Sharing))
@pytest.mark.parametrize("requires_grad", [True, False])
def test_a_result_shares_memory_as_in_eager(program, backend, requires_grad):
    def outcome(f):
        x = torch.arange(4.0, requires_grad=requires_grad)
        made = f(x)
        outs = made if isinstance(made, tuple) else (made,)
        views = [(out._is_view(), out._base is x, out.data_ptr() == x.data_ptr()) for out in outs]
        with torch.no_grad():
            outs[-1].add_(1)
            x.add_(1)
        return views, [out.tolist() for out in outs], x.tolist()

    assert outcome(minidynamo.compile(program, backend=backend)) == outcome(program)


def test_a_result_that_nobody_else_sees_stays_in_the_graph():
    """As in domain-adversarial training: without a notice about a run operation by operation."""
    program = lambda x: (Reversed.apply(x * 2).sin(), Reversed.apply(x.cos()))
    assert_same_as_eager(program, leaf, backend="aot_eager", calls=2, graphs=1, breaks=0)


@pytest.mark.filterwarnings("error:.*MD4")
@pytest.mark.parametrize("backend", ["aot_eager", pytest.param("native", marks=pytest.mark.cpp)])
@pytest.mark.parametrize("requires_grad", [True, False])
@pytest.mark.parametrize("name", VIEWS_OF_RESULTS)
def test_torch_shows_what_a_result_is_a_view_of(name, requires_grad, backend):
    def outcome(f):
        x = torch.arange(6.0).reshape(2, 3).requires_grad_(requires_grad)
        made = f(x)
        base = made._base
        of_base = base.detach().tolist(), base.stride(), base.requires_grad, base._version
        gradients = torch.autograd.grad((made * made).sum(), x) if requires_grad else ()
        memory = made.stride(), made.storage_offset(), made.untyped_storage().nbytes()
        return made.tolist(), memory, of_base, [gradient.tolist() for gradient in gradients]

    program = VIEWS_OF_RESULTS[name]
    compiled = minidynamo.compile(program, backend=backend)
    for _ in range(2):
        assert outcome(compiled) == outcome(program)


@pytest.mark.filterwarnings("error:.*MD4")
def test_a_result_with_elements_in_the_same_memory_stays_in_the_graph():
    assert_same_as_eager(lambda x: Repeated.apply(x * 2).sin(), leaf, backend="aot_eager", calls=2, graphs=1)


@pytest.mark.filterwarnings("ignore:.*MD404")
def test_a_result_with_elements_in_the_same_memory_is_returned_as_in_eager():
    made = minidynamo.compile(lambda x: Repeated.apply(x * 2), backend="aot_eager")(torch.ones(3))
    assert made.stride() == (0, 1) and made._base.shape == (3,)


@pytest.mark.parametrize("backend", ["eager", "aot_eager"])
def test_what_backward_reads_is_guarded(backend, monkeypatch):
    compiled = minidynamo.compile(lambda x: ReadsGlobal.apply(x), backend=backend)
    for factor in (2.0, 3.0):
        monkeypatch.setitem(globals(), "FACTOR", factor)
        x = leaf()
        compiled(x).sum().backward()
        assert torch.equal(x.grad, torch.full((4,), factor))


def test_a_changed_backward_is_noticed(monkeypatch):
    counter = CompileCounter()
    compiled = minidynamo.compile(lambda x: Straight.apply(x), backend=counter)
    compiled(leaf()).sum().backward()
    monkeypatch.setattr(Straight, "backward", staticmethod(lambda ctx, gradient: gradient * 9))
    x = leaf()
    compiled(x).sum().backward()
    assert torch.equal(x.grad, torch.full((4,), 9.0)) and counter.frame_count == 2


@pytest.mark.parametrize("backend", ["eager", "aot_eager"])
def test_triton_ops_are_operators(backend):
    assert_same_as_eager(lambda x: decomposed_op(x * 2) + 1, vector, backend=backend, graphs=1, breaks=0)
