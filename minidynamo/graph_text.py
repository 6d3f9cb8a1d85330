"""Owns the readable text of FX graphs: Python with dtypes and sizes, below the user's lines.

It runs nothing; `boxed.py` prints graphs that run.
"""

from __future__ import annotations

import re

from torch import fx

_ASSIGNED = re.compile(r"(\s+)(\w+)(?::| =)")

# What torch says of nodes without stack traces; they have the user's lines in a form of their own.
_NO_PLACES = "# No stacktrace found for following nodes"


def graph_text(gm: fx.GraphModule) -> str:
    """The graph as the method of a module; a comment names the user's line where it changes."""
    places = {node.name: node.meta.get("user_location") for node in gm.graph.nodes}
    lines: list[str] = []
    said = ""
    for line in gm.print_readable(print_output=False).splitlines():
        assigned = _ASSIGNED.match(line)
        where = places.get(assigned[2]) if assigned else None
        if assigned and where is not None and where.comment() != said:
            said = where.comment()
            lines.append(f"{assigned[1]}# {said}")
        if line.strip() != _NO_PLACES:
            lines.append(line)
    return "\n".join(lines) + "\n"
