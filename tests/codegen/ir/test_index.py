"""Index expressions: a simplified expression has the value of the original."""

import itertools

import torch
from hypothesis import given
from hypothesis import strategies as st

from minidynamo.codegen.ir import index
from minidynamo.codegen.ir.expr import IndexValue
from minidynamo.codegen.ir.index import Index, Lookup, Var, as_index, delinearize, flatten, row_major

VI, VJ = Var("i", 6), Var("j", 4)
i, j = as_index(VI), as_index(VJ)


def value(index: Index, at: dict[Var, int]) -> int:
    return index.substitute({v: as_index(n) for v, n in at.items()}).const


@st.composite
def indices(draw, depth=3):
    if depth == 0 or draw(st.booleans()):
        return draw(st.sampled_from([i, j, i * 4 + j, as_index(draw(st.integers(0, 7)))]))
    inner = draw(indices(depth=depth - 1))
    number = draw(st.integers(1, 12))
    match draw(st.integers(0, 3)):
        case 0:
            return inner // number
        case 1:
            return inner % number
        case 2:
            return inner * number
        case _:
            return inner + draw(indices(depth=depth - 1))


@given(indices(), st.integers(-3, 3))
def test_products_are_sorted_and_folded_as_sums_are(a, n):
    found = a * n + 5
    assert found == index._sum(found.terms, found.const)


def test_nothing_is_sorted_anew_for_a_factor_or_a_constant(monkeypatch):
    before = i * 4 + j
    monkeypatch.delattr(index, "_sum")
    assert before * 1 is before and value((before + 3) * 2 + 1, {VI: 2, VJ: 1}) == 25


@given(indices(), indices(), st.integers(1, 16))
def test_arithmetic_is_that_of_python(a, b, n):
    for x, y in itertools.product(range(VI.extent), range(VJ.extent)):
        at = {VI: x, VJ: y}
        left, right = value(a, at), value(b, at)
        assert value(a + b, at) == left + right
        assert value(a - b, at) == left - right
        assert value(a * n, at) == left * n
        assert value((a - b) // n, at) == (left - right) // n
        assert value((a - b) % n, at) == (left - right) % n
        low, high = (a - b).bounds()
        assert low <= left - right <= high


def test_division_by_a_stride_disappears():
    assert (i * 4 + j) // 4 == i
    assert (i * 4 + j) % 4 == j
    assert (i * 4 + j) // 8 == i // 2
    assert (i // 2) // 3 == as_index(0)


def test_quotient_and_remainder_join():
    whole = as_index(Var("n", 24))
    assert (whole // 4) * 4 + whole % 4 == whole
    assert (whole // 12) * 12 + (whole // 4 % 3) * 4 + whole % 4 == whole


def test_delinearize_is_the_inverse_of_flatten():
    shape = (2, 3, 4)
    coordinates = [as_index(Var(f"d{k}", n)) for k, n in enumerate(shape)]
    assert delinearize(flatten(coordinates, row_major(shape)), shape) == tuple(coordinates)


def test_dimension_of_size_one_is_always_zero():
    assert as_index(Var("one", 1)) == Index()
    assert delinearize(i, (1, 6)) == (Index(), i)


def test_text_and_coefficients():
    assert str(i * 4 + j - 1) == "4*i + j - 1"
    assert (i * 4 + j).coefficient(VI) == 4
    assert (i // 2).coefficient(VI) == 0
    assert (i // 2).variables() == {VI}
    assert not (i // 2).is_linear() and (i + j).is_linear()


def test_lookup_is_substituted_inside():
    looked_up = Index(((Lookup(IndexValue(i, torch.int64), 9), 1),))
    assert looked_up.bounds() == (0, 8)
    assert looked_up.substitute({VI: j}).variables() == {VJ}


def test_what_is_divided_is_not_negative():
    """Covers values that fall as a variable grows, like indices of `flip`: C++ and Triton round toward zero."""
    falling = Index() - as_index(Var("r", 8)) + 7
    for divided in (falling // 4, falling % 4, (falling + 8) // 4, (falling * 3 + 5) % 4):
        assert all(atom.base.bounds()[0] >= 0 for atom, _ in divided.terms)
