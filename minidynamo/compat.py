"""Owns every use of a private torch name and every question about the running Python version.

It contains no logic of its own: each name here is a re-export or a small adapter, so that a new torch or Python
release is met in this file alone. The names stand by subject, constants before functions.
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import gc
import importlib
import inspect
import logging
import operator
import sys
import threading
import types
import typing

import torch
import torch._decomp
import torch._prims_common
import torch._subclasses.fake_tensor
import torch.utils._device
import torch.utils.checkpoint
from torch.optim.optimizer import _use_grad_for_differentiable

# Python

PY312 = sys.version_info >= (3, 12)
PY313 = sys.version_info >= (3, 13)
PY314 = sys.version_info >= (3, 14)

# For programs that ask: a tuple with names, like those that torch returns.
VERSION_INFO = sys.version_info

_CO_HAS_DOCSTRING = 0x4000000


def docstring(code: types.CodeType) -> str | None:
    """The docstring of a function with this code: its first constant; 3.14 says in a flag whether it has one."""
    first = code.co_consts[0] if code.co_consts else None
    has_docstring = bool(code.co_flags & _CO_HAS_DOCSTRING) if PY314 else True
    return first if has_docstring and isinstance(first, str) else None


def protocol_members(protocol: type) -> tuple[str, ...]:
    """The names of what a `typing.Protocol` class asks for, sorted."""
    names = getattr(protocol, "__protocol_attrs__", None)  # Python 3.12 and later
    return tuple(sorted(typing._get_protocol_attrs(protocol) if names is None else names))


# Operators

# Operators as FX graphs hold them; the last is the class of those that take functions, as torch's `cond` does.
OpOverload = torch._ops.OpOverload
OpOverloadPacket = torch._ops.OpOverloadPacket
HigherOrderOperator = torch._ops.HigherOrderOperator
higher_order_cond = torch.ops.higher_order.cond

# Namespaces whose functions compute tensors from tensors and nothing else.
OPERATOR_NAMESPACES = (
    torch._C._VariableFunctions,
    torch._C._nn,
    torch._C._fft,
    torch._C._linalg,
    torch._C._special,
)

# An assertion that torch.jit knows, and what `torch._check` and its kin come down to.
torch_assert = torch._assert
torch_check_with = torch._check_with

# The strides of an operation on elements, and whether channels come last, as eager decides them.
elementwise_strides = torch._prims_common.compute_elementwise_output_strides
suggest_memory_format = torch._prims_common.suggest_memory_format
get_decompositions = torch._decomp.get_decompositions


def schema_of(op: typing.Any) -> typing.Any:
    """The schema of an operator overload: `name`, `arguments` and `returns` with their aliasing."""
    return op._schema


def definition_of(op: typing.Any) -> typing.Any:
    """What `torch.library.custom_op` has made for an operator: `backward` and `setup_context` are its derivative, if
    there is one; `casts` if autocast changes its arguments. None for an operator that was made in another way."""
    found = torch._library.custom_ops.OPDEFS.get(schema_of(op).name)
    if found is None or found._opoverload is not op:
        return None
    return types.SimpleNamespace(
        backward=found._backward_fn, setup_context=found._setup_context_fn, casts=bool(found._autocast_dtype)
    )


def overload_of(definition: typing.Any) -> OpOverload:
    """The operator that `torch.library.custom_op` has made."""
    made: OpOverload = definition._opoverload
    return made


def form_without_data(op: typing.Any) -> typing.Callable[..., typing.Any] | None:
    """The function that tells what an operator gives for tensors without data, if it is one of Python's: it takes the
    mode of these, then the arguments."""
    found = torch._library.simple_registry.singleton._data.get(schema_of(op).name)
    kernel = None if found is None else found.fake_impl.kernel
    if kernel is None:
        return None

    def run(mode: typing.Any, *args: typing.Any, **kwargs: typing.Any) -> typing.Any:
        context = torch._library.fake_impl.FakeImplCtx(mode, op)
        with torch._library.fake_impl.set_ctx_getter(lambda: context), mode:
            return kernel(*args, **kwargs)

    return run


def operator_function(op: typing.Any) -> typing.Any:
    """What calling an ATen operator comes to, without the Python layer of `OpOverload`; other callables as they are."""
    return op._op if isinstance(op, OpOverload) else op


def called_by(node: torch.fx.Node) -> typing.Any:
    """The target of a call in an ATen graph, or what has to be called in its place inside a compiled forward."""
    wants_workspace = any(user.target is operator.getitem and user.args[1] == 3 for user in node.users)
    if node.target is torch.ops.aten.mkldnn_rnn_layer.default and wants_workspace:
        return recurrent_layer_for_training
    return node.target


def recurrent_layer_for_training(*args: typing.Any) -> typing.Any:
    """oneDNN's recurrent layer, which makes what backward needs only in the grad mode; autograd records nothing."""
    with torch._C._AutoDispatchBelowAutograd(), torch.enable_grad():
        return torch.ops.aten.mkldnn_rnn_layer.default(*args)


# torch.compile and torch.jit

_TORCH_COMPILE_MARKS = ("_torchdynamo_orig_callable", "_torchdynamo_disable")

# Put on functions of ours: torch.compile does not look into them, and says this where it must not break its graph.
NOT_FOR_TORCH_COMPILE = {
    "_torchdynamo_disable": "minidynamo",
    "_torchdynamo_disable_msg": "it is compiled by minidynamo; compile the function that it was made from",
}

_frame_evaluation: typing.Any = torch._C._dynamo.eval_frame

# What torch.jit.trace is doing; nn.Module.__call__ asks.
tracing_state = torch._C._get_tracing_state


def is_made_by_torch_compile(function: types.FunctionType) -> bool:
    """Whether torch.compile made a function, or it is disabled for that; such functions are never traced into."""
    return any(vars(function).get(mark) not in (None, "minidynamo") for mark in _TORCH_COMPILE_MARKS)


def is_assumed_constant(function: types.FunctionType) -> bool:
    """Whether `torch.compiler.assume_constant_result` has marked it, and not only what it wraps."""
    return "_dynamo_marked_constant" in vars(function) and "__wrapped__" not in vars(function)


def is_allowed_by_torch_compile(function: types.FunctionType) -> bool:
    """Whether `torch.compiler.allow_in_graph` has marked it; torch keeps the marks where it traces, by identity."""
    rules = sys.modules.get("torch._dynamo.trace_rules")
    return rules is not None and rules.is_callable_allowed(function)


def leave_to_python(code: types.CodeType) -> None:
    """Let torch.compile run this code, and what it calls, as it is."""
    skip = _frame_evaluation._FrameAction.SKIP
    _frame_evaluation.set_code_exec_strategy(code, _frame_evaluation._FrameExecStrategy(skip, skip))


def tagged_init(function: types.FunctionType) -> types.FunctionType | None:
    """The `nn.Module.__init__` behind the one that torch.compile puts in its place, once it is used in the process.

    That one only notes, for torch.compile, when a module was made. None for any other function.
    """
    if function.__module__ != "torch._dynamo.mutation_guard" or function.__name__ != "patched_init":
        return None
    found = function.__closure__[function.__code__.co_freevars.index("init")].cell_contents  # type: ignore[index]
    assert isinstance(found, types.FunctionType)
    return found


def compile_with_inductor(
    gm: torch.fx.GraphModule, example_inputs: list[typing.Any]
) -> typing.Callable[..., typing.Any]:
    """torch's own code generator; imported when it is asked for, since that takes seconds."""
    compile_fx = importlib.import_module("torch._inductor.compile_fx")
    compiled: typing.Callable[..., typing.Any] = compile_fx.compile_fx(gm, example_inputs)
    return compiled


# Settings of torch

# Grad mode and default dtype, as FX graphs set them.
set_grad_enabled = torch._C._set_grad_enabled
set_default_dtype = torch._C._set_default_dtype
InferenceMode: typing.Any = torch._C._InferenceMode
is_autocast_available = torch._C._is_autocast_available
legacy_default_device = torch._C._get_default_device

# A context in which operations convert nothing, whatever autocast says.
without_autocast = torch._C._DisableAutocast

# Builds without an accelerator refuse torch.set_default_tensor_type() of another device.
HAS_ACCELERATOR_TENSOR_TYPES = bool(torch.version.cuda or torch.version.hip)

# Flags of backends that programs ask for without arguments.
_FLAGS = (
    *("cublas_allow_tf32", "cudnn_allow_tf32", "cudnn_benchmark", "cudnn_deterministic", "cudnn_enabled"),
    *("deterministic_algorithms", "deterministic_algorithms_warn_only", "float32_matmul_precision"),
    *("mkldnn_enabled", "nnpack_enabled", "privateuse1_backend_name"),
)

GUARDED_QUESTIONS: tuple[typing.Any, ...] = tuple(
    getattr(torch._C, f"_get_{flag}") for flag in _FLAGS if hasattr(torch._C, f"_get_{flag}")
)


# What `scaled_dot_product_attention` chooses among: the name of each, who tells whether it may be taken, who says so.
ATTENTION: dict[str, tuple[typing.Any, typing.Any]] = {
    name: (getattr(torch._C, f"_get_{name}_sdp_enabled"), getattr(torch._C, f"_set_sdp_use_{name}"))
    for name in torch.nn.attention._backend_names
}
# Who chooses.
ATTENTION_FUNCTIONS: tuple[typing.Any, ...] = (
    torch.nn.functional.scaled_dot_product_attention,
    torch.nn.functional.multi_head_attention_forward,
    torch._native_multi_head_attention,
    torch._transformer_encoder_layer_fwd,
)


# Modes, and devices that are modes

DeviceContext = torch.utils._device.DeviceContext
torch_function_mode_count = torch._C._len_torch_function_stack
torch_function_mode_at = torch._C._get_function_stack_at
torch_dispatch_mode_count = torch._C._len_torch_dispatch_stack
torch_dispatch_mode_at = torch._C._get_dispatch_stack_at

# Sees the operations that run, whatever they run on.
TorchDispatchMode = torch.utils._python_dispatch.TorchDispatchMode

# A context in which tensors are read without asking `__torch_function__`, of their classes or of modes.
without_torch_function = torch._C.DisableTorchFunction

# Asked by library code that would have to hand its work to a torch function mode.
is_function_mode_enabled = torch._C._is_torch_function_mode_enabled


def open_devices() -> tuple[torch.device, ...]:
    """The device of each `torch.device` context that is open, the outermost first."""
    modes = [torch_function_mode_at(index) for index in range(torch_function_mode_count())]
    return tuple(mode.device for mode in modes if isinstance(mode, DeviceContext))


@contextlib.contextmanager
def _below_other_modes() -> typing.Iterator[None]:
    """Inside the block the stack of function modes ends with a `torch.device` context, if there is one.

    Tracers of torch put modes of their own on top, and expect to find them there.
    """
    above = []
    while (count := torch_function_mode_count()) and not isinstance(torch_function_mode_at(count - 1), DeviceContext):
        above.append(torch._C._pop_torch_function_stack())
    yield
    for mode in reversed(above):
        torch._C._push_on_torch_function_stack(mode)


def enter_device(device: torch.device) -> None:
    """What `with device:` does first."""
    with _below_other_modes():
        device.__enter__()


def leave_device() -> None:
    """What `with device:` does last, for the innermost one."""
    with _below_other_modes():
        torch._C._pop_torch_function_stack()


# Guards

# `tensor_guards` makes one C++ object that checks many tensors (class, dtype, device, dispatch keys, shape, strides,
# requires_grad); `state_guard` one that checks grad mode, autocast, default dtype and determinism.
_dynamo_guards = torch._C._dynamo.guards
state_guard = _dynamo_guards.GlobalStateGuard
dispatch_keys = torch._C._dispatch_keys
Layouts = list[typing.Any]  # per tensor a list of numbers and None


def tensor_guards(examples: tuple[torch.Tensor, ...], layouts: tuple[Layouts, Layouts] | None = None) -> typing.Any:
    """torch's batched checker for tensors like `examples`. It keeps no tensor alive.

    Every size and stride is fixed, unless `layouts` has those of each tensor, with None where any will do.
    """
    sizes, strides = layouts or (None, None)
    return _dynamo_guards.TensorGuards(*examples, dynamic_dims_sizes=sizes, dynamic_dims_strides=strides)


# Tensors and their memory

TensorBase = torch._C.TensorBase
make_subclass = torch.Tensor._make_subclass
reinterpret_tensor = _dynamo_guards._reinterpret_tensor

# An uninitialized CPU tensor from sizes, strides and dtype: half the cost of torch.empty_strided.
empty_strided_cpu: typing.Callable[[tuple[int, ...], tuple[int, ...], torch.dtype], torch.Tensor] = (
    torch._C._dynamo.guards._empty_strided_cpu
)

# Counts a write to each tensor of a sequence, inference tensors excepted; a third of the cost of the public function.
increment_version: typing.Callable[[typing.Sequence[torch.Tensor]], None] = torch._C._increment_version

# Path of torch's Python extension; what it was linked against (libtorch, OpenMP) can be looked up through it.
NATIVE_LIBRARY: str = torch._C.__file__


def address_of(tensor: torch.Tensor) -> int:
    """The address of torch's object behind a Python tensor."""
    address: int = tensor._cdata
    return address


def raw_dispatch_keys(tensor: torch.Tensor) -> int:
    """The dispatch keys of a tensor as torch keeps them: a bit for each."""
    keys: int = dispatch_keys(tensor).raw_repr()
    return keys


def memory_of(tensor: torch.Tensor) -> object:
    """What two tensors in the same memory have in common."""
    return tensor.untyped_storage()._cdata if tensor.layout is torch.strided else id(tensor)


def version_of(tensor: torch.Tensor) -> int | None:
    """How often torch counts the memory of a tensor as written; None for inference tensors, which it does not count."""
    return None if tensor.is_inference() else tensor._version


def set_versions(tensors: typing.Iterable[torch.Tensor], versions: typing.Iterable[int]) -> None:
    """Let torch count the memory of each tensor as written this often."""
    torch._C._autograd._unsafe_set_version_counter(tuple(tensors), tuple(versions))


def owns_its_memory(tensor: torch.Tensor) -> bool:
    """Whether this tensor is one number and the only one in its storage: nobody writes to it through another tensor."""
    storage = tensor.untyped_storage()
    holders = torch._C._storage_Use_Count(storage._cdata)  # the tensor and `storage`
    return bool(storage.nbytes() == tensor.itemsize and holders == 2)


def address_of_generator(generator: torch.Generator) -> int:
    """Where the generator lies in memory, as torch's C++ functions take it."""
    address: int = generator._cdata
    return address


# The size of two tensors that are broadcast.
infer_size = torch._C._infer_size

# Autograd

# What the module of forward-mode AD holds: the level that is open is a global of it, -1 without one.
forward_ad = vars(torch.autograd.forward_ad)

# Whether autograd can hand the gradients to a Function's backward in one list, which it may empty.
HAS_BOXED_GRADIENTS = hasattr(torch.autograd.Function, "boxed_grads_call")

# What a Function without a `setup_context` of its own has.
default_setup_context = torch.autograd.function._SingleLevelFunction.setup_context

# Whether the backward that is running leaves saved tensors for another one.
retains_graph: typing.Callable[[], bool] = torch._C._autograd._get_current_graph_task_keep_graph

# The pack and unpack hooks that saved tensors go through now, or None.
_saved_tensor_hooks = torch._C._autograd._top_saved_tensors_default_hooks


def check_reentrant_backward() -> None:
    """Raise what a reentrant checkpoint raises when the backward that is running is for some gradients only."""
    if not asks_for_all_gradients():
        torch.utils.checkpoint.CheckpointFunction.backward(None)


def raw_apply(function: type[torch.autograd.Function]) -> typing.Callable[..., typing.Any]:
    """`function.apply` without its check for functorch transforms, which a compiled graph never runs under."""
    apply: typing.Callable[..., typing.Any] = super(torch.autograd.Function, function).apply
    return apply


def has_saved_tensor_hooks() -> bool:
    """Whether what autograd saves now goes through the user's hooks."""
    return _saved_tensor_hooks(False) is not None


def traceable_saved_tensor_hooks() -> tuple[typing.Any, typing.Any] | None:
    """The pack and unpack hooks in force when both are graphs; None for all others, which run as eager calls."""
    hooks = _saved_tensor_hooks(False)
    if hooks is None or not all(isinstance(hook, torch.fx.GraphModule) for hook in hooks):
        return None
    return hooks


def saved_by(function: torch.autograd.graph.Node) -> list[torch.Tensor]:
    """The tensors that a gradient function has saved. Numbers are not read: that would fix those that are symbols."""
    saved = [getattr(function, name.removeprefix("_raw"), None) for name in _saved_names(type(function))]
    return [value for value in saved if isinstance(value, torch.Tensor)]


@functools.cache
def _saved_names(cls: typing.Hashable) -> list[str]:
    return [name for name in dir(cls) if name.startswith("_raw_saved_")]


def kept_by(function: typing.Any) -> list[typing.Any]:
    """What Python can see of what a gradient function holds, besides others of its kind. No hook runs."""
    kind: typing.Any = type(function)
    parts = [_unless_freed(function, name) for name in _saved_names(kind)]
    raw = [saved for part in parts for saved in (part if isinstance(part, tuple) else (part,))]
    return [*(_unless_freed(saved, "data") for saved in raw), leaf_of(function), *gc.get_referents(function)]


def _unless_freed(owner: object, name: str) -> typing.Any:
    """An attribute of what autograd keeps; None where there is none, or when backward has freed it."""
    try:
        return getattr(owner, name)
    except (AttributeError, RuntimeError):
        return None


def leaf_of(node: torch.autograd.graph.Node | None) -> torch.Tensor | None:
    """The leaf to whose `.grad` a node adds what it is called with; None for another node."""
    leaf: torch.Tensor | None = getattr(node, "variable", None)
    return leaf


def function_of(tensor: torch.Tensor) -> torch.autograd.graph.Node | None:
    """`tensor.grad_fn`; None where torch does not tell it."""
    return tensor.grad_fn if tells_history(tensor) else None


def tells_history(tensor: torch.Tensor) -> bool:
    """Whether torch tells what made a tensor, and whether it is a leaf. Of a view from inside `no_grad` whose base was
    written to outside of it since, it raises an error instead."""
    try:
        tensor.is_leaf  # noqa: B018 (which raises it)
    except RuntimeError:
        return False
    return True


def will_run(node: torch.autograd.graph.Node) -> bool | None:
    """Whether the backward that is running will run a node; None for one that adds to `.grad`, where somebody has asked
    for what it would be called with instead."""
    try:
        return torch._C._will_engine_execute_node(node)
    except RuntimeError:
        return None


# The number of the backward that is running.
current_backward: typing.Callable[[], int] = torch._C._current_graph_task_id


def node_type(function: type[torch.autograd.Function]) -> type:
    """The type of the gradient functions that a custom function makes."""
    kind: type = function._backward_cls
    return kind


def asks_for_all_gradients() -> bool:
    """Whether the backward that is running is for all leaves, not for some tensors."""
    return bool(torch.autograd._is_checkpoint_valid())


# The code of the function of torch that calls autograd; the fourth of its `args` is what gradients are asked for.
RUNS_BACKWARD = torch.autograd.graph._engine_run_backward.__code__


def has_tensor_hooks(leaf: torch.Tensor) -> bool:
    """Whether hooks of the tensor see its gradient, or run when it was added to `.grad`."""
    return bool(leaf._backward_hooks or leaf._post_accumulate_grad_hooks)


# Transforms of torch.func, and batches

_functorch = torch._C._functorch
_is_old_batch = _functorch.is_legacy_batchedtensor

# The transform of torch.func (vmap, grad, jvp) that is running now, or None.
running_transform = _functorch.peek_interpreter_stack
are_transforms_active = torch._C._are_functorch_transforms_active

# What runs inside knows of no vmap around it.
outside_of_batches = torch._functorch.pyfunctorch.temporarily_clear_interpreter_stack
is_functorch_wrapped = torch._C._functorch.is_functorch_wrapped_tensor


def is_batched(value: torch.Tensor) -> bool:
    """Whether `value` stands for one of many that are computed at once (`is_grads_batched=True`, vmap)."""
    return bool(_functorch.is_batchedtensor(value) or _is_old_batch(value))


def batch_level(value: torch.Tensor) -> int | None:
    """Which of the batches around the code `value` comes from, the innermost one for a batch of batches; None if it is
    none. Those of `is_grads_batched` count below 0."""
    if _functorch.is_batchedtensor(value):
        return int(_functorch.maybe_get_level(value))
    if not _is_old_batch(value):
        return None
    inner = (-n for n in range(1, 64) if not _is_old_batch(torch._remove_batch_dim(value, n, 1, 0)))
    return next(inner)


def unbatched(value: torch.Tensor, level: int) -> torch.Tensor:
    """All of a batch, one behind the other."""
    made: torch.Tensor
    if level < 0:
        made = torch._remove_batch_dim(value, -level, 1, 0)
    else:
        made = _functorch.get_unwrapped(value).movedim(_functorch.maybe_get_bdim(value), 0)
    return made


def batched(value: torch.Tensor, level: int) -> torch.Tensor:
    """The reverse of `unbatched`."""
    made: torch.Tensor
    if level < 0:
        made = torch._add_batch_dim(value, 0, -level)
    else:
        made = _functorch._add_batch_dim(value, 0, level)
    return made


# Fake tensors

# Fake tensors have everything but data, and carry the mode they belong to; the errors say why an operation has no fake
# result.
FakeTensor = torch._subclasses.fake_tensor.FakeTensor
FakeTensorMode = torch._subclasses.fake_tensor.FakeTensorMode
DataDependentOutput = torch._subclasses.fake_tensor.DataDependentOutputException
DynamicOutputShape = torch._subclasses.fake_tensor.DynamicOutputShapeException
UnsupportedFakeTensor = torch._subclasses.fake_tensor.UnsupportedFakeTensorException
UnsupportedOperator = torch._subclasses.fake_tensor.UnsupportedOperatorException

# Logs a traceback for each call on fake tensors that raises, which is how the tracer finds out that the call would.
fake_tensor_log = logging.getLogger("torch._subclasses.fake_tensor")


def constant_behind(fake: torch.Tensor) -> torch.Tensor | None:
    """The real tensor that a fake one was made from while tracing: the fake one knows it while it has its values."""
    return fake.constant if isinstance(fake, FakeTensor) else None


@functools.cache
def load_fake_tensors() -> None:
    """Import what the first fake mode imports: that takes seconds, and it keeps every frame below it alive."""
    _in_thread(FakeTensorMode)


@functools.cache
def load_symbols() -> None:
    """Import what the first symbol imports, for the same reason."""
    _in_thread(lambda: symbolic().ShapeEnv())


def _in_thread(function: typing.Callable[[], object]) -> None:
    """Run a function where no frames of the user's are, whose locals would not die before the collector runs."""
    thread = threading.Thread(target=function)
    thread.start()
    thread.join()


# Symbolic sizes

# Symbolic sizes: what stands for a number that is only known when a graph runs.
SYMBOLIC_NUMBERS = (torch.SymInt, torch.SymFloat, torch.SymBool)


def constant_of(number: typing.Any) -> int | float | bool | None:
    """What a symbolic number has turned out to be; None while that is only known when a graph runs."""
    kind = "int" if isinstance(number, torch.SymInt) else "float" if isinstance(number, torch.SymFloat) else "bool"
    found: int | float | bool | None = getattr(number.node, f"maybe_as_{kind}")()
    return found


def in_parts(op: OpOverload) -> typing.Callable[..., typing.Any]:
    """What runs an operation that consists of others as torch's C++ does."""
    return functools.partial(op._op_dk, torch._C.DispatchKey.CompositeImplicitAutograd)


_RULE_KEYS = (torch._C.DispatchKey.Autograd, torch._C.DispatchKey.CompositeImplicitAutograd)


@contextlib.contextmanager
def python_dispatcher() -> typing.Iterator[None]:
    """A context in which operations on symbolic sizes take torch's rules in Python, which can compute with them.

    Those are left out that give a new tensor where the operation itself gives its argument (what is written to the
    result has to reach the argument, too), and those that compute in another order than the operation or leave its
    dropout out. The operation's own C++ can compute with symbolic sizes, but for `_lstm`.
    """
    entered = importlib.import_module("torch._dispatch.python").enable_python_dispatcher()
    kept = {op: {key: op.py_kernels.pop(key) for key in _RULE_KEYS if key in op.py_kernels} for op in _OWN_RULES}
    for op, rule in _OWN_RULES.items():
        op.py_kernels.update(dict.fromkeys(_RULE_KEYS, rule) if rule is not None else {})
        op._dispatch_cache.clear()
    try:
        with entered:
            yield
    finally:
        for op, rules in kept.items():
            for key in _RULE_KEYS:
                op.py_kernels.pop(key, None)
            op.py_kernels.update(rules)
            op._dispatch_cache.clear()


def _lstm(*args: typing.Any) -> typing.Any:
    """A long short-term memory: what oneDNN computes in eager, layer by layer, since the C++ in front of its kernel
    takes no symbolic sizes; all else by the operation's own C++."""
    x, hidden, weights, biased, layers, dropout, trains, both_ways, batch_first = args
    if not _by_onednn(x, hidden, weights):
        return torch.ops.aten.lstm.input._op_dk(torch._C.DispatchKey.CompositeImplicitAutograd, *args)
    x = (x.transpose(0, 1) if batch_first else x).contiguous()
    hx, cx = (state.contiguous() for state in hidden)
    per_layer, ways = 4 if biased else 2, 2 if both_ways else 1
    states = []
    for layer in range(layers):
        made = []
        for way in range(ways):
            i = layer * ways + way
            given = weights[i * per_layer : (i + 1) * per_layer]
            biases = given[2:] or [w.new_zeros(w.shape) for w in given]
            tensors = (x, *given[:2], *biases, hx[i], cx[i])
            y, *state, _ = torch.ops.aten.mkldnn_rnn_layer(
                *tensors, way > 0, [], 2, hx.shape[2], layers, biased, both_ways, batch_first, trains
            )
            made.append(y)
            states.append(state)
        x = torch.cat(made, -1) if both_ways else made[0]
        if dropout != 0 and trains and layer < layers - 1:
            x = torch.dropout(x, dropout, True)
    return x.transpose(0, 1) if batch_first else x, *(torch.stack(state) for state in zip(*states))


def _by_onednn(x: torch.Tensor, hidden: typing.Sequence[torch.Tensor], weights: typing.Sequence[torch.Tensor]) -> bool:
    """Whether eager has a long short-term memory computed by oneDNN."""
    if not torch.backends.mkldnn.enabled or any(t.device.type != "cpu" for t in (x, *hidden, *weights)):
        return False
    if hidden[0].shape[2] != hidden[1].shape[2] or x.numel() == 0:  # projections
        return False
    if x.dtype == torch.float16:
        return not torch.is_grad_enabled() and bool(torch.ops.mkldnn._is_mkldnn_fp16_supported())
    return x.dtype == torch.float32 or (x.dtype == torch.bfloat16 and torch.ops.mkldnn._is_mkldnn_bf16_supported())


# The rule that stands in for torch's own; without one, the operation's C++ computes with symbolic sizes.
_OWN_RULES: dict[OpOverload, typing.Callable[..., typing.Any] | None] = {
    torch.ops.aten.dropout.default: None,
    torch.ops.aten.gru.input: None,
    torch.ops.aten.rnn_tanh.input: None,
    torch.ops.aten.rnn_relu.input: None,
    torch.ops.aten.lstm.input: _lstm,
}


@functools.cache
def symbolic() -> types.SimpleNamespace:
    """What makes and prints symbols, imported when the first one is needed, since that takes a while.

    A `ShapeEnv` makes symbols, decides conditions on them and keeps what it decided; `DimDynamic` says how. They are
    named by a hash of the text of a `NamedSource`. `text(expr)` is an expression as a template of Python, with `{0}`,
    `{1}`, ... for the symbols, which are given, too. `follows(env, expr)` tells whether the ranges of the symbols
    answer a condition.
    """
    shapes = importlib.import_module("torch.fx.experimental.symbolic_shapes")
    printers = importlib.import_module("torch.utils._sympy.printers")
    guards = importlib.import_module("torch._guards")
    sympy = importlib.import_module("sympy")

    class Printer(printers.PythonPrinter):  # type: ignore[name-defined]
        def __init__(self) -> None:
            super().__init__()
            self.symbols: list[typing.Any] = []

        def _print_Symbol(self, expr: typing.Any) -> str:
            if expr not in self.symbols:
                self.symbols.append(expr)
            return f"{{{self.symbols.index(expr)}}}"

    def text(expr: typing.Any) -> tuple[str, list[typing.Any]]:
        printer = Printer()
        return printer.doprint(expr), printer.symbols

    def follows(env: typing.Any, expr: typing.Any) -> bool:
        return env._maybe_evaluate_static(expr, axioms=()) is not None

    @dataclasses.dataclass(frozen=True)
    class NamedSource(guards.Source):  # type: ignore[name-defined]
        text: str

        def name(self) -> str:
            return self.text

    if isinstance(vars(guards.Source).get("name"), property | functools.cached_property):
        NamedSource.name = property(NamedSource.name)  # type: ignore[method-assign, assignment]
    return types.SimpleNamespace(
        ShapeEnv=shapes.ShapeEnv,
        DimDynamic=shapes.DimDynamic,
        NamedSource=NamedSource,
        Integer=sympy.Integer,
        Symbol=sympy.Symbol,
        true=sympy.true,
        text=text,
        follows=follows,
        Eq=sympy.Eq,
    )


# Modules and optimizers

# What nn.Module.__call__ runs: hooks and forward. `compile(module)` compiles it.
MODULE_CALL: types.FunctionType = typing.cast(types.FunctionType, torch.nn.Module._call_impl)

# Counts uses of a part of torch; nn.Module calls it when a module is made.
log_api_usage = torch._C._log_api_usage_once

# What decorates `step` of torch's optimizers: it switches grad mode, and asks torch.compile for graph breaks.
OPTIMIZER_STEP_SWITCH = next(
    constant
    for constant in _use_grad_for_differentiable.__code__.co_consts
    if isinstance(constant, types.CodeType) and constant.co_name == "_use_grad"
)

OPTIMIZER_ZERO_GRAD = inspect.unwrap(torch.optim.Optimizer.zero_grad)  # which is disabled for torch.compile
_HEALTH_CHECKS = ("_accelerator_graph_capture_health_check", "_cuda_graph_capture_health_check")

# Methods of optimizers that complain when an accelerator records a graph of a step that is not made for it.
OPTIMIZER_HEALTH_CHECKS = [vars(torch.optim.Optimizer)[n] for n in _HEALTH_CHECKS if n in vars(torch.optim.Optimizer)]

# Whole updates, which take the learning rate as a number or as a tensor.
FUSED_UPDATES = [
    getattr(torch, name)
    for name in ("_fused_adam_", "_fused_adamw_", "_fused_sgd_", "_fused_adagrad_")
    if "tensor_lr" in getattr(torch.ops.aten, name).overloads()
]

# Attention as operations that autograd knows: the result, and the weights that values are multiplied with.
attention_by_parts: typing.Any = torch.ops.aten._scaled_dot_product_attention_math

# What optimizers do to the numbers of many tensors at once.
foreach_add_: typing.Any = torch._foreach_add_
foreach_mul_: typing.Any = torch._foreach_mul_
foreach_copy_: typing.Any = torch._foreach_copy_

# Sorts the tensors of several lists into groups of one device and dtype; gradient clipping and optimizers use it.
group_tensors: typing.Any = torch._C._group_tensors_by_device_and_dtype


def foreach_operators(name: str) -> list[OpOverload]:
    """The operators that do on lists of tensors what `name` does on one, in place or not; those with `out` left out."""
    packets = [getattr(torch.ops.aten, f"_foreach_{name}{suffix}", None) for suffix in ("", "_")]
    found = [getattr(packet, overload) for packet in packets if packet is not None for overload in packet.overloads()]
    return [op for op in found if not any(argument.is_out for argument in op._schema.arguments)]


@functools.cache
def written_lists(function: typing.Any) -> tuple[int, ...]:
    """Which arguments of one of torch's functions on lists of tensors are written to; fake tensors do not count it."""
    name = getattr(function, "__name__", "")
    if not name.startswith(("_foreach_", "_fused_")) or not name.endswith("_"):
        return ()
    packet = getattr(torch.ops.aten, name)
    arguments = getattr(packet, packet.overloads()[0])._schema.arguments
    return tuple(i for i, argument in enumerate(arguments) if argument.alias_info and argument.alias_info.is_write)


def _codes_within(code: types.CodeType) -> typing.Iterator[types.CodeType]:
    """A code object, and those of the functions that are defined in it."""
    yield code
    for constant in code.co_consts:
        if isinstance(constant, types.CodeType):
            yield from _codes_within(constant)


# What the schedulers of learning rates put in the place of `optimizer.step`: it notes that there was a step.
SCHEDULED_STEP = next(
    code for code in _codes_within(torch.optim.lr_scheduler.LRScheduler.__init__.__code__) if code.co_name == "wrapper"
)
