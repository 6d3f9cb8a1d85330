import torch
from torch.fx._symbolic_trace import is_fx_tracing

import minidynamo
from minidynamo.core.events import on_event
from tests.end_to_end.programs import Programs


@torch.jit.script_if_tracing
def longer_than(x, size: int):
    return x + 3 if x.shape[0] > size else x


programs = Programs()
test_same_as_eager = programs.test()


def test_the_message_is_reported():
    def f(x):
        y = x + 1
        minidynamo.graph_break("before the head")
        return y * 2

    seen = []
    unsubscribe = on_event(lambda event: seen.append(event))
    try:
        minidynamo.compile(f, backend="eager")(torch.ones(2))
    finally:
        unsubscribe()
    (diagnostic,) = [event.data["diagnostic"] for event in seen if event.kind == "graph_break"]
    assert diagnostic.code == "MD223" and "before the head" in diagnostic.what


@programs()
class Cases:
    @programs(breaks=1, graphs=2)
    def graph_break_cuts(x):
        y = x + 1
        minidynamo.graph_break()
        return y * 2

    @programs(breaks=None, graphs=2)  # then the loop's iterator comes from outside, and each of its steps is a break
    def graph_break_in_a_loop_of_one(x):
        for _ in range(1):
            x = x + 1
            minidynamo.graph_break("here")
        return x * 2

    def torch_is_not_tracing(x):
        return x + (0 if torch.jit.is_tracing() else 1)

    def fx_is_not_tracing(x):
        return x + (0 if is_fx_tracing() else 1)

    def scripted_if_tracing(x):
        return longer_than(x, 2) * 2
