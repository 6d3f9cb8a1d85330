"""Owns the polyfills of nn.Module's own methods (the call with its hooks, attribute assignment, and tree traversals),
and of torch's optimizers (the wrapper of a step, and its special cases for torch.compile).

Trackers are not used here. Hooks run in the same order as in nn.Module. Hooks of `register_backward_hook`, and hooks
that must run even if forward raises, break the graph, so that nn.Module itself makes the call. The step of an optimizer
is traced directly, through its branches for eager (`handlers/torch_functions.py`). Numbers that a step reads from
tensors are not here (`tracer/numbers/tensor_items.py`).
"""

# Polyfills are traced, not called, and accept all arguments of the original, so annotations would add nothing.
# mypy: allow-untyped-defs, allow-untyped-calls

from __future__ import annotations

import torch
from torch.nn.modules import module as module_globals
from torch.nn.utils.rnn import PackedSequence
from torch.utils.hooks import BackwardHook

from minidynamo.compat import OPTIMIZER_HEALTH_CHECKS, OPTIMIZER_STEP_SWITCH, OPTIMIZER_ZERO_GRAD
from minidynamo.tracer.polyfills.functools import inner_code
from minidynamo.tracer.records.registry import cannot_trace, polyfill, polyfill_code

Module = torch.nn.Module
_RECURRENT = (torch.nn.RNN, torch.nn.LSTM, torch.nn.GRU)


@polyfill(Module.__call__)
def module_call(self, *args, **kwargs):
    if type(self)._call_impl is not Module._call_impl:
        return self._call_impl(*args, **kwargs)
    if not (
        self._forward_hooks
        or self._forward_pre_hooks
        or self._backward_hooks
        or self._backward_pre_hooks
        or module_globals._global_backward_hooks
        or module_globals._global_backward_pre_hooks
        or module_globals._global_forward_hooks
        or module_globals._global_forward_pre_hooks
    ):
        if isinstance((args or [kwargs.get("input")])[0], PackedSequence) and type(self) in _RECURRENT:
            what = f"a {type(self).__name__} gets a PackedSequence"
            return cannot_trace(what, "how long its sequences are is data", "Keep the padding, and mask the output.")
        return self.forward(*args, **kwargs)
    return _call_with_hooks(self, args, kwargs)


@polyfill_code(inner_code(torch.fx.GraphModule.recompile, "call_wrapped"))
def graph_module_call(_call, self, *args, **kwargs):
    wrapped = self._wrapped_call
    if wrapped.cls_call is not None:
        return cannot_trace("a GraphModule whose class has its own `__call__`", "it runs around the graph's code")
    return super(wrapped.cls, self).__call__(*args, **kwargs)


def is_parallel(module, args, kwargs):
    """Returns whether the graph may call the module as it is (`handlers/sharding.py`)."""
    return False


def call_parallel(module, *args):
    """Calls such a module."""
    return module(*args)


def _call_with_hooks(self, args, kwargs):
    if is_parallel(self, args, kwargs):
        return call_parallel(self, *args)
    if self._forward_hooks_always_called or module_globals._global_forward_hooks_always_called:
        return cannot_trace("a forward hook with always_call=True", "it also runs when forward raises")
    pre_hooks = [
        *module_globals._global_forward_pre_hooks.items(),
        *self._forward_pre_hooks.items(),
    ]
    for key, hook in pre_hooks:
        if key in self._forward_pre_hooks_with_kwargs:
            changed = hook(self, args, kwargs)
            if changed is not None:
                if not isinstance(changed, tuple) or len(changed) != 2:
                    return cannot_trace("this result of a forward pre-hook", "nn.Module refuses it")
                args, kwargs = changed
        else:
            changed = hook(self, args)
            if changed is not None:
                args = changed if isinstance(changed, tuple) else (changed,)
    backward_hook = _backward_hook(self)
    if backward_hook is not None:
        args = backward_hook.setup_input_hook(args)
    result = self.forward(*args, **kwargs)
    hooks = [*module_globals._global_forward_hooks.items(), *self._forward_hooks.items()]
    for key, hook in hooks:
        if key in self._forward_hooks_with_kwargs or key in module_globals._global_forward_hooks_with_kwargs:
            changed = hook(self, args, kwargs, result)
        else:
            changed = hook(self, args, result)
        if changed is not None:
            result = changed
    if backward_hook is None:
        return result
    if not isinstance(result, (torch.Tensor, tuple)):
        return cannot_trace("the result of a module with backward hooks is no tensor or tuple", "nn.Module warns")
    return backward_hook.setup_output_hook(result)


def _backward_hook(self):
    """Returns the object of torch that attaches the backward hooks to the arguments and the results."""
    full_hooks, other_hooks = self._get_backward_hooks()
    if other_hooks:
        return cannot_trace("a module with hooks of register_backward_hook()", "they get gradients of one operation")
    pre_hooks = self._get_backward_pre_hooks()
    return BackwardHook(self, full_hooks, pre_hooks) if full_hooks or pre_hooks else None


@polyfill(Module.__setattr__)
def module_setattr(self, name, value):
    if "_parameters" not in self.__dict__:  # before nn.Module.__init__
        if isinstance(value, (torch.nn.Parameter, torch.nn.Buffer, Module)):
            return cannot_trace("registering a part of an unfinished module", "nn.Module refuses it")
        return object.__setattr__(self, name, value)
    if isinstance(value, torch.nn.Parameter) or name in self._parameters:
        if not (value is None or isinstance(value, torch.nn.Parameter)):
            return cannot_trace("assigning this to a parameter", "nn.Module refuses it")
        if name not in self._parameters:
            _forget(self, name, (self._buffers, self._modules))
        return self.register_parameter(name, value)
    if isinstance(value, Module) or name in self._modules:
        if name not in self._modules:
            _forget(self, name, (self._parameters, self._buffers))
        return _register(self._modules, name, value, Module, module_globals._global_module_registration_hooks)
    if isinstance(value, torch.nn.Buffer) or name in self._buffers:
        if type(self).register_buffer is not Module.register_buffer:
            return cannot_trace("assigning a buffer", "the module's own register_buffer decides")
        if not (value is None or isinstance(value, torch.Tensor)):
            return cannot_trace("assigning this to a buffer", "nn.Module refuses it")
        if isinstance(value, torch.nn.Buffer):
            return self.register_buffer(name, value, value.persistent)
        return self.register_buffer(name, value, name not in self._non_persistent_buffers_set)
    return object.__setattr__(self, name, value)


def _forget(self, name, tables):
    """Removes a name that is being registered from all other tables."""
    if name in self.__dict__:
        object.__delattr__(self, name)
    for table in tables:
        if name in table:
            del table[name]
    self._non_persistent_buffers_set.discard(name)


def _register(table, name, value, kind, hooks):
    """Adds a part to a table of the module; nn.Module itself handles errors and registration hooks."""
    if hooks or not (value is None or isinstance(value, kind)):
        return cannot_trace("registering a parameter, buffer or module", "nn.Module refuses it, or calls a hook")
    table[name] = value
    return None


def _check_new_name(self, name, table):
    if not isinstance(name, str) or name == "" or "." in name or (name not in table and hasattr(self, name)):
        cannot_trace("registering a parameter, buffer or module", "nn.Module refuses the name")


@polyfill(Module.register_parameter)
def register_parameter(self, name, param):
    _check_new_name(self, name, self._parameters)
    if isinstance(param, torch.nn.Parameter) and not param.is_leaf:
        return cannot_trace("registering a parameter", "nn.Module refuses a computed parameter")
    hooks = module_globals._global_parameter_registration_hooks
    return _register(self._parameters, name, param, torch.nn.Parameter, hooks)


@polyfill(Module.add_module)
def add_module(self, name, module):
    _check_new_name(self, name, self._modules)
    return _register(self._modules, name, module, Module, module_globals._global_module_registration_hooks)


@polyfill(torch.nn.Buffer)
def new_buffer(data=None, *, persistent=True):
    data = torch.empty(0) if data is None else data
    buffer = data.detach().requires_grad_(data.requires_grad)
    buffer.persistent = persistent
    buffer._is_buffer = True
    return buffer


@polyfill(Module.register_buffer)
def register_buffer(self, name, tensor, persistent=True):
    _check_new_name(self, name, self._buffers)
    if persistent:
        self._non_persistent_buffers_set.discard(name)
    else:
        self._non_persistent_buffers_set.add(name)
    return _register(self._buffers, name, tensor, torch.Tensor, module_globals._global_buffer_registration_hooks)


@polyfill(Module.__delattr__)
def module_delattr(self, name):
    for table in (self._parameters, self._buffers, self._modules):
        if name in table:
            del table[name]
            self._non_persistent_buffers_set.discard(name)
            return None
    return object.__delattr__(self, name)


@polyfill(Module.named_modules)
def named_modules(self, memo=None, prefix="", remove_duplicate=True):
    memo = set() if memo is None else memo
    if self in memo:
        return iter(())
    if remove_duplicate:
        memo.add(self)
    found = [(prefix, self)]
    for name, child in self._modules.items():
        if child is not None:
            found.extend(child.named_modules(memo, prefix + ("." if prefix else "") + name, remove_duplicate))
    return iter(found)


@polyfill(Module._named_members)
def named_members(self, get_members_fn, prefix="", recurse=True, remove_duplicate=True):
    memo: set[object] = set()
    found = []
    modules = self.named_modules(prefix=prefix, remove_duplicate=remove_duplicate) if recurse else [(prefix, self)]
    for module_prefix, module in modules:
        for key, value in get_members_fn(module):
            if value is None or value in memo:
                continue
            if remove_duplicate:
                memo.add(value)
            found.append((module_prefix + ("." if module_prefix else "") + key, value))
    return iter(found)


@polyfill(Module.named_parameters)
def named_parameters(self, prefix="", recurse=True, remove_duplicate=True):
    return self._named_members(
        lambda module: module._parameters.items(), prefix=prefix, recurse=recurse, remove_duplicate=remove_duplicate
    )


@polyfill(Module.named_buffers)
def named_buffers(self, prefix="", recurse=True, remove_duplicate=True):
    return self._named_members(
        lambda module: module._buffers.items(), prefix=prefix, recurse=recurse, remove_duplicate=remove_duplicate
    )


@polyfill(Module.parameters)
def parameters(self, recurse=True):
    return iter([parameter for _, parameter in self.named_parameters(recurse=recurse)])


@polyfill(Module.buffers)
def buffers(self, recurse=True):
    return iter([buffer for _, buffer in self.named_buffers(recurse=recurse)])


@polyfill(Module.named_children)
def named_children(self):
    memo: set[object] = set()
    found = []
    for name, module in self._modules.items():
        if module is not None and module not in memo:
            memo.add(module)
            found.append((name, module))
    return iter(found)


@polyfill(Module.children)
def children(self):
    return iter([module for _, module in self.named_children()])


@polyfill(Module.modules)
def modules(self, remove_duplicate=True):
    return iter([module for _, module in self.named_modules(remove_duplicate=remove_duplicate)])


@polyfill_code(OPTIMIZER_STEP_SWITCH)
def step_in_its_grad_mode(step, optimizer, *args, **kwargs):
    """Executes the decorator of `step`, without the graph breaks that it requests from torch.compile."""
    before = torch.is_grad_enabled()
    try:
        torch.set_grad_enabled(optimizer.defaults["differentiable"])
        return step.__wrapped__(optimizer, *args, **kwargs)
    finally:
        torch.set_grad_enabled(before)


@polyfill(*OPTIMIZER_HEALTH_CHECKS)
def check_health_for_graph_capture(optimizer):
    return None  # captured code does not run while an accelerator records a graph


@polyfill(torch.optim.Optimizer.zero_grad)
def zero_gradients(optimizer, set_to_none=True):
    return OPTIMIZER_ZERO_GRAD(optimizer, set_to_none)


# Other methods of schedules run eagerly; this method only reads.
_get_last_rates = torch.optim.lr_scheduler.LRScheduler.get_last_lr
polyfill(_get_last_rates)(_get_last_rates)
