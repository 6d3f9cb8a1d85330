"""Branches on tensor values with a single side that does not raise: the graph checks the value, and errors equal
eager's."""

from __future__ import annotations

import math

import pytest
import torch
from torch import distributions

import minidynamo
from minidynamo.errors import Unsupported
from tests.end_to_end.programs import rows_of

BACKENDS = ["eager", "aot_eager", "native"]
GOOD, BAD = (1.0, 2.0, 3.0), (1.0, -1.0, float("nan"))


@pytest.fixture(autouse=True)
def validation():
    """Restores validation, which torch.compile disables for the whole process at its first use."""
    was = distributions.Distribution._validate_args
    distributions.Distribution.set_default_validate_args(True)
    yield
    distributions.Distribution.set_default_validate_args(was)


class Checks:
    def normal(x):
        return distributions.Normal(x, x).log_prob(x)

    def gaussian_loss(x):
        return torch.nn.functional.gaussian_nll_loss(x * 2, x, x)

    def refused(x):
        noise = torch.randn(3)
        if not (x > 0).all():
            raise ValueError(f"not positive: {x.tolist()}")
        return x * noise + torch.rand(3)

    def caught(x):
        y = torch.nn.functional.dropout(x * 2, 0.5)
        try:
            if (x < 0).any() or torch.isnan(x).any():
                raise ValueError(f"no root of {x.tolist()}")
        except ValueError as error:
            return torch.rand(3) * len(str(error))
        return y.sqrt()

    def in_a_block(x):
        y = x * 2
        with torch.no_grad():
            weight = torch.zeros(3)
            weight[torch.randint(3, (1,))] = 1
            if torch.isnan(y + weight).any():
                raise FloatingPointError("nan")
        return y * weight


def outcome(fn, values, requires_grad):
    torch.manual_seed(0)
    x = torch.tensor(values, requires_grad=requires_grad)
    try:
        result = fn(x)
    except Exception as error:
        return type(error), str(error), torch.rand(1).item()
    if result.requires_grad:
        result.sum().backward()
    return result.tolist(), None if x.grad is None else x.grad.tolist(), torch.rand(1).item()


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("fn", rows_of(Checks))
def test_a_check_that_fails_is_the_error_of_the_program(fn, backend):
    compiled = minidynamo.compile(fn, backend=backend, fullgraph=True)
    for requires_grad in (False, True):
        for values in (GOOD, BAD, GOOD):
            seen, expected = outcome(compiled, values, requires_grad), outcome(fn, values, requires_grad)
            assert str(seen) == str(expected) if backend != "native" else _close(seen, expected)
    assert compiled.stats.graphs == 2


def _close(seen, expected):
    if isinstance(expected[0], type):
        return seen == expected
    close = [torch.testing.assert_close(s, e, equal_nan=True) for s, e in zip(seen, expected) if e is not None]
    return len(close) == len([e for e in seen if e is not None])


class Finite:
    def clamped(x):
        y = torch.nn.functional.dropout(x * 2, 0.5)
        if not torch.isfinite(y).all():
            y = y.clamp(max=1.0).nan_to_num()
        return y * torch.rand(3)

    def either(x):
        y = x * 2
        if torch.isinf(y).any() or (~torch.isfinite(y)).any().item():
            return y.nan_to_num()
        return y.sin()

    def skipped(x):
        loss = x.square().sum()
        if not math.isfinite(loss.item()):
            return x * 0
        return loss * 2


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("fn", rows_of(Finite))
def test_a_decision_about_infinite_numbers_is_in_the_graph_until_there_is_one(fn, backend):
    compiled = minidynamo.compile(fn, backend=backend)
    values = [GOOD, GOOD, BAD, (1.0, float("inf"), 2.0), GOOD]
    for number, each in enumerate(values):
        seen, expected = outcome(compiled, each, requires_grad=True), outcome(fn, each, requires_grad=True)
        torch.testing.assert_close(seen, expected, equal_nan=True, rtol=0 if backend != "native" else 1e-5, atol=1e-6)
        if number == 1:
            assert (compiled.stats.graphs, compiled.stats.graph_breaks) == (1, 0)
    assert "all_numbers_were_finite" in compiled.why()
    assert compiled.stats.graph_breaks >= compiled.stats.recompiles == 1
    assert compiled.stats.graph_failures == 0


def test_several_decisions_about_infinite_numbers_have_one_guard():
    def doubles(start):
        x = start
        for _ in range(3):
            x = x * 2
            if not torch.isfinite(x).all():
                x = x.nan_to_num()
        return x

    compiled = minidynamo.compile(doubles, backend="eager")
    assert torch.equal(compiled(torch.ones(3)), torch.full((3,), 8.0))
    assert compiled.guards().count("all_numbers_were_finite") == 1


def test_infinite_numbers_end_no_function_that_may_not_compile_again():
    good, bad = torch.tensor(GOOD), torch.tensor(BAD)
    compiled = minidynamo.compile(Finite.skipped, backend="eager")
    assert torch.equal(compiled(good), Finite.skipped(good))
    with minidynamo.set_stance("fail_on_recompile"):
        assert compiled(bad).isnan().any()
        assert torch.equal(compiled(good), Finite.skipped(good))
    frozen = compiled.freeze(check_every=1)
    assert frozen(bad).isnan().any()
    assert torch.equal(frozen(good), Finite.skipped(good))
    assert compiled.stats.graphs == 1


def test_a_decision_about_infinite_numbers_breaks_the_graph_if_a_rerun_would_cost_memory():
    def adds(x, total):
        total.add_(x.sum())
        if torch.isnan(total).any():
            return x * 0
        return x * 2

    few, many = torch.zeros(3), torch.zeros(2**19)
    compiled = minidynamo.compile(adds, backend="eager")
    assert torch.equal(compiled(torch.ones(3), few), torch.full((3,), 2.0))
    assert compiled.stats.graph_breaks == 0
    assert compiled(torch.tensor([0.0, float("nan"), 0.0]), few).isnan().tolist() == [False, True, False]
    assert few.isnan().all()
    compiled = minidynamo.compile(adds, backend="eager")
    assert torch.equal(compiled(torch.ones(3), many), torch.full((3,), 2.0))
    assert many.eq(3).all()
    assert compiled.breaks().startswith("MD201 graph break: `if` on a tensor value")
    with pytest.raises(Unsupported, match="MD201"):
        minidynamo.compile(Finite.clamped, backend="eager", fullgraph=True)(torch.ones(3))


def test_no_tensor_that_the_frame_gives_up_is_held_for_a_second_run():
    def rebinds(x):
        x = x * 2
        assert (x > 0).all(), f"{x.tolist()}"
        return x

    compiled = minidynamo.compile(rebinds, backend="eager")
    assert torch.equal(compiled(torch.ones(2)), torch.full((2,), 2.0))
    with pytest.raises(AssertionError, match=r"^\[-2.0, -2.0\]"):
        compiled(-torch.ones(2))
    assert compiled.breaks().startswith("MD201 graph break: `if` on a tensor value")


def test_effects_of_a_failed_call_are_those_of_eager():
    log = []

    def logs(x, xs):
        log.append(len(xs))
        xs.clear()
        assert (x > 0).all()
        log.append("positive")
        return x * 2

    for fn in (logs, minidynamo.compile(logs, backend="eager")):
        log.clear()
        xs = [torch.ones(2)]
        fn(torch.ones(2), xs)
        xs.append(torch.ones(2))
        with pytest.raises(AssertionError):
            fn(-torch.ones(2), xs)
        assert (log, xs) == ([1, "positive", 1], [])


def test_nothing_is_written_twice():
    def counts(x, total):
        total.add_(x)
        if not (total < 5).all():
            raise OverflowError(f"{total.tolist()}")
        return total * 2

    compiled = minidynamo.compile(counts, backend="aot_eager")
    total = torch.zeros(2)
    for _ in range(2):
        compiled(torch.ones(2), total)
    with pytest.raises(OverflowError, match=r"\[7.0, 7.0\]"):
        compiled(torch.ones(2) * 5, total)
    assert total.tolist() == [7, 7] and not compiled.stats.graph_breaks


def test_a_second_run_draws_the_same_numbers():
    table = torch.ones(3, 4)

    def looks_up(x, i):
        y = torch.nn.functional.dropout(x, 0.5)
        try:
            return y + torch.nn.functional.embedding(i, table)
        except IndexError:
            return y + torch.rand(4)

    compiled = minidynamo.compile(looks_up, backend="eager")
    for index in (1, 5):
        results = []
        for fn in (looks_up, compiled):
            torch.manual_seed(0)
            results.append([fn(torch.ones(4), torch.tensor([index])), torch.rand(2)])
        torch.testing.assert_close(results[0], results[1], rtol=0, atol=0)


x = torch.tensor([[0.5, 0.2, 0.3], [0.1, 0.1, 0.8]])
MADE = {
    "categorical": lambda: distributions.Categorical(logits=x).log_prob(torch.tensor([0, 2])),
    "bernoulli": lambda: distributions.Bernoulli(x).entropy(),
    "dirichlet": lambda: distributions.Dirichlet(x).rsample(),
    "laplace": lambda: distributions.Laplace(x, x).rsample(),
    "multivariate normal": lambda: distributions.MultivariateNormal(torch.zeros(3), torch.eye(3)).log_prob(x),
    "tanh": lambda: distributions.TransformedDistribution(
        distributions.Normal(x, x), [distributions.TanhTransform()]
    ).rsample(),
    "kl": lambda: distributions.kl_divergence(
        distributions.Independent(distributions.Normal(x, x), 1),
        distributions.Independent(distributions.Normal(x, 1.0), 1),
    ),
}


@pytest.mark.parametrize("name", MADE)
def test_distributions_are_captured_with_their_validation(name):
    fn = MADE[name]
    compiled = minidynamo.compile(fn, backend="eager", fullgraph=True)
    for _ in range(2):
        torch.manual_seed(0)
        expected = fn()
        torch.manual_seed(0)
        torch.testing.assert_close(compiled(), expected, rtol=0, atol=0)


def test_matrices_that_are_not_positive_definite_are_refused():
    def made(covariance):
        return distributions.MultivariateNormal(torch.zeros(2), covariance).entropy()

    compiled = minidynamo.compile(made, backend="eager", fullgraph=True)
    assert torch.equal(compiled(torch.eye(2)), made(torch.eye(2)))
    for matrix in (torch.tensor([[1.0, 2.0], [2.0, 1.0]]), torch.tensor([[1.0, 0.5], [0.0, 1.0]])):
        with pytest.raises(ValueError) as expected:
            made(matrix)
        with pytest.raises(ValueError) as seen:
            compiled(matrix)
        assert str(seen.value) == str(expected.value)


def test_a_frame_whose_saved_tensors_hooks_have_seen_is_not_run_twice():
    def checked(x):
        y = x * x
        if (y > 4).any():
            raise ValueError("too large")
        return y.sin()

    def check():
        good, bad = (torch.full((3,), value, requires_grad=True) for value in (1.0, 3.0))
        assert torch.equal(compiled(good), checked(good))
        with pytest.raises(ValueError, match="too large"):
            compiled(bad)

    compiled, seen = minidynamo.compile(checked, backend="eager"), []
    for _ in range(2):
        check()
        with torch.autograd.graph.saved_tensors_hooks(
            lambda tensor: seen.append(tensor) or tensor, lambda packed: packed
        ):
            check()
    assert seen and compiled.stats.graphs == 3  # one with the check, two around a break


class Numbers:
    def compared(x):
        if x.sum().item() > 0.1:  # 0.1 rounds up to float32
            raise ValueError("too large")
        return x + 1

    def compared_as_float(x):
        if float(x.detach().max()) > 0.5:
            raise ValueError("too large")
        return x + 1

    def compared_as_int(x):
        if int((x > 0.2).sum()) >= 2 or (x > 0.2).sum().item() == 1:
            raise ValueError("too many")
        return x + 1

    def asked_as_bool(x):
        y = x * 2
        if bool((y > 1).any()):
            raise ValueError("too large")
        if not torch.isfinite(y).all().item():
            raise ValueError("not finite")
        return y if bool(y.abs().sum() < 1e9) else y + 1

    def asked_as_number(x):
        if not bool(x.sum()):
            raise ValueError("nothing")
        return x + 1


NUMBERS = [(0.05, 0.0), (0.1, 0.0), (0.6, 0.6), (0.25, -1.0), (float("nan"), 0.0), (0.0, 0.0)]


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("fn", rows_of(Numbers))
def test_numbers_that_are_only_read_to_raise_are_checked_in_the_graph(fn, backend):
    breaks = int(fn is Numbers.asked_as_bool)
    compiled = minidynamo.compile(fn, backend=backend, fullgraph=not breaks)
    for values in NUMBERS:
        assert str(outcome(compiled, values, requires_grad=True)) == str(outcome(fn, values, requires_grad=True))
    assert compiled.breaks().count("graph break:") == breaks


def test_a_number_of_which_torch_warns_is_read_by_torch():
    def warned(x):
        if float(x.max()) > 0.5:
            raise ValueError("too large")
        return x + 1

    compiled = minidynamo.compile(warned, backend="eager")
    torch.set_warn_always(True)  # torch may have warned in another test
    try:
        with pytest.warns(UserWarning, match="requires_grad=True to a scalar"):
            compiled(torch.zeros(2, requires_grad=True))
    finally:
        torch.set_warn_always(False)
    assert compiled.breaks().startswith("MD212")


def test_a_number_that_an_error_names_stays_in_the_graph():
    def used(x):
        total = x.sum().item()
        if total > 5:
            raise ValueError(total)
        return x + total

    compiled = minidynamo.compile(used, backend="eager")
    assert torch.equal(compiled(torch.ones(2)), torch.full((2,), 3.0))
    with pytest.raises(ValueError, match=r"^6\.0$"):
        compiled(torch.full((2,), 3.0))
    assert compiled.breaks().endswith("has no graph breaks.")
