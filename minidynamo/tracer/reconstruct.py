"""Owns the text that rebuilds values after a graph has run: from outputs, loaded names, constants, and new containers.

It does not decide which values are needed or when effects are replayed; `residual.py` does. What lives outside is never
rebuilt, only named. An object that is referred to several times is built once.
"""

from __future__ import annotations

import collections
import functools
import inspect
import itertools
import math
import sys
import types
import weakref
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import torch

from minidynamo.errors import Diagnostic, InternalError
from minidynamo.guards.source import Constant
from minidynamo.guards.writers import CONTAINERS
from minidynamo.names import Namespace, module_of, name_of
from minidynamo.tracer.exceptions import native_base
from minidynamo.tracer.generators import GeneratorVariable, finished, maker_of, suspended, suspension
from minidynamo.tracer.reachable import is_outside, parts
from minidynamo.tracer.set_order import arrangement
from minidynamo.tracer.side_effects import SideEffects
from minidynamo.variables.base import VariableTracker
from minidynamo.variables.callables import (
    BoundBuiltin,
    BuiltinVariable,
    CellVariable,
    FunctionVariable,
    MethodVariable,
    NestedFunctionVariable,
    PartialVariable,
    SuperVariable,
)
from minidynamo.variables.constants import ConstantVariable
from minidynamo.variables.containers import (
    DictVariable,
    DictViewVariable,
    ListVariable,
    SetVariable,
    SliceVariable,
    TupleVariable,
)
from minidynamo.variables.contexts import ContextExitVariable, ContextVariable
from minidynamo.variables.exceptions import ExceptionVariable
from minidynamo.variables.iterators import (
    ChainIterator,
    DictIterator,
    EnumerateIterator,
    LibraryIterator,
    MapIterator,
    SequenceIterator,
    SliceIterator,
    ZipIterator,
)
from minidynamo.variables.objects import (
    ClassVariable,
    IdVariable,
    ModuleVariable,
    NamespaceVariable,
    ObjectVariable,
    PythonModuleVariable,
)
from minidynamo.variables.references import WeakReferenceVariable

# Classes whose own names ("cell", "function") say less than those under which `types` has them.
_TYPE_NAMES = {types.CellType: "CellType", types.FunctionType: "FunctionType", types.MethodType: "MethodType"}
# Iterators, by class: what makes one, and of what. Those over ranges and text are made of all their items at once.
_ITERABLES: dict[type, tuple[Callable[..., Any], type]] = {
    type(make(iterable())): (make, iterable)
    for make, iterable in ((iter, list), (iter, tuple), (iter, set), (iter, collections.deque))
}
_ITERABLES |= {type(reversed(iterable())): (reversed, iterable) for iterable in (tuple, list, collections.deque)}
_RANGES = (type(iter(range(0))), type(iter(range(2**70))))
_TEXTS = (type(iter("a")), type(iter(chr(233))))
_LIBRARIES = ("torch", "builtins", "operator", "math", "functools", "itertools", "collections", "types", "copy")


class Rebuilder:
    """Writes the statements that rebuild values. `known` names the graph's outputs and what was loaded before.

    `lines` are the statements so far; `late` those that must come after all effects; `entering` those that enter
    context managers, last of all.
    """

    def __init__(
        self,
        names: Namespace,
        side_effects: SideEffects,
        known: Mapping[VariableTracker, str],
        needed: Iterable[VariableTracker],
    ) -> None:
        self.names = names
        self.side_effects = side_effects
        self.lines: list[str] = []
        self.late: list[str] = []
        self.entering: list[str] = []
        self.bound: list[str] = []
        self._known = dict(known)
        self._uses = Counter(needed)
        self._cyclic: set[VariableTracker] = set()
        self._unfilled: list[tuple[VariableTracker, str]] = []
        self._refilled: set[VariableTracker] = set()
        self._depth = 0
        self._survey()

    def _survey(self) -> None:
        """Count who is referred to how often, and find the changeable values that contain themselves."""
        todo = list(self._uses)
        seen: set[VariableTracker] = set()
        graph: dict[VariableTracker, list[VariableTracker]] = {}
        while todo:
            variable = todo.pop()
            if variable in seen or variable in self._known or is_outside(variable):
                continue
            seen.add(variable)
            graph[variable] = list(parts(variable, self.side_effects))
            self._uses.update(graph[variable])
            todo += graph[variable]
        for variable in graph:
            if type(variable) in _FILLERS and _contains_itself(variable, graph):
                self._cyclic.add(variable)

    def value(self, variable: VariableTracker) -> str:
        """An expression for the value: a name, a literal, or the construction of what is used only here."""
        if variable in self._known:
            return self._known[variable]
        if isinstance(variable, ConstantVariable):
            return self.literal(variable.value)
        if isinstance(variable.source, Constant):
            return self.constant(variable.source.value, variable.source.name)
        if isinstance(variable, CellVariable) and variable.cell is not None:
            return self.names.constant(variable.cell, "cell")
        build = _BUILDERS.get(type(variable))
        if build is None or variable.source is not None:
            raise _cannot_rebuild(variable)
        self._depth += 1
        text = self._build_cyclic(variable) if variable in self._cyclic else self._build(variable, build)
        self._depth -= 1
        self._fill_waiting()
        return text

    def _build(self, variable: VariableTracker, build: Callable[[Rebuilder, Any], str]) -> str:
        text = build(self, variable)
        if build is _known_object:
            return text
        if self._uses[variable] > 1 and not text.isidentifier():
            text = self.assign(_hint(variable), text)
        if self._uses[variable] > 1 or isinstance(variable, DictIterator):
            self._known[variable] = text
        return text

    def _build_cyclic(self, variable: VariableTracker) -> str:
        """Make the value without its contents, which are put in when everything around it exists."""
        make, _ = _FILLERS[type(variable)]
        name = self.assign(_hint(variable), make(self, variable))
        self._known[variable] = name
        self._unfilled.append((variable, name))
        return name

    def _fill_waiting(self) -> None:
        while self._depth == 0 and self._unfilled:
            variable, name = self._unfilled.pop(0)
            self._depth += 1
            _, fill = _FILLERS[type(variable)]
            fill(self, variable, name)
            self._depth -= 1

    def refill_once(self, container: VariableTracker) -> list[str]:
        """Statements that give a container from outside its new contents; none when that was done before."""
        if container in self._refilled:
            return []
        self._refilled.add(container)
        return refill(self, container, self.value(container))

    def values(self, variables: Iterable[VariableTracker]) -> str:
        """Comma-separated expressions."""
        return ", ".join([self.value(variable) for variable in variables])

    def assign(self, hint: str, text: str) -> str:
        """Bind the value of `text` to a new name, which is returned."""
        name = self.names.fresh(hint)
        self.bound.append(name)
        self.lines.append(f"{name} = {text}")
        return name

    def literal(self, value: object) -> str:
        """Python text for a constant: a literal where there is one, else a readable path or a named constant."""
        if value is None or type(value) in (bool, int, str, bytes):
            return repr(value)
        if type(value) is float and math.isfinite(value):
            return repr(value)
        if type(value) is tuple:
            return f"({''.join(self.literal(part) + ', ' for part in value)})"
        if isinstance(value, torch.dtype):
            return f"{self.names.constant(torch, 'torch')}.{str(value).removeprefix('torch.')}"
        return self.constant(value)

    def constant(self, value: object, hint: str = "") -> str:
        """Text for an object that is known now and lives on: its path in a library, or a name of its own."""
        if isinstance(value, type) and value in _TYPE_NAMES:
            return self.names.constant(value, _TYPE_NAMES[value])
        name = name_of(value)
        for module in (module_of(value), "torch", "torch.nn.functional", "torch.Tensor"):
            root, _, rest = module.partition(".")
            if root not in _LIBRARIES or root not in sys.modules:
                continue
            owner: Any = sys.modules[root]
            for part in filter(None, rest.split(".")):
                owner = getattr(owner, part, None)
            if getattr(owner, name, None) is value and name.isidentifier():
                if root == "builtins":
                    return self.names.constant(value, name)
                return ".".join(filter(None, (self.names.constant(sys.modules[root], root), rest, name)))
        return self.names.constant(value, hint or name)


def _contains_itself(variable: VariableTracker, graph: Mapping[VariableTracker, list[VariableTracker]]) -> bool:
    todo = list(graph[variable])
    seen: set[VariableTracker] = set()
    while todo:
        part = todo.pop()
        if part is variable:
            return True
        if part not in seen:
            seen.add(part)
            todo += graph.get(part, ())
    return False


def _hint(variable: VariableTracker) -> str:
    return _HINTS.get(type(variable)) or variable.python_type.__name__.lower()


def _cannot_rebuild(variable: VariableTracker) -> InternalError:
    what = f"a value of class {variable.python_type.__name__} ({type(variable).__name__}) cannot be rebuilt"
    why = "The tracer must break the graph before such a value is needed behind it."
    return InternalError(Diagnostic("MD260", what, why=why, fix="Please report this with the function."))


# Containers


def _list(rebuild: Rebuilder, variable: ListVariable) -> str:
    items = f"[{rebuild.values(variable.items)}]"
    if variable.cls is list:
        return items
    return f"{rebuild.constant(variable.cls)}({items}{'' if variable.maxlen is None else f', {variable.maxlen}'})"


def _fill_list(rebuild: Rebuilder, variable: ListVariable, name: str) -> None:
    rebuild.lines.append(f"{name}.extend([{rebuild.values(variable.items)}])")


def _tuple_literal(texts: Iterable[str]) -> str:
    texts = list(texts)
    return f"({', '.join(texts)}{',' * (len(texts) == 1)})"


def _tuple(rebuild: Rebuilder, variable: TupleVariable) -> str:
    items = _tuple_literal([rebuild.value(item) for item in variable.items])
    if variable.cls is tuple:
        return items
    cls = rebuild.constant(variable.cls)
    if hasattr(variable.cls, "_fields"):  # a namedtuple, whose __new__ may be the user's
        return f"{rebuild.constant(tuple)}.__new__({cls}, {items})"
    return f"{cls}({items})"


def _pairs(rebuild: Rebuilder, variable: DictVariable) -> str:
    pairs = [f"{rebuild.value(key.variable)}: {rebuild.value(value)}" for key, value in variable.items.items()]
    return f"{{{', '.join(pairs)}}}"


def _dict(rebuild: Rebuilder, variable: DictVariable) -> str:
    pairs = _pairs(rebuild, variable)
    return pairs if variable.cls is dict else _dict_of(rebuild, variable, pairs)


def _namespace(rebuild: Rebuilder, variable: NamespaceVariable) -> str:
    if isinstance(variable.owner, DictVariable):
        return f"{rebuild.constant(types.MappingProxyType)}({rebuild.value(variable.owner)})"
    return f"{rebuild.value(variable.owner)}.__dict__"


def _id(rebuild: Rebuilder, variable: IdVariable) -> str:
    return f"{rebuild.constant(id)}({rebuild.value(variable.of)})"


def _dict_of(rebuild: Rebuilder, variable: DictVariable, pairs: str) -> str:
    cls = rebuild.constant(variable.cls)
    if variable.cls is collections.defaultdict:
        factory = "None" if variable.default_factory is None else rebuild.value(variable.default_factory)
        return f"{cls}({factory}, {pairs})" if pairs else f"{cls}({factory})"
    return f"{cls}({pairs})"


def _empty_dict(rebuild: Rebuilder, variable: DictVariable) -> str:
    return "{}" if variable.cls is dict else _dict_of(rebuild, variable, "")


def _fill_dict(rebuild: Rebuilder, variable: DictVariable, name: str) -> None:
    rebuild.lines.append(f"{name}.update({_pairs(rebuild, variable)})")


def _set_items(rebuild: Rebuilder, variable: SetVariable) -> str:
    keys = arrangement(variable) or variable.items
    if isinstance(keys, frozenset):
        return rebuild.constant(keys, "items")
    return _tuple_literal([rebuild.value(key.variable) for key in keys])


def _set(rebuild: Rebuilder, variable: SetVariable) -> str:
    cls = rebuild.constant(variable.cls)
    return f"{cls}({_set_items(rebuild, variable)})" if variable.items else f"{cls}()"


def _dict_view(rebuild: Rebuilder, variable: DictViewVariable) -> str:
    return f"{rebuild.value(variable.mapping)}.{variable.kind}()"


def _slice(rebuild: Rebuilder, variable: SliceVariable) -> str:
    return f"{rebuild.constant(slice)}({rebuild.values((variable.start, variable.stop, variable.step))})"


# Callables and cells


def _cell(rebuild: Rebuilder, variable: CellVariable) -> str:
    contents = "" if variable.contents is None else rebuild.value(variable.contents)
    return f"{rebuild.constant(types.CellType)}({contents})"


def _empty_cell(rebuild: Rebuilder, variable: CellVariable) -> str:
    return f"{rebuild.constant(types.CellType)}()"


def _fill_cell(rebuild: Rebuilder, variable: CellVariable, name: str) -> None:
    if variable.contents is not None:
        rebuild.lines.append(f"{name}.cell_contents = {rebuild.value(variable.contents)}")


def _nested_function(rebuild: Rebuilder, variable: NestedFunctionVariable) -> str:
    code = rebuild.names.constant(variable.code, f"{variable.code.co_name}_code")
    namespace = rebuild.names.constant(variable.namespace, "G")
    closure = _tuple_literal([rebuild.value(cell) for cell in variable.closure]) if variable.closure else "None"
    defaults = "None" if variable.defaults is None else rebuild.value(variable.defaults)
    arguments = [code, namespace, "None", defaults, closure]
    while arguments[-1] == "None":
        arguments.pop()
    text = f"{rebuild.constant(types.FunctionType)}({', '.join(arguments)})"
    attributes = dict(_function_attributes(rebuild, variable))
    if not attributes:
        return text
    name = rebuild.assign(_hint(variable), text)
    rebuild.lines += [f"{name}.{attribute} = {value}" for attribute, value in attributes.items()]
    return name


def _function_attributes(rebuild: Rebuilder, variable: NestedFunctionVariable) -> Iterable[tuple[str, str]]:
    if variable.qualname != variable.code.co_qualname:
        yield "__qualname__", repr(variable.qualname)
    if variable.kwdefaults is not None:
        yield "__kwdefaults__", rebuild.value(variable.kwdefaults)
    if isinstance(variable.annotations, TupleVariable):  # names and values in turn, as the bytecode has them
        items = variable.annotations.items
        pairs = [f"{rebuild.value(name)}: {rebuild.value(value)}" for name, value in zip(items[::2], items[1::2])]
        yield "__annotations__", f"{{{', '.join(pairs)}}}"
    elif variable.annotations is not None:
        yield "__annotations__", rebuild.value(variable.annotations)
    for attribute, value in variable.attributes.items():
        yield attribute, rebuild.value(value)


def _method(rebuild: Rebuilder, variable: MethodVariable) -> str:
    return f"{rebuild.constant(types.MethodType)}({rebuild.values((variable.function, variable.receiver))})"


def _bound_builtin(rebuild: Rebuilder, variable: BoundBuiltin) -> str:
    return f"{rebuild.value(variable.receiver)}.{variable.name}"


def _partial(rebuild: Rebuilder, variable: PartialVariable) -> str:
    arguments = [rebuild.value(part) for part in (variable.function, *variable.args.items)]
    arguments += [f"**{rebuild.value(variable.keywords)}"] * bool(variable.keywords.items)
    return f"{rebuild.constant(functools.partial)}({', '.join(arguments)})"


def _super(rebuild: Rebuilder, variable: SuperVariable) -> str:
    return f"{rebuild.constant(super)}({rebuild.constant(variable.cls)}, {rebuild.value(variable.receiver)})"


def _weak_reference(rebuild: Rebuilder, variable: WeakReferenceVariable) -> str:
    assert variable.referent is not None
    return f"{rebuild.constant(weakref.ref)}({rebuild.value(variable.referent)})"


def _generator(rebuild: Rebuilder, variable: GeneratorVariable) -> str:
    """A generator that has not started is what its call gives; another one is entered where it was suspended."""
    code = variable.frame.code
    if variable.finished:
        return f"{rebuild.constant(finished)}({rebuild.names.constant(code, f'{code.co_name}_code')})"
    if variable.started:
        values = f"[{rebuild.values(suspension(variable)[1])}]"
        make = rebuild.names.constant(maker_of(variable), code.co_name)
        return f"{rebuild.constant(suspended)}({make}, {values})"
    return f"{rebuild.value(variable.function)}({_arguments(rebuild, variable)})"


def _library_iterator(rebuild: Rebuilder, variable: LibraryIterator) -> str:
    """Made again, or, where nobody asks for its class (see `frame.py`), what plays it."""
    if variable.started:
        return rebuild.value(variable.iterator)
    return f"{rebuild.constant(variable.make)}({_arguments(rebuild, variable)})"


def _arguments(rebuild: Rebuilder, call: GeneratorVariable | LibraryIterator) -> str:
    """The arguments of the call that made an iterator, to make it again."""
    arguments = [rebuild.value(argument) for argument in call.args]
    arguments += [f"{name}={rebuild.value(value)}" for name, value in call.kwargs.items()]
    return ", ".join(arguments)


def _known_object(
    rebuild: Rebuilder, variable: FunctionVariable | BuiltinVariable | ClassVariable | PythonModuleVariable
) -> str:
    return rebuild.constant(variable.value)


# Objects


def _bare_object(rebuild: Rebuilder, variable: ObjectVariable) -> str:
    """A new instance without running the class's own `__new__` and `__init__`, which were traced."""
    if variable.value is not None:
        raise _cannot_rebuild(variable)
    builtin = next(b for b in variable.cls.__mro__ if isinstance(b.__dict__.get("__new__"), types.BuiltinFunctionType))
    contents = ""
    if isinstance(variable.storage, TupleVariable):
        contents = f", {_tuple_literal([rebuild.value(item) for item in variable.storage.items])}"
    elif isinstance(variable.storage, ConstantVariable):
        contents = f", {rebuild.value(variable.storage)}"
    elif isinstance(variable.storage, SetVariable) and variable.storage.cls is frozenset:
        contents = f", {_set_items(rebuild, variable.storage)}"
    return f"{rebuild.constant(builtin)}.__new__({rebuild.constant(variable.cls)}{contents})"


def _object(rebuild: Rebuilder, variable: ObjectVariable) -> str:
    name = rebuild.assign(_hint(variable), _bare_object(rebuild, variable))
    _fill_object(rebuild, variable, name)
    return name


def _fill_object(rebuild: Rebuilder, variable: ObjectVariable, name: str) -> None:
    """Put contents and attributes in; neither runs code of the class."""
    storage = variable.storage
    if isinstance(storage, DictVariable) and storage.default_factory is not None:
        factory = rebuild.value(storage.default_factory)
        rebuild.lines.append(f"{rebuild.constant(collections.defaultdict)}.__init__({name}, {factory})")
    if isinstance(storage, (ListVariable, DictVariable, SetVariable)) and storage.python_type is not frozenset:
        rebuild.lines += refill(rebuild, storage, name, is_empty=True)
    for attribute, value in rebuild.side_effects.written_attrs(variable).items():
        if isinstance(value, VariableTracker):
            rebuild.lines.append(set_attribute(rebuild, variable, name, attribute, rebuild.value(value)))


def _bare_exception(rebuild: Rebuilder, variable: ExceptionVariable) -> str:
    """A new exception that was not raised: one that was has a traceback, and is Python's own affair."""
    if variable.is_raised or variable.args is None:
        raise _cannot_rebuild(variable)
    native = rebuild.constant(native_base(variable.cls))
    args = [rebuild.value(item) for item in variable.args.items]
    made = f"{native}.__new__({', '.join([rebuild.constant(variable.cls), *args])})"
    if not issubclass(variable.cls, StopIteration):
        return made
    name = rebuild.assign("stop", made)
    rebuild.lines.append(f"{native}.__init__({', '.join([name, *args])})")
    return name


def _exception(rebuild: Rebuilder, variable: ExceptionVariable) -> str:
    made = _bare_exception(rebuild, variable)
    if not rebuild.side_effects.written_attrs(variable):
        return made
    name = rebuild.assign("error", made)
    _fill_object(rebuild, variable, name)
    return name


def set_attribute(rebuild: Rebuilder, obj: VariableTracker, name: str, attribute: str, value: str) -> str:
    """The statement that stores an attribute of the object called `name` without running code of its class."""
    if isinstance(obj, ClassVariable):
        return f"{rebuild.constant(type)}.__setattr__({name}, {attribute!r}, {value})"
    if hides_attribute(obj, attribute):
        return f"{name}.__dict__[{attribute!r}] = {value}"
    return f"{rebuild.constant(object)}.__setattr__({name}, {attribute!r}, {value})"


def hides_attribute(obj: VariableTracker, name: str) -> bool:
    """Whether a descriptor of the class stands before what the object's dictionary holds under the name."""
    found = next((vars(base)[name] for base in obj.python_type.__mro__ if name in vars(base)), None)
    if not isinstance(obj, ObjectVariable) or inspect.ismemberdescriptor(found) or inspect.isgetsetdescriptor(found):
        return False
    return hasattr(type(found), "__set__") or hasattr(type(found), "__delete__")


# Iterators and contexts


def advance(iterator: Any, count: int) -> Any:
    """The iterator, `count` items further."""
    next(itertools.islice(iterator, count, count), None)
    return iterator


def _sequence_iterator(rebuild: Rebuilder, variable: SequenceIterator) -> str:
    sequence = variable.sequence
    if not isinstance(sequence, ListVariable):
        return _iterator_over(rebuild, variable.cls, sequence[variable.position :])
    is_reversed = variable.cls is type(reversed([]))
    make = rebuild.constant(reversed if is_reversed else iter)
    text = f"{make}({rebuild.value(sequence)})"
    if not is_reversed and variable.position == 0:
        return text
    # Its place is set when the list has its final contents: list iterators clip it to the length.
    name = rebuild.assign(_hint(variable), text)
    if variable.cls in (type(iter([])), type(reversed([]))):
        rebuild.late.append(f"{name}.__setstate__({variable.position})")
    else:
        rebuild.late.append(f"{rebuild.constant(advance)}({name}, {variable.position})")
    return name


def _iterator_over(rebuild: Rebuilder, cls: type, items: Sequence[VariableTracker]) -> str:
    """A new iterator of the class over the items."""
    values: Any = [item.value for item in items if isinstance(item, ConstantVariable)]
    make = iter
    if cls in _RANGES:
        step = values[1] - values[0] if len(values) > 1 else 1
        text = repr(range(values[0], values[-1] + step, step)) if values else "range(0)"
    elif cls in _TEXTS:
        text = "".join(values)
        if text.isascii() and cls is not _TEXTS[0]:  # what made the class another one is behind it
            return f"{rebuild.constant(advance)}({rebuild.constant(iter)}({chr(233) + text!r}), 1)"
        text = repr(text)
    elif cls is type(iter(b"")):
        text = repr(bytes(values))
    elif cls in _ITERABLES:
        make, iterable = _ITERABLES[cls]
        in_order = items[::-1] if make is reversed else items
        text = _tuple_literal([rebuild.value(item) for item in in_order])
        text = text if iterable is tuple else f"{rebuild.constant(iterable)}({text})"
    else:
        raise _cannot_rebuild(SequenceIterator(tuple(items), cls=cls))
    return f"{rebuild.constant(make)}({text})"


def _dict_iterator(rebuild: Rebuilder, variable: DictIterator) -> str:
    make = rebuild.constant(reversed if variable.is_reversed else iter)
    view = "" if variable.kind == "keys" else f".{variable.kind}()"
    if not variable.keys:  # exhausted for good
        kinds = (collections.OrderedDict, set, frozenset)
        cls = variable.mapping.cls if variable.mapping.cls in kinds else dict
        return f"{make}({rebuild.constant(cls)}(){view})"
    # The dict must have its final contents: the iterator remembers how many there are.
    if is_outside(variable.mapping) and rebuild.side_effects.is_changed(variable.mapping):
        rebuild.lines += rebuild.refill_once(variable.mapping)
    text = f"{make}({rebuild.value(variable.mapping)}{view})"
    if variable.position:
        text = f"{rebuild.constant(advance)}({text}, {variable.position})"
    return rebuild.assign(_hint(variable), text)


def _zip(rebuild: Rebuilder, variable: ZipIterator) -> str:
    arguments = [rebuild.value(iterator) for iterator in variable.iterators] + ["strict=True"] * variable.strict
    return f"{rebuild.constant(zip)}({', '.join(arguments)})"


def _enumerate(rebuild: Rebuilder, variable: EnumerateIterator) -> str:
    start = f", {variable.count}" if variable.count else ""
    return f"{rebuild.constant(enumerate)}({rebuild.value(variable.iterator)}{start})"


def _map(rebuild: Rebuilder, variable: MapIterator) -> str:
    arguments = rebuild.values((variable.function, *variable.iterators))
    return f"{rebuild.constant(filter if variable.filtering else map)}({arguments})"


def _chain(rebuild: Rebuilder, variable: ChainIterator) -> str:
    chain = rebuild.constant(itertools.chain)
    rest = rebuild.value(variable.iterables)
    if variable.current is not None:
        rest = f"{chain}(({rebuild.value(variable.current)},), {rest})"
    return f"{chain}.from_iterable({rest})"


def _islice(rebuild: Rebuilder, variable: SliceIterator) -> str:
    islice = rebuild.constant(itertools.islice)
    if variable.iterator is None:
        return f"{islice}((), 0)"
    start, end = variable.wanted - variable.position, None
    if variable.stop is not None:
        end = variable.stop - variable.position
        start = min(start, end)
    return f"{islice}({rebuild.value(variable.iterator)}, {start}, {end}, {variable.step})"


def _context(rebuild: Rebuilder, variable: ContextVariable) -> str:
    arguments = ", ".join(rebuild.literal(argument) for argument in variable.args)
    factory = rebuild.constant(variable.factory)
    if variable.factory is not torch.autograd.set_grad_enabled:
        return f"{factory}({arguments})"
    # Its __init__ would switch the mode at once, and note the one in force here.
    name = rebuild.assign("context", f"{factory}.__new__({factory})")
    rebuild.lines.append(f"{name}.mode, {name}.prev = {variable.args[0]}, {variable.saved}")
    return name


def _context_exit(rebuild: Rebuilder, variable: ContextExitVariable) -> str:
    """The `__exit__` of a context manager, which is entered for real when all effects have been replayed."""
    text = rebuild.value(variable.context)
    name = text if text.isidentifier() else rebuild.assign("context", text)
    rebuild.entering.append(f"{name}.__enter__()")
    return f"{name}.__exit__"


# New contents


def refill(rebuild: Rebuilder, variable: VariableTracker, name: str, *, is_empty: bool = False) -> list[str]:
    """Statements that give the container called `name` the contents that its tracker has, through base classes."""
    if isinstance(variable, DictVariable):
        return _refill_dict(rebuild, variable, name, is_empty)
    if not isinstance(variable, (ListVariable, SetVariable)):
        raise _cannot_rebuild(variable)
    is_list = isinstance(variable, ListVariable)
    items = (
        f"[{rebuild.values(variable.items)}]" if isinstance(variable, ListVariable) else _set_items(rebuild, variable)
    )
    owner = rebuild.constant(next(base for base in variable.cls.__mro__ if base in CONTAINERS))
    lines = [] if is_empty else [f"{owner}.clear({name})"]
    return lines + [f"{owner}.{'extend' if is_list else 'update'}({name}, {items})"] * bool(variable.items)


def _refill_dict(rebuild: Rebuilder, variable: DictVariable, name: str, is_empty: bool) -> list[str]:
    base = next(base for base in variable.cls.__mro__ if base in CONTAINERS)
    owner = rebuild.constant(base)
    lines = [] if is_empty else [f"{owner}.clear({name})"]
    if base is collections.OrderedDict:  # its update() would call an overridden __setitem__
        pairs = [(rebuild.value(key.variable), rebuild.value(value)) for key, value in variable.items.items()]
        return lines + [f"{owner}.__setitem__({name}, {key}, {value})" for key, value in pairs]
    return lines + [f"{owner}.update({name}, {_pairs(rebuild, variable)})"] * bool(variable.items)


_BUILDERS: dict[type[VariableTracker], Callable[[Rebuilder, Any], str]] = {
    ListVariable: _list,
    TupleVariable: _tuple,
    DictVariable: _dict,
    SetVariable: _set,
    DictViewVariable: _dict_view,
    SliceVariable: _slice,
    CellVariable: _cell,
    FunctionVariable: _known_object,
    BuiltinVariable: _known_object,
    ClassVariable: _known_object,
    PythonModuleVariable: _known_object,
    NestedFunctionVariable: _nested_function,
    MethodVariable: _method,
    BoundBuiltin: _bound_builtin,
    PartialVariable: _partial,
    SuperVariable: _super,
    GeneratorVariable: _generator,
    LibraryIterator: _library_iterator,
    ObjectVariable: _object,
    ModuleVariable: _object,
    NamespaceVariable: _namespace,
    IdVariable: _id,
    ExceptionVariable: _exception,
    SequenceIterator: _sequence_iterator,
    DictIterator: _dict_iterator,
    ZipIterator: _zip,
    EnumerateIterator: _enumerate,
    MapIterator: _map,
    ChainIterator: _chain,
    SliceIterator: _islice,
    ContextVariable: _context,
    ContextExitVariable: _context_exit,
    WeakReferenceVariable: _weak_reference,
}

# Values that can be made first and filled later: how to make them empty, and how to fill them.
_FILLERS: dict[type[VariableTracker], tuple[Callable[[Rebuilder, Any], str], Callable[[Rebuilder, Any, str], None]]] = {
    ListVariable: (
        lambda rebuild, v: "[]" if v.cls is list else f"{rebuild.constant(v.cls)}((), {v.maxlen})",
        _fill_list,
    ),
    DictVariable: (_empty_dict, _fill_dict),
    CellVariable: (_empty_cell, _fill_cell),
    ObjectVariable: (_bare_object, _fill_object),
    ModuleVariable: (_bare_object, _fill_object),
    ExceptionVariable: (_bare_exception, _fill_object),
}

_HINTS: dict[type[VariableTracker], str] = {
    ListVariable: "items",
    TupleVariable: "group",
    DictVariable: "mapping",
    CellVariable: "cell",
    NestedFunctionVariable: "function",
    MethodVariable: "method",
    BoundBuiltin: "method",
    SequenceIterator: "iterator",
    DictIterator: "iterator",
    ContextVariable: "context",
}
