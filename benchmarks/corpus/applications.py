"""Programs of the Python around models: tokenizers, configurations, registries, transforms, trainers, buffers.

Each program keeps the style of its authors, and none was chosen because a compiler captures it. The second call has
changed surroundings.
"""

import abc
import contextlib
import enum
import functools
import math
import re
import string
from collections import Counter, OrderedDict, defaultdict, deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields, replace
from typing import Any, ClassVar, Generic, NamedTuple, Protocol, TypedDict, TypeVar, runtime_checkable

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from benchmarks.coverage_case import Corpus

programs = Corpus()


class SimpleTokenizer:
    PATTERN = re.compile(r"\w+|[^\w\s]")

    def __init__(self, texts, specials=("<pad>", "<unk>")):
        words = Counter(w for text in texts for w in self.split(text))
        self.vocab = {w: i for i, w in enumerate([*specials, *(w for w, _ in words.most_common())])}
        self.inverse = {i: w for w, i in self.vocab.items()}

    @classmethod
    def split(cls, text):
        return cls.PATTERN.findall(text.lower().strip())

    def __call__(self, texts, padding=True, max_length=None):
        rows = [[self.vocab.get(w, self.vocab["<unk>"]) for w in self.split(t)][:max_length] for t in texts]
        width = max(map(len, rows))
        if padding:
            rows = [row + [self.vocab["<pad>"]] * (width - len(row)) for row in rows]
        ids = torch.tensor(rows)
        return {"input_ids": ids, "attention_mask": (ids != 0).long()}

    def decode(self, ids):
        return " ".join(self.inverse[i] for i in ids if i > 1).capitalize() + "."


TEXTS = ["The cat sat.", "A dog, a cat!"]


@programs(
    lambda: (SimpleTokenizer(TEXTS), nn.Embedding(10, 3), TEXTS),
    lambda: (SimpleTokenizer(TEXTS), nn.Embedding(10, 3), ["The bird", "sat, a cat"]),
)
def tokenize_and_embed(tokenizer, embedding, texts):
    batch = tokenizer(texts, max_length=4)
    hidden = embedding(batch["input_ids"]) * batch["attention_mask"].unsqueeze(-1)
    return hidden.sum(1) / batch["attention_mask"].sum(1, keepdim=True), tokenizer.decode([2, 3, 0])


@programs(lambda: (torch.ones(2), "lowest newest"), lambda: (torch.ones(2), "widest widest low"))
def byte_pair_merges(x, text):
    words = Counter(text.split())
    pieces = {w: tuple(w) + ("</w>",) for w in words}
    merges = []
    for _ in range(3):
        pairs = defaultdict(int)
        for w, parts in pieces.items():
            for pair in zip(parts, parts[1:]):
                pairs[pair] += words[w]
        best = max(pairs, key=lambda p: (pairs[p], p))
        merges.append(best)
        for w, parts in pieces.items():
            joined, i = [], 0
            while i < len(parts):
                if parts[i : i + 2] == best:
                    joined.append("".join(best))
                    i += 2
                else:
                    joined.append(parts[i])
                    i += 1
            pieces[w] = tuple(joined)
    return x * len(merges), ["".join(m) for m in merges], sorted(pieces.values())


@dataclass
class OptimConfig:
    lr: float = 1e-3
    betas: tuple[float, float] = (0.9, 0.999)


@dataclass
class TrainConfig:
    name: str = "base"
    hidden: int = 4
    optim: OptimConfig = field(default_factory=OptimConfig)
    tags: list[str] = field(default_factory=list)
    VERSION: ClassVar[int] = 2

    def __post_init__(self):
        if self.hidden <= 0:
            raise ValueError("hidden must be positive")
        self.tags = [t.upper() for t in self.tags]

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]):
        known = {f.name for f in fields(cls)}
        kwargs = {k: v for k, v in values.items() if k in known}
        if isinstance(kwargs.get("optim"), Mapping):
            kwargs["optim"] = OptimConfig(**kwargs["optim"])
        return cls(**kwargs)


@programs(
    lambda: (torch.ones(2), {"hidden": 3, "optim": {"lr": 0.1}, "extra": 1}),
    lambda: (torch.ones(2), {"hidden": 0, "tags": ["a"]}),
)
def dataclass_configuration(x, values):
    try:
        config = TrainConfig.from_dict(values)
    except ValueError as error:
        config = replace(TrainConfig(), name=str(error))
    return x * config.optim.lr * config.hidden, asdict(config), config


REGISTRY: dict[str, Callable[..., Tensor]] = {}


def register(name=None):
    def decorate(fn):
        key = name or fn.__name__
        if key in REGISTRY:
            raise KeyError(f"{key} registered twice")
        REGISTRY[key] = fn
        return fn

    return decorate


@register()
def square_loss(a, b):
    return ((a - b) ** 2).mean()


@register("huber")
def _huber(a, b, delta=1.0):
    return F.huber_loss(a, b, delta=delta)


def build(cfg):
    cfg = dict(cfg)
    kind = cfg.pop("type")
    if kind not in REGISTRY:
        raise KeyError(f"{kind} is not in the registry: {', '.join(sorted(REGISTRY))}")
    return functools.partial(REGISTRY[kind], **cfg)


@programs(lambda: (torch.randn(3), {"type": "huber", "delta": 0.5}), lambda: (torch.randn(3), {"type": "square_loss"}))
def built_from_a_registry(x, cfg):
    try:
        build({"type": "nothing"})
    except KeyError as error:
        message = error.args[0]
    return build(cfg)(x, x * 2), cfg, message


@programs(lambda: torch.randn(3))
def registered_inside(x):
    handlers = {}

    def on(event):
        def decorate(fn):
            handlers.setdefault(event, []).append(fn)
            return fn

        return decorate

    @on("start")
    def first(value):
        return value + 1

    @on("start")
    def second(value):
        return value * 2

    for handler in handlers["start"]:
        x = handler(x)
    return x, [h.__name__ for h in handlers["start"]]


class ShapeMixin:
    @property
    def size_text(self):
        return "x".join(map(str, self.data.shape))


class ScaleMixin:
    factor = 2

    def scaled(self):
        return type(self)(self.data * self.factor)


class Batch(ShapeMixin, ScaleMixin):
    def __init__(self, data):
        self.data = data


@programs(lambda: Batch(torch.randn(2, 3)), lambda: Batch(torch.randn(3, 2)))
def mixins(batch):
    out = batch.scaled().scaled()
    return out, out.size_text, [c.__name__ for c in type(out).__mro__]


class Transform(abc.ABC):
    @abc.abstractmethod
    def apply(self, x): ...

    def __call__(self, x):
        return self.apply(x)

    def __or__(self, other):
        return Compose([self, other])


class Compose(Transform):
    def __init__(self, parts: Sequence[Transform]):
        self.parts = list(parts)

    def apply(self, x):
        return functools.reduce(lambda value, part: part(value), self.parts, x)

    def __or__(self, other):
        return Compose([*self.parts, other])


class Normalize(Transform):
    def __init__(self, mean, std):
        self.mean, self.std = mean, std

    def apply(self, x):
        return (x - self.mean) / self.std


class Flip(Transform):
    def apply(self, x):
        return x.flip(-1)


@programs(lambda: (torch.randn(3), 0.5), lambda: (torch.randn(3), 0.25))
def abstract_transforms(x, mean):
    pipeline = Normalize(mean, 0.5) | Flip() | Normalize(0, 2.0)
    try:
        Transform()
    except TypeError:
        refused = True
    return pipeline(x), len(pipeline.parts), refused, isinstance(pipeline, Transform)


@runtime_checkable
class HasLoss(Protocol):
    def loss(self, x: Tensor) -> Tensor: ...


class WithLoss:
    def loss(self, x):
        return x.pow(2).sum()


@programs(lambda: (torch.randn(3), WithLoss()), lambda: (torch.randn(3), object()))
def checked_by_protocol(x, thing):
    return thing.loss(x) if isinstance(thing, HasLoss) else x.sum()


class Sample(NamedTuple):
    image: Tensor
    label: int = 0
    weight: float = 1.0

    @property
    def weighted(self):
        return self.image * self.weight

    @staticmethod
    def collate(samples):
        images, labels, weights = zip(*samples)
        return Sample(torch.stack(images), list(labels), sum(weights))


@programs(
    lambda: [Sample(torch.randn(2), i) for i in range(3)], lambda: [Sample(torch.randn(2), i, 0.5) for i in range(2)]
)
def collate_named_tuples(samples):
    batch = Sample.collate(samples)
    return batch.weighted, batch._replace(label=7), batch._asdict()["label"], Sample._fields


class Options(TypedDict, total=False):
    scale: float
    name: str


@programs(lambda: (torch.ones(2), {"scale": 2.0}), lambda: (torch.ones(2), {"name": "x"}))
def typed_dictionary(x, options: Options):
    merged = Options(scale=1.0, name="default") | options
    return x * merged["scale"], merged


class Renderer:
    @functools.singledispatchmethod
    def render(self, value):
        raise NotImplementedError(type(value).__name__)

    @render.register
    def _(self, value: int):
        return torch.full((2,), float(value))

    @render.register(list)
    def _(self, value):
        return sum(self.render(v) for v in value)

    @render.register
    def _(self, value: Tensor):
        return value[:2]


@programs(lambda: (Renderer(), torch.randn(4), 3), lambda: (Renderer(), torch.randn(4), [1, 2]))
def dispatched_methods(renderer, x, value):
    try:
        renderer.render("text")
    except NotImplementedError as error:
        name = str(error)
    return renderer.render(x) + renderer.render(value), name


class Scope:
    stack: ClassVar[list["Scope"]] = []

    def __init__(self, name, **values):
        self.name, self.values = name, values

    def __enter__(self):
        Scope.stack.append(self)
        return self

    def __exit__(self, kind, error, trace):
        Scope.stack.pop()
        return kind is not None and issubclass(kind, LookupError)

    @classmethod
    def get(cls, key, default=None):
        for scope in reversed(cls.stack):
            if key in scope.values:
                return scope.values[key]
        return default


@programs(lambda: (torch.ones(2), "scale"), lambda: (torch.ones(2), "missing"))
def context_with_a_stack(x, key):
    with Scope("outer", scale=2.0), Scope("inner", shift=1.0) as inner:
        y = x * Scope.get(key, 1.0) + Scope.get("shift")
        names = "/".join(s.name for s in Scope.stack)
    with Scope("quiet"):
        raise KeyError(key)
    return y, names, inner.values, len(Scope.stack)


@contextlib.contextmanager
def evaluating(module):
    was = module.training
    module.eval()
    try:
        yield module
    finally:
        module.train(was)


@programs(lambda: (nn.Dropout(0.5), torch.ones(4)), lambda: (nn.Dropout(0.5).eval(), torch.ones(4)))
def evaluate_inside(module, x):
    with evaluating(module) as m:
        y = m(x)
    return y, module.training


def rearrange(x, pattern, **sizes):
    """The part of einops that fits a page: groups in parentheses, on both sides."""

    def parse(side):
        groups, current = [], None
        for token in re.findall(r"\(|\)|[a-z0-9]+", side):
            if token == "(":
                current = []
            elif token == ")":
                groups.append(current)
                current = None
            elif current is not None:
                current.append(token)
            else:
                groups.append([token])
        return groups

    left, right = (parse(side) for side in pattern.split("->"))
    assert len(left) == x.ndim, f"{pattern!r} has {len(left)} dimensions, the tensor {x.ndim}"
    known = dict(sizes)
    for group, size in zip(left, x.shape):
        missing = [name for name in group if name not in known]
        product = math.prod(known[name] for name in group if name in known)
        if missing:
            (name,) = missing
            known[name] = size // product
    names = [name for group in left for name in group]
    x = x.reshape([known[name] for name in names])
    x = x.permute([names.index(name) for group in right for name in group])
    return x.reshape([math.prod(known[name] for name in group) for group in right])


@programs(lambda: torch.randn(2, 3, 8), lambda: torch.randn(3, 2, 4))
def einops_in_python(x):
    heads = rearrange(x, "b t (h d) -> b h t d", h=2)
    try:
        rearrange(x, "a b -> b a")
    except AssertionError as error:
        message = str(error)
    return rearrange(heads, "b h t d -> (b t) (h d)"), heads.shape, message


class Stage(enum.Enum):
    WARMUP = "warmup"
    MAIN = "main"

    @classmethod
    def of(cls, step):
        return cls.WARMUP if step < 3 else cls.MAIN

    @property
    def factor(self):
        return {Stage.WARMUP: 0.1, Stage.MAIN: 1.0}[self]


class Trainer:
    def __init__(self, model, callbacks=()):
        self.model, self.callbacks, self.step_count = model, list(callbacks), 0
        self.history = deque(maxlen=2)
        self.logs = defaultdict(list)

    def emit(self, event, **payload):
        for callback in self.callbacks:
            getattr(callback, f"on_{event}", lambda *a, **k: None)(self, **payload)

    def train_step(self, x, y):
        self.emit("step_start", step=self.step_count)
        loss = F.mse_loss(self.model(x), y) * Stage.of(self.step_count).factor
        self.step_count += 1
        self.history.append(loss.detach())
        self.emit("step_end", loss=loss)
        return loss


class LossLogger:
    def on_step_end(self, trainer, loss):
        trainer.logs["loss"].append(loss.detach())


def trainer(steps=0, callbacks=True):
    made = Trainer(nn.Linear(2, 1), [LossLogger()] if callbacks else [])
    made.step_count = steps
    return made, torch.randn(3, 2), torch.randn(3, 1)


@programs(lambda: trainer(), lambda: trainer(5, callbacks=False))
def trainer_with_callbacks(trainer, x, y):
    loss = trainer.train_step(x, y) + trainer.train_step(x, y)
    return loss, len(trainer.history), dict(trainer.logs)


T = TypeVar("T")


class ReplayBuffer(Generic[T]):
    def __init__(self, capacity: int):
        self.capacity, self.items, self.position = capacity, [], 0

    def push(self, item: T) -> None:
        if len(self.items) < self.capacity:
            self.items.append(None)
        self.items[self.position] = item
        self.position = (self.position + 1) % self.capacity

    def latest(self, n: int) -> list[T]:
        return [self.items[(self.position - 1 - i) % len(self.items)] for i in range(min(n, len(self)))]

    def __len__(self) -> int:
        return len(self.items)


def filled(n):
    buffer = ReplayBuffer[Tensor](3)
    for i in range(n):
        buffer.push(torch.full((2,), float(i)))
    return buffer, torch.randn(2)


@programs(lambda: filled(1), lambda: filled(4))
def replay_buffer(buffer, x):
    buffer.push(x)
    return torch.stack(buffer.latest(2)).mean(0), len(buffer), buffer.position


@programs(
    lambda: (OrderedDict(a=torch.ones(2), b={"c": [torch.zeros(2), 3, "text"]}),),
    lambda: (OrderedDict(b=(torch.ones(1), None)),),
)
def apply_to_collection(batch):
    def move(value):
        if isinstance(value, Tensor):
            return value.to(torch.float64)
        if isinstance(value, Mapping):
            return type(value)((k, move(v)) for k, v in value.items())
        if isinstance(value, Iterable) and not isinstance(value, str):
            return type(value)(move(v) for v in value)
        return value

    return move(batch)


@programs(lambda: (torch.randn(2, 3), "{name}: {value:>8.3f} [{bar:-<5}]"))
def report_lines(x, template):
    rows = [template.format(name=n, value=i / 3, bar="#" * i) for i, n in enumerate(string.ascii_lowercase[:3])]
    return x * 2, "\n".join(rows), f"{x.shape[0]:03d}|{x.shape!r}|{x.dtype}|{len(rows):>4}"


class Lazy(nn.Module):
    """Creates its layer at the first call, from the shape of the argument."""

    def __init__(self, out):
        super().__init__()
        self.out, self.layer = out, None

    def forward(self, x):
        if self.layer is None:
            self.layer = nn.Linear(x.shape[-1], self.out, bias=False)
            nn.init.constant_(self.layer.weight, 0.5)
        return self.layer(x)


@programs(lambda: (Lazy(2), torch.randn(3)), lambda: (Lazy(2), torch.randn(4)))
def layer_made_in_forward(lazy, x):
    return lazy(x) + lazy(x), [n for n, _ in lazy.named_parameters()]
