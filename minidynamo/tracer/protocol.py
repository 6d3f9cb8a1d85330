"""Owns the interface between handlers and the tracer: the `Tracer` protocol, called `tx` everywhere.

Implements nothing: `tracer/capture/trace.py` does. Handlers import this file, `tracer/records/registry.py`,
`tracer/records/constants.py` and the variables, and no other file of the tracer.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager
from types import CodeType
from typing import Any, NoReturn, Protocol

import torch.fx

from minidynamo.compat import OpOverload
from minidynamo.errors import UserLocation
from minidynamo.graph.func_transforms import Transformation
from minidynamo.guards.guard import Guard, GuardKind
from minidynamo.guards.shapes import Shapes
from minidynamo.guards.source import Source
from minidynamo.guards.values import ClassChecks
from minidynamo.tracer.graph.subgraphs import GraphValue, Subgraph
from minidynamo.tracer.records.side_effects import SideEffects
from minidynamo.variables.base import VariableTracker
from minidynamo.variables.constants import ConstantVariable
from minidynamo.variables.exceptions import ExceptionVariable
from minidynamo.variables.numbers import NumberVariable
from minidynamo.variables.tensors import StorageVariable, TensorVariable

# Returns the number in a tensor of one element; None if it is not known.
Number = Callable[[], VariableTracker | None]


class FrameView(Protocol):
    """A frame of the traced program, as comptime callbacks and reports see it."""

    @property
    def code(self) -> CodeType:
        """The user's code object."""
        ...

    @property
    def local_variables(self) -> Mapping[str, VariableTracker]:
        """The bound plain locals, and the contents of filled cells, by name."""
        ...

    def held(self) -> Sequence[VariableTracker]:
        """Returns all values on the stack, in locals and in cells, including lazy values."""
        ...

    def on_stack(self) -> Sequence[VariableTracker]:
        """Returns the values on the stack, bottom first."""
        ...

    @property
    def offset(self) -> int:
        """The frame's position in the bytecode."""
        ...

    def read(self, name: str) -> VariableTracker | None:
        """Returns the value of the local, cell or free variable `name`; None if it is unbound."""
        ...

    @property
    def namespace(self) -> dict[str, Any]:
        """The globals of the frame."""
        ...

    @property
    def is_polyfill(self) -> bool:
        """True if the frame runs a polyfill."""
        ...

    @property
    def location(self) -> UserLocation:
        """The user's line of the current instruction."""
        ...

    @property
    def handled(self) -> VariableTracker | None:
        """The exception that is being handled in this frame."""
        ...

    def forget_message(self, exception: ExceptionVariable) -> None:
        """Drops the message of an exception that a polyfill raises: the original function may word it differently."""
        ...


class GraphView(Protocol):
    """The graph under construction, as handlers see it."""

    @property
    def graph(self) -> torch.fx.Graph:
        """The torch-level FX graph so far."""
        ...

    @property
    def may_assert(self) -> bool:
        """True if the graph may have runtime asserts (`tracer/frames/runtime_asserts.py`)."""
        ...

    @property
    def guards(self) -> Sequence[Guard]:
        """The guards installed so far, in the order of installation."""
        ...

    @property
    def identity_keys(self) -> dict[VariableTracker, None]:
        """The trackers whose identity was read, as the key of a dict or an element of a set."""
        ...

    def guard_attention(self) -> None:
        """Guards the enabled attention backends, which are not part of the global state."""
        ...

    @property
    def class_checks(self) -> ClassChecks:
        """The answers of checks against abstract classes."""
        ...

    @property
    def tensor_numbers(self) -> dict[object, Number]:
        """The numbers in tensors of one element, where known, by the memory of the tensor."""
        ...

    @property
    def storages(self) -> dict[object, StorageVariable]:
        """The storages that the program has read, by memory."""
        ...

    @property
    def write_counts(self) -> dict[VariableTracker, tuple[TensorVariable, int]]:
        """For a number read from a version counter: the tensor, and the version of the fake tensor at the read."""
        ...

    def initial_version(self, tensor: TensorVariable) -> int:
        """Returns the version of an external tensor's fake tensor when the frame began."""
        ...

    def may_have_written(self) -> bool:
        """Returns whether the graph may have written to an external tensor so far."""
        ...

    def owner_of(self, memory: object) -> TensorVariable | None:
        """Returns an external tensor in this memory; None for memory that the graph allocates."""
        ...

    def known(self, source: Source) -> VariableTracker | None:
        """Returns the tracker of the value at `source`; None if there is none yet."""
        ...

    def tracker_of(self, value: object) -> VariableTracker | None:
        """Returns the tracker of a real object; None if there is none yet."""
        ...

    def claim_namespace(self, namespace: object, owner: VariableTracker) -> bool:
        """Makes `owner` the tracker for its dictionary of attributes. Returns False if another tracker represents the
        dictionary."""
        ...

    def lazy(self, value: object, source: Source, *, is_there: bool = False) -> VariableTracker:
        """Returns the tracker of an external value if there is one; else a lazy value, with a guard that the source
        exists.

        `is_there`: other guards check that the source exists.
        """
        ...

    def source_of(self, value: object) -> Source | None:
        """Returns the source by which the program reached this object, read or not; None if it did not."""
        ...

    def guard_on_read(self, source: Source, kind: GuardKind, expected: object) -> Callable[[], None]:
        """Returns a function that installs the guard, as long as the trace is active."""
        ...

    def real(self, tensor: TensorVariable) -> torch.Tensor | None:
        """Returns the real tensor of a tracker; None for a tensor that the graph computes."""
        ...

    def switch(self, function: Callable[..., Any], *arguments: Any) -> None:
        """Changes a setting of torch (see `graph/torch_settings.py`), both during tracing from now on and in the
        graph."""
        ...

    def use(self, tensor: TensorVariable) -> torch.Tensor:
        """Returns the fake tensor of a tracker, and guards all facts about the tensor. Only `tracer/lazy/facts.py`
        reads `fake` directly."""
        ...

    def constant(self, tensor: TensorVariable) -> torch.Tensor | None:
        """Returns the tensor with values if it was computed from constants alone."""
        ...

    def is_guarded(self, tensor: TensorVariable) -> bool:
        """Returns whether all facts about a tensor are guarded; of an unused tensor, single facts may be read."""
        ...

    def fact(self, tensor: TensorVariable, place: Source, value: Any) -> ConstantVariable:
        """Returns the tracker of a fact about a tensor, at `place`. The fact is guarded when it is read, unless the
        tensor is guarded."""
        ...

    @property
    def shapes(self) -> Shapes:
        """The symbols of the frame."""
        ...

    def size(self, tensor: TensorVariable, dim: int) -> VariableTracker:
        """Returns the size of a tensor in one dimension."""
        ...

    def number(self, value: Any, function: Callable[..., Any], operands: Sequence[VariableTracker]) -> VariableTracker:
        """Tracks `value`, the result of `function` for ints; a node computes it in the graph."""
        ...

    def integer(self, value: int, source: Source) -> NumberVariable:
        """Tracks an int that Python reads or computes, as a symbol."""
        ...

    def floating(self, value: float, source: Source) -> NumberVariable:
        """Tracks a float that Python reads or computes, as a symbol; `value` is the value in this call."""
        ...

    @property
    def subgraph(self) -> Subgraph | None:
        """The innermost open subgraph; None outside of subgraphs."""
        ...

    @property
    def takes_numbers(self) -> bool:
        """True if the open graph takes numbers of unknown value and computes with them."""
        ...

    @property
    def may_break(self) -> bool:
        """True if a graph break is allowed in this frame."""
        ...

    @property
    def may_break_here(self) -> bool:
        """True if a graph break is allowed at the present instruction."""
        ...

    @property
    def may_run_eagerly(self) -> bool:
        """True if every open subgraph may run eagerly instead, after a graph break."""
        ...

    def open_subgraph(
        self, inputs: Iterable[GraphValue], *, takes_numbers: bool = False, may_run_eagerly: bool = False
    ) -> AbstractContextManager[Subgraph]:
        """Opens a subgraph until the block ends. It takes `inputs` and every other value that its operations read."""
        ...

    def close_subgraph(self, subgraph: Subgraph, outputs: Sequence[TensorVariable], name: str) -> torch.fx.Node:
        """Makes the subgraph return `outputs`. Returns the node of the subgraph in the surrounding graph."""
        ...

    def module_of(self, subgraph: torch.fx.Node) -> torch.fx.GraphModule:
        """Returns the closed subgraph of a node."""
        ...

    def emit_on_subgraphs(
        self,
        target: Callable[..., Any],
        name: str,
        pred: TensorVariable | None,
        subgraphs: Sequence[torch.fx.Node],
        inputs: Iterable[GraphValue],
        results: Sequence[tuple[torch.Tensor, bool]],
    ) -> list[VariableTracker]:
        """Records `target(pred, *subgraphs, inputs)`, which returns a tuple; without `pred` the subgraphs come first.

        `results` describes the tuple: for each result, a similar tensor and whether the result requires grad.
        """
        ...

    def inner_input(self, like: TensorVariable, dim: int | None, requires_grad: bool) -> TensorVariable:
        """Returns an input of the open subgraph: a tensor similar to `like`, without dimension `dim` if `dim` is
        given."""
        ...

    def example(self, variable: GraphValue) -> Any:
        """Returns an example of a value, for computations of layouts: a float has the value of this call."""
        ...

    def infers_symbolic_floats(
        self, op: OpOverload, args: Sequence[VariableTracker], kwargs: Mapping[str, VariableTracker]
    ) -> bool:
        """Returns whether an operator of the program has a fake implementation for floats of unknown value."""
        ...

    def emit_transformed(
        self, transformation: Transformation, name: str, subgraph: torch.fx.Node, inputs: Sequence[GraphValue]
    ) -> tuple[Any, list[VariableTracker]]:
        """Records `transformation` over a subgraph. Returns the result for fake tensors, and the trackers of the
        tensors in the result."""
        ...


class Tracer(Protocol):
    """The symbolic interpreter, as handlers see it."""

    side_effects: SideEffects
    attempt: int  # 0 or 1: first or second trace of a frame. Notices of 0 are not repeated by 1.

    @property
    def frames(self) -> Sequence[FrameView]:
        """The frames being traced, the root first, the innermost last."""
        ...

    @property
    def graph(self) -> GraphView:
        """The graph under construction."""
        ...

    def call(
        self,
        function: VariableTracker | Callable[..., Any],
        args: Sequence[VariableTracker] = (),
        kwargs: Mapping[str, VariableTracker] | None = None,
        *,
        lazy: bool = False,
    ) -> VariableTracker:
        """Calls anything. A real callable (`operator.add`, a polyfill) is accepted in place of its tracker, trusted and
        unguarded.

        `lazy`: the caller only moves the result, so the result may be lazy.
        """
        ...

    def call_method(
        self,
        obj: VariableTracker,
        name: str,
        args: Sequence[VariableTracker] = (),
        kwargs: Mapping[str, VariableTracker] | None = None,
        *,
        lazy: bool = False,
    ) -> VariableTracker:
        """Calls a special method as Python does: found on the class, never on the instance. `lazy` as in `call`."""
        ...

    def getattr(self, obj: VariableTracker, name: str) -> VariableTracker:
        """Returns `obj.name`, by Python's own lookup order, user code included; a missing attribute raises
        AttributeError in the program."""
        ...

    def wrap(self, value: object, source: Source | None) -> VariableTracker:
        """Returns the tracker of the real value at `source`, and installs guards.

        Without a source only constants, trusted functions, classes and modules can be wrapped.
        """
        ...

    def guard(self, source: Source | None, kind: GuardKind, expected: object = None) -> None:
        """Adds a guard. Does nothing for a value created during tracing (no source)."""
        ...

    def emit(
        self,
        target: Callable[..., Any] | str,
        args: Sequence[VariableTracker],
        kwargs: Mapping[str, VariableTracker] | None = None,
    ) -> VariableTracker:
        """Adds a call to the graph (a Tensor method if `target` is a name) and returns the tracker of its result."""
        ...

    def break_graph(self, code: str, what: str, *, why: str = "", fix: str = "", marker: str = "") -> NoReturn:
        """Cuts the graph before the current instruction of the root frame, which then runs eagerly."""
        ...

    def raises(
        self, error: BaseException | ExceptionVariable, *, exact: bool = False, **fields: VariableTracker
    ) -> NoReturn:
        """Raises an error in the program: during tracing if `exact`, else by a graph cut, so that Python itself raises.

        `exact`: Python would raise an error of this class with these `args`. A tracked exception is raised as it is.
        """
        ...

    def truth(self, obj: VariableTracker) -> bool:
        """Returns `bool(obj)`; breaks the graph if the truth is known only when the graph runs."""
        ...

    def unpack(self, obj: VariableTracker) -> list[VariableTracker]:
        """Returns `list(obj)`: all items of an iteration."""
        ...

    def next_item(self, iterator: VariableTracker) -> VariableTracker | None:
        """Returns the next item of an iterator (a result of `iter(x)`); None when it is exhausted."""
        ...
