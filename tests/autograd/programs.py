"""Owns the programs that the autograd tests share, and the comparison of a compiled program with eager.

A program is a Python function of tensors or lists of tensors that returns a tuple; `graph_of` wraps the program as the
only node of a torch-level graph, like a captured graph.
"""

from __future__ import annotations

import operator

import torch
import torch.nn.functional as F
from torch import fx
from torch._dynamo.source import ConstantSource
from torch.fx.experimental.symbolic_shapes import DimDynamic, ShapeEnv

from minidynamo.autograd.aot import aot_compile, aot_graphs
from minidynamo.autograd.trace.joint import mode_of
from minidynamo.fake.mode import FakeTensorMode
from minidynamo.graph.boxed import make_boxed
from minidynamo.observe.comparison import seed_generators


def graph_of(program, args, stolen=(), dynamic=False):
    """Returns a torch-level graph that calls `program`, and fake example inputs like `args`.

    With `dynamic`, sizes above 1 and numbers among `args` are symbols; equal sizes share a symbol.
    """
    mode, graph = FakeTensorMode(shape_env=ShapeEnv() if dynamic else None), fx.Graph()
    try:
        with torch.set_grad_enabled(torch.is_grad_enabled()):
            results = len(program(*_copies(args)))
    except RuntimeError:  # the trace raises the same error again
        results = 0
    placeholders = [graph.placeholder(f"arg{i}") for i in range(len(args))]
    for i in stolen:
        placeholders[i].meta["steal_arg"] = True
    call = graph.call_function(program, tuple(placeholders))
    graph.output(tuple(graph.call_function(operator.getitem, (call, i)) for i in range(results)))
    examples = [[fake(mode, t) for t in a] if isinstance(a, list) else fake(mode, a) for a in args]
    return fx.GraphModule(torch.nn.Module(), graph), examples


def fake(mode, value):
    """Returns a fake tensor like `value`, also as to being a leaf; for a number, a symbol."""
    if not isinstance(value, torch.Tensor):
        return symbol(mode.shape_env, value)
    made = mode.from_tensor(value.detach()).requires_grad_(value.requires_grad)
    with mode, torch.enable_grad():
        return made if value.is_leaf else made.clone()


def symbol(env, value):
    source = ConstantSource(f"number_{len(env.backed_var_to_val)}")
    made = env.create_unspecified_symbol(value, source, DimDynamic.DYNAMIC)
    return (env.create_symintnode if type(value) is int else env.create_symfloatnode)(made, hint=value, source=source)


def _copies(args):
    def copy(t):
        if not isinstance(t, torch.Tensor):
            return t
        made = t.detach().clone().requires_grad_(t.requires_grad)
        return made if t.is_leaf else made.clone()

    with torch.enable_grad(), torch.random.fork_rng():
        return [[copy(t) for t in a] if isinstance(a, list) else copy(a) for a in args]


def interpret(gm, example_inputs):
    return make_boxed(gm)


def compile_program(
    program, args, stolen=(), forward=interpret, backward=interpret, inference=interpret, dynamic=False
):
    """Compiles `program` for inputs like `args`, with compilers that run the ATen graphs unchanged."""
    gm, examples = graph_of(program, args, stolen, dynamic)
    return aot_compile(gm, examples, forward=forward, backward=backward, inference=inference)


def graphs(program, args, stolen=(), dynamic=False):
    """Returns the graphs of `program` without compiling the graphs."""
    return aot_graphs(*graph_of(program, args, stolen, dynamic))


def targets(graph):
    """Returns the names of the operations of a graph module, in order."""
    return [str(node.target) for node in graph.graph.nodes if node.op == "call_function"]


def flat(args):
    return [t for a in args for t in (a if isinstance(a, list) else [a])]


def sharing(tensors):
    """Returns for each tensor the index of the first tensor in the same memory."""
    keys = [t.untyped_storage()._cdata for t in tensors]
    return [keys.index(key) for key in keys]


def run(call, make, backward=True):
    """Calls with fresh inputs and returns the outcome as plain data for comparisons."""
    seed_generators(7)
    args, leaves = make()
    inputs = [value for value in flat(args) if isinstance(value, torch.Tensor)]
    seed_generators(8)
    outputs = call(args)
    tensors = [o for o in outputs if isinstance(o, torch.Tensor)]
    facts = {
        "constants": [o for o in outputs if not isinstance(o, torch.Tensor)],
        "identity": [[o is i for i in inputs] + [o is p for p in tensors] for o in tensors],
        "sharing": sharing([*inputs, *tensors]),
        "requires_grad": [t.requires_grad for t in [*inputs, *tensors]],
        "is_leaf": [t.is_leaf for t in inputs],
        "layout": [(tuple(t.shape), t.stride(), t.dtype) for t in tensors],
        "random": torch.rand(()).item(),
    }
    values = [t.detach().clone() for t in [*inputs, *tensors]]
    facts["views"] = [t._is_view() for t in tensors if t.requires_grad and t.grad_fn is None]
    wanted = [t for t in tensors if t.requires_grad and t.dtype.is_floating_point]
    if backward and wanted:
        sum((t * (i + 1)).sum() for i, t in enumerate(wanted)).backward()
        facts["has_grad"] = [leaf.grad is not None for leaf in leaves]
        values += [leaf.grad for leaf in leaves if leaf.grad is not None]
    for t in tensors:  # a shared write shows shared memory
        if t.dtype.is_floating_point and 0 not in t.stride():
            with torch.no_grad():
                t.detach().add_(1)
    return facts, values + [t.detach().clone() for t in [*inputs, *tensors]]


def assert_same(program, make, *, stolen=(), tolerance=1e-6, backward=True):
    """Compares `program` compiled and eager: outputs, inputs afterwards, gradients, aliasing, random state.

    `make` returns (arguments, leaves whose gradients to compare). Returns the compiled callable.
    """
    seed_generators(7)
    compiled = compile_program(program, make()[0], stolen)
    for _ in range(2):
        assert_call(compiled, program, make, tolerance, backward)
    return compiled


def assert_call(compiled, program, make, tolerance=1e-6, backward=True):
    """Compares a call of `compiled` with a call of `program`."""
    facts, values = run(lambda args: compiled(list(args)), make, backward)
    expected_facts, expected = run(lambda args: program(*args), make, backward)
    assert facts == expected_facts
    assert len(values) == len(expected)
    for got, want in zip(values, expected):
        torch.testing.assert_close(got, want, rtol=tolerance, atol=tolerance, equal_nan=True)


def assert_same_for_sizes(program, *makers, tolerance=1e-5, backward=True):
    """Compiles `program` once for symbolic sizes and numbers like the first maker's, and compares with eager for all
    makers.

    Conditions decided during the compile must hold for all makers; no later call may add a condition.
    """
    seed_generators(7)
    gm, examples = graph_of(program, makers[0]()[0], dynamic=True)
    compiled = aot_compile(gm, examples, forward=interpret, backward=interpret, inference=interpret)
    env = mode_of(gm, flat(examples)).shape_env
    env.freeze()  # every new condition from now on is an error
    for make in makers:
        assert_call(compiled, program, make, tolerance, backward)
    return compiled


def inputs(*shapes, grad=True):
    """A maker of leaf inputs."""

    def make():
        made = [torch.randn(shape, requires_grad=grad) for shape in shapes]
        return made, made

    return make


def intermediate_inputs(*shapes):
    """Returns a maker of inputs computed from leaves, which the program may therefore write in place."""

    def make():
        leaves = [torch.randn(shape, requires_grad=True) for shape in shapes]
        return [leaf * 1.5 for leaf in leaves], leaves

    return make


def mixed_inputs(*specs):
    """Returns a maker of inputs from (shape, kind): "leaf", "inner" (computed from a leaf) or "data" (needs no
    gradient)."""

    def make():
        leaves, made = [], []
        for shape, kind in specs:
            tensor = torch.randn(shape, requires_grad=kind != "data")
            leaves += [tensor] if kind != "data" else []
            made.append(tensor * 1.5 if kind == "inner" else tensor)
        return made, leaves

    return make


def module_program(module):
    """Returns a program of x and the parameters and buffers of `module`, and a maker of the values of these."""
    names = [n for n, _ in module.named_parameters()] + [n for n, _ in module.named_buffers()]
    state = dict(module.named_parameters()) | dict(module.named_buffers())

    def program(x, *values):
        out = torch.func.functional_call(module, dict(zip(names, values)), (x,))
        return out if isinstance(out, tuple) else (out,)

    def values():
        made = [state[n].detach().clone().requires_grad_(state[n].requires_grad) for n in names]
        return made, [t for t in made if t.requires_grad]

    return program, values


def cross_entropy(logits, labels):
    return (F.cross_entropy(logits, labels),)
