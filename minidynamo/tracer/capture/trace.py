"""Owns the implementation of `Tracer`: each operation calls the responsible files.

`frames/interpreter.py` has the state, and the contract of each operation.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any, NoReturn

import torch

from minidynamo.compat import DataDependentOutput, DynamicOutputShape, UnsupportedFakeTensor, UnsupportedOperator
from minidynamo.errors import Diagnostic, GraphBreak, an, first_line
from minidynamo.guards.source import Source, is_drawn
from minidynamo.tracer.attributes import namespace_of, read_attribute
from minidynamo.tracer.calls.call import call, call_method
from minidynamo.tracer.calls.operators import truth_of
from minidynamo.tracer.calls.torch_overrides import answer_operator, refuse_override
from minidynamo.tracer.capture.finalizers import VISIBLE_DEATH, LostReferences
from minidynamo.tracer.frames.exceptions import description, tracked
from minidynamo.tracer.frames.interpreter import Tracer, weakly
from minidynamo.tracer.frames.unrolling import (
    MOST_NUMBERS,
    depends_on_float,
    free_numbers,
    limit_constants,
    limit_contents,
    limit_lists,
    limit_pieces,
    limit_sizes,
)
from minidynamo.tracer.graph.arguments import NotInGraph
from minidynamo.tracer.graph.fake_tensors import CallFailed
from minidynamo.tracer.handlers import locks
from minidynamo.tracer.lazy import facts
from minidynamo.tracer.lazy.lazy_value import unpack_lazy
from minidynamo.tracer.numbers import data_sizes, graph_numbers, tensor_items
from minidynamo.tracer.numbers.tensor_items import mark_scalar_arguments
from minidynamo.tracer.records.constants import as_torch_reads
from minidynamo.tracer.records.fix_hints import HINTS_BY_CLASS, hint_for_values
from minidynamo.tracer.records.side_effects import Effect, SideEffects, Written
from minidynamo.tracer.wrap import lazy, wrap
from minidynamo.variables.base import ConstantVariable, VariableTracker
from minidynamo.variables.containers import Slots
from minidynamo.variables.objects import ExceptionVariable, ObjectVariable

_NO_FAKE_FORM = (UnsupportedOperator, UnsupportedFakeTensor, NotImplementedError)
_NEEDS_VALUES = (DataDependentOutput, DynamicOutputShape)


def _needs_values(failed: CallFailed) -> bool:
    cause = failed.__cause__
    return isinstance(cause, _NEEDS_VALUES) or "its data is not allocated" in str(cause)


class Trace(Tracer):
    """An attempt to trace a frame."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._lost_references = LostReferences(self.graph)
        self.side_effects.on_effect = weakly(self._check_effect)
        self.graph.on_specialize = weakly(self._limit_constants)
        self.graph.shapes.on_decision = weakly(self._refuse_drawn_decision)
        self.graph.shapes.on_fixed = self.graph.on_specialize
        self.graph.on_kind = weakly(self._break_on_kind)
        self.graph.on_length = weakly(self._limit_contents)
        self.graph.values.namespace_of = weakly(self._namespace_of)

    def _break_on_kind(self, source: Source) -> None:
        if not self.graph.may_break_here:
            return
        self.break_graph(
            "MD218",
            f"the program reads `{source.display()}`, of another kind from call to call",
            why="Each combination of kinds needs a version of its own; from here on Python runs the code.",
            fix="Keep the items of one kind in one list, or use tensors with a mask.",
        )

    def _limit_contents(self, items: Slots) -> None:
        limit_contents(self, items)

    def _namespace_of(self, obj: ObjectVariable) -> VariableTracker:
        return namespace_of(self, obj)

    def _check_effect(self, effect: Effect) -> None:
        locks.refuse_call(self, effect)
        if self._lost_references.has_finalizers(effect):
            self.break_graph("MD206", VISIBLE_DEATH, why="The program can see when the object dies.")

    def _refuse_drawn_decision(self, source: Source) -> None:
        if self.side_effects.draws and is_drawn(source):
            self.break_graph(
                "MD230",
                "Python, or an operation, decides by a random number that the program has drawn",
                why="The number differs at each call; from here on it is an argument.",
            )

    def _limit_constants(self, source: Source, value: object) -> None:
        self._refuse_drawn_decision(source)
        if depends_on_float(self, source, value):
            limit_constants(self, source, "the program", self.location(), most=0)
        else:
            limit_constants(self, source, "the program", self.location())

    def forget_values(self) -> None:
        """Drops all references to the user's objects at the end: objects then die at the same point in the first call
        as in later calls."""
        for frame in self.frames:
            frame.forget_values()
        for table in (self.frames, self.raised, self.generators, self.function_modes):
            table.clear()
        self.side_effects = SideEffects()  # the traced frame keeps the old ones
        self.graph.forget_values()

    def call(
        self,
        function: VariableTracker | Callable[..., Any],
        args: Sequence[VariableTracker] = (),
        kwargs: Mapping[str, VariableTracker] | None = None,
        *,
        lazy: bool = False,
    ) -> VariableTracker:
        tracked = function if isinstance(function, VariableTracker) else wrap(self.graph, function, None)
        result = call(self, tracked, list(args), dict(kwargs or {}))
        return result if lazy else result.realize()

    def call_method(
        self,
        obj: VariableTracker,
        name: str,
        args: Sequence[VariableTracker] = (),
        kwargs: Mapping[str, VariableTracker] | None = None,
        *,
        lazy: bool = False,
    ) -> VariableTracker:
        result = call_method(self, obj, name, list(args), dict(kwargs or {}))
        return result if lazy else result.realize()

    def getattr(self, obj: VariableTracker, name: str) -> VariableTracker:
        return read_attribute(self, obj, name)

    def wrap(self, value: object, source: Source | None) -> VariableTracker:
        return wrap(self.graph, value, source)

    def lazy(self, value: object, source: Source) -> VariableTracker:
        return lazy(self.graph, value, source)

    def emit(
        self,
        target: Callable[..., Any] | str,
        args: Sequence[VariableTracker],
        kwargs: Mapping[str, VariableTracker] | None = None,
    ) -> VariableTracker:
        name = f"Tensor.{target}()" if isinstance(target, str) else f"{getattr(target, '__name__', target)}()"
        if self.graph.has_tensor_classes:
            answer = None if kwargs else answer_operator(self, target, args)
            if answer is not None:
                return answer
            refuse_override(self, target, name, [*args, *(kwargs or {}).values()])
        known = facts.answer(self, target, args) if target in facts.ANSWERS and not kwargs else None
        if known is not None:
            return known
        if kwargs and target is not torch.asarray and self._makes_leaf(kwargs):  # asarray may return its argument
            others = {name: value for name, value in kwargs.items() if name != "requires_grad"}
            return self.call_method(self.emit(target, args, others), "requires_grad_")
        limit_lists(self, name, args)
        for number in free_numbers([*args, *(kwargs or {}).values()]):
            is_float = depends_on_float(self, number.source, number.value)
            limit_constants(self, number.source, name, self.location(), most=1 if is_float else MOST_NUMBERS)
        limit_sizes(self, args, name, self.location())
        graph_numbers.refuse_value_dependent(self, target, name, args, kwargs or {})
        try:
            args, kwargs = tensor_items.as_numbers(self, target, args, kwargs or {})
            stored = tensor_items.numbers_of_write(self, target, args, kwargs)
            read = as_torch_reads(target, args, kwargs)
            result = self.graph.emit(target, *mark_scalar_arguments(self, target, *read))
            if self.graph.has_tensor_classes:  # perhaps in a list that had not been read
                refuse_override(self, target, name, [*args, *kwargs.values()])
            self.graph.shapes.report_decisions()
            tensor_items.record(self, [*stored, *tensor_items.numbers_of_result(self, target, args, result)])
            self.record_handlers()
        except NotInGraph as error:
            self.break_graph(
                "MD214",
                f"{name} takes or returns {an(str(error))}",
                why="A graph holds tensors, numbers, text, and lists, tuples, dicts and slices of them.",
                fix=HINTS_BY_CLASS.get(str(error), ""),
            )
        except CallFailed as failed:
            arguments = [*args, *(kwargs or {}).values()]
            if self.graph.has_items and any(map(graph_numbers.involves_item, arguments)):
                graph_numbers.break_on_value(self, name, arguments)
            known = data_sizes.with_sizes(self, target, args, kwargs or {}) if _needs_values(failed) else None
            if known is not None:
                return known
            self._refuse(name, failed)
        limit_pieces(self, name, args, result)
        while self.graph.subgraph is not None and (written := self.graph.subgraph.take_written()) is not None:
            self.side_effects.on_effect(Written(written))
        return result

    def _refuse(self, name: str, failed: CallFailed) -> NoReturn:
        """Cuts the graph before a failed call. If eager fails too, Python raises the error then."""
        cause = failed.__cause__
        assert cause is not None
        if _needs_values(failed):
            what, fix = f"{name} needs the values of tensors", hint_for_values(name)
            self.break_graph("MD215", what, why="The values are known only when the graph runs.", fix=fix)
        if isinstance(cause, _NO_FAKE_FORM) or "no fake impl" in str(cause):
            self.break_graph("MD216", f"{name} cannot be computed for fake tensors", why=first_line(cause))
        if "symbolic sizes" in str(cause):
            what = f"{name} does not support symbolic sizes"
            self.break_graph("MD216", what, why="torch runs it for constant sizes only.")
        self.raises(cause)

    def _makes_leaf(self, kwargs: Mapping[str, VariableTracker]) -> bool:
        """Returns whether a call creates a tensor whose gradient the program may read: autograd must see a leaf."""
        requires_grad = kwargs.get("requires_grad")
        is_true = isinstance(requires_grad, ConstantVariable) and requires_grad.value is True
        return is_true and "out" not in kwargs and self.graph.subgraph is None

    def raises(
        self, error: BaseException | ExceptionVariable, *, exact: bool = False, **fields: VariableTracker
    ) -> NoReturn:
        exception = tracked(error, self.side_effects, exact=exact) if isinstance(error, BaseException) else error
        exception.fields.update(fields)
        diagnostic = Diagnostic("MD202", "graph break: the program raises an exception here", where=self.location())
        diagnostic = replace(diagnostic, why=description(error if isinstance(error, BaseException) else exception))
        if isinstance(error, BaseException):
            if not exact:
                raise GraphBreak(diagnostic)
            self.frames[-1].forget_message(exception)
        self.throw(exception, diagnostic)

    def truth(self, obj: VariableTracker) -> bool:
        return truth_of(self, obj)

    def unpack(self, obj: VariableTracker) -> list[VariableTracker]:
        """Returns `list(obj)`."""
        return [item.realize() for item in unpack_lazy(self, obj)]
