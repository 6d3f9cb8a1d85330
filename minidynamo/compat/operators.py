"""Owns private names of torch's operators: their classes, schemas, and what torch computes with them.

What an operator means for a stage stands in that stage's tables.
"""

from __future__ import annotations

import operator
import types
import typing

import torch
import torch._decomp
import torch._prims_common

# Operators as FX graphs hold them; the last is the class of those that take functions, as torch's `cond` does.
OpOverload = torch._ops.OpOverload
OpOverloadPacket = torch._ops.OpOverloadPacket
HigherOrderOperator = torch._ops.HigherOrderOperator
higher_order_cond = torch.ops.higher_order.cond

# Namespaces whose functions compute tensors from tensors and nothing else.
OPERATOR_NAMESPACES = (
    torch._C._VariableFunctions,
    torch._C._nn,
    torch._C._fft,
    torch._C._linalg,
    torch._C._special,
)

# An assertion that torch.jit knows, what `torch._check` and its kin come down to, and `torch.jit.isinstance`.
torch_assert = torch._assert
torch_check_with = torch._check_with
scripted_isinstance = torch._jit_internal._isinstance

# Reads the number that a tensor holds.
READ_NUMBER = torch.ops.aten._local_scalar_dense.default

# The strides of an operation on elements, and whether channels come last, as eager decides them.
elementwise_strides = torch._prims_common.compute_elementwise_output_strides
suggest_memory_format = torch._prims_common.suggest_memory_format


def computed_dtype(*args: typing.Any) -> torch.dtype:
    """The dtype that an operation on elements has in common for its arguments, tensors and numbers."""
    default = torch._prims_common.ELEMENTWISE_TYPE_PROMOTION_KIND.DEFAULT
    return torch._prims_common.elementwise_dtypes(*args, type_promotion_kind=default)[1]


get_decompositions = torch._decomp.get_decompositions


def schema_of(op: typing.Any) -> typing.Any:
    """The schema of an operator overload: `name`, `arguments` and `returns` with their aliasing."""
    return op._schema


def definition_of(op: typing.Any) -> typing.Any:
    """What `torch.library.custom_op` has made for an operator: `backward` and `setup_context` are its derivative, if
    there is one; `casts` if autocast changes its arguments. None for an operator that was made in another way."""
    found = torch._library.custom_ops.OPDEFS.get(schema_of(op).name)
    if found is None or found._opoverload is not op:
        return None
    casts = any(value for name, value in vars(found).items() if name.startswith("_autocast_"))  # one, or one per device
    return types.SimpleNamespace(backward=found._backward_fn, setup_context=found._setup_context_fn, casts=casts)


def has_python_derivative(op: OpOverload) -> bool:
    """Whether autograd runs Python code for the operator: a registered formula, or a kernel for autograd."""
    return _has_python_kernel(op, ("Autograd", "AutogradCPU", "AutogradCUDA"))


def is_python_composite(op: OpOverload) -> bool:
    """Whether the operator is a Python function that calls other operators, which autograd and tracing see instead."""
    return _has_python_kernel(op, ("CompositeImplicitAutograd", ""))


def _has_python_kernel(op: OpOverload, keys: tuple[str, ...]) -> bool:
    namespace, _, name = schema_of(op).name.partition("::")
    if namespace in ("aten", "prims", "prim", "minidynamo"):
        return False
    named = f"{name}.{schema_of(op).overload_name or 'default'}"
    return any(f"{namespace}/{each}/{key}" in torch.library._impls for each in (name, named) for key in keys)


def formulas_of(op: OpOverload) -> tuple[typing.Any, str, str] | None:
    """The object that holds the registered derivative of an operator, and its attributes: the backward formula, and
    `setup_context`, which may be None. None if torch does not tell the formula."""
    found = torch._library.custom_ops.OPDEFS.get(schema_of(op).name)
    known = found is not None and found._opoverload is op and found._backward_fn is not None
    return (found, "_backward_fn", "_setup_context_fn") if known else None


def overload_of(definition: typing.Any) -> OpOverload:
    """The operator that `torch.library.custom_op` has made."""
    made: OpOverload = definition._opoverload
    return made


def form_without_data(op: typing.Any) -> typing.Callable[..., typing.Any] | None:
    """The function that tells what an operator gives for tensors without data, if it is one of Python's: it takes the
    mode of these, then the arguments."""
    found = torch._library.simple_registry.singleton._data.get(schema_of(op).name)
    kernel = None if found is None else found.fake_impl.kernel
    if kernel is None:
        return None

    def run(mode: typing.Any, *args: typing.Any, **kwargs: typing.Any) -> typing.Any:
        context = torch._library.fake_impl.FakeImplCtx(mode, op)
        with torch._library.fake_impl.set_ctx_getter(lambda: context), mode:
            return kernel(*args, **kwargs)

    return run


def operator_function(op: typing.Any) -> typing.Any:
    """What calling an ATen operator comes to, without the Python layer of `OpOverload`; other callables as they are."""
    return op._op if isinstance(op, OpOverload) else op


def called_by(node: torch.fx.Node) -> typing.Any:
    """The target of a call in an ATen graph, or what has to be called in its place inside a compiled forward."""
    wants_workspace = any(user.target is operator.getitem and user.args[1] == 3 for user in node.users)
    if node.target is torch.ops.aten.mkldnn_rnn_layer.default and wants_workspace:
        return recurrent_layer_for_training
    return node.target


def recurrent_layer_for_training(*args: typing.Any) -> typing.Any:
    """oneDNN's recurrent layer, which makes what backward needs only in the grad mode; autograd records nothing."""
    with torch._C._AutoDispatchBelowAutograd(), torch.enable_grad():
        return torch.ops.aten.mkldnn_rnn_layer.default(*args)
