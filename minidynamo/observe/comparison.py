"""Owns the meaning of "the same as eager": records everything that Python can see of a call, and compares two records.

It compiles nothing and counts nothing; `minidynamo.testing` runs a function both ways and calls this file.
"""

from __future__ import annotations

import contextlib
import inspect
import io
import random
import re
from collections import OrderedDict
from collections.abc import Callable, Iterator, Set
from dataclasses import field
from typing import Any

import torch
from torch import nn
from torch.nn.parameter import is_lazy

from minidynamo.core.records import record

ATOMS = (type(None), bool, int, float, complex, str, bytes, type, torch.dtype, torch.device, torch.Size, range)

_IMMUTABLE = (tuple, frozenset, slice)
_SEQUENCES: tuple[Any, ...] = (list, tuple)
_GROUPS: tuple[Any, ...] = (set, frozenset)
_HEAP_TYPE = 1 << 9  # set for classes written in Python


@record
class Observation:
    """The visible effects of one call."""

    error: BaseException | None = None
    printed: str = ""
    #: Maps a path such as ``args[0].weight`` to the value at that path, after the call.
    leaves: dict[str, Any] = field(default_factory=dict)
    #: The gradient of each leaf tensor, by path.
    grads: dict[str, torch.Tensor | None] = field(default_factory=dict)
    #: Maps the path of an object to the first path of the same object.
    identical: dict[str, str] = field(default_factory=dict)
    #: Maps the path of a tensor to the first path of a tensor with the same storage.
    sharing: dict[str, str] = field(default_factory=dict)
    rng_state: torch.Tensor | None = None
    python_rng_state: object = None
    grad_enabled: bool = True


def observe(fn: Callable[..., Any], make_inputs: Callable[[], Any], *, seed: int, backward: bool) -> Observation:
    """Calls `fn` with fresh arguments under `seed` and records the visible effects."""
    seed_generators(seed)
    random.seed(seed)
    inputs = make_inputs()
    args = inputs if type(inputs) is tuple else (inputs,)
    seen = Observation()
    result = None
    with contextlib.redirect_stdout(io.StringIO()) as out:
        try:
            result = fn(*args)
        except Exception as error:
            seen.error = error
    seen.printed = out.getvalue()
    seen.grad_enabled = torch.is_grad_enabled()
    seen.rng_state = torch.get_rng_state()
    seen.python_rng_state = random.getstate()
    found = dict(walk({"args": args, "result": result}))
    seen.identical = _first_paths(found, _identity)
    seen.sharing = _first_paths(found, _storage)
    if backward and seen.error is None:
        _backward([value for path, value in found.items() if path.startswith("result")])
    seen.grads = {path: _gradient(v) for path, v in found.items() if isinstance(v, torch.Tensor) and v.is_leaf}
    seen.leaves = found
    return seen


def seed_generators(seed: int) -> None:
    """Seeds like `torch.manual_seed`.

    Without an accelerator, `torch.manual_seed` would queue a lazy call, with a traceback, for each kind of accelerator.
    This takes longer than many programs, and the memory is never freed.
    """
    seeded = torch if torch.accelerator.is_available() else torch.default_generator
    seeded.manual_seed(seed)


def _backward(results: list[Any]) -> None:
    outputs = [v for v in results if isinstance(v, torch.Tensor) and v.requires_grad]
    outputs = list({id(v): v for v in outputs}.values())
    if outputs:
        # Each element gets another cotangent: a plain sum would hide permuted gradients.
        cotangents = [
            torch.linspace(0.5, 1.5, v.numel(), device=v.device).reshape(v.shape).to(v.dtype) for v in outputs
        ]
        torch.autograd.backward(outputs, cotangents)


def _gradient(tensor: torch.Tensor) -> torch.Tensor | None:
    return None if tensor.grad is None else tensor.grad.detach().clone()


def _storage(value: Any) -> int | None:
    if not isinstance(value, torch.Tensor) or is_lazy(value) or value.layout is not torch.strided:
        return None
    storage = value.untyped_storage()
    try:
        return storage.data_ptr() if storage.nbytes() else None
    except RuntimeError:  # tensors with `__torch_dispatch__` may have no memory
        return None


def _identity(value: Any) -> object | None:
    """Returns a key for an object, always a new one for a tuple: Python may use an equal tuple. None for atoms."""
    if isinstance(value, ATOMS):
        return None
    return object() if type(value) in _IMMUTABLE else id(value)


def _first_paths(found: dict[str, Any], key_of: Callable[[Any], object | None]) -> dict[str, str]:
    """Maps each path to the first path with the same key: a partition that can be compared between two runs."""
    first: dict[object, str] = {}
    partition = {}
    for path, value in found.items():
        key = key_of(value)
        if key is not None:
            partition[path] = first.setdefault(key, path)
    return partition


def walk(root: dict[str, Any]) -> Iterator[tuple[str, Any]]:
    """Yields every value reachable from `root`, with its path; visits the contents of a mutable object once."""
    visited: set[int] = set()
    pending = list(reversed(root.items()))
    while pending:
        path, value = pending.pop()
        yield path, value
        if isinstance(value, (*ATOMS, torch.Tensor)):
            continue
        if type(value) in _IMMUTABLE or id(value) not in visited:
            visited.add(id(value))
            pending += reversed(_children(path, value))


def _children(path: str, value: Any) -> list[tuple[str, Any]]:
    if isinstance(value, nn.Module):
        tensors = [*value.named_parameters(), *value.named_buffers()]
        modules = [(f"{path}.{name or 'self'}.training", m.training) for name, m in value.named_modules()]
        return [*((f"{path}.{name}", tensor) for name, tensor in tensors), *modules]
    return [*_items(path, value), *_attributes(path, value)]


def _items(path: str, value: Any) -> list[tuple[str, Any]]:
    """Returns the contents of a container, read through the built-in class: overrides of a subclass are not called."""
    if isinstance(value, dict):
        owner = OrderedDict if isinstance(value, OrderedDict) else dict
        keys = [_shown(key) for key in owner.__iter__(value)]
        items = [dict.__getitem__(value, key) for key in owner.__iter__(value)]
        # The order of the keys is visible, too.
        return [(f"{path}.keys()", str(keys)), *((f"{path}[{key}]", item) for key, item in zip(keys, items))]
    for sequence in _SEQUENCES:
        if isinstance(value, sequence):
            items = [*sequence.__iter__(value)]
            return [(f"len({path})", len(items)), *((f"{path}[{i}]", item) for i, item in enumerate(items))]
    for group in _GROUPS:
        if isinstance(value, group):
            return [(f"sorted({path})", str(sorted(map(_shown, group.__iter__(value)))))]
    return []


def _shown(key: object) -> str:
    """Returns a key as text that is the same in two runs: without the addresses of objects."""
    return re.sub(r" at 0x[0-9a-f]+", "", repr(key))


def _attributes(path: str, value: Any) -> list[tuple[str, Any]]:
    """Returns the attributes in an object's dictionary and slots; nothing for functions and classes."""
    if callable(value) and not isinstance(value, dict | list | tuple | set | frozenset):
        return []
    slots = [
        (name, value)
        for base in type(value).__mro__
        for name, found in vars(base).items()
        if inspect.ismemberdescriptor(found) and base.__flags__ & _HEAP_TYPE and name not in ("__dict__", "__weakref__")
    ]
    attributes = [(name, object.__getattribute__(owner, name)) for name, owner in slots if _is_set(owner, name)]
    with contextlib.suppress(AttributeError):
        attributes += [*object.__getattribute__(value, "__dict__").items()]
    return [(f"{path}.{name}", item) for name, item in attributes]


def _is_set(value: object, slot: str) -> bool:
    try:
        object.__getattribute__(value, slot)
    except AttributeError:
        return False
    return True


def assert_equal_observations(call: str, expected: Observation, actual: Observation, tolerance: dict[str, Any]) -> None:
    """Raises AssertionError, naming `call` and the path, at the first difference from `expected`."""
    _same(f"{call}: exception type", type(expected.error), type(actual.error))
    _same(f"{call}: exception text", str(expected.error), str(actual.error))
    _same(f"{call}: printed text", expected.printed, actual.printed)
    _same(f"{call}: identical objects", expected.identical, actual.identical)
    _same(f"{call}: values found", list(expected.leaves), list(actual.leaves))
    for path, value in expected.leaves.items():
        _same_value(f"{call}: {path}", value, actual.leaves[path], tolerance)
    _same(f"{call}: leaves that can have gradients", list(expected.grads), list(actual.grads))
    for path, grad in expected.grads.items():
        _same_value(f"{call}: {path}.grad", grad, actual.grads[path], tolerance)
    _same(f"{call}: shared storage", expected.sharing, actual.sharing)
    _same(f"{call}: grad mode", expected.grad_enabled, actual.grad_enabled)
    _same_value(f"{call}: random state", expected.rng_state, actual.rng_state, {})
    if expected.python_rng_state != actual.python_rng_state:  # 625 numbers: too long for a message
        raise AssertionError(f"{call}: random state of Python's `random` differs")


def _same(what: str, expected: Any, actual: Any) -> None:
    if expected != actual and isinstance(expected, dict):
        expected, actual = expected.items(), actual.items()
    if expected != actual and isinstance(expected, (list, Set)):
        # Show differences only: these collections have an entry for each reachable value.
        expected, actual = [x for x in expected if x not in actual], [x for x in actual if x not in expected]
    assert expected == actual, f"{what}: eager has {expected!r}, compiled {actual!r}"


def _same_value(what: str, expected: Any, actual: Any, tolerance: dict[str, Any]) -> None:
    _same(f"{what}: type", type(expected), type(actual))
    if isinstance(expected, torch.Tensor):
        for fact in ("dtype", "device", "shape", "requires_grad", "is_leaf"):
            _same(f"{what}.{fact}", getattr(expected, fact), getattr(actual, fact))
        _same(f"{what}: strides", _strides(expected), _strides(actual))
        torch.testing.assert_close(
            actual.detach(), expected.detach(), equal_nan=True, msg=lambda text: f"{what}: {text}", **tolerance
        )
    elif isinstance(expected, float):
        assert expected == actual or (expected != expected and actual != actual), f"{what}: {expected!r} {actual!r}"
    elif isinstance(expected, ATOMS):
        _same(what, expected, actual)


def _strides(tensor: torch.Tensor) -> list[int | None]:
    """Returns the strides that matter: a dimension of one element can have any stride."""
    if tensor.layout is not torch.strided or not tensor.numel():
        return []
    return [None if size == 1 else stride for size, stride in zip(tensor.shape, tensor.stride())]
