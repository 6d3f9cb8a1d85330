"""The walk over a graph: lowered nodes, extern calls, and existing tensors."""

import pytest
import torch
from torch import fx
from torch.nn import functional as F

import minidynamo
from minidynamo.codegen.ir.loops import Buffer, Extern, GetItem, Loops, Name
from minidynamo.codegen.lowering.graph import has_no_overlap, layout_of, lower_graph
from minidynamo.codegen.lowering.numbers import Numbers
from minidynamo.errors import InternalError
from tests.codegen.graphs import check, lower, trace

aten = torch.ops.aten


def externs(program):
    return [n for n in program.nodes if isinstance(n, Extern)]


def test_views_for_kernels_cost_nothing():
    program = lower(lambda x: x.t()[1:].reshape(-1) + 1, torch.ones(3, 4))
    # The reshape of a transposed tensor is a clone, also lowered to a loop nest.
    assert not externs(program)


def test_views_for_externs_are_made_once_and_late():
    program = lower(lambda x, y: (y + x.t() @ x.t(), x.t() @ y), torch.ones(3, 3), torch.ones(3, 3))
    made = [str(n.op) for n in externs(program)]
    assert made.count("aten.mm.default") == 2
    assert made.index("aten.t.default") < made.index("aten.mm.default")
    assert all(n.aliases == ("x_1",) for n in externs(program) if n.is_view)


def test_a_chain_of_views_is_one_view():
    def products(x, w):
        heads = (x @ w).view(2, 3, 4).transpose(1, 2)
        return torch.bmm(heads, heads.transpose(1, 2)), heads

    program = lower(products, torch.ones(6, 4), torch.ones(4, 4))
    views = [(n.out, str(n.op), n.aliases) for n in externs(program) if n.is_view]
    assert views == [
        ("transpose", "aten._reshape_alias.default", ("mm",)),
        ("transpose_1", "aten.transpose.int", ("transpose",)),
    ]
    check(products, torch.randn(6, 4), torch.randn(4, 4))


def test_view_that_changes_nothing_is_skipped():
    program = lower(lambda x, w: x.view(3, 4).expand(3, 4) @ w, torch.ones(3, 4), torch.ones(4, 2))
    assert [str(n.op) for n in externs(program)] == ["aten.mm.default"]


def test_several_results_of_an_extern():
    program = lower(lambda x: torch.sort(x, 0)[0] + 1, torch.ones(3))
    call, item, *_ = program.nodes
    assert isinstance(call, Extern) and call.layout is None
    assert isinstance(item, GetItem) and (item.source, item.index) == (call.out, 0)


def test_outputs_that_are_views_or_inputs():
    program = lower(lambda x: (x, x.view(12), (x + 1).t()), torch.ones(3, 4))
    assert program.outputs[0] == Name("x_1")
    assert [n.aliases for n in externs(program)] == [("x_1",), ("add",)]


def test_layouts_are_those_of_eager():
    x = torch.ones(2, 3, 4, 4).to(memory_format=torch.channels_last)
    program = lower(lambda x: x.relu(), x)
    assert program.buffers["relu"].stride == x.stride()


def test_everything_is_extern_without_kernels():
    program = lower_graph(trace(lambda x: (x + 1).softmax(0), torch.ones(3)), target="aten")
    assert len(externs(program)) == len(program.nodes) == 2


def test_unknown_dtypes_and_mixed_devices_are_extern():
    program = lower(lambda x: x * 2, torch.ones(3, dtype=torch.complex64))
    assert len(externs(program)) == 1
    gm = trace(lambda x: x * 2, torch.ones(3))
    next(iter(gm.graph.nodes)).meta["val"] = torch.empty(3, device="meta")
    assert len(externs(lower_graph(gm))) == 1


def test_store_into_an_input_is_a_loop_nest():
    program = lower(lambda x: [aten.copy_.default(x, x + 1), None][1:], torch.ones(3))
    store = program.nodes[-1]
    assert isinstance(store, Loops) and store.out.name == "x_1"


def test_store_of_an_input_into_another_is_ordered():
    def function(x, y):
        aten.copy_.default(x, y)
        aten.copy_.default(y, x)
        return ()

    kinds = [type(n) for n in lower(function, torch.ones(3), torch.ones(3)).nodes]
    assert kinds == [Loops, Extern]


def test_layout_of():
    transposed = Buffer("x", (3, 2), (1, 3), torch.float32, torch.device("cpu"))
    assert layout_of("x", torch.ones(2, 3).t(), Numbers()) == transposed
    assert layout_of("x", torch.ones(2).to_sparse(), Numbers()) is None
    assert layout_of("x", torch.ones(2, dtype=torch.complex64).conj().imag, Numbers()) is None
    assert layout_of("x", 3, Numbers()) is None


@pytest.mark.parametrize(
    ("stride", "dense"), [((3, 1), True), ((1, 2), True), ((8, 2), True), ((0, 1), False), ((1, 1), False)]
)
def test_is_dense(stride, dense):
    assert has_no_overlap(Buffer("x", (2, 3), stride, torch.float32, torch.device("cpu"))) is dense


def test_methods_are_not_aten():
    graph = fx.Graph()
    x = graph.placeholder("x")
    graph.output((graph.call_method("sin", (x,)),))
    with pytest.raises(InternalError, match="call_method"):
        lower_graph(fx.GraphModule(torch.nn.Module(), graph))


COMPLEX_NUMBERS = {
    "a threshold": lambda x: F.threshold(x, 1j, 1),
    "a value": lambda x: F.threshold(x, 1, 1j),
    "to fill with": lambda x: torch.full_like(x, 1j),
    "to fill something new with": lambda x: x.new_full((2,), 1j),
    "equal": lambda x: x == 1j,
    "not equal": lambda x: x != 1j,
    "a factor": lambda x: torch.add(x, x, alpha=1j),
}


def attempt(function, x):
    try:
        return function(x).tolist()
    except (RuntimeError, NotImplementedError) as error:
        return type(error), str(error)


@pytest.mark.cpp
@pytest.mark.parametrize("dtype", [torch.float32, torch.int64, torch.bool])
@pytest.mark.parametrize("name", COMPLEX_NUMBERS)
def test_complex_numbers_are_for_torch(name, dtype):
    """Torch compares with complex numbers, and raises its own errors."""
    function = COMPLEX_NUMBERS[name]
    x = torch.ones(3, dtype=dtype)
    assert attempt(minidynamo.compile(function, backend="cpp"), x) == attempt(function, x)


@pytest.mark.cpp
def test_a_threshold_for_bools_is_an_error():
    with pytest.raises(NotImplementedError, match="threshold_cpu"):
        minidynamo.compile(lambda x: F.threshold(x, 1, 0), backend="cpp")(torch.ones(3, dtype=torch.bool))
