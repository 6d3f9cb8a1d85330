"""Owns the opcodes that build containers and strings, and the opcodes that unpack them.

A container under construction is new, unless a graph break separates its parts: then it is an external value. Methods
of containers are not here (`handlers/`)."""

from __future__ import annotations

import operator
from typing import Any

from minidynamo.bytecode.instructions import Instruction
from minidynamo.tracer.calls import set_order
from minidynamo.tracer.frames.interpreter import Frame
from minidynamo.tracer.frames.unrolling import limit_copy
from minidynamo.tracer.handlers.values import expect_key
from minidynamo.tracer.lazy.lazy_value import next_lazy, unpack_lazy, unpack_mapping
from minidynamo.tracer.numbers.formatting import joined
from minidynamo.tracer.opcodes.exceptions_with import stop_iteration_error
from minidynamo.tracer.opcodes.table import opcode
from minidynamo.tracer.records.constants import as_constant
from minidynamo.variables.base import ConstantVariable, VariableTracker
from minidynamo.variables.containers import DictVariable, ListVariable, SequenceVariable, TupleVariable
from minidynamo.variables.objects import OpaqueVariable


@opcode("BUILD_TUPLE")
def build_tuple(frame: Frame, instruction: Instruction) -> None:
    frame.push(TupleVariable(frame.pop_many_lazy(instruction.argval)))


@opcode("BUILD_LIST")
def build_list(frame: Frame, instruction: Instruction) -> None:
    frame.push(ListVariable(frame.pop_many_lazy(instruction.argval)))


@opcode("BUILD_SET")
def build_set(frame: Frame, instruction: Instruction) -> None:
    items = frame.pop_many(instruction.argval)
    frame.push(set_order.new_set(expect_key(frame.tx, item) for item in items))


@opcode("BUILD_MAP")
def build_map(frame: Frame, instruction: Instruction) -> None:
    values = frame.pop_many_lazy(2 * instruction.argval)
    keys = [expect_key(frame.tx, key.realize()) for key in values[::2]]
    frame.push(DictVariable(dict(zip(keys, values[1::2]))))


@opcode("BUILD_CONST_KEY_MAP")
def build_const_key_map(frame: Frame, instruction: Instruction) -> None:
    keys = frame.pop()
    assert isinstance(keys, SequenceVariable)
    values = frame.pop_many_lazy(instruction.argval)
    items = {expect_key(frame.tx, key): value for key, value in zip(keys.items, values)}
    frame.push(DictVariable(items))


@opcode("LIST_TO_TUPLE")
def list_to_tuple(frame: Frame, instruction: Instruction) -> None:
    items = frame.pop()
    assert isinstance(items, ListVariable)
    limit_copy(frame.tx, items)
    frame.push(TupleVariable(items.items.lazy()))


@opcode("CALL_INTRINSIC_1", "CALL_INTRINSIC_2")
def call_intrinsic(frame: Frame, instruction: Instruction) -> None:
    if instruction.argval == "INTRINSIC_LIST_TO_TUPLE":
        list_to_tuple(frame, instruction)
    elif instruction.argval == "INTRINSIC_UNARY_POSITIVE":
        frame.push(frame.tx.call(operator.pos, [frame.pop()]))
    elif instruction.argval == "INTRINSIC_STOPITERATION_ERROR":
        stop_iteration_error(frame)
    else:
        name = instruction.argval.removeprefix("INTRINSIC_").lower()
        frame.tx.break_graph("MD203", f"the instruction {name} cannot be captured")


# Opcodes that add to a container under construction, which is on the stack `depth` values below the new item


def under_construction(frame: Frame, depth: int) -> Any:
    """Returns the list, set or dict `depth` values from the top of the stack, for a change."""
    container = frame.peek(depth)
    if isinstance(container, OpaqueVariable):
        frame.tx.break_graph("MD206", f"a large {container.python_type.__name__} is built across a graph break")
    if container.source is not None:
        frame.tx.side_effects.contents_changed(container)
    return container


@opcode("LIST_APPEND")
def list_append(frame: Frame, instruction: Instruction) -> None:
    item = frame.pop_lazy()
    container = under_construction(frame, instruction.argval)
    container.items.append(item)


@opcode("LIST_EXTEND")
def list_extend(frame: Frame, instruction: Instruction) -> None:
    added = frame.pop()
    limit_copy(frame.tx, added)
    items = unpack_lazy(frame.tx, added)
    container = under_construction(frame, instruction.argval)
    container.items.extend(items)


@opcode("SET_ADD")
def set_add(frame: Frame, instruction: Instruction) -> None:
    item = frame.pop()
    set_order.add(under_construction(frame, instruction.argval), expect_key(frame.tx, item))


@opcode("SET_UPDATE")
def set_update(frame: Frame, instruction: Instruction) -> None:
    other = frame.pop()
    frame.tx.call(set.update, [under_construction(frame, instruction.argval), other])


@opcode("MAP_ADD")
def map_add(frame: Frame, instruction: Instruction) -> None:
    value, key = frame.pop_lazy(), frame.pop()
    container = under_construction(frame, instruction.argval)
    container.items[expect_key(frame.tx, key)] = value


@opcode("DICT_UPDATE", "DICT_MERGE")
def dict_update(frame: Frame, instruction: Instruction) -> None:
    other = unpack_mapping(frame.tx, frame.pop())
    target: DictVariable = under_construction(frame, instruction.argval)
    for key, value in other.items():
        if instruction.opname == "DICT_MERGE" and key in target.items:
            frame.tx.raises(TypeError(f"got multiple values for keyword argument {key.token!r}"))
        target.items[key] = value


# Strings


def _text(frame: Frame, value: VariableTracker, conversion: object, spec: VariableTracker) -> VariableTracker:
    if conversion is not None:
        value = frame.tx.call(conversion, [value])  # type: ignore[arg-type]
    return frame.tx.call(format, [value, spec])


@opcode("FORMAT_VALUE")
def format_value(frame: Frame, instruction: Instruction) -> None:
    conversion, has_spec = instruction.argval
    spec = frame.pop() if has_spec else ConstantVariable("")
    frame.push(_text(frame, frame.pop(), conversion, spec))


@opcode("CONVERT_VALUE")
def convert_value(frame: Frame, instruction: Instruction) -> None:
    frame.push(frame.tx.call(instruction.argval, [frame.pop()]))


@opcode("FORMAT_SIMPLE")
def format_simple(frame: Frame, instruction: Instruction) -> None:
    frame.push(_text(frame, frame.pop(), None, ConstantVariable("")))


@opcode("FORMAT_WITH_SPEC")
def format_with_spec(frame: Frame, instruction: Instruction) -> None:
    value, spec = frame.pop_many(2)
    frame.push(_text(frame, value, None, spec))


@opcode("BUILD_STRING")
def build_string(frame: Frame, instruction: Instruction) -> None:
    parts = frame.pop_many(instruction.argval)
    text = joined(frame.tx, "", parts)
    frame.push(ConstantVariable("".join(map(as_constant, parts))) if text is None else text)


# Unpacking


@opcode("UNPACK_SEQUENCE")
def unpack_sequence(frame: Frame, instruction: Instruction) -> None:
    count = instruction.argval
    items = _first_items(frame, frame.pop(), count + 1)
    if len(items) > count:
        frame.tx.raises(ValueError(f"too many values to unpack (expected {count})"), exact=True)
    if len(items) < count:
        message = f"not enough values to unpack (expected {count}, got {len(items)})"
        frame.tx.raises(ValueError(message), exact=True)
    frame.stack.extend(reversed(items))


def _first_items(frame: Frame, iterable: VariableTracker, count: int) -> list[VariableTracker]:
    """Returns at most `count` items; an iterator is not advanced further."""
    if isinstance(iterable, SequenceVariable):
        return [iterable.items.lazy_at(position) for position in range(min(count, len(iterable.items)))]
    return _take(frame, frame.tx.call(iter, [iterable]), count)


def _take(frame: Frame, iterator: VariableTracker, count: int) -> list[VariableTracker]:
    items: list[VariableTracker] = []
    while len(items) < count and (item := next_lazy(frame.tx, iterator)) is not None:
        items.append(item)
    return items


@opcode("UNPACK_EX")
def unpack_ex(frame: Frame, instruction: Instruction) -> None:
    before, after = instruction.argval & 0xFF, instruction.argval >> 8
    iterable = frame.pop()
    if isinstance(iterable, SequenceVariable):
        items = iterable.items.lazy()
    else:  # the items before the starred name, then `list(iterator)`
        iterator = frame.tx.call(iter, [iterable])
        items = _take(frame, iterator, before)
        items += unpack_lazy(frame.tx, iterator) if len(items) == before else []
    if len(items) < before + after:
        message = f"not enough values to unpack (expected at least {before + after}, got {len(items)})"
        frame.tx.raises(ValueError(message), exact=True)
    last = len(items) - after
    frame.stack.extend(reversed(items[last:]))
    frame.push(ListVariable(items[before:last]))
    frame.stack.extend(reversed(items[:before]))
