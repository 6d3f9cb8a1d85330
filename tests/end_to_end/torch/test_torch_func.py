"""Programs that use torch.func: functional calls are traced through, transforms are one node over a subgraph."""

from __future__ import annotations

import functools

import pytest
import torch
from torch import nn
from torch.func import (
    functional_call,
    grad,
    grad_and_value,
    hessian,
    jacfwd,
    jacrev,
    jvp,
    stack_module_state,
    vjp,
    vmap,
)

import minidynamo
from minidynamo.testing import assert_same_as_eager
from tests.end_to_end.programs import Programs, leaf, two_vectors, vector

# Forward mode compiles functions with torch.jit, which warns.
pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning")
programs = Programs()
BACKENDS = ["eager", "aot_eager", pytest.param("cpp", marks=pytest.mark.cpp)]
test_same_as_eager = programs.test(*BACKENDS)


def matrix():
    return torch.randn(3, 4)


class Tied(nn.Module):
    def __init__(self):
        super().__init__()
        self.first = nn.Linear(4, 4)
        self.second = nn.Linear(4, 4)
        self.second.weight = self.first.weight
        self.norm = nn.BatchNorm1d(4)

    def forward(self, x, scale=1):
        return self.norm(self.second(self.first(x).relu())) * scale


def what_the_function_took_is_written_to(x, v):
    w = v * 2
    y, pull_back = vjp(lambda a: a + w, x)
    w.add_(1)
    return y, pull_back(v), w


def another_precision_where_it_is_called(x, v):
    with torch.autocast("cpu", torch.bfloat16):
        y, pull_back = vjp(lambda a: a @ a.t(), x.view(2, 2))
    return y, pull_back(torch.ones_like(y))


@programs(two_vectors)
class Cases:
    forward_mode = lambda x, v: jvp(lambda y: y.sin() * y, (x,), (v,))
    forward_mode_with_aux = lambda x, v: jvp(lambda a: (a.sin(), a.cos()), (x,), (v,), has_aux=True)

    @programs(lambda: (nn.Linear(4, 2), matrix()))
    def functional_with_other_parameters(m, x):
        named = {name: p * 2 for name, p in m.named_parameters()}
        return functional_call(m, named, (x,)), m(x)

    @programs(lambda: (Tied(), matrix()))
    def functional_with_tied_weights(m, x):
        return functional_call(m.eval(), {"first.weight": torch.ones(4, 4)}, x, {"scale": 3})

    @programs(lambda: (Tied(), matrix()), rtol=1e-3, atol=1e-3)
    def functional_with_buffers(m, x):
        buffers = {name: b.clone() for name, b in m.named_buffers()}
        out = functional_call(m, (dict(m.named_parameters()), buffers), (x,))
        return out, buffers

    @programs(lambda: (nn.Linear(4, 2), matrix()))
    def functional_with_unknown_names(m, x):
        try:
            functional_call(m, {"weigth": torch.ones(2, 4)}, (x,), strict=True)
        except RuntimeError as error:
            return str(error), x + 1

    def gradient_with_value_and_aux(x, y):
        def loss(a, b, power=2):
            z = (a * b) ** power
            return z.sum(), {"z": z, "mean": [z.mean()]}

        (gx, gy), (value, aux) = grad_and_value(loss, argnums=(0, 1), has_aux=True)(x, y, power=3)
        return gx + gy, value, aux["z"], aux["mean"][0]

    @programs(lambda: (nn.Linear(4, 2), matrix()))
    def gradient_of_parameters(m, x):
        loss = lambda params, x: functional_call(m, params, (x,)).pow(2).sum()
        return grad(loss)(dict(m.named_parameters()), x)

    @programs(lambda: (leaf(), vector()))
    def gradient_that_is_differentiated_outside(x, y):
        return grad(lambda a: (a.exp() * x).sum())(y)

    @programs(lambda: (matrix(), vector()))
    def mapped_over_rows(x, w):
        return vmap(lambda row: (row * w).sum())(x)

    @programs(lambda: (matrix(), matrix()))
    def mapped_with_dimensions(x, y):
        dot = vmap(torch.dot, in_dims=(1, 1))
        return dot(x, y), vmap(lambda a, b: (a + b, [a * 2]), in_dims=(0, None), out_dims=1)(x, y[0])

    @programs(lambda: (matrix(), vector()))
    def mapped_structures(x, w):
        return vmap(lambda d, k: d["x"] * d["w"] + k, in_dims=({"x": 0, "w": None}, None))({"x": x, "w": w}, 2)

    @programs(lambda: (matrix(), vector()))
    def mapped_with_names_and_repeated(x, w):
        found = vmap(lambda row: torch.max(row, 0))(x)
        return found, found.indices, vmap(lambda row: (row * 2, w))(x)

    @programs(lambda: (matrix(),))
    def sizes_inside(x):
        return vmap(lambda row: row / row.shape[0] + row.ndim)(x)

    @programs(lambda: (torch.arange(4),))
    def of_integers_and_numbers(x):
        return vmap(lambda number: number.sin() * 2)(x)

    @programs(lambda: (matrix(),))
    def over_no_rows(x):
        return vmap(lambda row: row.sin().sum(-1))(x[:0]), vmap(torch.cos, in_dims=1)(x[:, :0])

    @programs(lambda: (matrix(), matrix()))
    def mapped_twice(x, y):
        return vmap(vmap(torch.mul))(x, y), vmap(lambda a: vmap(lambda b: (a * b).sum())(y))(x)

    @programs(lambda: (nn.Linear(4, 1), matrix(), torch.randn(3, 1)))
    def gradients_per_sample(m, x, y):
        params = {name: p.detach() for name, p in m.named_parameters()}

        def loss(params, sample, target):
            return (functional_call(m, params, (sample.unsqueeze(0),)) - target).pow(2).sum()

        return vmap(grad(loss), in_dims=(None, 0, 0))(params, x, y)

    @programs(lambda: (matrix(),), graphs=1)
    def jacobians_per_sample(x):
        return vmap(jacrev(lambda row: row.sin() * row.sum()))(x)

    @programs(lambda: (matrix(),))
    def a_partial_function(x):
        return vmap(functools.partial(torch.add, alpha=2), in_dims=(0, None))(x, x[0])

    @programs(lambda: (matrix(),))
    def random_numbers(x):
        different = vmap(lambda row: row + torch.rand(4), randomness="different")(x)
        return different, vmap(lambda row: row + torch.rand(4), randomness="same")(x)

    @programs(lambda: (matrix(),))
    def mapped_in_chunks(x):
        return vmap(lambda row: row.sin().sum(), chunk_size=2)(x)

    @programs(two_vectors, graphs=1, breaks=1)
    def forward_mode_with_a_tangent_of_another_dtype(x, v):
        return jvp(torch.sin, (x[1:],), (v[1:].double(),))  # torch converts the dtype, also of a view

    def pulled_back(x, v):
        scale = 2
        y, pull_back = vjp(lambda a: a.sin() * scale, x + 1)
        scale = 3
        return y * scale, pull_back(v), pull_back(v * scale)

    def pulled_back_to_structures(x, v):
        y, pull_back, aux = vjp(lambda d, b: ((d["x"] * b, d["w"].sum()), [b * 2]), {"x": x, "w": v}, x, has_aux=True)
        first, second = pull_back((v, y[1]))
        return y, first["x"], first["w"], second, aux

    def a_product_with_the_hessian(x, v):
        energy = lambda a: (a**3).sum()
        return vjp(grad(energy), x)[1](v)[0], jvp(grad(energy), (x,), (v,))[1]

    def pulled_back_row_by_row(x, v):
        y, pull_back = vjp(lambda a: a.exp() * v, x)
        return y, vmap(pull_back)(torch.eye(4))

    @programs(lambda: (leaf(), leaf()))
    def pulled_back_and_differentiated_outside(x, v):
        y, pull_back = vjp(lambda a: a.sin() * v, x)
        with torch.no_grad():
            plain = pull_back(v)[0]
        return y, pull_back(v)[0], plain, plain.requires_grad

    @programs(lambda: (nn.Linear(4, 2), matrix()))
    def pulled_back_to_parameters(m, x):
        params = dict(m.named_parameters())
        y, pull_back = vjp(lambda p: functional_call(m, p, (x,)), params)
        return pull_back(torch.ones_like(y))[0], m(x)

    @programs(two_vectors, graphs=1, breaks=2)
    def a_gradient_function_behind_a_break(x, v):
        scale = torch.full((4,), 3.0)
        y, pull_back = vjp(lambda a: a.sin() * scale, x)
        z = y + 1
        minidynamo.graph_break()
        return pull_back(v), z

    def a_gradient_function_is_a_function(x, v):
        pull_back = vjp(torch.sin, x)[1]
        return pull_back(v), type(pull_back), pull_back.__name__

    @programs(two_vectors, graphs=1, breaks=2)
    def random_numbers_are_drawn_once(x, v):
        y, pull_back = vjp(lambda a: a * torch.rand(4), x)
        return y * 2, pull_back(v)


@programs(vector)
class OfOneTensor:
    plain_gradient = lambda x: grad(lambda y: (y.sin() * y).sum())(x)

    def gradient_of_a_gradient(x):
        energy = lambda y: (y**3).sum()
        return grad(lambda y: grad(energy)(y).sum())(x)

    def gradient_without_grad_mode(x):
        with torch.no_grad():
            g = grad(lambda y: (y * y).sum())(x)
        return g, g.requires_grad

    def what_the_function_sees(x):
        return grad(lambda y: (y * (2 if y.requires_grad and torch.is_grad_enabled() else 3)).sum())(x)

    def jacobians(x):
        f = lambda y: y.sin() * y.sum()
        return jacrev(f)(x), jacfwd(f)(x), jacrev(torch.sin)(x), hessian(lambda y: (y.sin() * y).sum())(x)

    def the_same_tensor_twice(x):
        gradients = grad(lambda a, b: (a * b * b).sum(), argnums=(0, 1))(x, x)
        return gradients, jvp(torch.sin, (x,), (x,)), vmap(lambda pair: pair[0] * pair[1])((x, x))


def test_gradient_functions_are_returned():
    def program(x):
        w = x * 2
        return vjp(lambda a: a * w * a, x)[1]

    compiled = minidynamo.compile(program, backend="eager", fullgraph=True)
    x, v = torch.randn(3), torch.randn(3)
    expected, found = program(x), compiled(x)
    x.add_(1)  # both have the same view of the saved tensor
    torch.testing.assert_close(found(v), expected(v))


@pytest.mark.filterwarnings("ignore:.*MD220")
@pytest.mark.parametrize("program", [what_the_function_took_is_written_to, another_precision_where_it_is_called])
def test_gradient_functions_that_are_left_to_torch(program):
    assert_same_as_eager(program, two_vectors, graphs=0)


@programs(lambda: (matrix(),), graphs=0, breaks=2)
class ProgramsThatAreNotCaptured:
    def functions_with_effects(x):
        seen = []
        y = vmap(lambda row: (seen.append(row.shape), row * 2)[1])(x)
        return y, seen

    @programs(vector, graphs=0, breaks=2)
    def functions_that_write(x):
        return grad(lambda y: y.mul_(2).sum())(x)

    @programs(lambda: torch.randn(3))
    def transforms_of_built_in_functions_have_their_names(x):
        many, slope = torch.func.vmap(torch.sin), torch.func.grad(torch.sum)
        return many(x), slope(x), many.__name__, many.__wrapped__ is torch.sin, slope.__name__

    @programs(matrix)
    def functions_of_torch_as_they_are(x):
        sums = vmap(torch.Tensor.sum)(x), vmap(torch.sum)(x), vmap(torch.Tensor.cumsum, (0, None))(x, 0)
        products = vmap(torch.Tensor.mul)(x, x), vmap(torch.dot)(x, x), vmap(vmap(torch.mul))(x, x)
        return sums, products, vmap(functools.partial(torch.Tensor.softmax, dim=0))(x), grad(torch.Tensor.sum)(x)


def test_functions_that_do_not_fit_raise_what_torch_raises():
    def program(x):
        return grad(lambda y: y * 2)(x)

    with pytest.raises(RuntimeError, match="scalar"):
        minidynamo.compile(program, backend="eager")(torch.ones(3))


def test_ensembles():
    models = [nn.Linear(4, 2) for _ in range(3)]
    params, buffers = stack_module_state(models)
    base = models[0]

    def program(params, buffers, x):
        return vmap(lambda p, b: functional_call(base, (p, b), (x,)))(params, buffers)

    compiled = minidynamo.compile(program, backend="aot_eager", fullgraph=True)
    x = torch.randn(5, 4)
    torch.testing.assert_close(compiled(params, buffers, x), program(params, buffers, x))


def test_what_a_transformed_function_reads_is_guarded():
    factor = [2.0]

    def program(x):
        return grad(lambda y: (y * factor[0]).sum())(x)

    compiled = minidynamo.compile(program, backend="eager", fullgraph=True)
    for factor[0] in (2.0, 3.0):
        assert torch.equal(compiled(torch.ones(2)), program(torch.ones(2)))


def scaled(x, factor):
    return (x * factor).sin().sum()


@torch.func.vmap
def softened(row):
    return row.softmax(0)


MADE_BEFORE = [
    vmap(grad(scaled), in_dims=(0, None)),
    grad_and_value(scaled, argnums=(0, 1)),
    jacrev(lambda x, factor: x * factor, chunk_size=2),
    jacfwd(lambda x, factor: x * factor),
    hessian(scaled),
]


@programs(two_vectors)
class TransformsCreatedEarlier:
    transforms_made_before = lambda x, v: ([made(x, v) for made in MADE_BEFORE], softened(v[None]), softened.__name__)

    @programs(lambda: (matrix(), torch.randn(3, 4), torch.tensor(2.0)))
    def vmap_gives_tensors_named_by_keyword_as_they_are(x, by_name, scale):
        def row(a, other, scale):
            return a + other[: a.shape[0] // 2], torch.full((2,), float(other.dim() + other.shape[0])), a * scale

        return vmap(row)(x, other=by_name[:2], scale=scale), vmap(row)(x, other=x[:2], scale=x[0])


@pytest.mark.parametrize("made", MADE_BEFORE)
def test_transformed_functions_are_compiled(made):
    compiled = minidynamo.compile(made, backend="eager", fullgraph=True)
    x, factor = torch.randn(3), torch.tensor(2.0)
    torch.testing.assert_close(compiled(x, factor), made(x, factor), rtol=0, atol=0)
    assert minidynamo.stats(compiled).graphs == 1
    assert minidynamo.uncompile(compiled) is made


def test_what_was_transformed_before_is_guarded():
    options = {}
    program = lambda x: options["transform"](x, x)
    compiled = minidynamo.compile(program, backend="eager", fullgraph=True)
    x = torch.randn(3)
    for options["transform"] in (grad(scaled), grad(scaled, 1), grad(lambda x, y: (x + y).sum())):
        assert torch.equal(compiled(x), program(x))
