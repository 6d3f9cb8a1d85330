"""Handwritten kernels for the tests of the printers, each with inputs and torch's results."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch

from minidynamo.codegen.ir.expr import Cast, Const, Expr, IndexValue, Load, Op, Ref
from minidynamo.codegen.ir.index import Index, Lookup, Var, as_index, flatten, row_major
from minidynamo.codegen.ir.loops import Accumulate, Buffer, Kernel, Let, Loop, Statement, Store

CPU = torch.device("cpu")
F32, F64, BF16, F16 = torch.float32, torch.float64, torch.bfloat16, torch.float16
I64, BOOL = torch.int64, torch.bool


@dataclass(frozen=True)
class Case:
    """A kernel, its inputs, and a function from the inputs to the expected outputs."""

    kernel: Kernel
    inputs: tuple[torch.Tensor, ...]
    expected: Callable[..., tuple[torch.Tensor, ...]]
    tolerance: float = 0.0

    def outputs(self) -> tuple[torch.Tensor, ...]:
        """Returns uninitialized tensors for the outputs of the kernel."""
        return tuple(torch.empty_strided(b.shape, b.stride, dtype=b.dtype) for b in self.kernel.writes)

    def check(self, outputs: tuple[torch.Tensor, ...]) -> None:
        """Compares with torch: exactly, or within `tolerance` relative to the largest magnitude."""
        for got, want in zip(outputs, self.expected(*self.inputs), strict=True):
            assert got.dtype == want.dtype
            if self.tolerance == 0:
                assert torch.equal(got.isnan(), want.isnan())
                assert torch.equal(got[~got.isnan()], want[~want.isnan()])
            else:
                torch.testing.assert_close(got, want, rtol=self.tolerance, atol=self.tolerance, equal_nan=True)


def buffer(name: str, *shape: int, dtype: torch.dtype = F32) -> Buffer:
    return Buffer(name, shape, row_major(shape), dtype, CPU)


def at(*axes: Var | Index) -> Index:
    """Returns the row-major offset of an element."""
    shape = [a.extent if isinstance(a, Var) else a.bounds()[1] + 1 for a in axes]
    return flatten([as_index(a) for a in axes], row_major(shape))


def load(name: str, *axes: Var | Index, dtype: torch.dtype = F32) -> Load:
    return Load(name, (at(*axes),), dtype)


def op(name: str, *args: Expr, dtype: torch.dtype | None = None) -> Op:
    return Op(name, args, dtype or args[-1].dtype)


def const(value: float, dtype: torch.dtype = F32) -> Const:
    return Const(value, dtype)


def ref(name: str, dtype: torch.dtype = F32) -> Ref:
    return Ref(name, dtype)


def pointwise(name: str, reads: list[Buffer], writes: list[Buffer], rows: list[Var], *body: Statement) -> Kernel:
    return Kernel(name, tuple(reads), tuple(writes), tuple(rows), (Loop((), body),), rows[-1] if rows else None, CPU)


def chain(n: int) -> Case:
    """tanh(x) * sigmoid(y) + exp(-x * x)"""
    i = Var("y0", n)
    x, y = load("x", i), load("y", i)
    value = op("add", op("mul", op("tanh", x), op("sigmoid", y)), op("exp", op("mul", op("neg", x), x)))
    kernel = pointwise("chain", [buffer("x", n), buffer("y", n)], [buffer("out", n)], [i], Store("out", at(i), value))
    inputs = (torch.randn(n), torch.randn(n))
    return Case(kernel, inputs, lambda x, y: (torch.tanh(x) * torch.sigmoid(y) + torch.exp(-x * x),), 1e-6)


def exact(n: int) -> Case:
    """Arithmetic that must agree in every bit."""
    i = Var("y0", n)
    x, y = ref("a"), ref("b")
    value = op("sub", op("div", op("mul", x, y), op("add", op("abs", y), const(0.1))), op("sqrt", op("abs", x)))
    body = (Let("a", load("x", i)), Let("b", load("y", i)), Store("out", at(i), op("max", value, const(-0.5))))
    kernel = pointwise("exact", [buffer("x", n), buffer("y", n)], [buffer("out", n)], [i], *body)

    def expected(x, y):
        # torch's own square root, from a vector library, may be off by a unit; the rounded square root in double is
        # exact.
        root = x.abs().double().sqrt().float()
        return (torch.maximum(x * y / (y.abs() + 0.1) - root, torch.tensor(-0.5)),)

    x, y = torch.randn(n), torch.randn(n)
    x[1], y[2] = float("nan"), float("inf")
    return Case(kernel, (x, y), expected)


def half_chain(n: int, dtype: torch.dtype) -> Case:
    """relu(x + y) * 1.5 in a half type, rounded after every operation"""
    i = Var("y0", n)

    def up(e: Expr) -> Expr:
        return Cast(e, F32)

    total = Cast(op("add", up(load("x", i, dtype=dtype)), up(load("y", i, dtype=dtype))), dtype)
    scaled = Cast(op("mul", op("max", up(total), const(0.0)), const(1.5)), dtype)
    name = f"chain_{str(dtype)[6:]}"
    reads = [buffer("x", n, dtype=dtype), buffer("y", n, dtype=dtype)]
    kernel = pointwise(name, reads, [buffer("out", n, dtype=dtype)], [i], Store("out", at(i), scaled))
    inputs = (torch.randn(n).to(dtype), torch.randn(n).to(dtype))
    return Case(kernel, inputs, lambda x, y: (torch.relu(x + y) * 1.5,))


def integers(n: int, dtype: torch.dtype) -> Case:
    """Division, remainder, shifts and wrapping arithmetic."""
    i = Var("y0", n)
    x, y = load("x", i, dtype=dtype), load("y", i, dtype=dtype)
    values = {
        "div": op("floordiv", x, y),
        "rem": op("remainder", x, y),
        "mod": op("fmod", x, y),
        "trunc": op("truncdiv", x, y),
        "wrapped": op("add", op("mul", x, x), op("sub", x, y)),
        "bits": op("xor", op("and", x, y), op("not", x)),
        "power": op("pow", x, op("and", y, const(3, dtype))),
    }
    stores = [Store(name, at(i), value) for name, value in values.items()]
    reads = [buffer("x", n, dtype=dtype), buffer("y", n, dtype=dtype)]
    writes = [buffer(name, n, dtype=dtype) for name in values]
    kernel = pointwise(f"integers_{str(dtype)[6:]}", reads, writes, [i], *stores)
    low, high = (0, 100) if dtype is torch.uint8 else (-100, 100)
    x, y = torch.randint(low, high, (n,)).to(dtype), torch.randint(low, high, (n,)).to(dtype)
    y[y == 0] = 3

    def expected(x, y):
        return (
            torch.div(x, y, rounding_mode="floor"),
            torch.remainder(x, y),
            torch.fmod(x, y),
            torch.div(x, y, rounding_mode="trunc"),
            x * x + (x - y),
            (x & y) ^ ~x,
            x ** (y & 3),
        )

    return Case(kernel, (x, y), expected)


def bools(n: int) -> Case:
    """Comparisons, logic, where, casts, an index as a value."""
    i = Var("y0", n)
    x = load("x", i)
    positive = op("gt", x, const(0.0), dtype=BOOL)
    even = op("eq", op("remainder", IndexValue(as_index(i), I64), const(2, I64)), const(0, I64), dtype=BOOL)
    either = op("or", positive, op("not", even))
    picked = op("where", op("and", positive, even), x, const(-1.0))
    stores = [
        Store("flag", at(i), either),
        Store("out", at(i), picked),
        Store("number", at(i), Cast(op("mul", x, const(10.0)), I64)),
        Store("truth", at(i), Cast(x, BOOL)),
    ]
    writes = [buffer("flag", n, dtype=BOOL), buffer("out", n)]
    writes += [buffer("number", n, dtype=I64), buffer("truth", n, dtype=BOOL)]
    kernel = pointwise("bools", [buffer("x", n)], writes, [i], *stores)

    def expected(x):
        even = torch.arange(n) % 2 == 0
        out = torch.where((x > 0) & even, x, -1.0)
        return (x > 0) | ~even, out, (x * 10).long(), x.bool()

    x = torch.randn(n)
    x[3] = 0
    return Case(kernel, (x,), expected)


def masks(rows: int, cols: int) -> Case:
    """Saves the mask of relu for backward, computes backward from the mask, also with a column-major layout, and the
    loss."""
    r, c = Var("y0", rows), Var("y1", cols)
    zero = const(0.0)
    loss = op("log1p", op("exp", op("neg", op("abs", load("x", r, c)))))
    stores = [
        Store("saved", at(r, c), op("le", op("max", zero, load("x", r, c)), zero, dtype=BOOL)),
        Store(
            "gradient",
            at(r, c),
            op("where", load("mask", r, c, dtype=BOOL), zero, op("add", load("x", r, c), load("w", c))),
        ),
        Store("turned", at(r, c), op("where", load("mask", r, c, dtype=BOOL), zero, load("t", c, r))),
        Store("loss", at(r, c), loss),
    ]
    mask, turned = buffer("mask", rows, cols, dtype=BOOL), buffer("t", cols, rows)
    reads = [buffer("x", rows, cols), mask, buffer("w", cols), turned]
    made = [buffer(name, rows, cols) for name in ("gradient", "turned", "loss")]
    writes = [buffer("saved", rows, cols, dtype=BOOL), *made]
    kernel = pointwise("masks", reads, writes, [r, c], *stores)

    def expected(x, mask, w, t):
        loss = torch.nn.functional.softplus(-x.abs())
        return x <= 0, torch.where(mask, 0.0, x + w), torch.where(mask, 0.0, t.t()), loss

    inputs = (torch.randn(rows, cols), torch.rand(rows, cols) > 0.5, torch.randn(cols), torch.randn(cols, rows))
    return Case(kernel, inputs, expected, 1e-6)


def kept_bools(rows: int, cols: int) -> Case:
    """A condition that a later loop over the same row reads."""
    r, c = Var("y0", rows), Var("x0", cols)
    loops = (
        Loop((c,), (
            Let("m", op("gt", load("x", r, c), const(0.0), dtype=BOOL), kept=True),
            Accumulate("count", "sum", Cast(ref("m", BOOL), F32), F32),
        )),
        Loop((c,), (Store("out", at(r, c), op("where", ref("m", BOOL), ref("count"), load("x", r, c))),)),
    )  # fmt: skip
    kernel = Kernel("kept_bools", (buffer("x", rows, cols),), (buffer("out", rows, cols),), (r,), loops, c, CPU)

    def expected(x):
        return (torch.where(x > 0, (x > 0).float().sum(-1, keepdim=True), x),)

    return Case(kernel, (torch.randn(rows, cols),), expected)


def turned_rows(rows: int, cols: int) -> Case:
    """Two loops that select between values of a row that is strided in memory."""
    r, c = Var("y0", rows), Var("x0", cols)
    x = load("x", c, r)
    loops = (
        Loop((c,), (Accumulate("total", "sum", op("where", op("gt", x, const(0.0), dtype=BOOL), x, const(0.0)), F32),)),
        Loop((c,), (Store("out", at(r, c), op("where", op("gt", x, ref("total"), dtype=BOOL), x, ref("total"))),)),
    )
    kernel = Kernel("turned_rows", (buffer("x", cols, rows),), (buffer("out", rows, cols),), (r,), loops, c, CPU)

    def expected(x):
        total = x.relu().sum(0)
        return (torch.where(x > total, x, total).T,)

    return Case(kernel, (torch.randn(cols, rows),), expected, 1e-6)


def bools_of_columns(rows: int, cols: int) -> Case:
    """A condition per column, read by a loop over the rows."""
    c, r = Var("y0", cols), Var("x0", rows)
    x = Load("x", (as_index(r) * cols + as_index(c),), F32)
    loops = (
        Loop((r,), (Accumulate("total", "sum", x, F32),)),
        Loop((), (Let("m", op("gt", ref("total"), const(0.0), dtype=BOOL)),)),
        Loop((r,), (Accumulate("most", "max", op("where", ref("m", BOOL), x, op("neg", x)), F32),)),
        Loop((), (Store("out", at(c), ref("most")),)),
    )
    kernel = Kernel("bools_of_columns", (buffer("x", rows, cols),), (buffer("out", cols),), (c,), loops, c, CPU)

    def expected(x):
        return (torch.where(x.sum(0) > 0, x, -x).amax(0),)

    return Case(kernel, (torch.randn(rows, cols) + torch.randn(cols),), expected)


def softmax(rows: int, cols: int) -> Case:
    """Three loops over a row that keep the exponentials."""
    r, c = Var("y0", rows), Var("x0", cols)
    loops = (
        Loop((c,), (Accumulate("top", "max", load("x", r, c), F32),)),
        Loop((c,), (
            Let("e", op("exp", op("sub", load("x", r, c), ref("top"))), kept=True),
            Accumulate("total", "sum", ref("e"), F32),
        )),
        Loop((c,), (Store("out", at(r, c), op("div", ref("e"), ref("total"))),)),
    )  # fmt: skip
    kernel = Kernel("softmax", (buffer("x", rows, cols),), (buffer("out", rows, cols),), (r,), loops, c, CPU)
    return Case(kernel, (torch.randn(rows, cols),), lambda x: (x.softmax(-1),), 1e-6)


def columns(outer: int, rows: int, cols: int) -> Case:
    """Sums, extremes and positions over the middle dimension, and then a value of each column."""
    o, c, r = Var("y0", outer), Var("y1", cols), Var("x0", rows)
    x = Load("x", (as_index(o) * (rows * cols) + as_index(r) * cols + as_index(c),), F32)
    loops = (
        Loop((r,), (
            Accumulate("total", "sum", x, F32),
            Accumulate("top", "max", x, F32),
            Accumulate("where", "argmax", x, F32, as_index(r)),
            Accumulate("some", "any", op("gt", x, const(3.0), dtype=BOOL), BOOL),
        )),
        Loop((), (
            Let("mean", op("div", ref("total"), const(float(rows)))),
            Store("means", at(o, c), ref("mean")),
            Store("tops", at(o, c), ref("top")),
            Store("places", at(o, c), ref("where", I64)),
            Store("flags", at(o, c), ref("some", BOOL)),
        )),
        Loop((r,), (Accumulate("spread", "sum", op("abs", op("sub", x, ref("mean"))), F32),)),
        Loop((), (Store("spreads", at(o, c), ref("spread")),)),
    )  # fmt: skip
    writes = [buffer("means", outer, cols), buffer("tops", outer, cols), buffer("places", outer, cols, dtype=I64)]
    writes += [buffer("flags", outer, cols, dtype=BOOL), buffer("spreads", outer, cols)]
    kernel = Kernel("columns", (buffer("x", outer, rows, cols),), tuple(writes), (o, c), loops, c, CPU)

    def expected(x):
        spread = (x - x.mean(1, keepdim=True)).abs().sum(1)
        return x.mean(1), x.amax(1), x.argmax(1), (x > 3).any(1), spread

    x = torch.randn(outer, rows, cols)
    x[0, rows // 2, 0] = float("nan")
    return Case(kernel, (x,), expected, 2e-5)


def full(combine: str, n: int, dtype: torch.dtype = F32) -> Case:
    """A reduction of all elements, on a single row."""
    c = Var("x0", n)
    position = as_index(c) if combine.startswith("arg") else None
    result = I64 if position is not None else dtype
    loops = (
        Loop((c,), (Accumulate("r", combine, load("x", c, dtype=dtype), dtype, position),)),
        Loop((), (Store("out", Index(), ref("r", result)),)),
    )
    out = buffer("out", dtype=result)
    kernel = Kernel(f"{combine}_{str(dtype)[6:]}", (buffer("x", n, dtype=dtype),), (out,), (), loops, c, CPU)
    x = torch.randint(0, 3, (n,)).to(dtype) if not dtype.is_floating_point else torch.rand(n).to(dtype)
    functions = {"max": torch.amax, "min": torch.amin}
    function = functions.get(combine) or getattr(torch, combine)
    tolerance = 1e-6 if combine in ("sum", "prod") and dtype.is_floating_point else 0.0

    def expected(x):
        if combine == "sum" and dtype.is_floating_point:
            return (x.double().sum().to(dtype),)
        return (function(x).to(result),)

    return Case(kernel, (x,), expected, tolerance)


def embedding(count: int, words: int, width: int) -> Case:
    """out[i, j] = table[ids[i], j], checked"""
    i, j = Var("y0", count), Var("y1", width)
    word = op("check_index", load("ids", i, dtype=I64), const(words, I64))
    value = Load("table", (as_index(Lookup(word, words)) * width + as_index(j),), F32)
    reads = [buffer("ids", count, dtype=I64), buffer("table", words, width)]
    kernel = pointwise("embedding", reads, [buffer("out", count, width)], [i, j], Store("out", at(i, j), value))
    return Case(kernel, (torch.randint(0, words, (count,)), torch.randn(words, width)), lambda ids, t: (t[ids],))


def scalar() -> Case:
    """A kernel without dimensions."""
    kernel = pointwise(
        "scalar", [buffer("x")], [buffer("out")], [], Store("out", Index(), op("add", load("x"), const(2.0)))
    )
    return Case(kernel, (torch.tensor(1.5),), lambda x: (x + 2,))


def cases(size: int = 1) -> dict[str, Case]:
    """Returns all cases by name; `size` scales the larger cases."""
    made = [
        chain(5000 * size), exact(3000 * size), bools(1000), softmax(33, 100),
        columns(2, 300, 70), columns(1, 5, 700), embedding(50, 20, 33), scalar(),
        full("sum", 70_000 * size), full("max", 3000), full("min", 3000), full("prod", 30), full("argmax", 3000),
        full("argmin", 3000, torch.int32), full("any", 3000, BOOL), full("all", 3000, BOOL), full("sum", 3000, I64),
        full("sum", 0), full("any", 0, BOOL), full("all", 0, BOOL), full("max", 500, torch.int8),
        full("argmax", 400, BF16),
        half_chain(3000, BF16), half_chain(3000, F16),
        integers(1000, torch.int8), integers(1000, torch.uint8), integers(1000, torch.int32), integers(1000, I64),
        masks(30, 16), kept_bools(5, 300), bools_of_columns(40, 100), turned_rows(5, 7),
    ]  # fmt: skip
    return {f"{n}_{case.kernel.name}": case for n, case in enumerate(made)}
