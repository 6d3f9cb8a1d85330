"""Tests of minidynamo/frontend/comptime_context.py: the arguments of callbacks. Their times are tested in
test_comptime.py."""

from __future__ import annotations

import io

import pytest
import torch

import minidynamo
from minidynamo import comptime
from minidynamo.frontend.comptime_context import ComptimeVar
from minidynamo.variables.tensors import TensorVariable


def look(act, x=None):
    """Returns the result of `act(ctx)` in a frame with a tensor, a number and containers."""
    seen = []

    def f(x):
        n, pair, nested = 3, (x, x * 2), [[x], {"a": x}]

        def callback(ctx):
            seen.append(act(ctx))

        comptime(callback)
        return pair[1] + n + len(nested)

    minidynamo.compile(f, backend="eager", fullgraph=True)(torch.ones(2) if x is None else x)
    return seen[0]


def test_questions_to_a_value():
    assert look(lambda ctx: ctx.get_local("n").is_python_constant())
    assert not look(lambda ctx: ctx.get_local("x").is_python_constant())
    assert not look(lambda ctx: ctx.get_local("n").is_dynamic())
    assert look(lambda ctx: ctx.get_local("n").force_static()) is None
    assert look(lambda ctx: ctx.get_local("x").size()) == (2,)
    assert look(lambda ctx: type(ctx.get_local("x").unstable_variable())) is TensorVariable
    assert look(lambda ctx: ctx.get_local("n").unstable_variable().value) == 3
    assert look(lambda ctx: ctx.unstable_tracer().attempt) == 0


def test_proxies_of_sequences():
    def act(ctx):
        proxies = ctx.get_local("pair").as_proxy()
        return type(proxies), len(proxies), str((proxies[0] + proxies[1]).node.target)

    assert look(act) == (tuple, 2, "<built-in function add>")


@pytest.mark.parametrize("ask", [ComptimeVar.as_proxy, ComptimeVar.as_fake, ComptimeVar.size])
def test_numbers_are_not_in_the_graph(ask):
    with pytest.raises(minidynamo.errors.ComptimeError, match=r"TypeError: .* needs a tensor, and this is 3"):
        look(lambda ctx: ask(ctx.get_local("n")))


def printed(method, *args, **keywords):
    out = io.StringIO()
    look(lambda ctx: getattr(ctx, method)(*args, file=out, **keywords))
    return out.getvalue()


def test_everything_prints_to_a_file():
    assert printed("print", 5) == "5\n"
    assert "nested = [[Tensor(shape=(2,), dtype=torch.float32)]" in printed("print_locals")
    assert "x * 2" in printed("print_graph")
    assert printed("print_disas").count("-->") == 1
    assert printed("print_value_stack") == ""
    assert "in f" in printed("print_bt")
    assert "tensor `x`" in printed("print_guards")


def test_levels_beyond_the_root():
    for method in ("print_disas", "print_bt", "print_value_stack"):
        with pytest.raises(minidynamo.errors.ComptimeError, match="IndexError: stacklevel=5"):
            printed(method, stacklevel=5)
