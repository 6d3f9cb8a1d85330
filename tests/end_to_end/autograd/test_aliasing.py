"""Programs that write to shared memory: every tensor afterwards has eager's value and shares the same memory.

Each program runs with gradients, under no_grad and in inference mode. Compared: values, shapes, strides, object
identities, shared storages, bases of views, the origins of views (autograd refuses some writes by origin), version
counters, and gradients.
"""

from __future__ import annotations

import contextlib

import pytest
import torch

import minidynamo
from minidynamo import compat
from minidynamo.testing import CompileCounterWithBackend
from tests.end_to_end.programs import table

BACKENDS = ["eager", "aot_eager", pytest.param("native", marks=pytest.mark.cpp)]
MODES = {"grad": contextlib.nullcontext, "no_grad": torch.no_grad, "inference": torch.inference_mode}


# Inputs: `leaf` collects gradients; program inputs are not leaves that require grad unless stated.


def matrix(leaf):
    return (leaf * 1,)


def two(leaf):
    return leaf * 1, leaf * 2


def same_twice(leaf):
    x = leaf * 1
    return x, x


def base_and_view(leaf):
    x = leaf * 1
    return x, x[1]


def view_only(leaf):
    return ((leaf * 1)[1:],)


def siblings(leaf):
    x = leaf * 1
    return x[:2], x[2:]


def overlapping(leaf):
    x = leaf * 1
    return x[:3], x[1:]


def transposed(leaf):
    x = leaf * 1
    return x, x.t()


def in_a_list(leaf):
    return ([leaf * 1, leaf * 2],)


def same_in_a_list(leaf):
    x = leaf * 1
    return ([x, x],)


def with_leaf(leaf):
    return leaf.detach() * 1, leaf


def with_out(leaf):
    return leaf.detach() * 1, torch.zeros(4, 4)


def plain(leaf):
    return (leaf.detach() * 1,)


def repeated(leaf):
    return (leaf.detach()[:1].clone().expand(3, 4),)


def windows(leaf):
    return (leaf.detach().flatten().clone().unfold(0, 3, 1),)


PROGRAMS = []


def program(*makers):
    """Returns a decorator that adds a program, or each program of a class that has no decorator of its own."""

    def add(name, fn):
        PROGRAMS.extend(pytest.param(fn, make, id=f"{name}-{make.__name__}") for make in makers)

    return table(add, lambda fn: any(row.values[0] is fn for row in PROGRAMS))


@program(matrix)
class WritesToInputs:
    """Writes to the data of inputs."""

    @program(matrix, view_only, plain)
    def add_in_place(x):
        x.add_(1)
        return x * 2

    @program(matrix, plain)
    def written_twice(x):
        x.add_(1)
        y = x * 2
        x.mul_(3)
        return y, x + 1

    def written_and_returned(x):
        x.mul_(2)
        return x

    def augmented(x):
        x += 1
        return x, x * 2

    def set_an_item(x):
        x[0] = 5
        x[1:, 2] = x[0, :3] * 2
        return x.sum()

    def set_to_a_part_of_what_is_computed_of_all(x):
        x[1:] = (-x)[1:]
        y = x * 3
        y[:, :1] = y.exp()[:, :1]
        return x.sum(), y

    def set_by_mask(x):
        x[x > 0.5] = 0.0
        return x * 2

    @program(matrix, plain)
    def fill_and_zero(x):
        y = x * 3
        x.zero_()
        x[0].fill_(2)
        return y

    @program(two)
    def copied_into(x, y):
        x.copy_(y)
        return x * y

    @program(two)
    def swapped(x, y):
        old = x.clone()
        x.copy_(y)
        y.copy_(old)
        return x - y

    @program(in_a_list, same_in_a_list)
    def write_to_an_element(xs):
        xs[0].add_(1)
        return xs[0] * 2, xs[1]

    def relu_in_place(x):
        return torch.relu_(x) + torch.nn.functional.relu(x * 2, inplace=True)

    def masked_fill(x):
        x.masked_fill_(x > 1, -1.0)
        return x

    @program(two)
    def index_writes(x, y):
        x.index_add_(0, torch.tensor([0, 2]), y[:2])
        y.index_copy_(0, torch.tensor([1]), x[:1])
        return x + y

    @program(two)
    def repeats_of_a_written_input(x, y):
        x.copy_(y)
        return x.repeat_interleave(2, dim=0) * y.sum()

    @program(two)
    def foreach_writes(x, y):
        torch._foreach_add_([x, y], 1.0)
        return x * y


@program(matrix)
class WritesThroughViews:
    """Writes through views of inputs."""

    @program(matrix, plain)
    def through_a_row(x):
        x[1].add_(1)
        return x

    def through_a_chain(x):
        x.t()[1:3].view(-1) if x.t()[1:3].is_contiguous() else x.t()[1:3].mul_(2)
        return x * 1

    def through_a_view_that_is_returned(x):
        v = x[1:]
        v.mul_(2)
        return v, x.sum()

    def view_read_after_a_write_to_its_base(x):
        v = x.view(-1)
        x.add_(1)
        return v * 2, v

    def through_diagonal(x):
        x.diagonal().zero_()
        return x

    def through_split(x):
        a, b = x.split(2)
        a.add_(b)
        return x, a

    def through_unbind(x):
        rows = x.unbind(0)
        y = rows[0] * rows[1]
        return y, rows[2]

    def through_select_and_narrow(x):
        x.select(1, 0).narrow(0, 1, 2).mul_(4)
        return x

    def through_expand(x):
        return x[:1].expand(4, 4), x[0].unsqueeze(0)

    def two_views_of_one_input(x):
        a, b = x[:2], x[1:3]
        a.add_(1)
        b.mul_(2)
        return a, b


class Unchanged(torch.autograd.Function):
    """Returns its argument, with a custom gradient."""

    @staticmethod
    def forward(ctx, x):
        return x

    @staticmethod
    def backward(ctx, gradient):
        return gradient * 5


class Doubled(torch.autograd.Function):
    """Writes to its argument, and returns the argument."""

    @staticmethod
    def forward(ctx, x):
        ctx.mark_dirty(x)
        x.mul_(2)
        return x

    @staticmethod
    def backward(ctx, gradient):
        return gradient * 2


@program(matrix)
class Intermediates:
    """Writes to intermediates and their views."""

    def intermediate_written(x):
        y = x * 2
        y.add_(1)
        return y

    def view_of_an_intermediate_written(x):
        y = x * 2
        y[0].add_(1)
        return y

    def view_of_a_written_intermediate_returned(x):
        y = x * 2
        v = y.t()
        y.add_(1)
        return v

    def intermediate_and_its_view(x):
        y = x * 2
        return y, y.view(-1)

    def view_and_then_base(x):
        y = x * 2
        return y[0], y

    def two_views_of_an_intermediate(x):
        y = x * 2
        return y[0], y[1:]

    def view_of_a_view_of_an_intermediate(x):
        y = x.sin()
        v = y[1:]
        return v, v.t(), v.reshape(-1)

    def chunks(x):
        return (x * 2).chunk(2)

    def chunk_and_base(x):
        y = x * 2
        a, b = y.chunk(2, dim=1)
        return y, a, b

    @program(matrix, with_leaf, plain)
    def returned_by_a_function_of_the_users(x, w=None):
        y = Unchanged.apply(x * 2 if w is None else w.sin())
        return y, y.t()

    @program(matrix, plain)
    def view_written_by_a_function_of_the_users(x):
        y = x.sigmoid()
        with torch.no_grad():
            return Doubled.apply(y.flatten())

    def same_output_twice(x):
        y = x * 2
        return y, y, [y]

    def new_tensor_filled(x):
        y = torch.zeros(4, 4)
        y[0] = x[0]
        y[1:].copy_(x[1:])
        return y

    def empty_like_filled(x):
        y = torch.empty_like(x)
        y.copy_(x)
        y += 1
        return y, y[0]


@program(matrix)
class InputsAsOutputs:
    """Outputs that are inputs or views of inputs."""

    @program(matrix, plain)
    def returned_as_it_is(x):
        return x

    @program(matrix, plain)
    def returned_with_more(x):
        return x, x * 2, x

    @program(matrix, view_only, plain)
    def view_of_input(x):
        return x[1:], x * 2

    def transposed_input(x):
        return x.t(), x.transpose(0, 1)[1]

    def input_and_its_view(x):
        return x, x.view(2, 8)

    def reshaped(x):
        return x.reshape(8, 2), x.t().reshape(8, 2), x.contiguous(), x.to(torch.float32)

    def alias_without_shape_change(x):
        return x.view_as(x), x[:], x.expand(4, 4)

    @program(two, same_twice)
    def either_of_two(x, y):
        return y, x + y, x

    def view_after_write(x):
        x.add_(1)
        return x[0], x


@program(same_twice, base_and_view, siblings, overlapping, transposed)
class AliasedInputs:
    """Inputs that alias each other."""

    def aliased_inputs_read(x, y):
        return x.sum() * y, x

    def aliased_inputs_first_written(x, y):
        x.add_(1)
        return x * 2, y * 3

    def aliased_inputs_second_written(x, y):
        y.mul_(2)
        return x.sum() + y.sum()

    @program(siblings, base_and_view)
    def aliased_inputs_both_written(x, y):
        x.add_(1)
        y.mul_(2)
        return x, y, y.sum() + x.sum()


@program(with_out)
class OutArguments:
    """Covers the argument `out`."""

    def out_is_input(x, y):
        torch.add(x, 1, out=y)
        return y * 2

    def out_is_view_of_input(x, y):
        torch.mul(x[0], 2, out=y[1])
        return y

    def out_is_both(x, y):
        torch.add(x, y, out=x)
        return x, y

    @program(plain)
    def out_is_intermediate(x):
        y = torch.empty(4, 4)
        made = torch.sin(x, out=y)
        return made, y


@program(matrix)
class Detached:
    """Covers `detach` and `.data`."""

    def detached_output(x):
        y = x * 2
        return y, y.detach()

    def detached_input(x):
        return x.detach(), x * 2

    def write_to_detached(x):
        x.detach().add_(1)
        return x * 2

    def write_to_data(x):
        x.data.mul_(2)
        return x * 3

    def data_of_an_intermediate(x):
        y = x * 2
        y.data.add_(1)
        return y

    @program(with_leaf)
    def leaf_data_updated(x, w):
        y = x * w
        w.data.sub_(y.detach() * 0.1)
        return y.sum()

    @program(with_leaf)
    def leaf_updated_under_no_grad(x, w):
        y = (x * w).sum()
        with torch.no_grad():
            w.add_(x * 0.1)
        return y, w


@program(plain)
class Metadata:
    """Covers shapes, strides and `requires_grad`."""

    @program(plain, matrix)
    def transpose_in_place(x):
        x.t_()
        return x * 2

    @program(plain, matrix)
    def unsqueeze_in_place(x):
        x.unsqueeze_(0)
        return x.sum(0)

    def squeeze_in_place(x):
        x.unsqueeze_(1)
        x.squeeze_()
        return x + 1

    @program(matrix)
    def intermediate_transposed_in_place(x):
        y = x * 2
        y.transpose_(0, 1)
        return y, y[0]

    @program(matrix)
    def intermediate_unsqueezed_in_place(x):
        y = x * 2
        y.unsqueeze_(0).add_(1)
        return y

    def resized_to_fewer(x):
        x.resize_(2, 2)
        return x + 1

    def view_resized(x):
        v = x[1:]
        v.resize_(2, 2)
        return v + 1, x

    @program(with_out)
    def set_to_another(x, y):
        x.set_(y)
        x.add_(1)
        return x * 2

    def intermediate_set(x):
        y = x * 2
        z = torch.empty(0)
        z.set_(y)
        z.add_(1)
        return y, z

    def requires_grad_in_place(x):
        y = x * 2
        return y.requires_grad_(), y.detach()

    @program(matrix, with_leaf)
    def detached_in_place(x, w=None):
        y = x * 3
        known = w if w is not None else x
        known.detach_()
        return y, known * 2


@program(repeated, windows)
class OverlappingElements:
    """Writes to inputs with overlapping elements."""

    def row_written(x):
        x[0].sub_(1)
        return x * 2

    def part_written(x):
        x.as_strided((2,), (1,)).mul_(3)
        return (x,)

    @program(windows)
    def all_written(x):
        x.add_(1)
        return x * 2


@program(matrix, plain)
class GradModes:
    """Covers grad modes that change inside."""

    @program(matrix)
    def view_made_without_grad(x):
        with torch.no_grad():
            v = x[0]
        return v, x * 2

    @program(matrix)
    def view_of_a_view_made_without_grad(x):
        y = x * 2
        with torch.no_grad():
            v, w = x[0], y.t()
        return v[1:], w[:2], y, x * 3

    def view_of_a_result_made_without_grad(x):
        y = x * 2
        with torch.no_grad():
            return y.t(), x.sin()[0]

    @program(plain)
    def views_of_results_without_a_gradient(x):
        y = x * 2
        return y[0], x.sin().unbind(0)[0].detach()[0], torch.ones(4, requires_grad=True) * 3

    def detached_parts(x):
        k, v = (x * 2).chunk(2)
        return k.detach(), v.detach()

    def views_of_detached_parts(x):
        k, v = (x * 2).chunk(2)
        return k.detach()[1:], v.detach(), v.detach()[0], v.data, k.data[:1]

    def detached_parts_that_are_written(x):
        k, v = x.exp().chunk(2)
        d = k.detach()
        d.add_(1)
        return d, v.detach(), d.data

    def part_without_a_gradient_and_all(x):
        y = x * 2
        return y[0].detach(), y.detach()

    @program(plain)
    def view_of_a_row_that_is_written(x):
        y = x.sin()
        row = y[0]
        y.mul_(2)
        row.data.mul_(3)
        return row[1:]

    @program(matrix)
    def written_without_grad(x):
        with torch.no_grad():
            y = x * 2
            y.add_(x)
        return y, x * y

    @program(plain)
    def written_by_history(x):
        w = torch.ones(4, 4, requires_grad=True)
        y = x.clone()
        y.mul_(w)
        return y.sum(), y


@program(matrix, plain)
class FillingOperators:
    """Operators that return or fill their argument."""

    def conjugate_of_what_is_real(x):
        x.conj_physical_()
        return x * 2

    def results_in_memory_that_was_filled(x):
        ones = torch.randint(1, 2, (4, 4))
        ones.data[0] = 9
        return ones, torch.randn(4, 4) * 0 + x, torch.randint(1, 2, (4, 4)) * 2


# Comparison


def tensors_of(value):
    if isinstance(value, torch.Tensor):
        return [value]
    return [t for part in value for t in tensors_of(part)] if isinstance(value, (list, tuple)) else []


def storage_of(tensor):
    return tensor.untyped_storage()._cdata


def observe(fn, make, mode):
    """Returns all visible effects of a call."""
    with MODES[mode]():
        leaf = (torch.arange(16.0).reshape(4, 4) / 10).requires_grad_(mode == "grad")
        args = make(leaf)
        given = tensors_of(args)
        versions = [None if t.is_inference() else t._version for t in given]
        try:
            result = fn(*args)
        except Exception as error:
            return type(error), str(error).splitlines()[0]
        made = tensors_of(result)
        known = [*given, *made]
        bases = [t._base for t in known if t._base is not None]
        everything = [*known, *bases, leaf]
        facts = {
            "values": [t.detach().clone() for t in known],
            "layout": [(t.shape, t.stride(), t.storage_offset(), t.dtype) for t in known],
            "autograd": [(t.requires_grad, t.is_leaf, t.grad_fn is not None, t.is_inference()) for t in known],
            "identity": [next(i for i, other in enumerate(everything) if other is t) for t in everything],
            "views": [
                None if t._base is None else next(i for i, b in enumerate(everything) if b is t._base) for t in known
            ],
            "bases": [None if t._base is None else (t._base.shape, t._base.requires_grad) for t in known],
            "made": [compat.creation_of(t) for t in known],
            "sharing": [
                next(i for i, o in enumerate(everything) if storage_of(o) == storage_of(t)) for t in everything
            ],
            "written": [None if t.is_inference() else t._version - v for t, v in zip(given, versions) if v is not None],
            "versions": [None if t.is_inference() else t._version for t in made],
        }
    return facts, gradients(leaf, known)


def gradients(leaf, known):
    roots = [t for i, t in enumerate(known) if t.requires_grad and not any(t is other for other in known[:i])]
    if not roots:
        return None
    try:
        torch.autograd.backward(roots, [torch.linspace(0.5, 1.5, t.numel()).reshape(t.shape) for t in roots])
    except RuntimeError as error:
        return str(error).splitlines()[0][:60]
    return leaf.grad


def assert_same(expected, actual):
    if isinstance(expected[0], type):
        assert actual == expected
        return
    for name, value in expected[0].items():
        if name == "values":
            torch.testing.assert_close(actual[0][name], value, rtol=1e-6, atol=1e-6)
        else:
            assert actual[0][name] == value, name
    if isinstance(expected[1], torch.Tensor):
        torch.testing.assert_close(actual[1], expected[1], rtol=1e-5, atol=1e-6)
    else:
        assert actual[1] == expected[1]


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize(("fn", "make"), PROGRAMS)
def test_same_as_eager(fn, make, backend):
    counter = CompileCounterWithBackend(backend)
    compiled = minidynamo.compile(fn, backend=counter)
    for mode in MODES:
        expected = observe(fn, make, mode)
        for _ in range(2):
            assert_same(expected, observe(compiled, make, mode))


def test_the_table_has_enough_programs():
    assert len({p.values[0] for p in PROGRAMS}) >= 60
