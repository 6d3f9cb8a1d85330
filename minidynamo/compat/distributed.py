"""Owns the private names of torch.distributed; most exist only if torch was built with it.

Collectives as graph nodes are in `graph/collectives.py`.
"""

from __future__ import annotations

import sys
import typing

import torch

HAS_DISTRIBUTED = torch.distributed.is_available()

# Returns whether this process is a rank of a process group.
is_rank = torch.distributed.is_initialized if HAS_DISTRIBUTED else bool

# The module of the functional collectives, which is imported late, and its functions that concern the tracer.
FUNCTIONAL_COLLECTIVES = "torch.distributed._functional_collectives"

# Namespaces of the operators that the functional collectives call.
COLLECTIVE_NAMESPACES = frozenset(("_c10d_functional", "_c10d_functional_autograd"))

# The facts about a process group that graphs depend on: name, rank of this process, number of processes, backend.
GroupFacts = tuple[str, int, int, str]


def group_facts(group: typing.Any) -> GroupFacts:
    """Returns the facts about a process group."""
    return group.group_name, group.rank(), group.size(), torch.distributed.get_backend(group)


def default_group() -> typing.Any:
    """Returns the default process group. Raises ValueError before `init_process_group`."""
    return torch.distributed.distributed_c10d._get_default_group()


def default_group_facts() -> GroupFacts | None:
    """Returns the facts about the default process group; None before `init_process_group`."""
    return group_facts(default_group()) if is_rank() else None


def group_named(name: str) -> typing.Any:
    """Returns the process group with this name."""
    return torch.distributed.distributed_c10d._resolve_process_group(name)  # type: ignore[arg-type]


def coalesces(group: typing.Any, device: torch.device) -> bool:
    """Returns whether the group sends a batch of tensors as one message."""
    return bool(group._get_backend(device).supports_coalescing)


def mesh_facts(mesh: typing.Any) -> tuple[typing.Any, ...]:
    """Returns the facts about a device mesh: device type, layout of the ranks, names of dimensions, rank, groups."""
    groups = tuple(map(group_facts, mesh.get_all_groups())) if mesh.get_coordinate() is not None else ()
    ranks = tuple(mesh.mesh.flatten().tolist())
    return mesh.device_type, tuple(mesh.shape), ranks, mesh.mesh_dim_names, mesh.get_rank(), groups


def default_store() -> typing.Any:
    """Returns the store of the default process group; None without a group of several processes."""
    if not is_rank() or torch.distributed.get_world_size() == 1:
        return None
    return torch.distributed.distributed_c10d._get_default_store()


# The module of the hooks of `fully_shard`, which is imported late.
SHARDING = "torch.distributed.fsdp._fully_shard._fsdp_state"


def is_sharded(module: typing.Any) -> bool:
    """Returns whether `fully_shard` was applied to the module itself."""
    fsdp = sys.modules.get("torch.distributed.fsdp._fully_shard._fully_shard")
    return fsdp is not None and isinstance(module, fsdp.FSDPModule)


def parallel_facts(module: torch.nn.Module) -> tuple[typing.Any, ...] | None:
    """Returns the facts about a module of torch that `parallelize_module` has changed: its parameters are DTensors, and
    its hooks convert arguments and results. Returns None for other modules.
    """
    tensors = sys.modules.get("torch.distributed.tensor")
    parameters = [each for each in module._parameters.values() if each is not None]
    if tensors is None or not parameters or not all(isinstance(each, tensors.DTensor) for each in parameters):
        return None
    hooks = [*module._forward_pre_hooks.items(), *module._forward_hooks.items()]
    are_known = all(str(getattr(hook, "__module__", "")).startswith(f"{tensors.__name__}.") for _, hook in hooks)
    if module._modules or "forward" in vars(module) or not type(module).__module__.startswith("torch.nn."):
        return None
    facts = [(each.shape, each.dtype, each.requires_grad, each.placements) for each in parameters]
    return (tuple(key for key, _ in hooks), *facts) if are_known else None


class _Waited(torch.autograd.Function):
    """Returns the plain tensor of an AsyncCollectiveTensor."""

    @staticmethod
    def forward(ctx: typing.Any, tensor: typing.Any) -> typing.Any:
        return tensor.wait()

    @staticmethod
    def backward(ctx: typing.Any, *gradients: torch.Tensor) -> typing.Any:
        return gradients[0]


def waited(value: typing.Any) -> typing.Any:
    """Waits for the result of a functional collective, and returns a plain tensor; returns other values unchanged."""
    functional = sys.modules.get(FUNCTIONAL_COLLECTIVES)
    is_pending = functional is not None and isinstance(value, functional.AsyncCollectiveTensor)
    return _Waited.apply(value) if is_pending else value  # type: ignore[no-untyped-call]


class ParameterFacts(typing.NamedTuple):
    """The facts about a parameter after FSDP has gathered it."""

    size: tuple[int, ...]
    stride: tuple[int, ...]
    dtype: torch.dtype
    device: torch.device
    requires_grad: bool


class ShardingFacts(typing.NamedTuple):
    """The facts about a sharded module that graphs depend on."""

    parameters: tuple[ParameterFacts, ...]
    #: The dtype to which the hook before forward converts arguments; None for no conversion.
    cast: torch.dtype | None
    #: The dtype to which the hook after forward converts results; None for no conversion.
    output: torch.dtype | None
    #: The name of the group that gathers the parameters; None for a module without parameters of its own.
    group: str | None


def sharding_facts(state: typing.Any) -> ShardingFacts | None:
    """Returns the facts about the state that `fully_shard` has attached to modules.

    Returns None if several modules share it, or if gathered parameters are no plain tensors.
    """
    policy, parameters, groups = state._mp_policy, _sharded_parameters(state), _parameter_groups(state)
    special = (each.is_dtensor or hasattr(each._sharded_local_tensor, "fsdp_post_all_gather") for each in parameters)
    if len(state._modules) != 1 or any(special):
        return None
    facts = [
        ParameterFacts(
            tuple(each._orig_size),
            tuple(each._contiguous_orig_stride),
            policy.param_dtype
            if policy.param_dtype is not None and each.sharded_param.is_floating_point()
            else each.sharded_param.dtype,
            state._device,
            each.sharded_param.requires_grad,
        )
        for each in parameters
    ]
    cast = policy.param_dtype if policy.cast_forward_inputs else None
    group = groups[0]._all_gather_process_group.group_name if groups and groups[0]._all_gather_process_group else None
    return ShardingFacts(tuple(facts), cast, policy.output_dtype, group)


def gathered_parameters(state: typing.Any) -> list[torch.nn.Parameter]:
    """Returns the parameters that FSDP has gathered, in the order of `ShardingFacts.parameters`."""
    return [each._unsharded_param for each in _sharded_parameters(state)]


def present_parameters(state: typing.Any) -> list[torch.nn.Parameter]:
    """Returns the parameters that the modules have now, sharded or gathered."""
    infos = [each._module_info for each in _sharded_parameters(state)]
    return [getattr(info.module, info.param_name) for info in infos]


def _sharded_parameters(state: typing.Any) -> list[typing.Any]:
    return [each for group in _parameter_groups(state) for each in group.fsdp_params]


def _parameter_groups(state: typing.Any) -> list[typing.Any]:
    groups = getattr(state, "_fsdp_param_groups", None)  # older versions have a single group
    return [state._fsdp_param_group] if groups is None and state._fsdp_param_group is not None else groups or []


def module_in_data_parallel(module: typing.Any) -> torch.nn.Module | None:
    """Returns the module that a `DistributedDataParallel` wraps; None if calls of `module` do not run the `forward` of
    that class.
    """
    wrapper = torch.nn.parallel.DistributedDataParallel
    is_own = isinstance(module, wrapper) and type(module).forward is wrapper.forward and "forward" not in vars(module)
    return typing.cast(torch.nn.Module, module.module) if is_own else None


def bucket_limits() -> tuple[int, ...] | None:
    """Returns the bytes of the first buckets of gradients of the `DistributedDataParallel` whose forward is running;
    the last number holds for all further buckets. None if there is none.
    """
    active = getattr(torch.nn.parallel.DistributedDataParallel, "_active_ddp_module", None)
    if active is None:
        return None
    if several := getattr(active, "bucket_bytes_cap_list", ()):
        return tuple(several)
    limit: int = active.bucket_bytes_cap
    return (torch.distributed._DEFAULT_FIRST_BUCKET_BYTES if active.bucket_bytes_cap_default else limit), limit


def wait_tensor() -> typing.Any:
    """Returns the operator that waits for the result of a functional collective."""
    return torch.ops._c10d_functional.wait_tensor.default


def are_fakes_running() -> bool:
    """Returns whether operators run on fake tensors now."""
    mode = torch._C._get_dispatch_mode(torch._C._TorchDispatchModeKey.FAKE)
    return mode is not None


# Functions that communicate, each with the parameter whose tensors it writes to.
COLLECTIVES: dict[str, str | None] = {}


def _properties(cls: type, *names: str) -> list[typing.Any]:
    attributes = (vars(cls).get(name) for name in names)
    return [each.fget if isinstance(each, property) else each for each in attributes if each is not None]


if HAS_DISTRIBUTED:
    _c10d = torch.distributed.distributed_c10d
    # The functions that return the default group.
    DEFAULT_GROUP_GETTERS = [_c10d._get_default_group, *_properties(type(torch.distributed.group), "WORLD")]
    # The methods and properties of a process group for each of its facts.
    GROUP_METHODS = [_properties(torch.distributed.ProcessGroup, name) for name in ("group_name", "rank", "size")]
    # The methods and properties of a device mesh that depend on its facts alone.
    MESH_QUESTIONS = _properties(
        torch.distributed.DeviceMesh,
        *("size", "ndim", "shape", "get_rank", "get_local_rank", "get_coordinate", "get_group", "__getitem__"),
        *("device_type", "mesh_dim_names"),
    )
    REDUCTIONS = (torch.distributed.ReduceOp, torch.distributed.ReduceOp.RedOpType)
    _NAMES = ("all_gather_into_tensor", "all_gather_single"), ("reduce_scatter_tensor", "reduce_scatter_single")
    ALL_GATHERS, REDUCE_SCATTERS = (
        [getattr(torch.distributed, name) for name in names if hasattr(torch.distributed, name)] for names in _NAMES
    )
    COLLECTIVES = {
        **dict.fromkeys(("all_reduce", "broadcast", "irecv", "recv", "reduce", "scatter"), "tensor"),
        **dict.fromkeys(("all_to_all_single", "reduce_scatter", REDUCE_SCATTERS[-1].__name__), "output"),
        **dict.fromkeys(("isend", "send")),
        "all_gather": "tensor_list",
        "all_to_all": "output_tensor_list",
        "gather": "gather_list",
        ALL_GATHERS[-1].__name__: "output_tensor",
    }
    group_size_by_name = _c10d._get_group_size_by_name
