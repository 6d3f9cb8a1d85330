"""Deep copies of tensors: clones where no difference is visible, and a graph break elsewhere."""

import copy
import dataclasses

import pytest
import torch

import minidynamo
from minidynamo.testing import assert_same_as_eager
from minidynamo.tracer.handlers.tensors import is_copied_by_clone, share_memory


@dataclasses.dataclass
class Batch:
    x: torch.Tensor
    parts: list
    n: int = 3


def tagged(x):
    x.tag = [1]
    return x


PLAIN = {
    "vector": lambda: torch.randn(4),
    "number": lambda: torch.randn(()),
    "nothing": lambda: torch.randn(0, 3),
    "transposed": lambda: torch.randn(3, 4).t(),
    "channels last": lambda: torch.randn(2, 3, 4, 5).to(memory_format=torch.channels_last),
    "leaf": lambda: torch.randn(4, requires_grad=True),
}
SPECIAL = {
    "part": lambda: torch.randn(4)[1:],
    "first part": lambda: torch.randn(4)[:2],
    "expanded": lambda: torch.randn(1, 4).expand(3, 4),
    "conjugate": lambda: torch.randn(4, dtype=torch.complex64).conj(),
    "sparse": lambda: torch.eye(3).to_sparse(),
    "parameter": lambda: torch.nn.Parameter(torch.randn(4)),
    "with an attribute": lambda: tagged(torch.randn(4)),
}


def facts(x):
    memory = None if x.is_sparse else (x.stride(), x.storage_offset(), x.untyped_storage().nbytes())
    return type(x), x.requires_grad, x.is_leaf, vars(x), memory


@pytest.mark.parametrize("name", [*PLAIN, *SPECIAL])
def test_a_copy_is_captured_where_it_is_a_clone(name):
    make = {**PLAIN, **SPECIAL}[name]
    assert is_copied_by_clone(make()) is (name in PLAIN)
    compiled = minidynamo.compile(lambda x: (copy.deepcopy(x), x * 2), backend="eager")
    x = make()
    for _ in range(2):
        copied, _ = compiled(x)
        assert facts(copied) == facts(copy.deepcopy(x))
        assert name == "sparse" or not share_memory(copied, x)
        assert torch.equal(copied.to_dense(), x.to_dense())
    assert ("deepcopy" in compiled.breaks()) is (name in SPECIAL)


def test_records_with_tensors():
    def f(batch):
        record, row = dataclasses.asdict(batch), dataclasses.astuple(batch)
        record["x"].add_(1)
        row[1][0].mul_(2)
        again = dataclasses.replace(batch, x=batch.x + record["x"])
        made = dataclasses.asdict(Batch(batch.x * 2, []))
        return record, row, again, made, again.parts is batch.parts, copy.deepcopy([batch.x, batch.x, batch.parts])

    assert_same_as_eager(f, *[lambda: (Batch(torch.randn(3), [torch.randn(2), 1]),)] * 2, breaks=0)


def copies(*values):
    first, *_, last = copied = copy.deepcopy(list(values))
    first.add_(1)
    return copied, last * 2


def test_whether_tensors_share_memory_is_guarded():
    def shared():
        x = torch.ones(4)
        return x, x.view(2, 2)

    inputs = [lambda: (torch.ones(4), torch.ones(2, 2)), shared, lambda: (torch.ones(4), torch.ones(4)[:2])]
    assert_same_as_eager(copies, *inputs, *inputs)


@pytest.mark.parametrize(
    "program",
    [
        lambda x: copies(x, x.view(2, 2)),
        lambda x: copies(x * 2, (x * 2)[:3]),
        lambda x: copies(*[x + n for n in range(18)]),
        lambda x: copies(x, torch.stack([x, x]).unbind()[0]),
    ],
)
def test_what_only_memory_tells_breaks_the_graph(program):
    compiled = minidynamo.compile(program, backend="eager")
    x = torch.ones(4)
    for actual, expected in zip(compiled(x)[0], program(x)[0]):
        assert torch.equal(actual, expected) and facts(actual) == facts(expected)
    assert torch.equal(compiled(x)[1], program(x)[1]) and "deepcopy" in compiled.breaks()


def test_what_a_tensor_fills_and_holds_is_guarded():
    compiled = minidynamo.compile(lambda x: copy.deepcopy(x), backend="eager")
    base = torch.randn(8)
    for x in (base[:4].clone(), base[:4], base[4:], tagged(torch.randn(4)), torch.randn(4)):
        copied = compiled(x)
        assert facts(copied) == facts(copy.deepcopy(x)) and torch.equal(copied, x)
        assert not share_memory(copied, x) and getattr(copied, "tag", None) is not getattr(x, "tag", 1)


@pytest.mark.parametrize("transform", [torch.vmap, torch.func.grad])
def test_under_a_transform_torch_refuses_to_copy(transform):
    compiled = minidynamo.compile(lambda x: transform(lambda t: (copy.deepcopy(t.detach()) * t).sum())(x))
    for function in (compiled, compiled.__wrapped__):
        with pytest.raises(NotImplementedError, match="storage"):
            function(torch.ones(3))


def test_a_gradient_and_a_history_are_noticed():
    def f(x):
        return copy.deepcopy(x)

    compiled = minidynamo.compile(f, backend="eager")
    x = torch.ones(3, requires_grad=True)
    assert compiled(x).grad is None and compiled(x).is_leaf and "deepcopy" not in compiled.breaks()
    x.sum().backward()
    assert compiled(x).grad is not x.grad and torch.equal(compiled(x).grad, x.grad)
    with pytest.raises(RuntimeError, match="graph leaves"):
        compiled(x * 2)


def test_leaves_are_told_from_other_tensors():
    def f(x):
        return x * 2 if x.is_leaf else x * 3

    compiled = minidynamo.compile(f, backend="eager", fullgraph=True)
    leaf = torch.ones(3, requires_grad=True)
    for x in (leaf, leaf * 2, torch.ones(3), leaf):
        assert torch.equal(compiled(x), f(x))
    assert compiled.stats.graphs == 3
