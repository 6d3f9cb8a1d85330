"""Tests of minidynamo/graph/marks.py: the tables list the keys that the code writes and reads, and nodes of decomposed
operations are marked."""

from __future__ import annotations

import ast
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.fx.experimental.proxy_tensor import make_fx
from torch.nn import functional as F

import minidynamo
from minidynamo.graph import marks
from minidynamo.graph.marks import PART_OF, is_inside, marking

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


LOGITS = torch.randn(3, 5)
GIVEN = torch.tensor([1, -100, 9])


def test_only_the_parts_note_their_call() -> None:
    (square,) = marking({torch.ops.aten.square.default: lambda x: x * x * 1}).values()
    gm = make_fx(lambda x: square(x + 1) + square(x) * x)(torch.ones(2))
    noted = [node.meta.get(PART_OF) for node in gm.graph.nodes if node.op == "call_function"]
    assert [call and call.operation for call in noted] == [None, *["square"] * 4, None, None]
    assert noted[1] == noted[2] != noted[3] == noted[4]
    assert torch.equal(square(torch.full((2,), 3.0)), torch.full((2,), 9.0))


def test_a_part_that_comes_apart_belongs_to_the_outer_call() -> None:
    (square,) = marking({torch.ops.aten.square.default: lambda x: x * x}).values()
    (cube,) = marking({torch.ops.aten.pow.Tensor_Scalar: lambda x: square(x) * x}).values()
    gm = make_fx(lambda x: cube(x).sin())(torch.ones(2))
    product, cubed, sine = (node for node in gm.graph.nodes if node.op == "call_function")
    assert product.meta[PART_OF].operation == "pow" and is_inside(product)
    assert not is_inside(cubed) and not is_inside(sine)


def own(x: Any, i: Any) -> Any:
    return x.gather(1, torch.where(i != -100, i, 0)[:, None])


def loss(x: Any, i: Any) -> Any:
    return F.nll_loss(x, i)


def loss_of_own(x: Any, i: Any) -> Any:
    return own(x, i.clamp(max=4)).sum() + loss(x, i)


@pytest.mark.cpp
@pytest.mark.parametrize("grad", [False, True])
@pytest.mark.parametrize("program", [own, loss, loss_of_own])
def test_an_error_has_the_words_of_what_the_program_called(program: Any, grad: bool) -> None:
    logits = LOGITS.clone().requires_grad_(grad)
    with pytest.raises((IndexError, RuntimeError)) as expected:
        program(logits, GIVEN)
    with pytest.raises(expected.type) as raised:
        minidynamo.compile(program, backend="native")(logits, GIVEN)
    assert str(raised.value).splitlines()[0] == str(expected.value).splitlines()[0]
