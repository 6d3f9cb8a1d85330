"""Owns the table of scalar arguments: numbers taken by torch's functions that affect values, but no shape or structure.

torch takes such a number as a Python float, and would specialize a symbol. The tracer leaves a varying number in the
call, and the autograd stage computes the call as a whole (`autograd/trace/scalar_arguments.py`). Functions outside of
the table take constants, except user-defined operators, whose fake implementation shows the effect of their floats.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeVar

import torch
from torch.nn import functional

from minidynamo import compat
from minidynamo.compat import FUSED_UPDATES, OpOverload, OpOverloadPacket
from minidynamo.graph.autograd_calls import eager_operator

T = TypeVar("T")


@dataclass(frozen=True)
class ScalarArguments:
    """The scalar arguments of a function."""

    #: parameter names, in order, up to the last parameter of interest
    names: tuple[str, ...]
    #: name of a scalar argument -> template of the condition under which calls are the same program; "" for none
    numbers: Mapping[str, str]
    #: name -> constant that the argument must be
    fixed: Mapping[str, Any] = field(default_factory=dict)
    #: name -> constant that the argument must be on devices other than the CPU
    fixed_elsewhere: Mapping[str, Any] = field(default_factory=dict)
    #: whether an int and a float give different results together with tensors of integers
    keeps_ints: bool = False
    #: names of arguments that are scalar arguments only if they are floats and some tensor is complex
    complex_only: Collection[str] = ()
    #: names of arguments that accept no floats
    ints: Collection[str] = ()
    #: names of arguments that are scalar arguments only if the call is differentiated
    differentiated_only: Collection[str] = ()

    def named(self, args: Sequence[T], kwargs: Mapping[str, T]) -> dict[str, T]:
        """Returns the present arguments by name."""
        return {**dict(zip(self.names, args)), **kwargs}

    def varies(self, name: str, is_int: bool, tensors: Sequence[torch.Tensor]) -> bool:
        """Returns whether a number for this parameter may vary between calls, in a call with these tensors."""
        if name in self.complex_only:
            return not is_int and any(tensor.is_complex() for tensor in tensors)
        if name in self.differentiated_only:
            differentiated = torch.is_grad_enabled() and any(tensor.requires_grad for tensor in tensors)
            if not differentiated:
                return False
        if name not in self.numbers or not self.keeps_ints or not is_int:
            return name in self.numbers
        return bool(tensors) and all(tensor.is_floating_point() or tensor.is_complex() for tensor in tensors)


def scalar_arguments_of(function: Any) -> ScalarArguments | None:
    """Returns the entry of a function, or of the method with this name; None without an entry."""
    op = operator_of(function)
    if op is not None:
        return _of_operator(op)
    return _TABLE.get(function) if getattr(type(function), "__hash__", None) is not None else None


def operator_of(function: Any) -> OpOverload | None:
    """Returns the user-defined operator that a function is, or calls; None for torch's operators and ambiguous
    overloads.
    """
    function = eager_operator(function) or function
    if isinstance(function, OpOverloadPacket):
        overloads = function.overloads()
        function = getattr(function, overloads[0]) if len(overloads) == 1 else None
    if not isinstance(function, OpOverload) or function.namespace in ("aten", "prims", "prim", "minidynamo"):
        return None
    return function


def _of_operator(op: OpOverload) -> ScalarArguments | None:
    """Returns the entry of a user-defined operator: its float parameters. Each call must check that they affect values
    only.
    """
    schema, definition = compat.schema_of(op), compat.definition_of(op)
    if compat.fake_implementation_of(op) is None:
        return None
    if definition is None:  # without a definition, its derivative needs a second run
        refused = schema.is_mutable or torch.Tag.nondeterministic_seeded in op.tags
    else:
        refused = definition.casts
    floats = [arg.name for arg in schema.arguments if str(arg.type) in ("float", "Optional[float]", "List[float]")]
    return (
        None
        if refused or not floats
        else ScalarArguments(tuple(a.name for a in schema.arguments), dict.fromkeys(floats, ""))
    )


def forwards_arguments(function: Any) -> bool:
    """Returns whether a Python function of torch only passes numbers on to other functions."""
    return any(function is other for other in _FORWARDING)


def functions() -> list[Any]:
    """Lists the functions, and method names, with entries."""
    return [*_TABLE]


def run_whole(function: Callable[..., Any], key: str) -> None:
    """Marks a function of a graph that takes all numbers as scalar arguments. It writes nothing and draws no random
    numbers; functions with equal `key` compute the same.
    """
    vars(function)[_KEY] = key


def key_of_whole(function: Any) -> str | None:
    """Returns the key of a function that takes all numbers as scalar arguments; None for other functions."""
    return getattr(function, _KEY, None)


_KEY = "key_of_whole"
_FORWARDING = (functional.multi_head_attention_forward, functional.lp_pool1d, functional.lp_pool2d)
_TABLE: dict[Any, ScalarArguments] = {}


def _add(functions: Sequence[Callable[..., Any] | str], names: str, numbers: str, **facts: Any) -> None:
    conditions = facts.pop("conditions", {})
    made = ScalarArguments(tuple(names.split()), {name: conditions.get(name, "") for name in numbers.split()}, **facts)
    _TABLE.update(dict.fromkeys(functions, made))


# The range of ints that a float represents exactly.
_AS_FLOAT = "-(2**53) <= {0} <= 2**53"

DRAWS = ("bernoulli_", "normal_", "log_normal_", "uniform_", "exponential_", "cauchy_", "geometric_")
"""Methods that fill a tensor with random numbers."""

# Draws. If nothing or everything is dropped, the result is the argument itself, or no number is drawn.
_add(
    [
        *(functional.dropout, functional.dropout1d, functional.dropout2d, functional.dropout3d),
        *(functional.alpha_dropout, functional.feature_alpha_dropout),
        *(torch.dropout, torch.feature_dropout, torch.alpha_dropout, torch.feature_alpha_dropout),
        *(torch.dropout_, torch.feature_dropout_, torch.alpha_dropout_, torch.feature_alpha_dropout_),
        torch.native_dropout,
    ],
    "input p",
    "p",
    conditions={"p": "0 < {0} < 1"},
)
_add(["bernoulli_", "geometric_"], "self p", "p")
_add(["normal_", "log_normal_"], "self mean std", "mean std")
_add(["uniform_"], "self from to", "from to")
_add(["exponential_"], "self lambd", "lambd")
_add(["cauchy_"], "self median sigma", "median sigma")
_add([torch.bernoulli, "bernoulli"], "input p", "p")
_add([torch.normal], "mean std size", "mean std")
_add(["random_"], "self from to", "from to", ints=("from", "to"))
_add([torch.randint_like], "input low high", "low high", ints=("low", "high"))
_add([functional.rrelu, torch.rrelu, torch.rrelu_], "input lower upper training inplace", "lower upper")

# Normalization
_add(
    [functional.layer_norm, torch.layer_norm, torch.native_layer_norm],
    "input normalized_shape weight bias eps",
    "eps",
)
_add([functional.rms_norm, torch.rms_norm], "input normalized_shape weight eps", "eps")
_add([functional.group_norm, torch.group_norm], "input num_groups weight bias eps", "eps")
_add([functional.batch_norm], "input running_mean running_var weight bias training momentum eps", "momentum eps")
_add(
    [functional.instance_norm],
    "input running_mean running_var weight bias use_input_stats momentum eps",
    "momentum eps",
)
_add(
    [torch.batch_norm, torch.native_batch_norm],
    "input weight bias running_mean running_var training momentum eps cudnn_enabled",
    "momentum eps",
)
_add(
    [torch.instance_norm],
    "input weight bias running_mean running_var use_input_stats momentum eps cudnn_enabled",
    "momentum eps",
)
_add([torch.native_group_norm], "input weight bias N C HxW group eps", "eps")
_add([functional.local_response_norm], "input size alpha beta k", "alpha beta k")

# Losses and distances
_add([functional.huber_loss], "input target reduction delta", "delta")
_add([functional.smooth_l1_loss], "input target size_average reduce reduction beta", "beta")
_add(
    [functional.cross_entropy],
    "input target weight size_average ignore_index reduce reduction label_smoothing",
    "label_smoothing",
)
_add([functional.margin_ranking_loss, torch.margin_ranking_loss], "input1 input2 target margin", "margin")
_add([functional.cosine_embedding_loss, torch.cosine_embedding_loss], "input1 input2 target margin", "margin")
_add([functional.hinge_embedding_loss, torch.hinge_embedding_loss], "input target margin", "margin")
_add([functional.multi_margin_loss], "input target p margin", "margin")
_add(
    [functional.triplet_margin_loss, torch.triplet_margin_loss],
    "anchor positive negative margin p eps",
    "margin p eps",
)
_add([functional.poisson_nll_loss], "input target log_input full size_average eps", "eps")
_add([torch.poisson_nll_loss], "input target log_input full eps", "eps")
_add([functional.pairwise_distance, torch.pairwise_distance], "x1 x2 p eps", "p eps")
_add([torch.cdist], "x1 x2 p", "p")
_add([functional.pdist, torch.pdist], "input p", "p")
_add([torch.dist, "dist"], "input other p", "p")
_add([torch.norm, "norm", functional.normalize], "input p", "p")
_add([torch.linalg.vector_norm], "x ord", "ord")
_add([functional.cosine_similarity, torch.cosine_similarity], "x1 x2 dim eps", "eps")

# Tables
_add([functional.embedding], "input weight padding_idx max_norm norm_type", "max_norm norm_type")
_add([functional.embedding_bag], "input weight offsets max_norm norm_type", "max_norm norm_type")

# Attention
_add(
    [functional.scaled_dot_product_attention],
    "query key value attn_mask dropout_p is_causal scale",
    "dropout_p scale",
    conditions={"dropout_p": "0 < {0} < 1"},
    fixed_elsewhere={"dropout_p": 0.0},
)

# Pointwise operations
_add([functional.pad], "input pad mode value", "value")
_add([functional.celu, torch.celu, torch.celu_], "input alpha inplace", "alpha")
_add([functional.hardtanh, functional.hardtanh_], "input min_val max_val inplace", "min_val max_val")
_add([functional.softshrink, functional.hardshrink, torch.hardshrink], "input lambd", "lambd")
_add(
    [torch.sub, torch.subtract, torch.rsub, "sub", "sub_"],
    "input other alpha",
    "input other alpha",
    keeps_ints=True,
    complex_only=("input", "other"),
)
_add(
    [
        *(torch.pow, "pow", "pow_", operator.pow, operator.ipow),
        *(torch.floor_divide, "floor_divide", "floor_divide_", operator.floordiv, operator.ifloordiv),
    ],
    "input exponent",
    "input exponent",
    keeps_ints=True,
)
_add(
    [
        *(torch.mul, torch.multiply, torch.div, torch.divide, torch.true_divide),
        *("mul", "multiply", "div", "divide", "true_divide", "mul_", "div_"),
        *(operator.add, operator.sub, operator.mul, operator.truediv),
        *(operator.iadd, operator.isub, operator.imul, operator.itruediv),
    ],
    "input other",
    "input other",
    complex_only=("input", "other"),
)
_add(
    [torch.add, "add", "add_"],
    "input other alpha",
    "input other alpha",
    keeps_ints=True,
    complex_only=("input", "other"),
    differentiated_only=("alpha",),
)
_add([torch.remainder, operator.mod], "input other", "input", keeps_ints=True)
_add([torch.float_power, "float_power"], "input exponent", "input exponent")
_add([torch.lerp, "lerp", "lerp_"], "input end weight", "weight")
_add([torch.xlogy, torch.special.xlogy, "xlogy", "xlogy_", torch.special.xlog1py], "input other", "input other")
_add([torch.polygamma, torch.special.polygamma], "n input", "n", conditions={"n": _AS_FLOAT}, ints=("n",))
_add(["polygamma"], "input n", "n", conditions={"n": _AS_FLOAT}, ints=("n",))
_add(
    [torch.mvlgamma, torch.special.multigammaln, "mvlgamma"],
    "input p",
    "p",
    conditions={"p": _AS_FLOAT},
    ints=("p",),
)
_add([torch.nan_to_num, torch.nan_to_num_, "nan_to_num", "nan_to_num_"], "input nan posinf neginf", "nan posinf neginf")
_add([torch.logit, torch.logit_, torch.special.logit, "logit", "logit_"], "input eps", "eps")
_add([torch.isclose, "isclose"], "input other rtol atol", "rtol atol")
_add(
    [torch.fake_quantize_per_tensor_affine],
    "input scale zero_point quant_min quant_max",
    "scale zero_point quant_min quant_max",
    conditions=dict.fromkeys(("zero_point", "quant_min", "quant_max"), _AS_FLOAT),
    ints=("zero_point", "quant_min", "quant_max"),
)
_add(
    [torch.round, torch.round_, "round", "round_"],
    "input decimals",
    "decimals",
    conditions={"decimals": _AS_FLOAT},
    ints=("decimals",),
)
_add(
    [functional.avg_pool2d, functional.avg_pool3d],
    "input kernel_size stride padding ceil_mode count_include_pad divisor_override",
    "divisor_override",
    conditions={"divisor_override": f"{_AS_FLOAT} and {{0}} != 0"},
    ints=("divisor_override",),
)

# Products, sums and solutions
_add([torch.addmm, "addmm", "addmm_"], "input mat1 mat2 beta alpha", "beta alpha", keeps_ints=True)
_add([torch.addmv, "addmv", "addmv_"], "input mat vec beta alpha", "beta alpha", keeps_ints=True)
_add([torch.addr, "addr", "addr_"], "input vec1 vec2 beta alpha", "beta alpha", keeps_ints=True)
_add(
    [torch.addbmm, "addbmm", "addbmm_", torch.baddbmm, "baddbmm", "baddbmm_"],
    "input batch1 batch2 beta alpha",
    "beta alpha",
    keeps_ints=True,
)
_add([torch.index_add, "index_add", "index_add_"], "input dim index source alpha", "alpha", keeps_ints=True)
_add([torch.renorm, "renorm", "renorm_"], "input p dim maxnorm", "p maxnorm")
_add(
    [torch.linalg.matrix_power, torch.matrix_power, "matrix_power"],
    "A n",
    "n",
    conditions={"n": _AS_FLOAT},
    ints=("n",),
)
_add([torch.trapezoid, torch.trapz, torch.cumulative_trapezoid], "y x dx", "dx", keeps_ints=True)
_add([torch.linalg.pinv], "A rcond hermitian atol rtol", "rcond atol rtol")
_add([torch.linalg.matrix_rank], "A tol hermitian atol rtol", "tol atol rtol")
_add([torch.pinverse, "pinverse"], "input rcond", "rcond")
_add([torch.histc, "histc"], "input bins min max", "min max")
_add([torch.histogram, "histogram", torch.histogramdd], "input bins range", "range")

# Reductions
_add(
    [torch.std, torch.var, torch.std_mean, torch.var_mean, "std", "var"],
    "input dim unbiased keepdim correction",
    "correction",
)
_add([torch.quantile, torch.nanquantile, "quantile", "nanquantile"], "input q", "q")

# Constructors
_add([torch.logspace], "start end steps base", "base")
_add([torch.hamming_window], "window_length periodic alpha beta", "alpha beta", fixed={"requires_grad": False})
_add([torch.kaiser_window], "window_length periodic beta", "beta", fixed={"requires_grad": False})

# Whole updates of optimizers
for _update in FUSED_UPDATES:
    _add([_update], "self", "beta1 beta2 weight_decay eps momentum dampening lr_decay")
