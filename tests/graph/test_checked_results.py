"""Operators with fake implementations that contradict the real results still give eager's results."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

import minidynamo
from minidynamo.core.events import MinidynamoNotice
from minidynamo.core.names import Namespace
from minidynamo.errors import ResultDiffers
from minidynamo.graph.checked_results import Promise, as_promised, count_wrong_operators, is_trusted

CPU = torch.device("cpu")
BACKENDS = ("eager", "aot_eager", "native")

library = torch.library.Library("checked_results", "DEF")


def define(name: str, real: Callable[..., Any], fake: Callable[..., Any], returns: str = "Tensor") -> Any:
    library.define(f"{name}(Tensor x) -> {returns}")
    library.impl(name, real, "CompositeExplicitAutograd")
    library.impl(name, fake, "Meta")
    return getattr(torch.ops.checked_results, name)


def same(x: torch.Tensor) -> torch.Tensor:
    return torch.empty_like(x)


smaller = define("smaller", lambda x: x[:2].clone(), same)
larger = define("larger", lambda x: torch.cat([x, x]), same)
number = define("number", lambda x: x.sum(), same)
double = define("double", lambda x: x.double(), same)
half = define("half", lambda x: x.half(), same)
sparse = define("sparse", lambda x: x.to_sparse(), same)
nowhere = define("nowhere", lambda x: x.to("meta"), same)
pair = define("pair", lambda x: (x.clone(), x.double()), lambda x: (same(x), same(x)), "(Tensor, Tensor)")
three = define("three", lambda x: [x + k for k in range(3)], lambda x: [same(x), same(x)], "Tensor[]")
columns = define("columns", lambda x: x.t().contiguous().t(), same)
gaps = define("gaps", lambda x: torch.stack([x, x], -1)[..., 0], same)
repeated = define("repeated", lambda x: x[:1].expand_as(x), same)
negative = define("negative", lambda x: torch.complex(x, x).conj().imag, same)


def of_size(x):
    y = smaller(x.sin())
    return y.reshape(-1, y.shape[0]) * y.shape[0]


def of_dtype(x):
    y = half(x.sin())
    return y + 1 if y.dtype is torch.float32 else y - 1


def of_all(x):
    return [y.cos() for y in three(x.sin())]


def writes(x):
    x.add_(1)
    y = double(x)
    x.mul_(2)
    return y * x + y.sin()


REFUSED = {
    "smaller": lambda x: (smaller(x.sin()) + 1).cos(),
    "larger": lambda x: (larger(x.sin()) + 1).cos(),
    "number": lambda x: (number(x.sin()) + 1).cos(),
    "double": lambda x: (double(x.sin()) + 1).cos(),
    "half": lambda x: (half(x.sin()) + 1).cos(),
    "sparse": lambda x: sparse(x.sin()).to_dense() + 1,
    "nowhere": lambda x: (nowhere(x.sin()) + 1).cos(),
    "pair": lambda x: torch.mul(*pair(x.sin())).cos(),
    "unread": lambda x: smaller(x.sin()).t() @ torch.ones(2, 3),
    "of_size": of_size,
    "of_dtype": of_dtype,
    "of_all": of_all,
    "writes": writes,
}
MENDED = {
    "columns": lambda x: (columns(x.sin()) + 1).cos(),
    "viewed": lambda x: columns(x.sin()).reshape(-1).cos(),
    "gaps": lambda x: (gaps(x.sin()) + 1).cos(),
    "repeated": lambda x: (repeated(x.sin()) + 1).cos(),
}


def results_of(function: Callable[..., Any], sizes: tuple[int, int], seed: int) -> list[torch.Tensor]:
    """Returns the results of a function, and its argument afterwards."""
    x = torch.rand(sizes, generator=torch.Generator().manual_seed(seed))
    returned = function(x)
    return [*(returned if isinstance(returned, (list, tuple)) else [returned]), x]


def check_three_calls(function: Callable[..., Any], compiled: Callable[..., Any]) -> None:
    for seed, sizes in enumerate([(5, 7), (6, 7), (5, 7)]):
        eager = results_of(function, sizes, seed)
        torch.testing.assert_close(results_of(compiled, sizes, seed), eager, atol=1e-3, rtol=1e-3)


@pytest.fixture(autouse=True)
def trusting():
    """Forgets the operators with wrong fake results before each test."""
    minidynamo.reset()
    yield
    minidynamo.reset()


VARYING = ("larger", "half", "of_size")


@pytest.mark.parametrize(
    ("name", "dynamic"), [*((name, None) for name in REFUSED), *((name, True) for name in VARYING)]
)
@pytest.mark.parametrize("backend", BACKENDS)
def test_another_dtype_or_size_or_number_runs_the_frame_eagerly(name, backend, dynamic):
    compiled = minidynamo.compile(REFUSED[name], backend=backend, dynamic=dynamic)
    with pytest.warns(MinidynamoNotice, match="MD524 checked_results::"):
        check_three_calls(REFUSED[name], compiled)


@pytest.mark.parametrize("dynamic", [None, True])
@pytest.mark.parametrize("backend", ["aot_eager", "native"])
@pytest.mark.parametrize("name", MENDED)
def test_other_strides_are_copied(name, backend, dynamic):
    compiled = minidynamo.compile(MENDED[name], backend=backend, dynamic=dynamic)
    with pytest.warns(MinidynamoNotice, match="MD524 checked_results::.* returned strides"):
        check_three_calls(MENDED[name], compiled)


@pytest.mark.parametrize("backend", ["aot_eager", "native"])
def test_lazily_negated_results_are_resolved(backend):
    def f(x):
        return (negative(x.sin()) + 1).cos()

    check_three_calls(f, minidynamo.compile(f, backend=backend))


@pytest.mark.parametrize("backend", BACKENDS)
def test_the_next_calls_end_the_graph_at_the_operator(backend):
    f = REFUSED["double"]
    compiled = minidynamo.compile(f, backend=backend)
    x = torch.rand(3, 4)
    with pytest.warns(MinidynamoNotice, match="promises float32"):
        compiled(x)
    compiled(x)
    compiles = minidynamo.stats(compiled).compiles
    assert "MD216" in str(compiled.breaks())
    assert compiled(x).dtype is torch.float64
    assert minidynamo.stats(compiled).compiles == compiles


def derived(name: str, forward: Callable[..., Any], backward: Callable[..., Any]) -> Any:
    """Returns an operator whose derivative is an operator, too; both declare results like the input."""

    @torch.library.custom_op(f"checked_results::{name}_backward", mutates_args=())
    def derivative(gradient: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
        return backward(gradient, x)

    @torch.library.custom_op(f"checked_results::{name}", mutates_args=())
    def made(x: torch.Tensor) -> torch.Tensor:
        return forward(x)

    derivative.register_fake(lambda gradient, x: torch.empty_like(x))
    made.register_fake(lambda x: torch.empty_like(x))
    made.register_autograd(
        lambda ctx, gradient: derivative(gradient, *ctx.saved_tensors),
        setup_context=lambda ctx, inputs, output: ctx.save_for_backward(*inputs),
    )
    return made


DERIVED = {
    "forward": derived("forward", lambda x: x.sin().double(), lambda g, x: (g * x.cos()).float()),
    "backward": derived("backward", lambda x: x.sin(), lambda g, x: (g * x.cos()).double()),
    "backward_columns": derived("columns_", lambda x: x.sin(), lambda g, x: (g * x.cos()).t().contiguous().t()),
}


@pytest.mark.parametrize("dynamic", [None, True])
@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("name", DERIVED)
@pytest.mark.filterwarnings("ignore:MD524")
def test_gradients_of_wrong_promises(name, backend, dynamic):
    op = DERIVED[name]

    def f(x):
        return (op(x * 2) * x.sum()).exp()

    compiled = minidynamo.compile(f, backend=backend, dynamic=dynamic)
    for sizes in [(5, 3), (5, 3), (4, 3)]:
        found = []
        for run in (f, compiled):
            x = torch.linspace(0, 1, sizes[0] * 3).reshape(sizes).requires_grad_()
            result = run(x)
            result.sum().backward()
            found.append([result.detach(), x.grad])
        torch.testing.assert_close(found[1], found[0], rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("backend", ["aot_eager", "native"])
def test_a_gradient_of_another_size_is_an_error_with_a_code(backend):
    op = derived(f"short_{backend}", lambda x: x.sin(), lambda g, x: (g * x.cos())[:1].clone())
    compiled = minidynamo.compile(lambda x: op(x * 2) * x, backend=backend)
    x = torch.rand(3, 4, requires_grad=True)
    with pytest.warns(MinidynamoNotice, match="MD524"), pytest.raises(ResultDiffers, match="promises float32"):
        compiled(x).sum().backward()


def test_an_argument_that_has_died_is_told():
    def f(x):
        x = x.sin() + 1
        minidynamo.graph_break()
        y = x.cos()
        del x
        return double(y.exp()) + 1

    compiled = minidynamo.compile(f, backend="aot_eager")
    x = torch.rand(3)
    with pytest.warns(MinidynamoNotice, match="MD524"):
        try:
            compiled(x)
        except ResultDiffers as error:
            assert "could not run the function again" in "".join(error.__notes__)
    torch.testing.assert_close(compiled(x), f(x))


def test_correct_operators_are_not_found_wrong():
    correct = define("correct", lambda x: x[:, ::2].clone(), lambda x: x.new_empty(x.shape[0], (x.shape[1] + 1) // 2))
    found = count_wrong_operators()

    def f(x):
        return correct(x.sin()).cos()

    for backend in BACKENDS:
        for dynamic in (None, True):
            check_three_calls(f, minidynamo.compile(f, backend=backend, dynamic=dynamic))
    assert count_wrong_operators() == found


def test_which_calls_are_trusted():
    assert is_trusted(torch.ops.aten.sin.default)
    assert not is_trusted(torch.ops.checked_results.double.default)
    assert not is_trusted(len)


@pytest.mark.parametrize(
    ("result", "shape", "stride"),
    [
        (torch.zeros(2, 3), (2, 3), (3, 1)),
        (torch.zeros(2, 3), (2, None), (None, 1)),
        (torch.zeros(3, 2).t(), (2, 3), (1, 2)),
        (torch.zeros(1, 3), (1, 3), (7, 1)),
    ],
)
def test_results_that_fit_stay(result, shape, stride):
    assert as_promised(result, "a::b", shape, stride, torch.float32, CPU) is result


def test_comparisons_are_text():
    names = Namespace()
    promise = Promise("a::b", ("2", None), ("n", "1"), torch.float32, CPU)
    condition, mending = promise.check("y", names)
    assert "y.shape[0] != 2" in condition
    assert "y.stride() != (n, 1)" in condition
    assert "as_promised(y, 'a::b', (2, None), (n, 1), float32, cpu)" in mending
    trusted = Promise("aten::b", ("2", "3"), ("3", "1"), torch.float32, CPU, trusted=True)
    assert trusted.check("y", names)[0] == "if y.dtype is not float32 or y.stride() != (3, 1):"
