"""Tests of minidynamo/autograd/partition/max_flow.py."""

import itertools
import random

import pytest

from minidynamo.autograd.partition.max_flow import UNLIMITED, FlowNetwork


def cut_of(edges, count, after):
    return sum(capacity for start, end, capacity in edges if start not in after and end in after)


def best_sink_side(edges, count):
    """Returns the smallest of all sink sides of minimum cuts, by trying all, from node 0 to the last."""
    inner = range(1, count - 1)
    sides = [{*chosen, count - 1} for k in range(count - 1) for chosen in itertools.combinations(inner, k)]
    return min(sides, key=lambda after: (cut_of(edges, count, after), len(after)))


def network(edges, count):
    net = FlowNetwork(count)
    for edge in edges:
        net.add(*edge)
    return net


@pytest.mark.parametrize("seed", range(60))
def test_the_cut_is_the_minimum_nearest_to_the_sink(seed):
    rng = random.Random(seed)
    count = rng.randint(3, 8)
    pairs = [pair for pair in itertools.permutations(range(count), 2) if rng.random() < 0.4]
    edges = [(start, end, rng.choice([0, 1, 1, 2, 5])) for start, end in pairs]
    assert network(edges, count).sink_side(0, count - 1) == best_sink_side(edges, count)


def test_flow_is_taken_back_from_an_edge_on_a_shorter_path():
    """The shortest path 0-1-2-5 takes the edges that both longer paths need."""
    edges = [(0, 1, 1), (1, 2, 1), (2, 5, 1), (0, 3, 1), (3, 4, 1), (4, 2, 1), (1, 6, 1), (6, 7, 1), (7, 5, 1)]
    net = network(edges, 8)
    assert 0 not in net.sink_side(0, 5)
    assert cut_of(edges, 8, {5}) == 2 == sum(net.rest[edge ^ 1] for edge in (4, 16))


def test_a_flow_without_limit_is_an_error():
    with pytest.raises(ValueError, match="not limited"):
        network([(0, 1, UNLIMITED), (1, 2, UNLIMITED)], 3).sink_side(0, 2)


def test_long_chains_take_linear_time():
    """Counts the edges that are looked at: each value can be saved, and each is read."""
    looked = []

    class Counting(list):
        def __getitem__(self, position):
            looked.append(position)
            return super().__getitem__(position)

    def work(length):
        net = FlowNetwork(2 * length + 2)
        source, sink = 2 * length, 2 * length + 1
        for i in range(length):
            net.add(i, length + i, 5 + i % 3)
            net.add(source, i)
            net.add(length + i, sink)
            if i:
                net.add(length + i - 1, i)
        net.ends = Counting(net.ends)
        looked.clear()
        net.sink_side(source, sink)
        return len(looked)

    assert work(400) < 2.2 * work(200)
