"""Owns derivatives of derivatives: the backward of a compiled graph for callers who differentiate it again.

A compiled backward is code that autograd does not see into, and forward keeps values without their history. So with
`create_graph=True` the captured graph runs once more, operation by operation under autograd, on the inputs of the call,
and torch differentiates it. What that takes beyond what is saved anyway is kept here; the plain backward is in
`runtime.py`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import fx

from minidynamo import compat
from minidynamo.autograd.functionalize import FunctionalGraph
from minidynamo.autograd.joint import Trace, is_differentiable_view
from minidynamo.autograd.layouts import Layout
from minidynamo.autograd.numbers import is_number
from minidynamo.autograd.partition import Partition
from minidynamo.autograd.recomputation import is_random
from minidynamo.autograd.unread import read_inputs
from minidynamo.boxed import BoxedCallable
from minidynamo.errors import Diagnostic, Unsupported
from minidynamo.switches import Settings, preserved, restore


@dataclass(frozen=True)
class Replay:
    """What a second run of a graph is given. Inputs are numbered as in the flat list.

    `saved` are (input, its position among the saved tensors), `held` inputs that are kept for this alone, `shapes`
    tensors whose data no gradient depends on, `plain` what is no tensor. `written` are inputs that the graph writes to.
    `targets` are, for each result that has a gradient, the outputs that are it or views of it; or (-1 - input,) for the
    new data of an input. `random` are devices whose random numbers it draws. `refusal` says why there is no second run.
    """

    saved: tuple[tuple[int, int], ...] = ()
    held: tuple[int, ...] = ()
    shapes: tuple[int, ...] = ()
    plain: tuple[int, ...] = ()
    written: tuple[int, ...] = ()
    targets: tuple[tuple[int, ...], ...] = ()
    random: tuple[str, ...] = ()
    refusal: str = ""


def plan_replay(
    trace: Trace,
    functional: FunctionalGraph,
    parts: Partition,
    gradients: Iterable[fx.Node | None],
    written: Iterable[int],
    given_up: Iterable[int],
) -> Replay:
    """How the graph of `trace` can be run again for a second derivative, given how it was split."""
    read = _read(node for node in gradients if node is not None)
    needed = [i for i in trace.primals if functional.placeholders[i] in read]
    overwritten, lost = set(written), set(given_up)
    saved, held, refusal = [], [], ""
    for i in needed:
        node = functional.placeholders[i]
        if node in parts.saved and not (i in overwritten and trace.requires_grad[i]):
            saved.append((i, parts.saved.index(node)))
        elif i in overwritten:
            refusal = f"Its gradients depend on what {node} held, and the program writes to it."
        elif i in lost:
            refusal = f"Its gradients depend on {node}, which was given up with its list."
        else:
            held.append(i)
    random = {device for node in functional.emitter.graph.nodes if is_random(node) for device in _devices(node)}
    return Replay(
        tuple(saved),
        tuple(held),
        tuple(i for i in trace.primals if i not in needed),
        tuple(i for i in range(len(functional.placeholders)) if i not in trace.primals),
        tuple(sorted(overwritten)),
        tuple(_targets(trace)),
        tuple(sorted(random)),
        refusal,
    )


def _devices(node: fx.Node) -> set[str]:
    """Where the tensors lie that an operation makes."""
    value = node.meta["val"]
    made = value if isinstance(value, (tuple, list)) else [value]
    return {tensor.device.type for tensor in made if isinstance(tensor, torch.Tensor)}


def _read(roots: Iterable[fx.Node]) -> set[fx.Node]:
    """What `roots` are computed from, tensors that are only asked for their sizes aside."""
    found: set[fx.Node] = set()
    pending = list(roots)
    while pending:
        node = pending.pop()
        if node not in found:
            found.add(node)
            pending += () if is_number(node) else read_inputs(node)
    return found


def _targets(trace: Trace) -> Iterator[tuple[int, ...]]:
    yield from ((-1 - index,) for index in trace.mutated_with_grad)
    for number, family in enumerate(trace.families):
        if family.requires_grad:
            members = enumerate(trace.outputs)
            yield tuple(i for i, output in members if output.kind == "member" and output.index == number)


@dataclass
class Refused:
    """What one call keeps when there will be no second run: tensors without data that depend on the inputs."""

    why: str
    links: list[torch.Tensor]


@dataclass
class Kept:
    """What one call keeps for a second run."""

    held: list[tuple[torch.Tensor, int]]
    shapes: list[Layout]
    plain: list[Any]
    random: list[torch.Tensor]


class NotAvailable(Exception):
    """An input of the call is not what it was any more."""


class DoubleBackward:
    """Runs the graph again as `replay` says. `make_graph` gives the captured graph as a boxed callable of the flat
    inputs; `entry` are the settings that it is entered with, `wanted` the inputs whose gradients are asked for."""

    def __init__(
        self, replay: Replay, make_graph: Callable[[], BoxedCallable], entry: Settings, wanted: Sequence[int]
    ) -> None:
        self.replay = replay
        self.make_graph = make_graph
        self.entry = entry
        self.wanted = wanted

    def keep(self, args: Sequence[Any], hooked: bool) -> Kept | Refused:
        """What is needed of the inputs of a call that begins. User's hooks for saved tensors leave nothing to keep."""
        replay = self.replay
        why = replay.refusal or "Hooks for saved tensors were in force." * hooked
        if why:
            return Refused(why, [_with_history(_Link, args[i]) for i in self.wanted])
        return Kept(
            [_hold(args[i]) for i in replay.held],
            [Layout(args[i]) for i in replay.shapes],
            [args[i] for i in replay.plain],
            [_state(device) for device in replay.random],
        )

    def run(
        self,
        kept: Kept | Refused,
        saved: Sequence[torch.Tensor],
        tangents: Sequence[torch.Tensor | None],
        compiled: Callable[[], Sequence[torch.Tensor | None]],
    ) -> Sequence[torch.Tensor | None]:
        """Gradients of the inputs in `wanted`, which autograd can differentiate; where that is not possible, those of
        the `compiled` backward, which refuse to be. With the grad mode off the tangents are batches, which no compiled
        code takes."""
        given = [tangent for tangent in tangents if tangent is not None]
        if isinstance(kept, Refused):
            return _refusing(compiled, kept.why, [*kept.links, *given])
        try:
            return self.gradients(kept, saved, tangents)
        except NotAvailable as error:
            links = [saved[place] for _, place in self.replay.saved] + [value for value, _ in kept.held]
            return _refusing(compiled, str(error), [*links, *given])

    def gradients(
        self, kept: Kept, saved: Sequence[torch.Tensor], tangents: Sequence[torch.Tensor | None]
    ) -> list[torch.Tensor | None]:
        """The gradients by a second run of the graph. Raises NotAvailable."""
        again = torch.is_grad_enabled()
        with torch.enable_grad():
            links, given = self.inputs(kept, saved)
        with (
            torch.enable_grad(),
            torch.random.fork_rng(_accelerators(self.replay.random), enabled=bool(self.replay.random)),
        ):
            for device, state in zip(self.replay.random, kept.random):
                _set_state(device, state)
            with preserved():
                restore(self.entry)
                outputs = self.make_graph()(list(given))
        pairs = [(self.target(places, outputs, given), t) for places, t in zip(self.replay.targets, tangents)]
        asked = [(target, tangent) for target, tangent in pairs if tangent is not None and target.requires_grad]
        sources = [links[i] for i in self.wanted if links[i].requires_grad]
        if not asked or not sources:
            return [None] * len(self.wanted)
        targets, given_gradients = zip(*asked)
        made = iter(torch.autograd.grad(targets, sources, given_gradients, create_graph=again, allow_unused=True))
        return [next(made) if links[i].requires_grad else None for i in self.wanted]

    def inputs(self, kept: Kept, saved: Sequence[torch.Tensor]) -> tuple[dict[int, torch.Tensor], list[Any]]:
        """The tensors to differentiate by, and the flat list of inputs that are computed from them."""
        values = {i: saved[place] for i, place in self.replay.saved}
        values.update((i, _unpack(entry)) for i, entry in zip(self.replay.held, kept.held))
        # A path of its own to each input: some may be computed from others.
        links = {i: value.view_as(value) for i, value in values.items()}
        for i, layout in zip(self.replay.shapes, kept.shapes):
            links[i] = layout.empty().zero_().requires_grad_(i in self.wanted)
        given = {i: link.clone() if i in self.replay.written else link for i, link in links.items()}
        given.update(zip(self.replay.plain, kept.plain))
        return links, [given[i] for i in range(len(given))]

    def target(self, places: tuple[int, ...], outputs: Sequence[Any], given: Sequence[Any]) -> torch.Tensor:
        """The tensor that one result of the compiled graph stands for."""
        if places[0] < 0:
            mutated: torch.Tensor = given[-1 - places[0]]
            return mutated
        members = [outputs[place] for place in places]
        alone = len(set(map(id, members))) == 1 and not is_differentiable_view(members[0])
        roots: list[torch.Tensor] = [m if alone or m._base is None else m._base for m in members]
        return next((root for root in roots if root.requires_grad), roots[0])


class _Alias(torch.autograd.Function):
    """The same data under the history that a tensor has now, whatever it is made to be later."""

    @staticmethod
    def forward(ctx: Any, value: torch.Tensor) -> torch.Tensor:
        return value.detach()

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> torch.Tensor:
        return gradient


class _Link(torch.autograd.Function):
    """Another tensor of the same shape under the history of a tensor, without its data."""

    @staticmethod
    def forward(ctx: Any, value: torch.Tensor) -> torch.Tensor:
        return value.new_zeros(()).expand(value.shape)

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> torch.Tensor:
        return gradient


def _with_history(function: type[torch.autograd.Function], value: torch.Tensor) -> torch.Tensor:
    with torch.enable_grad():
        made: torch.Tensor = compat.raw_apply(function)(value)
    return made


def _hold(value: torch.Tensor) -> tuple[torch.Tensor, int]:
    """`value` for later, with its version. A tensor that is written to may come to depend on who holds it: only leaves
    that autograd does not let be written are held themselves."""
    if not value.requires_grad:
        held = value.detach()
    elif value.is_leaf:
        held = value
    else:
        held = _with_history(_Alias, value)
    return held, _version(held)


def _version(value: torch.Tensor) -> int:
    return 0 if value.is_inference() else value._version


def _unpack(entry: tuple[torch.Tensor, int]) -> torch.Tensor:
    value, version = entry
    if _version(value) != version:
        raise NotAvailable("An input was written to since.")
    return value


def _accelerators(devices: Iterable[str]) -> list[int]:
    return [torch.cuda.current_device()] if "cuda" in devices else []


def _state(device: str) -> torch.Tensor:
    return torch.cuda.get_rng_state() if device == "cuda" else torch.get_rng_state()


def _set_state(device: str, state: torch.Tensor) -> None:
    if device == "cuda":
        torch.cuda.set_rng_state(state)
    else:
        torch.set_rng_state(state)


class _NoSecondDerivative(torch.autograd.Function):
    """Passes the first `count` tensors on, as if they depended on all, and refuses to be differentiated itself."""

    @staticmethod
    def forward(ctx: Any, why: str, count: int, *values: torch.Tensor) -> tuple[torch.Tensor, ...]:
        ctx.why = why
        return tuple(gradient.view_as(gradient) for gradient in values[:count])

    @staticmethod
    def backward(ctx: Any, *_: Any) -> Any:
        raise Unsupported(
            Diagnostic(
                "MD403",
                "a compiled graph cannot be differentiated twice",
                why=f"Its backward is compiled code, and the graph cannot be run again. {ctx.why}",
                fix="Run the function without minidynamo there: `fn.__wrapped__(...)`.",
            )
        )


def _refusing(
    compiled: Callable[[], Sequence[torch.Tensor | None]], why: str, links: Sequence[torch.Tensor]
) -> list[Any]:
    """The gradients that the compiled backward makes; MD403 for whoever differentiates them by what `links` come of."""
    with torch.no_grad():
        made: list[Any] = list(compiled())
    present = [i for i, gradient in enumerate(made) if gradient is not None]
    if present:
        apply = compat.raw_apply(_NoSecondDerivative)
        leaves = [made[i].detach().requires_grad_() for i in present]
        for i, gradient in zip(present, apply(why, len(leaves), *leaves, *links)):
            made[i] = gradient
    return made
