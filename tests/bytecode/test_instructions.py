# ruff: noqa: SIM105
from __future__ import annotations

import dis
import itertools
import sys

import pytest

from minidynamo.bytecode.instructions import decode, location, slot_names
from tests.bytecode import corpus


def ops(fn, *names):
    return [i for i in decode(fn.__code__) if i.opname in names]


@pytest.mark.parametrize("fn", dict.fromkeys(fn for fn, _, _ in corpus.CASES), ids=lambda fn: fn.__qualname__)
def test_offsets_and_indices_agree_with_dis(fn):
    real = [(i.opname, i.offset) for i in dis.get_instructions(fn) if i.opname not in ("EXTENDED_ARG", "CACHE")]
    decoded = decode(fn.__code__)
    # The second half of a comparison with a bool result has the comparison's offset.
    halves = {second.index for first, second in itertools.pairwise(decoded) if first.offset == second.offset}
    assert [(i.opname, i.offset) for i in decoded if i.index not in halves] == real
    assert {decoded[index].opname for index in halves} <= {"TO_BOOL"}
    assert [i.index for i in decoded] == list(range(len(decoded)))
    for instruction in decoded:
        assert instruction.target is None or 0 <= instruction.target < len(decoded)


def test_specialised_instructions_are_decoded_to_their_plain_form():
    def hot(x):
        return x + x

    for _ in range(100):
        hot(1)
    assert [i.argval for i in ops(hot, "BINARY_OP")] == ["+"]


def test_operators_and_comparisons_are_symbols():
    def f(a, b):
        a += b
        return a - b, a < b, a is not b, a in b, a not in b, a is b

    assert [i.argval for i in ops(f, "BINARY_OP")] == ["+=", "-"]
    assert [i.argval for i in ops(f, "COMPARE_OP")] == ["<"]
    assert [(i.argval, i.flag) for i in ops(f, "IS_OP")] == [("is not", True), ("is", False)]
    assert [(i.argval, i.flag) for i in ops(f, "CONTAINS_OP")] == [("in", False), ("not in", True)]


def test_a_comparison_that_ends_in_a_bool_is_two_operations():
    def f(a, b):
        if a < b:
            return a
        return a <= b

    decoded = decode(f.__code__)
    assert [i.argval for i in ops(f, "COMPARE_OP")] == ["<", "<="]
    first, second = (decoded[i.index + 1].opname for i in ops(f, "COMPARE_OP"))
    assert first == "TO_BOOL" or (sys.version_info < (3, 13) and first.startswith("POP_JUMP"))
    assert second == "RETURN_VALUE"


def test_calls_tell_names_constants_and_method_form():
    def f(x):
        len(x)
        return x.append(1, end=2), x.size

    (load,) = ops(f, "LOAD_GLOBAL")
    assert (load.argval, load.flag) == ("len", True)
    attributes = [(i.argval, i.method_form) for i in ops(f, "LOAD_ATTR", "LOAD_METHOD")]
    assert attributes == [("append", True), ("size", False)]
    names = ops(f, "KW_NAMES") or [i for i in ops(f, "LOAD_CONST") if type(i.argval) is tuple]
    assert [i.argval for i in names] == [("end",)]


def test_jumps_lead_to_indices():
    def f(xs):
        for x in xs:
            if x:
                break
        return "end"

    (step,) = ops(f, "FOR_ITER")
    after = decode(f.__code__)[step.target]
    assert (after.opname, after.argval) in (("LOAD_CONST", "end"), ("RETURN_CONST", "end"))
    assert after.opname not in ("END_FOR", "POP_TOP")
    backward = [i for i in decode(f.__code__) if "BACKWARD" in i.opname]
    assert backward
    assert {i.target for i in backward} == {step.index}


def test_handlers_come_from_the_innermost_region():
    def f(x):
        try:
            try:
                x.first()
            except KeyError:
                pass
        except ValueError:
            pass

    (load,) = [i for i in decode(f.__code__) if i.argval == "first"]
    inner = decode(f.__code__)[load.handler.target]
    assert inner.opname == "PUSH_EXC_INFO"
    assert decode(f.__code__)[inner.index + 1].argval == "KeyError"
    assert (load.handler.depth, load.handler.lasti) == (0, False)
    assert decode(f.__code__)[0].handler is None


def test_location_is_the_expression():
    def f(x):
        return 1 + x.missing

    (load,) = [i for i in decode(f.__code__) if i.argval == "missing"]
    where = location(f.__code__, load.index)
    assert where.expression() == "x.missing"
    assert where.lineno == f.__code__.co_firstlineno + 1
    assert where.function == "f"


def test_slot_names_are_unique():
    x = 1

    def f(ys):
        return [x * 2 for x in ys], x

    names = slot_names(f.__code__)
    assert len(set(names)) == len(names)
    assert "x" in names
    if "x" in f.__code__.co_varnames:  # the comprehension is inlined
        assert "x (local)" in names


def test_slot_names_keep_their_slots():
    for fn, _, _ in corpus.CASES:
        names = slot_names(fn.__code__)
        for instruction in decode(fn.__code__):
            if instruction.touches_slot and type(instruction.argval) is str:
                assert names[instruction.arg] == instruction.argval


def test_extended_arguments_belong_to_their_instruction():
    lines = "\n".join(f"    if x == {k + 1000}: y = 'c{k}'" for k in range(400))
    namespace = {}
    exec(f"def f(x):\n  while x:\n{lines}\n    x -= 1\n  return y", namespace)
    decoded = decode(namespace["f"].__code__)
    assert {i.opname for i in decoded}.isdisjoint({"EXTENDED_ARG", "CACHE"})
    constants = [i.argval for i in decoded if i.opname == "LOAD_CONST" and type(i.argval) is str]
    assert constants == [f"c{k}" for k in range(400)]
    backward = [i for i in decoded if i.target is not None and i.target < i.index]
    assert backward
    for jump in backward:
        assert decoded[jump.target].opname in ("LOAD_FAST", "NOP")


def test_the_columns_of_an_expression_over_several_lines_are_those_on_its_first_line():
    def f(x):
        return x + max(
            x,
            1,
        )

    (call,) = [place for place in decode(f.__code__) if place.opname == "CALL"]
    found = location(f.__code__, call.index)
    assert found.expression() == "max("
