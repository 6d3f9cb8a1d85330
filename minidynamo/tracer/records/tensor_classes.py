"""Owns the kinds of tensors: which of torch's own a graph takes, and which classes that libraries derive from
`torch.Tensor` and `torch.nn.Parameter`.

An instance is an input of the graph if its class adds only methods and a `__dict__` to torch's tensor, as the quantized
weights of bitsandbytes and diffusers and the images of torchvision do. Instances with `__torch_dispatch__` are opaque.
How methods are traced is not here (`calls/torch_overrides.py`).
"""

from __future__ import annotations

import inspect
import types

import torch

from minidynamo.compat import disabled_torch_function, has_names, is_functorch_wrapped, knows_history

OF_TORCH = frozenset((*torch.Tensor.__mro__, torch.nn.Parameter))
# The special methods that a class may define: they construct, copy or print an instance. Operators are not among them.
_HARMLESS = {f"__{name}__" for name in ("new", "init", "repr", "str", "copy", "deepcopy", "reduce", "reduce_ex")}
_HARMLESS |= {"__getstate__", "__setstate__", "__torch_function__", "__init_subclass__", "__class_getitem__"}
_OF_TENSORS = frozenset(dir(torch.Tensor))
# Methods by which torch's Python code and guards read what a tensor is.
_FACTS = frozenset("size stride dim numel storage_offset is_contiguous untyped_storage element_size".split())  # noqa: SIM905


def special_kind(tensor: torch.Tensor) -> str:
    """Returns a noun for a tensor that dtype, device, shape, strides and requires_grad do not describe; else empty."""
    if not knows_history(tensor):
        return "view that autograd does not know"
    if tensor.layout is not torch.strided:
        return "sparse tensor"
    if tensor.is_quantized or tensor.is_nested:
        return "quantized tensor" if tensor.is_quantized else "nested tensor"
    if is_functorch_wrapped(tensor):
        return "tensor of a transform of torch.func"
    if tensor.is_inference() and torch.is_grad_enabled():  # autograd refuses to save it
        return "tensor from inference mode"
    if tensor.is_conj() or tensor.is_neg():
        return "conjugate view"
    return "tensor with named dimensions" if has_names(tensor) else ""


def is_tensor_class(cls: type) -> bool:
    """Returns whether instances of a subclass of torch.Tensor are tensors for the graph."""
    if not _FACTS.isdisjoint(_names(cls)) or any(vars(base).get("__slots__") for base in _own_bases(cls)):
        return False
    return all(name in _HARMLESS or not name.startswith("__") for name in _names(cls))


def has_properties_of_torch(tensor: torch.Tensor) -> bool:
    """Returns whether each property that the class has in place of torch's returns what torch's does."""
    names = {name for base in _own_bases(type(tensor)) for name, value in vars(base).items() if type(value) is property}
    try:
        return all(getattr(tensor, name) == getattr(torch.Tensor, name).__get__(tensor) for name in names & _OF_TENSORS)
    except Exception:  # an uninitialized parameter has no shape
        return False


def replaces_methods(cls: type) -> bool:
    """Returns whether a class has other methods than torch.Tensor under the same names."""
    return not (_names(cls) & _OF_TENSORS) <= _HARMLESS


def replaces_method(cls: type, name: str) -> bool:
    """Returns whether a class has another method than torch.Tensor under this name."""
    return cls is not torch.Tensor and cls is not torch.nn.Parameter and name in _names(cls)


def _names(cls: type) -> set[str]:
    """Returns the names of the methods that a library adds."""
    return {name for base in _own_bases(cls) for name, value in vars(base).items() if callable(_function_of(value))}


def _own_bases(cls: type) -> list[type]:
    """Returns the classes that a library adds to those of torch."""
    return [base for base in cls.__mro__ if base not in OF_TORCH]


def _function_of(value: object) -> object:
    return getattr(value, "__func__", value)


def has_own_dispatch(cls: type) -> bool:
    """Returns whether a class of tensors computes all operations itself, by `__torch_dispatch__`."""
    return issubclass(cls, torch.Tensor) and isinstance(cls.__torch_dispatch__, types.MethodType)


def overrides_functions(cls: type) -> bool:
    """Returns whether torch passes calls that take an instance to a `__torch_function__` in Python."""
    if cls is torch.Tensor or cls is torch.nn.Parameter:
        return False
    return inspect.getattr_static(cls, "__torch_function__") is not disabled_torch_function
