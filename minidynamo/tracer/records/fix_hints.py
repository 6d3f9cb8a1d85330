"""Owns the hints in diagnostics for library code that breaks the graph: one line of replacement code each.

Decides nothing. For all other breaks, the hint is in the code that breaks the graph.
"""

from __future__ import annotations

# Values of classes that cannot be traced, by class name.
HINTS_BY_CLASS = {
    "ndarray": "make a tensor of it: torch.from_numpy(array)",
    "ProxyType": "hold the object itself, or weakref.ref(object)",
    "CallableProxyType": "hold the object itself, or weakref.ref(object)",
    "Generator": "draw the numbers before, and pass them in",
    "Random": "draw the numbers before, and pass them in",
    **dict.fromkeys(("lock", "RLock"), "hold the lock around the call of the compiled function, or accept the break"),
    "UninitializedParameter": "call the lazy module once before it is compiled",
    "UninitializedBuffer": "call the lazy module once before it is compiled",
}

CHANGE_OUTSIDE = "change it outside of the compiled function"
MAKE_OUTSIDE = "make it outside of the compiled function, and pass it in"
COMPILE_CLOSURE = (
    "compile the function that computes the loss, and write in the closure: loss = compiled(x); loss.backward()"
)
_OUTSIDE = "call it outside of the compiled function, or accept the break"

# Functions that run eagerly, by name or by library.
_OF_FUNCTIONS = {
    "proxy": "weakref.ref(object); a call of the reference returns the object",
    "linearize": "torch.func.jvp(function, (x,), (v,)) for each direction v",
    "functionalize": "call the function itself: backends remove in-place writes from graphs themselves",
    "stack_module_state": "stack the parameters before, and pass them in",
    "torch.distributions.distribution": "pass validate_args=False where the values are known to be right",
    "torch.random": "seed before the compiled function is called",
    "torch.optim.lbfgs": COMPILE_CLOSURE,
    "torch.optim.lr_scheduler": "call it after the compiled function",
    "torch.utils.data": "load the data outside of the compiled function",
    "logging": "log outside of the compiled function, or accept the break",
}

# Operations that read the values of a tensor, or have a result shape that depends on data.
_OF_VALUES = {
    "getitem": "for a mask torch.where(mask, x, 0); for n items from i on x.index_select(0, i + torch.arange(n))",
    "masked_select": "keep the shape: torch.where(mask, x, 0)",
    "nonzero": "keep the shape, and choose by the mask: torch.where(mask, a, b)",
    "where": "keep the shape, and choose by the mask: torch.where(mask, a, b)",
    "argwhere": "keep the shape, and choose by the mask: torch.where(mask, a, b)",
    "bincount": "torch.nn.functional.one_hot(x, count).sum(0)",
    "repeat_interleave": "repeat by a number, or gather by positions that were computed before",
    "ctc_loss": "compute this loss after the compiled function",
    "_pack_padded_sequence": "keep the padding, and mask what comes out",
    "_pad_packed_sequence": "keep the padding, and mask what comes out",
}
_SHAPE = "move it out of the compiled function, or keep the shape"


def hint_for(name: str, library: str) -> str:
    """Returns the hint for a function, by its name and library."""
    return _OF_FUNCTIONS.get(name) or _OF_FUNCTIONS.get(library) or _OUTSIDE


def is_of_optimizers(library: str) -> bool:
    """Returns whether code of a module calls the closure of an optimizer's `step`, or wraps such a call."""
    return library.startswith("torch.optim.")


def hint_for_values(name: str) -> str:
    """Returns the hint for an operation that needs the values of tensors: `nonzero()`, `Tensor.nonzero()`."""
    return _OF_VALUES.get(name.removesuffix("()").rpartition(".")[-1], _SHAPE)
