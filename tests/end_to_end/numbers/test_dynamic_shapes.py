"""Sizes that change: the first is compiled as a constant, the second compiles once more, later sizes do not compile."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F

import minidynamo
from minidynamo.core.events import MinidynamoNotice
from minidynamo.errors import ArgumentError, DeclaredSizeFixed
from tests.end_to_end.programs import table

SIZES = (4, 6, 8, 10)
PROGRAMS: dict[str, tuple[Callable[..., Any], Callable[[int], tuple[Any, ...]], list[int]]] = {}


def rows(n: int) -> tuple[torch.Tensor]:
    return (torch.randn(n, 3),)


def program(inputs: Callable[[int], tuple[Any, ...]] = rows, graphs: tuple[int, ...] = (1, 2, 2, 2)) -> Any:
    def add(name: str, fn: Callable[..., Any]) -> None:
        PROGRAMS[name] = (fn, inputs, list(graphs))

    return table(add, lambda fn: fn.__name__ in PROGRAMS)


def alike(got: Any, expected: Any) -> bool:
    if type(got) is not type(expected):
        return False
    if isinstance(expected, torch.Tensor):
        return torch.equal(got, expected)
    if isinstance(expected, tuple | list):
        return len(got) == len(expected) and all(map(alike, got, expected))
    return bool(got == expected)


# Views and broadcasting


@program()
class Views:
    @program(lambda n: (torch.randn(n, 6),))
    def views(x):
        return x.view(x.shape[0], 2, -1).transpose(0, 1).reshape(-1) + 1

    @program(lambda n: (torch.randn(n, 6, 2),))
    def flattening(x):
        return x.flatten(1).sum(1), x.unflatten(1, (2, 3)), x.movedim(0, -1).contiguous()

    @program(lambda n: (torch.randn(n), torch.randn(n + 3)))
    def broadcasting(x, y):
        return x[:, None] + y[None, :]

    def expanding(x):
        return x.sum(1, keepdim=True).expand(x.shape) + x.expand_as(x)

    @program(lambda n: (torch.randn(3, n).t(), torch.randn(4, n)[:, :3]))
    def layouts(x, y):
        return x + 1, y * 2

    def slices(x):
        return x[: x.shape[0] // 2] * 2, x[-2:], x[1 : x.size(0) - 1], x[: min(x.shape[0], 5)] + 0


# Reductions, products, convolutions


@program()
class Computations:
    def reductions(x):
        return x.sum() / x.shape[0] + x.numel(), x.mean(0), x.amax(0), x.std(0), x.argmax(0), x.cumsum(0), x.softmax(0)

    @program(lambda n: (torch.randn(n, 5), torch.randn(5, 3)))
    def products(x, w):
        return torch.relu(x @ w).mean(0), F.linear(x, w.t()), torch.einsum("ij,kj->ik", x, x)

    @program(lambda n: (torch.randn(2, 3, n, n + 2),))
    def convolutions(x):
        y = CONVOLUTION(x)
        return y.mean((2, 3)), F.max_pool2d(y, 2), F.interpolate(y, size=(x.shape[2] * 2, x.shape[3]))

    @program(lambda n: (torch.randn(2, 3, n, n),))
    def square_images(x):
        return F.avg_pool2d(CONVOLUTION(x), 2).flatten(2).sum(-1)

    def norms(x):
        return NORM(x), BATCH_NORM(x), F.normalize(x, dim=0)

    @program(lambda n: (torch.randn(n, 3), torch.randn(n + 1, 3)))
    def joining(x, y):
        return torch.cat([x, y], 0), torch.stack([x, x * 2]).view(2 * x.shape[0], 3), torch.cat(x.chunk(2))

    @program(lambda n: (torch.randint(0, 5, (n,)), torch.randn(5, 3)))
    def embeddings(indices, weight):
        return F.embedding(indices, weight).sum(0), weight[indices], F.one_hot(indices, 5)

    @program(lambda n: (torch.randn(2, n, 8),))
    def attention(q):
        b, s, d = q.shape
        q = q.view(b, s, 2, d // 2).transpose(1, 2)
        scores = (q @ q.transpose(-2, -1)) / math.sqrt(q.shape[-1])
        mask = torch.tril(torch.ones(s, s, dtype=torch.bool))
        scores = scores.masked_fill(~mask, float("-inf")).softmax(-1)
        return (scores @ q).transpose(1, 2).reshape(b, s, d), F.scaled_dot_product_attention(q, q, q, is_causal=True)

    @program(lambda n: (torch.randn(n),))
    def padding(x):
        return F.pad(x, (0, 16 - x.shape[0])), F.pad(x, (1, 1))


CONVOLUTION = torch.nn.Conv2d(3, 4, 3, padding=1)
NORM, BATCH_NORM = torch.nn.LayerNorm(3), torch.nn.BatchNorm1d(3).eval()


# New tensors, writes


@program()
class Writes:
    def creation(x):
        n = x.shape[0]
        made = torch.zeros(n, x.size(1) * 2), torch.ones(x.shape), torch.arange(n).unsqueeze(1) + x, x.new_ones(x.shape)
        return *made, torch.full((n,), 2.5) * 1, torch.eye(n) + 0, torch.empty_like(x).fill_(2)

    def writes(x):
        y = x.clone().add_(1).mul_(x.shape[0])
        y[: x.shape[0] // 2] = 0
        y[-1] += 1
        return y, x.masked_fill(x > 0, 0.0).T.contiguous()


# Python with sizes


@program()
class Python:
    def results(x):
        return (
            x + 1,
            x.shape,
            x.size(0),
            x.shape[0] * 2,
            len(x),
            x.shape[-1],
            x.shape[:1],
            x.size(),
            x.numel(),
            x.nbytes,
        )

    def arithmetic(x):
        n, m = x.shape
        return x.reshape(n * m) + n, x * (n / m), x * n**0.5, x[: n // 2 + 1] + (n - 1) % 3, x * math.prod(x.shape)

    @program(graphs=(1, 2, 3, 3))
    def a_condition(x):
        return x + 1 if x.shape[0] > 7 else x - 1

    def conditions_with_one_answer(x):
        if x.shape[0] % 2 == 0 and x.size(0) != 3 and x.shape[0] * 3 == x.numel():
            return x + 1
        return x - 1

    @program(lambda n: (torch.randn(n, 3), torch.randn(n, 3)))
    def equal_shapes(x, y):
        return x + y if x.shape == y.shape else x - 1

    @program(graphs=(1, 2, 3, 4))
    def a_loop_over_a_size(x):
        total = x[0] * 0
        for i in range(x.shape[0]):
            total = total + x[i] * i
        return total

    @program(graphs=(1, 2, 3, 4))
    def a_loop_over_rows(x):
        return sum(row for row in x)

    @program(graphs=(1, 2, 3, 4))
    def values_that_python_needs(x):
        return x + {4: 1}.get(x.shape[0], 2), f"{x.shape}", [0] * x.shape[0]

    def kinds(x):
        n = x.shape[0]
        return x + (1 if isinstance(n, int) else 2), type(n) is int, n is None, callable(n), (*x.shape, 1)

    @program(graphs=(2, 4, 4, 4))
    def a_break_between(x):
        n = x.shape[0]
        y = x * n
        minidynamo.graph_break()
        return y + n, n * 2


class Scaled(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.inner = torch.nn.Sequential(torch.nn.Linear(3, 5), torch.nn.GELU(), torch.nn.Linear(5, 2))
        self.seen = 0

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.seen += x.shape[0]
        return self.inner(x) * self.seen


def test_the_longest_of_some_tensors_is_not_decided() -> None:
    def padded(xs):
        longest = max(len(x) for x in xs)
        return torch.stack([torch.nn.functional.pad(x, (0, longest - len(x))) for x in xs]), longest

    compiled = minidynamo.compile(padded, backend="eager", fullgraph=True)
    for lengths in ((2, 3, 4), (3, 4, 2), (4, 2, 3), (5, 7, 7), (9, 9, 9)):
        xs = [torch.randn(length) for length in lengths]
        made, expected = compiled(xs), padded(xs)
        assert torch.equal(made[0], expected[0]) and made[1] == expected[1]
    assert compiled.stats.graphs == 2


def test_a_module_counts_what_it_has_seen() -> None:
    module, reference = Scaled(), Scaled()
    reference.load_state_dict(module.state_dict())
    compiled = minidynamo.compile(module, backend="eager", fullgraph=True)
    for n in SIZES:
        x = torch.randn(n, 3)
        assert torch.equal(compiled(x), reference(x))
        assert (module.seen, type(module.seen)) == (reference.seen, int)
    assert minidynamo.stats(module).graphs == 2


@pytest.mark.parametrize("name", PROGRAMS)
def test_the_second_size_compiles_once_more_the_third_not_at_all(name: str) -> None:
    fn, inputs, expected = PROGRAMS[name]
    compiled = minidynamo.compile(fn, backend="eager", fullgraph=name != "a_break_between")
    counts = []
    for n in SIZES:
        given = inputs(n)
        assert alike(compiled(*given), fn(*given))
        counts.append(compiled.stats.graphs)
    assert counts == expected


@pytest.mark.parametrize("name", PROGRAMS)
def test_from_the_start_sizes_are_symbolic_when_that_is_asked_for(name: str) -> None:
    fn, inputs, expected = PROGRAMS[name]
    compiled = minidynamo.compile(fn, backend="eager", dynamic=True)
    for n in (5, 7):
        given = inputs(n)
        assert alike(compiled(*given), fn(*given))
    assert compiled.stats.graphs <= expected[1]


def test_never_symbolic_when_that_is_asked_for() -> None:
    compiled = minidynamo.compile(lambda x: x * x.shape[0], backend="eager", dynamic=False)
    for n in SIZES:
        compiled(torch.randn(n))
    assert compiled.stats.graphs == len(SIZES)


# Declared dimensions


def test_a_declared_dimension_is_symbolic_at_once() -> None:
    compiled = minidynamo.compile(lambda x: x * 2, backend="eager")
    x = torch.randn(4, 3)
    minidynamo.mark_dynamic(x, -2)
    compiled(x), compiled(torch.randn(5, 3)), compiled(torch.randn(6, 3))
    assert compiled.stats.graphs == 1
    compiled(torch.randn(6, 4))
    assert compiled.stats.graphs == 2


def test_a_declared_dimension_keeps_its_bounds() -> None:
    compiled = minidynamo.compile(lambda x: x * 2, backend="eager")
    x = torch.randn(4)
    minidynamo.mark_dynamic(x, [0], min=3, max=8)
    compiled(x), compiled(torch.randn(8))
    assert compiled.stats.graphs == 1
    compiled(torch.randn(9))
    assert compiled.stats.graphs == 2


def test_a_declared_dimension_that_the_program_fixes_is_an_error_with_the_line() -> None:
    def fixes(x):
        y = x + 1
        return y.view(4, 3)

    x = torch.randn(4, 3)
    minidynamo.mark_dynamic(x, 0)
    with pytest.raises(DeclaredSizeFixed, match=r"MD311 `x.shape\[0\]` is declared to vary") as caught:
        minidynamo.compile(fixes, backend="eager")(x)
    assert caught.value.diagnostic.where.lineno == fixes.__code__.co_firstlineno + 2


def test_a_static_dimension_never_becomes_symbolic() -> None:
    compiled = minidynamo.compile(lambda x: x * 2, backend="eager")
    for n in SIZES:
        x = torch.randn(n, n)
        minidynamo.mark_static(x, 0)
        compiled(x)
    assert compiled.stats.graphs == 4
    assert "float32[10, ?]" in compiled.guards()
    assert compiled.why().count("With mark_static each size has a version") == 3


@pytest.mark.parametrize(
    "declare",
    [
        lambda: minidynamo.mark_dynamic([1], 0),
        lambda: minidynamo.mark_static(3),
        lambda: minidynamo.mark_dynamic(torch.zeros(2), None),
        lambda: minidynamo.mark_dynamic(torch.zeros(2), 0.5),
        lambda: minidynamo.mark_dynamic(torch.zeros(2), 1),
        lambda: minidynamo.mark_static(torch.zeros(2), "a"),
        lambda: minidynamo.mark_dynamic(torch.zeros(2), 0, min=3),
    ],
)
def test_what_cannot_be_declared_is_refused(declare: Callable[[], None]) -> None:
    with pytest.raises(ArgumentError, match="MD110"):
        declare()


def test_a_backend_without_symbols_gets_one_size_at_a_time() -> None:
    def backend(gm, inputs):
        if any(isinstance(size, torch.SymInt) for example in inputs for size in example.shape):
            raise ValueError("\n".join(["sizes must be known", *map(str, range(20))]))
        return minidynamo.make_boxed_func(gm.forward)

    compiled = minidynamo.compile(lambda x: x * 2, backend=backend)
    with pytest.warns(MinidynamoNotice, match=f"MD310 .* one size at a time.*{__file__}:") as notices:
        for n in SIZES[:3]:
            x = torch.randn(n)
            assert torch.equal(compiled(x), x * 2)
    assert compiled.stats.graphs == 3
    text = "\n".join(line.strip() for line in str(notices[0].message).splitlines())
    assert "\n".join(["ValueError: sizes must be known", *map(str, range(20)), "Choose another"]) in text


@pytest.mark.parametrize("backend", ["aot_eager", "native"])
def test_a_gradient_whose_size_hangs_on_values_is_computed_for_any_size(backend: str) -> None:
    def program(x: torch.Tensor, mask: torch.Tensor, scale: float) -> torch.Tensor:
        result = torch.zeros_like(mask, dtype=torch.float32)
        result[mask] = x.sin() * scale
        return result + x.shape[0]

    compiled = minidynamo.compile(program, backend=backend)
    for n in SIZES:
        mask = torch.arange(n + 1) > 0
        x = torch.randn(n, requires_grad=True)
        result = compiled(x, mask, n / 2)
        torch.testing.assert_close(result, program(x, mask, n / 2))
        result.sum().backward()
        torch.testing.assert_close(x.grad, x.detach().cos() * (n / 2))
    assert compiled.stats.graphs == 2


# Behaviour checks


def symbols(compiled: Any, graph: int = -1) -> dict[str, list[str]]:
    """Returns the sizes of each input of a graph."""
    nodes = compiled.graphs[graph].graph.nodes
    examples = {node.name: node.meta["example_value"] for node in nodes if node.op == "placeholder"}
    return {name: [str(size) for size in getattr(value, "shape", [value])] for name, value in examples.items()}


def test_SYM_1_symbols_are_named_after_their_source_alone() -> None:
    compiled = [
        minidynamo.compile(fn, backend="eager", dynamic=True)
        for fn in (lambda x, y: x.sum() + y.sum(), lambda y, x: x.sum() + y.sum())
    ]
    x, y = torch.randn(5, 3), torch.randn(6, 3)
    compiled[0](x, y), compiled[1](y, x)
    for one in compiled:
        assert (symbols(one)["x"][0], symbols(one)["y"][0]) == ("s77", "s17")


def test_SYM_2_names_that_collide_are_told_apart() -> None:
    compiled = minidynamo.compile(
        lambda a0, a46, a123: a0.sum() + a46.sum() + a123.sum(), backend="eager", dynamic=True
    )
    tensors = torch.randn(5), torch.randn(6), torch.randn(7)
    torch.testing.assert_close(compiled(*tensors), sum(t.sum() for t in tensors))
    assert symbols(compiled) == {"a0": ["s62"], "a46": ["s63"], "a123": ["s64"]}


def test_SYM_3_one_more_graph_for_all_sizes_and_one_each_for_zero_and_one() -> None:
    compiled = minidynamo.compile(lambda x: x * 2, backend="eager")
    for n in (5, 6, 7, 8):
        compiled(torch.randn(n, 3))
    assert compiled.stats.graphs == 2
    assert symbols(compiled) == {"x": ["s77", "3"]}
    numbers = minidynamo.compile(lambda x, n: x * n, backend="eager")
    for n in (3, 4, 5, 0, 1):
        assert torch.equal(numbers(torch.ones(2), n), torch.ones(2) * n)
    assert numbers.stats.graphs == 2
    assert symbols(numbers)["n"] == ["s86"]
    counts = []
    specialised = minidynamo.compile(lambda x: x * 2, backend="eager")
    for n in (5, 6, 5, 6, 7, 5, 1, 0, 2):
        specialised(torch.randn(n, 3))
        counts.append(specialised.stats.graphs)
    assert counts == [1, 2, 2, 2, 2, 2, 3, 4, 4]


def test_SYM_3_a_call_with_the_old_size_uses_the_old_entry() -> None:
    compiled = minidynamo.compile(lambda x: (x * 2, minidynamo.is_compiling()), backend="eager")
    for n in (5, 6):
        compiled(torch.randn(n))
    source = compiled.code("dispatch")
    assert source.index("body0(") < source.index("body1(")


def test_SYM_8_membership_is_guarded_not_the_value() -> None:
    compiled = minidynamo.compile(lambda z: z + 1 if z.shape[0] in (3, 4) else z - 1, backend="eager", dynamic=True)
    counts = []
    for n in (3, 4, 3, 7, 4, 8):
        z = torch.randn(n)
        assert torch.equal(compiled(z), z + 1 if n in (3, 4) else z - 1)
        counts.append(compiled.stats.graphs)
    assert counts == [1, 1, 1, 2, 2, 2]


@pytest.mark.parametrize("backend", ["eager", "aot_eager"])
@pytest.mark.parametrize(("p", "training", "rows"), [(0.5, False, 2), (0.0, True, 2), (0.5, True, 0)])
def test_dropout_without_effect_is_its_argument_at_any_size(backend: str, p: float, training: bool, rows: int) -> None:
    def f(x: torch.Tensor) -> tuple[Any, ...]:
        y = F.dropout(x, p, training)
        y.add_(1)
        z = x * 2
        return x, F.dropout(z, p, training).mul_(3), z, y is x

    compiled = minidynamo.compile(f, backend=backend, dynamic=True)
    expected, got = f(torch.ones(rows, 3)), compiled(torch.ones(rows, 3))
    assert alike(got, expected)
    assert [a is b for a in got for b in got] == [a is b for a in expected for b in expected]


@pytest.mark.parametrize("backend", ["eager", "aot_eager"])
@pytest.mark.parametrize("requires_grad", [False, True])
def test_a_pool_of_any_length_is_compiled_once(backend: str, requires_grad: bool) -> None:
    def program(x: torch.Tensor) -> torch.Tensor:
        return F.max_pool1d(x.transpose(1, 2), 3, stride=2, padding=1)

    compiled = minidynamo.compile(program, backend=backend)
    for n in SIZES:
        x = torch.randn(n, 3 * n, 5, requires_grad=requires_grad)
        made, expected = compiled(x), program(x)
        assert torch.equal(made, expected) and made.stride() == expected.stride()
        if requires_grad:
            (gradient,), (other,) = (torch.autograd.grad(y.square().sum(), x) for y in (made, expected))
            assert torch.equal(gradient, other)
    assert compiled.stats.graphs <= 3  # the size 1 has a separate version
