"""Owns the hints in diagnostics for library code that breaks the graph: one line of replacement code each; and reasons
that several files give.

Decides nothing. For all other breaks, the hint is in the code that breaks the graph.
"""

from __future__ import annotations

# Values that cannot be traced, by class name or kind of tensor.
HINTS_BY_CLASS = {
    "ndarray": "Make a tensor of it: torch.from_numpy(array)",
    "ProxyType": "Hold the object itself, or weakref.ref(object)",
    "CallableProxyType": "Hold the object itself, or weakref.ref(object)",
    "Generator": "Draw the numbers before, and pass them in.",
    "Random": "Draw the numbers before, and pass them in.",
    **dict.fromkeys(("lock", "RLock"), "Hold the lock around the call of the compiled function, or accept the break."),
    "tensor from inference mode": "Call it under torch.no_grad(), or clone the tensor outside of inference mode.",
    "UninitializedParameter": "Call the lazy module once before it is compiled.",
    "UninitializedBuffer": "Call the lazy module once before it is compiled.",
}

OPAQUE = "minidynamo passes objects of this class on but cannot look into them."
CHANGE_OUTSIDE = "Change it outside of the compiled function."
MAKE_OUTSIDE = "Make it outside of the compiled function, and pass it in."
COMPILE_CLOSURE = (
    "Compile the function that computes the loss, and write in the closure: loss = compiled(x); loss.backward()"
)
_OUTSIDE = "Call it outside of the compiled function, or accept the break."

# Functions that run eagerly, by name or by library.
_OF_FUNCTIONS = {
    "proxy": "Write weakref.ref(object); a call of the reference returns the object.",
    "linearize": "Write torch.func.jvp(function, (x,), (v,)) for each direction v.",
    "functionalize": "Call the function itself: backends remove in-place writes from graphs themselves.",
    "stack_module_state": "Stack the parameters before, and pass them in.",
    "torch.distributions.distribution": "Pass validate_args=False where the values are known to be right.",
    "torch.random": "Seed before the compiled function is called.",
    "torch.optim.lbfgs": COMPILE_CLOSURE,
    "torch.optim.lr_scheduler": "Call it after the compiled function.",
    "torch.utils.data": "Load the data outside of the compiled function.",
    "logging": "Log outside of the compiled function, or accept the break.",
}

# Operations that read the values of a tensor, or have a result shape that depends on data.
_OF_VALUES = {
    "getitem": "For a mask: torch.where(mask, x, 0); for n items from i on: x.index_select(0, i + torch.arange(n))",
    "masked_select": "Keep the shape: torch.where(mask, x, 0)",
    "nonzero": "Keep the shape, and choose by the mask: torch.where(mask, a, b)",
    "where": "Keep the shape, and choose by the mask: torch.where(mask, a, b)",
    "argwhere": "Keep the shape, and choose by the mask: torch.where(mask, a, b)",
    "bincount": "Write torch.nn.functional.one_hot(x, count).sum(0)",
    "repeat_interleave": "Repeat by a number, or gather by positions that were computed before.",
    "ctc_loss": "Compute this loss after the compiled function.",
    "_pack_padded_sequence": "Keep the padding, and mask the result.",
    "_pad_packed_sequence": "Keep the padding, and mask the result.",
}
_SHAPE = "Move it out of the compiled function, or keep the shape."


def hint_for(name: str, library: str) -> str:
    """Returns the hint for a function, by its name and library."""
    return _OF_FUNCTIONS.get(name) or _OF_FUNCTIONS.get(library) or _OUTSIDE


def is_of_optimizers(library: str) -> bool:
    """Returns whether code of a module calls the closure of an optimizer's `step`, or wraps such a call."""
    return library.startswith("torch.optim.")


def hint_for_values(name: str) -> str:
    """Returns the hint for an operation that needs the values of tensors: `nonzero()`, `Tensor.nonzero()`."""
    return _OF_VALUES.get(name.removesuffix("()").rpartition(".")[-1], _SHAPE)
