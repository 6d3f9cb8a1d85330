"""Owns random training programs of two arguments: a few lines of tensor operations, views, writes, losses and calls.

Each is a text, generated from a seed; every line works for the values of the lines before. Measures nothing.
"""

from __future__ import annotations

import linecache
import random
import warnings
from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch.nn import functional
from torch.utils.checkpoint import checkpoint

# The weight of each kind of line, and its operation on two earlier values. Lines with `{n}` define the new value `{n}`.
KINDS: Mapping[str, tuple[float, str]] = {
    "one": (
        8,
        """{a}.sin() | {a}.tanh() | {a}.sigmoid() | {a}.relu() | ({a} * 0.1).exp() | F.gelu({a}) | {a}.square()
        | {a}.abs() | -{a} | {a} * 2 | {a} + 1 | 1 - {a} | F.silu({a}) | F.softplus({a}) | F.leaky_relu({a} - 0.3)
        | {a}.clamp(0.1, 0.6) | ({a}.abs() + 0.1).sqrt() | {a}.abs().log1p() | F.elu({a} - 0.5) | F.mish({a})
        | F.hardtanh({a}, 0.1, 0.6) | {a}.cos() | ({a}.abs() + 0.2).rsqrt() | {a} / 3 | {a}.pow(3)""",
    ),
    "two": (
        7,
        """{a} + {b} | {a} * {b} | {a} - {b} | {a} / ({b}.abs() + 0.5) | torch.where({a} > {b}, {a}, {b} * 2)
        | torch.maximum({a}, {b}) | torch.lerp({a}, {b}, 0.3) | torch.addcmul({a}, {b}, {a})
        | torch.atan2({a}, {b} + 1) | torch.where({a} > 0.3, {b}, 0.0) | {a}.masked_fill({b} > 0.3, 0.0)
        | torch.hypot({a}, {b})""",
    ),
    "product": (
        4,
        """{a} @ {b} | {a} @ {b}.t() | {a}.t() @ {b} | F.linear({a}, {b}, {b}[:, 0]) | torch.addmm({a}, {b}, {a})
        | torch.einsum('ij,kj->ik', {a}, {b}) | torch.outer({a}[0], {b}[:, 0])
        | torch.bmm({a}.reshape(4, 16, 64), {b}.reshape(4, 64, 16))""",
    ),
    "view": (
        5,
        """{a}.t() | {a}[:32] | {a}[32:] | {a}[:, :32] | {a}[:, 32:] | {a}[0] | {a}[:, 1] | {a}[::2]
        | {a}.reshape(-1, 32) | {a}.reshape(32, -1) | {a}.flip(0) | {a}.roll(3, 1) | {a}[1:] | {a}.expand(2, -1, -1)
        | {a}.unsqueeze(0) | {a}.squeeze(0) | {a}.flatten() | {a}.repeat(2, 1) | F.pad({a}, (1, 1)) | {a}.contiguous()
        | {a}.clone() | {a}.tril() | {a}.diagonal() | {a}.permute(1, 0) | {a}.narrow(0, 0, 16) | {a}.view(4, 16, 64)
        | {a}.reshape(-1, 64) | {a}.unfold(1, 8, 4)""",
    ),
    "norm": (
        3,
        """F.layer_norm({a}, {a}.shape[-1:]) | F.layer_norm({a}, (64,), {b}[0], {b}[1])
        | F.batch_norm({a}, None, None, training=True) | F.batch_norm({a}, None, None, {b}[0], {b}[1], training=True)
        | F.group_norm({a}.reshape(4, 16, 64), 4) | F.rms_norm({a}, (64,)) | F.rms_norm({a}, (64,), {b}[2])
        | F.normalize({a}, dim=-1) | {a}.softmax(-1) | {a}.log_softmax(-1) | {a}.softmax(0)
        | F.instance_norm({a}.reshape(1, 64, 8, 8)) | {a} - {a}.mean(0) | F.softmin({a}, -1) | {a} / {a}.norm()""",
    ),
    "reduction": (
        2,
        """{a}.sum(0) | {a}.mean(1, keepdim=True) | {a}.amax(0) | {a}.logsumexp(-1) | {a}.var(0) | {a}.sum()
        | {a}.max(-1).values | {a}.cumsum(0) | {a}.sort(-1).values | {a}.topk(5, -1).values | {a}.norm() | {a}.prod(0)
        | {a}.median(0).values | {a}.min() | {a}.mean((0, 1)) | {a}.sum(-1, keepdim=True)""",
    ),
    "index": (
        1.5,
        """F.embedding(torch.arange(32), {a}) | F.embedding(torch.arange(64) % 7, {a})
        | {a}.index_select(0, torch.arange(16))
        | {a}.index_copy(0, torch.arange(4), {b}[:4]) | {a}.gather(0, torch.zeros(4, 64, dtype=torch.long))
        | {a}[torch.arange(20)] | {a}.index_add(0, torch.arange(64), {b}) | {a}.take_along_dim({b}.argsort(-1), -1)
        | {a}.scatter_add(0, torch.zeros(64, 64, dtype=torch.long), {b})""",
    ),
    "joined": (
        2,
        """torch.cat([{a}, {b}]) | torch.cat([{a}, {b}], 1) | torch.stack([{a}, {b}])
        | torch.cat([{a}[:, :32], {b}[:, 32:]], 1) | torch.stack([{a}, {b}], 1).flatten(0, 1)
        | torch.cat([{a}, {a} * {b}], -1)""",
    ),
    "loss": (
        2,
        """F.mse_loss({a}, {b}) | F.mse_loss({a}, {b}.detach()) | F.l1_loss({a}, {b}) | F.smooth_l1_loss({a}, {b})
        | F.huber_loss({a}, {b}) | F.binary_cross_entropy_with_logits({a}, ({b} > 0.3).float())
        | F.cross_entropy({a}, torch.arange(64) % {a}.shape[-1]) | F.cross_entropy({a}, {b}.softmax(-1))
        | F.nll_loss({a}.log_softmax(-1), torch.arange(64) % 64) | F.cosine_similarity({a}, {b})
        | F.kl_div({a}.log_softmax(-1), {b}.softmax(-1), reduction='batchmean') | torch.cdist({a}, {b})
        | F.binary_cross_entropy({a}.sigmoid(), ({b} > 0.3).float()) | F.pairwise_distance({a}, {b})
        | F.soft_margin_loss({a}, {b}.sign().detach()) | F.triplet_margin_loss({a}, {b}, {a} * {b})""",
    ),
    "call": (
        3,
        """F.dropout({a}, 0.4) | F.dropout({a}, 0.4) * {b} | F.glu({a}) | F.prelu({a} - 0.5, {b}[0])
        | checkpoint(lambda p, q: (p @ q).sin() * p, {a}, {b}, use_reentrant=False)
        | F.conv2d({a}.reshape(1, 4, 16, -1), {b}[:8, :36].reshape(8, 4, 3, 3), padding=1)
        | F.conv1d({a}.reshape(4, 16, -1), {b}[:16, :48].reshape(16, 16, 3), {b}[0, :16])
        | F.scaled_dot_product_attention(*[{a}.reshape(1, 4, 16, 64)] * 2, {b}.reshape(1, 4, 16, 64), is_causal=True)
        | F.max_pool2d({a}.reshape(1, 1, 64, 64), 2) | F.avg_pool2d({a}.reshape(1, 4, 32, 32), 2)
        | F.interpolate({a}.reshape(1, 4, 16, -1), scale_factor=2) | {a}.to(torch.float64).sin().float()
        | F.one_hot(torch.arange(64), 64) * {a} | F.fold({a}.reshape(1, 16, -1), (32, 32), 2, stride=2)
        | F.bilinear({a}[:, :16], {a}[:, 16:32], {b}.reshape(16, 16, 16))""",
    ),
    "write": (
        3,
        """{n} = {a} * 1; {n}.add_({b}) | {n} = {a} + 0.5; {n}.mul_({b}) | {n} = {a} * 2; {n}[:8].tanh_()
        | {n} = {a}.sin(); {n}.relu_() | {n} = {a} @ {b}; {n}.tanh_() | {n} = {a}.clone(); {n}[0] = 0
        | {n} = {a}.clone(); {n}[:, :32] = {b}[:, 32:] | {n} = {a} * 1; {n}.sigmoid_().mul_({b})
        | {n} = torch.zeros(64, 64); {n}[:32] = {a}[32:]; {n}[32:] = {b}[:32] | {n} = {a} * 1; {n}.copy_({b})
        | {n} = {a} + {b}; {n}.masked_fill_({b} > 0.2, 0.1) | {n} = torch.empty(64, 64); {n}.copy_({a})
        | {n} = {a} * 1; {n}.view(-1)[5:].mul_(2).sin_() | {n} = F.dropout({a} * 1, 0.3, inplace=True)
        | {n} = {a} * 1; {n}.clamp_(min=0.2) | {n} = {a}.clone(); {n}.index_fill_(0, torch.arange(4), 0.5)""",
    ),
    "several": (
        2,
        """{n} = {a}.detach() * {b} | {n} = ({a} > 0.3).float() * {b} | {n}, {n}b = {a}.chunk(2)
        | {n}, {n}b = {a}.chunk(2, -1) | {n}, {n}b, {n}c, {n}d = {a}.split(16) | {n}, {n}b = torch.var_mean({a}, 0)
        | {n}, *_ = {a}.unbind(0) | {n}, {n}b = torch.aminmax({a}) | {n} = torch.stack({a}.unbind(0)[:4])""",
    ),
}
TABLES = {kind: tuple(text.strip() for text in texts.split(" | ")) for kind, (_, texts) in KINDS.items()}
WEIGHTS = [weight for weight, _ in KINDS.values()]
SCOPE = {"torch": torch, "F": functional, "checkpoint": checkpoint}
LARGEST, FARTHEST = 4 * 64 * 64, 1e3

Tensors = dict[str, torch.Tensor]


def arguments() -> tuple[torch.Tensor, torch.Tensor]:
    """Returns the arguments of programs: two matrices of 64 x 64."""
    generator = torch.Generator().manual_seed(0)
    x, w = torch.rand(64, 64, generator=generator), torch.rand(64, 64, generator=generator) / 8
    return x.requires_grad_(), w.requires_grad_()


def random_program(seed: int) -> str:
    """Returns the text of a program, `def program(x, w): ...`, of two to eight lines and one to three results."""
    choose = random.Random(seed)
    x, w = arguments()
    values: Tensors = {"x": x * 1, "w": w * 1}
    lines: list[str] = []
    unread: dict[str, None] = {}
    count = choose.randint(2, 8)
    while len(lines) < count:
        (kind,) = choose.choices([*TABLES], WEIGHTS)
        names = [*values, *[*values][-3:] * 2]  # the latest more often
        a, b, n = choose.choice(names), choose.choice(names), f"v{len(lines)}"
        text = choose.choice(TABLES[kind])
        line = text.format(a=a, b=b, n=n)
        line = line if kind in ("write", "several") else f"{n} = {line}"
        if new := _made(line, values):
            lines.append(line)
            for read in (a, b) if "{b}" in text else (a,):
                unread.pop(read, None)
            unread.update(dict.fromkeys(new))
            values.update(new)
    ends = [name for name in unread if values[name].requires_grad]
    choose.shuffle(ends)
    returned = ends[: choose.choice((1, 1, 2, 3))]
    others = [name for name, value in values.items() if value.requires_grad and name not in (*returned, "x", "w")]
    if others and (not returned or choose.random() < 0.15):
        returned.append(choose.choice(others))
    body = "\n".join(f"    {line}" for line in (*lines, f"return {', '.join(returned or ['x * w'])}"))
    return f"def program(x, w):\n{body}\n"


def _made(line: str, values: Tensors) -> Tensors:
    """Returns the result of a line alone; None if the line raises or warns, or is of no use to a program of floats."""
    scope: dict[str, Any] = {name: value.clone() for name, value in values.items()}
    torch.manual_seed(0)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            exec(line, SCOPE, scope)
    except (RuntimeError, IndexError, ValueError, TypeError, Warning):
        return {}
    made = {name: scope[name] for name in scope if name not in values and isinstance(scope[name], torch.Tensor)}
    if not all(map(_is_usable, made.values())):
        return {}
    return {n: value.detach().requires_grad_() * 1 if value.requires_grad else value for n, value in made.items()}


def _is_usable(value: torch.Tensor) -> bool:
    if not value.is_floating_point() or not 0 < value.numel() <= LARGEST:
        return False
    return bool(value.isfinite().all() and value.abs().max() <= FARTHEST)


def load(text: str) -> Callable[[torch.Tensor, torch.Tensor], Any]:
    """Returns the function that a program's text defines, with its lines available to tracebacks."""
    name = f"<program {abs(hash(text))}>"
    linecache.cache[name] = (len(text), None, text.splitlines(keepends=True), name)
    scope = dict(SCOPE)
    exec(compile(text, name, "exec"), scope)
    program: Callable[[torch.Tensor, torch.Tensor], Any] = scope["program"]  # type: ignore[assignment]
    return program
