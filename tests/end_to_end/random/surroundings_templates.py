"""Owns the parts of random programs with surroundings: a module text, expressions, statements, changes.

Draws nothing; `random_surroundings.py` does. The letters are those of `python_templates.py`, and `{se}` for a set of
ints, `{tu}` for a pair of a tensor and an int, `{q}` for a `Derived`, `{c}` for a `Config`, `{e}` for a `Color`.
"""

from __future__ import annotations

from tests.end_to_end.random.python_templates import BREAKING, EXPRESSIONS, ORDINARY, RAISING, SIMPLEST, lines

# The module that a program lives in: each run has a fresh module.
MODULE = """
G = 3
GT = torch.arange(3.0)
GL = [1, 2]
GD = {"a": torch.ones(3)}
GS = {1, 2}
FLAG = True
STACK = []


class Base:
    factor = 2
    count = 0
    registry = []

    def __init__(self, t, n=1):
        self.t = t
        self.n = n
        self.log = []

    def __getattr__(self, name):
        if name.startswith("dyn"):
            return len(name)
        raise AttributeError(name)

    @property
    def size(self):
        return self.n * self.factor

    @size.setter
    def size(self, value):
        self.log.append(value)
        self.n = value % 7

    @classmethod
    def make(cls, t):
        cls.count += 1
        return cls(t, cls.count)

    @staticmethod
    def twice(t):
        return t * 2

    def step(self, t, *rest, scale=1, **options):
        self.n = (self.n + 1) % 5
        return t * scale + len(rest) + len(options)

    def __call__(self, t):
        return self.step(t, scale=self.factor)

    def __getitem__(self, key):
        return self.log[key] if isinstance(key, slice) else self.t * key

    def __setitem__(self, key, value):
        self.log += [key]
        self.t = value

    def __contains__(self, item):
        return item == self.n

    def __iter__(self):
        yield self.t
        for z in self.log[:2]:
            yield self.t + z

    def __eq__(self, other):
        return isinstance(other, Base) and self.n == other.n

    def __hash__(self):
        return hash(self.n)

    def __lt__(self, other):
        return self.n < other.n

    def __bool__(self):
        return self.n != 2

    def __iadd__(self, other):
        self.n = (self.n + other) % 6
        return self

    def __mul__(self, other):
        return type(self)(self.t * other, self.n)

    __rmul__ = __mul__

    def __repr__(self):
        return f"{type(self).__name__}({self.n})"

    def __format__(self, spec):
        return f"<{self.n:{spec or 'd'}}>"

    def __enter__(self):
        STACK.append(self.n)
        return self

    def __exit__(self, kind, error, traceback):
        STACK.append(kind and kind.__name__)
        return kind is KeyError


class Counted:
    def __set_name__(self, owner, name):
        self.name = "_" + name

    def __get__(self, obj, owner=None):
        if obj is None:
            return self
        return obj.__dict__.get(self.name, 4)

    def __set__(self, obj, value):
        obj.__dict__[self.name] = value + 1


class Derived(Base):
    factor = 3
    level = Counted()

    def __init__(self, t, n=1):
        super().__init__(t, n)
        self.extra = {"n": n}

    def step(self, t, *rest, scale=1, **options):
        t = super().step(t, *rest, scale=scale, **options)
        return t + self.n

    def __len__(self):
        return len(self.log)


class Slotted:
    __slots__ = ("x", "y")

    def __init__(self, x, y=0):
        self.x, self.y = x, y


@dataclasses.dataclass
class Config:
    t: Any
    steps: int = 2
    tags: list = dataclasses.field(default_factory=list)
    limit: ClassVar[int] = 5

    def __post_init__(self):
        if self.steps > 9:
            self.steps = self.steps % 9


class Pair(NamedTuple):
    first: Any
    second: int = 0

    def total(self):
        return self.first + self.second


class Color(enum.Enum):
    RED = 1
    BLUE = 2

    @property
    def weight(self):
        return self.value * 2


class Registry(dict):
    def __missing__(self, key):
        self[key] = len(self)
        return self[key]

    def __setitem__(self, key, value):
        super().__setitem__(key, value)
        STACK.append(key)


class Items(list):
    def append(self, item):
        super().append(item)
        self.last = item


class Net(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.weight = torch.nn.Parameter(torch.ones(3))
        self.register_buffer("seen", torch.zeros(()))
        self.inner = torch.nn.Linear(3, 3)
        self.scale = 2
        with torch.no_grad():
            self.inner.weight.copy_(torch.eye(3))

    def forward(self, t, n=1):
        if self.training:
            self.seen += 1
            t = t * self.scale
        return self.inner(t * self.weight) + n


def helper(t, n=1, *rest, scale=1, **options):
    return t * scale + n + len(rest) + sum(options.values())


def remember(t, seen=[]):
    seen.append(len(seen) % 3)
    return t + seen[-1]


def deco(fn):
    @functools.wraps(fn)
    def wrapper(*args, **kwargs):
        global G
        G = (G + 1) % 9
        return fn(*args, **kwargs)

    return wrapper


@deco
def decorated(t, n=2):
    return t - n


def counter(n):
    def up(by=1):
        nonlocal n
        n = (n + by) % 7
        return n

    return up


def talk(t):
    total = t
    try:
        for _ in range(3):
            got = yield total
            if got is not None:
                total = total + got
    except ValueError:
        yield total * 2
    STACK.append("talked")


@contextlib.contextmanager
def pushed(n):
    STACK.append(n)
    try:
        yield n
    except KeyError:
        STACK.append("key")
        raise
    finally:
        STACK.append(-n)


def factorial(n):
    return 1 if n <= 1 else n * factorial(n - 1)


GO = Derived(torch.ones(3), 2)
GN = Net()
GC = Config(torch.zeros(3))
GR = Registry()
GI = Items([torch.ones(3)])
UP = counter(1)
"""

# Values compared after each call, besides the arguments and the result.
OBSERVED = {
    **{name: name for name in ("G", "GT", "GL", "GD", "GS", "GO.__dict__", "GN", "GC", "GR", "GI", "STACK", "FLAG")},
    **{
        name: name
        for name in ("GI.last", "Base.count", "Base.registry", "Base.factor", "UP.__closure__[0].cell_contents")
    },
    "remember": "remember.__defaults__",
    "counts": "vars(Derived).get('count')",
    "grad mode": "torch.is_grad_enabled()",
}

NEW_EXPRESSIONS: dict[str, list[str]] = {
    "t": lines(
        r"""
        GT
        GT * G
        {q}.t
        {q}({t})
        {q}[{n}]
        {q}.step({t}, {n}, scale={n})
        {q}.step({t}, *{ns}, **{{"z": {n}}})
        Derived.twice({t})
        ({n} * {q}).t
        next(iter({q}))
        sum([*{q}])
        {tu}[0]
        {c}.t
        helper({t}, *{ns}[:3])
        helper({t}, {n}, scale={n}, k={n})
        helper(n={n}, t={t})
        helper(**dict(t={t}, n={n}))
        remember({t})
        decorated({t})
        GN({t})
        GN({t}, {n})
        GD.get({k}, {t})
        GI[-1]
        Pair({t}, {n}).total()
        (lambda *a, **k: a[0] * len(k))({t}, z={n})
        functools.partial(helper, n={n})({t})
        [z for z in talk({t})][-1]
        torch.stack([z * w for z, w in itertools.product([{t}, {t}], ({n}, 2))]).sum(0)
        {t} if (z := {n}) > 2 else {t} * z
        {t}[[2, 0, 1]]
        {t}[..., None].squeeze(-1)
        torch.einsum("i,i->i", {t}, {t})
        {t}.softmax(0)
        {t}.view(1, 3).expand(2, 3)[0]
        {t}.clamp(-2, 2).requires_grad_(False) if not {t}.requires_grad else {t}
        max([{t}, {t}], key=lambda z: z.shape[0])
        copy.deepcopy({q}).t
        dataclasses.replace({c}, t={t}).t
        {ts}.pop() if {ts} else {t}
        torch.stack({ts} or [{t}])[0]
        {{**{d}, "z": {t}}}["z"]
        collections.deque([{t}, {t}], maxlen=1)[0]
        collections.OrderedDict({d}).get({k}, {t})
        getattr({q}, "t")
        operator.attrgetter("t")({q})
        torch.nn.functional.dropout({t}, 0.5, training=False)
        torch.nn.functional.layer_norm({t}, (3,))
        {t}.new_tensor([{n}, 1, 2])
        torch.tensor([{n}, {n}, G], dtype={t}.dtype)
        {t}.to(torch.float64).float()
        {t}.index_select(0, torch.tensor([2, 1, 0]))
        torch.lerp({t}, {t}, 0.5)
        {t}.sort(descending=True).values
        """
    ),
    "n": lines(
        r"""
        G
        G + len(GL)
        {q}.n
        {q}.size
        {q}.dynamic
        {q}.level
        {q}.factor
        Base.count
        Derived.make({t}).n
        {c}.steps
        {c}.limit
        Config.limit
        {e}.value
        {e}.weight
        {tu}[1]
        len({se})
        max({se}, default=0)
        sum({se}) % 11
        UP()
        UP({n})
        factorial({n} % 5) % 13
        len(STACK) % 5
        GR[{k}]
        len({q})
        [*{q}.log, 0][0]
        sum(1 for z in {q}) % 7
        {s}.index({k}[0]) if {k}[0] in {s} else {n}
        next((z for z in {ns} if z > {n}), 0)
        functools.reduce(lambda p, w: p + w, {ns}, {n}) % 9
        [z for y in ({ns}, {se}) for z in sorted(y)][-1:].count({n})
        {n} if {se} <= {se} else {n}
        len({{z % 3: w for w, z in enumerate({ns})}})
        collections.Counter({s})["a"]
        int("{{:d}}".format({n} % 10))
        sorted({ns}, key=lambda z: -z)[:1].count({n})
        len([*zip({ns}, {s}, {ts})])
        (lambda: G)()
        -{n} % 5
        2 ** ({n} % 3)
        {ns}.index({n}) if {n} in {ns} else -1
        ({n}, {n})[{b}]
        getattr({q}, "missing", {n})
        int({q} == {q})
        id({t}) == id({t})
        GN.scale
        int(GN.training)
        len(list(GN.parameters()))
        hash({e}) == hash(Color.RED)
        Slotted({n}).x
        """
    ),
    "b": lines(
        r"""
        FLAG
        {n} in {q}
        bool({q})
        {q} < {q}
        {q} == {q}
        {n} in {se}
        {se} <= {se}
        {se}.isdisjoint({ns})
        {e} is Color.RED
        {e} in (Color.BLUE,)
        {tu}[1] > 1
        isinstance({q}, (Base, Config))
        issubclass(type({q}), Derived)
        hasattr({q}, "dynx")
        hasattr({q}, "extra")
        GN.training
        torch.is_grad_enabled()
        {n} < {n} <= 4 != {n}
        {k} in GD
        {c}.steps == {n}
        {c} is GC
        {ts} is {ts}
        any(z in {se} for z in {ns})
        {s} in ("a", "ab")
        {s} < {s}
        {s}.isalpha()
        "n" in {q}.__dict__
        not not {ts}
        type({q}) is Derived
        callable({q})
        """
    ),
    "s": lines(
        r"""
        repr({q})[:9]
        f"{{{vn}:03d}}|{{{vs}!s:>4}}"[:9]
        f"{{GO:2d}}"
        f"{{G=}}"
        {e}.name
        str({e})
        str({c}.tags)[:9]
        ",".join(map(str, {ns}))[:7]
        {s}.replace({k}, "c")
        {s}.strip("b").title()
        {s}.ljust(4, ".")[:6]
        {s}.partition("a")[2]
        "".join(sorted({s}))
        "".join(reversed({s}))
        {s}.encode().hex()[:6]
        str(sorted({se}))[:9]
        str({ns} + [{n}])[:8]
        "%03d-%s" % ({n}, {k})
        {s} or {k}
        type({q}).__name__
        {q}.step.__name__
        helper.__name__
        str(Pair(1, {n}))
        repr({e})
        format({n}, "b")[:5]
        {s}.split("a")[-1]
        max({s}, {k})
        """
    ),
    "ts": lines(
        r"""
        [*{q}]
        [z for z in {q}]
        GI
        [*GI, {t}]
        [{tu}[0], {c}.t]
        list(itertools.islice(talk({t}), 2))
        [z for z in ({t}, {t}) if {b}]
        [w for z in [{ts}, {ts}] for w in z][:4]
        [({t} + z) for z in sorted({se})][:3]
        list(dict.fromkeys({ts}))
        [{t}] * 2
        sorted({ts}, key=lambda z: z.dim())
        list(filter(torch.is_tensor, [{t}, {n}, {t}]))
        [(lambda z=z: z * 2)() for z in {ts}]
        list({d}.values())
        """
    ),
    "ns": lines(
        r"""
        GL
        GL[:]
        [*GL, {n}]
        sorted({se})
        [z for z in {ns} if z not in {se}]
        [y for y in range({n} % 5) if y % 2][:4]
        [[w + z for w in range(2)] for z in range(3)][{n} % 3]
        list({{z: 0 for z in {ns}}})
        [len(z) for z in ({s}, {ns})]
        [z for z, _ in itertools.groupby({ns})]
        list(map(lambda z, w: z + w, {ns}, {ns}))[:4]
        {ns} + {ns}[:2]
        [*range({n} % 6, 0, -2)]
        list(collections.deque({ns}, 3))
        [UP() for _ in range(2)]
        sorted({ns}, reverse=True)[:4]
        [ord(z) % 5 for z in {s}][:4]
        list({ns}[i] for i in range(len({ns})))
        """
    ),
    "se": lines(
        r"""
        GS
        {{*{ns}, {n}}}
        {{{n}, {n}}}
        {se} | {se}
        {se} & {{1, 2, 3}}
        {se} - {{{n}}}
        {se} ^ {{{n}}}
        {{z % 4 for z in {ns}}}
        set({ns})
        set()
        {se}.union({ns})
        """
    ),
    "tu": lines(
        r"""
        ({t}, {n})
        Pair({t}, {n})
        Pair({t})
        {tu}
        (*[{t}], {n})
        Pair({t}, {n})._replace(second={n})
        {tu}[:1] + ({n},)
        """
    ),
    "q": lines(
        r"""
        GO
        Derived({t}, {n})
        {q}
        {q} * {n}
        Derived.make({t})
        copy.copy({q})
        """
    ),
    "c": lines(
        r"""
        GC
        Config({t}, {n})
        Config(t={t}, tags=[{n}])
        {c}
        dataclasses.replace({c}, steps={n})
        """
    ),
    "e": lines(
        r"""
        Color.RED
        Color.BLUE
        Color({n} % 2 + 1)
        Color["RED"]
        {e}
        """
    ),
    "d": lines(
        r"""
        GD
        {{z: {t} for z in {s}[:2]}}
        {{z: w for z, w in {d}.items() if z != {k}}}
        dict(a={t}, b={t})
        {{k: v for k, v in zip(("a", "b"), {ts})}}
        collections.OrderedDict(a={t})
        dict(sorted({d}.items()))
        """
    ),
}
EXPRESSIONS_HERE = {kind: [*EXPRESSIONS.get(kind, []), *more] for kind, more in NEW_EXPRESSIONS.items()}
EXPRESSIONS_HERE |= {kind: found for kind, found in EXPRESSIONS.items() if kind not in EXPRESSIONS_HERE}

SIMPLEST_HERE = {**SIMPLEST, "se": "set()", "tu": "(torch.ones(3), 1)", "q": "GO", "c": "GC", "e": "Color.RED"}

NEW_ORDINARY = lines(
    r"""
    GL.append({n} % 5)
    GL.sort()
    GL[:] = GL[-3:]
    GD[{k}] = {t}
    GD.pop({k}, None)
    GD.update({d})
    GS.add({n} % 5)
    GS.discard({n})
    GS |= {se}
    GT.add_({n} % 3)
    GT.mul_(0.5)
    GO.n = {n} % 5
    GO.t = {t}
    GO.size = {n}
    GO.level = {n} % 9
    GO.log.append({n})
    GO.log.clear()
    GO.extra[{k}] = {n}
    GO.fresh = {t}
    GO[{k}] = {t}
    GO.__dict__["n"] = {n} % 4
    Base.count = {n} % 5
    Base.registry.append({n} % 5)
    Base.factor = {n} % 3
    GC.t = {t}
    GC.steps += 1
    GC.tags.append({n})
    GI.append({t})
    GR[{k}] = {n}
    GR.setdefault({k}, {n})
    GN.scale = {n} % 3
    GN.seen += {n}
    GN.seen.zero_()
    STACK.append({n})
    STACK[:] = STACK[-3:]
    {Q}.n += {n}
    {Q} += {n}
    {Q}.size += 1
    {Q}.log.extend({ns}[:2])
    {Q}[{n}] = {t}
    {Q}.t = {t}
    {Q}.t.add_(1)
    setattr({Q}, {k}, {n})
    vars({Q})["n"] = {n} % 4
    {C}.steps = {n} % 7
    {C}.tags += [{n}]
    {SE}.add({n})
    {SE} |= {{{n}}}
    {SE}.update({ns})
    {SE}.discard({n})
    {SE} -= {se}
    {T}, {N} = {tu}
    *{TS}, {T} = [*{ts}, {t}]
    {N}, *{NS} = [{n}, *{ns}]
    ({T}, ({N}, {S})), *_rest = [({t}, ({n}, {s})), 1]
    for {N} in {ns}[:2]: pass
    for {T} in {q}: pass
    for _i, ({T}, {N}) in enumerate([{tu}, ({t}, _i if False else 2)]): STACK.append(_i)
    {NS}.insert({n} % 3, {n})
    {NS}[::2] = [0] * len({NS}[::2])
    {NS}[-1:] = [{n}, 1]
    del {NS}[:1]
    {D} = {{**{d}, {k}: {t}}}
    {TS}.sort(key=lambda z: z.shape[0])
    {TS}[0:0] = [{t}, {t}]
    {T}[{t} > {n}] += 1
    {T}[::2] *= 2
    {T}[:2] = {t}[1:]
    {T}.copy_({t})
    {T}.data.mul_(2)
    {T}.sub_({t}.detach()).abs_()
    torch.add({t}, 1, out={T}) if not {T}.requires_grad and torch.is_grad_enabled() is False else None
    [GL.append(z) for z in {ns}[:2]]
    print(GO, f"{{GO:>3}}", GC.steps)
    print({q}, {e}, {se} == {se})
    print(GL, sorted(GD), G)
    assert FLAG or {b}, "flag"
    if (_m := {n}) > 2: {N} = _m
    {N} = UP({n}) + UP()
    {T} = _w(1) if (_w := lambda z: {t} * z) else {t}
    """
)

# Statements with blocks in a single line, or writes to globals, which the program declares.
NEW_RAISING = lines(
    r"""
    {N} = GL[{n} + 2]
    {T} = GD[{k}]
    GO.nothing
    {N} = GR[[]]
    {C}.steps = {C}.steps // ({n} % 2)
    Color({n})
    helper()
    helper({t}, wrong)
    {N}, {N} = {ns}
    del GO.fresh
    del GD[{k}]
    GS.remove({n})
    [].pop()
    Pair()
    {T} = GO.step()
    raise StopIteration
    raise Oops from ValueError({n})
    {TS}.remove({t})
    {T} = GN({t}, {s})
    next(talk({t})).nope
    {S} = {s} + {n}
    {N} = len({n})
    {T} = {t} @ torch.ones(2, 2)
    """
)

NEW_BREAKING = lines(
    r"""
    print(GT)
    STACK.append(int({t}.sum().item()) % 5)
    GO.n = opaque({n}) % 5
    GL.append(opaque({n}) % 5)
    GD[{k}] = opaque({t})
    GI.append(opaque({t}))
    {Q}.t = opaque({t})
    {N} = UP(opaque({n}))
    {T} = GN(opaque({t}))
    {T} = next(z for z in {ts} + [{t}] if z.sum() > -99)
    {NS} = sorted({ns}, key=opaque)
    {T} = helper(opaque({t}), *{ns}[:2], scale=opaque({n}))
    {TS} = [opaque(z) for z in {ts}]
    with GO: {T} = opaque({t})
    """
)

ORDINARY_HERE = [*ORDINARY, *NEW_ORDINARY, *NEW_ORDINARY]
RAISING_HERE = [*RAISING, *NEW_RAISING]
BREAKING_HERE = [*BREAKING, *NEW_BREAKING]

# Changes of the module between two calls.
CHANGES = lines(
    r"""
    G += 1
    G = 0
    G = 2.5
    GT.add_(1)
    GT = torch.ones(3) * 2
    GT = torch.ones(3, requires_grad=True) * 1
    GT = torch.arange(3)
    GL.append(4)
    GL = [0]
    GL.clear()
    GL = (3, 4)
    GD["b"] = torch.zeros(3)
    GD.pop("a", None)
    GD = {"ab": GT}
    GS.add(7)
    GS = frozenset({1})
    FLAG = not FLAG
    GO.n = 3
    GO.extra = {"k": 1}
    GO.__dict__.pop("extra", None)
    GO = Derived(torch.zeros(3), 4)
    GO.__class__ = Base
    GO.step = lambda t, *rest, scale=1, **options: t + 7
    GO.log = [5, 6]
    GO.t = GT
    GO.dynamic = 1
    Base.factor = 4
    Derived.factor = 5
    Derived.__len__ = lambda self: 3
    Base.__bool__ = lambda self: True
    Base.__eq__ = lambda self, other: False
    Base.__contains__ = lambda self, item: False
    Base.twice = staticmethod(lambda t: t * 3)
    Base.step = lambda self, t, *rest, scale=1, **options: t * scale * 5
    Derived.size = 6
    Derived.level = 8
    Base.__getattr__ = lambda self, name: 9
    Base.__iter__ = lambda self: iter([self.t])
    Base.__exit__ = lambda self, *args: True
    Base.registry = [9]
    Derived.count = 3
    GC.steps = 4
    GC = Config(torch.ones(3), 3, [1])
    Config.limit = 6
    Config.steps = 7
    GI.append(torch.zeros(3))
    GI = [torch.ones(3)]
    GR = Registry(a=4)
    GR = {"a": 1, "b": 2, "ab": 3, "ac": 4}
    GN.eval()
    GN.train()
    GN.scale = 5
    GN = Net()
    GN.inner = torch.nn.Identity()
    GN.weight.requires_grad_(False)
    GN.weight = torch.nn.Parameter(torch.zeros(3))
    GN.register_forward_hook(lambda m, a, out: out * 2)
    GN.register_forward_pre_hook(lambda m, a: (a[0] + 1, *a[1:]))
    GN.inner.register_forward_hook(lambda m, a, out: out - 1)
    GN.forward = lambda t, n=1: t * n
    GN.seen.add_(5)
    Net.forward = lambda self, t, n=1: t - n
    helper.__defaults__ = (5,)
    helper.__kwdefaults__ = {"scale": 3}
    helper.__code__ = (lambda t, n=1, *rest, scale=1, **options: t * 9).__code__
    helper = lambda t, n=1, *rest, scale=1, **options: t * 0.5
    remember.__defaults__[0].clear()
    decorated = helper
    UP = counter(3)
    UP(2)
    UP.__defaults__ = (2,)
    factorial = lambda n: n
    talk = lambda t: iter([t, t])
    STACK.clear()
    STACK = [1]
    Color = enum.Enum("Color", ["BLUE", "RED"])
    Pair.total = lambda self: self.first
    len = lambda z: 2
    opaque = lambda z: z * 2
    torch.set_grad_enabled(False)
    torch.set_grad_enabled(True)
    pass
    pass
    """
)
