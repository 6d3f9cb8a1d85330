"""Symbolic numbers in keys: names by order, facts, decisions that are evaluated again."""

import pytest
import torch

from minidynamo import compat
from minidynamo.graph_cache.encoding import Damaged, NotStorable
from minidynamo.graph_cache.symbols import Symbols


class Frame:
    """Symbols of one ShapeEnv, with named sources."""

    def __init__(self):
        self.torch = compat.symbolic()
        self.env = self.torch.ShapeEnv()

    def size(self, name, hint):
        symbol = self.env.create_symbol(hint, self.torch.NamedSource(name), self.torch.DimDynamic.DYNAMIC)
        return self.env.create_symintnode(symbol, hint=hint)


def test_names_follow_the_order_in_which_numbers_come():
    frame = Frame()
    a, b = frame.size("a", 6), frame.size("b", 8)
    one, other = Symbols(), Symbols()
    assert [one.text(n) for n in (b, a, b * 2 + a)] == ["n0", "n1", "n1 + 2*n0"]
    assert [other.text(n) for n in (a, b, b * 2 + a)] == ["n0", "n1", "n0 + 2*n1"]


@pytest.mark.parametrize("names", [("a", "b"), ("b", "a"), ("z9", "c17"), ("a46", "a0")])
def test_texts_do_not_depend_on_what_torch_calls_a_symbol(names):
    frame = Frame()
    a, b = (frame.size(name, hint) for name, hint in zip(names, (6, 8)))
    symbols = Symbols()
    numbers = (a, b, a * b + 2 * b - a, (a + b) // 2, torch.sym_max(a, b) % 7)
    assert [symbols.text(n) for n in numbers[:2]] == ["n0", "n1"]
    again = Symbols()
    frame = Frame()
    a, b = frame.size("p", 6), frame.size("q", 8)
    others = (a, b, a * b + 2 * b - a, (a + b) // 2, torch.sym_max(a, b) % 7)
    assert [symbols.text(n) for n in numbers] == [again.text(n) for n in others]


def test_hints_and_sources_stand_in_no_text():
    def text(name, hint):
        number = Frame().size(name, hint)
        symbols = Symbols()
        return symbols.text(number * 3), tuple(symbols.facts())

    assert text("x", 6) == text("weight", 50)


def test_what_is_known_is_a_fact():
    frame = Frame()
    a = frame.size("a", 6)
    before = Symbols()
    before.text(a)
    known = tuple(before.facts())
    assert bool(a % 2 == 0) and bool(a < 100)
    after = Symbols()
    after.text(a)
    assert tuple(after.facts()) != known
    assert tuple(before.facts()) != tuple(after.facts())


def facts_of(*numbers):
    symbols = Symbols()
    for number in numbers:
        symbols.text(number)
    return tuple(symbols.facts())


def test_what_was_decided_on_numbers_that_the_graph_does_not_have_is_no_fact():
    frame = Frame()
    a, other, dropped = frame.size("a", 6), frame.size("b", 8), frame.size("c", 3)
    before = facts_of(a)
    assert bool(other > 5) and bool(dropped == 3)
    assert facts_of(a) == before
    assert "True" not in facts_of(a, other)


def test_what_binds_a_number_to_others_is_a_fact_with_all_that_is_known_of_them():
    frame = Frame()
    a, other, third = frame.size("a", 6), frame.size("b", 8), frame.size("c", 9)
    assert bool(third % 3 == 0) and bool(other < third)
    before = facts_of(a)
    assert bool(a < other)
    assert len(before) == 1 and len(facts_of(a)) == 6, "three ranges and three decisions"


def test_a_number_that_turned_out_constant_is_written_so():
    a = Frame().size("a", 6)
    assert bool(a == 6)
    assert Symbols().text(a) == "6"


def test_decisions_are_made_again_where_they_hold():
    made = Frame()
    a, b = made.size("a", 6), made.size("b", 12)
    symbols = Symbols()
    symbols.text(a), symbols.text(b)
    assert symbols.decided() == []
    assert bool(b == 2 * a) and bool(a % 3 == 0) and bool(torch.sym_max(a, b) > 5)
    decisions = symbols.decided()
    assert decisions

    def again(one, other):
        frame = Frame()
        numbers = frame.size("x", one), frame.size("y", other)
        found = Symbols()
        for number in numbers:
            found.text(number)
        return found.decide(decisions), len(frame.env.guards)

    holds, guards = again(9, 18)
    assert holds and guards >= 2
    assert again(9, 19) == (False, 0)
    assert again(8, 16) == (False, 0)


def test_nothing_decided_always_holds():
    assert Symbols().decide([])
    assert Symbols().decided() == [] and list(Symbols().facts()) == []


def test_a_decision_on_another_number_is_not_stored():
    frame = Frame()
    a, b = frame.size("a", 6), frame.size("b", 8)
    symbols = Symbols()
    symbols.text(a)
    assert bool(b % 4 == 0)
    with pytest.raises(NotStorable):
        symbols.decided()


def test_a_number_that_no_input_is_cannot_be_decided_on():
    frame = Frame()
    a, b = frame.size("a", 6), frame.size("b", 8)
    symbols = Symbols()
    symbols.text(a + b)
    assert not symbols.decide(["n0 % 2 == 0"])


@pytest.mark.parametrize("text", ["n0 +", "open('x')", "__import__('os')", "n7 == 1"])
def test_a_decision_that_nobody_wrote_is_refused(text):
    symbols = Symbols()
    symbols.text(Frame().size("a", 6))
    with pytest.raises(Damaged):
        symbols.decide([text])
