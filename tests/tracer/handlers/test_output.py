"""Tests of minidynamo/tracer/handlers/output.py: printed lines appear as in eager, mostly without a graph break."""

import io
import sys

import pytest
import torch

import minidynamo
from minidynamo.errors import Unsupported
from minidynamo.testing import assert_same_as_eager

ERRORS = io.StringIO()


def vector():
    return torch.tensor([1.0, -2.0, 3.0], requires_grad=True)


PRINTED = {
    "nothing": lambda x, y: print(),
    "a tensor": lambda x, y: print("y:", y),
    "an argument": lambda x, y: print(x, end="|\n"),
    "facts": lambda x, y: print(y.shape, y.dtype, y.device, y.dim(), sep=", "),
    "a number": lambda x, y: print(y.sum(), y.sum().item(), flush=True),
    "an f-string": lambda x, y: print(f"{y.sum():.3f} of {y.mean()} and {y.shape[0]}"),
    "containers": lambda x, y: print([y, 1], {"mean": y.mean()}, (x, None)),
    "to a file": lambda x, y: print(y, file=sys.stderr),
    "a helper": lambda x, y: (lambda *parts: print("helper", *parts))(y, 2),
    "a loop": lambda x, y: [print(k, y + k) for k in range(3)],
    "without gradients": lambda x, y: torch.no_grad()(lambda: print(y * 2))(),
    "in a block": lambda x, y: print(y) if y.dim() else None,
}


@pytest.mark.parametrize("write", PRINTED.values(), ids=PRINTED)
def test_a_printed_line_is_no_reason_to_break(write):
    def fn(x):
        y = x.sin() * 2
        write(x, y)
        return y * 2

    assert_same_as_eager(fn, vector, fullgraph=True, calls=2)


@pytest.mark.cpp
@pytest.mark.parametrize("write", PRINTED.values(), ids=PRINTED)
def test_generated_code_computes_printed_tensors(write):
    def fn(x):
        y = x.detach() * 2  # a text names the autograd node, which is another in a compiled graph
        write(x, y)
        return x * y

    assert_same_as_eager(fn, vector, fullgraph=True, backend="native")


def test_lines_are_in_the_order_of_the_program():
    def fn(x, lines):
        print("first")
        y = x.sin()
        lines.append(len(lines))
        print("second", y)
        if y.sum() > 100:
            raise ValueError("large")
        print("third")
        minidynamo.graph_break()
        print("fourth")
        return y + 1

    assert_same_as_eager(fn, lambda: (vector(), [1]))


def test_a_line_before_an_error_appears():
    def checked(x):
        print("before", x)
        if x.sum() > 1:
            raise ValueError("large")
        print("after")
        return x + 1

    def looked_up(x):
        print("before")
        y = x[torch.tensor([7])]
        print("after", y)
        return y

    def caught(x):
        try:
            looked_up(x)
        except IndexError:
            print("caught")
        return x * 2

    for fn in (checked, looked_up, caught):
        assert_same_as_eager(fn, vector, calls=2)


class Shown:
    def __init__(self):
        self.count = 0

    def __str__(self):
        self.count += 1
        return f"shown {self.count}"


LATER = {
    "an object with a text of its own": lambda shown, items: print(shown),
    "an external list": lambda shown, items: print(items) or items.append(1),
    "a file of the program": lambda shown, items: print("text", file=ERRORS),
}


@pytest.mark.parametrize("write", LATER.values(), ids=LATER)
def test_what_may_change_is_printed_as_in_eager(write):
    def fn(x, shown, items):
        write(shown, items)
        return x + shown.count + len(items)

    assert_same_as_eager(fn, lambda: (vector(), Shown(), [2]))


def test_printed_values_are_not_guarded():
    def fn(x, epoch, name, rate, items):
        print(epoch, name, rate, items)
        return x * 2

    compiled = minidynamo.compile(fn, backend="eager")
    for k in range(5):
        compiled(vector(), k, f"epoch {k}", k / 7, list(range(k)))
    assert compiled.stats.recompiles == 0


def test_a_program_that_replaces_the_output(capsys):
    def fn(x):
        before, sys.stdout = sys.stdout, ERRORS
        print("elsewhere")
        sys.stdout = before
        print("here")
        return x + ERRORS.tell()

    compiled = minidynamo.compile(fn, backend="eager")
    start = ERRORS.tell()
    assert torch.equal(compiled(vector()), vector() + start + len("elsewhere\n"))
    assert capsys.readouterr().out == "here\n"


def test_a_line_in_a_branch_of_cond_is_refused():
    def fn(x):
        return torch.cond(x.sum() > 0, lambda y: print("yes") or y + 1, lambda y: y - 1, (x,))

    with pytest.raises(Unsupported):
        minidynamo.compile(fn, backend="eager", fullgraph=True)(vector())
