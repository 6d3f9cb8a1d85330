"""Tests of minidynamo/tracer/capture/finalizers.py: objects that a frame or a write drops; whole programs are in
tests/end_to_end/lifetimes/test_finalizers.py and test_watched_deaths.py."""

from __future__ import annotations

import weakref

import torch

import minidynamo
from minidynamo.guards.guard import GuardKind
from minidynamo.testing import CompileCounter
from minidynamo.tracer.records.traced_frame import Break
from tests.tracer.capturing import capture, guards_on


class Plain:
    child = None


def given_up(value):
    value = 1
    return [value]


def replaced(value):
    value = value.child
    return [value]


def kept(value):
    other = [value]
    del value
    return other


def test_that_nobody_is_told_is_guarded():
    assert guards_on(capture(given_up, Plain()), "value") == {GuardKind.UNNOTICED_DEATH: None}
    assert GuardKind.UNNOTICED_DEATH in guards_on(capture(replaced, Plain()), "value")


def test_the_frame_is_cut_where_somebody_is():
    value = Plain()
    reference = weakref.ref(value, lambda _: None)
    assert reference() is value
    for fn in (given_up, replaced):
        end = capture(fn, value).exit
        assert isinstance(end, Break) and "drops an object" in end.diagnostic.what


def test_tensors_and_constants_do_not_count():
    for value in (1, None, "text"):
        assert GuardKind.UNNOTICED_DEATH not in guards_on(capture(given_up, value), "value")


class Holder:
    def __init__(self, part=None):
        self.part = part


def write(holder, items, table, queue):
    holder.part = 1
    holder.part = 2
    items[0] = 1
    table["a"] = 1
    queue.clear()


def test_writes_are_guarded_once():
    table = {"a": torch.ones(1), "b": 1}
    traced = capture(write, Holder(), [None, None], table, [1])
    assert guards_on(traced, "holder.__dict__")[GuardKind.UNNOTICED_DEATH] == ("part",)
    assert guards_on(traced, "items")[GuardKind.UNNOTICED_DEATH] == (0,)
    assert guards_on(traced, "table")[GuardKind.UNNOTICED_DEATH] == ("a",)
    assert guards_on(traced, "queue")[GuardKind.UNNOTICED_DEATH] == ()


def count(holder, items, table):
    holder.part += 1
    items[0] *= 2
    table["a"] = table["a"] + 1


def test_numbers_that_were_read_are_not_looked_at_again():
    traced = capture(count, Holder(1), [1], {"a": 1})
    assert GuardKind.UNNOTICED_DEATH not in {guard.kind for guard in traced.guards}


def test_what_is_watched_and_stays_is_not_in_the_way_of_a_guard():
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
