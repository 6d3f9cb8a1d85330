"""Programs about training: losses, schedules, gradient clipping, averaging, optimizers by hand, custom functions.

Each program keeps the style of its authors, and none was chosen because a compiler captures it.
"""

import math
import random

import torch
import torch.nn.functional as F
from torch import nn

from benchmarks.coverage_case import Corpus, leaf, matrix

programs = Corpus()


def net():
    return nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 3))


def batch():
    return net(), torch.randn(5, 4), torch.randint(0, 3, (5,))


def with_grads(model):
    for p in model.parameters():
        p.grad = torch.randn_like(p)
    return model


@programs(batch)
def classification_loss(model, x, y):
    logits = model(x)
    loss = F.cross_entropy(logits, y)
    accuracy = (logits.argmax(-1) == y).float().mean()
    return loss, {"accuracy": accuracy}


@programs(batch)
def loss_module(model, x, y):
    criterion = nn.CrossEntropyLoss(label_smoothing=0.1)
    return criterion(model(x), y)


@programs(batch)
def regularized_loss(model, x, y):
    loss = F.cross_entropy(model(x), y)
    l1 = sum(p.abs().sum() for p in model.parameters())
    return loss + 1e-3 * l1


@programs(lambda: (with_grads(net()),))
def clip_gradients(model):
    return torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)


@programs(lambda: (with_grads(net()),))
def clip_gradient_values(model):
    torch.nn.utils.clip_grad_value_(model.parameters(), 0.5)
    return [p.grad for p in model.parameters()]


@programs(lambda: (with_grads(net()),))
def gradient_norm_by_hand(model):
    return torch.sqrt(sum(p.grad.pow(2).sum() for p in model.parameters() if p.grad is not None))


@programs(lambda: (with_grads(net()), 0.1), lambda: (with_grads(net()), 0.01))
def sgd_by_hand(model, lr):
    with torch.no_grad():
        for p in model.parameters():
            p -= lr * p.grad
            p.grad.zero_()
    return [p.sum() for p in model.parameters()]


@programs(lambda: (with_grads(net()),))
def set_grads_to_none(model):
    for p in model.parameters():
        p.grad = None
    return torch.ones(1)


@programs(lambda: (net(), net()))
def exponential_moving_average(model, ema):
    with torch.no_grad():
        for p, q in zip(model.parameters(), ema.parameters()):
            q.mul_(0.99).add_(p, alpha=0.01)
    return [q.mean() for q in ema.parameters()]


@programs(lambda: (net(), net()))
def ema_through_state_dicts(model, ema):
    state = model.state_dict()
    for name, value in ema.state_dict().items():
        value.copy_(value * 0.9 + state[name] * 0.1)
    return ema(torch.ones(1, 4))


@programs(lambda: (net(), net()))
def copy_parameters_through_data(model, target):
    for p, q in zip(model.parameters(), target.parameters()):
        q.data.copy_(p.data)
    return target(torch.ones(1, 4))


def optimizer_of(kind, **options):
    def make():
        model = with_grads(net())
        return kind(model.parameters(), **options), model

    return make


@programs(optimizer_of(torch.optim.SGD, lr=0.1, momentum=0.9))
def sgd_step(optimizer, model):
    optimizer.step()
    return [p.sum() for p in model.parameters()]


@programs(optimizer_of(torch.optim.AdamW, lr=0.1))
def adamw_step(optimizer, model):
    optimizer.step()
    return [p.sum() for p in model.parameters()]


@programs(optimizer_of(torch.optim.Adam, lr=0.1, foreach=False))
def adam_step_single_tensor(optimizer, model):
    optimizer.step()
    return [p.sum() for p in model.parameters()]


@programs(optimizer_of(torch.optim.RMSprop, lr=0.1))
def rmsprop_step(optimizer, model):
    optimizer.step()
    return [p.sum() for p in model.parameters()]


@programs(optimizer_of(torch.optim.SGD, lr=0.1))
def optimizer_zero_grad(optimizer, model):
    optimizer.zero_grad()
    return [p.grad is None for p in model.parameters()], torch.ones(1)


@programs(optimizer_of(torch.optim.SGD, lr=0.1))
def learning_rate_of_groups(optimizer, model):
    for group in optimizer.param_groups:
        group["lr"] *= 0.5
    return torch.ones(1) * optimizer.param_groups[0]["lr"]


@programs(lambda: (torch.randn(4), 10), lambda: (torch.randn(4), 20))
def cosine_schedule(x, step):
    warmup, total, base = 5, 100, 1e-3
    if step < warmup:
        lr = base * step / warmup
    else:
        lr = base * 0.5 * (1 + math.cos(math.pi * (step - warmup) / (total - warmup)))
    return x * lr


class Square(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return x * x

    @staticmethod
    def backward(ctx, grad):
        (x,) = ctx.saved_tensors
        return 2 * x * grad


@programs(leaf)
def custom_function(x):
    return Square.apply(x)


class RoundSTE(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, levels):
        ctx.levels = levels
        return (x * levels).round() / levels

    @staticmethod
    def backward(ctx, grad):
        return grad, None


@programs(leaf)
def straight_through_rounding(x):
    return RoundSTE.apply(x, 4).sum()


class GradientReversal(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, alpha):
        ctx.alpha = alpha
        return x.view_as(x)

    @staticmethod
    def backward(ctx, grad):
        return grad.neg() * ctx.alpha, None


@programs(leaf)
def gradient_reversal(x):
    return GradientReversal.apply(x, 0.5) * 2


@programs(matrix)
def mixup(x):
    lam = 0.3
    index = torch.randperm(x.size(0))
    return lam * x + (1 - lam) * x[index], index


@programs(matrix)
def cutout(x):
    mask = torch.ones_like(x)
    mask[0:2, 1:3] = 0
    return x * mask


@programs(matrix)
def gaussian_noise(x):
    return x + 0.1 * torch.randn_like(x)


@programs(matrix)
def random_augmentation(x):
    random.seed(0)
    if random.random() < 0.5:
        x = x.flip(-1)
    scale = random.uniform(0.9, 1.1)
    return x * scale


@programs(lambda: (torch.randn(4, 8), torch.randn(4, 8)))
def contrastive_loss(a, b):
    a, b = F.normalize(a, dim=-1), F.normalize(b, dim=-1)
    logits = a @ b.t() / 0.07
    labels = torch.arange(logits.size(0), device=logits.device)
    return (F.cross_entropy(logits, labels) + F.cross_entropy(logits.t(), labels)) / 2


@programs(lambda: (torch.randn(4, 3), torch.randn(4, 3)))
def distillation_loss(student, teacher):
    t = 2.0
    soft = F.kl_div(F.log_softmax(student / t, -1), F.softmax(teacher.detach() / t, -1), reduction="batchmean")
    return soft * t * t


@programs(lambda: (torch.randn(2, 5, 10), torch.randint(0, 10, (2, 5))))
def language_model_loss(logits, labels):
    shift_logits = logits[..., :-1, :].contiguous()
    shift_labels = labels[..., 1:].contiguous()
    return F.cross_entropy(shift_logits.view(-1, shift_logits.size(-1)), shift_labels.view(-1), ignore_index=-100)


@programs(lambda: (torch.rand(2, 1, 4, 4), torch.randint(0, 2, (2, 1, 4, 4)).float()))
def dice_loss(pred, target):
    inter = (pred * target).flatten(1).sum(1)
    union = pred.flatten(1).sum(1) + target.flatten(1).sum(1)
    return 1 - ((2 * inter + 1) / (union + 1)).mean()


@programs(lambda: (torch.randn(6, 3), torch.randint(0, 3, (6,))))
def focal_loss(logits, target):
    ce = F.cross_entropy(logits, target, reduction="none")
    p = torch.exp(-ce)
    return ((1 - p) ** 2 * ce).mean()


@programs(lambda: (torch.randn(4, 2), torch.randn(4, 2)))
def variational_loss(mu, logvar):
    std = torch.exp(0.5 * logvar)
    z = mu + torch.randn_like(std) * std
    kld = -0.5 * torch.sum(1 + logvar - mu.pow(2) - logvar.exp())
    return z, kld


@programs(lambda: (torch.randn(4), torch.randn(4), torch.randn(4)))
def ppo_loss(new, old, advantage):
    ratio = (new - old).exp()
    clipped = ratio.clamp(0.8, 1.2)
    return -torch.min(ratio * advantage, clipped * advantage).mean()


@programs(lambda: (torch.randn(5), torch.randn(6)))
def generalized_advantages(rewards, values):
    out = []
    last = torch.zeros(())
    for t in reversed(range(len(rewards))):
        delta = rewards[t] + 0.99 * values[t + 1] - values[t]
        last = delta + 0.99 * 0.95 * last
        out.insert(0, last)
    return torch.stack(out)


@programs(lambda: (torch.randn(5),))
def discounted_returns(rewards):
    returns, running = [], 0
    for r in rewards.flip(0):
        running = r + 0.9 * running
        returns.append(running)
    return torch.stack(returns[::-1])


@programs(lambda: (net(), torch.randn(5, 4)))
def consistency_under_dropout(model, x):
    a = F.dropout(model(x), 0.1)
    with torch.no_grad():
        b = model(x)
    return F.mse_loss(a, b)


@programs(batch)
def gradient_accumulation_scaling(model, x, y):
    losses = []
    for xb, yb in zip(x.split(2), y.split(2)):
        losses.append(F.cross_entropy(model(xb), yb) / 3)
    return torch.stack(losses).sum()


@programs(batch)
def metrics_in_a_dictionary(model, x, y):
    logs = {}
    out = model(x)
    logs["loss"] = F.cross_entropy(out, y)
    logs["norm"] = out.detach().norm()
    for k in list(logs):
        logs[f"train/{k}"] = logs.pop(k)
    return logs


class AverageMeter:
    def __init__(self):
        self.sum, self.count = 0.0, 0

    def update(self, value, n=1):
        self.sum += value * n
        self.count += n

    @property
    def average(self):
        return self.sum / max(self.count, 1)


@programs(batch)
def average_meter(model, x, y):
    meter = AverageMeter()
    for xb in x.split(2):
        meter.update(model(xb).mean(), xb.shape[0])
    return meter.average


@programs(batch)
def autocast_training(model, x, y):
    with torch.autocast(device_type="cpu", dtype=torch.bfloat16):
        loss = F.cross_entropy(model(x), y)
    return loss


@programs(lambda: (torch.randn(3, 4), torch.ones(3, 4, dtype=torch.bool)))
def masked_mean(x, mask):
    x = x.masked_fill(~mask, 0.0)
    return x.sum(-1) / mask.sum(-1).clamp(min=1)


@programs(lambda: (torch.randn(4, 3), torch.randint(0, 3, (4,))))
def top_k_accuracy(logits, target):
    _, pred = logits.topk(2, 1, True, True)
    correct = pred.t().eq(target.view(1, -1).expand_as(pred.t()))
    return [correct[:k].reshape(-1).float().sum(0) * (100.0 / target.size(0)) for k in (1, 2)]


@programs(lambda: (torch.randint(0, 3, (10,)), torch.randint(0, 3, (10,))))
def confusion_matrix(pred, target):
    return torch.bincount(target * 3 + pred, minlength=9).view(3, 3)


@programs(lambda: (torch.randn(2, 4, requires_grad=True),))
def gradient_penalty(x):
    y = (x**3).sum()
    g = torch.autograd.grad(y, x, create_graph=True)[0]
    return ((g.norm(2, dim=1) - 1) ** 2).mean()


@programs(lambda: (net(), torch.randn(5, 4)))
def vmap_over_a_batch(model, x):
    return torch.vmap(lambda t: model(t) * 2)(x)


@programs(lambda: (torch.randn(4),))
def functional_gradient(x):
    return torch.func.grad(lambda t: (t**2).sum())(x)


@programs(lambda: (net(), torch.randn(5, 4), torch.randint(0, 3, (5,))))
def per_sample_gradients(model, x, y):
    params = dict(model.named_parameters())

    def loss(p, xi, yi):
        return F.cross_entropy(torch.func.functional_call(model, p, (xi[None],)), yi[None])

    return torch.func.vmap(torch.func.grad(loss), in_dims=(None, 0, 0))(params, x, y)


@programs(lambda: (torch.randn(3),))
def jacobian(x):
    return torch.func.jacrev(lambda t: t.sin() * t.sum())(x)


@programs(lambda: (nn.Linear(4, 4), torch.randn(2, 4)))
def lora(layer, x):
    a = torch.full((4, 2), 0.1)
    b = torch.full((2, 4), 0.2)
    return layer(x) + (x @ a @ b) * (16 / 2)


@programs(lambda: ([torch.randn(2, 3), torch.randn(4)],))
def flatten_parameters(params):
    flat = torch.cat([p.reshape(-1) for p in params])
    out, offset = [], 0
    for p in params:
        n = p.numel()
        out.append(flat[offset : offset + n].view_as(p))
        offset += n
    return out


@programs(lambda: (torch.randn(2, 3, requires_grad=True),))
def hooks_on_inputs(x):
    x.register_hook(lambda g: g.clamp(-0.1, 0.1))
    return (x * 3).sum()


@programs(lambda: ([torch.randn(3) for _ in range(2)], [torch.randn(3) for _ in range(2)]))
def adam_by_hand(params, grads):
    out = []
    for p, g in zip(params, grads):
        m = 0.1 * g
        v = 0.001 * g * g
        mhat, vhat = m / (1 - 0.9**1), v / (1 - 0.999**1)
        out.append(p - 1e-3 * mhat / (vhat.sqrt() + 1e-8))
    return out


@programs(lambda: (torch.randn(6, 2), torch.randn(3, 2)))
def k_means_step(points, centers):
    assignment = torch.cdist(points, centers).argmin(1)
    onehot = F.one_hot(assignment, 3).to(points.dtype)
    counts = onehot.sum(0).clamp(min=1)
    return onehot.t() @ points / counts[:, None]


@programs(lambda: (torch.randn(3, 3),))
def power_iteration(a):
    v = torch.ones(3)
    for _ in range(5):
        v = a @ v
        v = v / v.norm()
    return v


@programs(lambda: (torch.randn(4, 4),))
def newton_schulz(g):
    a, b, c = (3.4445, -4.7750, 2.0315)
    x = g.bfloat16()
    x = x / (x.norm() + 1e-7)
    for _ in range(3):
        m = x @ x.T
        x = a * x + (b * m + c * m @ m) @ x
    return x.to(g.dtype)


@programs(lambda: (torch.randn(2, 3), {"teacher": 0.5, "task": 0.5}), lambda: (torch.randn(2, 3), {"teacher": 1.0}))
def weighted_losses(x, weights):
    losses = {"teacher": x.mean(), "task": x.pow(2).mean()}
    return sum(weights[k] * v for k, v in losses.items() if k in weights)


class EarlyStopping:
    def __init__(self, patience=2):
        self.patience = patience
        self.best = math.inf
        self.bad = 0

    def step(self, value):
        if value < self.best:
            self.best, self.bad = value, 0
        else:
            self.bad += 1
        return self.bad >= self.patience


@programs(lambda: (EarlyStopping(), torch.randn(3), 1.0), lambda: (EarlyStopping(), torch.randn(3), 0.5))
def early_stopping(stopper, x, loss):
    return x + 1, stopper.step(loss), stopper.step(loss), stopper.step(loss)


@programs(lambda: (torch.randn(2, 3, 4, 4),))
def normalize_images(x):
    mean = torch.tensor([0.485, 0.456, 0.406]).view(1, 3, 1, 1)
    std = torch.tensor([0.229, 0.224, 0.225]).view(-1, 1, 1)
    return (x - mean).div_(std)


@programs(batch)
def backward_inside(model, x, y):
    loss = F.cross_entropy(model(x), y)
    loss.backward()
    return loss.detach()


@programs(lambda: (nn.Linear(4, 3, bias=False), torch.randn(2, 4)))
def weight_standardization(layer, x):
    w = layer.weight
    w = (w - w.mean(dim=1, keepdim=True)) / (w.std(dim=1, keepdim=True) + 1e-5)
    return F.linear(x, w, layer.bias)


@programs(lambda: (net(), torch.randn(5, 4)))
def profiled(model, x):
    with torch.profiler.record_function("forward"):
        return model(x)
