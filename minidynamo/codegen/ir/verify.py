"""Owns the check that loop programs and kernels obey the rules of the IR. The check runs between stages.

Nothing is repaired: a violation is a bug in the stage before and raises InternalError.
"""

from __future__ import annotations

import torch

from minidynamo.codegen.ir.expr import HALF, OPS, Const, Expr, Load, Op, Ref, children, kind_of
from minidynamo.codegen.ir.index import Index, Var
from minidynamo.codegen.ir.loops import (
    COMBINES,
    Accumulate,
    Extern,
    GetItem,
    Kernel,
    Let,
    LoopProgram,
    Loops,
    Statement,
    Store,
    folded_dtype,
    names_in,
    numbers_in,
)
from minidynamo.codegen.ir.size import Extent, known_at_least, known_less
from minidynamo.codegen.ir.text import DTYPES, expr_text, kernel_text, loops_text
from minidynamo.errors import Diagnostic, InternalError


def _require(condition: bool, rule: str, where: Expr | Loops | Kernel | str) -> None:
    if condition:
        return
    match where:
        case Loops():
            text = loops_text(where)
        case Kernel():
            text = kernel_text(where)
        case str():
            text = where
        case _:
            text = expr_text(where)
    raise InternalError(Diagnostic("MD510", f"the loop IR breaks a rule: {rule}", why=text))


def verify_expr(expr: Expr) -> None:
    """Checks the operand types of an expression and of all expressions below it."""
    _require(expr.dtype in DTYPES, f"no kernel knows {expr.dtype}", expr)
    for child in children(expr):
        verify_expr(child)
    match expr:
        case Op():
            _verify_op(expr)
        case Load():
            _require(expr.valid is None or expr.valid.dtype == torch.bool, "a mask is a bool", expr)
        case Const():
            is_literal = isinstance(expr.value, {"b": bool, "i": int, "f": float}[kind_of(expr.dtype)])
            _require(is_literal, f"a literal of {expr.dtype} has its Python type", expr)


def _verify_op(expr: Op) -> None:
    info = OPS.get(expr.name)
    if info is None:
        _require(False, f"no operation is called {expr.name}", expr)
        return
    _require(len(expr.args) == info.arity, f"{expr.name} takes {info.arity} operands", expr)
    operands = expr.args
    if expr.name == "where":
        _require(expr.args[0].dtype == torch.bool, "the condition of where is a bool", expr)
        operands = expr.args[1:]
    dtype = operands[0].dtype
    _require(all(a.dtype == dtype for a in operands), f"the operands of {expr.name} have one dtype", expr)
    _require(kind_of(dtype) in info.kinds, f"{expr.name} does not take {dtype}", expr)
    _require(expr.name == "where" or dtype not in HALF, f"{expr.name} does not compute in {dtype}", expr)
    _require(
        expr.dtype == (torch.bool if info.result == "bool" else dtype), f"the result of {expr.name} has its dtype", expr
    )


def verify_program(program: LoopProgram) -> None:
    """Checks names, ranks, variables and dtypes of all nodes."""
    known = {*program.inputs, *program.constants, *(number.out for number in program.prelude)}
    for node in program.nodes:
        match node:
            case Loops():
                _verify_loops(node, program, known)
                known.add(node.out.name)
            case Extern():
                for name in names_in([*node.args, *(v for _, v in node.kwargs)]):
                    _require(name in known, f"{name} is used before its definition", str(node))
                known.add(node.out)
            case GetItem():
                _require(node.source in known, f"{node.source} is used before its definition", str(node))
                known.add(node.out)
    for name in names_in(program.outputs):
        _require(name in known, f"the output {name} is never defined", name)


def _verify_loops(node: Loops, program: LoopProgram, known: set[str]) -> None:
    verify_expr(node.body)
    axes = set(node.axes)
    _require(len(axes) == len(node.axes) and set(node.reduced) <= axes, "axes are distinct", node)
    _require((node.combine is None) == (not node.reduced and node.accumulate is None), "a reduction folds axes", node)
    _require(node.combine is None or node.combine in COMBINES, "the fold is known", node)
    _require(len(node.index) == len(node.out.shape), "the store has one coordinate per dimension", node)
    _require(all(i.variables() <= set(node.ranges) for i in node.index), "a store uses unreduced axes only", node)
    _require(node.body.variables() <= axes, "the body uses its own axes only", node)
    for load in node.body.loads:
        _require(load.buffer in known, f"{load.buffer} is read before it is written", node)
        buffer = program.buffers[load.buffer]
        _require(load.dtype == buffer.dtype, f"a load of {buffer.name} has its dtype", node)
        _require(len(load.index) == len(buffer.shape), "a load has one coordinate per dimension", node)
        if load.valid is None:
            for i, size in zip(load.index, buffer.shape):
                _require(_inside(i, size) or 0 in {v.extent for v in node.axes}, f"{i} stays below {size}", node)
    if node.combine is None:
        _require(node.body.dtype == node.out.dtype, "the value has the dtype of its buffer", node)


def _inside(index: Index, size: Extent) -> bool:
    """Returns whether an index stays inside a dimension: provably for ints; for symbolic sizes, True unless it provably
    leaves."""
    bounds = index.bounds()
    if bounds is None:
        return True
    low, high = bounds
    if isinstance(low, int) and isinstance(high, int) and isinstance(size, int):
        return low >= 0 and high < size
    return not known_less(low, 0) and not known_at_least(high - size, 0)


def verify_kernel(kernel: Kernel) -> None:
    """Checks scopes of names and variables, kept values, dtypes, and that each offset is inside its buffer."""
    row_names: dict[str, torch.dtype] = {}
    kept: dict[str, torch.dtype] = {}
    columns = {loop.axes for loop in kernel.loops if loop.axes}
    _require(len(columns) <= 1, "the loops of a kernel share their axes", kernel)
    _require(
        kernel.vector is None or kernel.vector in {*kernel.rows, *(v for c in columns for v in c)},
        "the vector variable is a row or a column",
        kernel,
    )
    for loop in kernel.loops:
        here = dict(row_names) | (kept if loop.axes else {})
        variables = {*kernel.rows, *loop.axes}
        after_loop: dict[str, torch.dtype] = {}
        for s in loop.body:
            _require(set(numbers_in(s)) <= set(kernel.numbers), "a kernel takes all numbers that it uses", kernel)
            _verify_statement(s, kernel, here, variables)
            match s:
                case Let():
                    here[s.name] = s.value.dtype
                    if not loop.axes:
                        after_loop[s.name] = s.value.dtype
                    elif s.kept:
                        _require(kernel.vector not in kernel.rows, "kept values are those of one row at a time", kernel)
                        kept[s.name] = s.value.dtype
                case Accumulate():
                    _require(bool(loop.axes), "a fold needs a loop", kernel)
                    after_loop[s.name] = folded_dtype(s.combine, s.dtype)
        row_names |= after_loop
    _verify_memory(kernel)


def _verify_statement(s: Statement, kernel: Kernel, here: dict[str, torch.dtype], variables: set[Var]) -> None:
    verify_expr(s.value)
    _require(s.value.variables() <= variables, "a statement uses variables in scope only", kernel)
    for e in s.value.below:
        if isinstance(e, Ref):
            _require(here.get(e.name) == e.dtype, f"{e.name} is not defined here as {e.dtype}", kernel)
    match s:
        case Let():
            _require(s.name not in here, f"{s.name} is named twice", kernel)
        case Accumulate():
            _require(s.value.dtype == s.dtype, "a fold has the dtype of its value", kernel)
        case Store():
            buffer = next((b for b in kernel.writes if b.name == s.buffer), None)
            _require(
                buffer is not None and buffer.dtype == s.value.dtype,
                f"a store to {s.buffer} has the dtype of this result",
                kernel,
            )


def _verify_memory(kernel: Kernel) -> None:
    buffers = {b.name: b for b in kernel.arguments}
    _require(len(buffers) == len(kernel.arguments), "arguments are distinct", kernel)
    written = {b.name for b in kernel.writes}
    stored: dict[str, set[Index]] = {}
    for loop in kernel.loops:
        is_empty = any(v.extent == 0 for v in (*kernel.rows, *loop.axes))
        stores = [s for s in loop.body if isinstance(s, Store)]
        for s in loop.body:
            for load in s.value.loads:
                is_argument = load.buffer in buffers and len(load.index) == 1
                _require(is_argument, f"a load of {load.buffer} has one offset into an argument", kernel)
                is_at_stores = stored.get(load.buffer, {*load.index}) == {*load.index}
                _require(is_at_stores, f"a loop reads {load.buffer} where an earlier loop has stored", kernel)
                fits = is_empty or load.valid is not None or _inside(load.index[0], buffers[load.buffer].span)
                _require(fits, f"{load.index[0]} stays inside {load.buffer}", kernel)
            if isinstance(s, Store):
                fits = is_empty or _inside(s.index, buffers[s.buffer].span)
                _require(fits, f"{s.index} stays inside {s.buffer}", kernel)
        for s in stores:
            stored.setdefault(s.buffer, set()).add(s.index)
    _require(stored.keys() == written, "writes are the buffers that are stored", kernel)
