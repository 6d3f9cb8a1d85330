"""Owns a generator of random training programs: random operations between the products of models.

Compares nothing: `test_random_training.py` does. Every tensor has the same shape, so that every line fits.
"""

from __future__ import annotations

import itertools
import linecache
import random
import re
from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F

SIZE = 64
_numbers = itertools.count()

# x and y are earlier tensors, w is a matrix and b a vector of parameters.
LINES = [
    *["x.relu()", "x.tanh()", "x.sigmoid()", "F.gelu(x)", "F.silu(x)", "x.sin()", "x.square()", "F.softplus(x)"],
    *["F.elu(x)", "F.leaky_relu(x, 0.1)", "x.abs().log1p()", "x.clamp(-0.5, 0.5)", "x * 0.5", "F.dropout(x, 0.3)"],
    *["x.softmax(-1)", "x.log_softmax(-1)", "F.layer_norm(x, x.shape[-1:])", "x - x.mean(-1, keepdim=True)"],
    *["x.cumsum(-1)", "x.where(x > 0, x * 0.1)", "x.tanh() * 2", "(x * 1.5).relu_()", "x.flip(0)", "x.detach() + x"],
    *["x.double().sin().float()", "x * x.amax(-1, keepdim=True)", "F.normalize(x, dim=-1)", "x.t().contiguous().t()"],
    *["x + y", "x * y", "x / (y.abs() + 1)", "torch.maximum(x, y)", "x * y.sigmoid()", "(x + 0).mul_(y)"],
    *["torch.where(x > y, x, y)", "(x @ y.t()).softmax(-1) @ x", "torch.stack([x, y]).mean(0)", "x.lerp(y, 0.2)"],
    *["x @ w", "F.linear(x, w)", "F.linear(x, w, b)", "torch.addmm(b, x, w)", "x * b", "x + b"] * 2,
    *["F.layer_norm(x, x.shape[-1:], b, b)", "F.rms_norm(x, x.shape[-1:], b)", "F.prelu(x, b)"],
]


def training_program(seed: int) -> tuple[Callable[..., torch.Tensor], str, list[torch.Tensor]]:
    """Returns a function of a matrix and parameters that returns a loss, its text, and the parameters."""
    drawn = random.Random(seed)
    live, lines, parameters = ["x0"], [], {}
    for number in range(1, drawn.randint(3, 10)):
        text = drawn.choice(LINES)
        for name, shape in (("w", (SIZE, SIZE)), ("b", (SIZE,))):
            if re.search(rf"\b{name}\b", text):
                parameters[f"{name}{number}"] = shape
                text = re.sub(rf"\b{name}\b", f"{name}{number}", text)
        one, other = drawn.choice(live[-2:]), drawn.choice(live)
        text = re.sub(r"\by\b", other, re.sub(r"\bx\b", one, text))
        lines.append(f"    x{number} = {text}")
        live.append(f"x{number}")
        if len(live) > 2 and drawn.random() < 0.5:
            lines.append(f"    del {live.pop(0)}")
    lines.append(f"    return {live[-1]}.square().mean()")
    source = "\n".join([f"def program({', '.join(['x0', *parameters])}):", *lines, ""])
    path = f"<random training {next(_numbers)}>"
    linecache.cache[path] = (len(source), None, source.splitlines(True), path)
    namespace: dict[str, Any] = {"torch": torch, "F": F}
    exec(compile(source, path, "exec"), namespace)
    torch.manual_seed(seed)
    made = [(torch.randn(shape) / shape[-1] ** 0.5).requires_grad_() for shape in parameters.values()]
    return namespace["program"], source, made
