"""Owns what a handler may ask of the tracer: the `Tracer` protocol, called `tx` everywhere.

It implements nothing; `tracer/capture/trace.py` does. Handlers import this file, `tracer/records/registry.py`,
`tracer/records/constants.py` and the variables, and nothing else of the tracer.
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
from minidynamo.guards.class_checks import ClassChecks
from minidynamo.guards.guard import Guard, GuardKind
from minidynamo.guards.shapes import Shapes
from minidynamo.guards.source import Source
from minidynamo.tracer.graph.subgraphs import GraphValue, Subgraph
from minidynamo.tracer.records.side_effects import SideEffects
from minidynamo.variables.base import VariableTracker
from minidynamo.variables.constants import ConstantVariable
from minidynamo.variables.exceptions import ExceptionVariable
from minidynamo.variables.numbers import NumberVariable
from minidynamo.variables.tensors import StorageVariable, TensorVariable

# Gives the number that a tensor of one element holds; None when it cannot be had.
Number = Callable[[], VariableTracker | None]


class FrameView(Protocol):
    """One frame of the program being traced, as comptime callbacks and reports see it."""

    @property
    def code(self) -> CodeType:
        """The user's code object."""
        ...

    @property
    def local_variables(self) -> Mapping[str, VariableTracker]:
        """The bound plain locals, and the contents of filled cells, by name."""
        ...

    def held(self) -> Sequence[VariableTracker]:
        """What is on the stack, in locals and in cells, unread values included."""
        ...

    def on_stack(self) -> Sequence[VariableTracker]:
        """The values on the stack, bottom first."""
        ...

    @property
    def offset(self) -> int:
        """Where in the bytecode the frame is."""
        ...

    def read(self, name: str) -> VariableTracker | None:
        """What the local, cell or free variable `name` holds; None when it holds nothing."""
        ...

    @property
    def namespace(self) -> dict[str, Any]:
        """The globals of the frame."""
        ...

    @property
    def is_ours(self) -> bool:
        """Whether it runs the twin of a library function."""
        ...

    @property
    def location(self) -> UserLocation:
        """Where the frame is now."""
        ...

    @property
    def handled(self) -> VariableTracker | None:
        """The exception that is being handled in this frame."""
        ...

    def forget_words(self, exception: ExceptionVariable) -> None:
        """An exception is made here: its message is not known when the frame stands for a library's own."""
        ...


class GraphView(Protocol):
    """The graph under construction, as handlers see it."""

    @property
    def graph(self) -> torch.fx.Graph:
        """The torch-level FX graph so far."""
        ...

    @property
    def expects(self) -> bool:
        """Whether the graph may check that the program does not raise (`tracer/frames/runtime_asserts.py`)."""
        ...

    @property
    def guards(self) -> Sequence[Guard]:
        """The guards installed so far, in the order of installation."""
        ...

    @property
    def identity_keys(self) -> dict[VariableTracker, None]:
        """The trackers whose identity was asked for, as the key of a dict or an element of a set."""
        ...

    def guard_attention(self) -> None:
        """Guard what attention may be computed by, which is no part of the global state."""
        ...

    @property
    def class_checks(self) -> ClassChecks:
        """What checks against abstract classes have answered."""
        ...

    @property
    def held_numbers(self) -> dict[object, Number]:
        """The numbers that tensors of one element hold where they can be followed, by the memory of the tensor."""
        ...

    @property
    def storages(self) -> dict[object, StorageVariable]:
        """The storages that the program has asked for, by their memory."""
        ...

    @property
    def write_counts(self) -> dict[VariableTracker, tuple[TensorVariable, int]]:
        """Of which tensor a count of writes was read, and how often its fake one counted as written then."""
        ...

    def version_on_arrival(self, tensor: TensorVariable) -> int:
        """How often the fake tensor of one from outside counted as written when the frame began."""
        ...

    def may_have_written(self) -> bool:
        """Whether the graph may have written to a tensor from outside so far."""
        ...

    def owner_of(self, memory: object) -> TensorVariable | None:
        """A tensor from outside that lies in this memory; None for memory that the graph makes."""
        ...

    def known(self, source: Source) -> VariableTracker | None:
        """The tracker of the value at `source`, if there is one already."""
        ...

    def tracker_of(self, value: object) -> VariableTracker | None:
        """The tracker of a real object, if there is one already."""
        ...

    def claim_namespace(self, namespace: object, owner: VariableTracker) -> bool:
        """Whether nobody else stands for the dictionary that holds the attributes of `owner`; from now on it does."""
        ...

    def lazy(self, value: object, source: Source, *, is_there: bool = False) -> VariableTracker:
        """A value that the program has come to: its tracker if there is one; else it is unread, and must be there.

        `is_there`: other guards say so.
        """
        ...

    def place_of(self, value: object) -> Source | None:
        """Where the program has come to this very object, whether it has looked at it or not."""
        ...

    def guard_when_asked(self, source: Source, kind: GuardKind, expected: object) -> Callable[[], None]:
        """What installs the guard when it is called, as long as the trace goes on."""
        ...

    def real(self, tensor: TensorVariable) -> torch.Tensor | None:
        """The real tensor that a tracker was made from; None for one that the graph computes."""
        ...

    def switch(self, function: Callable[..., Any], *arguments: Any) -> None:
        """Change a setting of torch (see `graph/torch_settings.py`), for what is traced from now on and in the
        graph."""
        ...

    def use(self, tensor: TensorVariable) -> torch.Tensor:
        """The fake tensor of a tracker, whose facts are guarded from now on. `tracer/lazy/facts.py` alone looks at
        `fake`."""
        ...

    def constant(self, tensor: TensorVariable) -> torch.Tensor | None:
        """The tensor with its values, where it was made of constants alone."""
        ...

    def is_guarded(self, tensor: TensorVariable) -> bool:
        """Whether all facts about a tensor are known to hold; of one that is not used, single ones may be read."""
        ...

    def fact(self, tensor: TensorVariable, place: Source, value: Any) -> ConstantVariable:
        """One fact about a tensor, which is at `place`. It is guarded when somebody reads it, unless the tensor is."""
        ...

    @property
    def shapes(self) -> Shapes:
        """The symbols of the frame."""
        ...

    def size(self, tensor: TensorVariable, dim: int) -> VariableTracker:
        """The size of a tensor in one dimension."""
        ...

    def number(self, value: Any, function: Callable[..., Any], operands: Sequence[VariableTracker]) -> VariableTracker:
        """Track `value`, what `function` gives for ints; a node computes it from theirs."""
        ...

    def integer(self, value: int, source: Source) -> NumberVariable:
        """Track an int that Python reads or computes, with a symbol of its own."""
        ...

    def floating(self, value: float, source: Source) -> NumberVariable:
        """Track a float that Python reads or computes; `value` is that of this call."""
        ...

    @property
    def subgraph(self) -> Subgraph | None:
        """The innermost open subgraph."""
        ...

    @property
    def takes_numbers(self) -> bool:
        """Whether the graph that is open takes numbers that are not known, and computes with them."""
        ...

    @property
    def may_end(self) -> bool:
        """Whether a graph break is no error."""
        ...

    @property
    def may_end_here(self) -> bool:
        """Whether that is so in what is being traced."""
        ...

    @property
    def may_be_left(self) -> bool:
        """Whether every subgraph that is open may run eagerly instead, after a graph break."""
        ...

    def open_subgraph(
        self, inputs: Iterable[GraphValue], *, takes_numbers: bool = False, may_be_left: bool = False
    ) -> AbstractContextManager[Subgraph]:
        """Until the block ends, operations go into a graph of its own, which takes `inputs` and what else it reads."""
        ...

    def close_subgraph(self, subgraph: Subgraph, outputs: Sequence[TensorVariable], name: str) -> torch.fx.Node:
        """Let the subgraph return `outputs`; gives the node that stands for it in the graph around it."""
        ...

    def module_of(self, subgraph: torch.fx.Node) -> torch.fx.GraphModule:
        """The closed subgraph that a node stands for."""
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
        """Record `target(pred, *subgraphs, inputs)`, which gives a tuple; `results`: tensors like those in it, and
        whether each requires grad. Without `pred` the subgraphs come first."""
        ...

    def inner_input(self, like: TensorVariable, dim: int | None, requires_grad: bool) -> TensorVariable:
        """A tensor that the open subgraph takes: like `like`, without dimension `dim` if that is given."""
        ...

    def example(self, variable: GraphValue) -> Any:
        """What stands for a value where only the layout of what is computed matters: a float is that of this call."""
        ...

    def infers_symbolic_floats(
        self, op: OpOverload, args: Sequence[VariableTracker], kwargs: Mapping[str, VariableTracker]
    ) -> bool:
        """Whether an operator of the program tells what it gives for floats that are not known."""
        ...

    def emit_transformed(
        self, made: Transformation, name: str, subgraph: torch.fx.Node, inputs: Sequence[GraphValue]
    ) -> tuple[Any, list[VariableTracker]]:
        """Record `made` over a subgraph: what it gives for fake tensors, and the trackers of the tensors in that."""
        ...


class Tracer(Protocol):
    """The symbolic interpreter as handlers see it."""

    side_effects: SideEffects
    attempt: int  # 0 for the first trace of a frame, 1 for the second; what 0 told the user is not told again

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
        """Call anything. A real callable (`operator.add`, a polyfill) stands for itself, trusted and unguarded.

        `lazy`: who asks only moves the result, which may be unread.
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
        """Call a special method as Python does: found on the class, never on the instance. `lazy` as in `call`."""
        ...

    def getattr(self, obj: VariableTracker, name: str) -> VariableTracker:
        """`obj.name` in Python's own order, user code included; a missing attribute raises natively."""
        ...

    def wrap(self, value: object, source: Source | None) -> VariableTracker:
        """The tracker of a real value that lives at `source`, with the guards that this knowledge needs.

        Without a source only constants, trusted functions, classes and modules can be wrapped.
        """
        ...

    def guard(self, source: Source | None, kind: GuardKind, expected: object = None) -> None:
        """Check this before the entry is used again. Nothing happens for a value made while tracing (no source)."""
        ...

    def emit(
        self,
        target: Callable[..., Any] | str,
        args: Sequence[VariableTracker],
        kwargs: Mapping[str, VariableTracker] | None = None,
    ) -> VariableTracker:
        """Put a call into the graph (a Tensor method when `target` is its name) and track what it gives."""
        ...

    def break_graph(self, code: str, what: str, *, why: str = "", fix: str = "", marker: str = "") -> NoReturn:
        """Cut the graph before the current instruction of the root frame, which then runs natively."""
        ...

    def raises(
        self, error: BaseException | ExceptionVariable, *, exact: bool = False, **fields: VariableTracker
    ) -> NoReturn:
        """The program raises here: while tracing where that is `exact`, else by a cut, so that Python itself does.

        `exact`: Python would raise an error of this class with these `args`. A tracked exception is raised as it is.
        """
        ...

    def truth(self, obj: VariableTracker) -> bool:
        """`bool(obj)`; breaks the graph when only the graph's run can tell."""
        ...

    def unpack(self, obj: VariableTracker) -> list[VariableTracker]:
        """`list(obj)`: everything that iterating over it gives."""
        ...

    def next_item(self, iterator: VariableTracker) -> VariableTracker | None:
        """The next item of an iterator (what `iter(x)` gave); None when it is exhausted."""
        ...
