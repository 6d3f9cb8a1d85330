"""Tests of minidynamo/graph/marks.py: the tables list the keys that the code writes and reads, and no others."""

from __future__ import annotations

import ast
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path

import minidynamo
from minidynamo.graph import marks

PACKAGE = Path(minidynamo.__file__).parent
CONSTANTS = {name: value for name, value in vars(marks).items() if name.isupper() and isinstance(value, str)}
# Written through a dict of marks that `autograd/graph/provenance.py` builds, or read as a part of a collection.
INDIRECT = {"checkpoint", "users_backward", "user_location", marks.MAY_DIE, marks.COMPUTES_FIRST, marks.RECORDS_WRITES}


def key(node: ast.expr) -> str | None:
    if isinstance(node, ast.Constant):
        return node.value if isinstance(node.value, str) else None
    return CONSTANTS.get(node.id) if isinstance(node, ast.Name) else None


def is_meta(node: ast.expr) -> bool:
    return isinstance(node, ast.Attribute) and node.attr == "meta"


def uses(node: ast.AST) -> Iterator[tuple[bool, str | None]]:
    """Whether a key is written, and the key, for each use of `meta` in a node."""
    if isinstance(node, ast.Subscript) and is_meta(node.value):
        yield isinstance(node.ctx, ast.Store), key(node.slice)
    elif isinstance(node, ast.Compare) and any(map(is_meta, node.comparators)):
        yield False, key(node.left)
    elif isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and is_meta(node.func.value):
        if node.func.attr in ("get", "pop", "setdefault"):
            yield node.func.attr == "setdefault", key(node.args[0])
        elif node.func.attr == "update":
            yield from ((True, keyword.arg) for keyword in node.keywords)
            dicts = (inner for inner in ast.walk(node) if isinstance(inner, ast.Dict))
            yield from ((True, key(name)) for found in dicts for name in found.keys if name is not None)


def test_the_tables_are_those_of_the_code():
    written, read = defaultdict(set), defaultdict(set)
    for path in PACKAGE.rglob("*.py"):
        file = path.relative_to(PACKAGE).with_suffix("").as_posix()
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            for is_write, name in uses(node):
                if name is not None:
                    (written if is_write else read)[name].add(file if is_write else file.split("/")[0])
    tables = {**marks.GRAPH_KEYS, **marks.NODE_KEYS}
    assert {*written, *read} | INDIRECT == {*tables}
    for name in {*tables} - INDIRECT:
        assert written[name] == {*tables[name].written_by.split()}, name
        assert read[name] == {*tables[name].read_by.split()}, name
    for name in INDIRECT:
        assert written[name] <= {*tables[name].written_by.split()}, name
        assert read[name] <= {*tables[name].read_by.split()}, name
