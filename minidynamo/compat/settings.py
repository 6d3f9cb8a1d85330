"""Owns private names of torch's settings, of modes, and of devices that are modes.

`guards/` decides which settings are guarded.
"""

from __future__ import annotations

import contextlib
import sys
import traceback
import typing

import torch
import torch.utils._device
from torch.autograd import forward_ad as _forward_ad

# Grad mode and default dtype, as FX graphs set them.
set_grad_enabled = torch._C._set_grad_enabled
set_default_dtype = torch._C._set_default_dtype
InferenceMode: typing.Any = torch._C._InferenceMode
is_autocast_available = torch._C._is_autocast_available
legacy_default_device = torch._C._get_default_device

# The devices with autocast.
AUTOCAST_DEVICES = ("cpu", "cuda", "xpu", "mps")

# A context in which operations convert nothing, even under autocast.
without_autocast = torch._C._DisableAutocast

# Builds without an accelerator refuse torch.set_default_tensor_type() of another device.
HAS_ACCELERATOR_TENSOR_TYPES = bool(torch.version.cuda or torch.version.hip)

# Flags of backends that programs query without arguments.
_FLAGS = (
    *("cublas_allow_tf32", "cudnn_allow_tf32", "cudnn_benchmark", "cudnn_deterministic", "cudnn_enabled"),
    *("deterministic_algorithms", "deterministic_algorithms_warn_only", "float32_matmul_precision"),
    *("mkldnn_enabled", "nnpack_enabled", "privateuse1_backend_name"),
)

GUARDED_QUESTIONS: tuple[typing.Any, ...] = tuple(
    getattr(torch._C, f"_get_{flag}") for flag in _FLAGS if hasattr(torch._C, f"_get_{flag}")
)


# The backends of `scaled_dot_product_attention`: name -> (reader, setter) of its permission.
ATTENTION: dict[str, tuple[typing.Any, typing.Any]] = {
    name: (getattr(torch._C, f"_get_{name}_sdp_enabled"), getattr(torch._C, f"_set_sdp_use_{name}"))
    for name in torch.nn.attention._backend_names
}
# The functions that choose a backend.
ATTENTION_FUNCTIONS: tuple[typing.Any, ...] = (
    torch.nn.functional.scaled_dot_product_attention,
    torch.nn.functional.multi_head_attention_forward,
    torch._native_multi_head_attention,
    torch._transformer_encoder_layer_fwd,
)


def _modes() -> tuple[list[typing.Any], list[typing.Any]]:
    """Returns the open modes: dispatch modes, then function modes, each outermost first."""
    return (
        [torch_dispatch_mode_at(index) for index in range(torch_dispatch_mode_count())],
        [torch_function_mode_at(index) for index in range(torch_function_mode_count())],
    )


def _clear_frames(error: BaseException) -> None:
    """Clears the locals of finished torch frames of an error, and of its causes.

    Some locals are guard objects whose death sets the thread's state. If the caller keeps the error alive, their death
    comes later, in another state.
    """
    todo: list[BaseException | None] = [error]
    seen: set[int] = set()
    while todo:
        found = todo.pop()
        if found is not None and id(found) not in seen:
            seen.add(id(found))
            todo += [found.__context__, found.__cause__]
            for frame, _ in traceback.walk_tb(found.__traceback__):
                if frame.f_globals.get("__name__", "").partition(".")[0] == "torch":
                    with contextlib.suppress(RuntimeError):  # a frame that still runs
                        frame.clear()


_functorch = torch._C._functorch
_LEAVE = {
    _functorch.TransformType.Grad: _functorch._grad_decrement_nesting,
    _functorch.TransformType.Jvp: _functorch._jvp_decrement_nesting,
    _functorch.TransformType.Vmap: _functorch._vmap_decrement_nesting,
    _functorch.TransformType.Functionalize: _functorch._func_decrement_nesting,
}
"""The function that ends a running torch.func transform."""


def _transforms() -> list[typing.Any]:
    """Returns the running torch.func transforms, the innermost last."""
    return _functorch.get_interpreter_stack() or []


def _restore_modes(modes: tuple[list[typing.Any], list[typing.Any]]) -> None:
    """Replaces the open modes by `modes`."""
    for _ in range(torch_dispatch_mode_count()):
        torch._C._pop_torch_dispatch_stack(None)
    for _ in range(torch_function_mode_count()):
        torch._C._pop_torch_function_stack()
    for mode in modes[0]:
        torch._C._push_on_torch_dispatch_stack(mode)
    for mode in modes[1]:
        torch._C._push_on_torch_function_stack(mode)


@contextlib.contextmanager
def keeping_thread_state() -> typing.Iterator[None]:
    """Restores the state of torch's thread after the block, also after an error that the block has handled.

    The state is: the running transforms of torch.func, the levels of forward derivatives, the open modes, and the
    dispatch keys. An interrupt while torch changes them, or an error of torch, may leave some of them changed, for all
    later code of the thread.
    """
    modes, transforms, level = _modes(), len(_transforms()), _forward_ad._current_level
    derives_forward = torch._C._is_fwd_grad_enabled()
    keys = torch._C._dispatch_tls_local_include_set(), torch._C._dispatch_tls_local_exclude_set()
    with torch._C._ForceDispatchKeyGuard(*keys):  # restores the keys at its end
        try:
            yield
        except BaseException as error:
            _clear_frames(error)
            raise
        finally:
            # `pop_dynamic_layer_stack_and_undo_to_depth` removes each layer twice in some releases of torch.
            for running in reversed(_transforms()[transforms:]):
                _LEAVE[running.key()]()
            while _forward_ad._current_level > level:
                _forward_ad.exit_dual_level()
            torch._C._set_fwd_grad_enabled(derives_forward)
            if _modes() != modes:
                _restore_modes(modes)


@contextlib.contextmanager
def with_denormals() -> typing.Iterator[None]:
    """Preserves denormal numbers inside the block, even if `torch.set_flush_denormal(True)` makes this thread flush to
    zero: a graph is compiled for calls under either setting, and stored for other processes.
    """
    flushes = sys.float_info.min / 2 == 0
    if flushes:
        torch.set_flush_denormal(False)
    try:
        yield
    finally:
        if flushes:
            torch.set_flush_denormal(True)


DeviceContext = torch.utils._device.DeviceContext
push_function_mode = torch._C._push_on_torch_function_stack
pop_function_mode = torch._C._pop_torch_function_stack
torch_function_mode_count = torch._C._len_torch_function_stack
torch_function_mode_at = torch._C._get_function_stack_at
torch_dispatch_mode_count = torch._C._len_torch_dispatch_stack
torch_dispatch_mode_at = torch._C._get_dispatch_stack_at

# A context in which tensors are read without `__torch_function__` of their classes or of modes.
without_torch_function = torch._C.DisableTorchFunction
# The same for classes only, as a library's `__torch_function__` uses it.
without_class_overrides: type = torch._C.DisableTorchFunctionSubclass  # type: ignore[assignment]
are_overrides_enabled = torch._C._is_torch_function_enabled
# The `__torch_function__` of nn.Parameter, which calls the function without asking classes.
disabled_torch_function = torch._C._disabled_torch_function_impl

# Used by library code before passing work to a torch function mode.
is_function_mode_enabled = torch._C._is_torch_function_mode_enabled


def open_devices() -> tuple[torch.device, ...]:
    """Returns the device of each open `torch.device` context, outermost first."""
    modes = [torch_function_mode_at(index) for index in range(torch_function_mode_count())]
    return tuple(mode.device for mode in modes if isinstance(mode, DeviceContext))


@contextlib.contextmanager
def _below_other_modes() -> typing.Iterator[None]:
    """Removes function modes above the innermost `torch.device` context for the duration of the block.

    Tracers of torch push their own modes on top, and expect to find them on top afterwards.
    """
    above = []
    while (count := torch_function_mode_count()) and not isinstance(torch_function_mode_at(count - 1), DeviceContext):
        above.append(torch._C._pop_torch_function_stack())
    yield
    for mode in reversed(above):
        torch._C._push_on_torch_function_stack(mode)


def enter_device(device: torch.device) -> None:
    """Enters `with device:`."""
    with _below_other_modes():
        device.__enter__()


def leave_device() -> None:
    """Leaves the innermost `with device:`."""
    with _below_other_modes():
        torch._C._pop_torch_function_stack()


def is_index_mode(cls: type) -> bool:
    """Returns whether a class is the mode in which `x[i, j]` with tensors `i` and `j` is an index operation, which vmap
    can batch. Importing the class would import torch.compile.
    """
    return (cls.__module__, cls.__qualname__) == (_INDEX_MODE_MODULE, "TransformGetItemToIndex")


_INDEX_MODE_MODULE = "torch._dynamo._trace_wrapped_higher_order_op"
