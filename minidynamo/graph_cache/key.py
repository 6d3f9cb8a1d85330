"""Owns the key of a graph: a readable text of everything that decides the code compiled for the graph.

The text contains nothing else: no path, rank, device index, time, identity or hash of an object. Therefore two
processes that compile the same program write the same text. This file compiles and stores nothing.
"""

from __future__ import annotations

import difflib
import functools
import hashlib
import inspect
import math
import operator
import os
import platform
import re
import sys
import types
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

import torch
from torch import fx

from minidynamo import compat
from minidynamo.compat import FakeTensor, OpOverload, OpOverloadPacket
from minidynamo.core.records import record
from minidynamo.errors import UserLocation, an, counted
from minidynamo.graph.higher_order import CHECKPOINTS, is_cond
from minidynamo.graph.torch_settings import SWITCHES, settings
from minidynamo.graph_cache.encoding import GraphContext, NotStorable, operator_name
from minidynamo.graph_cache.symbols import Symbols

_TORCH_FOLDER = os.path.dirname(torch.__file__) + os.sep
# Namespaces of the functions in a graph. The key names a function by the namespace in which it is found.
_NAMESPACES: tuple[tuple[str, Any], ...] = (
    ("torch", torch),
    ("torch.nn.functional", torch.nn.functional),
    ("torch.Tensor", torch.Tensor),
    ("torch.linalg", torch.linalg),
    ("torch.fft", torch.fft),
    ("torch.special", torch.special),
    *((f"torch.{i}", namespace) for i, namespace in enumerate(compat.OPERATOR_NAMESPACES)),
    ("operator", operator),
    ("math", math),
)
_OWN_FUNCTIONS = {function: f"minidynamo.{function.__name__}" for function in (*SWITCHES, *CHECKPOINTS)}
_REPR_TYPES = (bool, int, str, bytes, complex, type(None), torch.dtype, torch.layout, torch.memory_format, type(...))
_DEVICE = re.compile(r"(cuda|xpu|mps|hip|mtia|hpu|privateuseone)(:\d+)?")
_SOURCES = (".py", ".h")


@record(frozen=True)
class Key:
    """The key of a graph; both `program` and `environment` must match."""

    #: The program, its inputs, settings and options.
    program: str
    #: Versions of minidynamo, Python, torch and the tools.
    environment: str
    #: For people.
    description: str
    context: GraphContext
    symbols: Symbols

    @property
    def text(self) -> str:
        """Returns the whole key, for people to compare."""
        return f"{self.program}{self.environment}"

    @property
    def program_digest(self) -> str:
        """Returns the first half of `name`: equal for equal programs in any environment."""
        return hashlib.blake2b(self.program.encode(), digest_size=12).hexdigest()

    @property
    def name(self) -> str:
        """Returns the name of the entry."""
        environment = hashlib.blake2b(self.environment.encode(), digest_size=4).hexdigest()
        return f"{self.program_digest}-{environment}"


def key_of(
    gm: fx.GraphModule,
    example_inputs: Sequence[Any],
    options: Mapping[str, Any],
    tools: Mapping[str, str],
    hooks: Mapping[str, fx.GraphModule] = types.MappingProxyType({}),
) -> Key:
    """Returns the key of a torch-level graph under the current settings of torch.

    `options` affect the code besides the program; `tools` are the versions of the tools that build it; `hooks` are
    graphs that are inlined. Raises NotStorable if an object in the graph has no name with the same meaning in every
    process.
    """
    nodes = list(_all_nodes(gm))
    locations = tuple(node.meta.get("user_location") for node in nodes)
    context = GraphContext(_accelerator(nodes, example_inputs), locations)
    writer = _Writer(context, Symbols())
    names = [node.name for node in gm.graph.nodes if node.op == "placeholder"]
    facts = [f"  {name}: {writer.facts(value)}" for name, value in zip(names, example_inputs)]
    lines = ["program:", *writer.graph(gm, "  "), "inputs:", *facts]
    for name, hook in hooks.items():
        lines += [f"{name} hook:", *writer.graph(hook, "  ")]
    lines += ["numbers:", *(f"  {fact}" for fact in writer.symbols.facts())]
    lines += ["settings:", *_sorted_lines(_settings(context)), "options:", *_sorted_lines(options)]
    environment = ["environment:", *_sorted_lines({**_versions(), **tools})]
    texts = "\n".join(lines) + "\n", "\n".join(environment) + "\n"
    return Key(*texts, _describe(nodes), context, writer.symbols)


def is_replaced(name: str) -> bool:
    """Returns whether the program has replaced attribute `name` of torch's tensor class."""
    attribute = inspect.getattr_static(torch.Tensor, name, None)
    if getattr(attribute, "__name__", name) != name and not name.startswith("__"):  # the name of `__neg__` is `neg`
        return True
    module = attribute.__module__ if isinstance(attribute, types.FunctionType) else "torch"
    return module.partition(".")[0] != "torch"


def _sorted_lines(values: Mapping[str, Any]) -> list[str]:
    return [f"  {name}: {' '.join(str(values[name]).split())}" for name in sorted(values)]


def _describe(nodes: list[fx.Node]) -> str:
    operations = sum(node.op in ("call_function", "call_method") for node in nodes)
    locations = [location for node in nodes if isinstance(location := node.meta.get("user_location"), UserLocation)]
    outside_torch = [location for location in locations if not location.filename.startswith(_TORCH_FOLDER)]
    where = next(iter((*outside_torch, *locations)), "unknown place")
    return f"{where}, {counted(operations, 'operation')}"


def _all_nodes(gm: fx.GraphModule) -> Iterator[fx.Node]:
    """Yields the nodes of a graph and of the graphs inside it, in a fixed order."""
    for node in gm.graph.nodes:
        yield node
        if node.op == "get_attr":
            inner = operator.attrgetter(node.target)(gm)
            if isinstance(inner, fx.GraphModule):
                yield from _all_nodes(inner)


def differences(first: str, second: str) -> list[str]:
    """Returns the lines in which two keys differ: `- ` before lines of the first, `+ ` before lines of the second."""
    lines = difflib.unified_diff(first.splitlines(), second.splitlines(), lineterm="", n=0)
    return [f"{line[0]} {line[1:].strip()}" for line in list(lines)[2:] if not line.startswith("@@")]


# The graph


class _Writer:
    """Writes a graph and its inputs."""

    def __init__(self, context: GraphContext, symbols: Symbols) -> None:
        self.context = context
        self.symbols = symbols

    def graph(self, gm: fx.GraphModule, indent: str) -> Iterator[str]:
        for node in gm.graph.nodes:
            if is_cond(node):
                raise NotStorable("it holds a cond")  # the parts of a cond are compiled one by one
            if node.op == "placeholder":
                yield f"{indent}{node.name} = input{' (donated)' if node.meta.get('steal_arg') else ''}"
            elif node.op == "get_attr":
                inner = operator.attrgetter(node.target)(gm)
                if not isinstance(inner, fx.GraphModule):
                    raise NotStorable(f"it holds the {type(inner).__name__} {node.target}")
                yield f"{indent}{node.name} = graph:"
                yield from self.graph(inner, f"{indent}  ")
            elif node.op == "output":
                yield f"{indent}return {self.value(node.args[0])}"
            else:
                yield f"{indent}{node.name} = {self.target(node)}({', '.join(self.arguments(node))})"

    def arguments(self, node: fx.Node) -> Iterator[str]:
        yield from map(self.value, node.args)
        yield from (f"{name}={self.value(value)}" for name, value in node.kwargs.items())

    def target(self, node: fx.Node) -> str:
        if node.op == "call_method":
            if is_replaced(str(node.target)):
                raise NotStorable(f"the program has replaced torch.Tensor.{node.target}")
            return f".{node.target}"
        if node.op != "call_function":
            raise NotStorable(f"it calls the module {node.target}")
        cache_hash = node.meta.get("user_cache_hash")
        return _function_name(node.target) if cache_hash is None else f"user function {cache_hash!r}"

    def value(self, value: Any) -> str:
        if isinstance(value, fx.Node):
            return f"%{value.name}"
        if type(value) is float:
            return value.hex()
        if isinstance(value, torch.device):
            return f"device({self.context.device_text(value)})"
        if type(value) is str and _DEVICE.fullmatch(value):
            return f"device({self.context.device_text(_with_index(torch.device(value)))})"
        if type(value) in _REPR_TYPES:
            return repr(value)
        if isinstance(value, compat.SYMBOLIC_NUMBERS):
            return self.symbols.text(value)
        if isinstance(value, slice):
            return f"slice({self.value(value.start)}, {self.value(value.stop)}, {self.value(value.step)})"
        if isinstance(value, dict):
            return f"{{{', '.join(f'{self.value(k)}: {self.value(v)}' for k, v in value.items())}}}"
        if isinstance(value, (tuple, list)):
            items = ", ".join(map(self.value, value))
            kind = type(value).__name__ if isinstance(value, tuple) and type(value) is not tuple else ""
            return f"{kind}[{items}]" if isinstance(value, list) else f"{kind}({items},)"
        if isinstance(value, type) or callable(value):
            return _function_name(value)
        raise NotStorable(f"it holds {an(type(value).__name__)}")

    def facts(self, value: Any) -> str:
        """Returns the properties of an example input that tracing can see."""
        if isinstance(value, list):
            return f"[{', '.join(map(self.facts, value))}]"
        if isinstance(value, compat.SYMBOLIC_NUMBERS):
            return f"{type(value).__name__} {self.symbols.text(value)}"
        if type(value) in (bool, int, float, str, type(None)):
            return f"{type(value).__name__} {self.value(value)}"
        if type(value) not in (FakeTensor, torch.Tensor, torch.nn.Parameter):
            raise NotStorable(f"an input is {an(type(value).__name__)}")
        if value.layout is not torch.strided or value.is_quantized or value.is_nested:
            raise NotStorable("an input is a tensor without strides")
        marks = [name for name in ("requires_grad", "is_leaf") if getattr(value, name)]
        marks += [name for name in ("is_conj", "is_neg", "is_inference") if getattr(value, name)()]
        marks += ["parameter"] * isinstance(value, torch.nn.Parameter)
        sizes, strides = (", ".join(map(self.value, numbers)) for numbers in (value.shape, value.stride()))
        layout = f"[{sizes}] strides [{strides}] offset {self.value(value.storage_offset())}"
        return f"{value.dtype} {layout} {self.context.device_text(value.device)} {' '.join(marks)}".rstrip()


@functools.lru_cache(maxsize=4096)
def _function_name(function: Any) -> str:
    """Returns a name that means exactly this function in every process."""
    if isinstance(function, OpOverload):
        return operator_name(function)
    if isinstance(function, OpOverloadPacket):
        return f"{operator_name(getattr(function, function.overloads()[0])).partition('.')[0]}.*"
    if function in _OWN_FUNCTIONS:
        return _OWN_FUNCTIONS[function]
    if isinstance(function, types.FunctionType) and (function.__module__ or "").partition(".")[0] != "torch":
        raise NotStorable(f"it calls {function.__qualname__}, which is not a part of torch")
    name = getattr(function, "__name__", "")
    for label, namespace in _NAMESPACES:
        if inspect.getattr_static(namespace, name, None) is function or getattr(namespace, name, None) is function:
            return f"{label}.{name}"
    return _name_in_torch(function)


def _name_in_torch(function: Any) -> str:
    module, qualname = getattr(function, "__module__", None), getattr(function, "__qualname__", "")
    named: Any = sys.modules.get(module or "")
    if module and module.partition(".")[0] in ("torch", "builtins", "_operator") and named is not None:
        for part in qualname.split("."):
            named = getattr(named, part, None)
        if named is function:
            return f"{module}.{qualname}"
    raise NotStorable(f"it calls {qualname or type(function).__name__}, which is not a part of torch")


# Settings


def _accelerator(nodes: Iterable[fx.Node], example_inputs: Sequence[Any]) -> torch.device | None:
    """Returns the only device besides the CPU that the graph or its inputs use; None if there is none, or several."""
    used: set[torch.device] = set(settings().devices)
    pending: list[Any] = [*example_inputs]
    for node in nodes:
        pending += [*node.args, *node.kwargs.values()]
        if node.op == "call_method" and node.target in ("cuda", "xpu") and len(node.args) + len(node.kwargs) > 1:
            return None  # it may name the device by a number
    while pending:
        value = pending.pop()
        if isinstance(value, torch.Tensor):
            used.add(value.device)
        elif isinstance(value, torch.device):
            used.add(value)
        elif type(value) is str and _DEVICE.fullmatch(value):
            used.add(torch.device(value))
        elif isinstance(value, (list, tuple)):
            pending += value
    devices = {_with_index(device) for device in used if device.type not in ("cpu", "meta")}
    return devices.pop() if len(devices) == 1 else None


def _with_index(device: torch.device) -> torch.device:
    if device.index is None and device.type not in ("cpu", "meta"):
        return torch.device(device.type, torch.accelerator.current_device_index())
    return device


def _settings(context: GraphContext) -> dict[str, Any]:
    """Returns the settings of this thread and process that may change the traced graph."""
    now = settings()
    flags = {question.__name__.removeprefix("_get_"): question() for question in compat.GUARDED_QUESTIONS}
    return {
        **flags,
        "grad_enabled": now.grad_enabled,
        "autocast": now.autocast,
        "autocast_cache": now.autocast_cache,
        "default_dtype": now.default_dtype,
        "attention": now.attention,
        "inference": torch.is_inference_mode_enabled(),
        "devices": [context.device_text(_with_index(device)) for device in now.devices],
    }


@functools.cache
def _versions() -> Mapping[str, str]:
    package = os.path.dirname(os.path.dirname(__file__))
    # Every first compile waits for this: `os.walk` takes 1 ms where `Path.rglob` takes 8.
    paths = (os.path.join(folder, file) for folder, _, files in os.walk(package) for file in files)
    digest = hashlib.blake2b(digest_size=16)
    for path in sorted(path for path in paths if path.endswith(_SOURCES)):
        digest.update(f"{path[len(package) + 1 :]}\n".encode())
        with open(path, "rb", buffering=0) as source:
            digest.update(source.read())
    return types.MappingProxyType(
        {
            "minidynamo": digest.hexdigest(),
            "python": f"{platform.python_implementation()} {platform.python_version()}",
            "torch": f"{torch.__version__} {torch.version.git_version}",
        }
    )
