from __future__ import annotations

import torch
import torch.utils.checkpoint

from minidynamo.bytecode.instructions import decode
from minidynamo.tracer.frames.runtime_asserts import only_raises
from minidynamo.tracer.graph.dead_code import assert_async
from tests.tracer.capturing import capture


def jumps(fn):
    """Returns both branches of the first jump of a function."""
    jump = next(i for i in decode(fn.__code__) if "POP_JUMP" in i.opname)
    return only_raises(fn.__code__, jump.index + 1), only_raises(fn.__code__, jump.target)


def raises_with_text(x):
    if not x.all():
        raise ValueError(f"{x.shape} of {type(x).__name__}: {x if x.dim() else None}")
    return x


def asserts(x):
    assert x.all(), "message"
    return x


def raises_or_returns(x):
    if x.all():
        if x.dim():
            return x
        raise ValueError
    return x + 1


def loops(x):
    if x.all():
        for _ in x:
            pass
        raise ValueError
    return x


def test_a_way_only_raises_when_all_its_branches_do():
    assert jumps(raises_with_text) == (True, False)
    assert sorted(jumps(asserts)) == [False, True]
    assert jumps(raises_or_returns) == jumps(loops) == (False, False)


def checks_of(fn, *args, **options):
    graph = capture(fn, *args, **options).graph
    return [node for node in graph.graph.nodes if node.target is assert_async]


def test_a_graph_checks_only_what_can_run_twice():
    buffer = torch.ones(3)

    def writes_to_its_own(x):
        y = torch.zeros(3)
        y[0] = 1
        assert (x > 0).all()
        return x + y

    def writes_outside(x):
        assert (x > 0).all()
        buffer.add_(1)
        return x * buffer

    def writes_with_a_gradient(x, y):
        assert (x > 0).all()
        y.mul_(x)
        return y

    def puts_other_memory_there(x):
        assert (x > 0).all()
        buffer.data = x * 2
        return x

    assert len(checks_of(writes_to_its_own, torch.ones(3))) == 1
    assert len(checks_of(writes_outside, torch.ones(3))) == 1
    assert len(checks_of(writes_with_a_gradient, torch.ones(3), torch.ones(3))) == 1
    assert not checks_of(writes_with_a_gradient, torch.ones(3, requires_grad=True), torch.ones(3))
    assert not checks_of(puts_other_memory_there, torch.ones(3))


@torch.library.custom_op("test_runtime_asserts::twice", mutates_args=())
def twice(x: torch.Tensor) -> torch.Tensor:
    return x * 2


@twice.register_fake
def _(x):
    return torch.empty_like(x)


def test_a_graph_with_transforms_checks_unless_they_run_code_of_the_user():
    def maps(x):
        assert (x > 0).all()
        return torch.vmap(lambda row: torch.ops.aten.mul.Tensor(row, 2))(x)

    def checkpoints(x):
        assert (x > 0).all()
        return torch.utils.checkpoint.checkpoint(torch.sin, x, use_reentrant=False)

    def checkpoints_own(x):
        assert (x > 0).all()
        return torch.utils.checkpoint.checkpoint(twice, x, use_reentrant=False)

    assert len(checks_of(maps, torch.ones(3))) == 1
    assert len(checks_of(checkpoints, torch.ones(3, requires_grad=True))) == 1
    assert not checks_of(checkpoints_own, torch.ones(3, requires_grad=True))


def test_what_may_be_true_of_several_numbers_is_left_to_python():
    def several(x):
        assert x > 0
        return x + 1

    traced = capture(several, torch.ones(1))
    assert traced.exit.diagnostic.code == "MD201"
