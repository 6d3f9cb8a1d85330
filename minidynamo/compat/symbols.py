"""Owns private names of symbolic sizes, and replacements for torch's Python rules of some operators.

Creates, prints and queries symbols; the stages decide how to use varying sizes.
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

# Symbolic sizes: placeholders for numbers that are only known when a graph runs.
SYMBOLIC_NUMBERS = (torch.SymInt, torch.SymFloat, torch.SymBool)


_COMPOSITE = torch._C.DispatchKey.CompositeImplicitAutograd
# with any further kernel, autograd treats the operation as a whole
_KERNEL_KEYS = (_COMPOSITE, torch._C.DispatchKey.CPU, torch._C.DispatchKey.CUDA)
_RECORDS_VIEWS = torch._C.DispatchKey.ADInplaceOrView


def constant_of(number: typing.Any) -> int | float | bool | None:
    """Returns the value of a symbolic number that has become constant; None if it is only known when a graph runs."""
    kind = "int" if isinstance(number, torch.SymInt) else "float" if isinstance(number, torch.SymFloat) else "bool"
    found: int | float | bool | None = getattr(number.node, f"maybe_as_{kind}")()
    return found


def expression_of(number: typing.Any) -> typing.Any:
    """Returns the original expression of a symbolic number, without later replacements of its symbols."""
    return number.node._expr


def are_same(one: int | torch.SymInt, other: int | torch.SymInt) -> bool:
    """Returns whether two sizes are the same expression, without a decision."""
    if isinstance(one, int) or isinstance(other, int):
        return type(one) is type(other) and one == other
    return bool(one.node.expr == other.node.expr)


def forget_short_forms(env: typing.Any) -> None:
    """Forgets which expressions have equal, shorter ones, after guards were removed from a ShapeEnv of `symbolic`."""
    getattr(env, "short_forms", {}).clear()


def is_sure(condition: bool | torch.SymBool) -> bool:
    """Returns whether a condition on sizes holds, and guards the answer; False, without a guard, if it is undecided."""
    if isinstance(condition, bool):
        return condition
    return bool(importlib.import_module("torch.fx.experimental.symbolic_shapes").guard_or_false(condition))


@functools.cache
def is_composite(op: OpOverload) -> bool:
    """Returns whether an operation that returns tensors is a composite: autograd sees its component operations
    instead.
    """
    if not any("Tensor" in str(returned.type) for returned in op._schema.returns):
        return False
    as_composite, *as_whole = (torch._C._dispatch_has_kernel_for_dispatch_key(op.name(), key) for key in _KERNEL_KEYS)
    return as_composite and not any(as_whole)


@contextlib.contextmanager
def recording_views() -> typing.Iterator[None]:
    """Makes views record their bases below autograd, too: torch runs some composites there as a whole, and the
    component operations would not record bases otherwise.
    """
    excluded = torch._C._dispatch_tls_is_dispatch_key_excluded(_RECORDS_VIEWS)
    torch._C._dispatch_tls_set_dispatch_key_excluded(_RECORDS_VIEWS, False)
    try:
        yield
    finally:
        torch._C._dispatch_tls_set_dispatch_key_excluded(_RECORDS_VIEWS, excluded)


def composite_function(op: OpOverload) -> typing.Callable[..., typing.Any]:
    """Returns a function that runs a composite operation as torch's C++ does."""
    return functools.partial(op._op_dk, _COMPOSITE)


_RULE_KEYS = (torch._C.DispatchKey.Autograd, _COMPOSITE)


@contextlib.contextmanager
def python_dispatcher() -> typing.Iterator[None]:
    """Enables torch's Python rules for operations on symbolic sizes, which can compute with symbols.

    Excluded are rules that return a new tensor where the operation returns its argument (a write to the result must
    change the argument), and rules that compute in another order or omit dropout. The C++ of excluded operations
    accepts symbolic sizes, except for LSTM (`_lstm`).
    """
    entered = importlib.import_module("torch._dispatch.python").enable_python_dispatcher()
    own_kernels = [(op, op.py_kernels, op._dispatch_cache) for op in _OWN_RULES]
    for op, rules in _with_own_rules():
        op.py_kernels, op._dispatch_cache = rules, {}
    try:
        with entered:
            yield
    finally:
        for op, rules, cache in own_kernels:
            op.py_kernels, op._dispatch_cache = rules, cache


@functools.cache
def _with_own_rules() -> list[tuple[OpOverload, dict[typing.Any, typing.Any]]]:
    """Lists the operators with replaced rules, each with all its rules; cached, since it is used often."""
    found = []
    for op, rule in _OWN_RULES.items():
        others = {key: other for key, other in op.py_kernels.items() if key not in _RULE_KEYS}
        found.append((op, others if rule is None else others | dict.fromkeys(_RULE_KEYS, rule)))
    return found


def add_rule(op: OpOverload, rule: typing.Callable[..., typing.Any]) -> None:
    """Replaces torch's Python rule of an operator, by a function with the operator's arguments."""
    _OWN_RULES[op] = rule
    _with_own_rules.cache_clear()


def _lstm(*args: typing.Any) -> typing.Any:
    """Computes an LSTM: where eager uses oneDNN, layer by layer with the oneDNN operator, since the C++ before its
    kernel accepts no symbolic sizes; else by the operation's own C++.
    """
    x, hidden, weights, biased, layers, dropout, trains, both_ways, batch_first = args
    if not is_onednn_lstm(x, hidden, weights):
        enabled = torch._C._get_mkldnn_enabled()
        # Otherwise the C++ reads the number of elements, to reach the same decision.
        torch._C._set_mkldnn_enabled(False)
        try:
            return torch.ops.aten.lstm.input._op_dk(torch._C.DispatchKey.CompositeImplicitAutograd, *args)
        finally:
            torch._C._set_mkldnn_enabled(enabled)
    x = (x.transpose(0, 1) if batch_first else x).contiguous()
    hx, cx = (state.contiguous() for state in hidden)
    per_layer, directions = 4 if biased else 2, 2 if both_ways else 1
    states = []
    for layer in range(layers):
        outputs = []
        for direction in range(directions):
            i = layer * directions + direction
            parameters = weights[i * per_layer : (i + 1) * per_layer]
            biases = parameters[2:] or [w.new_zeros(w.shape) for w in parameters]
            tensors = (x, *parameters[:2], *biases, hx[i], cx[i])
            y, *state, _ = torch.ops.aten.mkldnn_rnn_layer(
                *tensors, direction > 0, [], 2, hx.shape[2], layers, biased, both_ways, batch_first, trains
            )
            outputs.append(y)
            states.append(state)
        x = torch.cat(outputs, -1) if both_ways else outputs[0]
        if dropout != 0 and trains and layer < layers - 1:
            x = torch.dropout(x, dropout, True)
    return x.transpose(0, 1) if batch_first else x, *(torch.stack(state) for state in zip(*states))


def is_onednn_lstm(
    x: torch.Tensor, hidden: typing.Sequence[torch.Tensor], weights: typing.Sequence[torch.Tensor]
) -> bool:
    """Returns whether eager computes an LSTM by oneDNN."""
    if not torch.backends.mkldnn.enabled or any(t.device.type != "cpu" for t in (x, *hidden, *weights)):
        return False
    if hidden[0].shape[2] != hidden[1].shape[2] or x.numel() == 0:  # an LSTM with projections
        return False
    if x.dtype == torch.float16:
        return not torch.is_grad_enabled() and bool(torch.ops.mkldnn._is_mkldnn_fp16_supported())
    return x.dtype == torch.float32 or (x.dtype == torch.bfloat16 and torch.ops.mkldnn._is_mkldnn_bf16_supported())


def _interpolated(op: OpOverload, x: torch.Tensor, sizes: typing.Any, *options: typing.Any) -> typing.Any:
    """Interpolates to `sizes`, or by the factors at the end of `options`: like torch's C++, which specializes the sizes
    if factors are present.
    """
    *flags, factors = options
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
"""The operators that resize images."""

# Replacements for torch's Python rules; None leaves symbolic sizes to the operation's C++. Where torch's rules would
# decompose an operation, `minidynamo/fake/meta_functions.py` has the shapes of its derivative.
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


def _shape_env(base: type, sympy: typing.Any, is_unbacked: typing.Callable[[typing.Any], bool]) -> type:
    """Returns a subclass of torch's ShapeEnv whose sizes stay short.

    A size that is guarded to equal a shorter expression is named by the shorter one: for several pictures of varying
    sizes, the sum of their patches is the size of the tensor that holds the patches.
    """

    class ShapeEnv(base):
        def __init__(self, **settings: typing.Any) -> None:
            # Expression -> a shorter one that is guarded to be equal.
            self.short_forms: dict[typing.Any, typing.Any] = {}
            super().__init__(**settings)

        def _set_replacement(self, symbol: typing.Any, value: typing.Any, *args: typing.Any) -> None:
            if len(value.free_symbols) < 2 or is_unbacked(symbol):
                super()._set_replacement(symbol, value, *args)

        def _maybe_guard_rel(self, expr: typing.Any) -> None:
            super()._maybe_guard_rel(expr)
            if isinstance(expr, sympy.Eq) and not any(map(is_unbacked, expr.free_symbols)):
                sides = map(self.replace, expr.args)
                short, long = sorted(sides, key=lambda side: (not side.is_number, len(str(side))))
                if not (long.is_Symbol or long.is_number) and long != short:
                    self.short_forms[long] = short
                    if hasattr(self, "_replacements_version_counter"):  # newer torch keeps expressions of sizes
                        self._replacements_version_counter += 1
                    self._update_version_counter()

        def replace(self, expr: typing.Any) -> typing.Any:
            replaced = super().replace(expr)
            short = self.short_forms.get(replaced)
            return replaced if short is None else super().replace(short)

        def _maybe_fast_eval_comparison(self, expr: typing.Any) -> typing.Any:
            answer = super()._maybe_fast_eval_comparison(expr)
            if answer is None and isinstance(expr, sympy.Rel):
                bounds = self.bound_sympy(expr)  # much faster than torch's next step, which expands sums
                answer = bounds.lower if bounds.is_singleton() else None
            return answer

    return ShapeEnv


@functools.cache
def symbolic() -> types.SimpleNamespace:
    """Returns the functions and classes for symbols; imported on first use, since the import is slow.

    - `ShapeEnv` creates symbols, decides conditions on symbols and records the decisions; `DimDynamic` selects how.
    - Symbol names are hashes of the text of a `NamedSource`.
    - `text(expr)` returns an expression as a Python template, with `{0}`, `{1}`, ... for the symbols, and the symbols.
    - `is_unbacked(symbol)` returns whether a symbol has no known value.
    - `follows(env, expr)` returns whether the ranges of the symbols decide a condition.
    - `load_frame_filter()` imports the modules whose frames torch leaves out of the stacks of guards.
    """
    shapes = importlib.import_module("torch.fx.experimental.symbolic_shapes")
    printers = importlib.import_module("torch.utils._sympy.printers")
    guards = importlib.import_module("torch._guards")
    symbols = importlib.import_module("torch.utils._sympy.symbol")
    sympy = importlib.import_module("sympy")

    unbacked = symbols.SymT.UNBACKED_INT, symbols.SymT.UNBACKED_FLOAT

    def is_unbacked(symbol: typing.Any) -> bool:
        return bool(symbols.symbol_is_type(symbol, unbacked))

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
        ShapeEnv=_shape_env(shapes.ShapeEnv, sympy, is_unbacked),
        DimDynamic=shapes.DimDynamic,
        NamedSource=NamedSource,
        Integer=sympy.Integer,
        Symbol=sympy.Symbol,
        true=sympy.true,
        text=text,
        follows=follows,
        is_unbacked=is_unbacked,
        Eq=sympy.Eq,
        load_frame_filter=shapes.uninteresting_files,
    )
