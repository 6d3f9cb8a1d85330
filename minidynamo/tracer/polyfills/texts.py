"""Owns the polyfills of formatting by `%` and `str.format`, for values whose text is made by user code.

Texts of constants are not here: Python makes them (`handlers/texts.py`)."""

# Polyfills are traced, not called, and accept all arguments of the original, so annotations would add nothing.
# mypy: allow-untyped-defs, allow-untyped-calls

from __future__ import annotations

import re
import string

from minidynamo.tracer.records import registry
from minidynamo.tracer.records.registry import cannot_trace, polyfill

_FIELD = re.compile(r"%(?:\(([^()]*)\))?([-#0 +]*\d*(?:\.\d*)?)[hlL]?([a-zA-Z%])")
_NAME = re.compile(r"([^.\[]*)((?:\.[^.\[]+|\[[^\]]+\])*)")
_STEP = re.compile(r"\.([^.\[]+)|\[([^\]]+)\]")
_NUMBERS = (int, float, bool)


@polyfill(ascii)
def ascii_text(obj, /):
    return repr(obj).encode("ascii", "backslashreplace").decode("ascii")


def percent_fields(text):
    """Returns the fields of a text for `%`: (text after the last field, number of positional values, fields).

    Each field is (text before it, key, flags, kind). None for text that is invalid or not supported here."""
    fields, position = [], 0
    for match in _FIELD.finditer(text):
        fields.append((text[position : match.start()], *match.groups()))
        position = match.end()
    rest = text[position:]
    keys = [key for _, key, _, kind in fields if kind != "%"]
    is_unusual = "%" in rest or any("%" in before or (kind == "%" and flags) for before, _, flags, kind in fields)
    if is_unusual or (None in keys and any(key is not None for key in keys)):
        return None
    return rest, keys.count(None), tuple(fields)


def percent(text, values):
    """Returns `text % values`."""
    read = percent_fields(text)
    if read is None:
        return cannot_trace("a text with unusual `%`", "only Python knows its meaning")
    rest, count, fields = read
    given = list(values) if isinstance(values, tuple) else [values]
    if count != len(given) and (count > 0 or not isinstance(values, dict)):
        return cannot_trace("`%` with more or fewer values than fields", "Python refuses it")
    result = ""
    for before, key, flags, kind in fields:
        result += before
        if kind == "%":
            result += "%"
            continue
        value = given.pop(0) if key is None else values[key]
        if kind in "sra":
            value, kind = (str if kind == "s" else repr if kind == "r" else ascii)(value), "s"
        elif type(value) not in _NUMBERS:
            return cannot_trace("`%` with an object as a number", "only Python knows the result")
        result += f"%{flags}{kind}" % (value,)
    return result + rest if rest else result


def format_fields(text):
    """Returns the fields of a text for `str.format`: (text before it, argument, path, format, conversion) each.

    None for text that is invalid or not supported here."""
    fields, automatic = [], 0
    try:
        parsed = [*string.Formatter().parse(text)]
    except ValueError:
        return None
    for before, name, how, conversion in parsed:
        split = _NAME.fullmatch(name or "")
        if split is None or "{" in (how or "") or conversion not in (None, "s", "r", "a"):
            return None
        first = split[1]
        if name is not None and not first:
            first, automatic = automatic, automatic + 1
        elif first.isdecimal():
            first = int(first)
        steps = [(one or other, bool(one)) for one, other in _STEP.findall(split[2])]
        path = tuple((int(key) if key.isdecimal() and not named else key, named) for key, named in steps)
        fields.append((before, None if name is None else first, path, how or "", conversion))
    written = [first for _, first, *_ in fields if isinstance(first, int)]
    return tuple(fields) if not automatic or automatic == len(written) else None


def format_text(text, args, named):
    """Returns `text.format(*args, **named)`."""
    fields = format_fields(text)
    if fields is None:
        return cannot_trace("a text with unusual fields", "only Python knows their meaning")
    result = ""
    for before, first, path, how, conversion in fields:
        result += before
        if first is None:
            continue
        if isinstance(first, int) and first >= len(args):
            return cannot_trace("a text with more fields than values", "Python refuses it")
        value = args[first] if isinstance(first, int) else named[first]
        for key, is_attribute in path:
            value = getattr(value, key) if is_attribute else value[key]
        if conversion is not None:
            value = (str if conversion == "s" else repr if conversion == "r" else ascii)(value)
        result += format(value, how)
    return result


registry.fold(percent_fields, format_fields)
