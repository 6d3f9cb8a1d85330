"""Expressions: substitution, rewriting, masks, cost."""

import torch

from minidynamo.codegen.ir.expr import (
    OPS,
    Cast,
    Const,
    IndexValue,
    Load,
    Op,
    Ref,
    children,
    mask,
    rename,
    rewrite,
)
from minidynamo.codegen.ir.index import Index, Lookup, Var, as_index

F = torch.float32
V0, V1 = Var("a", 3), Var("b", 5)
X = Load("x", (as_index(V0),), F)
INSIDE = Op("lt", (IndexValue(as_index(V0), torch.int64), Const(2, torch.int64)), torch.bool)


def looked_up(value):
    return Load("table", (Index(((Lookup(value, 7), 1),)),), F)


def test_every_operation_has_a_sound_row():
    for name, info in OPS.items():
        assert 1 <= info.arity <= 3, name
        assert set(info.kinds) <= set("fib") and info.result in ("same", "bool"), name


def test_substitute_reaches_indices_lookups_and_masks():
    index = Load("i", (as_index(V0),), torch.int64)
    expr = Op("add", (mask(looked_up(index), INSIDE), Cast(IndexValue(as_index(V0), torch.int64), F)), F)
    assert expr.variables() == {V0}
    assert expr.substitute({V0: as_index(V1)}).variables() == {V1}


def test_rewrite_is_innermost_first():
    index = Load("i", (as_index(V0),), torch.int64)
    expr = looked_up(index)
    changed = rewrite(expr, lambda e: Const(3, torch.int64) if e == index else None)
    assert changed == looked_up(Const(3, torch.int64))
    assert list(children(changed)) == [Const(3, torch.int64)]


def test_rename_and_loads():
    expr = Op("mul", (X, Op("neg", (X,), F)), F)
    assert [load.buffer for load in rename(expr, "x", "y").loads] == ["y", "y"]
    assert sum(1 for _ in expr.below) == 4


def test_masks_add_up():
    twice = mask(mask(X, INSIDE), INSIDE)
    assert isinstance(twice, Load)
    assert twice.valid == Op("and", (INSIDE, INSIDE), torch.bool)
    assert mask(Ref("r", F), INSIDE) == Ref("r", F)


def test_cost_counts_operations():
    assert X.cost == 0
    assert Op("exp", (X,), F).cost == OPS["exp"].cost
