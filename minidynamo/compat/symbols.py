"""Owns private names of symbolic sizes, and rules of operators that torch's own do not fit.

What the stages do with sizes that vary is theirs; here a symbol is made, printed and asked.
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import importlib
import types
import typing

import torch

from minidynamo.compat.operators import OpOverload

# Symbolic sizes: what stands for a number that is only known when a graph runs.
SYMBOLIC_NUMBERS = (torch.SymInt, torch.SymFloat, torch.SymBool)


_COMPOSITE = torch._C.DispatchKey.CompositeImplicitAutograd
_WAYS = (_COMPOSITE, torch._C.DispatchKey.CPU, torch._C.DispatchKey.CUDA)  # with a kernel, autograd knows the whole
_NOTES_VIEWS = torch._C.DispatchKey.ADInplaceOrView


def constant_of(number: typing.Any) -> int | float | bool | None:
    """What a symbolic number has turned out to be; None while that is only known when a graph runs."""
    kind = "int" if isinstance(number, torch.SymInt) else "float" if isinstance(number, torch.SymFloat) else "bool"
    found: int | float | bool | None = getattr(number.node, f"maybe_as_{kind}")()
    return found


def expression_of(number: typing.Any) -> typing.Any:
    """The expression of a symbolic number as it was made, whatever its symbols have turned out to be."""
    return number.node._expr


def is_sure(condition: bool | torch.SymBool) -> bool:
    """Whether a condition on sizes holds, which is guarded then as its opposite is; False where nobody knows yet."""
    if isinstance(condition, bool):
        return condition
    return bool(importlib.import_module("torch.fx.experimental.symbolic_shapes").guard_or_false(condition))


@functools.cache
def is_composite(op: OpOverload) -> bool:
    """Whether an operation that returns tensors consists of others: autograd knows those, and not the whole."""
    if not any("Tensor" in str(returned.type) for returned in op._schema.returns):
        return False
    in_parts, *kernels = (torch._C._dispatch_has_kernel_for_dispatch_key(op.name(), key) for key in _WAYS)
    return in_parts and not any(kernels)


@contextlib.contextmanager
def noting_views() -> typing.Iterator[None]:
    """A context in which views know what they are views of, below autograd too: torch gets there with an operation that
    it hands over whole, whose parts would not note it any more."""
    excluded = torch._C._dispatch_tls_is_dispatch_key_excluded(_NOTES_VIEWS)
    torch._C._dispatch_tls_set_dispatch_key_excluded(_NOTES_VIEWS, False)
    try:
        yield
    finally:
        torch._C._dispatch_tls_set_dispatch_key_excluded(_NOTES_VIEWS, excluded)


def in_parts(op: OpOverload) -> typing.Callable[..., typing.Any]:
    """What runs an operation that consists of others as torch's C++ does."""
    return functools.partial(op._op_dk, _COMPOSITE)


_RULE_KEYS = (torch._C.DispatchKey.Autograd, _COMPOSITE)


@contextlib.contextmanager
def python_dispatcher() -> typing.Iterator[None]:
    """A context in which operations on symbolic sizes take torch's rules in Python, which can compute with them.

    Those are left out that give a new tensor where the operation itself gives its argument (what is written to the
    result has to reach the argument, too), and those that compute in another order than the operation or leave its
    dropout out. The operation's own C++ can compute with symbolic sizes, but for `_lstm`.
    """
    entered = importlib.import_module("torch._dispatch.python").enable_python_dispatcher()
    kept = [(op, op.py_kernels, op._dispatch_cache) for op in _OWN_RULES]
    for op, rules in _with_own_rules():
        op.py_kernels, op._dispatch_cache = rules, {}
    try:
        with entered:
            yield
    finally:
        for op, rules, cache in kept:
            op.py_kernels, op._dispatch_cache = rules, cache


@functools.cache
def _with_own_rules() -> list[tuple[OpOverload, dict[typing.Any, typing.Any]]]:
    """The operators that have a rule of their own, each with all its rules; found out once, since it is asked often."""
    found = []
    for op, rule in _OWN_RULES.items():
        others = {key: other for key, other in op.py_kernels.items() if key not in _RULE_KEYS}
        found.append((op, others if rule is None else others | dict.fromkeys(_RULE_KEYS, rule)))
    return found


def _lstm(*args: typing.Any) -> typing.Any:
    """A long short-term memory: what oneDNN computes in eager, layer by layer, since the C++ in front of its kernel
    takes no symbolic sizes; all else by the operation's own C++."""
    x, hidden, weights, biased, layers, dropout, trains, both_ways, batch_first = args
    if not _by_onednn(x, hidden, weights):
        enabled = torch._C._get_mkldnn_enabled()
        torch._C._set_mkldnn_enabled(False)  # else the C++ asks how many elements there are, to come to the same end
        try:
            return torch.ops.aten.lstm.input._op_dk(torch._C.DispatchKey.CompositeImplicitAutograd, *args)
        finally:
            torch._C._set_mkldnn_enabled(enabled)
    x = (x.transpose(0, 1) if batch_first else x).contiguous()
    hx, cx = (state.contiguous() for state in hidden)
    per_layer, ways = 4 if biased else 2, 2 if both_ways else 1
    states = []
    for layer in range(layers):
        made = []
        for way in range(ways):
            i = layer * ways + way
            given = weights[i * per_layer : (i + 1) * per_layer]
            biases = given[2:] or [w.new_zeros(w.shape) for w in given]
            tensors = (x, *given[:2], *biases, hx[i], cx[i])
            y, *state, _ = torch.ops.aten.mkldnn_rnn_layer(
                *tensors, way > 0, [], 2, hx.shape[2], layers, biased, both_ways, batch_first, trains
            )
            made.append(y)
            states.append(state)
        x = torch.cat(made, -1) if both_ways else made[0]
        if dropout != 0 and trains and layer < layers - 1:
            x = torch.dropout(x, dropout, True)
    return x.transpose(0, 1) if batch_first else x, *(torch.stack(state) for state in zip(*states))


def _by_onednn(x: torch.Tensor, hidden: typing.Sequence[torch.Tensor], weights: typing.Sequence[torch.Tensor]) -> bool:
    """Whether eager has a long short-term memory computed by oneDNN."""
    if not torch.backends.mkldnn.enabled or any(t.device.type != "cpu" for t in (x, *hidden, *weights)):
        return False
    if hidden[0].shape[2] != hidden[1].shape[2] or x.numel() == 0:  # projections
        return False
    if x.dtype == torch.float16:
        return not torch.is_grad_enabled() and bool(torch.ops.mkldnn._is_mkldnn_fp16_supported())
    return x.dtype == torch.float32 or (x.dtype == torch.bfloat16 and torch.ops.mkldnn._is_mkldnn_bf16_supported())


def _interpolated(op: OpOverload, x: torch.Tensor, sizes: typing.Any, *given: typing.Any) -> typing.Any:
    """An interpolation to `sizes`, or by the factors that are the last thing `given`: as torch's C++ has it, which asks
    what the sizes are where there are factors."""
    *flags, factors = given
    if factors is not None and sizes is None:
        sizes = [torch.sym_int(size * factor) for size, factor in zip(x.shape[2:], factors)]
    return op(x, sizes, *flags, *(factors or [None] * (x.dim() - 2)))


_INTERPOLATIONS = """
    upsample_linear1d upsample_bilinear2d upsample_trilinear3d upsample_bicubic2d
    upsample_nearest1d upsample_nearest2d upsample_nearest3d
    _upsample_nearest_exact1d _upsample_nearest_exact2d _upsample_nearest_exact3d
    _upsample_bilinear2d_aa _upsample_bicubic2d_aa
"""
INTERPOLATIONS = [getattr(torch.ops.aten, name) for name in _INTERPOLATIONS.split()]
"""What resizes images."""

# The rule that stands in for torch's own; without one, the operation's C++ computes with symbolic sizes. Of those that
# torch's own would take apart, `minidynamo/fake/meta_functions.py` knows what their derivatives are as large as.
_OWN_RULES: dict[OpOverload, typing.Callable[..., typing.Any] | None] = {
    torch.ops.aten.dropout.default: None,
    torch.ops.aten.gru.input: None,
    torch.ops.aten.rnn_tanh.input: None,
    torch.ops.aten.rnn_relu.input: None,
    torch.ops.aten.lstm.input: _lstm,
    torch.ops.aten.hardshrink.default: None,
    torch.ops.aten.softshrink.default: None,
    torch.ops.aten.multi_margin_loss.default: None,
    torch.ops.aten.multilabel_margin_loss_forward.default: None,
    **{op.vec: functools.partial(_interpolated, op.default) for op in INTERPOLATIONS},
    **{op.default: None for op in INTERPOLATIONS},
}


@functools.cache
def symbolic() -> types.SimpleNamespace:
    """What makes and prints symbols, imported when the first one is needed, since that takes a while.

    A `ShapeEnv` makes symbols, decides conditions on them and keeps what it decided; `DimDynamic` says how. They are
    named by a hash of the text of a `NamedSource`. `text(expr)` is an expression as a template of Python, with `{0}`,
    `{1}`, ... for the symbols, which are given, too. `follows(env, expr)` tells whether the ranges of the symbols
    answer a condition.
    """
    shapes = importlib.import_module("torch.fx.experimental.symbolic_shapes")
    printers = importlib.import_module("torch.utils._sympy.printers")
    guards = importlib.import_module("torch._guards")
    sympy = importlib.import_module("sympy")

    class Printer(printers.PythonPrinter):  # type: ignore[name-defined]
        def __init__(self) -> None:
            super().__init__()
            self.symbols: list[typing.Any] = []

        def _print_Symbol(self, expr: typing.Any) -> str:
            if expr not in self.symbols:
                self.symbols.append(expr)
            return f"{{{self.symbols.index(expr)}}}"

    def text(expr: typing.Any) -> tuple[str, list[typing.Any]]:
        printer = Printer()
        return printer.doprint(expr), printer.symbols

    def follows(env: typing.Any, expr: typing.Any) -> bool:
        return env._maybe_evaluate_static(expr, axioms=()) is not None

    @dataclasses.dataclass(frozen=True)
    class NamedSource(guards.Source):  # type: ignore[name-defined]
        text: str

        def name(self) -> str:
            return self.text

    if isinstance(vars(guards.Source).get("name"), property | functools.cached_property):
        NamedSource.name = property(NamedSource.name)  # type: ignore[method-assign, assignment]
    return types.SimpleNamespace(
        ShapeEnv=shapes.ShapeEnv,
        DimDynamic=shapes.DimDynamic,
        NamedSource=NamedSource,
        Integer=sympy.Integer,
        Symbol=sympy.Symbol,
        true=sympy.true,
        text=text,
        follows=follows,
        Eq=sympy.Eq,
    )
