"""Every row of the table of operations, printed by both printers and compared with torch."""

import pytest
import torch

from minidynamo.codegen.ir.expr import OPS, Cast, Load, Op
from minidynamo.codegen.ir.index import Var
from minidynamo.codegen.ir.loops import Kernel, Store
from minidynamo.codegen.printers import cpp, cpp_expressions, triton
from minidynamo.codegen.runtime import library, triton_launch
from tests.codegen.printers import printer_cases as cases

N = 500
SPECIAL = torch.special

FLOATS = {
    "add": torch.add, "sub": torch.sub, "mul": torch.mul, "div": torch.div,
    "floordiv": torch.floor_divide, "truncdiv": lambda a, b: torch.div(a, b, rounding_mode="trunc"),
    "remainder": torch.remainder, "fmod": torch.fmod, "neg": torch.neg, "abs": torch.abs, "sign": torch.sign,
    "min": torch.minimum, "max": torch.maximum, "fma": lambda a, b, c: (a.double() * b + c).to(a.dtype),
    "floor": torch.floor, "ceil": torch.ceil, "trunc": torch.trunc, "round": torch.round, "sqrt": torch.sqrt,
    "rsqrt": torch.rsqrt, "reciprocal": torch.reciprocal, "exp": torch.exp, "exp2": torch.exp2, "expm1": torch.expm1,
    "log": torch.log, "log2": torch.log2, "log10": torch.log10, "log1p": torch.log1p, "sin": torch.sin,
    "cos": torch.cos, "tan": torch.tan, "asin": torch.asin, "acos": torch.acos, "atan": torch.atan,
    "sinh": torch.sinh, "cosh": torch.cosh, "tanh": torch.tanh, "asinh": torch.asinh, "acosh": torch.acosh,
    "atanh": torch.atanh, "atan2": torch.atan2, "hypot": torch.hypot, "copysign": torch.copysign, "erf": torch.erf,
    "erfc": torch.erfc, "lgamma": torch.lgamma, "sigmoid": torch.sigmoid, "pow": torch.pow, "isnan": torch.isnan,
    "isinf": torch.isinf, "eq": torch.eq, "ne": torch.ne, "lt": torch.lt, "le": torch.le, "gt": torch.gt,
    "ge": torch.ge, "where": torch.where,
}  # fmt: skip

INTEGERS = {
    "add": torch.add, "sub": torch.sub, "mul": torch.mul, "floordiv": torch.floor_divide,
    "truncdiv": lambda a, b: torch.div(a, b, rounding_mode="trunc"), "remainder": torch.remainder, "fmod": torch.fmod,
    "neg": torch.neg, "abs": torch.abs, "sign": torch.sign, "min": torch.minimum, "max": torch.maximum,
    "pow": lambda a, b: torch.pow(a, b.abs()), "eq": torch.eq, "ne": torch.ne, "lt": torch.lt, "le": torch.le,
    "gt": torch.gt, "ge": torch.ge, "and": torch.bitwise_and, "or": torch.bitwise_or, "xor": torch.bitwise_xor,
    "not": torch.bitwise_not, "shl": torch.bitwise_left_shift, "shr": torch.bitwise_right_shift, "where": torch.where,
}  # fmt: skip

BOOLS = {
    "min": torch.minimum, "max": torch.maximum, "eq": torch.eq, "ne": torch.ne, "lt": torch.lt, "le": torch.le,
    "gt": torch.gt, "ge": torch.ge, "and": torch.bitwise_and, "or": torch.bitwise_or, "xor": torch.bitwise_xor,
    "not": torch.bitwise_not, "where": torch.where,
}  # fmt: skip

TABLES = {
    torch.float32: FLOATS,
    torch.float64: FLOATS,
    torch.int8: INTEGERS,
    torch.int32: INTEGERS,
    torch.int64: INTEGERS,
    torch.uint8: INTEGERS,
    torch.bool: BOOLS,
}


def test_both_printers_spell_every_operation():
    assert set(cpp_expressions.OPERATIONS) == set(OPS)
    assert set(triton.OPERATIONS) == set(OPS)


def test_the_tests_below_know_every_operation():
    tested = {"f": set(FLOATS), "i": set(INTEGERS), "b": set(BOOLS)}
    for name, info in OPS.items():
        for kind in info.kinds:
            # Tests of checks are where their failures can be seen.
            assert name in tested[kind] or name.startswith("check_"), (name, kind)


def kernel_of(dtype: torch.dtype) -> Kernel:
    """Builds a kernel with one store per operation."""
    i = Var("y0", N)
    operands = [Load(name, (cases.at(i),), dtype) for name in ("a", "b", "c")]
    stores, writes = [], []
    for name in TABLES[dtype]:
        args = list(operands[: OPS[name].arity])
        if name == "where":
            args = [Cast(operands[2], torch.bool), operands[0], operands[1]]
        if name == "pow" and not dtype.is_floating_point:
            args[1] = Op("abs", (args[1],), dtype)
        result = torch.bool if OPS[name].result == "bool" else dtype
        stores.append(Store(f"out_{name}", cases.at(i), Op(name, tuple(args), result)))
        writes.append(cases.buffer(f"out_{name}", N, dtype=result))
    reads = [cases.buffer(name, N, dtype=dtype) for name in ("a", "b", "c")]
    return cases.pointwise(f"all_{str(dtype)[6:]}", reads, writes, [i], *stores)


def inputs_of(dtype: torch.dtype) -> list[torch.Tensor]:
    if dtype is torch.bool:
        return [torch.rand(N) > 0.5 for _ in range(3)]
    if not dtype.is_floating_point:
        low = 0 if dtype is torch.uint8 else -12
        made = [torch.randint(low, 13, (N,)).to(dtype) for _ in range(3)]
        made[0][: N // 2] += 0 if low else 200
        made[1][made[1] == 0] = 5
        return made
    made = [torch.randn(N, dtype=dtype) * scale for scale in (1, 2, 3)]
    made[0][:6] = torch.tensor([0.0, -0.0, float("inf"), float("-inf"), float("nan"), 2.5])
    made[1][6:10] = torch.tensor([float("nan"), float("inf"), 0.0, -0.0])
    return made


def compare(dtype: torch.dtype, inputs: list[torch.Tensor], outputs: dict[str, torch.Tensor]) -> None:
    wrong = []
    for name, function in TABLES[dtype].items():
        args = inputs[: OPS[name].arity]
        if name == "where":
            args = [inputs[2].bool(), inputs[0], inputs[1]]
        want = function(*args)
        if name in ("shl", "shr"):  # torch does not define shifts by negative counts
            inside = inputs[1] >= 0
            outputs[f"out_{name}"], want = outputs[f"out_{name}"][inside], want[inside]
        try:
            tolerance = 2e-6 if dtype is torch.float32 else 1e-13
            torch.testing.assert_close(
                outputs[f"out_{name}"], want, rtol=tolerance, atol=tolerance if dtype.is_floating_point else 0,
                equal_nan=True,
            )  # fmt: skip
        except AssertionError as error:
            wrong.append(f"{name}: {error}")
    assert not wrong, "\n".join(wrong)


def empty_outputs(kernel: Kernel) -> dict[str, torch.Tensor]:
    return {b.name: torch.empty(b.shape, dtype=b.dtype) for b in kernel.writes}


@pytest.mark.cpp
@pytest.mark.parametrize("dtype", TABLES, ids=str)
def test_operations_in_cpp(dtype):
    kernel, inputs = kernel_of(dtype), inputs_of(dtype)
    outputs = empty_outputs(kernel)
    entry = library.load(cpp.print_kernels([kernel]), [cpp.entry_name(kernel)])[cpp.entry_name(kernel)]
    entry(*inputs, *outputs.values())
    compare(dtype, inputs, outputs)


# Compiling all kernels for three GPUs takes half a minute in double precision.
SLOW = [pytest.param(t, marks=pytest.mark.slow) if t is torch.float64 else t for t in TABLES]


@pytest.mark.parametrize("dtype", SLOW, ids=str)
def test_operations_in_triton(dtype):
    kernel, inputs = kernel_of(dtype), inputs_of(dtype)
    outputs = empty_outputs(kernel)
    source, spec = triton.print_kernels([kernel]), triton.launch_spec(kernel)
    triton_launch.launchers(source, [spec], interpret=True)[kernel.name](*inputs, *outputs.values())
    compare(dtype, inputs, outputs)
