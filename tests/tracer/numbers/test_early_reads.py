"""Tests of minidynamo/tracer/numbers/early_reads.py: integers that are sizes, and are read before the graph."""

from __future__ import annotations

import pytest
import torch

import minidynamo

BACKENDS = ["eager", "aot_eager", "native"]
LENGTHS = [[2, 3, 4], [3, 3, 2], [2, 5, 2], [4, 4, 3], [6, 2, 3], [5, 4, 6]]


def trimmed(x, lengths):
    return x[:, : lengths.max()] * 2


def masked(x, lengths):
    mask = torch.arange(lengths.max(), device=x.device) < lengths[:, None]
    return x[:, : mask.shape[1]] * mask


def unpadded(x, lengths):
    return torch.cat([row[:count] for row, count in zip(x, lengths.tolist())])


def split(x, lengths):
    ends = torch.nn.functional.pad(lengths.cumsum(0, dtype=torch.int32), (1, 0))
    pieces = torch.split(x.expand(6, 3, 6).flatten()[: lengths.sum()], (ends[1:] - ends[:-1]).tolist())
    return torch.stack([piece.sum() for piece in pieces])


def repeated(x, lengths):
    return torch.repeat_interleave(x, lengths, dim=0).sin()


def repeated_alike(x, lengths):
    rows = torch.repeat_interleave(x, lengths[0], dim=0)
    return torch.cat(
        [rows.repeat_interleave(lengths[1:2], dim=1).flatten(), x.repeat_interleave(repeats=lengths.max())]
    )


def chosen(x, lengths):
    mask = torch.arange(6, device=x.device) < lengths[:, None]
    positions = mask.long().flatten().nonzero().flatten()
    rows, columns = torch.nonzero(mask, as_tuple=True)
    return (
        x[mask] + x.masked_select(mask).sin() + x.flatten()[positions] + x.cos()[rows, columns] + x[lengths > 2].sum()
    )


def reshaped(x, lengths):
    height, width = (lengths[:2] > 0).long().add(torch.tensor([1, 2])).tolist()
    return x[:height].repeat(1, width).view(-1, height * width)


def numbers_and_sizes(x, lengths):
    count = lengths.sum().item()
    return x.flatten()[:count].sum() * count + lengths


def of_a_list(x, lengths):
    return sum(x[:, :length].sum() for length in lengths.unbind()[1].view(1).tolist())


def outcome(fn, x, lengths):
    x = x.clone().requires_grad_()
    result = fn(x, lengths)
    return result.detach(), *torch.autograd.grad(result.square().sum(), x), lengths


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize(
    "fn",
    [trimmed, masked, unpadded, split, repeated, repeated_alike, chosen, reshaped, numbers_and_sizes, of_a_list],
    ids=lambda fn: fn.__name__,
)
def test_integers_that_are_sizes_are_read_before_the_graph(fn, backend):
    compiled = minidynamo.compile(fn, backend=backend)
    torch.manual_seed(0)
    for lengths in LENGTHS:
        x = torch.randn(3, 6)
        seen, expected = (outcome(f, x, torch.tensor(lengths)) for f in (compiled, fn))
        torch.testing.assert_close(seen, expected)
    assert compiled.stats.graph_breaks == 0
    assert compiled.stats.recompiles <= 3


def test_a_graph_is_captured_whole():
    compiled = minidynamo.compile(unpadded, backend="eager", fullgraph=True)
    x = torch.randn(3, 6)
    for lengths in LENGTHS:
        assert torch.equal(compiled(x, torch.tensor(lengths)), unpadded(x, torch.tensor(lengths)))


def test_numbers_that_vary_together_are_symbolic_together():
    compiled = minidynamo.compile(unpadded, backend="eager")
    x = torch.randn(3, 6)
    for lengths in ([2, 3, 4], [3, 3, 4], [3, 4, 4], [3, 4, 5]):
        assert compiled(x, torch.tensor(lengths)).shape == (sum(lengths),)
    assert compiled.stats.recompiles == 1


def test_a_number_that_was_always_one_is_a_constant():
    def frames(x, grid):
        count, height = grid.tolist()
        return x[: count * height].view(count, height) * 2

    compiled = minidynamo.compile(frames, backend="eager")
    x = torch.randn(60)
    for grid in ([1, 4], [1, 5], [1, 6], [2, 5], [3, 4], [1, 7]):
        assert torch.equal(compiled(x, torch.tensor(grid)), frames(x, torch.tensor(grid)))
    assert (compiled.stats.graph_breaks, compiled.stats.recompiles) == (0, 2)


def test_sizes_of_several_pictures_stay_short():
    def pictures(x, grid):
        positions = []
        for height, width in grid.tolist():
            rows = torch.arange(height)[:, None].expand(height, width)
            positions.append(rows.reshape(height // 2, 2, width // 2, 2).transpose(1, 2).flatten())
        return (x + torch.cat(positions)[:, None]).reshape(x.shape[0] // 4, 4, -1).sin()

    sizes = []

    def backend(graph, inputs):
        (result,) = graph.graph.output_node().args[0]
        sizes.append(result.meta["example_value"].shape)
        return minidynamo.make_boxed_func(graph)

    compiled = minidynamo.compile(pictures, backend=backend)
    for grid in ([[4, 6], [8, 4]], [[6, 4], [4, 8]], [[8, 8], [6, 4]], [[4, 10], [8, 6]], [[6, 6], [4, 4]]):
        grid = torch.tensor(grid)
        x = torch.randn(int(grid.prod(1).sum()), 8)
        assert torch.equal(compiled(x, grid), pictures(x, grid))
    assert (compiled.stats.graph_breaks, compiled.stats.recompiles) == (0, 2)
    count, block, features = sizes[-1]
    assert (block, features) == (4, 8)
    assert len(count.node.expr.free_symbols) == 1


def test_the_message_names_the_line_of_the_read():
    compiled = minidynamo.compile(unpadded, backend="eager")
    for lengths in ([2, 3, 4], [3, 3, 4]):
        compiled(torch.randn(3, 6), torch.tensor(lengths))
    line = unpadded.__code__.co_firstlineno + 1
    assert f"value of `numbers_of_line_{line}(lengths)[0]`: expected 2, got 3" in compiled.why()


def test_each_number_of_images_has_a_version():
    def rows(x, grid):
        return torch.cat([x[: height * width].view(height, width).sum(0) for height, width in grid.tolist()])

    compiled = minidynamo.compile(rows, backend="eager")
    x = torch.arange(60.0)
    for grid in ([[2, 3]], [[3, 4]], [[3, 4], [2, 5]], [[5, 4], [2, 5]], [[2, 2]]):
        assert torch.equal(compiled(x, torch.tensor(grid)), rows(x, torch.tensor(grid)))
    assert (compiled.stats.graph_breaks, compiled.stats.recompiles) == (0, 2)


def test_numbers_of_each_image_may_be_in_a_second_tensor():
    def rows(x, grid):
        merged = torch.tensor([2]).expand(len(grid))
        sizes = zip(grid.tolist(), merged.tolist(), strict=True)
        return torch.cat([x[: height * width].view(height // two, -1).sum(0) for (height, width), two in sizes])

    compiled = minidynamo.compile(rows, backend="eager")
    x = torch.arange(60.0)
    for grid in ([[2, 3]], [[4, 4]], [[4, 4], [2, 5]], [[6, 4], [2, 5]], [[2, 2]], [[2, 2], [2, 2], [4, 3]]):
        assert torch.equal(compiled(x, torch.tensor(grid)), rows(x, torch.tensor(grid)))
    assert (compiled.stats.graph_breaks, compiled.stats.recompiles) == (0, 3)


def test_numbers_may_depend_on_the_sizes_of_other_tensors():
    def rows(x, lengths):
        mask = (torch.arange(2 * x.shape[0], device=x.device) < lengths[:, None]).any(0).view(x.shape[0], -1)
        return x[mask] * x.shape[0]

    compiled = minidynamo.compile(rows, backend="eager", fullgraph=True)
    for size, lengths in ((3, [2, 3]), (4, [2, 4]), (4, [5, 1]), (5, [9, 2]), (6, [3, 11]), (8, [2, 7]), (9, [8, 5])):
        x = torch.randn(size, 2)
        assert torch.equal(compiled(x, torch.tensor(lengths)), rows(x, torch.tensor(lengths)))
    assert compiled.stats.recompiles <= 2


def test_elements_of_floats_are_not_read_early():
    compiled = minidynamo.compile(lambda x: x[x > 0] * x.shape[0], backend="eager")
    for size in (3, 4, 5):
        x = torch.randn(size)
        assert torch.equal(compiled(x), x[x > 0] * size)
    assert compiled.stats.graph_breaks > 0


def test_layers_that_read_the_same_numbers_share_the_read():
    def layers(x, ends):
        for _ in range(3):
            lengths = (ends[1:] - ends[:-1]).tolist()
            x = torch.cat([piece.cumsum(0) for piece in torch.split(x, lengths)])
        return x

    compiled = minidynamo.compile(layers, backend="eager")
    for ends in ([0, 2, 5], [0, 3, 5], [0, 1, 5]):
        assert torch.equal(compiled(torch.ones(5), torch.tensor(ends)), layers(torch.ones(5), torch.tensor(ends)))
    assert compiled.stats.graph_breaks == 0
    assert compiled.code("residual").count("call_or_none(") == 1  # in the version with varying numbers


def changed_argument(x, lengths):
    lengths.clamp_(max=3)
    return unpadded(x, lengths)


def changed_copy(x, lengths):
    copy = lengths.clone()
    copy[0] = 2
    return unpadded(x, copy)


def changed_view(x, lengths):
    copy = lengths.clone()
    view = copy[1:]
    view.fill_(1)
    return unpadded(x, copy)


def of_floats(x, lengths):
    return unpadded(x, (x.detach().abs().sum(1) % 5).long() + lengths * 0)


def of_random_numbers(x, lengths):
    return unpadded(x, torch.randint(1, 5, (3,)) + lengths * 0)


@pytest.mark.parametrize(
    "fn", [changed_argument, changed_copy, changed_view, of_floats, of_random_numbers], ids=lambda fn: fn.__name__
)
def test_numbers_that_only_the_graph_computes_break_the_graph(fn):
    compiled = minidynamo.compile(fn, backend="eager")
    for lengths in LENGTHS[:3]:
        x = torch.randn(3, 6)
        torch.manual_seed(1)
        expected = fn(x, torch.tensor(lengths))
        torch.manual_seed(1)
        assert torch.equal(compiled(x, torch.tensor(lengths)), expected)
    assert compiled.stats.graph_breaks > 0


def test_a_number_by_which_the_program_decides_is_no_size():
    def decides(x, lengths):
        return x.sin() if lengths.sum().item() > 8 else x.cos()

    compiled = minidynamo.compile(decides, backend="eager")
    x = torch.randn(3)
    for lengths in LENGTHS:
        assert torch.equal(compiled(x, torch.tensor(lengths)), decides(x, torch.tensor(lengths)))
    assert compiled.stats.graph_breaks == 1


def test_sizes_that_do_not_fit_raise_the_error_of_eager():
    compiled = minidynamo.compile(split, backend="eager")
    x = torch.randn(3, 6)
    compiled(x, torch.tensor([2, 3, 4]))
    for lengths in ([2, -3, 4], [60, 60, 60]):
        errors = []
        for f in (compiled, split):
            with pytest.raises(RuntimeError) as caught:
                f(x, torch.tensor(lengths))
            errors.append(str(caught.value))
        assert errors[0] == errors[1]


def under_autocast(x, lengths):
    with torch.autocast("cpu", dtype=torch.bfloat16):
        product = (lengths * 33).float() @ (lengths * 33).float()
    count = (product.long() % 7).item()
    return x[:, :count]


def with_another_default_dtype(x, lengths):
    torch.set_default_dtype(torch.float64)
    quotient = lengths / 3
    torch.set_default_dtype(torch.float32)
    return x[:, : ((quotient * 1e9).long() % 8)[0].item()]


@pytest.mark.parametrize("fn", [under_autocast, with_another_default_dtype], ids=lambda fn: fn.__name__)
def test_the_settings_of_the_operations_count(fn):
    compiled = minidynamo.compile(fn, backend="eager")
    x = torch.randn(3, 8)
    for lengths in LENGTHS:
        assert torch.equal(compiled(x, torch.tensor(lengths)), fn(x, torch.tensor(lengths)))


def test_settings_that_do_not_matter_to_a_read():
    def trimmed_in_blocks(x, lengths):
        with torch.autocast("cpu", enabled=False), torch.no_grad():
            return x[:, : lengths.max()]

    compiled = minidynamo.compile(trimmed_in_blocks, backend="eager", fullgraph=True)
    for lengths in LENGTHS:
        assert compiled(torch.ones(3, 6), torch.tensor(lengths)).shape == (3, max(lengths))


def test_a_size_that_is_declared_to_vary_stays_symbolic():
    compiled = minidynamo.compile(unpadded, backend="eager")
    x = torch.randn(4, 6)
    for lengths in ([1, 2], [2, 3, 4], [1, 2, 1, 5]):
        declared = torch.tensor(lengths)
        minidynamo.mark_dynamic(declared, 0)
        assert torch.equal(compiled(x, declared), unpadded(x, torch.tensor(lengths)))


def test_lists_that_are_only_returned_have_no_version_for_each_length():
    compiled = minidynamo.compile(lambda x, ids: (x.sin(), ids.tolist()), backend="eager")
    for count in range(2, 9):
        assert compiled(torch.ones(3), torch.arange(count))[1] == list(range(count))
    assert compiled.stats.recompiles == 1


def test_a_frozen_function_chooses_a_version_by_the_numbers():
    compiled = minidynamo.compile(unpadded, backend="eager")
    x = torch.randn(3, 6)
    for lengths in LENGTHS[:2]:
        compiled(x, torch.tensor(lengths))
    frozen = minidynamo.freeze(compiled)
    for lengths in LENGTHS:
        assert torch.equal(frozen(x, torch.tensor(lengths)), unpadded(x, torch.tensor(lengths)))


@pytest.mark.parametrize("backend", BACKENDS)
def test_writes_to_other_tensors_come_before_an_early_read(backend):
    """A graph classifier in training: batch norm writes its statistics, and pooling reads the number of graphs."""

    def pooled(norm, x, graphs):
        count = int(graphs.max()) + 1
        return norm(x).new_zeros(count, x.shape[1]).index_add(0, graphs, norm(x))

    modules = [torch.nn.BatchNorm1d(6) for _ in range(2)]
    compiled = minidynamo.compile(pooled, backend=backend)
    for graphs in ([0, 1, 1, 2], [0, 0, 1, 1], [0, 1, 2, 3], [0, 1, 1, 1, 2]):
        x, graphs = torch.randn(len(graphs), 6), torch.tensor(graphs)
        seen, expected = compiled(modules[0], x, graphs), pooled(modules[1], x, graphs)
        torch.testing.assert_close(seen, expected)
        torch.testing.assert_close(modules[0].state_dict(), modules[1].state_dict())
    assert compiled.stats.graph_breaks == 0


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("first", ["apart", "shared"])
def test_an_early_read_of_memory_that_is_written_before(backend, first):
    def grown(counter, lengths, x):
        counter.add_(1)
        return x[: lengths.max()] * 2

    compiled = minidynamo.compile(grown, backend=backend)
    x = torch.randn(9)
    for kind in (first, "apart", "shared", "apart", "shared"):
        results = []
        for function in (compiled, grown):
            memory = torch.tensor([1, 2, 3])
            counter = memory[1:] if kind == "shared" else torch.tensor([2, 3])
            results.append((function(counter, memory, x), memory, counter))
        torch.testing.assert_close(*results)


def test_an_early_read_of_a_tensor_that_is_written_before():
    def grown(lengths, x):
        lengths.add_(1)
        return x[: lengths.max()] * 2

    compiled, x = minidynamo.compile(grown, backend="eager"), torch.randn(9)
    for lengths in LENGTHS[:3]:
        assert torch.equal(compiled(torch.tensor(lengths), x), grown(torch.tensor(lengths), x))
