"""Programs of papers on structured prediction, graphs, density and rendering.

Each program keeps the style of its authors, and none was chosen because a compiler captures it. The second call has
changed surroundings.
"""

import functools
import inspect
import math

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from benchmarks.coverage_case import Corpus

programs = Corpus()


class CRF(nn.Module):
    def __init__(self, tags):
        super().__init__()
        self.transitions = nn.Parameter(torch.randn(tags, tags))
        self.start, self.end = nn.Parameter(torch.randn(tags)), nn.Parameter(torch.randn(tags))

    def score(self, emissions, tags, mask):
        seq, batch = tags.shape
        rows = torch.arange(batch)
        score = self.start[tags[0]] + emissions[0, rows, tags[0]]
        for i in range(1, seq):
            score = score + (self.transitions[tags[i - 1], tags[i]] + emissions[i, rows, tags[i]]) * mask[i]
        last = mask.long().sum(0) - 1
        return score + self.end[tags[last, rows]]

    def partition(self, emissions, mask):
        score = self.start + emissions[0]
        for i in range(1, emissions.shape[0]):
            following = torch.logsumexp(score[:, :, None] + self.transitions + emissions[i][:, None], dim=1)
            score = torch.where(mask[i].unsqueeze(1).bool(), following, score)
        return torch.logsumexp(score + self.end, dim=1)

    def forward(self, emissions, tags, mask):
        return (self.partition(emissions, mask) - self.score(emissions, tags, mask)).mean()

    def viterbi(self, emissions):
        score, history = self.start + emissions[0], []
        for emission in emissions[1:]:
            best, index = (score.unsqueeze(2) + self.transitions + emission.unsqueeze(1)).max(dim=1)
            score = best
            history.append(index)
        path = [(score + self.end).argmax(-1)]
        for index in reversed(history):
            path.append(index.gather(1, path[-1][:, None])[:, 0])
        return torch.stack(path[::-1])


def crf_inputs(mask):
    return CRF(3), torch.randn(4, 2, 3), torch.randint(0, 3, (4, 2)), torch.tensor(mask, dtype=torch.float)


@programs(lambda: crf_inputs([[1, 1], [1, 1], [1, 0], [1, 0]]), lambda: crf_inputs([[1, 1], [1, 1], [1, 1], [1, 0]]))
def conditional_random_field(crf, emissions, tags, mask):
    return crf(emissions, tags, mask), crf.viterbi(emissions)


@programs(lambda: (torch.randn(6, 2, 5, requires_grad=True), torch.tensor([[1, 2], [3, 3]]), torch.tensor([6, 5])))
def ctc_training(logits, targets, lengths):
    loss = F.ctc_loss(logits.log_softmax(-1), targets, lengths, torch.tensor([2, 2]), zero_infinity=True)
    return loss, logits.argmax(-1)


@programs(lambda: torch.randn(5, 4, requires_grad=True))
def ctc_by_hand(logits, target=(1, 2)):
    log_probs = logits.log_softmax(-1)
    labels = [0]
    for t in target:
        labels += [t, 0]
    alpha = [log_probs[0, 0], log_probs[0, labels[1]]] + [torch.tensor(-1e9)] * (len(labels) - 2)
    for t in range(1, log_probs.shape[0]):
        following = []
        for s, label in enumerate(labels):
            terms = [alpha[s]]
            if s > 0:
                terms.append(alpha[s - 1])
            if s > 1 and label != 0 and label != labels[s - 2]:
                terms.append(alpha[s - 2])
            following.append(torch.logsumexp(torch.stack(terms), 0) + log_probs[t, label])
        alpha = following
    return -torch.logaddexp(alpha[-1], alpha[-2])


class SkipGram(nn.Module):
    def __init__(self, words=9, dim=4):
        super().__init__()
        self.center, self.context = nn.Embedding(words, dim), nn.Embedding(words, dim)
        self.register_buffer("weights", torch.rand(words))

    def forward(self, center, context, negatives=3):
        noise = torch.multinomial(self.weights, center.numel() * negatives, replacement=True).view(-1, negatives)
        v = self.center(center)
        positive = F.logsigmoid((v * self.context(context)).sum(-1))
        negative = F.logsigmoid(-torch.bmm(self.context(noise), v.unsqueeze(-1)).squeeze(-1)).sum(-1)
        return -(positive + negative).mean()


@programs(
    lambda: (SkipGram(), torch.randint(0, 9, (5,)), torch.randint(0, 9, (5,)), 3),
    lambda: (SkipGram(), torch.randint(0, 9, (5,)), torch.randint(0, 9, (5,)), 2),
)
def negative_sampling(model, center, context, negatives):
    return model(center, context, negatives=negatives)


class MessagePassing(nn.Module):
    def __init__(self, aggr="add"):
        super().__init__()
        self.aggr = aggr

    def propagate(self, edge_index, size=None, **kwargs):
        source, target = edge_index
        collected = {}
        for name, value in kwargs.items():
            if isinstance(value, Tensor) and value.dim() > 1:
                collected[f"{name}_j"], collected[f"{name}_i"] = value[source], value[target]
            collected[name] = value
        wanted = inspect.signature(self.message).parameters
        out = self.message(**{name: collected[name] for name in wanted})
        return self.aggregate(out, target, size if size is not None else kwargs["x"].shape[0])

    def aggregate(self, messages, target, nodes):
        out = messages.new_zeros(nodes, messages.shape[-1])
        index = target.unsqueeze(-1).expand_as(messages)
        if self.aggr == "add":
            return out.scatter_add(0, index, messages)
        if self.aggr == "mean":
            count = torch.zeros(nodes).index_add_(0, target, torch.ones(len(target))).clamp(min=1)
            return out.scatter_add(0, index, messages) / count.unsqueeze(-1)
        return out.scatter_reduce(0, index, messages, reduce="amax", include_self=False)

    def message(self, x_j):
        return x_j


class GATLike(MessagePassing):
    def __init__(self, dim, **kwargs):
        super().__init__(**kwargs)
        self.lin, self.att = nn.Linear(dim, dim), nn.Linear(2 * dim, 1)

    def forward(self, x, edge_index):
        return self.propagate(edge_index, x=self.lin(x)) + x

    def message(self, x_i, x_j):
        return x_j * self.att(torch.cat([x_i, x_j], dim=-1)).sigmoid()


EDGES = torch.tensor([[0, 1, 2, 3, 0], [1, 2, 3, 0, 2]])


@programs(lambda: (GATLike(4), torch.randn(4, 4)), lambda: (GATLike(4, aggr="mean"), torch.randn(4, 4)))
def graph_attention(layer, x):
    return layer(x, EDGES)


@programs(lambda: (GATLike(4, aggr="max"), torch.randn(4, 4)))
def graph_max_pooling(layer, x):
    return layer(x, EDGES).max(0)


@programs(lambda: torch.randn(4, 3))
def normalized_adjacency(x):
    adjacency = torch.zeros(4, 4)
    adjacency[EDGES[0], EDGES[1]] = 1
    adjacency = adjacency + torch.eye(4)
    degree = adjacency.sum(1).pow(-0.5)
    degree[torch.isinf(degree)] = 0
    return degree.diag() @ adjacency @ degree.diag() @ x


class VAE(nn.Module):
    def __init__(self):
        super().__init__()
        self.encoder, self.decoder = nn.Linear(6, 4), nn.Linear(2, 6)

    def reparameterize(self, mu, logvar):
        if self.training:
            return mu + torch.randn_like(mu) * (0.5 * logvar).exp()
        return mu

    def forward(self, x):
        mu, logvar = self.encoder(x).chunk(2, -1)
        return self.decoder(self.reparameterize(mu, logvar)), mu, logvar


@programs(lambda: (VAE(), torch.rand(3, 6), 1.0), lambda: (VAE().eval(), torch.rand(3, 6), 4.0))
def variational_autoencoder(vae, x, beta):
    recon, mu, logvar = vae(x)
    kl = -0.5 * torch.sum(1 + logvar - mu.pow(2) - logvar.exp(), dim=1)
    return F.binary_cross_entropy_with_logits(recon, x) + beta * kl.mean()


@programs(lambda: (VAE(), torch.rand(3, 6)))
def variational_with_distributions(vae, x):
    _, mu, logvar = vae(x)
    posterior = torch.distributions.Normal(mu, logvar.mul(0.5).exp())
    prior = torch.distributions.Normal(torch.zeros_like(mu), torch.ones_like(mu))
    z = posterior.rsample()
    kl = torch.distributions.kl_divergence(posterior, prior).sum(-1)
    return vae.decoder(z).sum(), kl, posterior.log_prob(z)


class Coupling(nn.Module):
    def __init__(self, dim, flip):
        super().__init__()
        self.flip = flip
        self.net = nn.Sequential(nn.Linear(dim // 2, 8), nn.Tanh(), nn.Linear(8, dim))

    def forward(self, x, reverse=False):
        a, b = x.chunk(2, -1)[:: -1 if self.flip else 1]
        scale, shift = self.net(a).chunk(2, -1)
        scale = scale.tanh()
        b = (b - shift) * torch.exp(-scale) if reverse else b * torch.exp(scale) + shift
        parts = (b, a) if self.flip else (a, b)
        return torch.cat(parts, -1), (-1 if reverse else 1) * scale.sum(-1)


class Flow(nn.Module):
    def __init__(self, dim=4, depth=3):
        super().__init__()
        self.layers = nn.ModuleList(Coupling(dim, bool(i % 2)) for i in range(depth))

    def forward(self, x, reverse=False):
        total = x.new_zeros(len(x))
        for layer in reversed(self.layers) if reverse else self.layers:
            x, logdet = layer(x, reverse=reverse)
            total += logdet
        return x, total


@programs(lambda: (Flow(), torch.randn(3, 4), False), lambda: (Flow(), torch.randn(3, 4), True))
def normalizing_flow(flow, x, reverse):
    z, logdet = flow(x, reverse=reverse)
    prior = -0.5 * (z**2 + math.log(2 * math.pi)).sum(-1)
    return z, prior + logdet


def encode_position(x, levels):
    encoded = [x]
    for fn in (torch.sin, torch.cos):
        encoded += [fn(2.0**i * math.pi * x) for i in range(levels)]
    return torch.cat(encoded, -1)


@programs(
    lambda: (nn.Linear(15, 4), torch.randn(2, 3), torch.randn(2, 3), False),
    lambda: (nn.Linear(15, 4), torch.randn(2, 3), torch.randn(2, 3), True),
)
def volume_rendering(field_net, origin, direction, white):
    t = torch.linspace(0.1, 1.0, 6).expand(2, 6)
    t = t + torch.rand(t.shape) * 0.9 / 6
    points = origin[:, None] + direction[:, None] * t[..., None]
    raw = field_net(encode_position(points, 2))
    rgb, sigma = raw[..., :3].sigmoid(), F.relu(raw[..., 3])
    delta = torch.cat([t[:, 1:] - t[:, :-1], torch.full_like(t[:, :1], 1e10)], -1)
    alpha = 1.0 - torch.exp(-sigma * delta)
    transmittance = torch.cumprod(torch.cat([torch.ones_like(alpha[:, :1]), 1 - alpha + 1e-10], -1), -1)[:, :-1]
    weights = alpha * transmittance
    color = (weights[..., None] * rgb).sum(1)
    if white:
        color = color + (1.0 - weights.sum(-1, keepdim=True))
    return color, (weights * t).sum(-1)


class Perceiver(nn.Module):
    def __init__(self, latents=3, dim=8, depth=2, share=True):
        super().__init__()
        self.latents = nn.Parameter(torch.randn(latents, dim))
        make = functools.partial(nn.MultiheadAttention, dim, 2, batch_first=True)
        cached = functools.lru_cache(maxsize=None)(lambda kind: make())
        self.cross = nn.ModuleList(cached("cross") if share else make() for _ in range(depth))
        self.self_attention = nn.ModuleList(make() for _ in range(depth))
        self.norm = nn.LayerNorm(dim)

    def forward(self, x, mask=None):
        z = self.latents.expand(x.shape[0], -1, -1)
        for cross, attention in zip(self.cross, self.self_attention, strict=True):
            z = z + cross(self.norm(z), x, x, key_padding_mask=mask, need_weights=False)[0]
            z = z + attention(z, z, z)[0]
        return z.mean(1)


@programs(
    lambda: (Perceiver(), torch.randn(2, 5, 8), None),
    lambda: (Perceiver(share=False), torch.randn(2, 5, 8), torch.tensor([[False] * 5, [False] * 3 + [True] * 2])),
)
def perceiver(model, x, mask):
    return model(x, mask)
