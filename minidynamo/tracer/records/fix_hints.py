"""Owns what to write instead of library code that breaks the graph: one line each, for the diagnostics.

It decides nothing. What breaks for a reason of its own has its advice where the break is.
"""

from __future__ import annotations

# Values of classes that cannot be looked into, by the name of the class.
INSTEAD = {
    "ndarray": "make a tensor of it: torch.from_numpy(array)",
    "ProxyType": "hold the object itself, or weakref.ref(object)",
    "CallableProxyType": "hold the object itself, or weakref.ref(object)",
    "Generator": "draw the numbers before, and pass them in",
    "Random": "draw the numbers before, and pass them in",
    "UninitializedParameter": "call the lazy module once before it is compiled",
    "UninitializedBuffer": "call the lazy module once before it is compiled",
}

CHANGE_OUTSIDE = "change it outside of the compiled function"
MAKE_OUTSIDE = "make it outside of the compiled function, and pass it in"
COMPILE_CLOSURE = "compile what computes the loss, and write in the closure: loss = compiled(x); loss.backward()"
_OUTSIDE = "call it outside of the compiled function, or accept the break"

# Functions that run as written, by their names, or by the library that they are of.
_OF_FUNCTIONS = {
    "proxy": "weakref.ref(object), which is called for the object",
    "linearize": "torch.func.jvp(function, (x,), (v,)) for each direction v",
    "functionalize": "call the function itself: backends write graphs without writes in place on their own",
    "stack_module_state": "stack the parameters before, and pass them in",
    "torch.distributions.distribution": "pass validate_args=False where the values are known to be right",
    "torch.random": "seed before the compiled function is called",
    "torch.optim.lbfgs": COMPILE_CLOSURE,
    "torch.optim.lr_scheduler": "call it behind the compiled function",
    "torch.utils.data": "load the data outside of the compiled function",
    "logging": "log outside of the compiled function, or accept the break",
}

# Operations whose result has a shape that depends on data, or that read the values of a tensor.
_OF_VALUES = {
    "getitem": "for a mask torch.where(mask, x, 0); for n items behind i x.index_select(0, i + torch.arange(n))",
    "masked_select": "keep the shape: torch.where(mask, x, 0)",
    "nonzero": "keep the shape, and choose by the mask: torch.where(mask, a, b)",
    "where": "keep the shape, and choose by the mask: torch.where(mask, a, b)",
    "argwhere": "keep the shape, and choose by the mask: torch.where(mask, a, b)",
    "bincount": "torch.nn.functional.one_hot(x, count).sum(0)",
    "repeat_interleave": "repeat by a number, or gather by positions that were computed before",
    "ctc_loss": "compute this loss behind the compiled function",
    "_pack_padded_sequence": "keep the padding, and mask what comes out",
    "_pad_packed_sequence": "keep the padding, and mask what comes out",
}
_SHAPE = "move it out of the compiled function, or keep the shape"


def instead_of(name: str, library: str) -> str:
    """What to do instead of calling a function, by its name and library."""
    return _OF_FUNCTIONS.get(name) or _OF_FUNCTIONS.get(library) or _OUTSIDE


def is_of_optimizers(library: str) -> bool:
    """Whether code of a module calls the closure that an optimizer's `step` is given, or stands around such a call."""
    return library.startswith("torch.optim.")


def instead_of_values(name: str) -> str:
    """What to write instead of an operation that needs the values of tensors: `nonzero()`, `Tensor.nonzero()`."""
    return _OF_VALUES.get(name.removesuffix("()").rpartition(".")[-1], _SHAPE)
