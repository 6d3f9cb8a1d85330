"""An error in the middle of a compiled graph leaves eager's state, and is caught at eager's position."""

from __future__ import annotations

import logging
import sys
import traceback

import pytest
import torch

import minidynamo
from minidynamo.testing import assert_same_as_eager
from tests.end_to_end.programs import rows_of

BACKENDS = ["eager", "aot_eager", pytest.param("native", marks=pytest.mark.cpp)]


class Programs:
    def catch_raised(x, i, log):
        y = x + 1
        try:
            z = torch.index_select(y, 0, i)
        except (IndexError, RuntimeError):
            z = y * 0
        return z + 1

    def effects_before(x, i, log):
        log.append("before")
        z = torch.index_select(x + 1, 0, i)
        log.append("behind")
        return z

    def written_before(x, i, log):
        x.add_(1)
        return torch.index_select(x, 0, i)

    def caught_by_a_callee(x, i, log):
        return selected(x + 1, i, x * 2) + 1

    def swallowed_by_a_callees_manager(x, i, log):
        def inner():
            with Noting(log):
                return torch.index_select(x, 0, i)

        return inner()

    def finally_and_manager(x, i, log):
        try:
            with Noting(log):
                log.append(x + 1)
                torch.index_select(x, 0, i).sum()
                log.append("selected")
            y = torch.index_select(x * 2, 0, i)
        finally:
            log.append("finally")
        return y

    def behind_a_handled_error(x, i, log):
        try:
            raise KeyError("k")
        except KeyError as error:
            log.append(str(error))
            try:
                y = torch.index_select(x, 0, i)
            except (IndexError, RuntimeError) as second:
                log.append(str(second.__context__))
                y = x
        return y


def selected(x, i, default):
    try:
        return torch.index_select(x, 0, i)
    except (IndexError, RuntimeError):
        return default


class Noting:
    def __init__(self, log):
        self.log = log

    def __enter__(self):
        self.log.append("in")

    def __exit__(self, kind, error, traceback):
        self.log.append(None if kind is None else kind.__name__)
        return True


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("fn", rows_of(Programs))
def test_error_of_an_operation(fn, backend):
    def good():
        return torch.arange(3.0), torch.tensor([1]), []

    def bad():
        return torch.arange(3.0), torch.tensor([7]), []

    assert_same_as_eager(fn, good, bad, good, backend=backend)


@pytest.mark.parametrize("backend", BACKENDS)
def test_an_error_names_the_lines_of_the_program(backend):
    @minidynamo.compile(backend=backend)
    def f(x, i):
        y = x.exp()
        return torch.index_select(y, 0, i)

    f(torch.arange(3.0), torch.tensor([0]))
    with pytest.raises(IndexError) as error:
        f(torch.arange(3.0), torch.tensor([9]))
    (note,) = error.value.__notes__
    assert note.startswith("Raised while computing\n")
    assert "in f: return torch.index_select(y, 0, i)" in note.splitlines()[-1]
    if backend != "native":  # computes both lines in one kernel
        assert len(note.splitlines()) == 2


def test_frames_behind_a_break_have_the_name_of_their_function(logged):
    logger = logging.getLogger(__name__)

    def program(x):
        y = x + 1
        logger.warning("called")
        if y.sum() > 0:
            raise ValueError(sys._getframe().f_code.co_name)
        return y

    compiled = minidynamo.compile(program, backend="eager")
    for _ in range(2):
        with pytest.raises(ValueError, match=r"^program$") as catch_raised:
            compiled(torch.ones(2))
        assert traceback.extract_tb(catch_raised.value.__traceback__)[-1].name == "program"
    assert [record.funcName for record in logged] == ["program", "program"]


class Refused:
    def times_half(t, log):
        log.append(1)
        t.mul_(2)
        t *= 0.5
        return t

    def by_keyword(t, log):
        t.mul_(other=1.5)
        log.append(2)

    def scaled_product(t, log):
        log.append(3)
        return t.addcmul_(torch.ones(3), torch.ones(3))

    def aliases(t, log):
        log.append(4)
        t.multiply_(0.5)
        log.append(5)

    def quotient(t, log):
        log.append(6)
        return t.div_(2)

    def bits_of_floats(t, log):
        log.append(7)
        return ~t.sin()

    def unused_difference_of_bools(t, log):
        log.append(8)
        (t > 1) - True
        log.append(9)

    def rectified_bools(t, log):
        mask = t > 1
        log.append(10)
        mask.relu_()
        log.append(11)

    def caught(t, log):
        try:
            t.add_(0.5)
        except RuntimeError as error:
            log.append(str(error))
        return t + 1


@pytest.mark.parametrize("backend", ["eager", "aot_eager"])
@pytest.mark.parametrize("program", rows_of(Refused))
def test_what_torch_refuses_for_dtypes_raises_where_it_does_in_eager(program, backend):
    assert_same_as_eager(program, lambda: (torch.arange(3), []), backend=backend)


class Entropies:
    def entropy(p, log):
        log.append(1)
        loss = torch.nn.functional.binary_cross_entropy(p, p.detach())
        return loss * 2

    def unused_entropy(p, log):
        torch.nn.functional.binary_cross_entropy(p, torch.ones(3))
        return p * 2


@pytest.mark.parametrize("largest", [1.0, 1.5])
@pytest.mark.parametrize("program", rows_of(Entropies))
def test_what_is_no_probability_is_refused(program, largest):
    make = lambda: (torch.tensor([0.5, 0.0, largest], requires_grad=True), [])  # noqa: E731
    assert_same_as_eager(program, make, backend="aot_eager")
