"""Equal callables share entries: the blocks of a model, bound methods, closures over one code object."""

from __future__ import annotations

import copy
import functools
import gc
import types
import weakref

import pytest
import torch
from torch import nn

import minidynamo
from minidynamo.core.events import MinidynamoNotice
from minidynamo.testing import CompileCounter


class Scale:
    """A processor object per block, as attention processors are."""

    def __init__(self, factor):
        self.factor = factor

    def __call__(self, block, x):
        return torch.tanh(block.inner(x)) * self.factor


class Block(nn.Module):
    def __init__(self, index=0, kind="a", breaks=False):
        super().__init__()
        self.norm, self.inner, self.drop = nn.BatchNorm1d(4), nn.Linear(4, 4), nn.Dropout(0.0)
        self.processor = Scale(0.5)
        self.layer_idx, self.kind, self.breaks, self.offsets = index, kind, breaks, [torch.full((4,), float(index))]

    def forward(self, x):
        y = self.drop(self.processor(self, self.norm(x))) * (self.layer_idx + 1)
        if self.breaks:
            minidynamo.graph_break()
        y = y + self.offsets[0]
        return x + (y if self.kind == "a" else y.relu())


def closure_over(block):
    def run(x):
        return block(x) * 2

    return run


MAKERS = {
    "module": lambda block: block,
    "method": lambda block: block.forward,
    "closure": closure_over,
    "partial": lambda block: functools.partial(block),
    "partial of a method": lambda block: functools.partial(block.forward),
}


def blocks_of(count, **options):
    torch.manual_seed(0)
    return [Block(index, **options) for index in range(count)]


def compiles(functions):
    return [minidynamo.stats(function).compiles for function in functions]


def run_in_turn(functions, seed=0):
    """Runs the functions one after the other, and a backward."""
    torch.manual_seed(seed)
    x = given = torch.randn(3, 4, requires_grad=True)
    for function in functions:
        x = function(x)
    (x * torch.randn(3, 4)).sum().backward()
    return x.detach(), given.grad


def state_of(blocks):
    tensors = {f"{k}.{name}": value for k, block in enumerate(blocks) for name, value in block.state_dict().items()}
    gradients = {
        f"{k}.{name}.grad": value.grad for k, block in enumerate(blocks) for name, value in block.named_parameters()
    }
    return tensors | {name: value for name, value in gradients.items() if value is not None}


def compiled_blocks(blocks, make=MAKERS["module"], **options):
    return [minidynamo.compile(make(block), **{"backend": "eager"} | options) for block in blocks]


def check(functions, blocks, expected_functions, expected_blocks):
    """Compares a step of both: results, gradients, buffers."""
    for one, other in zip(run_in_turn(functions), run_in_turn(expected_functions)):
        torch.testing.assert_close(one, other)
    torch.testing.assert_close(state_of(blocks), state_of(expected_blocks))


@pytest.mark.parametrize("make", MAKERS.values(), ids=MAKERS)
@pytest.mark.parametrize("breaks", [False, True], ids=["whole", "breaks"])
@pytest.mark.parametrize("backend", ["eager", "aot_eager"])
def test_equal_callables_take_the_compiles_of_two(make, breaks, backend):
    counts = []
    for number in (2, 6):
        blocks, expected = blocks_of(number, breaks=breaks), blocks_of(number, breaks=breaks)
        functions = compiled_blocks(blocks, make, backend=backend)
        check(functions, blocks, [*map(make, expected)], expected)
        counts.append(sum(compiles(functions)))
        check(functions, blocks, [*map(make, expected)], expected)
        assert sum(compiles(functions)) == counts[-1]
    assert counts[0] == counts[1]
    shared = [minidynamo.stats(function).shared for function in functions]
    assert shared[2:] == [shared[2]] * 4 and shared[2] > 0 == shared[0]


def test_a_text_that_differs_makes_a_version_of_its_own():
    kinds = ["a", "a", "b", "b", "a", "b"]
    blocks, expected = ([Block(0, kind) for kind in kinds] for _ in range(2))
    for one, other in zip(blocks, expected):
        other.load_state_dict(one.state_dict())
    functions = compiled_blocks(blocks)
    check(functions, blocks, expected, expected)
    assert compiles(functions) == [1, 0, 1, 0, 0, 0]


def test_hooks_of_some_blocks_make_one_more_version():
    blocks, expected = ([Block() for _ in range(6)] for _ in range(2))
    for one, other in zip(blocks, expected):
        other.load_state_dict(one.state_dict())
    for block, other in zip(blocks[1::2], expected[1::2]):
        block.register_forward_hook(lambda module, args, result: result * 3)
        other.register_forward_hook(lambda module, args, result: result * 3)
    functions = compiled_blocks(blocks)
    check(functions, blocks, expected, expected)
    assert sum(compiles(functions)) == 2


def swap_weight(block):
    block.inner.weight = nn.Parameter(torch.full((4, 4), 0.25))


def freeze_it(block):
    block.inner.weight.requires_grad_(False)


def tie_inside(block):
    block.norm.weight = block.inner.bias


def add_hook(block):
    block.inner.register_forward_pre_hook(lambda module, args: (args[0] + 1,))


def widen(block):
    block.inner = nn.Sequential(nn.Linear(4, 6), nn.Linear(6, 4))
    for tensor in block.inner.parameters():
        nn.init.constant_(tensor, 0.1)


def set_forward(block):
    block.inner.forward = lambda x: x * 2


CHANGES = [
    swap_weight,
    freeze_it,
    tie_inside,
    add_hook,
    widen,
    set_forward,
    nn.Module.eval,
    lambda block: setattr(block, "layer_idx", 7),
    lambda block: setattr(block, "layer_idx", 2.5),
    lambda block: setattr(block, "processor", Scale(3.0)),
    lambda block: setattr(block, "processor", lambda block, x: x - 1),
    lambda block: block.offsets.__setitem__(0, torch.ones(4)),
    lambda block: block.offsets.insert(0, torch.ones(4)),
    lambda block: setattr(block.drop, "p", 1.0),
    lambda block: setattr(block.norm, "track_running_stats", False),
    lambda block: setattr(block.norm, "momentum", None),
    lambda block: block.norm.num_batches_tracked.add_(5),
    lambda block: block.double().float(),
    lambda block: block.inner.weight.data.mul_(2),
]


@pytest.mark.parametrize("backend", ["eager", "aot_eager"])
@pytest.mark.parametrize("change", CHANGES)
def test_a_change_of_one_block_changes_that_block_only(change, backend):
    blocks, expected = blocks_of(4), blocks_of(4)
    functions = compiled_blocks(blocks, backend=backend)
    check(functions, blocks, expected, expected)
    for block in (blocks[2], expected[2]):
        change(block)
    for _ in range(2):
        check(functions, blocks, expected, expected)


def test_parameters_of_two_blocks_may_be_tied():
    blocks, expected = blocks_of(4), blocks_of(4)
    for each in (blocks, expected):
        each[2].inner.weight = each[1].inner.weight
        each[3].norm = each[0].norm
    functions = compiled_blocks(blocks, backend="aot_eager")
    check(functions, blocks, expected, expected)
    check(functions, blocks, expected, expected)


def test_a_block_may_be_called_twice_in_a_step():
    blocks, expected = blocks_of(3), blocks_of(3)
    functions = compiled_blocks(blocks, backend="aot_eager")
    order = [0, 1, 2, 1, 0, 2]
    check([functions[k] for k in order], blocks, [expected[k] for k in order], expected)


def test_a_deep_copy_shares_when_it_is_compiled():
    copy.deepcopy(Block())  # the first copy of an object adds `__slotnames__` to its class
    blocks = compiled_blocks(blocks_of(2))
    run_in_turn(blocks)
    twin = minidynamo.compile(copy.deepcopy(blocks[1]), backend="eager")
    twin.inner.weight.data.fill_(1.0)
    expected = copy.deepcopy(twin)
    check([twin], [twin], [expected], [expected])
    assert compiles([twin]) == [0]


def test_blocks_of_other_sizes_and_dtypes():
    def net(size, dtype):
        torch.manual_seed(size)
        return nn.Sequential(nn.Linear(size, size, dtype=dtype), nn.Tanh())

    kinds = [(4, torch.float32), (8, torch.float32), (4, torch.float64), (8, torch.float32), (4, torch.float32)]
    blocks = [minidynamo.compile(net(*kind), backend="aot_eager") for kind in kinds]
    for block, kind in zip(blocks, kinds):
        x = torch.randn(2, kind[0], dtype=kind[1])
        torch.testing.assert_close(block(x), net(*kind)(x))
    assert sum(compiles(blocks)) == 3


def test_reset_and_uncompile_of_one_block_leave_the_others():
    blocks = compiled_blocks(blocks_of(3, breaks=True))
    run_in_turn(blocks)
    minidynamo.reset(blocks[0])
    minidynamo.uncompile(blocks[1])
    before = minidynamo.stats(blocks[2]).calls
    counter = sum(compiles([blocks[0], blocks[2]]))
    expected = blocks_of(3, breaks=True)
    for block, other in zip(blocks, expected):
        other.load_state_dict(block.state_dict())
    for block in blocks:
        block.zero_grad()
    check(blocks, blocks, expected, expected)
    assert minidynamo.stats(blocks[2]).calls == before + 1
    assert sum(compiles([blocks[0], blocks[2]])) <= counter + 2  # a first block of its own number


@pytest.mark.parametrize("make", [MAKERS["module"], MAKERS["method"], MAKERS["closure"]])
@pytest.mark.parametrize("backend", ["aot_eager", "native"])
def test_nothing_keeps_a_dead_block_alive(make, backend):
    copy.deepcopy(Block())
    blocks = blocks_of(4, breaks=True)
    functions = compiled_blocks(blocks, make, backend=backend)
    run_in_turn(functions)
    gc.collect()  # the compiles themselves leave cycles
    gc.disable()
    try:
        dead = [weakref.ref(part) for block in blocks[:2] for part in (block, *block.parameters(), block.processor)]
        del blocks[:2], functions[:2]
        assert [reference() for reference in dead if reference() is not None] == []
    finally:
        gc.enable()
    expected = copy.deepcopy(blocks)
    for block in expected:
        block.__dict__.pop("_compiled_call_impl", None)
    for block in blocks:
        block.zero_grad()
    before = compiles(functions)
    check(functions, blocks, [*map(make, expected)], expected)
    assert compiles(functions) == before


def test_each_closure_writes_its_own_variables():
    def counting():
        count, seen = 0, []

        def step(x):
            nonlocal count
            count += 1
            seen.append(count)
            return x + len(seen)

        return minidynamo.compile(step, backend="eager"), lambda: (count, seen)

    x = torch.zeros(1)
    (first, first_state), (second, second_state) = counting(), counting()
    for _ in range(3):
        first(x)
    assert second(x).item() == 1 and second_state() == (1, [1]) and first_state() == (3, [1, 2, 3])
    assert second.stats.shared > 0


def test_closures_with_one_cell_for_two_variables_share_nothing():
    def outer():
        a, b = 0, 0

        def step(x):
            nonlocal a
            a = a + 1
            return x + b

        return step

    apart, cell = outer(), types.CellType(0)
    same = types.FunctionType(apart.__code__, globals(), "step", None, (cell, cell))
    x = torch.zeros(1)
    one, other = (minidynamo.compile(step, backend="eager") for step in (apart, same))
    assert (one(x).item(), other(x).item(), cell.cell_contents) == (0, 1, 1)
    assert (one.stats.shared, other.stats.shared) == (0, 0)


def test_closures_whose_code_was_replaced_share_by_their_new_code():
    def made():
        factor = 2

        def one(x):
            return x * factor

        def other(x):
            return x - factor

        return one, other

    (first, replacement), (second, _) = made(), made()
    functions = [minidynamo.compile(first, backend="eager"), minidynamo.compile(second, backend="eager")]
    x = torch.ones(1)
    assert [f(x).item() for f in functions] == [2, 2] and functions[1].stats.shared == 1
    first.__code__ = second.__code__ = replacement.__code__
    assert functions[1](x).item() == -1 and functions[0](x).item() == -1


@pytest.mark.provokes_failures
def test_a_failing_graph_reruns_its_own_block():
    class Failing(CompileCounter):
        def compile(self, gm, example_inputs):
            def run(*args):
                raise ValueError("broken backend")

            return minidynamo.make_boxed_func(run)

    backend, expected = Failing(), blocks_of(3)
    blocks = compiled_blocks(blocks_of(3), backend=backend, on_error="eager")
    with pytest.warns(MinidynamoNotice, match="MD523"):
        check(blocks, blocks, expected, expected)
    assert [minidynamo.stats(block).graph_failures for block in blocks] == [1, 1, 1]
    assert backend.frame_count == 2


def test_other_options_and_explanations_share_nothing():
    blocks = blocks_of(3)
    counter = CompileCounter()
    minidynamo.compile(blocks[0], backend=counter)
    minidynamo.compile(blocks[1], backend=counter, dynamic=False)
    run_in_turn(blocks[:2])
    assert [minidynamo.stats(block).shared for block in blocks[:2]] == [0, 0]
    minidynamo.compile(blocks[2], backend=counter)
    minidynamo.explain(blocks[2])(torch.randn(3, 4))
    assert counter.frame_count == 3 and minidynamo.stats(blocks[2]).calls == 0
