"""Owns the expressions and statements that random Python programs are composed of.

Draws nothing; `random_python.py` does. Placeholders: `{t}` for a tensor, `{n}` for an int, `{b}` for a bool, `{s}` for
a str, `{ts}` and `{ns}` for lists, `{d}` for a dict from text to tensors, `{o}` for a `Box`; `{k}` and `{i}` for a key
and an index that are mostly found; `{vn}`, `{vs}`, `{vt}` for variables only, since quotes do not nest in an f-string
before Python 3.12. A capital is for a variable that is written. Tensors keep their shape, numbers and texts stay small.
"""

from __future__ import annotations


def lines(text: str) -> list[str]:
    return [line.strip() for line in text.strip().splitlines()]


EXPRESSIONS: dict[str, list[str]] = {
    "t": lines(
        r"""
        {t} + {t}
        {t} - {t}
        {t} * {n}
        torch.sin({t})
        {t}.tanh()
        torch.relu({t})
        -{t}
        {t} / 2
        {t}.clone()
        torch.minimum({t}, {t})
        torch.where({t} > 0, {t}, {t})
        {t} * {t}[{i}]
        {t}.flip(0)
        {t}.detach()
        {t}.abs()
        {t}.roll({n})
        sum({ts}, {t})
        torch.stack([*{ts}, {t}]).mean(0)
        {o}.value
        {o}.doubled
        {d}.get({k}, {t})
        torch.full((3,), float({n}))
        torch.zeros_like({t})
        ({t} if {b} else {t})
        [{t}, {t}][{n} % 2]
        (lambda q: q * {n})({t})
        ({o} + {t}).value
        torch.cat([{t}[:1], {t}[1:]])
        {t} + len({ts})
        max({ts}, key=len, default={t})
        functools.reduce(operator.add, {ts}, {t})
        next(iter({d}.values()), {t})
        """
    ),
    "n": lines(
        r"""
        {n} + {n}
        {n} * 2 % 7
        {n} - 1
        len({ts})
        len({ns})
        len({d})
        len({s})
        {t}.shape[0]
        {o}.n
        {o}.bump()
        {o}.bump({n})
        sum({ns}) % 9
        max({n}, {n})
        abs({n})
        ({n} if {b} else {n})
        int({b})
        {n} // 3
        divmod({n}, 4)[1]
        min([*{ns}, {n}])
        {t}.dim()
        len({o})
        sum(z > 1 for z in {ns})
        {s}.find({k})
        {s}.count("a")
        hash({n}) % 5
        (lambda p, q={n}: p + q)({n}) % 13
        [*{ns}, 4][-1]
        {t}.numel()
        ord({k}[0]) % 6
        {n} & 3
        {n} ^ 1
        round({n} / 4)
        """
    ),
    "b": lines(
        r"""
        {n} > {n}
        {n} == 2
        {n} % 2 == 0
        not {b}
        {b} and {b}
        {b} or {b}
        bool({ts})
        {k} in {d}
        {n} in {ns}
        0 < {n} < 5
        {t}.requires_grad
        {s} == {s}
        {s}.startswith("a")
        isinstance({o}, Box)
        hasattr({o}, "value")
        any({ns})
        all(z < 4 for z in {ns})
        {t} is {t}
        {o} is {o}
        bool({o})
        {t}.dtype is torch.float32
        {ns} == {ns}
        callable({o})
        """
    ),
    "s": lines(
        r"""
        {k}
        f"{{{vn}}}"
        f"{{{vn}:>3}}{{{vs}!r}}"
        {s}[:3]
        {s}[::-1][:6]
        {k} + {k}
        "-".join([{k}, {k}])
        str({n})
        {s}.upper()[:8]
        ("x" if {b} else {s})
        "%s" % {n}
        "{{}}/{{}}".format({n}, {k})
        str({ns})[:9]
        {o}.kind
        type({o}).__name__
        repr(sorted({d}))[:9]
        f"{{tuple({vt}.shape)}}"
        """
    ),
    "ts": lines(
        r"""
        [{t}]
        [{t}, {t}]
        []
        {ts}[:2]
        [*{ts}[:2], {t}]
        [z * {n} for z in {ts}]
        list({d}.values())
        [z for z, w in zip({ts}, {ns}) if w > 1]
        list({t}.unbind())[:0]
        list(reversed({ts}))
        {ts}.copy()
        [z + w for w, z in enumerate({ts})]
        list(map(torch.neg, {ts}))
        """
    ),
    "ns": lines(
        r"""
        [{n}, {n}]
        list(range({n} % 4))
        {ns}[1:]
        [z + 1 for z in {ns}][:4]
        sorted({ns})
        [*{ns}, {n}][:5]
        []
        {ns}[::-1]
        [len(z) for z in {ts}]
        sorted({{*{ns}, {n}}})
        list(itertools.accumulate({ns}))[:4]
        [w for z in range(3) for w in (z, {n})][:4]
        """
    ),
    "d": lines(
        r"""
        {{{k}: {t}}}
        {{**{d}, {k}: {t}}}
        dict({d})
        {{z: w + {n} for z, w in {d}.items()}}
        {{}}
        dict(zip("abc", {ts}))
        {d}
        {{"a": {t}}}
        {d} | {d}
        """
    ),
    "o": lines(
        r"""
        {o}
        Box({t}, {n})
        Box({t})
        {o} + {o}
        copy.copy({o})
        """
    ),
    "k": lines(
        r"""
        'a'
        'b'
        'ab'
        ''.join(['a', 'c'])
        {k}
        """
    ),
    "i": lines(
        r"""
        0
        1
        -1
        {n} % 3
        """
    ),
}

# The default expression of a kind without a bound variable.
SIMPLEST = {
    "t": "torch.ones(3)",
    "n": "1",
    "b": "True",
    "s": "'a'",
    "ts": "[]",
    "ns": "[]",
    "d": "{}",
    "o": "Box(torch.ones(3))",
    "k": "'a'",
    "i": "0",
}

# Statements that can be captured.
ORDINARY = lines(
    r"""
    {T} += {t}
    {T} = {T} * {n}
    {T}.add_({n})
    {T}.mul_(0.5)
    {T}[{i}] = {n}
    {T}[1:] = {t}[1:]
    {T}[{t} > 0] = 0.5
    {N} += {n}
    {N} = ({N} * 3 + {n}) % 17
    {S} = ({S} + {k})[-9:]
    {TS}.append({t})
    {TS}.insert(0, {t})
    {TS}.reverse()
    {TS}.extend({ts}[:2])
    {TS}.clear()
    del {TS}[1:]
    {TS}[:1] = [{t}]
    {TS} += [{t}]
    {TS} = {TS}[-3:]
    {NS}.append({n})
    {NS}.sort()
    {NS}.extend([{n}, 2])
    {NS} *= 1
    {NS} = {NS}[-4:]
    {NS}.remove({NS}[0]) if {NS} else None
    {D}[{k}] = {t}
    {D}.update({{{k}: {t}}})
    {D}.pop({k}, None)
    {D}.setdefault({k}, {t})
    {D} |= {d}
    {D}.clear()
    {O}.value = {t}
    {O}.n += {n}
    {O}.bump()
    {O}.extra = {n}
    setattr({O}, "value", {t})
    {T}, {T} = {t}, {t}
    {N}, {N} = {n}, {n}
    {T}, *{TS} = [{t}, {t}, *{ts}[:1]]
    ({N}, {S}), {T} = ({n}, {s}), {t}
    print({n}, {s})
    print(f"{{{vn}}} {{{vs}!r}}", {ns})
    print({s}, end=";")
    print(sorted({d}), len({ts}))
    print([tuple(z.shape) for z in {ts}])
    print(*{ns}, sep="-")
    assert {n} < 90, {s}
    {TS}.append({TS}.pop()) if {TS} else None
    ({N} := {n})
    {O}.value.add_(1)
    [z.mul_(2) for z in {TS}]
    {NS}[:] = [{n}]
    pass
    """
)

# Statements that cut the graph.
BREAKING = lines(
    r"""
    print({t})
    {N} = int({t}.sum().item() * 4) % 5
    minidynamo.graph_break()
    {N} = len({t}.nonzero())
    {S} = str({t}.tolist())[:9]
    {T} = {T} + {t}.max().item()
    {N} = opaque({n})
    {NS}.append(int({t}[0] > 0))
    {T} = opaque({t})
    {TS}.append(opaque({t}))
    """
)

# Statements that raise, always or now and then.
RAISING = lines(
    r"""
    raise Oops({s})
    raise ValueError({n})
    {N} = {n} // ({n} % 2)
    {T} = {d}[{k}]
    {T} = {ts}[{n}]
    {TS}.pop()
    {N} = {ns}.index({n})
    {N} = int({s})
    {T} = {t} + torch.ones(2)
    {N} = {o}.missing
    raise Oops
    assert {b}, {s}
    {N} = next(iter({ns}))
    {T} = {t} + {s}
    raise KeyError({k}) from None
    {T} = {t}.view(2, 2)
    {N} = {n} + {s}
    {O}.n = {ns}[{n}]
    """
)
