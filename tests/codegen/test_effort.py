"""The cost of compiling grows linearly with the graph. The measure is the number of function calls, which is equal in
each run; work inside the interpreter's own functions shows where these call ours, as comparisons do."""

import sys

import torch

from minidynamo.codegen.ir import expr
from minidynamo.codegen.lowering import graph
from minidynamo.codegen.memory.planner import plan_memory
from minidynamo.codegen.scheduling import fuse
from minidynamo.codegen.scheduling.schedule import schedule
from tests.codegen.graphs import lower

X = torch.rand(8, 8)


def calls_of(work):
    """Counts the Python functions that `work` calls."""
    count = 0

    def note(frame, event, argument):
        nonlocal count
        count += event == "call"

    before = sys.getprofile()
    sys.setprofile(note)
    try:
        work()
    finally:
        sys.setprofile(before)
    return count


def growth(make, size):
    """Returns the ratio of work for a program of twice the size."""
    once, twice = make(size), make(2 * size)
    return calls_of(twice) / calls_of(once)


def test_results_are_handed_over_in_linear_time():
    def make(size):
        program, steps = schedule(lower(lambda *xs: tuple(x @ x for x in xs), *[X] * size), join=True, verify=False)
        return lambda: plan_memory(steps, program, "graph", handing_over=True)

    assert growth(make, 60) < 2.3


def test_a_loop_nest_is_laid_onto_a_domain_once(monkeypatch):
    """Places each loop nest once, for any number of attempts to merge groups."""
    asked = []
    place = fuse.place
    monkeypatch.setattr(
        fuse, "place", lambda node, domain: asked.append((node.out.name, domain)) or place(node, domain)
    )

    def chain(x):
        for _ in range(6):
            x = x.sin() * x
        return x

    schedule(lower(chain, X), join=True, verify=False)
    assert asked and len(asked) == len({*asked})


def test_a_large_expression_is_walked_once(monkeypatch):
    expression = lower(lambda x: x.sin() * 2 + x.cos(), X).nodes[-1].body
    found = expression.loads
    monkeypatch.setattr(expr, "children", None)
    assert expression.loads is found and expression.below[0] is expression and expression.cost > 0


def test_the_layout_of_a_value_is_found_once(monkeypatch):
    """Finds the layout of each tensor once, for any number of readers."""
    asked = []
    layout_of = graph.layout_of
    monkeypatch.setattr(graph, "layout_of", lambda name, fake, of: asked.append(fake) or layout_of(name, fake, of))
    lower(lambda x: [x.sin() * k for k in range(9)], X)
    assert asked and len(asked) == len({*map(id, asked)})
