"""Tests of minidynamo/tracer/numbers/graph_numbers.py: numbers that the graph reads from tensors."""

from __future__ import annotations

import inspect
import math

import pytest
import torch

import minidynamo
from minidynamo.errors import Unsupported
from minidynamo.testing import CompileCounter

BACKENDS = ["eager", "aot_eager", "native"]


def returned(x):
    y = x * 2
    return y, y.sum().item(), (y > 0).any().item(), y.tolist(), int(y.sum())


def stored(x, history=[]):  # noqa: B006
    history.append(x.sum().item())
    return x + 1, {"mean": x.mean().item(), "all": [*history]}


def arithmetic(x):
    n = x.sum().item()
    m = (x > 0).sum().item()
    found = [n + m, 2 - n, n * m, n / 3, m // 2, m % 2, n**2, 2.0**n, -n, +m, abs(n), ~m, m & 3, True + m]
    return [*found, n > m, n == m, m != 2, not n, round(n, 2), round(n), int(n), float(m), math.floor(n)]


def functions(x):
    n = x.abs().sum().item()
    return [
        math.sqrt(n),
        math.log(n, 3),
        math.isnan(n),
        math.hypot(n, 2),
        min(n, 2.0),
        max([0.5, n, n * 2]),
        sum((n, 1)),
    ]


def in_operations(x):
    n, m = x.sum().item(), (x > 0).sum().item()
    y = x * n + m - torch.full((3,), n) / (n + 10) + torch.tensor(n) * torch.tensor(m)
    y = torch.where(y > n, y, m).clamp(min=n).add(x, alpha=n) + x.new_full((3,), n)
    return y.mul_(n).sub_(m), (x > 0) * n, x.long() * n, x.long() + m, x.bfloat16() * n


def in_powers(x):
    n = x.sum().item()
    return x**n, n**x


def read_late(x):
    y = x * 1
    first = y.sum()
    before = first.item()
    first.add_(5)
    return before, first.item(), first * before


def within_range(x):
    n = (x > 0).sum().item()
    return n * 10**30, x + n


def raising(x):
    y = x * 0
    try:
        return 1 / y.sum().item()
    except ZeroDivisionError:
        return y + 1


PROGRAMS = [returned, stored, arithmetic, functions, in_operations, in_powers, read_late, within_range, raising]

# torch 2.11 compares the number with 1, 2 and 0.5, so the graph ends.
BREAKING = [raising] if "statically_known_true" in inspect.getsource(torch._refs.pow) else [raising, in_powers]


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("program", PROGRAMS)
def test_numbers_stay_in_the_graph(program, backend):
    compiled = minidynamo.compile(program, backend=backend, fullgraph=program not in BREAKING)
    for scale in (1.0, -2.5, 3.0):
        x = torch.tensor([0.5, -1.5, 2.25]) * scale
        if program is stored:
            stored.__defaults__[0].clear()
        wanted = program(x.clone())
        if program is stored:
            stored.__defaults__[0].clear()
        found = compiled(x.clone())
        torch.testing.assert_close(found, wanted, rtol=1e-6, atol=1e-6, equal_nan=True)
        assert [type(n) for n in leaves(found)] == [type(n) for n in leaves(wanted)]
    assert program in BREAKING or compiled.stats.compiles == 1


def leaves(values):
    if isinstance(values, dict):
        values = [*values.values()]
    return [leaf for value in values for leaf in leaves(value)] if isinstance(values, (list, tuple)) else [values]


@pytest.mark.parametrize("backend", BACKENDS)
def test_no_gradient_flows_through_a_number(backend):
    def program(x):
        y = x * x.sum().item()
        return y.sum() * y.max().item()

    grads = []
    for function in (program, minidynamo.compile(program, backend=backend, fullgraph=True)):
        x = torch.tensor([1.0, 2.0], requires_grad=True)
        function(x).backward()
        grads.append(x.grad)
    assert torch.equal(*grads) and grads[0].tolist() == [18.0, 18.0]


def or_zero(number):
    try:
        return 1 / number
    except ZeroDivisionError:
        return 0.0


def in_callee(x):
    return or_zero(x.sum().item()), x + 1


def in_map(x):
    return [*map(or_zero, x.tolist())], x + 1


@pytest.mark.parametrize("program", [in_callee, in_map])
@pytest.mark.filterwarnings("ignore:MD523")
def test_a_callee_handles_its_error(program):
    compiled = minidynamo.compile(program, backend="eager", fullgraph=True)
    for x in (torch.ones(2), torch.zeros(2), torch.ones(2)):
        assert repr(compiled(x)) == repr(program(x))


def test_errors_are_those_of_python():
    whole = minidynamo.compile(lambda x: x * (1 / (x - x).sum().item()), backend="native", fullgraph=True)
    with pytest.raises(ZeroDivisionError, match="float division by zero"):
        whole(torch.ones(2))
    large = minidynamo.compile(lambda x: x * ((x > 0).sum().item() * 10**30), backend="native", fullgraph=True)
    with pytest.raises(OverflowError, match="int too big to convert"):
        large(torch.ones(2))
    assert torch.equal(large(-torch.ones(2)), torch.zeros(2))


DECISIONS = {
    "if": (lambda x: x + 1 if x.sum().item() > 0 else x, "MD201"),
    "slice": (lambda x: x[: int(x.sum().item())], "MD230"),
    "range": (lambda x: [*range(int(x.sum().item()))], "MD230"),
    "size": (lambda x: torch.zeros(int(x.sum().item())), "MD230"),
    "arange": (lambda x: torch.arange(x.sum().item()), "MD230"),
    "key": (lambda x: {int(x.sum().item()): x}, "MD230"),
    "power": (lambda x: x.sum().item() ** 0.5, "MD230"),
    "text": (lambda x: "%.1f" % x.sum().item(), "MD234"),  # noqa: UP031
    "f-string": (lambda x: f"{x.sum().item():.1f}" == "4.0", "MD230"),
    "class": (lambda x: max(1, x.sum().item()), "MD201"),
    "dropout": (lambda x: torch.nn.functional.dropout(x, (x.sum() * 0).item()), "MD230"),
    "too many": (lambda x: x.expand(100, 3).tolist(), "MD212"),
    "warning": (lambda x: float(x.detach().requires_grad_().sum()), "MD212"),
}


@pytest.mark.filterwarnings("ignore:Converting a tensor")
@pytest.mark.parametrize("name", DECISIONS)
def test_a_decision_breaks_the_graph(name):
    program, code = DECISIONS[name]
    x = torch.tensor([1.0, 2.0, 1.0])
    compiled = minidynamo.compile(program, backend="eager")
    assert repr(compiled(x)) == repr(program(x))
    assert code in compiled.breaks()
    with pytest.raises(Unsupported, match=code):
        minidynamo.compile(program, backend="eager", fullgraph=True)(x)


def test_other_backends_get_the_parts_between_the_numbers():
    counter = CompileCounter()
    compiled = minidynamo.compile(lambda x: x.sin() * x.sum().item(), backend=counter, fullgraph=True)
    x = torch.randn(3)
    torch.testing.assert_close(compiled(x), x.sin() * x.sum().item())
    assert counter.frame_count == 2


@pytest.mark.parametrize("foreach", [False, True])
@pytest.mark.parametrize("backend", BACKENDS)
def test_a_step_of_adafactor_is_one_graph(backend, foreach):
    results = []
    for compile_step in (lambda step: step, lambda step: minidynamo.compile(step, backend=backend, fullgraph=True)):
        torch.manual_seed(0)
        model = torch.nn.Sequential(torch.nn.Linear(4, 5), torch.nn.Tanh(), torch.nn.Linear(5, 2))
        optimizer = torch.optim.Adafactor(model.parameters(), foreach=foreach, lr=0.05, weight_decay=0.1)
        step = compile_step(optimizer.step)
        for _ in range(4):
            optimizer.zero_grad()
            model(torch.randn(3, 4)).square().sum().backward()
            step()
        results.append([p.detach() for p in model.parameters()])
    torch.testing.assert_close(*results, rtol=1e-5, atol=1e-6)


# min and max of tensors


def of_two(x):
    return x * max(x.sum(), x[0]), min(x.sum(), x[0])


def of_lists(x):
    return max([x.sum(), x.mean(), x.max()]) + 1, min(x), max(x * 2, default=0)


def of_nans_and_ties(x):
    nan, zero = x.sum() * math.nan, x[0] * 0.0
    return max(nan, x[0]), max(x[0], nan), min(zero, -zero), min(-zero, zero), x + 1


def of_ints(x):
    return x + max(x.argmax(), x.argmin()), max(x.max(), x.sum()).item()


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("program", [of_two, of_lists, of_nans_and_ties, of_ints])
def test_min_and_max_choose_among_tensors(program, backend):
    compiled = minidynamo.compile(program, backend=backend, fullgraph=True)
    for scale in (1.0, -2.5):
        results = []
        for function in (program, compiled):
            x = (torch.tensor([0.5, -1.5, 2.25]) * scale).requires_grad_()
            found = function(x)
            found[0].sum().backward()
            results.append((*found, x.grad))
        torch.testing.assert_close(*results, rtol=1e-6, atol=0, equal_nan=True)
    assert compiled.stats.compiles == 1


@pytest.mark.parametrize("backend", BACKENDS)
def test_the_result_is_one_of_the_tensors(backend):
    a, b, c = torch.tensor([2.0]), torch.tensor([3.0]), torch.tensor([3.0])
    largest = minidynamo.compile(lambda *xs: (max(xs), xs[0] + 1), backend=backend, fullgraph=True)
    assert largest(a, b, c)[0] is b and largest(c, b, a)[0] is c
    assert largest(b, a, c)[0] is b and largest.stats.compiles == 1


def written(x, a, b):
    largest = max(a, b)
    a += 10
    return x * largest


REFUSED = {
    "written": (lambda x, a, b: max(a, b).add_(1) + x, "MD214"),
    "operand written": (written, "MD214"),
    "is": (lambda x, a, b: (max(a, b) is a, x + 1), "MD230"),
    "leaf": (lambda x, a, b: (max(a, b).is_leaf, x + 1), "MD212"),
    "dtype": (lambda x, a, b: (max(a, b.double()), x + 1), "MD201"),
    "strides": (lambda x, a, b: (max(a, x[::2].sum(0, keepdim=True).as_strided((1,), (2,))).stride(), x + 1), "MD201"),
    "an int": (lambda x, a, b: (max(0, a), max(3, b), x + 1), "MD201"),
    "key": (lambda x, a, b: (max([a, b], key=lambda t: -t), x + 1), "MD201"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_python_decides_which_tensor_it_is(name):
    program, code = REFUSED[name]
    compiled = minidynamo.compile(program, backend="eager")
    for a, b in ((2.0, 3.0), (3.0, 2.0)):
        given, others = ([torch.ones(2), torch.tensor([a]), torch.tensor([b])] for _ in range(2))
        assert repr(compiled(*given)) == repr(program(*others)) and repr(given) == repr(others)
    assert code in compiled.breaks()
