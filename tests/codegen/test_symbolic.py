"""Graphs that are compiled once for all sizes and numbers, on every target, against eager."""

from __future__ import annotations

import functools
import json
import re

import pytest
import torch

from minidynamo.codegen import stored
from minidynamo.codegen.compile_graph import compile_graph
from minidynamo.codegen.ir.loops import Extern
from minidynamo.codegen.ir.text import kernel_text
from minidynamo.codegen.lowering.graph import lower_graph
from minidynamo.codegen.memory.plan import Reuse
from minidynamo.codegen.memory.planner import plan_memory
from minidynamo.codegen.printers import cpp, triton
from minidynamo.codegen.printers.host import Calling, print_host
from minidynamo.codegen.scheduling.schedule import schedule
from minidynamo.graph_cache.encoding import Codec, GraphContext
from tests.codegen.graphs import compare, flat, trace, trace_symbolic

F = torch.nn.functional
ANY_TARGET = pytest.mark.parametrize("target", [pytest.param("cpp", marks=pytest.mark.cpp), "triton", "aten"])


def normal(*shape: int) -> torch.Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(sum(shape) + len(shape)))


def ints(high: int, *shape: int) -> torch.Tensor:
    return torch.randint(high, shape, generator=torch.Generator().manual_seed(high))


# A function, and a maker of its arguments for the sizes a and b.
PROGRAMS = {
    "chain": (lambda x, y: torch.tanh(x) * torch.sigmoid(y) + torch.exp(-x * x), lambda a, b: [normal(a, b)] * 2),
    "broadcast": (
        lambda x, y, z: (x + y) * z.t() - y,
        lambda a, b: (normal(a, b), normal(b), normal(1, a)),
    ),
    "softmax": (lambda x: torch.softmax(x, -1), lambda a, b: [normal(a, b)]),
    "softmax of half": (lambda x: torch.softmax(x, -1), lambda a, b: [normal(a, b).bfloat16()]),
    "softmax over columns": (lambda x: F.log_softmax(x, 0), lambda a, b: [normal(a, b)]),
    "layer norm": (
        lambda x, w, c: F.layer_norm(x, (x.shape[1],), w, c),
        lambda a, b: (normal(a, b), normal(b), normal(b)),
    ),
    "sums": (lambda x: (x.sum(0), x.mean(1), (x * 2).sum(), x.sum((0, 1), keepdim=True)), lambda a, b: [normal(a, b)]),
    "extremes": (
        lambda x: (x.amax(0), x.argmax(1), x.max(1)[1], x.amin(), x.argmin()),
        lambda a, b: [normal(a, b)],
    ),
    "statistics": (lambda x: (x.var(1), x.std(0), *torch.var_mean(x, 0)), lambda a, b: [normal(a, b)]),
    "static columns": (
        lambda x: (torch.softmax(x.view(-1, 16), -1), x.view(-1, 16).sum(0)),
        lambda a, b: [normal(a * 16, b)],
    ),
    "cat": (lambda x, y: torch.cat([x, y.t(), x * 2], 1).relu(), lambda a, b: (normal(a, b), normal(3, a))),
    "halves": (
        lambda x: (x[:, : x.shape[1] // 2] * 2, x[x.shape[0] // 2 :] + 1, x[:, -1] - 1, x[:, 1:] + 1),
        lambda a, b: [normal(a, b)],
    ),
    "products": (
        lambda x: ((x + 1).reshape(-1) * 2, x.reshape(x.shape[1], x.shape[0]) + x.t(), x.view(x.shape[0], 1, -1) * 3),
        lambda a, b: [normal(a, b)],
    ),
    "heads": (
        lambda x: (x.view(x.shape[0], -1, 4, 2).transpose(1, 2) * 2).reshape(x.shape[0] * 4, -1) + 1,
        lambda a, b: [normal(a, b * 8)],
    ),
    "index": (
        lambda x, i: (x[i] + 1, F.embedding(i, x), x.index_select(0, i)),
        lambda a, b: (normal(a, b), ints(a, b)),
    ),
    "gather": (lambda x, i: x.gather(1, i).sin(), lambda a, b: (normal(a, b), ints(b, a, 3))),
    "matmul": (lambda x, w: torch.relu(x @ w.t())[1:].sum(0), lambda a, b: (normal(a, b), normal(5, b))),
    "attention": (
        lambda q, k, v: torch.softmax(q @ k.transpose(1, 2) / q.shape[-1] ** 0.5, -1) @ v,
        lambda a, b: [normal(2, a, b)] * 3,
    ),
    "conv": (
        lambda x, w: F.relu(F.conv2d(x, w, padding=1) + 1).sum((2, 3)),
        lambda a, b: (normal(2, 3, a, b), normal(4, 3, 3, 3)),
    ),
    "flip": (lambda x: x.flip(0) + x.repeat(1, 1), lambda a, b: [normal(a, b)]),
    "triangle": (lambda x: (x.tril(), x.triu(1)), lambda a, b: [normal(a, b)]),
    "positions": (
        lambda x: (torch.arange(x.shape[1]) + x, torch.arange(x.shape[0])[:, None] * 2 >= x),
        lambda a, b: [normal(a, b)],
    ),
    "filled": (
        lambda x: (torch.full((x.shape[0], 3), 2.5), torch.zeros_like(x), x.new_full((2,), x.shape[0])),
        lambda a, b: [normal(a, b)],
    ),
    "integers": (lambda x: (x // 3, x % 3, x * x.shape[0], x.sum(), x.float().mean()), lambda a, b: [ints(50, a, b)]),
    "mixed dtypes": (
        lambda x, y, z: (x + y, x * z, y.to(torch.int32) + z),
        lambda a, b: (normal(a, b).half(), normal(b), ints(9, a, b)),
    ),
    "sizes as values": (
        lambda x: (x * x.shape[0], x + x.shape[0] * x.shape[1], x / x.shape[1], x.half() + x.shape[1], x < x.shape[0]),
        lambda a, b: [normal(a, b)],
    ),
    "cross entropy": (lambda x, i: F.cross_entropy(x, i), lambda a, b: (normal(a, b), ints(b, a))),
    "split": (lambda x: [part * 2 for part in x.split([1, x.shape[1] - 1], 1)], lambda a, b: [normal(a, b)]),
    "conditions": (
        lambda x, y: torch.where(x > 0, x, y).masked_fill(x > 1, 3.0).clamp(-1, 2),
        lambda a, b: (normal(a, b), normal(a, 1)),
    ),
}  # fmt: skip

SIZES = [(2, 2), (2, 3), (3, 2), (7, 5), (1000, 3), (3, 1031), (70, 257)]


def check_sizes(function, arguments, target, sizes=SIZES, traced=(9, 6)):
    compiled = compile_graph(trace_symbolic(function, *arguments(*traced)), target=target)
    for a, b in [traced, *sizes]:
        given = list(arguments(a, b))
        expected = flat(function(*given))
        compare_loosely(compiled.call(list(given)), expected, a * b)
    return compiled


def compare_loosely(results, expected, elements):
    if elements < 1000:
        compare(results, expected)
        return
    for result, wanted in zip(results, expected, strict=True):
        assert (result.dtype, result.stride()) == (wanted.dtype, wanted.stride())
        tolerance = 1e-4 if wanted.dtype == torch.float32 else 2e-2
        torch.testing.assert_close(result, wanted, rtol=tolerance, atol=tolerance)


@ANY_TARGET
@pytest.mark.parametrize("name", PROGRAMS)
def test_all_sizes_equal_eager(name, target):
    check_sizes(*PROGRAMS[name], target)


@ANY_TARGET
@pytest.mark.parametrize("name", ["chain", "softmax", "sums", "cat", "products", "statistics"])
def test_transposed_and_sliced_inputs(name, target):
    function, arguments = PROGRAMS[name]

    def reversed_layout(a, b):
        return [x.t().contiguous().t() if x.dim() == 2 else x for x in arguments(a, b)]

    def windows(a, b):
        return [x[:, 1:-1] if x.dim() == 2 else x for x in arguments(a, b + 2)]

    if name != "products":
        check_sizes(function, reversed_layout, target, sizes=[(2, 3), (33, 70)])
    if name not in ("cat", "products"):
        check_sizes(function, windows, target, sizes=[(2, 3), (33, 70)])


@pytest.mark.cpp
@pytest.mark.parametrize("name", ["chain", "broadcast", "sizes as values", "mixed dtypes", "conditions", "integers"])
def test_pointwise_is_bitwise_equal(name):
    function, arguments = PROGRAMS[name]
    compiled = compile_graph(trace_symbolic(function, *arguments(9, 6)), target="cpp")
    static = {size: compile_graph_static(function, arguments(*size)) for size in SIZES}
    for size in SIZES:
        compare(compiled.call(list(arguments(*size))), static[size], exact=True)


def compile_graph_static(function, given):
    """Returns the results of the kernels for one size, which are compared with eager elsewhere."""
    return compile_graph(trace(function, *given), target="cpp").call(list(given))


NUMBERS = {
    "scaled": (lambda x, n: (x + n, x - n, n - x, x * n, x / n, x.half() * n, x.half() + n), [3.7, 2.5, -1e-3]),
    "alpha": (
        lambda x, n: (torch.add(x, x, alpha=n), torch.addcmul(x, x, x, value=n), torch.lerp(x, -x, n)),
        [0.3, 0.9],
    ),
    "compared": (
        lambda x, n: (x > n, x.clamp(min=n), torch.where(x > 0, x, n), x.masked_fill(x > 0, n)),
        [0.5, -0.25],
    ),
    "filled": (lambda x, n: (torch.full((3,), n), torch.full_like(x, n)), [0.1, 7.0]),
    "power": (lambda x, n: x.abs() ** n, [2.0, 0.5, 1.7]),
    "left to torch": (lambda x, n: (F.elu(x, n), F.softplus(x, n)), [1.0, 0.7]),
    "integers": (lambda x, n: (x * n, x.to(torch.int64) + n, x.to(torch.int64) // n), [3, -2, 7]),
    "host arithmetic": (lambda x, n: x * (n * 2 + 1) / (n - 0.5), [0.1, 3.0]),
    "returned": (lambda x, n: (x + 1, n * 2), [0.5, 0.75]),
}  # fmt: skip


@ANY_TARGET
@pytest.mark.parametrize("name", NUMBERS)
def test_numbers_equal_eager(name, target):
    function, values = NUMBERS[name]
    x = normal(5, 7)
    compiled = compile_graph(trace_symbolic(function, x, values[0]), target=target)
    for size, n in [((5, 7), values[0]), *(((4, 33), value) for value in values)]:
        x = normal(*size)
        expected = flat(function(x, n))
        results = compiled.call([x, n])
        if name == "returned":
            assert results[1] == expected[1] and type(results[1]) is float
            results, expected = results[:1], expected[:1]
        compare(results, expected, exact=name not in ("power", "left to torch"))


@ANY_TARGET
def test_gradients(target):
    def gradients(x, w, b):
        x, w, b = (v.detach().requires_grad_() for v in (x, w, b))
        return torch.autograd.grad(F.layer_norm(x, (x.shape[1],), w, b).sin().sum(), [x, w, b])

    check_sizes(gradients, lambda a, b: (normal(a, b), normal(b), normal(b)), target, sizes=[(2, 3), (65, 130)])


@ANY_TARGET
def test_store_into_an_input(target):
    def function(x, y, rate):
        torch.ops.aten.copy_.default(x, x - y * rate)
        return ()

    x, y = normal(9, 6), normal(9, 6)
    compiled = compile_graph(trace_symbolic(function, x, y, 0.1), target=target)
    for size in [(2, 3), (9, 6), (70, 33)]:
        x, y = normal(*size), normal(*size) + 1
        expected = x - y * 0.01
        compiled.call([x, y, 0.01])
        compare([x], [expected], exact=True)


@pytest.mark.cpp
def test_programs_become_kernels():
    for name in (
        "chain",
        "broadcast",
        "softmax",
        "layer norm",
        "sums",
        "cat",
        "halves",
        "products",
        "heads",
        "statistics",
    ):
        function, arguments = PROGRAMS[name]
        program = compile_graph(trace_symbolic(function, *arguments(9, 6)), target="cpp").program
        externs = [step for step in program.steps if isinstance(step, Extern) and not step.is_view]
        assert not externs, name


@pytest.mark.cpp
def test_memory_is_reused_where_sizes_are_known_to_be_equal():
    def function(x):
        return (torch.softmax(x @ x.t(), -1) @ x).relu()

    compiled = compile_graph(trace_symbolic(function, normal(9, 6)), target="cpp")
    assert "; del " in compiled.host.source()


@pytest.mark.cpp
def test_memory_is_reused_in_another_shape():
    def linear(x, w):
        return ((x.flatten(0, 1) @ w).unflatten(0, x.shape[:2]) * 2).sin()

    w = normal(4, 6)
    compiled = compile_graph(trace_symbolic(linear, normal(3, 5, 4), w), target="cpp")
    assert any(isinstance(step, Reuse) and step.relaid for step in compiled.program.steps)
    for sizes in [(3, 5, 4), (7, 2, 4), (1, 1, 4)]:
        x = normal(*sizes)
        (made,) = compiled.call([x, w])
        compare([made], [linear(x, w)], exact=False)
        assert made._version == 0 and not made._is_view()


@pytest.mark.cpp
def test_empty_pieces():
    def function(x):
        rest = x[:, 2:] * 2
        return rest, rest.sum(1), rest.mean(0), x[:, 2:] + x[:, :1]

    for target in ("cpp", "triton"):
        compiled = compile_graph(trace_symbolic(function, normal(9, 6)), target=target)
        for x in (normal(3, 2), normal(3, 3), normal(64, 2)):
            # Strides of an empty tensor mean nothing; fake tensors and eager differ.
            torch.testing.assert_close(compiled.call([x]), function(x), equal_nan=True)


@ANY_TARGET
def test_a_stored_graph_serves_every_size(target):
    def function(x, rate):
        return torch.softmax(x * (rate + 1), -1)[:, : x.shape[1] // 2] + x.shape[0]

    codec = Codec(GraphContext(None, ()), stored.RECORDS)
    compiled = compile_graph(trace_symbolic(function, normal(9, 6), 0.5), target=target)
    again = stored.read_graph(json.loads(json.dumps(stored.write_graph(compiled, codec))), codec)
    for size in SIZES:
        compare(again([normal(*size), 0.25]), compiled.call([normal(*size), 0.25]), exact=True)


def renamed(text: str) -> str:
    """Returns the text with torch's names of symbols, which differ between torch releases, in order."""
    symbol = re.compile(r"(?<![A-Za-z0-9])s\d+\b")
    order = list(dict.fromkeys(symbol.findall(text)))
    return symbol.sub(lambda match: f"s{'abcdefgh'[order.index(match[0])]}", text)


def test_texts(golden):
    def function(x, rate):
        return torch.softmax(x * rate, -1), x[:, : x.shape[1] // 2].sum(0)

    def planned(target):
        graph = lower_graph(trace_symbolic(function, normal(9, 6), 0.5), target=target)
        loops, steps = schedule(graph, join=True, verify=True)
        return plan_memory(steps, loops, "symbolic")

    program = planned("cpp")
    golden(renamed("\n".join(map(kernel_text, program.kernels))), "loops/symbolic.kernels.txt")
    golden(renamed(cpp.print_kernels(program.kernels)), "codegen/symbolic.cpp.txt")
    golden(renamed(triton.print_kernels(planned("triton").kernels)), "codegen/symbolic.triton.txt")
    launchers = {k.name: functools.partial(len) for k in program.kernels}
    golden(renamed(print_host(program, launchers, Calling.IN_LIBRARY)[0].source()), "codegen/symbolic.host.txt")
