"""Owns private names of torch's operators: their classes, schemas, and torch's computations with them.

Each stage's tables define the meaning of an operator for the stage.
"""

from __future__ import annotations

import operator
import types
import typing

import torch
import torch._decomp
import torch._prims_common

# Operators as FX graphs hold them; HigherOrderOperator is the class of operators on functions, such as torch's `cond`.
OpOverload = torch._ops.OpOverload
OpOverloadPacket = torch._ops.OpOverloadPacket
HigherOrderOperator = torch._ops.HigherOrderOperator
higher_order_cond = torch.ops.higher_order.cond

# Namespaces whose functions only compute tensors from tensors.
OPERATOR_NAMESPACES = (
    torch._C._VariableFunctions,
    torch._C._nn,
    torch._C._fft,
    torch._C._linalg,
    torch._C._special,
)

# Namespaces of the operators that come with torch, and do the same in every process.
SHIPPED_NAMESPACES = frozenset({"aten", "prims", "prim", "quantized", "mkldnn", "profiler"})

# An assertion that torch.jit knows, the functions that `torch._check` and its variants call, `torch.jit.isinstance`.
torch_assert = torch._assert
torch_check_with = torch._check_with
torch_check_tensor_all_with = torch._check_tensor_all_with
scripted_isinstance = torch._jit_internal._isinstance

# Reads the number in a tensor of one element.
READ_NUMBER = torch.ops.aten._local_scalar_dense.default

# The strides of an elementwise operation, and whether channels come last, as eager decides them.
elementwise_strides = torch._prims_common.compute_elementwise_output_strides
suggest_memory_format = torch._prims_common.suggest_memory_format


def computed_dtype(*args: typing.Any) -> torch.dtype:
    """Returns the common dtype in which an elementwise operation computes, from tensors and numbers."""
    default = torch._prims_common.ELEMENTWISE_TYPE_PROMOTION_KIND.DEFAULT
    return torch._prims_common.elementwise_dtypes(*args, type_promotion_kind=default)[1]


get_decompositions = torch._decomp.get_decompositions


def schema_of(op: typing.Any) -> typing.Any:
    """Returns the schema of an operator overload: `name`, `arguments` and `returns` with their aliasing."""
    return op._schema


def definition_of(op: typing.Any) -> typing.Any:
    """Returns the definition of an operator by `torch.library.custom_op`: `backward` and `setup_context` are its
    derivative, or None; `casts` is True if autocast changes its arguments. None for other operators.
    """
    definition = torch._library.custom_ops.OPDEFS.get(schema_of(op).name)
    if definition is None or definition._opoverload is not op:
        return None
    # Either a single dtype, or a dtype per device.
    casts = any(value for name, value in vars(definition).items() if name.startswith("_autocast_"))
    return types.SimpleNamespace(
        backward=definition._backward_fn, setup_context=definition._setup_context_fn, casts=casts
    )


def has_python_derivative(op: OpOverload) -> bool:
    """Returns whether autograd runs Python code for the operator: a registered formula, or an autograd kernel."""
    return _has_python_kernel(op, ("Autograd", "AutogradCPU", "AutogradCUDA"))


def is_python_composite(op: OpOverload) -> bool:
    """Returns whether the operator is a Python function that calls other operators, seen by autograd and tracing
    instead.
    """
    return _has_python_kernel(op, ("CompositeImplicitAutograd", ""))


def _has_python_kernel(op: OpOverload, keys: tuple[str, ...]) -> bool:
    namespace, _, name = schema_of(op).name.partition("::")
    if namespace in ("aten", "prims", "prim", "minidynamo"):
        return False
    named = f"{name}.{schema_of(op).overload_name or 'default'}"
    return any(f"{namespace}/{each}/{key}" in torch.library._impls for each in (name, named) for key in keys)


def formulas_of(op: OpOverload) -> tuple[typing.Any, str, str] | None:
    """Returns the object with the registered derivative of an operator, and the attribute names: the backward formula,
    and `setup_context`, which may be None. Returns None if torch does not expose the formula.
    """
    definition = torch._library.custom_ops.OPDEFS.get(schema_of(op).name)
    known = definition is not None and definition._opoverload is op and definition._backward_fn is not None
    return (definition, "_backward_fn", "_setup_context_fn") if known else None


def overload_of(definition: typing.Any) -> OpOverload:
    """Returns the operator made by `torch.library.custom_op`."""
    overload: OpOverload = definition._opoverload
    return overload


def fake_implementation_of(op: typing.Any) -> typing.Callable[..., typing.Any] | None:
    """Returns the operator's Python implementation for tensors without data, if any: it takes the fake mode, then the
    arguments.
    """
    entry = torch._library.simple_registry.singleton._data.get(schema_of(op).name)
    kernel = None if entry is None else entry.fake_impl.kernel
    if kernel is None:
        return None

    def run(mode: typing.Any, *args: typing.Any, **kwargs: typing.Any) -> typing.Any:
        context = torch._library.fake_impl.FakeImplCtx(mode, op)
        with torch._library.fake_impl.set_ctx_getter(lambda: context), mode:
            return kernel(*args, **kwargs)

    return run


_PYTHON_FUNCTIONS = {
    f"aten.{name}.default": getattr(namespace, name)
    for namespace, names in (
        (
            torch._C._VariableFunctions,
            (
                *("mm", "addmm", "bmm", "baddbmm", "mv", "addmv", "dot", "convolution"),
                *("_scaled_dot_product_flash_attention_for_cpu", "_scaled_dot_product_efficient_attention"),
                *("native_batch_norm", "native_group_norm", "native_layer_norm", "_softmax", "_log_softmax"),
                *("cat", "clone", "constant_pad_nd", "cumsum", "embedding", "gather", "index_select"),
                *("scatter_add", "sort", "topk"),
            ),
        ),
        (torch._C._nn, ("max_pool2d_with_indices",)),
    )
    for name in names
}
"""Name of an operator -> its function in torch's Python API. The function reads its arguments without the JIT's boxed
values: it is 0.5 to 1 us cheaper, and 5 us for a convolution. Functions that return numbers as tensors, or refuse None
among tensors, are left out."""


def operator_function(op: typing.Any) -> typing.Any:
    """Returns the cheapest function of an ATen operator; other callables unchanged."""
    if not isinstance(op, OpOverload):
        return op
    return _PYTHON_FUNCTIONS.get(str(op)) or op._op


def runtime_target(node: torch.fx.Node) -> typing.Any:
    """Returns the target of a call in an ATen graph, or its replacement inside a compiled forward."""
    reads_workspace = any(user.target is operator.getitem and user.args[1] == 3 for user in node.users)
    if node.target is torch.ops.aten.mkldnn_rnn_layer.default and reads_workspace:
        return recurrent_layer_for_training
    return node.target


def recurrent_layer_for_training(*args: typing.Any) -> typing.Any:
    """Runs oneDNN's recurrent layer, which only computes backward's data in grad mode; autograd records nothing."""
    with torch._C._AutoDispatchBelowAutograd(), torch.enable_grad():
        return torch.ops.aten.mkldnn_rnn_layer.default(*args)
