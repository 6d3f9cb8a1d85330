"""Owns the text form of expressions, loops and kernels, for readers, logs and golden files.

The text is never parsed, and no printer uses it.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

import torch

from minidynamo.codegen.ir.expr import Cast, Const, Expr, IndexValue, Load, Op, Ref, Scalar
from minidynamo.codegen.ir.index import Index, Lookup, Var
from minidynamo.codegen.ir.loops import (
    Accumulate,
    Buffer,
    Extern,
    GetItem,
    Kernel,
    Let,
    Loop,
    LoopProgram,
    Loops,
    Name,
    Node,
    Origins,
    Statement,
    Store,
    comments,
)
from minidynamo.codegen.ir.size import Extent, parenthesized

DTYPES = {
    torch.float32: "f32",
    torch.float64: "f64",
    torch.float16: "f16",
    torch.bfloat16: "bf16",
    torch.int8: "i8",
    torch.int16: "i16",
    torch.int32: "i32",
    torch.int64: "i64",
    torch.uint8: "u8",
    torch.bool: "bool",
}
"""Short names of the element types that kernels support."""

INFIX = {
    "add": "+", "sub": "-", "mul": "*", "div": "/", "eq": "==", "ne": "!=", "lt": "<", "le": "<=", "gt": ">",
    "ge": ">=", "and": "&", "or": "|", "xor": "^", "shl": "<<", "shr": ">>",
}  # fmt: skip


def dtype_text(dtype: torch.dtype) -> str:
    """Returns the short name of a dtype, or torch's name if kernels do not support the dtype."""
    return DTYPES.get(dtype, str(dtype).removeprefix("torch."))


def expr_text(expr: Expr) -> str:
    """Returns an expression on one line."""
    match expr:
        case Load():
            text = f"{expr.buffer}[{', '.join(map(index_text, expr.index))}]"
            return text if expr.valid is None else f"({text} if {expr_text(expr.valid)} else 0)"
        case Const():
            return repr(expr.value)
        case IndexValue():
            return f"{dtype_text(expr.dtype)}({index_text(expr.index)})"
        case Cast():
            return f"{dtype_text(expr.dtype)}({expr_text(expr.value)})"
        case Ref() | Scalar():
            return expr.name
        case Op():
            args = [expr_text(a) for a in expr.args]
            if expr.name in INFIX and len(args) == 2:
                return f"({args[0]} {INFIX[expr.name]} {args[1]})"
            return f"{expr.name}({', '.join(args)})"


def index_text(index: Index) -> str:
    """Returns an index, with lookups in the notation of `expr_text`."""
    if index.is_linear():
        return str(index)
    parts = []
    for atom, c in index.terms:
        match atom:
            case Var():
                text = atom.name
            case Lookup():
                text = expr_text(atom.value)
            case _:
                sign, by = ("//", atom.divisor) if hasattr(atom, "divisor") else ("%", atom.modulus)
                text = f"({index_text(atom.base)} {sign} {parenthesized(by)})"
        parts.append(text if c == 1 else f"{parenthesized(c)}*{text}")
    if index.const:
        parts.append(str(index.const))
    return " + ".join(parts).replace("+ -", "- ")


def buffer_text(buffer: Buffer) -> str:
    """Returns name, dtype and sizes of a buffer, with strides unless they are row-major."""
    text = f"{buffer.name}: {dtype_text(buffer.dtype)}[{', '.join(map(str, buffer.shape))}]"
    dense = True
    step: Extent = 1
    for size, stride in zip(reversed(buffer.shape), reversed(buffer.stride)):
        dense = dense and (size in (0, 1) or stride == step)
        step = step * size
    return text if dense else f"{text} strides ({', '.join(map(str, buffer.stride))})"


def loops_text(node: Loops) -> str:
    """Returns a loop nest on two lines."""
    head = ", ".join(f"{v.name} < {v.extent}" for v in node.axes)
    value = expr_text(node.body)
    if node.combine is not None:
        over = ", ".join(v.name for v in node.reduced)
        at = "" if node.position is None else f" at {index_text(node.position)}"
        value = f"{node.combine} over {over} of {value}{at}"
    target = f"{node.out.name}[{', '.join(map(index_text, node.index))}]"
    return f"for {head}:  # {buffer_text(node.out)}\n  {target} = {value}"


def argument_text(value: Any) -> str:
    """Returns an argument of an extern call."""
    if isinstance(value, (tuple, list)):
        return f"[{', '.join(map(argument_text, value))}]"
    return value.name if isinstance(value, Name) else str(value)


def node_text(node: Node) -> str:
    """Returns a node of a loop program."""
    match node:
        case Loops():
            return loops_text(node)
        case GetItem():
            return f"{node.out} = {node.source}[{node.index}]"
        case Extern():
            args = [argument_text(a) for a in node.args]
            args += [f"{key}={argument_text(a)}" for key, a in node.kwargs]
            return f"{node.out} = {node.op}({', '.join(args)})"


def program_text(program: LoopProgram) -> str:
    """Returns a whole loop program."""
    inputs = [buffer_text(program.buffers[n]) if n in program.buffers else n for n in program.inputs]
    rows = [f"inputs {', '.join(inputs)}", *_commented((node.origins, node_text(node)) for node in program.nodes)]
    return "\n".join([*rows, f"return {argument_text(program.outputs)}"]) + "\n"


def _commented(parts: Iterable[tuple[Origins, str]]) -> Iterator[str]:
    """Yields the parts, each after the user's lines that it comes from; lines equal to those of the part before are
    left out."""
    last_comments: tuple[str, ...] = ()
    for origins, text in parts:
        texts = comments(origins)
        if texts and texts != last_comments:
            yield from (f"# {line}" for line in texts)
            last_comments = texts
        yield text


def _statement_text(s: Statement) -> str:
    match s:
        case Let():
            return f"{s.name} = {expr_text(s.value)}{'  # kept' if s.kept else ''}"
        case Accumulate():
            at = "" if s.position is None else f" at {index_text(s.position)}"
            return f"{s.name} = {s.combine}({expr_text(s.value)}){at}"
        case Store():
            return f"{s.buffer}[{index_text(s.index)}] = {expr_text(s.value)}"


def _for(axes: Iterable[Var], vector: Var | None) -> str:
    marks = [f"{v.name} < {v.extent}{' (vector)' if v == vector else ''}" for v in axes]
    return f"for {', '.join(marks)}:"


def _loop_lines(loop: Loop, vector: Var | None) -> list[str]:
    lines = list(_commented((s.origins, _statement_text(s)) for s in loop.body))
    return [_for(loop.axes, vector), *("  " + line for line in lines)] if loop.axes else lines


def kernel_text(kernel: Kernel) -> str:
    """Returns a whole kernel."""
    reads = ", ".join(map(buffer_text, kernel.reads))
    writes = ", ".join(map(buffer_text, kernel.writes))
    lines = [line for loop in kernel.loops for line in _loop_lines(loop, kernel.vector)]
    if kernel.rows:
        lines = [_for(kernel.rows, kernel.vector), *("  " + line for line in lines)]
    numbers = "".join(f"; {number}" for number in kernel.numbers)
    return "\n".join([f"kernel {kernel.name}({reads}{numbers}) -> {writes}", *("  " + line for line in lines)]) + "\n"
