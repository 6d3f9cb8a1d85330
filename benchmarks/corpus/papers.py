"""Programs of papers and their repositories: sampling, losses, attention, structured prediction, rendering.

Each program keeps the style of its authors, and none was chosen because a compiler captures it. The second call has
changed surroundings: another mode, another configuration, another state.
"""

import math
from collections import namedtuple

import torch
import torch.nn.functional as F
from torch import nn

from benchmarks.coverage_case import Corpus

programs = Corpus()

VOCABULARY = 11


class KeyValueCache:
    """Grows by a step at each call; layers find their part by number."""

    def __init__(self, limit=None):
        self.limit = limit
        self.key_cache, self.value_cache = [], []
        self._seen_tokens = 0

    def update(self, key, value, layer_idx):
        if layer_idx == 0:
            self._seen_tokens += key.shape[-2]
        if len(self.key_cache) <= layer_idx:
            self.key_cache.append(key)
            self.value_cache.append(value)
        else:
            self.key_cache[layer_idx] = torch.cat([self.key_cache[layer_idx], key], dim=-2)
            self.value_cache[layer_idx] = torch.cat([self.value_cache[layer_idx], value], dim=-2)
        if self.limit is not None:
            self.key_cache[layer_idx] = self.key_cache[layer_idx][..., -self.limit :, :]
            self.value_cache[layer_idx] = self.value_cache[layer_idx][..., -self.limit :, :]
        return self.key_cache[layer_idx], self.value_cache[layer_idx]

    def __len__(self):
        return len(self.key_cache)

    def __getitem__(self, layer_idx):
        if layer_idx < len(self):
            return self.key_cache[layer_idx], self.value_cache[layer_idx]
        raise KeyError(f"Cache only has {len(self)} layers, attempted to access layer with index {layer_idx}")

    def __iter__(self):
        for layer_idx in range(len(self)):
            yield self.key_cache[layer_idx], self.value_cache[layer_idx]

    def get_seq_length(self, layer_idx=0):
        if len(self.key_cache) <= layer_idx:
            return 0
        return self.key_cache[layer_idx].shape[-2]


class CachedAttention(nn.Module):
    def __init__(self, dim, heads, layer_idx):
        super().__init__()
        self.heads, self.layer_idx = heads, layer_idx
        self.qkv, self.out = nn.Linear(dim, 3 * dim), nn.Linear(dim, dim)

    def forward(self, x, past=None):
        b, t, d = x.shape
        q, k, v = (p.view(b, t, self.heads, -1).transpose(1, 2) for p in self.qkv(x).chunk(3, dim=-1))
        if past is not None:
            k, v = past.update(k, v, self.layer_idx)
        mask = torch.ones(t, k.shape[-2], dtype=torch.bool).tril(diagonal=k.shape[-2] - t)
        att = F.scaled_dot_product_attention(q, k, v, attn_mask=mask)
        return self.out(att.transpose(1, 2).reshape(b, t, d))


class Decoder(nn.Module):
    def __init__(self, dim=8, layers=2):
        super().__init__()
        self.embed = nn.Embedding(VOCABULARY, dim)
        self.layers = nn.ModuleList(CachedAttention(dim, 2, i) for i in range(layers))
        self.norm = nn.LayerNorm(dim)
        self.head = nn.Linear(dim, VOCABULARY, bias=False)

    def forward(self, ids, past=None):
        h = self.embed(ids)
        for layer in self.layers:
            h = h + layer(h, past=past)
        return self.head(self.norm(h))

    @torch.no_grad()
    def generate(self, ids, steps, past=None, eos=None):
        past = KeyValueCache() if past is None else past
        step_ids, done = ids, torch.zeros(ids.shape[0], dtype=torch.bool)
        for _ in range(steps):
            logits = self(step_ids, past=past)[:, -1]
            following = logits.argmax(-1)
            if eos is not None:
                following = torch.where(done, eos, following)
                done = done | (following == eos)
            step_ids = following[:, None]
            ids = torch.cat([ids, step_ids], dim=1)
        return ids, past


def tokens(length=3, batch=2):
    return torch.randint(0, VOCABULARY, (batch, length))


@programs(lambda: (Decoder(), tokens(), None), lambda: (Decoder().eval(), tokens(), 2))
def generate_with_a_cache(model, ids, eos):
    ids, past = model.generate(ids, 4, eos=eos)
    return ids, len(past), past.get_seq_length(), [k.sum() + v.sum() for k, v in past]


@programs(lambda: (Decoder(), tokens(), KeyValueCache()), lambda: (Decoder(), tokens(), KeyValueCache(limit=4)))
def generate_into_a_given_cache(model, ids, cache):
    out, same = model.generate(ids, 3, past=cache)
    try:
        cache[7]
    except KeyError as error:
        message = str(error)
    return out, same is cache, cache._seen_tokens, message


@programs(lambda: (Decoder(), tokens(batch=1), 3), lambda: (Decoder(), tokens(batch=1), 2))
@torch.no_grad()
def beam_search(model, ids, beams):
    sequences, scores = ids.repeat(beams, 1), torch.full((beams,), -1e9)
    scores[0] = 0.0
    for _ in range(3):
        log_probs = model(sequences)[:, -1].log_softmax(-1)
        candidates = (scores[:, None] + log_probs).view(-1)
        scores, index = candidates.topk(beams)
        beam = torch.div(index, VOCABULARY, rounding_mode="floor")
        token = index % VOCABULARY
        sequences = torch.cat([sequences[beam], token[:, None]], dim=-1)
    best = scores.argmax()
    return sequences[best], scores / sequences.shape[1] ** 0.6


Hypothesis = namedtuple("Hypothesis", ["score", "text"])


class BeamHypotheses:
    def __init__(self, num_beams, length_penalty=1.0):
        self.num_beams, self.length_penalty = num_beams, length_penalty
        self.beams = []

    def add(self, score, text):
        score = score / (len(text) ** self.length_penalty)
        if len(self.beams) < self.num_beams or score > min(b.score for b in self.beams):
            self.beams.append(Hypothesis(score, text))
            if len(self.beams) > self.num_beams:
                worst = min(range(len(self.beams)), key=lambda i: self.beams[i].score)
                del self.beams[worst]

    def best(self):
        return max(self.beams, key=lambda b: b.score)


@programs(lambda: (torch.randn(4), [-1.0, -3.0, -2.0]), lambda: (torch.randn(4), [-1.0, -0.5, -2.0, -0.1]))
def beam_hypotheses(x, scores):
    hypotheses = BeamHypotheses(2, length_penalty=0.8)
    for i, score in enumerate(scores):
        hypotheses.add(score, "token " * (i + 1))
    best = hypotheses.best()
    return x * best.score, best.text, [b.score for b in hypotheses.beams]


@programs(lambda: (Decoder(), Decoder(layers=1), tokens(batch=1)))
@torch.no_grad()
def speculative_step(target, draft, ids):
    """The draft proposes, the target keeps the longest agreeing start: as a mask, without a branch."""
    proposal = ids
    for _ in range(3):
        proposal = torch.cat([proposal, draft(proposal)[:, -1:].argmax(-1)], dim=1)
    checked = target(proposal)[:, ids.shape[1] - 1 :].argmax(-1)
    agrees = (checked[:, :-1] == proposal[:, ids.shape[1] :]).int().cumprod(-1)
    accepted = agrees.sum(-1)
    following = checked.gather(1, accepted[:, None])
    return proposal * 1, agrees, following


@programs(
    lambda: (torch.randn(4, 8, requires_grad=True), torch.randn(4, 8), 0.07),
    lambda: (torch.randn(4, 8, requires_grad=True), torch.randn(4, 8), 0.5),
)
def info_nce(a, b, temperature):
    a, b = F.normalize(a, dim=-1), F.normalize(b, dim=-1)
    logits = a @ b.t() / temperature
    target = torch.arange(logits.size(0), device=logits.device)
    return (F.cross_entropy(logits, target) + F.cross_entropy(logits.t(), target)) / 2


@programs(lambda: torch.randn(6, 5, requires_grad=True))
def nt_xent(z):
    n = z.shape[0] // 2
    sim = F.cosine_similarity(z[:, None], z[None], dim=-1) / 0.5
    sim = sim.masked_fill(torch.eye(2 * n, dtype=torch.bool), float("-inf"))
    positives = torch.cat([torch.arange(n, 2 * n), torch.arange(n)])
    return F.cross_entropy(sim, positives)


class DDIM:
    """A scheduler with a state: tables, and the requested timesteps."""

    def __init__(self, steps=100, beta=(1e-4, 0.02), prediction="epsilon"):
        self.betas = torch.linspace(*beta, steps)
        self.alphas_cumprod = torch.cumprod(1 - self.betas, dim=0)
        self.num_train_timesteps, self.prediction = steps, prediction
        self.timesteps = None

    def set_timesteps(self, count):
        ratio = self.num_train_timesteps // count
        self.timesteps = [i * ratio for i in reversed(range(count))]

    def step(self, out, t, sample, eta=0.0, noise=None):
        previous = t - self.num_train_timesteps // len(self.timesteps)
        alpha = self.alphas_cumprod[t]
        alpha_prev = self.alphas_cumprod[previous] if previous >= 0 else torch.tensor(1.0)
        if self.prediction == "epsilon":
            x0, eps = (sample - (1 - alpha).sqrt() * out) / alpha.sqrt(), out
        elif self.prediction == "v_prediction":
            x0 = alpha.sqrt() * sample - (1 - alpha).sqrt() * out
            eps = alpha.sqrt() * out + (1 - alpha).sqrt() * sample
        else:
            raise ValueError(f"unknown prediction {self.prediction!r}")
        x0 = x0.clamp(-1, 1)
        sigma = eta * ((1 - alpha_prev) / (1 - alpha) * (1 - alpha / alpha_prev)).sqrt()
        result = alpha_prev.sqrt() * x0 + (1 - alpha_prev - sigma**2).clamp(min=0).sqrt() * eps
        return result if noise is None else result + sigma * noise


@programs(
    lambda: (nn.Linear(4, 4), DDIM(), torch.randn(2, 4), 0.0),
    lambda: (nn.Linear(4, 4), DDIM(prediction="v_prediction"), torch.randn(2, 4), 1.0),
)
@torch.no_grad()
def ddim_sampling(model, scheduler, x, eta):
    scheduler.set_timesteps(4)
    for t in scheduler.timesteps:
        noise = torch.randn_like(x) if eta > 0 else None
        x = scheduler.step(model(x), t, x, eta=eta, noise=noise)
    return x, scheduler.timesteps


@programs(
    lambda: (nn.Linear(4, 4), torch.randn(2, 4), torch.randn(2, 4), 7.5),
    lambda: (nn.Linear(4, 4), torch.randn(2, 4), None, 1.0),
)
def classifier_free_guidance(model, x, condition, scale):
    if condition is None or scale == 1.0:
        return model(x)
    both = torch.cat([x, x + condition])
    unconditional, conditional = model(both).chunk(2)
    guided = unconditional + scale * (conditional - unconditional)
    std = conditional.std(dim=list(range(1, conditional.ndim)), keepdim=True)
    return 0.7 * guided * (std / guided.std(dim=1, keepdim=True)) + 0.3 * guided


class FiLM(nn.Module):
    def __init__(self, channels, cond):
        super().__init__()
        self.to_scale_shift = nn.Sequential(nn.SiLU(), nn.Linear(cond, channels * 2))
        self.norm = nn.GroupNorm(2, channels)

    def forward(self, x, cond):
        scale, shift = self.to_scale_shift(cond)[..., None, None].chunk(2, dim=1)
        return F.silu(self.norm(x) * (1 + scale) + shift)


class ConditionedUNet(nn.Module):
    def __init__(self, widths=(4, 8)):
        super().__init__()
        self.stem = nn.Conv2d(1, widths[0], 3, padding=1)
        self.down, self.up = nn.ModuleList(), nn.ModuleList()
        for a, b in zip(widths, widths[1:]):
            self.down.append(nn.ModuleList([FiLM(a, 6), nn.Conv2d(a, b, 4, 2, 1)]))
            self.up.insert(
                0, nn.ModuleList([nn.ConvTranspose2d(b, a, 4, 2, 1), FiLM(2 * a, 6), nn.Conv2d(2 * a, a, 1)])
            )
        self.labels = nn.Embedding(3, 6)
        self.out = nn.Conv2d(widths[0], 1, 1)

    def embed_time(self, t, dim=6, max_period=10000):
        half = dim // 2
        freqs = torch.exp(-math.log(max_period) * torch.arange(half, dtype=torch.float32) / half)
        args = t[:, None].float() * freqs[None]
        return torch.cat([args.cos(), args.sin()], dim=-1)

    def forward(self, x, t, label=None):
        cond = self.embed_time(t)
        if label is not None:
            cond = cond + self.labels(label)
        h, skips = self.stem(x), []
        for film, down in self.down:
            h = film(h, cond)
            skips.append(h)
            h = down(h)
        for up, film, reduce in self.up:
            h = reduce(film(torch.cat([up(h), skips.pop()], dim=1), cond))
        assert not skips
        return self.out(h)


@programs(
    lambda: (ConditionedUNet(), torch.randn(2, 1, 8, 8), torch.tensor([1, 5]), None),
    lambda: (ConditionedUNet(), torch.randn(2, 1, 8, 8), torch.tensor([1, 5]), torch.tensor([0, 2])),
)
def conditioned_u_net(model, x, t, label):
    return F.mse_loss(model(x, t, label), x)


@programs(lambda: (nn.Linear(3, 5), nn.Linear(5, 1), torch.randn(4, 3), torch.randn(4, 5)))
def gan_losses(generator, critic, noise, real):
    fake = generator(noise)
    d_real, d_fake = critic(real), critic(fake.detach())
    d_loss = F.binary_cross_entropy_with_logits(d_real, torch.ones_like(d_real)) + (
        F.binary_cross_entropy_with_logits(d_fake, torch.zeros_like(d_fake))
    )
    for p in critic.parameters():
        p.requires_grad_(False)
    g_loss = F.softplus(-critic(fake)).mean()
    for p in critic.parameters():
        p.requires_grad_(True)
    return d_loss, g_loss


Rollout = namedtuple("Rollout", "states actions log_probs returns advantages")


def rollout():
    return Rollout(torch.randn(6, 3), torch.randint(0, 2, (6,)), -torch.rand(6), torch.randn(6), torch.randn(6))


class Policy(nn.Module):
    def __init__(self):
        super().__init__()
        self.body, self.pi, self.v = nn.Linear(3, 8), nn.Linear(8, 2), nn.Linear(8, 1)

    def forward(self, s):
        h = torch.tanh(self.body(s))
        return torch.distributions.Categorical(logits=self.pi(h)), self.v(h).squeeze(-1)


@programs(
    lambda: (Policy(), rollout(), {"clip": 0.2, "vf": 0.5, "ent": 0.01}),
    lambda: (Policy(), rollout(), {"clip": 0.1, "vf": 0.5, "ent": 0.0, "target_kl": 0.01}),
)
def ppo_update(policy, batch, cfg):
    dist, values = policy(batch.states)
    log_ratio = dist.log_prob(batch.actions) - batch.log_probs
    ratio = log_ratio.exp()
    adv = (batch.advantages - batch.advantages.mean()) / (batch.advantages.std() + 1e-8)
    clip = cfg["clip"]
    policy_loss = -torch.min(ratio * adv, ratio.clamp(1 - clip, 1 + clip) * adv).mean()
    value_loss = F.mse_loss(values, batch.returns)
    loss = policy_loss + cfg["vf"] * value_loss
    if cfg["ent"]:
        loss = loss - cfg["ent"] * dist.entropy().mean()
    info = {"kl": ((ratio - 1) - log_ratio).mean().detach(), "clipped": ((ratio - 1).abs() > clip).float().mean()}
    if "target_kl" in cfg:
        info["over"] = info["kl"] > cfg["target_kl"]
    return loss, info


@programs(lambda: (torch.randn(5), torch.randn(6), torch.tensor([0, 0, 1, 0, 0.0])))
def gae(rewards, values, dones):
    advantages, last = torch.zeros_like(rewards), 0.0
    for t in reversed(range(rewards.shape[0])):
        alive = 1.0 - dones[t]
        delta = rewards[t] + 0.99 * values[t + 1] * alive - values[t]
        last = delta + 0.99 * 0.95 * alive * last
        advantages[t] = last
    return advantages, advantages + values[:-1]


class Router(nn.Module):
    def __init__(self, dim, experts, k, jitter=0.0):
        super().__init__()
        self.gate = nn.Linear(dim, experts, bias=False)
        self.k, self.jitter = k, jitter

    def forward(self, x):
        if self.training and self.jitter > 0:
            x = x * torch.empty_like(x).uniform_(1 - self.jitter, 1 + self.jitter)
        probs = self.gate(x).softmax(-1)
        weight, index = probs.topk(self.k, dim=-1)
        weight = weight / weight.sum(-1, keepdim=True)
        used = F.one_hot(index, probs.shape[-1]).sum(1).float().mean(0)
        return weight, index, (used * probs.mean(0)).sum() * probs.shape[-1]


class SwitchBlock(nn.Module):
    def __init__(self, dim=4, experts=3, k=2, jitter=0.0):
        super().__init__()
        self.router = Router(dim, experts, k, jitter)
        self.experts = nn.ModuleDict({f"expert_{i}": nn.Linear(dim, dim) for i in range(experts)})

    def forward(self, x):
        shape, x = x.shape, x.flatten(0, -2)
        weight, index, balance = self.router(x)
        out = torch.zeros_like(x)
        for i, expert in enumerate(self.experts.values()):
            share = (weight * (index == i)).sum(-1, keepdim=True)
            out = out + share * F.gelu(expert(x))
        return out.view(shape), balance


@programs(lambda: (SwitchBlock(), torch.randn(2, 3, 4)), lambda: (SwitchBlock(jitter=0.1, k=1), torch.randn(2, 3, 4)))
def routed_experts(block, x):
    out, balance = block(x)
    return out.sum() + 0.01 * balance, block.router.k


class LoRALinear(nn.Module):
    def __init__(self, base, rank=2, alpha=4, dropout=0.0):
        super().__init__()
        self.base, self.scaling = base, alpha / rank
        self.lora_A = nn.Parameter(torch.randn(rank, base.in_features) * 0.1)
        self.lora_B = nn.Parameter(torch.zeros(base.out_features, rank))
        self.dropout = nn.Dropout(dropout) if dropout else nn.Identity()
        self.merged = False
        base.weight.requires_grad_(False)

    def merge(self):
        if not self.merged:
            self.base.weight.data += self.scaling * self.lora_B @ self.lora_A
            self.merged = True

    def forward(self, x):
        out = self.base(x)
        return out if self.merged else out + self.dropout(x) @ self.lora_A.t() @ self.lora_B.t() * self.scaling


def adapted(dropout=0.0, merge=False):
    net = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 2))
    for name, child in list(net.named_children()):
        if isinstance(child, nn.Linear):
            setattr(net, name, LoRALinear(child, dropout=dropout))
            nn.init.normal_(getattr(net, name).lora_B)
    if merge:
        net[0].merge()
    return net


@programs(lambda: (adapted(), torch.randn(3, 4)), lambda: (adapted(0.5, merge=True), torch.randn(3, 4)))
def low_rank_adapters(net, x):
    trainable = [n for n, p in net.named_parameters() if p.requires_grad]
    return net(x).sum(), trainable, sum(m.merged for m in net.modules() if isinstance(m, LoRALinear))


@programs(lambda: (adapted(), torch.randn(3, 4)))
def merge_adapters(net, x):
    before = net(x)
    with torch.no_grad():
        for module in net.modules():
            if isinstance(module, LoRALinear):
                module.merge()
    return before.detach(), net(x)


class EMA:
    def __init__(self, model, decay=0.99, warmup=True):
        self.decay, self.warmup, self.updates = decay, warmup, 0
        self.shadow = {k: v.detach().clone() for k, v in model.state_dict().items()}

    @torch.no_grad()
    def update(self, model):
        self.updates += 1
        decay = min(self.decay, (1 + self.updates) / (10 + self.updates)) if self.warmup else self.decay
        for name, value in model.state_dict().items():
            if value.dtype.is_floating_point:
                self.shadow[name].lerp_(value, 1 - decay)
            else:
                self.shadow[name].copy_(value)


def with_ema(**options):
    model = nn.Sequential(nn.Linear(3, 3), nn.BatchNorm1d(3))
    return model, EMA(model, **options), torch.randn(4, 3)


@programs(lambda: with_ema(), lambda: with_ema(warmup=False))
def ema_object(model, ema, x):
    out = model(x)
    ema.update(model)
    ema.update(model)
    return out, ema.updates


@programs(
    lambda: (torch.randn(4, 5, requires_grad=True), torch.tensor([0, 1, 4, -100]), 0.1),
    lambda: (torch.randn(4, 5, requires_grad=True), torch.tensor([0, 1, 4, 2]), 0.0),
)
def label_smoothed_nll(logits, target, epsilon, ignore_index=-100):
    lprobs = logits.log_softmax(-1)
    target = target.unsqueeze(-1)
    pad = target.eq(ignore_index)
    nll = -lprobs.gather(-1, target.clamp(min=0)).masked_fill(pad, 0.0)
    smooth = -lprobs.sum(-1, keepdim=True).masked_fill_(pad, 0.0)
    eps_i = epsilon / (lprobs.size(-1) - 1)
    return (1.0 - epsilon - eps_i) * nll.sum() + eps_i * smooth.sum(), nll.sum()


@programs(
    lambda: (torch.randn(4, 1, 6, 6), torch.randint(0, 3, (4,)), "mixup"),
    lambda: (torch.randn(4, 1, 6, 6), torch.randint(0, 3, (4,)), "cutmix"),
)
def mixup_or_cutmix(x, y, kind):
    lam = 0.3
    index = torch.randperm(x.size(0))
    onehot = F.one_hot(y, 3).float()
    if kind == "mixup":
        x = lam * x + (1 - lam) * x[index]
    else:
        h, w = x.shape[-2:]
        cut = math.sqrt(1 - lam)
        ch, cw = int(h * cut), int(w * cut)
        top, left = h // 2 - ch // 2, w // 2 - cw // 2
        x = x.clone()
        x[:, :, top : top + ch, left : left + cw] = x[index][:, :, top : top + ch, left : left + cw]
        lam = 1 - ch * cw / (h * w)
    return x, lam * onehot + (1 - lam) * onehot[index]


class Rope(nn.Module):
    def __init__(self, dim, base=10000.0, scaling=None, interleaved=False):
        super().__init__()
        inv = 1.0 / (base ** (torch.arange(0, dim, 2).float() / dim))
        if scaling and scaling["type"] == "linear":
            inv = inv / scaling["factor"]
        self.register_buffer("inv_freq", inv, persistent=False)
        self.interleaved, self._cached_len, self._cache = interleaved, 0, None

    def tables(self, length):
        if length > self._cached_len:
            angles = torch.outer(torch.arange(length).float(), self.inv_freq)
            self._cache, self._cached_len = (angles.cos(), angles.sin()), length
        cos, sin = self._cache
        return cos[:length], sin[:length]

    def forward(self, x):
        cos, sin = self.tables(x.shape[-2])
        a, b = (x[..., ::2], x[..., 1::2]) if self.interleaved else x.chunk(2, dim=-1)
        rotated = (a * cos - b * sin, a * sin + b * cos)
        return torch.stack(rotated, dim=-1).flatten(-2) if self.interleaved else torch.cat(rotated, dim=-1)


@programs(
    lambda: (Rope(4), torch.randn(2, 5, 4)),
    lambda: (Rope(4, scaling={"type": "linear", "factor": 2}, interleaved=True), torch.randn(2, 6, 4)),
)
def rotary_variants(rope, x):
    return rope(x), rope(x[:, :3]), rope._cached_len


@programs(lambda: torch.randn(2, 3, 4))
def rotary_as_complex_numbers(x):
    freqs = torch.polar(torch.ones(3, 2), torch.outer(torch.arange(3.0), torch.tensor([1.0, 0.1])))
    as_complex = torch.view_as_complex(x.float().reshape(*x.shape[:-1], -1, 2))
    return torch.view_as_real(as_complex * freqs).flatten(-2).type_as(x)


def alibi_slopes(heads):
    def power_of_two(n):
        start = 2 ** (-(2 ** -(math.log2(n) - 3)))
        return [start * start**i for i in range(n)]

    if math.log2(heads).is_integer():
        return power_of_two(heads)
    closest = 2 ** math.floor(math.log2(heads))
    return power_of_two(closest) + alibi_slopes(2 * closest)[0::2][: heads - closest]


@programs(lambda: torch.randn(1, 4, 5, 5), lambda: torch.randn(1, 6, 5, 5))
def alibi_attention(scores):
    t = scores.shape[-1]
    distance = torch.arange(t)[None, :] - torch.arange(t)[:, None]
    bias = torch.tensor(alibi_slopes(scores.shape[1]))[:, None, None] * distance
    return (scores + bias).masked_fill(distance > 0, float("-inf")).softmax(-1)


@programs(lambda: (torch.randn(1, 2, 6, 4), 3), lambda: (torch.randn(1, 2, 6, 4), None))
def sliding_window_attention(q, window):
    t = q.shape[-2]
    i = torch.arange(t)
    mask = i[None, :] <= i[:, None]
    if window is not None:
        mask = mask & (i[:, None] - i[None, :] < window)
    scores = q @ q.mT / math.sqrt(q.shape[-1])
    return torch.where(mask, scores, torch.finfo(q.dtype).min).softmax(-1) @ q


@programs(lambda: (torch.randn(2, 5, 3, requires_grad=True), torch.rand(3, 4), torch.randn(2, 5, 4)))
def selective_scan(u, a, b):
    batch, length, dim = u.shape
    delta = F.softplus(u)
    da = torch.exp(torch.einsum("bld,dn->bldn", delta, -a))
    dbu = torch.einsum("bld,bln,bld->bldn", delta, b, u)
    state, ys = torch.zeros(batch, dim, a.shape[1]), []
    for t in range(length):
        state = da[:, t] * state + dbu[:, t]
        ys.append(torch.einsum("bdn,bn->bd", state, b[:, t]))
    return torch.stack(ys, dim=1) + u


class FakeQuant(nn.Module):
    def __init__(self, bits=8, momentum=0.1, per_channel=False):
        super().__init__()
        self.bits, self.momentum, self.per_channel = bits, momentum, per_channel
        self.observing = True
        self.register_buffer("low", torch.zeros(()))
        self.register_buffer("high", torch.ones(()))

    def forward(self, x):
        if self.training and self.observing:
            self.low += self.momentum * (x.detach().amin() - self.low)
            self.high += self.momentum * (x.detach().amax() - self.high)
        scale = ((self.high - self.low) / (2**self.bits - 1)).clamp(min=1e-8)
        zero = (-self.low / scale).round()
        q = (x / scale + zero).round().clamp(0, 2**self.bits - 1)
        return x + ((q - zero) * scale - x).detach()


def frozen_quantizer():
    quantizer = FakeQuant(bits=4)
    quantizer.observing = False
    return quantizer


@programs(
    lambda: (FakeQuant(), torch.randn(4, requires_grad=True)),
    lambda: (frozen_quantizer(), torch.randn(4, requires_grad=True)),
)
def quantization_aware(quantizer, x):
    return quantizer(quantizer(x) * 2)


@programs(lambda: (torch.randn(4, requires_grad=True),))
def torch_fake_quantize(x):
    return torch.fake_quantize_per_tensor_affine(x, 0.1, 0, -128, 127)


ANCHORS = {8: [(1.0, 2.0), (2.0, 1.0)], 16: [(4.0, 4.0), (3.0, 5.0)]}


@programs(lambda: {8: torch.randn(1, 2, 3, 3, 7), 16: torch.randn(1, 2, 2, 2, 7)})
def yolo_decode(outputs):
    decoded = []
    for stride, out in outputs.items():
        h, w = out.shape[2:4]
        gy, gx = torch.meshgrid(torch.arange(h), torch.arange(w), indexing="ij")
        grid = torch.stack((gx, gy), dim=-1).float()
        anchors = torch.tensor(ANCHORS[stride]).view(1, -1, 1, 1, 2)
        xy = (out[..., :2].sigmoid() * 2 - 0.5 + grid) * stride
        wh = (out[..., 2:4].sigmoid() * 2) ** 2 * anchors
        boxes = torch.cat([xy - wh / 2, xy + wh / 2], dim=-1)
        decoded.append(torch.cat([boxes, out[..., 4:].sigmoid()], dim=-1).view(1, -1, 7))
    merged = torch.cat(decoded, dim=1)
    score, label = (merged[..., 5:] * merged[..., 4:5]).max(-1)
    return merged[..., :4], score, label


def pairwise_iou(a, b):
    top_left = torch.max(a[:, None, :2], b[None, :, :2])
    bottom_right = torch.min(a[:, None, 2:], b[None, :, 2:])
    inter = (bottom_right - top_left).clamp(min=0).prod(-1)

    def area(boxes):
        return (boxes[:, 2:] - boxes[:, :2]).prod(-1)

    return inter / (area(a)[:, None] + area(b)[None] - inter)


@programs(lambda: (torch.rand(6, 2), torch.rand(6)))
def matrix_suppression(corner, scores):
    """NMS without a branch: a box is dropped if a better remaining box overlaps."""
    boxes = torch.cat([corner, corner + 0.5], dim=-1)
    scores, order = scores.sort(descending=True)
    iou = pairwise_iou(boxes[order], boxes[order]).triu(1)
    keep = torch.ones_like(scores)
    for i in range(len(scores)):
        keep = torch.where((iou[i] > 0.5) & (keep[i] > 0), torch.zeros_like(keep), keep)
    return scores * keep, order
