"""Owns the transforms of torch.func during capture: one node transforms a subgraph with the real transform.

The node's function is in `minidynamo/graph/func_transforms.py`. `functional_call` is plain Python and is traced.
`torch.func.vjp` has a node for the values of its function and a node for each call of the gradient function. The
function runs again in each node. Its inputs must not be written in between, and it must draw no random numbers. If the
gradient function outlives the graph, torch makes it again after the graph.
"""

from __future__ import annotations

import contextlib
import functools
import inspect
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any, NoReturn

import torch
import torch.fx

from minidynamo import compat
from minidynamo.compat import version_of
from minidynamo.core.records import record
from minidynamo.errors import an, summary
from minidynamo.graph.func_transforms import Argument, PullBack, Transformation, transformed
from minidynamo.graph.pytree import Structure, is_sequence_class, rebuild, structure_of
from minidynamo.graph.pytree import leaves as leaves_of
from minidynamo.graph.torch_settings import Settings, settings
from minidynamo.guards.source import Attr, CellContents, Item
from minidynamo.tracer.frames.inlining import trusted_source
from minidynamo.tracer.frames.interpreter import Tracer
from minidynamo.tracer.graph.open_graphs import GraphValue, Subgraph
from minidynamo.tracer.handlers.cond import leaves, tensors_in
from minidynamo.tracer.handlers.dry_run import draws_random_numbers, without_side_effects
from minidynamo.tracer.handlers.values import constant, expect_constant
from minidynamo.tracer.polyfills.functools import inner_code
from minidynamo.tracer.records import registry
from minidynamo.tracer.records.constants import NotConstant, as_constant, key_of
from minidynamo.variables.base import NumberVariable, VariableTracker
from minidynamo.variables.callables import FunctionVariable, PullBackVariable
from minidynamo.variables.containers import DictVariable, ListVariable, SequenceVariable, TupleVariable
from minidynamo.variables.tensors import TensorVariable

func: Any = torch.func
# Breaks the graph; the argument is the reason.
Refuse = Callable[[str], NoReturn]
registry.polyfill(func.functional_call)(func.functional_call)


# Polyfills of the functions that make transformed functions.


Names = tuple[str, str, str]


def names_of_inner(maker: Callable[..., Any], maker_name: str, name: str) -> Names:
    """Returns `__name__`, `__qualname__` and `__module__` of a function that is defined inside a torch function."""
    return name, f"{maker_name}.<locals>.{name}", maker.__globals__["__name__"]


def named(function: Any, names: Names) -> Any:
    """Renames the function like a function of torch."""
    function.__name__, function.__qualname__, function.__module__ = names
    return function


def _with_torch_attributes(function: Any, run: Any, names: Names) -> Any:
    """Sets the same attributes on a transformed function as torch does.

    The transform of a class has the name of the class, and its attributes except Python's special methods.
    """
    if not isinstance(function, type):
        return functools.wraps(function)(named(run, names))
    for name, value in vars(function).items():
        if not name.startswith("__"):
            setattr(run, name, value)
    run.__doc__, run.__wrapped__ = function.__doc__, function
    return named(run, (function.__name__, function.__qualname__, function.__module__))


_NAMES_OF_VMAP = names_of_inner(func.vmap, "vmap", "wrapped")


@registry.polyfill(func.vmap)
def _vmap(function: Any, in_dims: Any = 0, out_dims: Any = 0, randomness: Any = "error", **others: Any) -> Any:
    options = {"in_dims": in_dims, "out_dims": out_dims, "randomness": randomness, **others}

    def run(*args: Any, **kwargs: Any) -> Any:
        return transformed(torch.func.vmap, function, options, args, kwargs)

    return _with_torch_attributes(function, run, _NAMES_OF_VMAP)


def _derivative(transform: Any, name: str) -> Any:
    names = names_of_inner(transform, transform.__name__, name)

    def polyfill(function: Any, argnums: Any = 0, has_aux: Any = False, **others: Any) -> Any:
        options = {"argnums": argnums, "has_aux": has_aux, **others}

        def run(*args: Any, **kwargs: Any) -> Any:
            return transformed(transform, function, options, args, kwargs)

        return _with_torch_attributes(function, run, names)

    return polyfill


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
    """Returns `jvp` as a transform: a function of `function`'s arguments and of the tangents."""
    return lambda primals, tangents: torch.func.jvp(
        lambda *args: function(args, tangents), primals, tangents, **options
    )


_BACKWARD = (func.grad, func.grad_and_value, func.jacrev)
# Transforms, with the name of the function that torch defines inside.
_DERIVATIVES = {
    func.grad: "wrapper",
    func.grad_and_value: "wrapper",
    func.jacrev: "wrapper_fn",
    func.jacfwd: "wrapper_fn",
}
for _transform, _name in _DERIVATIVES.items():
    registry.polyfill(_transform)(_derivative(_transform, _name))


# Transformed functions that torch made outside of the program: closure cells hold the function and its options.


def contents_of_cell(function: Any, cell_index: int) -> Any:
    """Returns the contents of a closure cell of a function."""
    return function.__closure__[cell_index].cell_contents


@registry.function(contents_of_cell)
def _contents_of_cell(tx: Tracer, function: VariableTracker, cell_index: VariableTracker) -> VariableTracker:
    assert isinstance(function, FunctionVariable)
    position = as_constant(cell_index)
    cell = Item(Attr(function.source or trusted_source(function.value), "__closure__"), position)
    return tx.wrap(contents_of_cell(function.value, position), CellContents(cell))


def _trace_functions_made_by(transform: Any, name: str) -> None:
    """Registers a polyfill for functions called `name` that `transform` made before the trace."""
    code = inner_code(transform, name)
    accepted = inspect.signature(transform).parameters
    cells = {variable: cell_index for cell_index, variable in enumerate(code.co_freevars) if variable in accepted}
    function = cells.pop("func")

    @registry.polyfill_code(code)
    def run(nested: Any, /, *args: Any, **kwargs: Any) -> Any:
        options = {option: contents_of_cell(nested, cell_index) for option, cell_index in cells.items()}
        return transformed(transform, contents_of_cell(nested, function), options, args, kwargs)


for _transform, _name in {func.vmap: _NAMES_OF_VMAP[0], **_DERIVATIVES}.items():
    _trace_functions_made_by(_transform, _name)


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
        refuse("a tangent and its primal have different dtypes")
    seen: set[TensorVariable] = set()
    args, kwargs = distinct_tensors(tx, args, seen), distinct_tensors(tx, kwargs, seen)
    assert isinstance(args, TupleVariable) and isinstance(kwargs, DictVariable)
    tensors = tensor_arguments(args, kwargs, refuse)
    dims = _dims(tx, real, plain, args, kwargs, refuse)
    differentiated = _differentiated(real, plain, args)
    inner_inputs = {tensor: (dim, tensor in differentiated) for tensor, dim in zip(tensors, dims)}
    traced = trace_transformed(tx, name, function, args, kwargs, inner_inputs, derivative=real in _DERIVATIVES)
    transformation = Transformation(real, plain, traced.args, traced.kwargs, traced.result)
    return emit_transform(tx, transformation, name, traced.subgraph, [*traced.captured, *tensors], refuse)


def _tangents_convert(args: VariableTracker) -> bool:
    """Returns whether torch may convert a tangent to the dtype of its primal, as it does if the primal is a view."""
    assert isinstance(args, TupleVariable)
    dtypes = [[leaf.fake.dtype for leaf in leaves(part) if isinstance(leaf, TensorVariable)] for part in args.items]
    return any(dtype != other for dtype, other in zip(*dtypes))


@record(frozen=True, eq=False)
class TracedFunction:
    """A traced function with a graph of its own."""

    #: The node of the function's graph.
    subgraph: torch.fx.Node
    #: The arguments, with an `Argument` in the position of each tensor.
    args: tuple[Any, ...]
    #: The keyword arguments, in the same form.
    kwargs: dict[str, Any]
    #: The structure of the result.
    result: Structure
    #: Values that the function reads from outside.
    captured: list[GraphValue]


def tensor_arguments(args: VariableTracker, kwargs: VariableTracker, refuse: Refuse) -> list[TensorVariable]:
    """Returns the tensors among the arguments of a transformed function."""
    tensors = [leaf for leaf in leaves(TupleVariable([args, kwargs])) if isinstance(leaf, TensorVariable)]
    if not tensors:
        refuse("its arguments are no tensors")
    return tensors


def trace_transformed(
    tx: Tracer,
    name: str,
    function: VariableTracker,
    args: TupleVariable,
    kwargs: DictVariable,
    inner_inputs: dict[TensorVariable, tuple[int | None, bool]],
    *,
    derivative: bool,
    takes_numbers: bool = True,
) -> TracedFunction:
    """Traces the function that `name` transforms.

    `inner_inputs` has, for each tensor argument, the dimension that is removed, and whether it requires grad inside. A
    `derivative` ignores the grad mode around it. Without `takes_numbers`, numbers are specialized in the function.
    """

    def refuse(what: str) -> NoReturn:
        refuse_transform(tx, name, what)

    mode = _gradients_enabled(tx) if derivative else contextlib.nullcontext()
    with (
        tx.graph.open_subgraph((), takes_numbers=takes_numbers) as subgraph,
        without_side_effects(tx, refuse, may_restore=True),
        mode,
    ):
        replaced = {tensor: tx.graph.inner_input(tensor, *how) for tensor, how in inner_inputs.items()}
        result = _call(tx, function, args, kwargs, replaced)
        if name == "vmap":
            result = _copied_into_subgraph(tx, subgraph, result)
        _check(subgraph, result, refuse)
    if subgraph.has_scalar_arguments:
        if not tx.graph.may_break:
            return trace_transformed(
                tx, name, function, args, kwargs, inner_inputs, derivative=derivative, takes_numbers=False
            )
        refuse("its function passes a number that differs from call to call as a scalar argument")
    order = list(inner_inputs)
    spec = (spec_of(args, order, refuse), spec_of(kwargs, order, refuse))
    structure = structure_of(spec_of(result, tensors_in(result), refuse))
    node = tx.graph.close_subgraph(subgraph, tensors_in(result), f"{name}_function")
    return TracedFunction(node, *spec, structure, list(subgraph.inputs))


def distinct_tensors(tx: Tracer, value: VariableTracker, seen: set[TensorVariable]) -> VariableTracker:
    """Replaces each repeated tensor in the value by a view of all of it."""
    tensors = [leaf for leaf in leaves(value) if isinstance(leaf, TensorVariable)]
    if len(set(tensors)) == len(tensors) and not seen.intersection(tensors):
        seen.update(tensors)
        return value
    if isinstance(value, TensorVariable):
        return tx.emit("view_as", [value, value])
    if isinstance(value, DictVariable):
        items = {key: distinct_tensors(tx, item, seen) for key, item in value.items.items()}
        return DictVariable(items, value.cls)
    assert isinstance(value, SequenceVariable)
    parts = [distinct_tensors(tx, item, seen) for item in value.items]
    return ListVariable(parts) if isinstance(value, ListVariable) else TupleVariable(parts, value.cls)


def _options(options: DictVariable, refuse: Refuse) -> dict[str, Any]:
    """Returns the options of the transform, which must be constants."""
    try:
        plain = {str(key.token): as_constant(value) for key, value in options.items.items()}
    except NotConstant as error:
        refuse(f"an option is {an(str(error))}")
    return plain


def emit_transform(
    tx: Tracer,
    transformation: Transformation,
    name: str,
    node: torch.fx.Node,
    inputs: Sequence[GraphValue],
    refuse: Refuse,
) -> VariableTracker:
    """Emits the call and tracks its result."""
    try:
        outcome, tensors = tx.graph.emit_transformed(transformation, name, node, inputs)
    except Exception as error:  # in eager, torch raises the same error, except for internal errors
        is_own = "INTERNAL ASSERT FAILED" in str(error) or isinstance(error, AssertionError)
        refuse("torch fails to run it on tensors without data" if is_own else f"it raises {summary(error)}")
    if any(not isinstance(leaf, torch.Tensor) for leaf in leaves_of(outcome)):
        refuse("it returns values other than tensors")
    return tracker_of(outcome, iter(tensors))


def _call(
    tx: Tracer,
    function: VariableTracker,
    args: VariableTracker,
    kwargs: VariableTracker,
    replaced: dict[TensorVariable, TensorVariable],
) -> VariableTracker:
    """Traces the function with the subgraph's own tensors as arguments."""
    assert isinstance(args, TupleVariable) and isinstance(kwargs, DictVariable)
    inside = [_replace_tensors(arg, replaced) for arg in args.items]
    named = {str(key.token): _replace_tensors(value, replaced) for key, value in kwargs.items.items()}
    return tx.call(function, inside, named)


def _differentiated(transform: Any, options: dict[str, Any], args: VariableTracker) -> set[VariableTracker]:
    """Returns the tensors that require grad inside the function: the tensors in the differentiated arguments."""
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
    """Returns the dimension of each tensor that `vmap` removes; None for all tensors if it is another transform."""
    assert isinstance(args, TupleVariable)
    in_dims = options["in_dims"] if transform is func.vmap else None
    each = in_dims if isinstance(in_dims, (tuple, list)) else [in_dims] * len(args.items)
    if len(each) != len(args.items):
        refuse("in_dims is not as long as the arguments")
    found = [dim for part, dims in zip(args.items, each) for dim in _dims_of_tensors(part, dims, refuse)]
    return [*found, *_dims_of_tensors(kwargs, None, refuse)]  # `vmap` removes no dimension of keyword arguments


def _dims_of_tensors(value: VariableTracker, dims: Any, refuse: Refuse) -> Iterator[int | None]:
    """Yields the element of `in_dims` for each tensor of an argument."""
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
        yield from _dims_of_tensors(part, dim, refuse)


def _copied_into_subgraph(tx: Tracer, subgraph: Subgraph, value: VariableTracker) -> VariableTracker:
    """Replaces each outer tensor in the result by a view inside the subgraph: `vmap` repeats it."""
    outer = [leaf for leaf in tensors_in(value) if leaf.node.graph is not subgraph.graph]
    views = [tx.emit("view_as", [tensor, tensor]) for tensor in outer]
    return _replace_tensors(value, dict(zip(outer, views))) if outer else value


def _check(subgraph: Subgraph, result: VariableTracker, refuse: Refuse) -> None:
    if subgraph.changed_facts() is not None:
        refuse("its function changes the shape or history of a tensor from outside")
    for leaf in leaves(result):
        if not isinstance(leaf, TensorVariable):
            refuse(f"its function returns {an(leaf.python_type.__name__)}")
        elif leaf.node.graph is not subgraph.graph:
            refuse("its function returns a tensor from outside")


def _replace_tensors(value: VariableTracker, replaced: Mapping[TensorVariable, VariableTracker]) -> VariableTracker:
    """Replaces tensors in the value."""
    if isinstance(value, DictVariable):
        return DictVariable({key: _replace_tensors(item, replaced) for key, item in value.items.items()}, value.cls)
    if isinstance(value, SequenceVariable):
        items = [_replace_tensors(item, replaced) for item in value.items]
        return ListVariable(items) if isinstance(value, ListVariable) else TupleVariable(items, value.cls)
    return replaced.get(value, value) if isinstance(value, TensorVariable) else value


def spec_of(value: VariableTracker, tensors: list[TensorVariable], refuse: Refuse) -> Any:
    """Returns a real value with an `Argument` for each tensor. A symbolic number is replaced by 0: the graph reads it
    itself."""
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
        return refuse(f"it takes or returns {an(str(error))}")


def tracker_of(value: Any, tensors: Iterator[VariableTracker]) -> VariableTracker:
    """Returns the tracker of the transform's result."""
    if isinstance(value, dict):
        return DictVariable({key_of(constant(key)): tracker_of(item, tensors) for key, item in value.items()})
    if isinstance(value, (list, tuple)):
        items = [tracker_of(item, tensors) for item in value]
        return ListVariable(items) if isinstance(value, list) else TupleVariable(items, type(value))
    return next(tensors)


def refuse_transform(tx: Tracer, name: str, what: str) -> NoReturn:
    tx.break_graph(
        "MD207",
        f"torch.func.{name}() cannot be captured: {what}",
        why="A transformed function is a graph of its own: it takes and returns tensors and does nothing else.",
    )


def vjp(function: Callable[..., Any], has_aux: bool) -> Callable[..., Any]:
    """Returns `torch.func.vjp` as a transform: a function of the primals."""
    return lambda *primals: func.vjp(function, *primals, has_aux=has_aux)


def values_of(function: Callable[..., Any], has_aux: bool) -> Callable[..., Any]:
    """Returns a transform that computes the values without the gradient function."""

    def values(*primals: Any) -> Any:
        first, _, *aux = func.vjp(function, *primals, has_aux=has_aux)
        return (first, *aux) if has_aux else first

    return values


def gradients_at(function: Callable[..., Any], has_aux: bool, create_graph: bool | None) -> Callable[..., Any]:
    """Returns a call of the gradient function as a transform: a function of the primals and of the cotangents."""

    def pull(primals: Any, cotangents: Any) -> Any:
        return func.vjp(function, *primals, has_aux=has_aux)[1](cotangents, create_graph=create_graph)

    return pull


_NAMES = names_of_inner(func.vjp, "_vjp_with_argnums", "wrapper")


@registry.polyfill(func.vjp)
def _vjp(function: Any, *primals: Any, has_aux: Any = False) -> Any:
    values, pull_back, *aux = vjp_at(function, primals, has_aux)

    def wrapper(cotangents: Any, retain_graph: bool = True, create_graph: bool | None = None) -> Any:
        return pull_back(cotangents, retain_graph, create_graph)

    return (values, named(wrapper, _NAMES), *aux)


def vjp_at(function: Any, primals: Any, has_aux: Any) -> Any:
    """Calls `torch.func.vjp`; during capture, its gradient function is a `PullBackVariable`."""
    return func.vjp(function, *primals, has_aux=has_aux)


@registry.function(vjp_at)
def _vjp_at(
    tx: Tracer, function: VariableTracker, primals: VariableTracker, has_aux: VariableTracker
) -> VariableTracker:
    def refuse(what: str) -> NoReturn:
        refuse_transform(tx, "vjp", what)

    options = {"has_aux": tx.truth(has_aux)}
    args = distinct_tensors(tx, primals, set())
    assert isinstance(args, TupleVariable)
    tensors = tensor_arguments(args, DictVariable({}), refuse)
    traced = trace_transformed(
        tx, "vjp", function, args, DictVariable({}), dict.fromkeys(tensors, (None, True)), derivative=True
    )
    inputs = [*traced.captured, *tensors]
    module = tx.graph.module_of(traced.subgraph)
    fakes: list[Any] = [*map(tx.graph.example, inputs)]
    if draws_random_numbers(module, fakes, fakes[-1].fake_mode):
        refuse("its function draws random numbers")
    transformation = Transformation(values_of, options, traced.args, {}, traced.result)
    values = emit_transform(tx, transformation, "vjp", traced.subgraph, inputs, refuse)
    pull_back = PullBackVariable(
        replace(transformation, transform=vjp),
        traced.subgraph,
        module,
        inputs,
        len(tensors),
        tuple(map(_version, inputs)),
        settings(),
    )
    if not options["has_aux"]:
        return TupleVariable([values, pull_back])
    first, aux = tx.unpack(values)
    return TupleVariable([first, pull_back, aux])


def _version(value: GraphValue) -> int | None:
    """Returns the number of writes to a tensor in the graph; None if writes are not counted, and for numbers."""
    return None if isinstance(value, NumberVariable) else version_of(value.fake)


def why_stale(pull_back: PullBackVariable, now: Settings) -> str:
    """Returns the reason why a rerun of the function would return different values, or ""."""
    if tuple(map(_version, pull_back.inputs)) != pull_back.versions:
        return "a tensor that its function took has been written to since"
    if replace(now, grad_enabled=pull_back.settings.grad_enabled) != pull_back.settings:
        return "a setting of torch has changed since its function ran"
    return ""


@registry.method(PullBack, "__call__")
def _call_pull_back(
    tx: Tracer,
    self: PullBackVariable,
    cotangents: VariableTracker,
    retain_graph: VariableTracker | None = None,
    create_graph: VariableTracker | None = None,
) -> VariableTracker:
    def refuse(what: str) -> NoReturn:
        refuse_transform(tx, "vjp", what)

    why = why_stale(self, settings())
    if why:
        refuse(why)
    primals = {value for value in self.inputs[-self.primals :] if isinstance(value, TensorVariable)}
    cotangents = distinct_tensors(tx, cotangents, primals)
    tensors = tensors_in(cotangents)
    creates_graph = None if create_graph is None else expect_constant(tx, create_graph, "create_graph")
    spec = _shifted_positions(spec_of(cotangents, tensors, refuse), self.primals)
    transformation = Transformation(
        gradients_at,
        {**self.transformation.options, "create_graph": creates_graph},
        (self.transformation.args, spec),
        {},
        self.transformation.result,
        self.transformation.args,
    )
    return emit_transform(
        tx, transformation, "pull_back", _node_in_open_graph(tx, self.subgraph), [*self.inputs, *tensors], refuse
    )


def _shifted_positions(spec: Any, by: int) -> Any:
    """Shifts the positions of the arguments by `by`."""
    parts = [Argument(part.position + by) if isinstance(part, Argument) else part for part in leaves_of(spec)]
    return rebuild(structure_of(spec), parts)


def _node_in_open_graph(tx: Tracer, subgraph: torch.fx.Node) -> torch.fx.Node:
    """Returns the node of the subgraph in the open graph."""
    graph = tx.graph.graph
    return subgraph if subgraph.graph is graph else graph.create_node("get_attr", subgraph.target)


@registry.attributes(PullBackVariable)
def _attribute(tx: Tracer, pull_back: PullBackVariable, name: str) -> VariableTracker | None:
    tx.break_graph("MD206", f"`{name}` of a gradient function is used", why="torch makes the function itself.")
