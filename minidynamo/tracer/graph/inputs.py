"""Owns the values that come from outside of a trace: the trackers of real values, by source and by object; and the
inputs of the graph, with placeholders, sources and guards.

The choice of the tracker of a value, and of its guards, is not here (`wrap.py`).
"""

from __future__ import annotations

import functools
import itertools
import operator
import re
from collections.abc import Callable, Iterable, Mapping, Set
from typing import Any

import torch
import torch.fx

from minidynamo.compat import plain_tensor, version_of, without_torch_function
from minidynamo.core.records import record
from minidynamo.errors import UserLocation
from minidynamo.graph.autograd_calls import BackwardState
from minidynamo.graph.unbacked_symints import unbacked_number
from minidynamo.guards.guard import GuardKind
from minidynamo.guards.guard_list import GuardList
from minidynamo.guards.shapes import Shapes
from minidynamo.guards.source import Called, Constant, Item, Local, NewObject, Size, Source
from minidynamo.guards.tensors import Layout, TensorFacts, facts_of
from minidynamo.tracer.graph.fake_tensors import FakeTensors, same_numbers
from minidynamo.tracer.records.tensor_classes import overrides_functions
from minidynamo.tracer.records.traced_frame import GraphInput
from minidynamo.variables.base import ConstantVariable, NumberVariable, VariableTracker
from minidynamo.variables.containers import ListVariable
from minidynamo.variables.objects import ObjectVariable, PythonModuleVariable
from minidynamo.variables.tensors import BackwardStateVariable, TensorVariable


class KnownValues:
    """The trackers of the real values that the program has read."""

    def __init__(self) -> None:
        self._by_source: dict[Source, VariableTracker] = {}
        self._by_identity: dict[int, VariableTracker] = {}
        self._lazy_sources: dict[int, Source] = {}
        self._alive: list[object] = []
        self._owners: dict[int, VariableTracker] = {}
        #: returns the tracker of the `__dict__` of an object
        self.namespace_of: Callable[[ObjectVariable], VariableTracker | None] = lambda obj: None
        #: the trackers that later reads of a real object return, by its id; None: reads break the graph
        self.replaced: dict[int, VariableTracker | None] = {}
        #: the readers of real containers (`tracer/lazy/lazy_lists.py`)
        self.readers: list[object] = []
        #: whether the trace has ended
        self.has_ended = False

    def at(self, source: Source) -> VariableTracker | None:
        """Returns the tracker of the value at `source`; None if it has none yet."""
        return self._by_source.get(source)

    def of(self, value: object) -> VariableTracker | None:
        """Returns the tracker of this very object; None if it has none yet."""
        return self._by_identity.get(id(value))

    def record_at(self, source: Source, variable: VariableTracker) -> None:
        """Makes `variable` the tracker of the value at `source`, but not of the object itself."""
        self._by_source[source] = variable

    def record_object(self, value: object, variable: VariableTracker) -> None:
        """Makes `variable` the tracker of the real object `value`, and keeps the object alive during the trace."""
        self._alive.append(value)
        self._by_identity[id(value)] = variable
        if variable.source is not None:
            self._by_source[variable.source] = variable

    def replace(self, value: object, variable: VariableTracker | None) -> None:
        """Makes `variable` the value of every later read of the real object `value`; None: reads break the graph."""
        self._alive.append(value)
        self.replaced[id(value)] = variable

    def record_lazy(self, value: object, source: Source) -> None:
        """Records that the program has moved the value at `source` unread, and keeps the value alive."""
        self._alive.append(value)
        self._lazy_sources.setdefault(id(value), source)

    def source_of(self, value: object) -> Source | None:
        """Returns the source of this very object, read or lazy; None if the program has not seen it."""
        known = self._by_identity.get(id(value))
        return self._lazy_sources.get(id(value)) if known is None else known.source

    def claim_namespace(self, namespace: object, owner: VariableTracker) -> VariableTracker:
        """Makes `owner` the owner of its attribute dictionary. Returns `owner`; if the dictionary is known already,
        returns the tracker of the dictionary or of its owner."""
        known = self._by_identity.get(id(namespace))
        return self._owners.setdefault(id(namespace), owner) if known is None else known

    def owner_of(self, namespace: dict[Any, Any]) -> VariableTracker | None:
        """Returns the tracker of the object whose attributes a dict holds; None for other dicts."""
        return self._owners.get(id(namespace))

    def external_values(self) -> list[VariableTracker]:
        """Returns the trackers of external objects with an identity, in the order of their first use."""
        return list(dict.fromkeys(v for v in self._by_identity.values() if v.source is not None))

    def forget(self) -> None:
        """Ends the trace: drops references to the user's objects."""
        self.has_ended = True
        for variable in self._by_identity.values():
            if isinstance(variable, ObjectVariable | PythonModuleVariable):
                variable.namespace = None  # refers to the object
        tables = self._alive, self.readers, self._by_identity, self._lazy_sources, self._by_source, self._owners
        for table in (*tables, self.replaced):
            table.clear()


@record(frozen=True, eq=False)
class _ExternalTensor:
    """An external tensor at the start of the frame."""

    #: the external tensor
    real: torch.Tensor
    #: sizes and strides of the fake tensor
    layout: Layout
    #: version counter of the fake tensor
    version: int | None


class GraphInputs:
    """The placeholders of a graph.

    `steal`: sources of the donated lists. `starred`: sources of `*args` and `**kwargs`.
    """

    def __init__(
        self,
        graph: torch.fx.Graph,
        where: Callable[[], UserLocation | None],
        shapes: Shapes,
        guards: GuardList,
        fakes: FakeTensors,
        values: KnownValues,
        steal: frozenset[Source],
        starred: frozenset[Source],
    ) -> None:
        self._graph = graph
        self._where = where
        self._shapes = shapes
        self._guards = guards
        self._fakes = fakes
        self._values = values
        self._steal = steal
        self._starred = starred
        self._placeholders: list[tuple[torch.fx.Node, TensorVariable | ListVariable | NumberVariable]] = []
        self._taken = {"self"}  # names of placeholders; fx takes a first input `self` for the graph module
        self._external_tensors: dict[TensorVariable, _ExternalTensor] = {}
        self._unguarded: dict[TensorVariable, TensorFacts] = {}
        self._single_facts: dict[TensorVariable, list[ConstantVariable]] = {}  # of unguarded tensors
        self._numbers: dict[Source, torch.fx.Node] = {}
        self._backward_state: BackwardStateVariable | None = None
        self._lists: set[ListVariable] = set()  # passed to the graph as a whole
        # Tensors in lists, of which only facts were read -> the list.
        self._list_of_tensor: dict[TensorVariable, ListVariable] = {}

    def is_argument(self, source: Source) -> bool:
        """Returns whether the value is an argument of the frame: by name, or an item of `*args` or `**kwargs`."""
        return isinstance(source, Local) or (isinstance(source, Item) and source.of in self._starred)

    def is_donated(self, source: Source) -> bool:
        """Returns whether the caller donated the list at `source`."""
        return source in self._steal

    # Tensors

    def tensor(self, value: torch.Tensor, source: Source) -> TensorVariable:
        """Tracks a real tensor as a placeholder of its own; its facts are guarded on first use."""
        node = self._placeholder(source)
        variable = self._tensor(value, source, node)
        self._placeholders.append((node, variable))
        owner = self._values.at(source.of) if isinstance(source, Item) else None
        if isinstance(owner, ListVariable) and owner.original is None and owner in self._lists:
            self._list_of_tensor[variable] = owner
        return variable

    def may_become_list_input(self, variable: ListVariable) -> None:
        """Lets the list become a single placeholder as soon as the graph uses the list, or a tensor in it."""
        self._lists.add(variable)

    def move_to_list(self, tensor: TensorVariable) -> None:
        """Makes a tensor found in a list an item of the list's placeholder, before the graph uses the tensor."""
        owner = self._list_of_tensor.pop(tensor, None)
        if owner is not None:
            len(owner.items)  # tracks all items

    def list_of_tensors(
        self, value: list[Any], variable: ListVariable, constants: Mapping[int, VariableTracker]
    ) -> list[VariableTracker]:
        """Tracks a real list of tensors and constants as a single placeholder, and each tensor in it as an item.

        Returns the trackers of all items; `constants` holds the trackers of the constants by position."""
        source = variable.source
        assert source is not None
        node = self._placeholder(source)
        self._placeholders.append((node, variable))
        items: list[VariableTracker] = []
        for position, item in enumerate(value):
            known = constants.get(position) or self._values.of(item)
            if known is None or (isinstance(known, TensorVariable) and self._is_unused_item(known, variable)):
                getitem = self._graph.call_function(operator.getitem, (node, position))
                getitem.meta["user_location"] = self._where()
                if isinstance(known, TensorVariable):
                    getitem.meta["example_value"], known.node = known.fake, getitem
                else:
                    known = self._tensor(item, Item(source, position), getitem)
            items.append(known)
        node.meta["example_value"] = [v.fake if isinstance(v, TensorVariable) else c for v, c in zip(items, value)]
        return items

    def _is_unused_item(self, tensor: TensorVariable, owner: ListVariable) -> bool:
        """Returns whether a tensor was found in this list, and is unused."""
        is_item = isinstance(tensor.source, Item) and tensor.source.of == owner.source
        return is_item and tensor.node.op == "placeholder" and not tensor.node.users

    def _tensor(self, value: torch.Tensor, source: Source, node: torch.fx.Node) -> TensorVariable:
        layout = self._shapes.layout(source, value)
        fake = self._fakes.of_real(value, layout)
        node.meta["example_value"] = fake
        variable = self._fakes.register(TensorVariable(node, fake, type(value), source=source))
        self._unguarded[variable] = facts_of(value, layout)
        self._external_tensors[variable] = _ExternalTensor(value, layout, version_of(fake))
        self._values.record_object(value, variable)
        return variable

    def use(self, tensor: TensorVariable) -> torch.Tensor:
        """Returns the fake tensor, whose facts are guarded from now on."""
        pending = self._unguarded.pop(tensor, None)
        if pending is not None and tensor.source is not None:
            self._guards.install(tensor.source, GuardKind.TENSOR, pending)
            self._shapes.use(tensor.source)
            for fact in self._single_facts.pop(tensor, ()):
                fact.mark_guarded()
        return tensor.fake

    def is_guarded(self, tensor: TensorVariable) -> bool:
        """Returns whether all facts about a tensor are guarded; of an unused tensor, single facts may be read."""
        return tensor not in self._unguarded

    def record_fact(self, tensor: TensorVariable, fact: ConstantVariable) -> None:
        """Records a single fact about a tensor, whose own guard is redundant as soon as all facts are guarded."""
        self._single_facts.setdefault(tensor, []).append(fact)

    def real(self, tensor: TensorVariable) -> torch.Tensor | None:
        """Returns the real tensor of a tracker; None for a tensor that the graph computes."""
        external = self._external_tensors.get(tensor)
        return None if external is None else external.real

    def number_at(self, node: torch.fx.Node) -> NumberVariable | None:
        """Returns the number whose placeholder a node is; None for other nodes."""
        found = (variable for placeholder, variable in self._placeholders if placeholder is node)
        return next((variable for variable in found if isinstance(variable, NumberVariable)), None)

    def initial_version(self, tensor: TensorVariable) -> int:
        """Returns the version counter of the fake tensor at the start of the frame."""
        return self._external_tensors[tensor].version or 0

    # Hooks

    @property
    def backward_state(self) -> BackwardStateVariable:
        """Returns the state for the hooks that the graph registers: one input, after all others."""
        if self._backward_state is None:
            source = NewObject(Constant(BackwardState, BackwardState.__name__), "backward_state")
            node = self._placeholder(source)
            node.meta["example_value"] = BackwardState()
            self._backward_state = BackwardStateVariable(node, source=source)
        return self._backward_state

    # Numbers

    def unbacked(self, cls: type) -> torch.SymInt | torch.SymFloat:
        """Returns a new symbol for an int or float without a known value."""
        return unbacked_number(self._shapes.env, cls)

    def number(self, variable: NumberVariable) -> torch.fx.Node:
        """Returns the placeholder of a number that Python reads or computes."""
        source = variable.source
        assert source is not None
        node = self._numbers.get(source)
        if node is None:
            is_int = isinstance(variable.value, torch.SymInt)
            example = variable.value if is_int else self._shapes.float(source, variable.value)
            node = self._numbers[source] = self._placeholder(source)
            node.meta["example_value"] = example
            self._placeholders.append((node, variable))
        return node

    def _placeholder(self, source: Source) -> torch.fx.Node:
        name = re.sub(r"\W+", "_", source.display()).strip("_") or "input"
        name = name if not name[0].isdigit() else f"input_{name}"
        unused = itertools.chain((name,), (f"{name}_{count}" for count in itertools.count(1)))
        chosen = next(name for name in unused if name not in self._taken)
        last = self._placeholders[-1][0] if self._placeholders else None
        with self._graph.inserting_after(last):
            node = self._graph.placeholder(chosen)
        node.target = node.name  # shadows no name that the graph's code calls
        self._taken.add(node.name)
        node.meta.update(user_location=self._where(), source=source)
        return node

    # The end

    def finish(
        self, changed_lists: Iterable[ListVariable], identity_keys: Set[VariableTracker]
    ) -> tuple[GraphInput, ...]:
        """Returns the inputs that the graph needs.

        A list is emptied by the call if the caller donated it, or if the program removes elements. `identity_keys` are
        the trackers whose identity the program used."""
        self._replace_by_sizes()
        emptied = {variable for variable in changed_lists if _has_removed_tensors(variable)}
        state, inputs = self._backward_state, []
        for node, variable in [*self._placeholders, *([(state.node, state)] if state else ())]:
            if not node.users:
                self._graph.erase_node(node)
                continue
            for tensor in self._used_tensors(variable):
                self.use(tensor)
            self._restore_example(node, variable)
            source = node.meta.pop("source")  # it may refer to objects of the user, and graphs are reference cycles
            is_donated = isinstance(variable, ListVariable) and source in self._steal
            is_emptied = is_donated or variable in emptied
            if is_emptied:
                node.meta["steal_arg"] = True
            if isinstance(variable, TensorVariable) and overrides_functions(variable.cls):
                source = Called(Constant(plain_tensor, plain_tensor.__name__), (source,))
            inputs.append(GraphInput(node, source, variable, is_emptied, is_donated))
        self._guard_distinct(inputs, identity_keys)
        return tuple(inputs)

    def _replace_by_sizes(self) -> None:
        """Replaces a tensor by its sizes, as inputs, if the graph uses nothing but sizes."""
        for node, tensor in [*self._placeholders]:
            if not isinstance(tensor, TensorVariable) or self.is_guarded(tensor) or tensor.source is None:
                continue
            if not all(user.op == "call_method" and user.target == "size" for user in node.users):
                continue
            for user in [*node.users]:
                size = user.meta["example_value"]
                dim = user.args[1]
                assert isinstance(dim, int)
                number = NumberVariable(size, int, functools.partial(int, size), source=Size(tensor.source, dim))
                user.replace_all_uses_with(self.number(number))
                self._graph.erase_node(user)

    def _restore_example(self, node: torch.fx.Node, variable: VariableTracker) -> None:
        """Restores the example value of an input to its shape and history at the start of the frame."""
        examples = node.meta["example_value"]
        if isinstance(variable, TensorVariable):
            node.meta["example_value"] = self._initial_example(examples)
        elif isinstance(variable, ListVariable):
            node.meta["example_value"] = [self._initial_example(example) for example in examples]

    def _initial_example(self, example: Any) -> Any:
        variable = self._fakes.tracker_of(example)
        external = None if variable is None else self._external_tensors.get(variable)
        if external is None:
            return example
        real, (sizes, strides) = external.real, external.layout
        same = same_numbers((*example.shape, *example.stride()), (*sizes, *strides))
        with without_torch_function():  # code of the class, which would observe the reads
            same = same and (example.dtype, example.requires_grad) == (real.dtype, real.requires_grad)
            return example if same else self._fakes.of_real(real, external.layout)

    def _guard_distinct(self, inputs: Iterable[GraphInput], identity_keys: Set[VariableTracker]) -> None:
        """Guards that the tensors of the graph are different objects: writing to a tensor must not change another.

        Tables with tensors as keys need the same guard."""
        tensors: dict[VariableTracker, None] = {}
        for graph_input in inputs:
            variable = graph_input.variable
            tensors |= dict.fromkeys(self._used_tensors(variable))
        for group in (tensors, () if identity_keys <= tensors.keys() else identity_keys):
            sources = [v.source for v in group if v.source is not None]
            if len(sources) > 1 and not all(isinstance(source, Constant) for source in sources):
                self._guards.install(sources[0], GuardKind.DISTINCT_OBJECTS, tuple(sources[1:]))

    def _used_tensors(self, variable: VariableTracker) -> Iterable[TensorVariable]:
        """Returns the tensors of an input that the graph uses."""
        items = variable.original or () if isinstance(variable, ListVariable) else (variable,)
        return (v for v in items if isinstance(v, TensorVariable) and v.node.graph is self._graph and v.node.users)

    def forget_values(self) -> None:
        """Drops references to the user's objects."""
        for table in (self._external_tensors, self._list_of_tensor, self._lists):
            table.clear()
        for node, _ in self._placeholders:
            node.meta.pop("source", None)
        self._placeholders.clear()


def _has_removed_tensors(variable: ListVariable) -> bool:
    if variable.original is None:
        return False
    present = set(variable.items)
    return any(item not in present for item in variable.original if isinstance(item, TensorVariable))
