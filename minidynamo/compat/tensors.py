"""Owns private names of tensors, of their memory, and of torch's checker of them.

It tells about tensors as they are now; how long they live is followed elsewhere.
"""

from __future__ import annotations

import typing

import torch

# `tensor_guards` makes one C++ object that checks many tensors (class, dtype, device, dispatch keys, shape, strides,
# requires_grad); `state_guard` one that checks grad mode, autocast, default dtype and determinism.
_dynamo_guards = torch._C._dynamo.guards
state_guard = _dynamo_guards.GlobalStateGuard
dispatch_keys = torch._C._dispatch_keys
Layouts = list[typing.Any]  # per tensor a list of numbers and None


def tensor_guards(examples: tuple[torch.Tensor, ...], layouts: tuple[Layouts, Layouts] | None = None) -> typing.Any:
    """torch's batched checker for tensors like `examples`. It keeps no tensor alive.

    Every size and stride is fixed, unless `layouts` has those of each tensor, with None where any will do.
    """
    sizes, strides = layouts or (None, None)
    return _dynamo_guards.TensorGuards(*examples, dynamic_dims_sizes=sizes, dynamic_dims_strides=strides)


# Whether the dimensions of a tensor have names; newer versions of torch have no such tensors.
has_names: typing.Callable[[torch.Tensor], bool] = getattr(torch.Tensor, "has_names", lambda tensor: False)

TensorBase = torch._C.TensorBase
make_subclass = torch.Tensor._make_subclass
reinterpret_tensor = _dynamo_guards._reinterpret_tensor

# An uninitialized CPU tensor from sizes, strides and dtype: half the cost of torch.empty_strided.
empty_strided_cpu: typing.Callable[[tuple[int, ...], tuple[int, ...], torch.dtype], torch.Tensor] = (
    torch._C._dynamo.guards._empty_strided_cpu
)

# The same on the current GPU.
empty_strided_cuda: typing.Callable[[tuple[int, ...], tuple[int, ...], torch.dtype], torch.Tensor] = (
    torch._C._dynamo.guards._empty_strided_cuda
)

# The handle of a GPU's current stream, by the GPU's index. A torch that knows no GPUs has no such function.
current_raw_stream: typing.Callable[[int], int] = getattr(torch._C, "_cuda_getCurrentRawStream", lambda index: 0)

# Counts a write to each tensor of a sequence, inference tensors excepted; a third of the cost of the public function.
increment_version: typing.Callable[[typing.Sequence[torch.Tensor]], None] = torch._C._increment_version

# Path of torch's Python extension; what it was linked against (libtorch, OpenMP) can be looked up through it.
NATIVE_LIBRARY: str = torch._C.__file__


def address_of(tensor: torch.Tensor) -> int:
    """The address of torch's object behind a Python tensor."""
    address: int = tensor._cdata
    return address


def raw_dispatch_keys(tensor: torch.Tensor) -> int:
    """The dispatch keys of a tensor as torch keeps them: a bit for each."""
    keys: int = dispatch_keys(tensor).raw_repr()
    return keys


def memory_of(tensor: torch.Tensor) -> object:
    """What two tensors in the same memory have in common."""
    return tensor.untyped_storage()._cdata if tensor.layout is torch.strided else id(tensor)


is_view: typing.Callable[[torch.Tensor], bool] = torch.Tensor._is_view  # called for many, without a frame for each


def places_in_common(written: typing.Sequence[torch.Tensor], others: typing.Sequence[typing.Any]) -> bool:
    """`have_memory_in_common` without help from torch."""
    places = [memory_of(value) for value in (*written, *others) if isinstance(value, torch.Tensor)]
    return len({*places}) < len(places) and any(places.count(place) > 1 for place in places[: len(written)])


_is_any_alias = getattr(torch._C, "_any_output_is_alias_to_input_or_output", None)


def have_memory_in_common(written: typing.Sequence[torch.Tensor], others: typing.Sequence[typing.Any]) -> bool:
    """Whether one of the `written` tensors lies in the memory of another one of them, or of the tensors in `others`."""
    if _is_any_alias is None:
        return places_in_common(written, others)
    found: bool = _is_any_alias(tuple(others), {}, tuple(written))  # which does not look into lists
    return found


def share_memory(one: torch.Tensor, other: torch.Tensor) -> bool:
    """Whether two tensors lie in the same memory."""
    return memory_of(one) == memory_of(other)


def version_of(tensor: torch.Tensor) -> int | None:
    """How often torch counts the memory of a tensor as written; None where it does not count: of inference tensors, as
    long as they are not the `.data` of one outside of inference mode."""
    try:
        return tensor._version
    except RuntimeError:
        return None


# What `torch.autograd._unsafe_preserve_version_counter` calls.
set_version_counter = torch._C._autograd._unsafe_set_version_counter


def set_versions(tensors: typing.Iterable[torch.Tensor], versions: typing.Iterable[int]) -> None:
    """Let torch count the memory of each tensor as written this often."""
    set_version_counter(tuple(tensors), tuple(versions))


def creation_of(view: torch.Tensor) -> str | None:
    """Torch's name for how a view was made (with the grad mode off, by a function of the user's, as one of several), on
    which hangs what writes autograd refuses to it; None for what is no view."""
    if view.is_inference() or not view._is_view():
        return None
    name: str = torch._C._autograd._get_creation_meta(view).name
    return name


# How views are made that take writes.
USUAL_CREATION: str = torch._C._autograd.CreationMeta.DEFAULT.name
# How a view was made that a function of the user's returns.
IN_CUSTOM_FUNCTION: str = torch._C._autograd.CreationMeta.IN_CUSTOM_FUNCTION.name


def set_creation(view: torch.Tensor, creation: str) -> None:
    """Let autograd take a view for one that was made that way; what is none refuses no writes."""
    if creation_of(view) is not None:
        torch._C._autograd._set_creation_meta(view, getattr(torch._C._autograd.CreationMeta, creation))


def view_anew(view: torch.Tensor, base: torch.Tensor) -> torch.Tensor:
    """The view of `base` that another one is of a tensor like it."""
    made: torch.Tensor = view._view_func_unsafe(base)
    return made


def owns_its_memory(tensor: torch.Tensor) -> bool:
    """Whether this tensor is one number and the only one in its storage: nobody writes to it through another tensor."""
    storage = tensor.untyped_storage()
    holders = torch._C._storage_Use_Count(storage._cdata)  # the tensor and `storage`
    return bool(storage.nbytes() == tensor.itemsize and holders == 2)


def address_of_generator(generator: torch.Generator) -> int:
    """Where the generator lies in memory, as torch's C++ functions take it."""
    address: int = generator._cdata
    return address


# The size of two tensors that are broadcast.
infer_size = torch._C._infer_size
