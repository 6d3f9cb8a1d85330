"""Tests of minidynamo/compat/symbols.py."""

from __future__ import annotations

import torch

from minidynamo import compat


def symbolic_size(name):
    symbols = compat.symbolic()
    env = symbols.ShapeEnv()
    source = symbols.NamedSource(name)
    return env, env.create_unspecified_symint_and_symbol(7, source, symbols.DimDynamic.DYNAMIC)


def test_a_symbolic_number_is_constant_when_it_was_decided():
    _, size = symbolic_size("n")
    assert isinstance(size, compat.SYMBOLIC_NUMBERS) and compat.constant_of(size) is None
    assert size == 7
    assert compat.constant_of(size) == 7


def test_what_is_sure_of_sizes():
    env, size = symbolic_size("n")
    assert compat.is_sure(3 < 4) and not compat.is_sure(4 < 3)
    assert compat.is_sure(size > 5) and not compat.is_sure(size > 7)
    data = env.create_unbacked_symint()
    assert not compat.is_sure(data > 5) and not compat.is_sure(data <= 5)


def test_expressions_are_templates_of_python():
    env, size = symbolic_size("n")
    symbols = compat.symbolic()
    text, found = symbols.text((size * 2 + 1).node.expr)
    assert eval(text.format("5")) == 11 and len(found) == 1
    assert not symbols.follows(env, symbols.Eq(found[0], 3))


def test_the_rules_of_operators_are_put_back():
    op = torch.ops.aten.lstm.input
    before = dict(op.py_kernels)
    with compat.python_dispatcher():
        assert op.py_kernels != before
    assert op.py_kernels == before


def test_an_operation_runs_in_parts():
    x, w = torch.ones(2, 3), torch.ones(4, 3)
    assert torch.equal(compat.composite_function(torch.ops.aten.matmul.default)(x, w.t()), x @ w.t())


def test_a_size_has_the_name_of_an_equal_shorter_one():
    symbols = compat.symbolic()
    env = symbols.ShapeEnv()

    def size(name, value):
        symbol = env.create_unspecified_symbol(value, symbols.NamedSource(name), symbols.DimDynamic.DYNAMIC)
        return env.create_symintnode(symbol, hint=value)

    height, width, count = size("height", 4), size("width", 3), size("count", 12)
    area = height * width
    assert not compat.are_same(area, count)
    assert area == count
    assert compat.are_same(area, count) and compat.are_same(height * width, count)
    assert not compat.are_same(area, 12) and compat.are_same(12, 12)
    assert [guard.expr.free_symbols for guard in env.guards] == [{n.node.expr for n in (height, width, count)}]
    compat.forget_short_forms(env)
    assert not compat.are_same(height * width, count)
