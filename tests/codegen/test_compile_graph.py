"""Functions through all stages, on every target, against eager."""

from __future__ import annotations

import weakref

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import fx

from minidynamo.codegen.compile_graph import choose_target, compile_graph
from minidynamo.codegen.ir.loops import Extern
from minidynamo.codegen.runtime import disk_cache
from minidynamo.config import config
from minidynamo.core import artifacts
from minidynamo.core.events import MinidynamoNotice, forget_notices
from minidynamo.errors import UnknownName, UserLocation
from tests.codegen.graphs import check, compare, flat, located, trace

F = torch.nn.functional
TARGETS = [pytest.param("cpp", marks=pytest.mark.cpp), "triton", "aten"]
ANY_TARGET = pytest.mark.parametrize("target", TARGETS)


def normal(*shape: int) -> torch.Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(sum(shape) + len(shape)))


def normalized_across(x, w):
    turned = x.view(4, 8, 3, 3).permute(0, 2, 3, 1).reshape(4, 72)
    total = (turned / w.clamp_min(0.1)).sum(1, keepdim=True)
    return torch.where(total > 0, turned * total, w)


FUNCTIONS = {
    "chain": (lambda x, y: torch.tanh(x) * torch.sigmoid(y) + torch.exp(-x * x), normal(8, 16), normal(8, 16)),
    "softmax": (lambda x: torch.softmax(x, -1), normal(8, 16)),
    "softmax of half": (lambda x: torch.softmax(x, -1), normal(8, 16).bfloat16()),
    "softmax over columns": (lambda x: torch.softmax(x, 0), normal(33, 16)),
    "log softmax": (lambda x: F.log_softmax(x, 1), normal(5, 6)),
    "layer norm": (lambda x, w, b: F.layer_norm(x, (16,), w, b), normal(8, 16), normal(16), normal(16)),
    "views of half": (lambda x: (x + 1) * x.view(16, 8).t().reshape(8, 16), normal(8, 16).bfloat16()),
    "matmul": (lambda x, w: torch.relu(x @ w.t())[1:].sum(0), normal(8, 16), normal(4, 16)),
    "reads across memory in two loops": (normalized_across, normal(4, 72), normal(4, 72)),
    "cat": (lambda x, y: torch.cat([x, y.t(), x * 2], 1).relu(), normal(8, 4), normal(4, 8)),
    "embedding": (lambda w, i: F.embedding(i, w) + 1, normal(10, 4), torch.tensor([1, 2])),
    "pieces": (lambda x: [a + 1 for a in x.split(3, 1)] + list(x.unbind(0)), normal(2, 5)),
    "statistics": (lambda x: (x.var(1), x.mean(1), x.argmax(1), x.std(0), x.amin(0)), normal(8, 16)),
    "long sums": (lambda x: ((x * 2).mean(), x.mean(0), x.amax()), normal(8192, 10)),
    "uneven long sum": (lambda x: ((x * 2).mean(), x.amax(), (x > 0).all(), (x > 3).any()), normal(70001)),
    "attention": (
        lambda q, k, v: torch.softmax((q @ k.transpose(1, 2)).view(2, 3, 4, 4) / 2, -1).view(6, 4, 4) @ v,
        *normal(3, 6, 4, 5),
    ),
    "integers": (lambda x: (x // 3, x % 3, x * 2, x.sum(), x.float().mean(), x & 3, x << 1), torch.arange(-9, 9)),
    "bools": (lambda x, y: (x & y, x | y, ~x, x.any(), x.all(0), x.sum(1)), normal(4, 5) > 0, normal(5, 4).t() > 0),
    "pad": (lambda x: F.pad(x, (1, 2, 3, -1)) * 2, normal(4, 5)),
    "gather": (lambda x, i: x.gather(1, i).sin(), normal(4, 5), torch.tensor([[0, 1], [2, 3], [4, 4], [0, 0]])),
    "index": (lambda x, i: x[i] + 1, normal(6, 5), torch.tensor([0, -1, 3])),
    "cross entropy": (lambda x, t: F.cross_entropy(x, t), normal(6, 5), torch.tensor([0, 1, 3, 4, 4, 2])),
    "channels last": (lambda x: (x * 2).relu(), normal(2, 3, 4, 4).to(memory_format=torch.channels_last)),
    "max with index": (lambda x: x.max(1), normal(5, 6)),
    "gelu with bias": (lambda x, b: F.gelu(x + b), normal(5, 6), normal(6)),
    "several results": (lambda x: (x.sin(), x.sin() + x.cos(), (x + 1).sum(0), (x * 3).sum(1)), normal(5, 6)),
    "beside other places of itself": (lambda x: (y := x * 2) + y.view(torch.int32).t(), normal(4, 4)),
    "result times sum": (lambda x: x * x.sum(), normal(5, 6)),
    "aliases": (lambda x: (x.view(6, 5), x.t(), x), normal(5, 6)),
    "empty": (lambda x: (x + 1, x.sum(0), x.sum()), normal(0, 6)),
    "flip": (lambda x: x.flip(0) + x.repeat(1, 1), normal(5, 6)),
    "conv": (lambda x, w: F.relu(F.conv2d(x, w)).sum((2, 3)), normal(2, 3, 8, 8), normal(4, 3, 3, 3)),
    "batch norm": (lambda x, w, b: F.batch_norm(x, None, None, w, b, True), normal(4, 3, 5, 5), normal(3), normal(3)),
    "0-dim": (lambda x: (x + 1).exp(), normal()),
    "none": (lambda x: (x + 1, None, 3), normal(3)),
}  # fmt: skip


@ANY_TARGET
@pytest.mark.parametrize("name", FUNCTIONS)
def test_function_equals_eager(name, target):
    function, *args = FUNCTIONS[name]
    if name == "none":
        compiled = compile_graph(trace(function, *args), target=target)
        assert compiled.call(list(args))[1:] == (None, 3)
    else:
        check(function, *args, target=target)


@ANY_TARGET
def test_dropout_draws_what_eager_draws(target):
    def function(x):
        dropped = torch.ops.aten.native_dropout(x + 1, 0.5, True)[0]
        return dropped * torch.ops.aten.bernoulli.p(torch.empty_like(x), 0.25)

    for x in (normal(40, 5), normal(40, 50)):
        compiled = compile_graph(trace(function, x), target=target)
        torch.manual_seed(7)
        expected, next_numbers = function(x), torch.rand(3)
        torch.manual_seed(7)
        compare(compiled.call([x]), [expected], exact=True)
        assert torch.equal(torch.rand(3), next_numbers)


@ANY_TARGET
@pytest.mark.parametrize("x", [normal(4, 5), normal(5, 4).t()], ids=["contiguous", "transposed"])
def test_store_into_an_input(target, x):
    def function(x, y):
        old = x * 2
        torch.ops.aten.copy_.default(x, x + y)
        return old

    y = normal(5)
    given = x.clone()
    (old,) = compile_graph(trace(function, x, y), target=target).call([given, y])
    compare([old, given], [x * 2, x + y], exact=True)


@ANY_TARGET
def test_store_into_an_input_beside_other_places_of_it(target):
    def function(x):
        torch.ops.aten.copy_.default(x, x + x.view(torch.int32).t())
        return ()

    x = normal(4, 4)
    given = x.clone()
    compile_graph(trace(function, x), target=target).call([given])
    compare([given], [x + x.view(torch.int32).t()], exact=True)


@ANY_TARGET
def test_swapped_inputs(target):
    def function(x, y):
        kept = x.clone()
        torch.ops.aten.copy_.default(x, y)
        torch.ops.aten.copy_.default(y, kept)
        return ()

    x, y = normal(4, 5), normal(4, 5) + 1
    a, b = x.clone(), y.clone()
    compile_graph(trace(function, x, y), target=target).call([a, b])
    compare([a, b], [y, x], exact=True)


@ANY_TARGET
def test_views_of_inputs_share_their_memory(target):
    x = normal(4, 6)
    compiled = compile_graph(trace(lambda x: (x.view(6, 4), (x + 1).t(), x.detach()), x), target=target)
    view, fresh, same = compiled.call([x])
    assert view.data_ptr() == x.data_ptr() == same.data_ptr()
    assert fresh.stride() == (1, 6)


@ANY_TARGET
def test_constant_of_the_graph(target):
    graph = fx.Graph()
    x, weight = graph.placeholder("x"), graph.get_attr("weight")
    total = graph.call_function(torch.ops.aten.add.Tensor, (x, weight))
    graph.output((total, weight))
    root = torch.nn.Module()
    root.weight = normal(3)
    fake = trace(lambda a: a + 1, normal(3))
    for node in (x, weight, total):
        node.meta["val"] = next(iter(fake.graph.nodes)).meta["val"]
    compiled = compile_graph(fx.GraphModule(root, graph), target=target)
    for _ in range(2):
        value, same = compiled.call([normal(3)])
        assert same is root.weight
        compare([value], [normal(3) + root.weight], exact=True)


OUT_OF_RANGE = {
    "embedding": (lambda w, i: F.embedding(i, w), "index out of range in self", (10, -1)),
    "index_select": (lambda w, i: w.index_select(0, i), "index out of range in self", (10, -1)),
    "subscript": (lambda w, i: w[i], "is out of bounds for dimension 0 with size 10", (10, -11)),
    "gather": (lambda w, i: w.gather(0, i[:, None]), "is out of bounds for dimension 0 with size 10", (10, -1)),
    "targets": (lambda w, i: F.nll_loss(w[:2], i), "Target .*is out of bounds", (10, -1)),
    "columns": (lambda w, i: w.index_select(1, i), "INDICES element is out of DATA bounds, id=", (4, -1)),
    "columns from the end": (lambda w, i: (w * 2).index_select(-1, i), "out of DATA bounds, id=", (4, -1)),
    "a masked position": (lambda w, i: w.gather(1, torch.where(i == 100, 0, i)[:, None]), "dimension 1", (10, -1)),
    "targets of the program's own": (
        lambda w, i: w.gather(1, torch.where(i != -100, i, 0)[:, None]),
        "index .* is out of bounds for dimension 1 with size 4",
        (10, -1),
    ),
    "one column seen twice": (lambda w, i: w[:, :1].expand(10, 2).index_select(1, i), "out of DATA bounds", (2, -1)),
}


@pytest.mark.cpp
@pytest.mark.parametrize("name", OUT_OF_RANGE)
def test_positions_out_of_range_raise_the_error_of_eager(name):
    function, text, positions = OUT_OF_RANGE[name]
    args = normal(10, 4), torch.tensor([1, 0])
    compiled = compile_graph(trace(function, *args), target="cpp")
    compiled.call(list(args))
    for position in positions:
        args = normal(10, 4), torch.tensor([1, position])
        with pytest.raises((IndexError, RuntimeError), match=text) as expected:
            function(*args)
        with pytest.raises(expected.type) as raised:
            compiled.call([*args])
        assert str(raised.value).splitlines()[0] == str(expected.value).splitlines()[0]


EXPANDED = {
    "embedding": (lambda w, i: F.embedding(i, w), (3, 3), (1, 3)),
    "index_select": (lambda w, i: w.index_select(0, i), (3, 3), (1, 3)),
    "subscript": (lambda w, i: w[i], (3, 3), (1, 3)),
    "gather": (lambda w, i: w.gather(0, i[:, None]), (3, 3), (1, 3)),
    "nothing": (lambda w, i: w[i], (0, 3), (0, 3)),
    "no columns": (lambda w, i: w.index_select(1, i), (3, 0), (3, 0)),
}


@pytest.mark.cpp
@pytest.mark.parametrize("name", EXPANDED)
def test_positions_in_repeated_and_empty_dimensions_are_checked(name):
    function, shape, own = EXPANDED[name]
    args = normal(*own).expand(shape), torch.tensor([7])
    with pytest.raises((IndexError, RuntimeError)) as expected:
        function(*args)
    compiled = compile_graph(trace(function, *args), target="cpp")
    with pytest.raises(expected.type) as raised:
        compiled.call([*args])
    assert str(raised.value).splitlines()[0] == str(expected.value).splitlines()[0]


@ANY_TARGET
def test_inputs_die_behind_their_last_use(target):
    alive: list[bool] = []

    with torch.library._scoped_library("minidynamo_test", "FRAGMENT") as library:
        library.define("look(Tensor x) -> Tensor")
        library.impl("look", lambda x: alive.append(first() is not None) or x.clone(), "CPU")
        library.impl("look", lambda x: torch.empty_like(x), "Meta")

        def function(a, b):
            c = a + 1
            return c * torch.ops.minidynamo_test.look(b)

        compiled = compile_graph(trace(function, normal(3), normal(3)), target=target)
        a, b = normal(3), normal(3)
        first = weakref.ref(a)
        boxed = [a, b]
        del a
        (result,) = compiled.call(boxed)
    assert alive == [False]
    compare([result], [(normal(3) + 1) * b])


@pytest.mark.cpp
def test_texts_of_all_stages():
    compiled = check(lambda x: torch.softmax(x + 1, -1), normal(3, 4))
    assert compiled.target == "cpp"
    assert "sum over" in compiled.loops_text
    assert "kernel add_softmax_0" in compiled.kernel_text
    assert "kernel_add_softmax_0" in compiled.kernel_source
    assert "def call(args):" in compiled.host.source()
    assert set(compiled.paths) == {"loops", "kernel", "memory", "host"}
    for path in compiled.paths.values():
        with open(path) as file:
            assert file.read()


@pytest.mark.parametrize("target", [pytest.param("cpp", marks=pytest.mark.cpp), "triton"])
def test_each_text_is_written_once(target):
    with artifacts.collected() as texts:
        compiled = check(*FUNCTIONS["softmax"], target=target)
    assert [text.kind for text in texts] == ["loops", "kernel", "memory", "host"]
    assert [text.path for text in texts] == [compiled.paths[text.kind] for text in texts]
    assert texts[1].text == compiled.kernel_source


@pytest.mark.cpp
def test_where_the_users_lines_stand_changes_no_key(tmp_path):
    gm = located()
    with config.patch(cache_dir=str(tmp_path)):
        first = compile_graph(gm, target="cpp").kernel_source
        for node in gm.graph.nodes:
            if "user_location" in node.meta:
                node.meta["user_location"] = UserLocation("other.py", node.meta["user_location"].lineno + 5, "other")
        second = compile_graph(gm, target="cpp").kernel_source
        assert first != second
        assert len(list(disk_cache.entries())) == 1


def test_target_aten_has_no_kernels():
    compiled = check(*FUNCTIONS["softmax"], target="aten")
    assert compiled.kernel_source == "" and not compiled.program.kernels
    assert any(isinstance(step, Extern) for step in compiled.program.steps)


@pytest.mark.cpp
def test_without_fusion_every_operation_is_a_kernel():
    with config.patch(fuse=False):
        compiled = check(*FUNCTIONS["chain"])
    assert len(compiled.program.kernels) == 7


def test_choose_target():
    gm = trace(lambda x: x + 1, normal(3))
    assert choose_target(gm, "auto") == "cpp"
    assert choose_target(gm, "triton") == "triton"
    for node in gm.graph.nodes:
        if "val" in node.meta:
            node.meta["val"] = torch.empty(0, device="meta")
    assert choose_target(gm, "auto") == "cpp"
    with pytest.raises(UnknownName, match="Did you mean 'triton'"):
        choose_target(gm, "tritn")


def test_without_compiler_torch_computes():
    forget_notices()
    function, *args = FUNCTIONS["chain"]
    with config.patch(cxx="/nowhere/c++"), pytest.warns(MinidynamoNotice, match="MD501"):
        compiled = check(function, *args)
    assert compiled.target == "aten"


UNARY = [torch.neg, torch.abs, torch.relu, torch.floor, torch.sign, lambda x: x * 0.3, lambda x: x + 2, lambda x: 1 - x]
BINARY = [torch.add, torch.sub, torch.mul, torch.maximum, torch.minimum, lambda a, b: torch.where(a > b, a, b * 2)]
SHAPES = [lambda x: x, lambda x: x.t(), lambda x: x[1:2], lambda x: x[:, :1], lambda x: x.flip(0), lambda x: x.sum(0)]


@st.composite
def straight_line_programs(draw):
    """Steps (kind, operation, operands), each operand counting back from the newest value."""
    return [
        (draw(st.integers(0, 2)), draw(st.integers(0, 7)), draw(st.integers(0, 4)), draw(st.integers(0, 4)))
        for _ in range(draw(st.integers(1, 12)))
    ]


def run_program(steps, x):
    values = [x]
    for kind, operation, a, b in steps:
        first, second = values[-1 - a % len(values)], values[-1 - b % len(values)]
        if kind == 0:
            values.append(UNARY[operation % len(UNARY)](first))
        elif kind == 1:
            values.append(BINARY[operation % len(BINARY)](first, second))
        else:
            values.append(SHAPES[operation % 5](first) + second)
    return values[1:]


@ANY_TARGET
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
@settings(max_examples=8, deadline=None, derandomize=True)
@given(steps=straight_line_programs())
def test_random_programs_are_bitwise_equal(steps, dtype, target):
    x = normal(3, 3).to(dtype)
    function = lambda x: run_program(steps, x)  # noqa: E731
    compiled = compile_graph(trace(function, x), target=target)
    compare(compiled.call([x]), flat(function(x)), exact=True)
