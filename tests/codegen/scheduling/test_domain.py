"""Domains: loop nests of different shapes over the same elements."""

import torch

from minidynamo.codegen.ir.loops import Loops
from minidynamo.codegen.scheduling.domain import domain_of, place, place_all
from tests.codegen.graphs import lower


def nests(function, *args):
    return [n for n in lower(function, *args).nodes if isinstance(n, Loops)]


def test_reduction_leads():
    nodes = nests(lambda x: (x + 1).sum(1), torch.ones(3, 4, 5))
    domain = domain_of(nodes)
    assert [v.extent for v in domain.axes] == [3, 4, 5]
    assert [v.extent for v in domain.columns] == [4]
    assert [v.extent for v in domain.rows] == [3, 5]


def test_dimensions_of_size_one_vanish():
    domain = domain_of(nests(lambda x: x + 1, torch.ones(3, 1, 5)))
    assert [v.extent for v in domain.axes] == [3, 5]


def test_reshaped_nest_is_placed_without_divisions():
    softmax = nests(lambda x: x.softmax(-1).view(6, 5) * 2, torch.ones(2, 3, 5))
    placed = place_all(softmax, domain_of(softmax))
    assert placed is not None
    assert all(i.is_linear() for i in placed[-1].node.body.args[0].index)


def test_rows_are_recognized():
    nodes = nests(lambda x: x.mean(1) * 2, torch.ones(3, 4))
    placed = place_all(nodes, domain_of(nodes))
    assert placed is not None
    assert [p.is_row for p in placed] == [False, True, True]


def test_other_sizes_do_not_fit():
    nodes = nests(lambda x: x.sum(1), torch.ones(3, 4))
    other = nests(lambda x: x + 1, torch.ones(5))[0]
    assert place(other, domain_of(nodes)) is None


def test_reading_at_another_point_does_not_fit():
    nodes = nests(lambda x: ((y := x.exp()), y.flip(0) + 1), torch.ones(3, 4))
    assert place_all(nodes, domain_of(nodes)) is None
    transposed = nests(lambda x: ((y := x.exp()), y + y.t()), torch.ones(4, 4))
    assert place_all(transposed, domain_of(transposed)) is None


def test_folds_over_other_columns_do_not_fit():
    nodes = nests(lambda x: (x.sum(0), x.sum(1)), torch.ones(4, 4))
    assert place_all(nodes, domain_of(nodes)) is None


def test_a_row_value_cannot_read_an_element():
    nodes = nests(lambda x: (x.sum(1), x.exp()[:, 0] * 2), torch.ones(3, 4))
    sums, exp, first = nodes
    assert place_all([sums, exp], domain_of(nodes)) is not None
    assert place_all([sums, exp, first], domain_of(nodes)) is None
