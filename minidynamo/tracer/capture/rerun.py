"""Owns the text around the graph of a residual program that lets the frame run again as written when the graph raises.

In front of the graph it keeps what the graph changes or gives up; behind an error everything is put back. Where that
could not be done, the graph is not run in the first place. What the text calls is in `tracer/runtime/rollback.py`.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import astuple, dataclass

import torch
from torch import fx

from minidynamo.compat import has_saved_tensor_hooks
from minidynamo.core.names import Namespace
from minidynamo.errors import ResultDiffers
from minidynamo.graph.boxed import BoxedCallable
from minidynamo.graph.marks import COMPUTES_FIRST, TELLS_OPERATORS
from minidynamo.graph.scalar_arguments import operator_of
from minidynamo.guards.source import Constant, key_expression
from minidynamo.tracer.attributes import instance_dict
from minidynamo.tracer.frames.runtime_asserts import calls_operators_of_users, checks, only_computes
from minidynamo.tracer.graph.dead_code import may_raise
from minidynamo.tracer.graph.written_places import Writes
from minidynamo.tracer.lazy.lazy_containers import lazy_items
from minidynamo.tracer.reachable import target_of
from minidynamo.tracer.reconstruct.effects import lost_effects
from minidynamo.tracer.records.side_effects import AttrDeleted, AttrSet, Effect
from minidynamo.tracer.records.traced_frame import EarlyClear, GraphInput, Takings, TracedFrame
from minidynamo.tracer.runtime.graph_failures import Failure, running_again
from minidynamo.tracer.runtime.rollback import (
    HeldList,
    HeldPlace,
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


@dataclass(frozen=True, kw_only=True)
class Again:
    """What a second run of a frame takes.

    `run(list)` runs the frame as the user wrote it and ends as the residual program does; it is used when the graph
    raises, nothing has been written or given up, and either effects are pending or it is `wanted` (there are try or
    with regions, or the user wants it) or the graph was to write. `failed` is told what the graph raised if the
    program raises nothing like that in the second run. `may_handle`: the program may handle an error of the graph
    itself. `kept` are the parameters that the frame as written holds to its end; `spread` are those that take the
    arguments of `*` and `**`.
    """

    run: BoxedCallable | None = None
    wanted: bool = False
    failed: Callable[[Failure], None] | None = None
    may_handle: bool = False
    kept: Collection[str] = frozenset()
    spread: Collection[str] = ()


class SecondRun:
    """Prints what stands around the call of a graph. `parameters` are names of the frame's values, `args` that of the
    list of the graph's inputs; `effects` are replayed behind the graph, on what is `found` to outlive the frame.
    `returns_pair`: behind a second run, the residual returns `(None, value)`."""

    def __init__(
        self,
        traced: TracedFrame,
        again: Again,
        names: Namespace,
        *,
        parameters: Sequence[str],
        args: str,
        found: Collection[VariableTracker],
        effects: Sequence[Effect],
        returns_pair: bool,
    ) -> None:
        self.traced = traced
        self.again = again
        self.names = names
        self.parameters = parameters
        self.args = args
        self.found = found
        self.effects = effects
        self.returns_pair = returns_pair
        # The names of what a second run needs: the arguments, lists and places that are emptied, what the graph
        # overwrites, and the states of generators.
        self.held = self.taken = self.overwritten = self.random = self.drawn = ""

    # What there is to do

    @property
    def may_come(self) -> bool:
        """Whether an error of the graph is answered by running the frame again."""
        if self.again.run is None:
            return False
        # A dict of keywords that is held would keep what the program has taken out of it.
        return self.is_asked_for or (not self.again.spread and calls_operators_of_users(self.traced.graph))

    @property
    def is_asked_for(self) -> bool:
        """Whether a second run tells, or does, what an error alone does not. Otherwise the frame runs again only if an
        operator returns something else than promised."""
        asked = bool(self.effects) or self.again.wanted or self.traced.writes is not None
        return asked or self.checks or any(draw.late for draw in self.traced.side_effects.draws)

    @property
    def needs_everything(self) -> bool:
        """Whether an error that data may raise has to find all that the frame began with: somebody waits for it, there
        are effects, or it finds places from which tensors were taken.

        Tensors die in time there in spite of operators of the user's, of which anything may be expected, if it is known
        what those find there, and which has raised.
        """
        if self.checks or not self.traced.may_raise:
            return self.checks
        if self.traced.awaits_errors or self.others_change:
            return True
        takes = bool(self.places) or any(not given.stolen for given in self.emptied.values())
        if not takes:
            return False
        is_known = self.traced.takings is not None and self.marked(TELLS_OPERATORS)
        return not is_known or any(may_raise(node) and only_computes(node) for node in self.nodes)

    @property
    def takings(self) -> Takings | None:
        """What an error of the user's operators finds in the places that are emptied, without a second run."""
        return self.traced.takings if self.traced.may_raise and not self.needs_everything else None

    @property
    def others_change(self) -> bool:
        """Whether there are effects, besides those on lists and places that are emptied."""
        emptied = [given.variable for given in self.emptied.values()]
        known = [place.effect for place in self.places]
        return any(target_of(effect) not in emptied and effect not in known for effect in self.effects)

    @functools.cached_property
    def emptied(self) -> dict[int, GraphInput]:
        """The lists that the graph empties, by their place among its inputs."""
        return {k: given for k, given in enumerate(self.traced.inputs) if given.given_up}

    @functools.cached_property
    def places(self) -> list[EarlyClear]:
        """The places that are emptied before the graph runs."""
        return [place for place in self.traced.emptied if isinstance(place.owner, dict) or place.owner in self.found]

    @property
    def checks(self) -> bool:
        """Whether the graph checks decisions of the program, so that it is nothing unusual when it raises."""
        return checks(self.traced.graph)

    @property
    def redraws(self) -> bool:
        """Whether the graph may draw random numbers, which a second run has to draw again.

        The states of the generators take longer to copy than a small graph runs. If the frame runs again only because
        an operator was wrong about its result, operators of the user's count only if their tags say that they draw.
        """
        return any(node.meta.get("draws") and (self.is_asked_for or _says_so(node)) for node in self.nodes)

    @property
    def nodes(self) -> Iterable[fx.Node]:
        """The operations that were captured."""
        return () if self.traced.graph is None else self.traced.graph.graph.nodes

    @property
    def shows_at_once(self) -> bool:
        """Whether the graph runs as it was captured, so that hooks and autograd see what it does before it raises."""
        return self.traced.graph is not None and not self.marked(COMPUTES_FIRST)

    def marked(self, mark: str) -> bool:
        """Whether there is a graph that has a mark of `graph/marks.py`."""
        return self.traced.graph is not None and mark in self.traced.graph.meta

    # In front of the graph

    def hold(self, known: Mapping[VariableTracker, str], bound: Sequence[str]) -> list[str]:
        """Keep for a second run what this one changes or gives up. `known` are names of what lives outside, `bound` all
        names that hold values.

        What the frame may give up before its end is held only weakly, unless an error that data may raise would have to
        find it. Where positions alone decide whether there is one, they are looked at.
        """
        lookups, writes = self.traced.lookups, self.traced.writes
        given_up = [name for name in self.parameters if name not in self.again.kept]
        takes = bool(self.emptied or self.places)
        holds = self.needs_everything and (takes or bool(given_up))
        weak = self.names.constant(weakly_held, "weakly_held") if takes or given_up else ""
        hold, lines, sure = "" if holds else weak, [], ""
        if lookups is not None and (holds or writes is not None):
            sure = self.names.fresh("sure")
            lines.append(f"{sure} = {self.positions_exist()}")
        lines += self.run_as_written_first(sure, bound)
        if sure and holds:
            hold, firm = self.names.fresh("hold"), self.names.constant(firmly_held, "firmly_held")
            lines.append(f"{hold} = {weak} if {sure} else {firm}")
        self.held = self.names.fresh("held")
        held = [f"{hold}({name})" if hold and name in given_up else name for name in self.parameters]
        lines.append(f"{self.held} = [{', '.join(held)}]")
        if writes is not None:
            lines.append(self.keep_overwritten(writes, sure))
        if self.redraws:
            self.random = self.names.fresh("random")
            lines.append(f"{self.random} = {self.names.constant(random_states, 'random_states')}()")
        if takes:  # last, since nothing may fail between that and the graph
            lines.append(self.hold_taken(hold or self.names.constant(firmly_held, "firmly_held"), known))
        return lines

    def positions_exist(self) -> str:
        """Asks whether all positions that the graph looks up exist."""
        assert self.traced.lookups is not None
        return f"{self.names.constant(self.traced.lookups.exist, 'positions_exist')}({self.args})"

    def run_as_written_first(self, sure: str, bound: Sequence[str]) -> list[str]:
        """Do not run a graph that may raise, where nobody could take back what autograd has recorded or hooks have seen
        by then. `sure` is the name of whether it will not raise, if that is known."""
        writes, lookups = self.traced.writes, self.traced.lookups
        if not self.shows_at_once:
            return []
        if writes is not None and writes.are_recorded and (sure or self.needs_everything):
            condition = f"not {sure}" if sure else "True"
        elif self.needs_everything:
            condition = f"{self.names.constant(has_saved_tensor_hooks, 'has_saved_tensor_hooks')}()"
            if lookups is not None:
                condition += f" and not {sure or self.positions_exist()}"
        else:
            return []
        values = self.names.fresh("values")
        given = f"[{', '.join(self.parameters)}]"
        if self.drawn:
            given = f"{self.names.constant(undrawn, 'undrawn')}({self.drawn}, {given})"
        lines = [f"{values} = {given}", f"{self.args}.clear()"]
        lines += [f"del {', '.join(bound)}"] * bool(bound)  # which may die in the run
        return [f"if {condition}:", *(f"    {line}" for line in [*lines, f"return {self.as_written(values)}"])]

    def hold_taken(self, hold: str, known: Mapping[VariableTracker, str]) -> str:
        """Keep the elements of lists that the graph empties, those that the frame takes as `hold` says. So are tensors
        in places that the program empties, which is done here."""
        self.taken = self.names.fresh("taken")
        held = []
        for position, given in self.emptied.items():
            variable = given.variable
            assert isinstance(variable, ListVariable) and variable.original is not None
            present = set() if given.stolen else {*lazy_items(variable.items)}
            left = [k for k, item in enumerate(variable.original) if item in present]
            keep = self.names.constant(HeldList, "HeldList")
            told = [f"{self.args}[{position}]", repr((*left,)), hold]
            if self.takings is not None and not given.stolen:
                told.append(repr({k: astuple(taking) for k, taking in self.takings.lists[variable].items()}))
            held.append(f"{keep}({', '.join(told)})")
        held += [self.hold_place(place, hold, known) for place in self.places]
        return f"{self.taken} = [{', '.join(held)}]"

    def hold_place(self, place: EarlyClear, hold: str, known: Mapping[VariableTracker, str]) -> str:
        """Empty a place, and keep what is there."""
        if isinstance(place.owner, dict):
            owner = self.names.constant(place.owner, "G")
        elif isinstance(place.owner.source, Constant):
            owner = place.owner.source.expression(self.names)
        else:
            owner = known[place.owner]
        if isinstance(place.effect, AttrSet | AttrDeleted) and not place.is_slot:
            owner = f"{self.names.constant(instance_dict, 'instance_dict')}({owner})"
        how = HeldSlot if place.is_slot else HeldPlace
        told = ", is_removed=False" * (not place.is_removed)
        if self.takings is not None and (taking := self.takings.places[place]).behind:
            told += f", behind={taking.behind}"
            hold = self.names.constant(firmly_held, "firmly_held") if taking.is_idle else hold
        empty, key = self.names.constant(how, how.__name__), key_expression(place.key, self.names)
        return f"{empty}({owner}, {key}, {hold}{told})"

    def keep_overwritten(self, writes: Writes, sure: str) -> str:
        """Keep what the graph overwrites, which has to be there again before the frame runs a second time."""
        self.overwritten = self.names.fresh("overwritten")
        arguments = [self.names.constant(writes, "writes"), self.args, *[sure] * bool(sure)]
        keep = self.names.constant(Overwritten, "Overwritten")
        return f"{self.overwritten} = {keep}({', '.join(arguments)})"

    # Around the graph

    def guarded(self, call: str) -> list[str]:
        """The call of the graph, with what has to happen when it raises."""
        error = self.names.fresh("error")
        lost = f"{lost_effects(self.effects)} of {self.traced.name} before this error were not replayed."
        if self.may_come:
            return self.recovering(call, error, lost if self.effects else "")
        explained = f"{self.names.constant(explain, 'explain')}({error}{f', {lost!r}' if self.effects else ''})"
        return ["try:", f"    {call}", f"except Exception as {error}:", f"    {explained}", "    raise"]

    def recovering(self, call: str, error: str, lost: str) -> list[str]:
        """The call of the graph; when it raises, the frame runs as written, unless that is too late."""
        arguments = [error, self.held, *[repr(lost)] * bool(lost)]
        arguments += ["is_numbered=True"] * bool(self.taken and self.takings is not None)
        arguments += [
            f"{name}={value}" for name in ("taken", "overwritten", "random", "drawn") if (value := getattr(self, name))
        ]
        revived = f"{self.held} = {self.names.constant(revive, 'revive')}({', '.join(arguments)})"
        run, told = self.names.constant(self.again.run, "run_as_written"), []
        run = f"{run}({self.held})"
        if self.again.run is not None and self.again.failed is not None:
            failure = self.names.fresh("failure")
            told = [f"    {failure} = {self.names.constant(Failure.of, 'failure_of')}({error})"]
            watch = running_again(self.again.run, self.again.failed, may_handle=self.again.may_handle)
            run = f"{self.names.constant(watch, 'run_again')}({self.held}, {failure})"
        awaited = "BaseException" if self.taken else "Exception"
        if not self.is_asked_for and not self.taken:
            awaited = self.names.constant(ResultDiffers, "ResultDiffers")
        return [
            "try:",
            f"    {call}",
            f"except {awaited} as {error}:",
            f"    {revived}",
            f"    if {self.held} is None:",
            "        raise",
            *told,
            "else:",
            f"    {' = '.join(filter(None, (self.held, self.taken, self.overwritten)))} = None",
            f"if {self.held} is not None:",
            f"    return {self.returned(run)}",
        ]

    def as_written(self, values: str) -> str:
        """A run of the frame as the user wrote it, and what the residual returns then."""
        return self.returned(f"{self.names.constant(self.again.run, 'run_as_written')}({values})")

    def returned(self, run: str) -> str:
        """What the residual returns for what a run of the frame returns."""
        return f"(None, {run})" if self.returns_pair else run


def _says_so(node: fx.Node) -> bool:
    """Whether a node that may draw random numbers is torch's, or has the tag of operators that draw."""
    op = operator_of(node.target)
    return op is None or torch.Tag.nondeterministic_seeded in op.tags
