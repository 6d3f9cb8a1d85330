"""Owns the removal of unused graph nodes: a node is removed only if running it can change nothing else; and the
question whether a node runs code of the user.

An operation stays, used or not, if it writes to a tensor, draws random numbers, is not torch's own, or could raise an
error that depends on the values of tensors. Dead code of the loop IR is not here."""

from __future__ import annotations

import functools
import operator
import types

import torch
import torch.fx

from minidynamo.compat import OPERATOR_NAMESPACES, OpOverload, OpOverloadPacket
from minidynamo.graph.marks import FROM_DATA, ONLY_COMPUTES, RAISES
from minidynamo.graph.pytree import leaves
from minidynamo.graph.torch_settings import is_switch

# Operations that draw random numbers or update statistics, although their schema does not say so.
_IMPURE_WORDS = ("rand", "dropout", "rrelu", "bernoulli", "multinomial", "normal", "poisson", "binomial", "norm")
_IMPURE_NAMES = {"scaled_dot_product_attention", "lstm", "gru", "rnn_tanh", "rnn_relu"}

# Operations, besides torch's pointwise operations and reductions, whose errors depend on shapes and types alone: fake
# tensors have raised those already.
_SAFE_NAMES = """
    absolute addbmm addmm addmv addr adjoint arange arccos arccosh arcsin arcsinh arctan arctan2 arctanh argsort
    as_tensor bartlett_window bfloat16 blackman_window bmm bool broadcast_to bucketize byte cat char chunk
    column_stack complex concat concatenate conj constant_pad_nd contiguous conv1d conv2d conv3d cpu cuda cummax
    cummin cumprod cumsum cumulative_trapezoid detach diag diag_embed diagflat diagonal diagonal_scatter diff dim
    dist dot double dsplit dstack einsum empty empty_like empty_strided expand expand_as eye fix flatten flip fliplr
    flipud float full full_like ger glu greater greater_equal half hamming_window hann_window hardswish hsplit
    hstack inner int is_grad_enabled isclose isin isreal kaiser_window kron kthvalue less less_equal linear linspace
    log_softmax logcumsumexp logsigmoid logspace long matmul median mm mode moveaxis movedim msort multiply mv
    nanmean nanmedian narrow narrow_copy negative new_empty new_empty_strided new_full new_ones new_zeros not_equal
    numel ones ones_like outer permute polar prelu ravel repeat reshape reshape_as resolve_conj resolve_neg roll
    rot90 row_stack select select_scatter shape short size slice slice_scatter softmax softsign sort split
    split_with_sizes squeeze stack stride sum_to_size swapaxes swapdims t tanhshrink tensor threshold tile to topk
    trace transpose trapezoid tril tril_indices triu triu_indices type type_as unbind unflatten unfold unsafe_chunk
    unsafe_split unsqueeze vdot view view_as_complex view_as_real vsplit vstack zeros zeros_like
"""
_CANNOT_RAISE = frozenset(_SAFE_NAMES.split())
# More operations without errors that depend on data. Unused calls stay nevertheless: they warn, write, or draw.
_KEPT_NAMES = """
    adaptive_avg_pool1d adaptive_avg_pool2d adaptive_avg_pool3d adaptive_max_pool1d adaptive_max_pool1d_with_indices
    adaptive_max_pool2d adaptive_max_pool2d_with_indices adaptive_max_pool3d adaptive_max_pool3d_with_indices
    affine_grid alpha_dropout avg_pool1d avg_pool2d avg_pool3d baddbmm batch_norm bilinear
    binary_cross_entropy_with_logits cauchy channel_shuffle clone conv_transpose1d conv_transpose2d conv_transpose3d
    convolution copy corrcoef cosine_embedding_loss cosine_similarity cov cross dropout dropout1d dropout2d dropout3d
    elu exponential feature_alpha_dropout fill fold geometric grid_sample group_norm gru gumbel_softmax
    hinge_embedding_loss huber_loss instance_norm interpolate kl_div l1_loss layer_norm local_response_norm
    log_normal lp_pool1d lp_pool2d lp_pool3d lstm margin_ranking_loss max_pool1d max_pool1d_with_indices max_pool2d
    max_pool2d_with_indices max_pool3d max_pool3d_with_indices mse_loss multi_head_attention_forward
    multilabel_soft_margin_loss native_batch_norm native_dropout native_group_norm native_layer_norm normal
    normalize pad pairwise_distance pdist pixel_shuffle pixel_unshuffle poisson_nll_loss rand rand_like randint
    randn randn_like random randperm relu rms_norm scaled_dot_product_attention
    scaled_dot_product_flash_attention_for_cpu smooth_l1_loss soft_margin_loss softmin softplus stft to_copy
    triplet_margin_loss uniform unsafe_view upsample upsample_bilinear upsample_nearest view_as zero
"""
_KEPT = frozenset(_KEPT_NAMES.split())
# Parts of names of operations for whose errors the program waits on any device.
_SYNCHRONOUS_ERRORS = ("linalg", "cholesky", "eig", "geqrf", "inverse", "lstsq", "lu_", "qr", "solve", "svd")
# Operations that raise for some values of integers and bools: division by zero, subtraction of bools.
_INTEGER_NAMES = "div divide divmod floor_divide floordiv fmod gcd lcm mod pow remainder rsub sub subtract"
_RAISE_ON_INTEGERS = frozenset(_INTEGER_NAMES.split())
# Python's operators of assignments, such as `ifloordiv`; each computes the same as the operator without the "i".
_IN_PLACE = frozenset(name for name in dir(operator) if name[0] == "i" and hasattr(operator, name[1:]))

aten = torch.ops.aten
assert_async = aten._assert_async.msg
"""The operator of runtime asserts. It asserts at once for a CPU tensor."""

FORMULA = "__minidynamo_formula__"
"""The mark of functions that call a part of a backward: autograd's formula of a node, or an ATen operator."""

PYTHON_NAMESPACES = ("torch.functional", "torch.nn.functional")
"""Modules whose functions in Python compute tensors from tensors."""


def remove_dead_code(graph: torch.fx.Graph) -> None:
    """Erases unused pure nodes, last first, and switches of settings if no other call is left."""
    for node in reversed(list(graph.nodes)):
        if not node.users and is_pure(node):
            graph.erase_node(node)
    calls = [node for node in graph.nodes if node.op in ("call_function", "call_method")]
    if all(is_switch(node.target) for node in calls):
        for node in calls:
            graph.erase_node(node)


def is_pure(node: torch.fx.Node) -> bool:
    """Returns whether removing the node changes nothing but its own result."""
    if node.meta.get("mutates") or "out" in node.kwargs:
        return False
    if FROM_DATA in node.meta:
        return bool(node.meta[FROM_DATA] != RAISES)
    if node.op not in ("call_function", "call_method") or is_switch(node.target):
        return False
    name = name_called(node)
    if getattr(operator, name, None) is node.target:
        return _operator_cannot_raise(name, node)
    is_torch_operator = node.op == "call_method" or is_torch_function(node.target)
    return is_torch_operator and _cannot_raise(name, node) and has_no_effect(name)


def may_raise(node: torch.fx.Node) -> bool:
    """Returns whether running a node may raise an error that depends on data, which fake tensors have not raised."""
    if node.op not in ("call_function", "call_method") or is_switch(node.target) or node.target is getattr:
        return False
    if FROM_DATA in node.meta:
        return bool(node.meta[FROM_DATA] == RAISES)
    target = node.target
    is_aten = isinstance(target, OpOverload) and target.namespace == "aten"
    name = target.overloadpacket.__name__ if is_aten else name_called(node)  # type: ignore[union-attr]
    if isinstance(target, types.FunctionType) and hasattr(target, FORMULA):  # forward has checked the positions
        return any(word in target.__name__.lower() for word in _SYNCHRONOUS_ERRORS)
    if getattr(operator, name, None) is node.target:
        return not _operator_cannot_raise(name.removeprefix("i") if name in _IN_PLACE else name, node)
    is_torch_operator = is_aten or node.op == "call_method" or is_torch_function(node.target)
    if not is_torch_operator and getattr(node.target, "__module__", "") not in PYTHON_NAMESPACES:
        return True
    base_name = _name_of_overload(name, node) if is_aten else name.removeprefix("_foreach_").rstrip("_")
    results = leaves(node.meta.get("example_value"))
    if any(isinstance(value, torch.Tensor) and value.device.type != "cpu" for value in results):
        # The program does not wait for the device; after an error in a kernel the device refuses all work.
        return any(word in name for word in _SYNCHRONOUS_ERRORS)
    if base_name == "bernoulli" and len(node.all_input_nodes) == 1:  # of a single number, already checked
        return False
    if name == "normal":  # standard deviations in a tensor may be negative
        return bool(node.all_input_nodes)
    return not (_cannot_raise(base_name, node) or base_name in _KEPT)


def overload_may_raise(overload: OpOverload) -> bool:
    """Returns whether an ATen operator on tensors of floats may raise for some data."""
    name = overload.overloadpacket.__name__.strip("_")
    return not (name in _CANNOT_RAISE or name in _KEPT or name in _RAISE_ON_INTEGERS or _is_elementwise(name))


def _name_of_overload(name: str, node: torch.fx.Node) -> str:
    """Returns the name of the torch function that has the same errors as an ATen operator, for example `gelu` for
    `gelu_backward`. A backward that takes positions keeps its own name: no function has checked the positions."""
    operation, _, ending = name.partition("_backward")
    values = [each.meta.get("example_value") for each in node.all_input_nodes]
    takes_positions = any(map(_is_of_integers, values))
    return (operation if ending in ("", "_data") and not takes_positions else name).strip("_")


def _is_of_integers(value: object) -> bool:
    if not isinstance(value, torch.Tensor) or value.dtype == torch.bool:
        return False
    return not (value.is_floating_point() or value.is_complex())


def name_called(node: torch.fx.Node) -> str:
    """Returns the name of the method or function that a node calls; empty if torch and Python do not define it."""
    return name_of_target(node.target)


def name_of_target(target: object) -> str:
    """Returns the name of a function of torch or Python, or of a method; empty for a function of the user, whose name
    means nothing."""
    if isinstance(target, types.FunctionType) and str(target.__globals__.get("__name__")).partition(".")[0] != "torch":
        return ""
    return target if isinstance(target, str) else getattr(target, "__name__", "")


def is_torch_function(function: object) -> bool:
    """Returns whether the function is a function of torch that computes tensors, or an operator of Python."""
    name = getattr(function, "__name__", "")
    return any(getattr(space, name, None) is function for space in (operator, *OPERATOR_NAMESPACES))


def only_computes(node: torch.fx.Node) -> bool:
    """Returns whether a node, with its subgraphs, runs no code of the user."""
    subgraphs = [operand for operand in node.all_input_nodes if ONLY_COMPUTES in operand.meta]
    return all(subgraph.meta[ONLY_COMPUTES] for subgraph in subgraphs) if subgraphs else calls_torch(node)


def calls_torch(node: torch.fx.Node) -> bool:
    """Returns whether a node has no subgraph and runs no code of the user."""
    target = node.target
    if FROM_DATA in node.meta or node.op != "call_function":
        return True
    computes = is_torch_function(target) or target in (getattr, assert_async) or is_switch(target)
    computes = computes or getattr(target, "__module__", "") in PYTHON_NAMESPACES or hasattr(target, "only_computes")
    return computes or (isinstance(target, OpOverload) and target.namespace == "aten")


def has_no_effect(name: str) -> bool:
    """Returns whether the torch function or method neither draws random numbers nor writes to its tensor."""
    return name not in _IMPURE_NAMES and not name.endswith("_") and not any(word in name for word in _IMPURE_WORDS)


def _operator_cannot_raise(name: str, node: torch.fx.Node) -> bool:
    """Returns whether a Python operator raises all its errors on fake tensors already."""
    if name == "setitem" and _is_masked_fill(node):
        return True
    if name in ("getitem", "setitem"):
        return not _has_index_tensor(node.args[1])
    return name not in _RAISE_ON_INTEGERS or not _returns_integers(node)


def _cannot_raise(name: str, node: torch.fx.Node) -> bool:
    """Returns whether a torch function or method raises all its errors on fake tensors already."""
    if name in _RAISE_ON_INTEGERS:
        return not _returns_integers(node)
    return name in _CANNOT_RAISE or _is_elementwise(name)


@functools.cache
def _is_elementwise(name: str) -> bool:
    """Returns whether torch tags the operation as pointwise or as a reduction."""
    packet = getattr(torch.ops.aten, name, None)  # may be a Python method: `__eq__`
    names = packet.overloads() if isinstance(packet, OpOverloadPacket) else ()
    overloads = [getattr(packet, each) for each in names]
    return any(tag.name in ("pointwise", "reduction") for overload in overloads for tag in overload.tags)


def _returns_integers(node: torch.fx.Node) -> bool:
    result = node.meta.get("example_value")
    return isinstance(result, torch.Tensor) and not (result.is_floating_point() or result.is_complex())


def _is_masked_fill(node: torch.fx.Node) -> bool:
    """Returns whether a single number is written wherever a mask of bools is true."""
    _, mask, value = node.args
    values = [each.meta.get("example_value") if isinstance(each, torch.fx.Node) else each for each in (mask, value)]
    is_mask = isinstance(values[0], torch.Tensor) and values[0].dtype == torch.bool
    return is_mask and not (isinstance(values[1], torch.Tensor) and values[1].dim())


def _has_index_tensor(index: object) -> bool:
    """Returns whether an index contains a tensor or list of positions, which may be out of range."""
    parts = index if isinstance(index, tuple) else (index,)
    of_node = (part.meta.get("example_value") for part in parts if isinstance(part, torch.fx.Node))
    return any(isinstance(part, list) for part in parts) or any(isinstance(value, torch.Tensor) for value in of_node)
