"""Owns the transforms of torch.func while tracing: one node, which transforms a subgraph as torch does.

The node's function is in `minidynamo/graph/func_transforms.py`. `functional_call` is plain Python and is traced as it
is.
"""

from __future__ import annotations

import contextlib
import functools
import inspect
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NoReturn

import torch
import torch.fx

from minidynamo import compat
from minidynamo.errors import summary
from minidynamo.graph.func_transforms import Argument, Transformation, transformed
from minidynamo.graph.pytree import Structure, is_sequence_class, structure_of
from minidynamo.graph.pytree import leaves as leaves_of
from minidynamo.guards.source import Attr, CellContents, Item
from minidynamo.tracer.frames.inlining import trusted_source
from minidynamo.tracer.graph.subgraphs import GraphValue, Subgraph
from minidynamo.tracer.handlers.cond import leaves, tensors_in
from minidynamo.tracer.handlers.dry_run import changing_nothing
from minidynamo.tracer.handlers.values import constant
from minidynamo.tracer.polyfills.functools import inner_code
from minidynamo.tracer.protocol import Tracer
from minidynamo.tracer.records import registry
from minidynamo.tracer.records.constants import NotConstant, as_constant, key_of
from minidynamo.variables.base import VariableTracker
from minidynamo.variables.callables import FunctionVariable
from minidynamo.variables.containers import DictVariable, ListVariable, SequenceVariable, TupleVariable
from minidynamo.variables.numbers import NumberVariable
from minidynamo.variables.tensors import TensorVariable

func: Any = torch.func
# Breaks the graph; it is told what cannot be captured.
Refuse = Callable[[str], NoReturn]
registry.polyfill(func.functional_call)(func.functional_call)


# Plain Python twins of the functions that make transformed functions.


Names = tuple[str, str, str]


def names_inside(maker: Callable[..., Any], maker_name: str, name: str) -> Names:
    """`__name__`, `__qualname__` and `__module__` of a function that is made in one of torch."""
    return name, f"{maker_name}.<locals>.{name}", maker.__globals__["__name__"]


def named(function: Any, names: Names) -> Any:
    """The function, called as one that torch makes."""
    function.__name__, function.__qualname__, function.__module__ = names
    return function


def _looking_like(function: Any, run: Any, names: Names) -> Any:
    """A transformed function as torch makes it: of a class it has the name and what the class holds besides methods of
    Python's."""
    if not isinstance(function, type):
        return functools.wraps(function)(named(run, names))
    for name, value in vars(function).items():
        if not name.startswith("__"):
            setattr(run, name, value)
    run.__doc__, run.__wrapped__ = function.__doc__, function
    return named(run, (function.__name__, function.__qualname__, function.__module__))


_NAMES_OF_VMAP = names_inside(func.vmap, "vmap", "wrapped")


@registry.polyfill(func.vmap)
def _vmap(function: Any, in_dims: Any = 0, out_dims: Any = 0, randomness: Any = "error", **others: Any) -> Any:
    options = {"in_dims": in_dims, "out_dims": out_dims, "randomness": randomness, **others}

    def run(*args: Any, **kwargs: Any) -> Any:
        return transformed(torch.func.vmap, function, options, args, kwargs)

    return _looking_like(function, run, _NAMES_OF_VMAP)


def _derivative(transform: Any, name: str) -> Any:
    names = names_inside(transform, transform.__name__, name)

    def twin(function: Any, argnums: Any = 0, has_aux: Any = False, **others: Any) -> Any:
        options = {"argnums": argnums, "has_aux": has_aux, **others}

        def run(*args: Any, **kwargs: Any) -> Any:
            return transformed(transform, function, options, args, kwargs)

        return _looking_like(function, run, names)

    return twin


@registry.polyfill(func.hessian)
def _hessian(function: Any, argnums: Any = 0) -> Any:
    inner = torch.func.jacrev(function, argnums)
    return torch.func.jacfwd(inner, argnums)


@registry.polyfill(func.jvp)
def _jvp(function: Any, primals: Any, tangents: Any, *, strict: Any = False, has_aux: Any = False) -> Any:
    def at(primals: Any, tangents: Any) -> Any:
        return function(*primals)

    return transformed(_jvp_of, at, {"strict": strict, "has_aux": has_aux}, (primals, tangents), {})


def _jvp_of(function: Any, **options: Any) -> Any:
    """`jvp` as a transform: a function of what `function` takes, and of the tangents."""
    return lambda primals, tangents: torch.func.jvp(
        lambda *args: function(args, tangents), primals, tangents, **options
    )


_BACKWARD = (func.grad, func.grad_and_value, func.jacrev)
# With the name of the function that each makes.
_DERIVATIVES = {
    func.grad: "wrapper",
    func.grad_and_value: "wrapper",
    func.jacrev: "wrapper_fn",
    func.jacfwd: "wrapper_fn",
}
for _transform, _name in _DERIVATIVES.items():
    registry.polyfill(_transform)(_derivative(_transform, _name))


# Functions that torch has made outside of the program: what they transform, and how, is in their cells.


def held(made: Any, place: int) -> Any:
    """What a closure cell of a function holds."""
    return made.__closure__[place].cell_contents


@registry.function(held)
def _held(tx: Tracer, made: VariableTracker, place: VariableTracker) -> VariableTracker:
    assert isinstance(made, FunctionVariable)
    position = as_constant(place)
    cell = Item(Attr(made.source or trusted_source(made.value), "__closure__"), position)
    return tx.wrap(held(made.value, position), CellContents(cell))


def _made_by(transform: Any, name: str) -> None:
    """Trace the functions that `transform` has made, each called `name`, as those that its twin makes."""
    code = inner_code(transform, name)
    taken = inspect.signature(transform).parameters
    cells = {variable: place for place, variable in enumerate(code.co_freevars) if variable in taken}
    function = cells.pop("func")

    @registry.polyfill_code(code)
    def run(made: Any, /, *args: Any, **kwargs: Any) -> Any:
        options = {option: held(made, place) for option, place in cells.items()}
        return transformed(transform, held(made, function), options, args, kwargs)


for _transform, _name in {func.vmap: _NAMES_OF_VMAP[0], **_DERIVATIVES}.items():
    _made_by(_transform, _name)


# The node


@registry.function(transformed)
def _transformed(
    tx: Tracer,
    transform: VariableTracker,
    function: VariableTracker,
    options: VariableTracker,
    args: VariableTracker,
    kwargs: VariableTracker,
) -> VariableTracker:
    assert isinstance(transform, FunctionVariable) and isinstance(options, DictVariable)
    real = transform.value
    name = real.__name__.strip("_").removesuffix("_of")

    def refuse(what: str) -> NoReturn:
        refuse_transform(tx, name, what)

    plain = _options(options, refuse)
    if real is _jvp_of and _tangents_convert(args):
        refuse("a tangent has another dtype than what it belongs to")
    seen: set[TensorVariable] = set()
    args, kwargs = distinct(tx, args, seen), distinct(tx, kwargs, seen)
    assert isinstance(args, TupleVariable) and isinstance(kwargs, DictVariable)
    given = given_tensors(args, kwargs, refuse)
    dims = _dims(tx, real, plain, args, kwargs, refuse)
    followed = _followed(real, plain, args)
    how = {tensor: (dim, tensor in followed) for tensor, dim in zip(given, dims)}
    traced = trace(tx, name, function, args, kwargs, how, derivative=real in _DERIVATIVES)
    made = Transformation(real, plain, traced.args, traced.kwargs, traced.result, whole=traced.whole)
    return record(tx, made, name, traced.subgraph, [*traced.captured, *given], refuse)


def _tangents_convert(args: VariableTracker) -> bool:
    """Whether torch may convert a tangent to the dtype of its primal, which it does where the primal is a view."""
    assert isinstance(args, TupleVariable)
    dtypes = [[leaf.fake.dtype for leaf in leaves(part) if isinstance(leaf, TensorVariable)] for part in args.items]
    return any(dtype != other for dtype, other in zip(*dtypes))


@dataclass(frozen=True, eq=False)
class Traced:
    """A function that was traced into a graph of its own: what it takes and gives, and what it reads besides.

    `args` and `kwargs` have an `Argument` in the place of each tensor; `whole` is for the `Transformation`.
    """

    subgraph: torch.fx.Node
    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    result: Structure
    captured: list[GraphValue]
    whole: bool


def given_tensors(args: VariableTracker, kwargs: VariableTracker, refuse: Refuse) -> list[TensorVariable]:
    """The tensors among the arguments of a transformed function."""
    given = [leaf for leaf in leaves(TupleVariable([args, kwargs])) if isinstance(leaf, TensorVariable)]
    if not given:
        refuse("its arguments are no tensors")
    return given


def trace(
    tx: Tracer,
    name: str,
    function: VariableTracker,
    args: TupleVariable,
    kwargs: DictVariable,
    given: dict[TensorVariable, tuple[int | None, bool]],
    *,
    derivative: bool,
    takes_numbers: bool = True,
) -> Traced:
    """Trace the function that `name` transforms. Of each tensor `given` to it is said which dimension is taken away,
    and whether gradients are computed for it. A `derivative` is computed whatever the grad mode is around it. Numbers
    are constants in it unless it `takes_numbers`."""

    def refuse(what: str) -> NoReturn:
        refuse_transform(tx, name, what)

    mode = _gradients_enabled(tx) if derivative else contextlib.nullcontext()
    with (
        tx.graph.open_subgraph((), takes_numbers=takes_numbers) as subgraph,
        changing_nothing(tx, refuse, may_restore=True),
        mode,
    ):
        replaced = {tensor: tx.graph.inner_input(tensor, *how) for tensor, how in given.items()}
        result = _call(tx, function, args, kwargs, replaced)
        if name == "vmap":
            result = _made_inside(tx, subgraph, result)
        _check(subgraph, result, refuse)
    if subgraph.has_plain_numbers and subgraph.draws:
        if not tx.graph.may_end:
            return trace(tx, name, function, args, kwargs, given, derivative=derivative, takes_numbers=False)
        refuse("its function draws random numbers, and takes a number that differs from call to call")
    order = list(given)
    spec = (spec_of(args, order, refuse), spec_of(kwargs, order, refuse))
    structure = structure_of(spec_of(result, tensors_in(result), refuse))
    node = tx.graph.close_subgraph(subgraph, tensors_in(result), f"{name}_function")
    return Traced(node, *spec, structure, list(subgraph.inputs), subgraph.has_plain_numbers)


def distinct(tx: Tracer, value: VariableTracker, seen: set[TensorVariable]) -> VariableTracker:
    """The same value with another tensor over the same memory for each that is there a second time."""
    tensors = [leaf for leaf in leaves(value) if isinstance(leaf, TensorVariable)]
    if len(set(tensors)) == len(tensors) and not seen.intersection(tensors):
        seen.update(tensors)
        return value
    if isinstance(value, TensorVariable):
        return tx.emit("view_as", [value, value])
    if isinstance(value, DictVariable):
        items = {key: distinct(tx, item, seen) for key, item in value.items.items()}
        return DictVariable(items, value.cls)
    assert isinstance(value, SequenceVariable)
    parts = [distinct(tx, item, seen) for item in value.items]
    return ListVariable(parts) if isinstance(value, ListVariable) else TupleVariable(parts, value.cls)


def _options(options: DictVariable, refuse: Refuse) -> dict[str, Any]:
    """The options of the transform, which must be known."""
    try:
        plain = {str(key.token): as_constant(value) for key, value in options.items.items()}
    except NotConstant as error:
        refuse(f"an option is a {error}")
    return plain


def record(
    tx: Tracer, made: Transformation, name: str, node: torch.fx.Node, inputs: Sequence[GraphValue], refuse: Refuse
) -> VariableTracker:
    """Put the call into the graph and track what it gives."""
    try:
        outcome, tensors = tx.graph.emit_transformed(made, name, node, inputs)
    except Exception as error:  # whatever torch raises, it raises for the program, too, but for failures of its own
        is_own = "INTERNAL ASSERT FAILED" in str(error) or isinstance(error, AssertionError)
        refuse("torch fails to run it on tensors without data" if is_own else f"it raises {summary(error)}")
    if any(not isinstance(leaf, torch.Tensor) for leaf in leaves_of(outcome)):
        refuse("it gives something other than tensors")
    return tracked_as(outcome, iter(tensors))


def _call(
    tx: Tracer,
    function: VariableTracker,
    args: VariableTracker,
    kwargs: VariableTracker,
    replaced: dict[TensorVariable, TensorVariable],
) -> VariableTracker:
    """Trace the function with the subgraph's own tensors for the arguments."""
    assert isinstance(args, TupleVariable) and isinstance(kwargs, DictVariable)
    inside = [_with(arg, replaced) for arg in args.items]
    named = {str(key.token): _with(value, replaced) for key, value in kwargs.items.items()}
    return tx.call(function, inside, named)


def _followed(transform: Any, options: dict[str, Any], args: VariableTracker) -> set[VariableTracker]:
    """The tensors that require grad inside the function: those of the arguments to differentiate."""
    if transform not in _BACKWARD:
        return set()
    assert isinstance(args, TupleVariable)
    numbers = options["argnums"]
    chosen = [args.items[n] for n in (numbers if isinstance(numbers, tuple) else (numbers,)) if n < len(args.items)]
    return {leaf for arg in chosen for leaf in leaves(arg)}


@contextlib.contextmanager
def _gradients_enabled(tx: Tracer) -> Iterator[None]:
    before = torch.is_grad_enabled()
    tx.graph.switch(compat.set_grad_enabled, True)
    try:
        yield
    finally:
        tx.graph.switch(compat.set_grad_enabled, before)


def _dims(
    tx: Tracer, transform: Any, options: dict[str, Any], args: VariableTracker, kwargs: VariableTracker, refuse: Refuse
) -> list[int | None]:
    """The dimension of each tensor that `vmap` takes away; None for all when it is another transform."""
    whole = transform is not func.vmap
    assert isinstance(args, TupleVariable)
    wanted = None if whole else options["in_dims"]
    each = wanted if isinstance(wanted, (tuple, list)) else [wanted] * len(args.items)
    if len(each) != len(args.items):
        refuse("in_dims is not as long as the arguments")
    found = [dim for part, dims in zip(args.items, each) for dim in _spread(part, dims, refuse)]
    return [*found, *_spread(kwargs, None, refuse)]  # `vmap` takes nothing away from what is given by name


def _spread(value: VariableTracker, dims: Any, refuse: Refuse) -> Iterator[int | None]:
    """`in_dims` for each tensor of an argument."""
    if not isinstance(value, (SequenceVariable, DictVariable)):
        if isinstance(value, TensorVariable):
            if dims is not None and (type(dims) is not int or not -value.fake.ndim <= dims < value.fake.ndim):
                refuse("in_dims is no dimension of an argument")
            yield dims
        elif dims is not None:
            refuse("an argument to map over is no tensor")
        return
    parts = list(value.items.values()) if isinstance(value, DictVariable) else value.items
    if isinstance(dims, dict):
        dims = list(dims.values())
    each = dims if isinstance(dims, (tuple, list)) else [dims] * len(parts)
    if len(each) != len(parts):
        refuse("in_dims has another structure than the arguments")
    for part, dim in zip(parts, each):
        yield from _spread(part, dim, refuse)


def _made_inside(tx: Tracer, subgraph: Subgraph, value: VariableTracker) -> VariableTracker:
    """The same value, with another tensor over the same memory for each that is from outside: `vmap` repeats it."""
    outside = [leaf for leaf in tensors_in(value) if leaf.node.graph is not subgraph.graph]
    views = [tx.emit("view_as", [tensor, tensor]) for tensor in outside]
    return _with(value, dict(zip(outside, views))) if outside else value


def _check(subgraph: Subgraph, result: VariableTracker, refuse: Refuse) -> None:
    if subgraph.changed_facts() is not None:
        refuse("its function changes the shape or history of a tensor from outside")
    for leaf in leaves(result):
        if not isinstance(leaf, TensorVariable):
            refuse(f"its function returns a {leaf.python_type.__name__}")
        elif leaf.node.graph is not subgraph.graph:
            refuse("its function returns a tensor from outside")


def _with(value: VariableTracker, replaced: Mapping[TensorVariable, VariableTracker]) -> VariableTracker:
    """The same value around other tensors."""
    if isinstance(value, DictVariable):
        return DictVariable({key: _with(item, replaced) for key, item in value.items.items()}, value.cls)
    if isinstance(value, SequenceVariable):
        items = [_with(item, replaced) for item in value.items]
        return ListVariable(items) if isinstance(value, ListVariable) else TupleVariable(items, value.cls)
    return replaced.get(value, value) if isinstance(value, TensorVariable) else value


def spec_of(value: VariableTracker, tensors: list[TensorVariable], refuse: Refuse) -> Any:
    """A real value with an `Argument` for each tensor. The function knows the numbers that differ from call to call."""
    if isinstance(value, TensorVariable):
        return Argument(tensors.index(value))
    if isinstance(value, NumberVariable):
        return value.cls()
    if isinstance(value, DictVariable) and value.cls is dict:
        return {key.token: spec_of(item, tensors, refuse) for key, item in value.items.items()}
    if isinstance(value, SequenceVariable) and is_sequence_class(value.cls):
        return value.cls(spec_of(item, tensors, refuse) for item in value.items)
    try:
        return as_constant(value)
    except NotConstant as error:
        return refuse(f"it takes or gives a {error}")


def tracked_as(value: Any, tensors: Iterator[VariableTracker]) -> VariableTracker:
    """The tracker of what the transform gives."""
    if isinstance(value, dict):
        return DictVariable({key_of(constant(key)): tracked_as(item, tensors) for key, item in value.items()})
    if isinstance(value, (list, tuple)):
        items = [tracked_as(item, tensors) for item in value]
        return ListVariable(items) if isinstance(value, list) else TupleVariable(items, type(value))
    return next(tensors)


def refuse_transform(tx: Tracer, name: str, what: str) -> NoReturn:
    tx.break_graph(
        "MD207",
        f"torch.func.{name}() cannot be captured: {what}",
        why="A transformed function is a graph of its own: it takes and returns tensors and does nothing else.",
    )
