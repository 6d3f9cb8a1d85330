"""Decorators around compiled, disabled and allowed functions: functools.wraps copies their marks."""

from __future__ import annotations

import functools

import torch

import minidynamo
from tests.end_to_end.histories import Histories, vector

histories = Histories()
test_same_as_eager = histories.test()


def doubling(log):
    """Returns a decorator whose functions do more than the wrapped function."""

    def decorate(fn):
        @functools.wraps(fn)
        def call(*args, **kwargs):
            log.append("call")
            return fn(*args, **kwargs) * 2

        return call

    return decorate


@histories
class Cases:
    def around_a_compiled_function(compiled):
        log = []
        double = doubling(log)

        @double
        @compiled
        @double
        def f(x, k=2):
            return x + k

        again = compiled(f)
        both = compiled(lambda x: f(x) + again(x, k=1))
        for _ in range(2):
            yield f(vector()), f(vector(), k=3), again(vector()), both(vector()), list(log)

    def around_compiled_methods(compiled):
        log = []
        double = doubling(log)

        class Net(torch.nn.Module):
            @double
            @compiled
            def forward(self, x):
                return x + 1

            @property
            @double
            @compiled
            def weight(self):
                return torch.ones(3)

        plain, inside = Net(), compiled(Net())
        f = compiled(lambda x: plain(x) + inside.forward(x) * plain.weight)
        for _ in range(2):
            yield plain(vector()), inside(vector()), f(vector()), list(log)

    def around_a_compiled_function_behind_breaks(compiled):
        log = []

        @doubling(log)
        @compiled
        def inner(x):
            log.append(float(x.sum()))
            return x + 1

        @compiled
        def f(x):
            y = inner(x)
            minidynamo.graph_break()
            return y * inner(y)

        for _ in range(2):
            yield f(vector()), list(log)

    def around_a_function_that_is_allowed_in_graphs(compiled):
        log = []

        @minidynamo.allow_in_graph
        def triple(x):
            return x * 3

        more = doubling(log)(triple)
        f = compiled(lambda x: more(x) + triple(x))
        for number in (1, 1, 2):
            yield f(vector() + number), list(log)

    def around_a_disabled_function(compiled):
        log = []

        @doubling(log)
        @minidynamo.disable
        def d(x):
            return x * 3

        f = compiled(lambda x: d(x) + 1)
        for _ in range(2):
            yield f(vector()), compiled(d)(vector()), list(log)
