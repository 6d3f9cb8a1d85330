"""Owns the lines around the graph call in a residual program, which run the frame again eagerly when the graph raises.

Before the graph, the lines keep all values that the graph changes or frees. After an error, the values are restored. If
restoring would be impossible, the frame runs eagerly from the start. `tracer/runtime/rollback.py` holds the called
functions.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from typing import Any

import torch
from torch import fx

from minidynamo.compat import has_saved_tensor_hooks
from minidynamo.core.names import Namespace
from minidynamo.core.records import record
from minidynamo.errors import ResultDiffers
from minidynamo.graph.boxed import BoxedCallable
from minidynamo.graph.boxed_text import Call, Line, indented
from minidynamo.graph.collectives import is_collective
from minidynamo.graph.marks import COMPUTES_FIRST
from minidynamo.graph.scalar_arguments import operator_of
from minidynamo.guards.source import Constant, key_expression
from minidynamo.tracer.attributes import instance_dict
from minidynamo.tracer.frames.runtime_asserts import calls_operators_of_users, has_runtime_asserts
from minidynamo.tracer.graph.dead_code import calls_torch, may_raise
from minidynamo.tracer.graph.written_memory import Writes
from minidynamo.tracer.reachable import reachable, target_of
from minidynamo.tracer.reconstruct.effects import lost_effects
from minidynamo.tracer.records.side_effects import AttrDeleted, AttrSet, Effect
from minidynamo.tracer.records.traced_frame import EarlyClear, GraphInput, Return, TracedFrame
from minidynamo.tracer.runtime.graph_failures import Failure, rerunner
from minidynamo.tracer.runtime.rollback import (
    HeldItem,
    HeldList,
    HeldSlot,
    Overwritten,
    explain,
    firmly_held,
    random_states,
    revive,
    undrawn,
    weakly_held,
)
from minidynamo.variables.base import VariableTracker
from minidynamo.variables.containers import ListVariable


@record(frozen=True, kw_only=True)
class RerunOptions:
    """The settings of a rerun."""

    #: `run(list)` runs the frame eagerly and ends as the residual program does. It is used when the graph raises,
    #: nothing has been written or freed yet, and effects are pending, or the graph was going to write, or
    #: `even_without_effects` is set.
    run: BoxedCallable | None = None
    #: a rerun is useful even without effects: the frame has `try` or `with` blocks, or the user asked for it
    even_without_effects: bool = False
    #: called with the graph's error if the program raises no such error in the rerun
    failed: Callable[[Failure], None] | None = None
    #: whether the program may handle an error of the graph itself
    may_handle: bool = False
    #: names of the parameters kept alive to the end of the frame in eager
    kept: Collection[str] = frozenset()
    #: names of the `*` and `**` parameters
    starred: Collection[str] = ()

    @functools.cached_property
    def run_again(self) -> Callable[[list[Any], Failure], Any] | None:
        """The function that reruns the frame and passes the graph's error to `failed`."""
        if self.run is None or self.failed is None:
            return None
        return rerunner(self.run, self.failed, may_handle=self.may_handle)


class RerunPrinter:
    """Prints the lines around the call of a graph."""

    def __init__(
        self,
        traced: TracedFrame,
        options: RerunOptions,
        names: Namespace,
        *,
        parameters: Sequence[str],
        args: str,
        found: Collection[VariableTracker],
        effects: Sequence[Effect],
        returns_pair: bool,
    ) -> None:
        self.traced = traced
        self.options = options
        self.names = names
        #: names of the frame's values
        self.parameters = parameters
        #: name of the list of the graph's inputs
        self.args = args
        #: the values that outlive the frame
        self.found = found
        #: the side effects that are replayed after the graph, on values in `found`
        self.effects = effects
        #: whether the residual returns `(None, value)` after a rerun
        self.returns_pair = returns_pair
        # Names of the values that a rerun needs: arguments, cleared lists and slots, overwritten tensors, generator
        # states.
        self.held = self.taken = self.overwritten = self.random = self.drawn = ""

    # Decisions

    @property
    def can_rerun(self) -> bool:
        """True if the frame may run again after an error of the graph."""
        if self.options.run is None or any(map(is_collective, self.nodes)):  # other ranks would wait for ever
            return False
        # A kept `**` dict would keep elements popped by the program.
        return self.is_useful or (not self.options.starred and calls_operators_of_users(self.traced.graph))

    @property
    def is_useful(self) -> bool:
        """True if a rerun does more than repeat the error. Otherwise the frame runs again only if the result of an
        operator differs from the fake implementation."""
        has_effects = bool(self.effects) or self.traced.writes is not None
        may_skip_draws = any(draw.may_be_skipped for draw in self.traced.side_effects.draws)
        return has_effects or self.options.even_without_effects or self.has_asserts or may_skip_draws

    @property
    def needs_all_arguments(self) -> bool:
        """True if all arguments of the frame must still be alive after an error that depends on data: a handler may
        wait for the error, there are effects, or slots of tensors were cleared.

        Errors of the user's own operators do not count: tensors die as in eager, and so do elements of donated lists.
        """
        if self.has_asserts or not self.traced.may_raise:
            return self.has_asserts
        clears = bool(self.early_clears) or any(
            not graph_input.is_donated for graph_input in self.emptied_lists.values()
        )
        if self.traced.user_may_catch or (self.has_other_effects and (clears or not self.emptied_lists)):
            return True
        if not clears:
            return False
        return any(may_raise(node) and calls_torch(node) for node in self.nodes)

    @property
    def has_other_effects(self) -> bool:
        """True if an effect is not on a cleared list or slot."""
        emptied_lists = [graph_input.variable for graph_input in self.emptied_lists.values()]
        clearing = [clear.effect for clear in self.early_clears]
        return any(target_of(effect) not in emptied_lists and effect not in clearing for effect in self.effects)

    @property
    def can_repeat(self) -> bool:
        """True if a rerun has the right effects on Python objects although memory was overwritten: the frame ends with
        the graph, and no effect depends on the contents."""
        writes = self.traced.writes
        if writes is None or not writes.layouts_stay or writes.are_recorded or not isinstance(self.traced.exit, Return):
            return False
        needed, _ = reachable((), self.traced.side_effects)
        return bool(self.effects) and all(self.traced.outputs[k] not in needed for k in writes.dependent_results)

    @functools.cached_property
    def emptied_lists(self) -> dict[int, GraphInput]:
        """The lists emptied by the graph, by position among the inputs."""
        return {k: graph_input for k, graph_input in enumerate(self.traced.inputs) if graph_input.is_emptied}

    @functools.cached_property
    def early_clears(self) -> list[EarlyClear]:
        """The slots that are cleared before the graph runs."""
        return [
            clear for clear in self.traced.early_clears if isinstance(clear.owner, dict) or clear.owner in self.found
        ]

    @property
    def has_asserts(self) -> bool:
        """True if the graph contains runtime asserts, so that its errors are expected."""
        return has_runtime_asserts(self.traced.graph)

    @property
    def redraws_numbers(self) -> bool:
        """True if the graph may draw random numbers, to be drawn again by a rerun.

        Copying the states of the generators takes longer than a small graph runs. If the frame runs again only because
        of a wrong operator result, an operator of the user counts only if tagged as random.
        """
        return any(node.meta.get("draws") and (self.is_useful or _is_known_random(node)) for node in self.nodes)

    @property
    def nodes(self) -> Iterable[fx.Node]:
        """The captured operations."""
        return () if self.traced.graph is None else self.traced.graph.graph.nodes

    @property
    def runs_as_captured(self) -> bool:
        """True if the graph runs as captured: hooks and autograd then see its operations before an error."""
        return self.traced.graph is not None and not self.marked(COMPUTES_FIRST)

    def marked(self, mark: str) -> bool:
        """Returns whether there is a graph with the mark `mark` of `graph/marks.py`."""
        return self.traced.graph is not None and mark in self.traced.graph.meta

    # Before the graph

    def keep_values(self, known: Mapping[VariableTracker, str], bound: Sequence[str]) -> list[str]:
        """Prints the lines that keep all values changed or freed by the graph, for a rerun. `known` maps external
        values to names; `bound` are all names of values.

        If the frame may free an argument before its end, only a weak reference is kept, unless a rerun after an error
        that depends on data needs the argument. If the error depends on positions alone, a check of them comes first.
        """
        lookups, writes = self.traced.lookups, self.traced.writes
        may_be_freed = [name for name in self.parameters if name not in self.options.kept]
        clears = bool(self.emptied_lists or self.early_clears)
        keeps_alive = self.needs_all_arguments and (clears or bool(may_be_freed))
        weak = self.names.constant(weakly_held, "weakly_held") if clears or may_be_freed else ""
        hold, lines, cannot_raise = "" if keeps_alive else weak, [], ""
        if lookups is not None and (keeps_alive or writes is not None):
            cannot_raise = self.names.fresh("cannot_raise")
            lines.append(f"{cannot_raise} = {self.positions_exist()}")
        lines += self.run_eagerly_first(cannot_raise, bound)
        if cannot_raise and keeps_alive:
            hold, firm = self.names.fresh("hold"), self.names.constant(firmly_held, "firmly_held")
            lines.append(f"{hold} = {weak} if {cannot_raise} else {firm}")
        self.held = self.names.fresh("held")
        held = [f"{hold}({name})" if hold and name in may_be_freed else name for name in self.parameters]
        lines.append(f"{self.held} = [{', '.join(held)}]")
        if writes is not None:
            lines.append(self.keep_overwritten(writes, cannot_raise))
        if self.redraws_numbers:
            self.random = self.names.fresh("random")
            lines.append(f"{self.random} = {self.names.constant(random_states, 'random_states')}()")
        if clears:  # last: no line between this and the graph may fail
            lines.append(self.keep_cleared(hold or self.names.constant(firmly_held, "firmly_held"), known))
        return lines

    def positions_exist(self) -> str:
        """Prints the check that all positions looked up by the graph exist."""
        assert self.traced.lookups is not None
        return f"{self.names.constant(self.traced.lookups.exist, 'positions_exist')}({self.args})"

    def run_eagerly_first(self, cannot_raise: str, bound: Sequence[str]) -> list[str]:
        """Prints the lines that run the frame eagerly instead of a graph that may raise, if autograd records or hooks
        see the graph's operations, which no rerun can undo.

        `cannot_raise` is the name of a variable, True if no data makes the graph raise; "" if there is none.
        """
        writes, lookups = self.traced.writes, self.traced.lookups
        if not self.runs_as_captured:
            return []
        if writes is not None and writes.are_recorded and (cannot_raise or self.needs_all_arguments):
            condition = f"not {cannot_raise}" if cannot_raise else "True"
        elif self.needs_all_arguments:
            condition = f"{self.names.constant(has_saved_tensor_hooks, 'has_saved_tensor_hooks')}()"
            if lookups is not None:
                condition += f" and not {cannot_raise or self.positions_exist()}"
        else:
            return []
        values = self.names.fresh("values")
        arguments = f"[{', '.join(self.parameters)}]"
        if self.drawn:
            arguments = f"{self.names.constant(undrawn, 'undrawn')}({self.drawn}, {arguments})"
        lines = [f"{values} = {arguments}", f"{self.args}.clear()"]
        lines += [f"del {', '.join(bound)}"] * bool(bound)  # these values may die during the run
        return [f"if {condition}:", *(f"    {line}" for line in [*lines, f"return {self.eager_run(values)}"])]

    def keep_cleared(self, hold: str, known: Mapping[VariableTracker, str]) -> str:
        """Prints the line that keeps the elements of emptied lists (popped elements by `hold`), clears the slots of
        `early_clears` and keeps the tensors in the slots."""
        self.taken = self.names.fresh("taken")
        held = []
        for position, graph_input in self.emptied_lists.items():
            variable = graph_input.variable
            assert isinstance(variable, ListVariable) and variable.original is not None
            present = set() if graph_input.is_donated else {*variable.items.lazy()}
            remaining = tuple(k for k, item in enumerate(variable.original) if item in present)
            holder = self.names.constant(HeldList, "HeldList")
            held.append(f"{holder}({self.args}[{position}], {remaining!r}, {hold})")
        held += [self.clear_slot(clear, hold, known) for clear in self.early_clears]
        return f"{self.taken} = [{', '.join(held)}]"

    def clear_slot(self, clear: EarlyClear, hold: str, known: Mapping[VariableTracker, str]) -> str:
        """Prints the call that clears a slot and keeps the tensor."""
        if isinstance(clear.owner, dict):
            owner = self.names.constant(clear.owner, "G")
        elif isinstance(clear.owner.source, Constant):
            owner = clear.owner.source.expression(self.names)
        else:
            owner = known[clear.owner]
        if isinstance(clear.effect, AttrSet | AttrDeleted) and not clear.is_slot:
            owner = f"{self.names.constant(instance_dict, 'instance_dict')}({owner})"
        holder = HeldSlot if clear.is_slot else HeldItem
        extra = ", is_removed=False" * (not clear.is_removed)
        holder_name, key = self.names.constant(holder, holder.__name__), key_expression(clear.key, self.names)
        return f"{holder_name}({owner}, {key}, {hold}{extra})"

    def keep_overwritten(self, writes: Writes, cannot_raise: str) -> str:
        """Prints the line that copies the memory overwritten by the graph, to be restored before a rerun."""
        self.overwritten = self.names.fresh("overwritten")
        arguments = [self.names.constant(writes, "writes"), self.args, *[cannot_raise] * bool(cannot_raise)]
        keep = self.names.constant(Overwritten, "Overwritten")
        return f"{self.overwritten} = {keep}({', '.join(arguments)})"

    # Around the graph

    def call_with_handler(self, call: Call) -> list[Line]:
        """Prints the call of the graph with error handling."""
        error = self.names.fresh("error")
        lost = f"{lost_effects(self.effects)} of {self.traced.name} before this error were not replayed."
        if self.can_rerun:
            return self.call_with_rerun(call, error, lost if self.effects else "")
        explained = f"{self.names.constant(explain, 'explain')}({error}{f', {lost!r}' if self.effects else ''})"
        return ["try:", *indented([call]), f"except Exception as {error}:", f"    {explained}", "    raise"]

    def call_with_rerun(self, call: Call, error: str, lost: str) -> list[Line]:
        """Prints the call of the graph; when the graph raises, the frame runs again eagerly, unless it is too late."""
        arguments = [error, self.held, *[repr(lost)] * bool(lost)]
        arguments += [
            f"{name}={value}" for name in ("taken", "overwritten", "random", "drawn") if (value := getattr(self, name))
        ]
        repeats = self.can_repeat and self.options.failed is not None
        arguments += ["repeats=True"] * repeats
        revived = f"{self.held} = {self.names.constant(revive, 'revive')}({', '.join(arguments)})"
        run, extra = self.names.constant(self.options.run, "run_eagerly"), []
        run = f"{run}({self.held})"
        if self.options.run_again is not None:
            failure, kept = self.names.fresh("failure"), f", {self.overwritten}.kept" if repeats else ""
            extra = [f"    {failure} = {self.names.constant(Failure.of, 'failure_of')}({error}{kept})"]
            run = f"{self.names.constant(self.options.run_again, 'run_again')}({self.held}, {failure})"
        awaited = "BaseException" if self.taken else "Exception"
        if not self.is_useful and not self.taken:
            awaited = self.names.constant(ResultDiffers, "ResultDiffers")
        return [
            "try:",
            *indented([call]),
            f"except {awaited} as {error}:",
            f"    {revived}",
            f"    if {self.held} is None:",
            "        raise",
            *extra,
            "else:",
            f"    {' = '.join(filter(None, (self.held, self.taken, self.overwritten)))} = None",
            f"if {self.held} is not None:",
            f"    return {self.returned(run)}",
        ]

    def eager_run(self, values: str) -> str:
        """Prints a run of the frame in eager, as the residual returns it."""
        return self.returned(f"{self.names.constant(self.options.run, 'run_eagerly')}({values})")

    def returned(self, run: str) -> str:
        """Prints the residual's return value for the result of a run of the frame. A frame that holds a lock returns
        the run as a step, because Python takes the lock again."""
        pair = f"(None, {run})" if self.returns_pair else run
        return f"lambda _: {pair}, []" if self.traced.lock is not None else pair


def _is_known_random(node: fx.Node) -> bool:
    """Returns whether a node that may draw random numbers is torch's, or has the tag of random operators."""
    op = operator_of(node.target)
    return op is None or torch.Tag.nondeterministic_seeded in op.tags
