"""Handlers: what calls of functions and methods mean while tracing, one file per family; importing it registers all."""

from minidynamo.tracer import library_polyfills, module_polyfills, polyfills
from minidynamo.tracer.handlers import (
    builtins,
    callables,
    constants,
    dicts,
    iterators,
    lists,
    objects,
    references,
    sets,
    steering,
    tensors,
    torch_functions,
)

__all__ = [
    "builtins",
    "callables",
    "constants",
    "dicts",
    "iterators",
    "library_polyfills",
    "lists",
    "module_polyfills",
    "objects",
    "polyfills",
    "references",
    "sets",
    "steering",
    "tensors",
    "torch_functions",
]
