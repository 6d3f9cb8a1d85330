"""Owns the readable text of FX graphs: Python with dtypes and sizes, below the user's lines.

It runs nothing; `boxed.py` prints graphs that run.
"""

from __future__ import annotations

import re
from typing import Any

from torch import fx

_ASSIGNED = re.compile(r"(\s+)(\w+)(?::| =)")
_SUBGRAPH = re.compile(r"\s*class (\w+)\(torch\.nn\.Module\):")

# What torch says of nodes without stack traces; they have the user's lines in a form of their own.
_NO_PLACES = "# No stacktrace found for following nodes"


def graph_text(gm: fx.GraphModule) -> str:
    """The graph as the method of a module; a comment names the user's line where it changes. Subgraphs come behind."""
    graphs = {name.rpartition(".")[2]: part for name, part in gm.named_modules() if isinstance(part, fx.GraphModule)}
    places = _places(gm)
    lines: list[str] = []
    said = ""
    for line in gm.print_readable(print_output=False).splitlines():
        begins = _SUBGRAPH.match(line)
        if begins and begins[1] in graphs:
            places, said = _places(graphs[begins[1]]), ""
        assigned = _ASSIGNED.match(line)
        where = places.get(assigned[2]) if assigned else None
        if assigned and where is not None and where.comment() != said:
            said = where.comment()
            lines.append(f"{assigned[1]}# {said}")
        if line.strip() != _NO_PLACES:
            lines.append(line)
    return "\n".join(lines) + "\n"


def _places(gm: fx.GraphModule) -> dict[str, Any]:
    """The user's line of each operation."""
    return {node.name: node.meta.get("user_location") for node in gm.graph.nodes if node.op != "get_attr"}
