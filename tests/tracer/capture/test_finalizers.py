"""Tests of minidynamo/tracer/capture/finalizers.py: objects that a frame or a write drops; whole programs are in
tests/end_to_end/lifetimes/test_finalizers.py and test_watched_deaths.py."""

from __future__ import annotations

import weakref

import torch

import minidynamo
from minidynamo.testing import CompileCounter
from minidynamo.tracer.records.traced_frame import Break
from tests.tracer.capturing import capture


class Plain:
    child = None


def given_up(value):
    value = 1
    return [value]


def replaced(value):
    value = value.child
    return [value]


def test_the_frame_is_cut_where_somebody_is():
    value = Plain()
    reference = weakref.ref(value, lambda _: None)
    assert reference() is value
    for fn in (given_up, replaced):
        end = capture(fn, value).exit
        assert isinstance(end, Break) and "drops an object" in end.diagnostic.what


class Holder:
    def __init__(self, part=None):
        self.part = part


def test_watched_parts_that_stay_alive_break_nothing():
    counter = CompileCounter()
    parts = [Holder() for _ in range(6)]
    finalizers = [weakref.finalize(parts[-1], print)]

    @minidynamo.compile(backend=counter, fullgraph=True)
    def drop(items, elements, x):
        items[0] = items[1] = items[2] = items[3] = 1
        elements.discard(parts[0])
        return x + 1

    for _ in range(4):
        drop([Holder() for _ in range(4)] + parts[4:], {parts[0], parts[-1]}, torch.ones(1))
    assert counter.frame_count == 1
    finalizers.pop().detach()
