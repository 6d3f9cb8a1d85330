"""Owns what a graph takes from outside: its placeholders, where the values for them are read, what is guarded of them.

Which values become inputs is decided in `wrap.py`.
"""

from __future__ import annotations

import functools
import operator
import re
from collections.abc import Callable, Iterable, Mapping, Set
from dataclasses import dataclass
from typing import Any

import torch
import torch.fx

from minidynamo.compat import version_of
from minidynamo.errors import UserLocation
from minidynamo.guards.guard import GuardKind, TensorFacts
from minidynamo.guards.guard_list import GuardList
from minidynamo.guards.shapes import Layout, Shapes
from minidynamo.guards.source import Constant, Item, Local, Size, Source
from minidynamo.guards.tensors import facts_of
from minidynamo.tracer.graph.fake_tensors import FakeTensors, same_numbers
from minidynamo.tracer.graph.known_values import KnownValues
from minidynamo.tracer.records.traced_frame import GraphInput
from minidynamo.variables.base import VariableTracker
from minidynamo.variables.constants import ConstantVariable
from minidynamo.variables.containers import ListVariable
from minidynamo.variables.numbers import NumberVariable
from minidynamo.variables.tensors import TensorVariable


@dataclass(frozen=True, eq=False)
class _Arrival:
    """A tensor as it comes from outside, the layout of the fake one, and how often that counts as written then."""

    real: torch.Tensor
    layout: Layout
    version: int | None


class GraphInputs:
    """The placeholders of one graph. `steal` are the places of the lists that the user gave up, `spread` of the tuple
    and dict that hold further arguments."""

    def __init__(
        self,
        graph: torch.fx.Graph,
        where: Callable[[], UserLocation | None],
        shapes: Shapes,
        guards: GuardList,
        fakes: FakeTensors,
        values: KnownValues,
        steal: frozenset[Source],
        spread: frozenset[Source],
    ) -> None:
        self._graph = graph
        self._where = where
        self._shapes = shapes
        self._guards = guards
        self._fakes = fakes
        self._values = values
        self._steal = steal
        self._spread = spread
        self._placeholders: list[tuple[torch.fx.Node, TensorVariable | ListVariable | NumberVariable]] = []
        self._arrivals: dict[TensorVariable, _Arrival] = {}
        self._unguarded: dict[TensorVariable, TensorFacts] = {}
        self._single_facts: dict[TensorVariable, list[ConstantVariable]] = {}  # of tensors that are not guarded
        self._numbers: dict[Source, torch.fx.Node] = {}
        self._lists: set[ListVariable] = set()  # those that are handed over as one
        self._homes: dict[TensorVariable, ListVariable] = {}  # of tensors in them that were only asked for facts

    def is_argument(self, source: Source) -> bool:
        """Whether a value at `source` was handed to the frame as it is, on its own or among `*args` and `**kwargs`."""
        return isinstance(source, Local) or (isinstance(source, Item) and source.of in self._spread)

    def is_stolen(self, source: Source) -> bool:
        """Whether the user gave up the list at `source`."""
        return source in self._steal

    # Tensors

    def tensor(self, value: torch.Tensor, source: Source) -> TensorVariable:
        """Track a real tensor as a placeholder of its own. Its facts are guarded when it is first used."""
        node = self._placeholder(source)
        variable = self._tensor(value, source, node)
        self._placeholders.append((node, variable))
        owner = self._values.at(source.of) if isinstance(source, Item) else None
        if isinstance(owner, ListVariable) and owner.original is None and owner in self._lists:
            self._homes[variable] = owner
        return variable

    def may_come_as_one(self, variable: ListVariable) -> None:
        """The list becomes one placeholder when the graph needs it, or one of the tensors in it."""
        self._lists.add(variable)

    def bring_home(self, tensor: TensorVariable) -> None:
        """The graph is about to use a tensor: one that was found in a list becomes an item of that, as the others."""
        owner = self._homes.pop(tensor, None)
        if owner is not None:
            len(owner.items)  # which tracks all of them

    def list_of_tensors(
        self, value: list[Any], variable: ListVariable, constants: Mapping[int, VariableTracker]
    ) -> list[VariableTracker]:
        """Track a real list of tensors and constants as one placeholder, and each tensor in it as an item of that.

        Gives the trackers of the items; those of the constants are given, by position.
        """
        source = variable.source
        assert source is not None
        node = self._placeholder(source)
        self._placeholders.append((node, variable))
        items: list[VariableTracker] = []
        for position, item in enumerate(value):
            known = constants.get(position) or self._values.of(item)
            if known is None or (isinstance(known, TensorVariable) and self._is_at(known, variable)):
                getitem = self._graph.call_function(operator.getitem, (node, position))
                getitem.meta["user_location"] = self._where()
                if isinstance(known, TensorVariable):
                    getitem.meta["example_value"], known.node = known.fake, getitem
                else:
                    known = self._tensor(item, Item(source, position), getitem)
            items.append(known)
        node.meta["example_value"] = [v.fake if isinstance(v, TensorVariable) else c for v, c in zip(items, value)]
        return items

    def _is_at(self, tensor: TensorVariable, owner: ListVariable) -> bool:
        """Whether nobody has used a tensor that was found in this list."""
        is_item = isinstance(tensor.source, Item) and tensor.source.of == owner.source
        return is_item and tensor.node.op == "placeholder" and not tensor.node.users

    def _tensor(self, value: torch.Tensor, source: Source, node: torch.fx.Node) -> TensorVariable:
        layout = self._shapes.layout(source, value)
        fake = self._fakes.of_real(value, layout)
        node.meta["example_value"] = fake
        variable = self._fakes.note(TensorVariable(node, fake, type(value), source=source))
        self._unguarded[variable] = facts_of(value, layout)
        self._arrivals[variable] = _Arrival(value, layout, version_of(fake))
        self._values.remember(value, variable)
        return variable

    def use(self, tensor: TensorVariable) -> torch.Tensor:
        """The fake tensor, whose facts are guarded from now on."""
        pending = self._unguarded.pop(tensor, None)
        if pending is not None and tensor.source is not None:
            self._guards.install(tensor.source, GuardKind.TENSOR, pending)
            self._shapes.use(tensor.source)
            for fact in self._single_facts.pop(tensor, ()):
                fact.settle()
        return tensor.fake

    def is_guarded(self, tensor: TensorVariable) -> bool:
        """Whether all facts about a tensor are known to hold; of one that is not used, single ones may be read."""
        return tensor not in self._unguarded

    def note_fact(self, tensor: TensorVariable, fact: ConstantVariable) -> None:
        """Remember what tells a single fact about a tensor: when the tensor is used, it need not be read any more."""
        self._single_facts.setdefault(tensor, []).append(fact)

    def real(self, tensor: TensorVariable) -> torch.Tensor | None:
        """The real tensor that a tracker was made from; None for one that the graph computes."""
        arrival = self._arrivals.get(tensor)
        return None if arrival is None else arrival.real

    def version_on_arrival(self, tensor: TensorVariable) -> int:
        """How often the fake tensor counted as written when the frame began."""
        return self._arrivals[tensor].version or 0

    # Numbers

    def number(self, variable: NumberVariable) -> torch.fx.Node:
        """The placeholder of a number that Python reads or computes."""
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
        taken = {node.target for node, _ in self._placeholders}
        unused = (name, *(f"{name}_{count}" for count in range(1, len(taken) + 1)))
        last = self._placeholders[-1][0] if self._placeholders else None
        with self._graph.inserting_after(last):
            node = self._graph.placeholder(next(name for name in unused if name not in taken))
        node.target = node.name  # which hides nothing that the code of the graph calls
        node.meta.update(user_location=self._where(), source=source)
        return node

    # The end

    def finish(
        self, changed_lists: Iterable[ListVariable], identity_keys: Set[VariableTracker]
    ) -> tuple[GraphInput, ...]:
        """The inputs that the graph needs. Lists are given up by the user, or because the program takes elements from
        them. `identity_keys` are the trackers whose identity was asked for."""
        self._read_sizes_alone()
        emptied = {variable for variable in changed_lists if _lost_elements(variable)}
        inputs = []
        for node, variable in self._placeholders:
            if not node.users:
                self._graph.erase_node(node)
                continue
            for tensor in self._used_tensors(variable):
                self.use(tensor)
            self._restore_example(node, variable)
            source = node.meta.pop("source")  # it may lead to values of the user's, and graphs are cycles
            stolen = isinstance(variable, ListVariable) and source in self._steal
            given_up = stolen or variable in emptied
            if given_up:
                node.meta["steal_arg"] = True
            inputs.append(GraphInput(node, source, variable, given_up, stolen))
        self._guard_distinct(inputs, identity_keys)
        return tuple(inputs)

    def _read_sizes_alone(self) -> None:
        """Of a tensor of which the graph takes nothing but sizes, these become its inputs, and are all that matters."""
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
        """An example shows an input as it arrives; the fake one may have been given another shape or history since."""
        examples = node.meta["example_value"]
        if isinstance(variable, TensorVariable):
            node.meta["example_value"] = self._as_it_arrived(examples)
        elif isinstance(variable, ListVariable):
            node.meta["example_value"] = [self._as_it_arrived(example) for example in examples]

    def _as_it_arrived(self, example: Any) -> Any:
        variable = self._fakes.tracker_of(example)
        arrival = None if variable is None else self._arrivals.get(variable)
        if arrival is None:
            return example
        real, (sizes, strides) = arrival.real, arrival.layout
        same = same_numbers((*example.shape, *example.stride()), (*sizes, *strides))
        same = same and (example.dtype, example.requires_grad) == (real.dtype, real.requires_grad)
        return example if same else self._fakes.of_real(real, arrival.layout)

    def _guard_distinct(self, inputs: Iterable[GraphInput], identity_keys: Set[VariableTracker]) -> None:
        """A graph may assume that its tensors are different objects: writing to one must not change another.

        So do tables in which they are keys.
        """
        tensors: dict[VariableTracker, None] = {}
        for graph_input in inputs:
            variable = graph_input.variable
            tensors |= dict.fromkeys(self._used_tensors(variable))
        for group in (tensors, () if identity_keys <= tensors.keys() else identity_keys):
            sources = [v.source for v in group if v.source is not None]
            if len(sources) > 1 and not all(isinstance(source, Constant) for source in sources):
                self._guards.install(sources[0], GuardKind.DISTINCT_OBJECTS, tuple(sources[1:]))

    def _used_tensors(self, variable: VariableTracker) -> Iterable[TensorVariable]:
        """The tensors of an input that the graph uses."""
        items = variable.original or () if isinstance(variable, ListVariable) else (variable,)
        return (v for v in items if isinstance(v, TensorVariable) and v.node.graph is self._graph and v.node.users)

    def forget_values(self) -> None:
        """Let go of the user's objects."""
        for table in (self._arrivals, self._homes, self._lists):
            table.clear()
        for node, _ in self._placeholders:
            node.meta.pop("source", None)
        self._placeholders.clear()


def _lost_elements(variable: ListVariable) -> bool:
    if variable.original is None:
        return False
    present = set(variable.items)
    return any(item not in present for item in variable.original if isinstance(item, TensorVariable))
