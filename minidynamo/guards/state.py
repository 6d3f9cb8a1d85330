"""Owns the interpreter-wide torch settings that a compiled program depends on: how to read and how to check them.

Does not decide when to check; `check.py` puts the check into the guards.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from minidynamo import compat
from minidynamo.core.records import record


@record(frozen=True)
class GlobalState:
    """The interpreter-wide torch settings that change the meaning of a program; `current` reads them."""

    grad_enabled: bool
    inference_mode: bool
    #: (device type, enabled, dtype) of each device with autocast
    autocast: tuple[tuple[str, bool, torch.dtype], ...]
    default_dtype: torch.dtype
    default_device: torch.device
    deterministic: bool
    #: the devices of the open `torch.device` contexts, outermost first
    mode_devices: tuple[torch.device, ...]
    #: whether a transform of torch.func runs, or a level of forward-mode AD is open
    in_transform: bool = False
    #: whether autograd checks each gradient for anomalies
    detects_anomalies: bool = False

    @property
    def summary(self) -> str:
        """Describes the settings; the unusual settings only where they are on."""
        words = [f"grad mode {'on' if self.grad_enabled else 'off'}"]
        words += ["inference mode"] * self.inference_mode
        words += [f"autocast to {dtype} on {device}" for device, _, dtype in self.autocast]
        words.append(f"default {self.default_dtype} on {self.default_device}")
        words += ["deterministic algorithms"] * self.deterministic
        return ", ".join(words)


def current() -> GlobalState:
    """Reads the settings of the current thread."""
    return GlobalState(
        grad_enabled=torch.is_grad_enabled(),
        inference_mode=torch.is_inference_mode_enabled(),
        autocast=tuple(
            (device, True, torch.get_autocast_dtype(device))
            for device in compat.AUTOCAST_DEVICES
            if torch.is_autocast_enabled(device)
        ),
        default_dtype=torch.get_default_dtype(),
        default_device=default_device(),
        deterministic=torch.are_deterministic_algorithms_enabled(),
        mode_devices=compat.open_devices(),
        in_transform=bool(_transform()),
        detects_anomalies=torch.is_anomaly_enabled(),
    )


def default_device() -> torch.device:
    """Returns the default device of new tensors. Unlike `torch.get_default_device`, it creates no tensor to find
    out.
    """
    devices = compat.open_devices()
    return devices[-1] if devices else torch.device(compat.legacy_default_device())


def controlling_mode() -> str:
    """Returns the class of an open mode that changes the meaning of operations; empty if there is none.

    - At a level of forward-mode AD each operation also computes a tangent.
    - In a transform of torch.func operations have hidden dimensions, or draw other random numbers.
    - torch.jit.trace records operations.
    - Under anomaly detection each operation remembers its line, and its gradients are checked.
    """
    modes = [compat.torch_dispatch_mode_at(index) for index in range(compat.torch_dispatch_mode_count())]
    modes += [mode for mode in _function_modes() if not isinstance(mode, compat.DeviceContext)]
    if modes:
        return type(modes[-1]).__qualname__
    if compat.tracing_state() is not None:
        return "torch.jit.trace"
    return _transform() or ("detect_anomaly" if torch.is_anomaly_enabled() else "")


def _transform() -> str:
    if compat.running_transform() is not None:
        return "transform of torch.func"
    return "dual_level" if compat.forward_ad["_current_level"] >= 0 else ""


def _function_modes() -> list[Any]:
    return [compat.torch_function_mode_at(index) for index in range(compat.torch_function_mode_count())]


def differences(expected: GlobalState) -> str:
    """Describes the settings that differ from `expected`, such as ``grad_enabled is False, was True``; empty if
    none.
    """
    now = current()
    return ", ".join(
        f"{name} is {getattr(now, name)}, was {getattr(expected, name)}"
        for name in GlobalState.__dataclass_fields__
        if getattr(now, name) != getattr(expected, name)
    )


class KernelSettings:
    """torch's batched check that the settings equal the settings at construction of this object.

    It covers grad mode, autocast, default dtype, determinism, and settings of kernels: number of threads, TF32, ... It
    does not cover inference mode, torch function modes and the default device.
    """

    def __init__(self) -> None:
        native: Any = compat.state_guard()
        self.unchanged: Callable[[], bool] = native.check
        self._reason: Callable[[], str] = native.reason

    def difference(self) -> str:
        """Returns the name of the first setting that differs; empty if none does."""
        return "" if self.unchanged() else self._reason().strip()
