"""Owns the polyfills of library functions: math, datetime, inspect, dataclasses, contextlib and torch.

Libraries with more than a few polyfills are not here but have files of their own."""

# Polyfills are traced, not called, and accept all arguments of the original, so annotations would add nothing.
# mypy: allow-untyped-defs, allow-untyped-calls
# No library function inside its own polyfill.

from __future__ import annotations

import collections
import contextlib
import dataclasses
import datetime
import inspect
import math
import types

import torch

from minidynamo.compat import (
    scripted_isinstance,
    torch_check_tensor_all_with,
    torch_check_with,
    warn_of_typed_storages,
)
from minidynamo.compat import torch_assert as real_assert
from minidynamo.tracer.polyfills.objects import copy_deepcopy, has_own_getattribute
from minidynamo.tracer.records import registry
from minidynamo.tracer.records.registry import cannot_trace, polyfill, polyfill_code

# --- math -------------------------------------------------------------------------------------------------------------


@polyfill(math.prod)
def math_prod(iterable, /, *, start=1):
    for item in iterable:
        start = start * item
    return start


# --- datetime ---------------------------------------------------------------------------------------------------------


@polyfill(datetime.timedelta.total_seconds)
def total_seconds(span, /):
    return ((span.days * 86400 + span.seconds) * 10**6 + span.microseconds) / 10**6


# --- inspect ----------------------------------------------------------------------------------------------------------


@polyfill(inspect.get_annotations)
def get_annotations(obj, *, globals=None, locals=None, eval_str=False):
    if eval_str:
        cannot_trace("`inspect.get_annotations` with `eval_str`", "it evaluates text")
    if isinstance(obj, type):
        namespace = obj.__dict__
        found = namespace.get("__annotations__")
    elif isinstance(obj, types.ModuleType) or callable(obj):
        found = getattr(obj, "__annotations__", None)
    else:
        raise TypeError(f"{obj!r} is not a module, class, or callable.")
    if found is None or isinstance(found, types.GetSetDescriptorType):
        return {}
    if not isinstance(found, dict):
        raise ValueError(f"{obj!r}.__annotations__ is neither a dict nor None")
    return dict(found)


_NOTHING = object()


@polyfill(inspect.getattr_static)
def getattr_static(obj, attr, default=_NOTHING):
    """Looks up in dictionaries alone: no descriptor binds, no code of the class runs."""
    cls = type(obj)
    is_class = issubclass(cls, type)
    for entry in cls.__mro__:
        slot = entry.__dict__.get("__dict__")
        if slot is not None and not isinstance(slot, types.GetSetDescriptorType):
            return cannot_trace("`inspect.getattr_static`", f"{entry.__name__} defines `__dict__`")
    found = _in_classes(obj.__mro__ if is_class else cls.__mro__, attr)
    has_own = not is_class and cls.__dictoffset__ != 0
    own = object.__getattribute__(obj, "__dict__").get(attr, _NOTHING) if has_own else _NOTHING
    if own is not _NOTHING and (found is _NOTHING or not _is_data_descriptor(type(found))):
        return own
    if found is _NOTHING and is_class:
        found = _in_classes(cls.__mro__, attr)
    if found is not _NOTHING:
        return found
    if default is not _NOTHING:
        return default
    raise AttributeError(attr)


def _in_classes(classes, name):
    for cls in classes:
        if name in cls.__dict__:
            return cls.__dict__[name]
    return _NOTHING


def _is_data_descriptor(cls):
    names = [name for name in ("__get__", "__set__", "__delete__") if _in_classes(cls.__mro__, name) is not _NOTHING]
    return len(names) > 1 and names[0] == "__get__"


# --- dataclasses --------------------------------------------------------------------------------------------------


def field_names(cls: type) -> tuple[str, ...]:
    """Returns the names of a dataclass's fields."""
    return tuple(field.name for field in dataclasses.fields(cls))


def init_names(cls: type) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Returns the parameters of a dataclass's `__init__`, and the parameters that no instance stores."""
    declared = getattr(cls, "__dataclass_fields__").values()  # noqa: B009 (mypy knows no such attribute)
    parameters = [field for field in declared if field.init and field._field_type.name != "_FIELD_CLASSVAR"]
    variables = [field for field in parameters if field._field_type.name == "_FIELD_INITVAR"]
    required = [field for field in variables if field.default is dataclasses.MISSING]
    return tuple(field.name for field in parameters), tuple(field.name for field in required)


registry.fold(field_names, init_names)


def _refuse_own_getattribute(obj):
    """Breaks the graph if the class of the dataclass would notice which attributes are read."""
    if has_own_getattribute(type(obj)):
        cannot_trace("a dataclass", "its class defines `__getattribute__`")


@polyfill(dataclasses.replace)
def dataclass_replace(obj, /, **changes):
    _refuse_own_getattribute(obj)
    names, required = init_names(type(obj))
    for name in changes:
        if name in field_names(type(obj)) and name not in names:
            cannot_trace(f"`dataclasses.replace` of the field `{name}`", "it raises ValueError")
    for name in names:
        if name not in changes:
            if name in required:
                cannot_trace(f"`dataclasses.replace` without `{name}`", "it raises ValueError")
            changes[name] = getattr(obj, name)
    return type(obj)(**changes)


@polyfill(inspect.unwrap)
def unwrap(func, *, stop=None):
    """Unwraps without a memo of addresses. A function that wraps itself has too many iterations to be traced."""
    while not isinstance(func, type) and hasattr(func, "__wrapped__") and (stop is None or not stop(func)):
        func = func.__wrapped__
    if isinstance(func, type) and hasattr(func, "__wrapped__"):
        return cannot_trace("`inspect.unwrap` of a class with `__wrapped__`", "versions of Python differ")
    return func


@dataclasses.dataclass
class _Sample:
    """A class whose `__repr__` is wrapped as in every dataclass."""


@polyfill_code(_Sample.__repr__.__code__)
def dataclass_repr(wrapper, obj):
    """Returns the text of a dataclass; one that contains itself is nested too deep to be traced."""
    return wrapper.__wrapped__(obj)


@polyfill(dataclasses.asdict)
def dataclass_asdict(obj, *, dict_factory=dict):
    if not hasattr(type(obj), "__dataclass_fields__"):
        raise TypeError("asdict() should be called on dataclass instances")
    _refuse_own_getattribute(obj)
    return dict_factory(
        [
            (name, _plain(getattr(obj, name), lambda v: dataclass_asdict(v, dict_factory=dict_factory)))
            for name in field_names(type(obj))
        ]
    )


@polyfill(dataclasses.astuple)
def dataclass_astuple(obj, *, tuple_factory=tuple):
    if not hasattr(type(obj), "__dataclass_fields__"):
        raise TypeError("astuple() should be called on dataclass instances")
    _refuse_own_getattribute(obj)
    return tuple_factory(
        [
            _plain(getattr(obj, name), lambda v: dataclass_astuple(v, tuple_factory=tuple_factory))
            for name in field_names(type(obj))
        ]
    )


def _plain(value, convert):
    """Returns a field's value as asdict and astuple do: dataclasses in it are converted, all else is copied deeply."""
    cls = type(value)
    if hasattr(cls, "__dataclass_fields__"):
        return convert(value)
    if isinstance(value, tuple) and hasattr(value, "_fields"):
        return cls(*[_plain(item, convert) for item in value])
    if isinstance(value, (list, tuple)):
        return cls([_plain(item, convert) for item in value])
    if isinstance(value, collections.defaultdict):
        result = cls(value.default_factory)
        for key, item in value.items():
            result[_plain(key, convert)] = _plain(item, convert)
        return result
    if isinstance(value, dict):
        return cls([(_plain(key, convert), _plain(item, convert)) for key, item in value.items()])
    return copy_deepcopy(value)


# --- torch --------------------------------------------------------------------------------------------------------


@polyfill(torch.numel)
def numel(input):
    return input.numel()


@polyfill(real_assert)
def torch_assert(condition, message):
    if not condition:
        cannot_trace("an assertion that fails", "it raises AssertionError")


@polyfill(torch.jit.annotate)
def annotate(the_type, the_value):
    return the_value


@polyfill(torch.jit.isinstance)
def jit_isinstance(obj, target_type):
    return scripted_isinstance(obj, target_type)


@polyfill(torch_check_with)
def check_with(error_type, cond, message):
    if not isinstance(cond, bool):
        cannot_trace("this condition of a check", "it raises TypeError")
    if cond:
        return
    if not callable(message):
        cannot_trace("a check that fails", "it raises an error in torch's words")
    raise error_type(str(message()))


@polyfill(torch_check_tensor_all_with)
def check_tensor_all_with(error_type, cond, message=None):
    if not isinstance(cond, torch.Tensor) or cond.dtype != torch.bool:
        cannot_trace("this condition of a check", "it raises TypeError")
    if not cond.all():  # a check in the graph, which reruns eagerly for the error's text
        raise error_type


# It raises for some values, in Python: tracing it directly turns the branch into a check in the graph.
polyfill(torch.nn.functional.gaussian_nll_loss)(torch.nn.functional.gaussian_nll_loss)


# Constructors older than `torch.tensor`: from nested lists of numbers, or from a size, uninitialized.


def _constructor(dtype):
    def make(*args):
        if len(args) == 1 and type(args[0]) in (list, tuple):
            if not _holds_numbers(args[0], dtype is None or dtype.is_floating_point):
                cannot_trace("a tensor made of these values", "this constructor converts or refuses them")
            return torch.tensor(args[0], dtype=dtype or torch.get_default_dtype(), device="cpu")
        size = args[0] if len(args) == 1 and isinstance(args[0], torch.Size) else args
        for length in size:
            if type(length) is not int or length < 0:
                cannot_trace("a tensor made of these arguments", "this constructor shares memory or refuses them")
        return torch.empty(size or (0,), dtype=dtype or torch.get_default_dtype(), device="cpu")

    return make


def _holds_numbers(values, also_floats):
    for value in values:
        if type(value) in (list, tuple):
            if not _holds_numbers(value, also_floats):
                return False
        elif not (type(value) in (int, bool) or (also_floats and type(value) is float)):
            return False
    return True


_CONSTRUCTORS: dict[type, torch.dtype | None] = {
    torch.Tensor: None,
    torch.FloatTensor: torch.float32,
    torch.DoubleTensor: torch.float64,
    torch.HalfTensor: torch.float16,
    torch.BFloat16Tensor: torch.bfloat16,
    torch.LongTensor: torch.int64,
    torch.IntTensor: torch.int32,
    torch.ShortTensor: torch.int16,
    torch.CharTensor: torch.int8,
    torch.ByteTensor: torch.uint8,
    torch.BoolTensor: torch.bool,
}
for _cls, _dtype in _CONSTRUCTORS.items():
    polyfill(_cls)(_constructor(_dtype))


@polyfill(contextlib.ExitStack.__exit__)
def leave_stack(self, kind, error, traceback):
    details = (kind, error, traceback)
    raised, suppressed = False, False
    while self._exit_callbacks:
        _, callback = self._exit_callbacks.pop()
        try:
            if callback(*details):
                raised, suppressed = False, True
                details = (None, None, None)
        except BaseException as other:
            if raised or suppressed:
                return cannot_trace("an ExitStack with several errors", "it chains them in an order of its own")
            raised = True
            details = (type(other), other, other.__traceback__)
    if raised:
        raise details[1]
    return error is not None and suppressed


# --- storages of torch ------------------------------------------------------------------------------------------------


@registry.polyfill_class_method("storage", torch.Tensor)
def tensor_storage(self):
    return torch.TypedStorage(wrap_storage=self.untyped_storage(), dtype=self.dtype)


@polyfill(warn_of_typed_storages)
def no_warning_of_typed_storages(stacklevel=2):
    return None
