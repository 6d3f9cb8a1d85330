"""The verifier accepts results of the stages and rejects every kind of damage."""

import dataclasses

import pytest
import torch

from minidynamo.codegen.ir.expr import Cast, Const, Expr, Load, Op, Ref
from minidynamo.codegen.ir.index import Var, as_index
from minidynamo.codegen.ir.loops import Kernel, Let, Loop, LoopProgram, Loops, Name, Store
from minidynamo.codegen.ir.verify import verify_expr, verify_kernel, verify_program
from minidynamo.errors import InternalError
from tests.codegen.graphs import kernels, lower

F, B = torch.float32, torch.bool
ONE = Const(1.0, F)


@pytest.mark.parametrize(
    "expr",
    [
        Op("nonsense", (ONE,), F),
        Op("add", (ONE,), F),
        Op("add", (ONE, Const(1, torch.int64)), F),
        Op("lt", (ONE, ONE), F),
        Op("where", (ONE, ONE, ONE), F),
        Op("add", (Cast(ONE, torch.float16), Cast(ONE, torch.float16)), torch.float16),
        Op("and", (ONE, ONE), F),
        Const(1, F),
        Load("x", (as_index(0),), F, valid=ONE),
        Cast(ONE, torch.complex64),
    ],
)
def test_bad_expressions(expr: Expr):
    with pytest.raises(InternalError, match="MD510"):
        verify_expr(expr)


def program() -> LoopProgram:
    return lower(lambda x: (x * 2).sum(1), torch.ones(3, 4))


def damaged(program: LoopProgram, k: int, **changes) -> LoopProgram:
    nodes = list(program.nodes)
    nodes[k] = dataclasses.replace(nodes[k], **changes)
    return dataclasses.replace(program, nodes=tuple(nodes))


def test_bad_programs():
    good = program()
    verify_program(good)
    first = good.nodes[0]
    assert isinstance(first, Loops)
    bad = [
        dataclasses.replace(good, outputs=(Name("nothing"),)),
        dataclasses.replace(good, nodes=tuple(reversed(good.nodes))),
        damaged(good, 0, body=Load("x_1", (as_index(0), as_index(4)), F)),
        damaged(good, 0, body=Load("x_1", (as_index(0),), F)),
        damaged(good, 0, body=Const(True, B)),
        damaged(good, 0, index=(as_index(first.axes[0]),)),
        damaged(good, 0, axes=first.axes[:1]),
        damaged(good, 1, combine="median"),
        damaged(good, 1, combine=None),
    ]
    for changed in bad:
        with pytest.raises(InternalError, match="MD510"):
            verify_program(changed)


def kernel() -> Kernel:
    return kernels(lambda x: x.softmax(1), torch.ones(3, 4))[0]


def with_loops(kernel: Kernel, *loops: Loop) -> Kernel:
    return dataclasses.replace(kernel, loops=loops)


def test_bad_kernels():
    good = kernel()
    verify_kernel(good)
    loops = good.loops
    outside = Store("_softmax", as_index(12), ONE)
    bad = [
        with_loops(good, *loops[:-1]),
        with_loops(good, *loops[1:]),
        with_loops(good, *reversed(loops)),
        with_loops(good, *loops, Loop((Var("z", 2),), ())),
        with_loops(good, *loops, Loop((), (outside,))),
        with_loops(good, *loops, Loop((), (Store("x_1", as_index(0), ONE),))),
        with_loops(good, *loops, Loop((), (Let("twice", ONE), Let("twice", ONE)))),
        with_loops(good, *loops, Loop((), (Let("late", Load("_softmax", (as_index(0),), F)),))),
        with_loops(good, *loops, Loop((), (Let("unknown", Ref("nobody", F)),))),
        dataclasses.replace(good, vector=Var("w", 3)),
        dataclasses.replace(good, reads=good.reads * 2),
        dataclasses.replace(good, reads=()),
    ]
    for changed in bad:
        with pytest.raises(InternalError, match="MD510"):
            verify_kernel(changed)
