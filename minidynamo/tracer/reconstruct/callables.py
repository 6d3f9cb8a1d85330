"""Owns how functions, methods, cells and generators that a program created are rebuilt.

Functions and classes that exist outside the frame are not here: `rebuilder.py` names them."""

from __future__ import annotations

import functools
import types
from collections.abc import Iterable

from minidynamo.graph.func_transforms import PullBack
from minidynamo.tracer.frames.generators import GeneratorVariable, finished, maker_of, suspended, suspension
from minidynamo.tracer.reconstruct.builders import BUILDERS, builds, fills, hint_of, keeps
from minidynamo.tracer.reconstruct.iterators import advance
from minidynamo.tracer.reconstruct.rebuilder import Rebuilder, tuple_literal
from minidynamo.variables.base import VariableTracker
from minidynamo.variables.callables import (
    BoundBuiltin,
    CellVariable,
    LibraryCallable,
    MethodVariable,
    NestedFunctionVariable,
    PartialVariable,
    PullBackVariable,
    SuperVariable,
)
from minidynamo.variables.containers import DictVariable, TupleVariable
from minidynamo.variables.iterators import LibraryIterator


@builds(CellVariable, hint="cell")
def _cell(rebuild: Rebuilder, variable: CellVariable) -> str:
    contents = "" if variable.contents is None else rebuild.value(variable.contents)
    return f"{rebuild.constant(types.CellType)}({contents})"


def _empty_cell(rebuild: Rebuilder, variable: CellVariable) -> str:
    return f"{rebuild.constant(types.CellType)}()"


@fills(CellVariable, empty=_empty_cell)
def _fill_cell(rebuild: Rebuilder, variable: CellVariable, name: str) -> None:
    if variable.contents is not None:
        rebuild.lines.append(f"{name}.cell_contents = {rebuild.value(variable.contents)}")


@builds(NestedFunctionVariable, hint="function")
def _nested_function(rebuild: Rebuilder, variable: NestedFunctionVariable) -> str:
    code = rebuild.names.constant(variable.code, f"{variable.code.co_name}_code")
    namespace = rebuild.names.constant(variable.namespace, "G")
    closure = tuple_literal([rebuild.value(cell) for cell in variable.closure]) if variable.closure else "None"
    defaults = "None" if variable.defaults is None else rebuild.value(variable.defaults)
    arguments = [code, namespace, "None", defaults, closure]
    while arguments[-1] == "None":
        arguments.pop()
    text = f"{rebuild.constant(types.FunctionType)}({', '.join(arguments)})"
    attributes = dict(_function_attributes(rebuild, variable))
    if not attributes:
        return text
    name = rebuild.assign(hint_of(variable), text)
    store = rebuild.constant(setattr)
    rebuild.lines += [f"{store}({name}, {attribute!r}, {value})" for attribute, value in attributes.items()]
    return name


def _function_attributes(rebuild: Rebuilder, variable: NestedFunctionVariable) -> Iterable[tuple[str, str]]:
    if variable.qualname != variable.code.co_qualname:
        yield "__qualname__", repr(variable.qualname)
    if variable.kwdefaults is not None:
        yield "__kwdefaults__", rebuild.value(variable.kwdefaults)
    if isinstance(variable.annotations, TupleVariable):  # names and values alternate, as in the bytecode
        items = variable.annotations.items.lazy()
        pairs = [f"{rebuild.value(name)}: {rebuild.value(value)}" for name, value in zip(items[::2], items[1::2])]
        yield "__annotations__", f"{{{', '.join(pairs)}}}"
    elif variable.annotations is not None:
        yield "__annotations__", rebuild.value(variable.annotations)
    for attribute, value in variable.attributes.items():
        yield attribute, rebuild.value(value)


@builds(MethodVariable, hint="method")
def _method(rebuild: Rebuilder, variable: MethodVariable) -> str:
    return f"{rebuild.constant(types.MethodType)}({rebuild.values((variable.function, variable.receiver))})"


@builds(BoundBuiltin, hint="method")
def _bound_builtin(rebuild: Rebuilder, variable: BoundBuiltin) -> str:
    return f"{rebuild.value(variable.receiver)}.{variable.name}"


@builds(PartialVariable)
def _partial(rebuild: Rebuilder, variable: PartialVariable) -> str:
    return f"{rebuild.constant(functools.partial)}({parts_of_partial(rebuild, variable)})"


def parts_of_partial(rebuild: Rebuilder, variable: PartialVariable) -> str:
    """Returns the arguments that create the partial again."""
    arguments = [rebuild.value(part) for part in (variable.function, *variable.args.items.lazy())]
    arguments += [f"**{BUILDERS[DictVariable](rebuild, variable.keywords)}"] * bool(variable.keywords.items)
    return ", ".join(arguments)


@keeps(PartialVariable)
def _parts_of_partial(variable: PartialVariable) -> dict[str, VariableTracker]:
    return {"args": variable.args, "keywords": variable.keywords}


@builds(LibraryCallable)
def _library_callable(rebuild: Rebuilder, variable: LibraryCallable) -> str:
    return f"{rebuild.constant(variable.make)}({_arguments(rebuild, variable)})"


@builds(SuperVariable)
def _super(rebuild: Rebuilder, variable: SuperVariable) -> str:
    return f"{rebuild.constant(super)}({rebuild.constant(variable.cls)}, {rebuild.value(variable.receiver)})"


@builds(GeneratorVariable)
def _generator(rebuild: Rebuilder, variable: GeneratorVariable) -> str:
    """Rebuilds a generator: by its call before the start, otherwise suspended at the same point."""
    code = variable.frame.code
    if variable.finished:
        return f"{rebuild.constant(finished)}({rebuild.names.constant(code, f'{code.co_name}_code')})"
    if variable.started:
        values = f"[{rebuild.values(suspension(variable)[1])}]"
        make = rebuild.names.constant(maker_of(variable), code.co_name)
        return f"{rebuild.constant(suspended)}({make}, {values})"
    return f"{rebuild.value(variable.function)}({_arguments(rebuild, variable)})"


@builds(LibraryIterator)
def _library_iterator(rebuild: Rebuilder, variable: LibraryIterator) -> str:
    """Makes the iterator again, or a substitute if the program cannot see the class (see `tracer/capture/frame.py`)."""
    if variable.is_lost:
        return rebuild.value(variable.iterator)
    call = f"{rebuild.constant(variable.make)}({_arguments(rebuild, variable)})"
    return f"{rebuild.constant(advance)}({call}, {variable.items_taken})" if variable.items_taken else call


def _arguments(rebuild: Rebuilder, call: GeneratorVariable | LibraryIterator | LibraryCallable) -> str:
    """Returns the arguments of the call that created a value, for another call."""
    arguments = [rebuild.value(argument) for argument in call.args]
    arguments += [f"{name}={rebuild.value(value)}" for name, value in call.kwargs.items()]
    return ", ".join(arguments)


@builds(PullBackVariable)
def _pull_back(rebuild: Rebuilder, variable: PullBackVariable) -> str:
    transformation = rebuild.names.constant(variable.transformation, "vjp")
    function = rebuild.names.constant(variable.module, "function")
    return f"{rebuild.constant(PullBack)}({transformation}, {function}, ({rebuild.values(variable.inputs)},))"
