"""Owns the written form of values: the values in generated code and call plans, as JSON, and back.

Reading runs no foreign code: records come from a closed list of classes, and operators are looked up by name among
those that torch ships. A value without a written form raises NotStorable, and its graph is not stored. This file knows
neither files nor keys.
"""

from __future__ import annotations

import dataclasses
import operator
import re
import types
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch

from minidynamo.compat import SHIPPED_NAMESPACES, OpOverload
from minidynamo.core.records import record
from minidynamo.errors import UserLocation, an

Json = Any

LARGEST_CONSTANT = 1 << 16
"""The most bytes of a tensor that may be written as a constant of a graph."""


class NotStorable(Exception):
    """A value has no written form; the message names the value."""


class Damaged(Exception):
    """A written form does not describe a value."""


@record(frozen=True)
class GraphContext:
    """The facts about a graph that its written form must not contain: device numbers and locations in the user's
    source.
    """

    #: The only device of the graph besides the CPU, written without its index. None if there is no such device, or if
    #: there are several: these are written with their index.
    accelerator: torch.device | None = None
    #: The user's line of each node, in the order of the graph. Written as positions in this tuple.
    locations: tuple[UserLocation | None, ...] = ()

    def device_text(self, device: torch.device) -> str:
        """Returns the name of a device in a key."""
        return device.type if device == self.accelerator else str(device)

    def written(self, text: str) -> str:
        """Returns a text of generated code; its comments have positions in the graph instead of the user's lines."""
        comments = {
            location.comment(): i for i, location in reversed(list(enumerate(self.locations))) if location is not None
        }

        def replace(match: re.Match[str]) -> str:
            position = comments.get(match[2])
            return match[0] if position is None else f"{match[1]}@{position}@"

        return re.sub(r"^(\s*(?:#|//) )(.+)$", replace, text, flags=re.MULTILINE)

    def read(self, text: str) -> str:
        """Reverses `written`, for the current program."""

        def replace(match: re.Match[str]) -> str:
            location = self.locations[int(match[2])] if int(match[2]) < len(self.locations) else None
            return f"{match[1]}{location.comment() if location else ''}"

        return re.sub(r"^(\s*(?:#|//) )@(\d+)@$", replace, text, flags=re.MULTILINE)


class Codec:
    """Writes and reads values. `records` are the dataclasses that may occur."""

    def __init__(self, context: GraphContext, records: Sequence[type] = ()) -> None:
        self.context = context
        self.records: Mapping[str, type] = {record.__name__: record for record in records}
        self._positions = {location: position for position, location in reversed([*enumerate(context.locations)])}
        self._encoders: dict[type, Callable[[Any], Json]] = {
            **dict.fromkeys((type(None), bool, int, float, str), lambda value: value),
            complex: lambda value: {"complex": [value.real, value.imag]},
            list: lambda value: [self.encode(item) for item in value],
            tuple: lambda value: {"tuple": [self.encode(item) for item in value]},
            torch.Size: lambda value: {"tuple": [self.encode(item) for item in value]},
            dict: lambda value: {"dict": [[self.encode(k), self.encode(v)] for k, v in value.items()]},
            torch.device: self._encode_device,
            torch.Tensor: self._encode_tensor,
            UserLocation: self._encode_location,
            **dict.fromkeys((torch.dtype, torch.layout, torch.memory_format), _encode_torch_name),
            types.BuiltinFunctionType: _encode_builtin,
        }
        self._decoders: dict[str, Callable[[Any], Any]] = {
            "complex": lambda parts: complex(*parts),
            "tuple": lambda items: tuple(map(self.decode, items)),
            "dict": lambda pairs: {self.decode(k): self.decode(v) for k, v in pairs},
            "device": self._decode_device,
            "tensor": self._decode_tensor,
            "location": lambda position: self.context.locations[position],
            "torch": _decode_torch_name,
            "op": _decode_operator,
            "record": self._decode_record,
            "builtin": _BUILTINS.__getitem__,
        }

    def encode(self, value: Any) -> Json:
        """Returns the written form; raises NotStorable."""
        encoder = self._encoders.get(type(value))
        if encoder is not None:
            return encoder(value)
        if isinstance(value, OpOverload):
            return {"op": operator_name(value)}
        if dataclasses.is_dataclass(value) and type(value) is self.records.get(type(value).__name__):
            fields = {f.name: self.encode(getattr(value, f.name)) for f in dataclasses.fields(value)}
            return {"record": [type(value).__name__, fields]}
        raise NotStorable(f"it holds {an(type(value).__name__)}")

    def decode(self, form: Json) -> Any:
        """Returns the value; raises Damaged for a form that `encode` never writes."""
        try:
            return self._decode(form)
        except Damaged:
            raise
        except Exception as error:
            raise Damaged(f"{type(error).__name__}: {error}") from error

    def _decode(self, form: Json) -> Any:
        if isinstance(form, list):
            return [self.decode(item) for item in form]
        if not isinstance(form, dict):
            return form
        ((kind, content),) = form.items()
        return self._decoders[kind](content)

    def _encode_device(self, device: torch.device) -> Json:
        return {"device": None if device == self.context.accelerator else str(device)}

    def _decode_device(self, text: str | None) -> torch.device:
        device = self.context.accelerator if text is None else torch.device(text)
        if device is None:
            raise Damaged("it names an accelerator, and there is none")
        return device

    def _encode_location(self, location: UserLocation) -> Json:
        return {"location": self._positions[location]} if location in self._positions else None

    def _encode_tensor(self, tensor: torch.Tensor) -> Json:
        if tensor.device.type != "cpu" or tensor.layout is not torch.strided or tensor.requires_grad:
            raise NotStorable("it holds a tensor")
        if tensor.numel() * tensor.itemsize > LARGEST_CONSTANT or tensor.is_quantized:
            raise NotStorable("it holds a large tensor")
        dense = tensor.resolve_conj().resolve_neg().contiguous()
        content = bytes(dense.reshape(-1).view(torch.uint8).tolist()).hex() if dense.numel() else ""
        return {"tensor": [_encode_torch_name(tensor.dtype), list(tensor.shape), list(tensor.stride()), content]}

    def _decode_tensor(self, parts: list[Any]) -> torch.Tensor:
        dtype, shape, stride, content = parts
        decoded = torch.empty_strided(shape, stride, dtype=self.decode(dtype), device="cpu")
        if decoded.numel():
            flat = torch.tensor(list(bytes.fromhex(content)), dtype=torch.uint8, device="cpu").view(decoded.dtype)
            decoded.copy_(flat.reshape(shape))
        return decoded

    def _decode_record(self, parts: list[Any]) -> Any:
        name, fields = parts
        return self.records[name](**{key: self.decode(value) for key, value in fields.items()})


def operator_name(op: OpOverload) -> str:
    """Returns `aten::add.Tensor`, or `aten::relu` for a default overload; raises NotStorable for operators outside
    torch.
    """
    if op.namespace not in SHIPPED_NAMESPACES:
        raise NotStorable(f"it calls {op}, whose implementation may change")
    return str(op.name())


def _decode_operator(name: str) -> OpOverload:
    namespace, rest = name.split("::")
    packet, _, overload = rest.partition(".")
    found = getattr(getattr(getattr(torch.ops, namespace), packet), overload or "default")
    if namespace not in SHIPPED_NAMESPACES or not isinstance(found, OpOverload):
        raise Damaged(f"there is no operator {name}")
    return found


_TORCH_NAMES = (torch.dtype, torch.layout, torch.memory_format)


_BUILTINS: dict[str, Any] = {"getitem": operator.getitem}
"""The functions, besides operators, in graphs and in the recipes of output views."""


def _encode_builtin(function: types.BuiltinFunctionType) -> Json:
    name = function.__name__
    if _BUILTINS.get(name) is not function:
        raise NotStorable(f"it holds {name}")
    return {"builtin": name}


def _encode_torch_name(value: object) -> Json:
    return {"torch": str(value).removeprefix("torch.")}


def _decode_torch_name(name: str) -> Any:
    found = getattr(torch, name, None)
    if not isinstance(found, _TORCH_NAMES):
        raise Damaged(f"torch has no dtype or layout {name}")
    return found
