"""Owns private names of tensors, of fake tensors, of their memory, and of torch's tensor checker.

Describes tensors as they are now; their lifetimes are tracked elsewhere.
"""

from __future__ import annotations

import contextlib
import ctypes
import functools
import logging
import typing

import torch
import torch._subclasses.fake_tensor

from minidynamo.compat.python import in_thread
from minidynamo.compat.symbols import symbolic

# `tensor_guards` makes one C++ object that checks many tensors (class, dtype, device, dispatch keys, shape, strides,
# requires_grad); `state_guard` checks grad mode, autocast, default dtype and determinism.
_dynamo_guards = torch._C._dynamo.guards
state_guard = _dynamo_guards.GlobalStateGuard
dispatch_keys = torch._C._dispatch_keys
Layouts = list[typing.Any]  # per tensor a list of numbers and None


def tensor_guards(examples: tuple[torch.Tensor, ...], layouts: tuple[Layouts, Layouts] | None = None) -> typing.Any:
    """Builds torch's batched checker for tensors like `examples`. It keeps no tensor alive.

    Every size and stride is fixed, except None entries in `layouts` (sizes per tensor, strides per tensor).
    """
    sizes, strides = layouts or (None, None)
    return _dynamo_guards.TensorGuards(*examples, dynamic_dims_sizes=sizes, dynamic_dims_strides=strides)


# Returns whether a tensor has named dimensions; newer versions of torch have no such tensors.
has_names: typing.Callable[[torch.Tensor], bool] = getattr(torch.Tensor, "has_names", lambda tensor: False)

TensorBase = torch._C.TensorBase
make_subclass = torch.Tensor._make_subclass


def plain_tensor(tensor: torch.Tensor) -> torch.Tensor:
    """Returns a view of a tensor of any class, whose class is torch.Tensor."""
    with torch._C.DisableTorchFunctionSubclass():
        return tensor.as_subclass(torch.Tensor)


reinterpret_tensor = _dynamo_guards._reinterpret_tensor

# Allocates an uninitialized CPU tensor from sizes, strides and dtype: half the cost of torch.empty_strided.
empty_strided_cpu: typing.Callable[[tuple[int, ...], tuple[int, ...], torch.dtype], torch.Tensor] = (
    torch._C._dynamo.guards._empty_strided_cpu
)

# Does the same on the current GPU.
empty_strided_cuda: typing.Callable[[tuple[int, ...], tuple[int, ...], torch.dtype], torch.Tensor] = (
    torch._C._dynamo.guards._empty_strided_cuda
)

# Returns the handle of a GPU's current stream, by the GPU's index. A torch without GPUs has no such function.
current_raw_stream: typing.Callable[[int], int] = getattr(torch._C, "_cuda_getCurrentRawStream", lambda index: 0)

# Counts a write to each tensor of a sequence, except inference tensors; a third of the cost of the public function.
increment_version: typing.Callable[[typing.Sequence[torch.Tensor]], None] = torch._C._increment_version

_WORD = ctypes.sizeof(ctypes.c_void_p)


def offset_of_tensor() -> int | None:
    """Returns the offset, in the Python object of a tensor, of the word `_cdata`: the whole of torch's `at::Tensor`.

    Returns None if the object is not stored as expected: a reference count, the class, and the word soon after.
    """
    examples = [torch.empty(1), torch.empty(2, 3), torch.nn.Parameter(torch.empty(2))]
    offsets: set[int | None] = set()
    for example in examples:
        words = (ctypes.c_size_t * (torch.Tensor.__basicsize__ // _WORD)).from_address(id(example))
        positions = [position for position, word in enumerate(words) if word == example._cdata]
        offsets.add(positions[0] if words[1] == id(type(example)) and len(positions) == 1 else None)
    (offset,) = offsets if len(offsets) == 1 else (None,)
    return None if offset is None else offset * _WORD


# Path of torch's Python extension, for the lookup of its libraries (libtorch, OpenMP).
NATIVE_LIBRARY: str = torch._C.__file__


def memory_of(tensor: torch.Tensor) -> object:
    """Returns a key that is equal for two tensors in the same memory."""
    return tensor.untyped_storage()._cdata if tensor.layout is torch.strided else id(tensor)


# called for many tensors, without a Python frame for each
is_view: typing.Callable[[torch.Tensor], bool] = torch.Tensor._is_view


def have_storage_in_common(written: typing.Sequence[torch.Tensor], others: typing.Sequence[typing.Any]) -> bool:
    """Implements `have_memory_in_common` where torch's function is missing."""
    storages = [memory_of(value) for value in (*written, *others) if isinstance(value, torch.Tensor)]
    return len({*storages}) < len(storages) and any(storages.count(storage) > 1 for storage in storages[: len(written)])


_is_any_alias = getattr(torch._C, "_any_output_is_alias_to_input_or_output", None)


def have_memory_in_common(written: typing.Sequence[torch.Tensor], others: typing.Sequence[typing.Any]) -> bool:
    """Returns whether a tensor in `written` shares memory with another tensor in `written` or `others`."""
    if _is_any_alias is None:
        return have_storage_in_common(written, others)
    found: bool = _is_any_alias(tuple(others), {}, tuple(written))  # does not search inside lists
    return found


def share_memory(one: torch.Tensor, other: torch.Tensor) -> bool:
    """Returns whether two tensors share memory."""
    return memory_of(one) == memory_of(other)


def version_of(tensor: torch.Tensor) -> int | None:
    """Returns the version of a tensor's memory (number of counted writes); None for inference tensors, which have no
    version, except for the `.data` of a tensor outside of inference mode.
    """
    try:
        return tensor._version
    except RuntimeError:
        return None


# Warns that typed storages are deprecated.
warn_of_typed_storages = torch.storage._warn_typed_storage_removal

# Sets versions, for `torch.autograd._unsafe_preserve_version_counter`.
set_version_counter = torch._C._autograd._unsafe_set_version_counter


def set_versions(tensors: typing.Iterable[torch.Tensor], versions: typing.Iterable[int]) -> None:
    """Sets the version of each tensor's memory."""
    set_version_counter(tuple(tensors), tuple(versions))


def creation_of(view: torch.Tensor) -> str | None:
    """Returns torch's name for the origin of a view (under no_grad, in a custom Function, or one of several outputs),
    which determines the writes that autograd refuses; None for a tensor that is no view.
    """
    if view.is_inference() or not view._is_view():
        return None
    name: str = torch._C._autograd._get_creation_meta(view).name
    return name


# The origin of views returned by a user's custom Function.
IN_CUSTOM_FUNCTION: str = torch._C._autograd.CreationMeta.IN_CUSTOM_FUNCTION.name


_CREATIONS: dict[str, object] = dict(torch._C._autograd.CreationMeta.__members__)
_set_creation: typing.Any = torch._C._autograd._set_creation_meta


def set_creation(view: torch.Tensor, creation: str) -> None:
    """Sets the origin of a view for autograd; no effect on other tensors."""
    if view._is_view() and not view.is_inference():
        _set_creation(view, _CREATIONS[creation])


def replay_view(view: torch.Tensor, base: torch.Tensor) -> torch.Tensor:
    """Returns the view of `base` with the same operations as `view` of its own base."""
    replayed: torch.Tensor = view._view_func_unsafe(base)
    return replayed


def owns_its_memory(tensor: torch.Tensor) -> bool:
    """Returns whether the tensor is a single number in a storage of its own: no other tensor can write it."""
    storage = tensor.untyped_storage()
    holders = torch._C._storage_Use_Count(storage._cdata)  # the tensor and `storage`
    return bool(storage.nbytes() == tensor.itemsize and holders == 2)


def address_of_generator(generator: torch.Generator) -> int:
    """Returns the address of the generator, as torch's C++ functions take it."""
    address: int = generator._cdata
    return address


# Returns the broadcast size of two tensors.
infer_size = torch._C._infer_size


# Fake tensors have everything but data, and carry the mode they belong to; the errors state why an operation has no
# fake result.
FakeTensor = torch._subclasses.fake_tensor.FakeTensor
DataDependentOutput = torch._subclasses.fake_tensor.DataDependentOutputException
DynamicOutputShape = torch._subclasses.fake_tensor.DynamicOutputShapeException
UnsupportedFakeTensor = torch._subclasses.fake_tensor.UnsupportedFakeTensorException
UnsupportedOperator = torch._subclasses.fake_tensor.UnsupportedOperatorException

_fake_tensor_log = logging.getLogger("torch._subclasses.fake_tensor")


@contextlib.contextmanager
def without_fake_tensor_log() -> typing.Iterator[None]:
    """Disables torch's log of errors of operations on fake tensors: the caller tests whether a call raises, and reports
    the error itself.
    """
    before, _fake_tensor_log.disabled = _fake_tensor_log.disabled, True
    try:
        yield
    finally:
        _fake_tensor_log.disabled = before


def known_constant(fake: torch.Tensor) -> torch.Tensor | None:
    """Returns the real tensor that a fake tensor was made from while tracing, as long as its values are the same."""
    return fake.constant if isinstance(fake, FakeTensor) else None


def forget_constant(fake: torch.Tensor) -> None:
    """Removes the constant value of a fake tensor. torch sets NaN for symbolic numbers that became tensors."""
    if isinstance(fake, FakeTensor):
        fake.constant = None


@functools.cache
def load_symbols() -> None:
    """Imports the dependencies of the first symbol, and of the first guard on a symbol, as `load_fake_tensors` does."""
    in_thread(lambda: symbolic().ShapeEnv())
    in_thread(symbolic().load_frame_filter)
