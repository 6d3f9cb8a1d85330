"""The readable text of graphs: lines of the user once where they begin, no folders."""

import linecache

import torch
from torch import fx

from minidynamo.errors import UserLocation
from minidynamo.graph.text import graph_text

PROGRAM = "def f(x):\n    y = x.sin() + 1\n    return y * 2\n"


def test_lines_of_the_user_stand_above_what_they_became():
    linecache.cache["/home/somebody/f.py"] = (len(PROGRAM), None, PROGRAM.splitlines(keepends=True), "f.py")
    gm = fx.symbolic_trace(lambda x: (x.sin() + 1) * 2)
    for node, line, col in zip([n for n in gm.graph.nodes if n.op.startswith("call")], (2, 2, 3), (8, 4, 11)):
        node.meta["user_location"] = UserLocation("/home/somebody/f.py", line, "f", col, col + 1)
        node.meta["val"] = torch.empty(4, 2, device="meta")
    lines = [line.partition(";")[0].strip() for line in graph_text(gm).splitlines()]
    start = lines.index("# f.py:2 in f: y = x.sin() + 1")
    assert lines[start:] == [
        "# f.py:2 in f: y = x.sin() + 1",
        'sin: "f32[4, 2]" = x.sin()',
        'add: "f32[4, 2]" = sin + 1',
        "# f.py:3 in f: return y * 2",
        'mul: "f32[4, 2]" = add * 2',
        "return mul",
    ]


def test_a_graph_without_lines():
    text = graph_text(fx.symbolic_trace(lambda x: x + 1))
    assert "x + 1" in text and "#" not in text


def test_subgraphs_have_lines_of_their_own():
    inner, graph = fx.symbolic_trace(lambda x: x.sin()), fx.Graph()
    x = graph.placeholder("x")
    graph.output((graph.create_node("get_attr", "part"), graph.call_method("sin", (x,))))
    gm = fx.GraphModule({"part": inner}, graph)
    for part, line in ((gm, 2), (gm.part, 3)):
        node = next(node for node in part.graph.nodes if node.name == "sin")
        node.meta["user_location"] = UserLocation("/home/somebody/f.py", line, "f")
    text = graph_text(gm)
    assert text.index("# f.py:2 in f") < text.index("class part") < text.index("# f.py:3 in f")
