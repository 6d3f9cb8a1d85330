"""Owns the readable text of FX graphs: Python with dtypes and sizes, below the user's lines.

Runs nothing; `boxed.py` prints graphs that run.
"""

from __future__ import annotations

import re
from typing import Any

from torch import fx

_ASSIGNED = re.compile(r"(\s+)(\w+)(?::| =)")
_SUBGRAPH = re.compile(r"\s*class (\w+)\(torch\.nn\.Module\):")

# torch's comment about nodes without stack traces; ours have the user's lines in another form.
_NO_STACK_TRACE = "# No stacktrace found for following nodes"


def graph_text(gm: fx.GraphModule) -> str:
    """Prints the graph as the method of a module; a comment marks each change of the user's line. Subgraphs follow."""
    graphs = {name.rpartition(".")[2]: part for name, part in gm.named_modules() if isinstance(part, fx.GraphModule)}
    user_lines = _user_lines(gm)
    lines: list[str] = []
    shown_line = ""
    for line in gm.print_readable(print_output=False).splitlines():
        begins = _SUBGRAPH.match(line)
        if begins and begins[1] in graphs:
            user_lines, shown_line = _user_lines(graphs[begins[1]]), ""
        assigned = _ASSIGNED.match(line)
        where = user_lines.get(assigned[2]) if assigned else None
        if assigned and where is not None and where.comment() != shown_line:
            shown_line = where.comment()
            lines.append(f"{assigned[1]}# {shown_line}")
        if line.strip() != _NO_STACK_TRACE:
            lines.append(line)
    return "\n".join(lines) + "\n"


def _user_lines(gm: fx.GraphModule) -> dict[str, Any]:
    """Maps the name of each operation to the user's line."""
    return {node.name: node.meta.get("user_location") for node in gm.graph.nodes if node.op != "get_attr"}
