"""Attribute access: Python's order of lookup, once, for values of every kind.

Owns reading, finding and writing attributes, with the guards that each needs.
Does not own attributes of tensors that are operations (`handlers/tensors.py`).
Enter at `lookup.read_attribute`, `lookup.write_attribute`.
"""

from minidynamo.tracer.attributes import built_in, calls, classes, functions, objects, python_modules
from minidynamo.tracer.attributes.binding import (
    MISSING,
    bind,
    class_has,
    class_of,
    class_source,
    guard_class_attribute,
    lookup_on_class,
    overrides_class,
)
from minidynamo.tracer.attributes.instances import MODULE_TABLES, instance_dict, is_plain_namespace, namespace_of
from minidynamo.tracer.attributes.lookup import find_attribute, read_attribute, read_lazy, write_attribute

__all__ = [
    "MISSING",
    "MODULE_TABLES",
    "bind",
    "built_in",
    "calls",
    "class_has",
    "class_of",
    "class_source",
    "classes",
    "find_attribute",
    "functions",
    "guard_class_attribute",
    "instance_dict",
    "is_plain_namespace",
    "lookup_on_class",
    "namespace_of",
    "objects",
    "overrides_class",
    "python_modules",
    "read_attribute",
    "read_lazy",
    "write_attribute",
]
