"""Programs in the style of torch's tutorials: small models and the functions around them.

Each program keeps the style of its authors, and none was chosen because a compiler captures it.
"""

import math

import torch
import torch.nn as nn
import torch.nn.functional as F
from torch import Tensor

from benchmarks.coverage_case import Corpus

programs = Corpus()


class LeNet(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv1 = nn.Conv2d(1, 6, 5)
        self.conv2 = nn.Conv2d(6, 16, 5)
        self.fc1 = nn.Linear(16 * 5 * 5, 32)
        self.fc2 = nn.Linear(32, 10)

    def forward(self, x):
        x = F.max_pool2d(F.relu(self.conv1(x)), (2, 2))
        x = F.max_pool2d(F.relu(self.conv2(x)), 2)
        x = x.view(-1, self.num_flat_features(x))
        x = F.relu(self.fc1(x))
        return F.log_softmax(self.fc2(x), dim=1)

    def num_flat_features(self, x):
        size = x.size()[1:]
        num_features = 1
        for s in size:
            num_features *= s
        return num_features


@programs(lambda: (LeNet(), torch.randn(2, 1, 32, 32)))
def lenet(model, x):
    return model(x)


class Polynomial3(nn.Module):
    def __init__(self):
        super().__init__()
        self.a = nn.Parameter(torch.randn(()))
        self.b = nn.Parameter(torch.randn(()))
        self.c = nn.Parameter(torch.randn(()))
        self.d = nn.Parameter(torch.randn(()))

    def forward(self, x):
        return self.a + self.b * x + self.c * x**2 + self.d * x**3

    def string(self):
        return "y = a + b x + c x^2 + d x^3"


@programs(lambda: (Polynomial3(), torch.linspace(-math.pi, math.pi, 20)))
def fit_a_sine(model, x):
    y = torch.sin(x)
    return (model(x) - y).pow(2).sum(), model.string()


@programs(lambda: (torch.randn(3), torch.linspace(-1, 1, 5)))
def polynomial_gradient_by_hand(coefficients, x):
    a, b, c = coefficients
    y_pred = a + b * x + c * x**2
    grad_y = 2.0 * (y_pred - x.sin())
    return grad_y.sum(), (grad_y * x).sum(), (grad_y * x**2).sum()


class LegendrePolynomial3(torch.autograd.Function):
    @staticmethod
    def forward(ctx, input):
        ctx.save_for_backward(input)
        return 0.5 * (5 * input**3 - 3 * input)

    @staticmethod
    def backward(ctx, grad_output):
        (input,) = ctx.saved_tensors
        return grad_output * 1.5 * (5 * input**2 - 1)


@programs(lambda: torch.randn(5, requires_grad=True))
def legendre(x):
    P3 = LegendrePolynomial3.apply
    return 1 + 2 * P3(3 + 4 * x)


class CharRNN(nn.Module):
    def __init__(self, input_size=5, hidden_size=8, output_size=3):
        super().__init__()
        self.hidden_size = hidden_size
        self.i2h = nn.Linear(input_size + hidden_size, hidden_size)
        self.h2o = nn.Linear(hidden_size, output_size)
        self.softmax = nn.LogSoftmax(dim=1)

    def forward(self, input, hidden):
        combined = torch.cat((input, hidden), 1)
        hidden = torch.tanh(self.i2h(combined))
        return self.softmax(self.h2o(hidden)), hidden

    def init_hidden(self):
        return torch.zeros(1, self.hidden_size)


@programs(lambda: (CharRNN(), torch.randn(4, 1, 5)))
def classify_names(rnn, line):
    hidden = rnn.init_hidden()
    for i in range(line.size()[0]):
        output, hidden = rnn(line[i], hidden)
    return output


def line_to_tensor(line, letters="abc"):
    tensor = torch.zeros(len(line), 1, len(letters))
    for i, letter in enumerate(line):
        tensor[i][0][letters.find(letter)] = 1
    return tensor


@programs(lambda: ("abca",), lambda: ("cab",))
def one_hot_letters(line):
    return line_to_tensor(line)


class PositionalEncoding(nn.Module):
    def __init__(self, d_model=8, dropout=0.0, max_len=20):
        super().__init__()
        self.dropout = nn.Dropout(p=dropout)
        position = torch.arange(max_len).unsqueeze(1)
        div_term = torch.exp(torch.arange(0, d_model, 2) * (-math.log(10000.0) / d_model))
        pe = torch.zeros(max_len, 1, d_model)
        pe[:, 0, 0::2] = torch.sin(position * div_term)
        pe[:, 0, 1::2] = torch.cos(position * div_term)
        self.register_buffer("pe", pe)

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.pe[: x.size(0)]
        return self.dropout(x)


class TransformerModel(nn.Module):
    def __init__(self, ntoken=12, d_model=8):
        super().__init__()
        self.pos_encoder = PositionalEncoding(d_model)
        layers = nn.TransformerEncoderLayer(d_model, 2, 16, 0.0)
        self.transformer_encoder = nn.TransformerEncoder(layers, 2, enable_nested_tensor=False)
        self.embedding = nn.Embedding(ntoken, d_model)
        self.d_model = d_model
        self.linear = nn.Linear(d_model, ntoken)

    def forward(self, src, src_mask=None):
        src = self.embedding(src) * math.sqrt(self.d_model)
        src = self.pos_encoder(src)
        if src_mask is None:
            src_mask = nn.Transformer.generate_square_subsequent_mask(len(src))
        return self.linear(self.transformer_encoder(src, src_mask))


@programs(lambda: (TransformerModel(), torch.randint(0, 12, (5, 2))))
def language_model(model, src):
    return model(src)


class EncoderRNN(nn.Module):
    def __init__(self):
        super().__init__()
        self.embedding = nn.Embedding(10, 8)
        self.gru = nn.GRU(8, 8, batch_first=True)

    def forward(self, input):
        return self.gru(self.embedding(input))


class BahdanauAttention(nn.Module):
    def __init__(self):
        super().__init__()
        self.Wa = nn.Linear(8, 8)
        self.Ua = nn.Linear(8, 8)
        self.Va = nn.Linear(8, 1)

    def forward(self, query, keys):
        scores = self.Va(torch.tanh(self.Wa(query) + self.Ua(keys))).squeeze(2).unsqueeze(1)
        weights = F.softmax(scores, dim=-1)
        return torch.bmm(weights, keys), weights


class AttnDecoderRNN(nn.Module):
    def __init__(self):
        super().__init__()
        self.embedding = nn.Embedding(10, 8)
        self.attention = BahdanauAttention()
        self.gru = nn.GRU(16, 8, batch_first=True)
        self.out = nn.Linear(8, 10)

    def forward(self, encoder_outputs, encoder_hidden, target_tensor=None):
        decoder_input = torch.empty(encoder_outputs.size(0), 1, dtype=torch.long).fill_(0)
        hidden, outputs, attentions = encoder_hidden, [], []
        for i in range(3):
            output, hidden, weights = self.forward_step(decoder_input, hidden, encoder_outputs)
            outputs.append(output)
            attentions.append(weights)
            if target_tensor is not None:
                decoder_input = target_tensor[:, i].unsqueeze(1)
            else:
                _, topi = output.topk(1)
                decoder_input = topi.squeeze(-1).detach()
        return F.log_softmax(torch.cat(outputs, dim=1), dim=-1), hidden, torch.cat(attentions, dim=1)

    def forward_step(self, input, hidden, encoder_outputs):
        embedded = self.embedding(input)
        context, weights = self.attention(hidden.permute(1, 0, 2), encoder_outputs)
        output, hidden = self.gru(torch.cat((embedded, context), dim=2), hidden)
        return self.out(output), hidden, weights


class Seq2Seq(nn.Module):
    def __init__(self):
        super().__init__()
        self.encoder, self.decoder = EncoderRNN(), AttnDecoderRNN()

    def forward(self, src, target=None):
        return self.decoder(*self.encoder(src), target)


@programs(lambda: (Seq2Seq(), torch.randint(0, 10, (2, 4))))
def translate(model, src):
    return model(src), model(src, src)


class DQN(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer1 = nn.Linear(4, 16)
        self.layer2 = nn.Linear(16, 2)

    def forward(self, x):
        return self.layer2(F.relu(self.layer1(x)))


@programs(lambda: (DQN(), DQN(), torch.randn(5, 4), torch.randint(0, 2, (5, 1)), torch.randn(5)))
def q_learning_loss(policy, target, state, action, reward):
    values = policy(state).gather(1, action)
    with torch.no_grad():
        next_values = target(state).max(1).values
    expected = next_values * 0.99 + reward
    return nn.SmoothL1Loss()(values, expected.unsqueeze(1))


@programs(lambda: (DQN(), DQN()))
def soft_update(policy, target):
    tau = 0.005
    target_state, policy_state = target.state_dict(), policy.state_dict()
    for key in policy_state:
        target_state[key] = policy_state[key] * tau + target_state[key] * (1 - tau)
    target.load_state_dict(target_state)
    return target(torch.ones(1, 4))


class Generator(nn.Module):
    def __init__(self):
        super().__init__()
        self.main = nn.Sequential(
            nn.ConvTranspose2d(4, 8, 4, 1, 0, bias=False),
            nn.BatchNorm2d(8),
            nn.ReLU(True),
            nn.ConvTranspose2d(8, 1, 4, 2, 1, bias=False),
            nn.Tanh(),
        )

    def forward(self, input):
        return self.main(input)


@programs(lambda: (Generator(), torch.randn(2, 4, 1, 1)))
def dcgan_generator(model, z):
    return model(z)


class SpatialTransformer(nn.Module):
    def __init__(self):
        super().__init__()
        self.localization = nn.Sequential(nn.Conv2d(1, 2, 3), nn.ReLU(True), nn.AdaptiveAvgPool2d(2))
        self.fc_loc = nn.Linear(8, 6)
        self.fc_loc.weight.data.zero_()
        self.fc_loc.bias.data.copy_(torch.tensor([1, 0, 0, 0, 1, 0], dtype=torch.float))

    def forward(self, x):
        xs = self.localization(x).view(-1, 8)
        theta = self.fc_loc(xs).view(-1, 2, 3)
        grid = F.affine_grid(theta, x.size(), align_corners=False)
        return F.grid_sample(x, grid, align_corners=False)


@programs(lambda: (SpatialTransformer(), torch.randn(2, 1, 8, 8)))
def spatial_transformer(model, x):
    return model(x)


def gram_matrix(input):
    a, b, c, d = input.size()
    features = input.view(a * b, c * d)
    return torch.mm(features, features.t()).div(a * b * c * d)


class StyleLoss(nn.Module):
    def __init__(self, target_feature):
        super().__init__()
        self.target = gram_matrix(target_feature).detach()

    def forward(self, input):
        self.loss = F.mse_loss(gram_matrix(input), self.target)
        return input


@programs(lambda: (StyleLoss(torch.randn(1, 3, 4, 4)), torch.randn(1, 3, 4, 4)))
def style_transfer(model, x):
    y = model(x)
    return y, model.loss


def fgsm_attack(image, epsilon, data_grad):
    return torch.clamp(image + epsilon * data_grad.sign(), 0, 1)


@programs(lambda: (torch.rand(2, 3), 0.1, torch.randn(2, 3)), lambda: (torch.rand(2, 3), 0.2, torch.randn(2, 3)))
def adversarial_example(image, epsilon, grad):
    return fgsm_attack(image, epsilon, grad)


class PixelShuffleNet(nn.Module):
    def __init__(self, upscale=2):
        super().__init__()
        self.relu = nn.ReLU()
        self.conv1 = nn.Conv2d(1, 4, 3, padding=1)
        self.conv2 = nn.Conv2d(4, upscale**2, 3, padding=1)
        self.pixel_shuffle = nn.PixelShuffle(upscale)
        self._initialize_weights()

    def forward(self, x):
        return self.pixel_shuffle(self.conv2(self.relu(self.conv1(x))))

    def _initialize_weights(self):
        nn.init.orthogonal_(self.conv1.weight, nn.init.calculate_gain("relu"))


@programs(lambda: (PixelShuffleNet(), torch.randn(1, 1, 4, 4)))
def super_resolution(model, x):
    return model(x)


class TextClassifier(nn.Module):
    def __init__(self):
        super().__init__()
        self.embedding = nn.EmbeddingBag(10, 4, sparse=False)
        self.fc = nn.Linear(4, 3)
        self.init_weights()

    def init_weights(self):
        self.embedding.weight.data.uniform_(-0.5, 0.5)
        self.fc.bias.data.zero_()

    def forward(self, text, offsets):
        return self.fc(self.embedding(text, offsets))


@programs(lambda: (TextClassifier(), torch.randint(0, 10, (6,)), torch.tensor([0, 2, 4])))
def text_classification(model, text, offsets):
    return model(text, offsets)


class LSTMTagger(nn.Module):
    def __init__(self):
        super().__init__()
        self.hidden_dim = 6
        self.word_embeddings = nn.Embedding(10, 4)
        self.lstm = nn.LSTM(4, self.hidden_dim)
        self.hidden2tag = nn.Linear(self.hidden_dim, 3)

    def forward(self, sentence):
        embeds = self.word_embeddings(sentence)
        out, _ = self.lstm(embeds.view(len(sentence), 1, -1))
        return F.log_softmax(self.hidden2tag(out.view(len(sentence), -1)), dim=1)


@programs(lambda: (LSTMTagger(), torch.randint(0, 10, (5,))))
def part_of_speech_tags(model, sentence):
    return model(sentence)


class NGram(nn.Module):
    def __init__(self):
        super().__init__()
        self.embeddings = nn.Embedding(10, 3)
        self.linear1 = nn.Linear(6, 8)
        self.linear2 = nn.Linear(8, 10)

    def forward(self, inputs):
        embeds = self.embeddings(inputs).view((1, -1))
        return F.log_softmax(self.linear2(F.relu(self.linear1(embeds))), dim=1)


@programs(lambda: (NGram(), ["the", "cat"]), lambda: (NGram(), ["a", "dog"]))
def n_gram_model(model, words):
    word_to_ix = {w: i for i, w in enumerate(sorted({"the", "cat", "a", "dog"}))}
    context = torch.tensor([word_to_ix[w] for w in words], dtype=torch.long)
    return model(context)


class ActorCritic(nn.Module):
    def __init__(self):
        super().__init__()
        self.affine = nn.Linear(4, 8)
        self.action_head = nn.Linear(8, 2)
        self.value_head = nn.Linear(8, 1)
        self.saved_actions = []

    def forward(self, x):
        x = F.relu(self.affine(x))
        action_prob = F.softmax(self.action_head(x), dim=-1)
        self.saved_actions.append(action_prob)
        return action_prob, self.value_head(x)


@programs(lambda: (ActorCritic(), torch.randn(4)))
def actor_critic(model, state):
    probs, value = model(state)
    m = torch.distributions.Categorical(probs)
    action = m.sample()
    return m.log_prob(action), value, model.saved_actions


@programs(lambda: (torch.randn(4), torch.rand(4) + 0.1))
def normal_distribution(mu, sigma):
    d = torch.distributions.Normal(mu, sigma)
    return (
        d.rsample(),
        d.log_prob(mu + 1),
        d.entropy(),
        torch.distributions.kl_divergence(d, torch.distributions.Normal(0.0, 1.0)),
    )


class UNetBlock(nn.Module):
    def __init__(self):
        super().__init__()
        self.down = nn.Sequential(nn.Conv2d(1, 4, 3, padding=1), nn.GroupNorm(2, 4), nn.SiLU())
        self.up = nn.ConvTranspose2d(4, 4, 2, stride=2)
        self.out = nn.Conv2d(8, 1, 1)

    def forward(self, x):
        skip = self.down(x)
        y = self.up(F.avg_pool2d(skip, 2))
        return self.out(torch.cat([skip, y], 1))


@programs(lambda: (UNetBlock(), torch.randn(1, 1, 4, 4)))
def u_net_block(model, x):
    return model(x)


@programs(lambda: (torch.randn(2, 1, 4, 4), torch.tensor([3, 7])))
def diffusion_forward_process(x0, t):
    betas = torch.linspace(1e-4, 0.02, 10)
    alphas_bar = torch.cumprod(1 - betas, 0)
    a = alphas_bar[t].view(-1, 1, 1, 1)
    noise = torch.randn_like(x0)
    return a.sqrt() * x0 + (1 - a).sqrt() * noise, noise


@programs(lambda: torch.tensor([1, 5]))
def timestep_embedding(t):
    half = 4
    freqs = torch.exp(-math.log(10000) * torch.arange(half, dtype=torch.float32) / half)
    args = t[:, None].float() * freqs[None]
    return torch.cat([args.cos(), args.sin()], dim=-1)


class CausalSelfAttention(nn.Module):
    def __init__(self, n_embd=8, n_head=2, block_size=8):
        super().__init__()
        assert n_embd % n_head == 0
        self.c_attn = nn.Linear(n_embd, 3 * n_embd)
        self.c_proj = nn.Linear(n_embd, n_embd)
        self.n_head = n_head
        self.register_buffer("bias", torch.tril(torch.ones(block_size, block_size)).view(1, 1, block_size, block_size))

    def forward(self, x):
        B, T, C = x.size()
        q, k, v = self.c_attn(x).split(C, dim=2)
        k = k.view(B, T, self.n_head, C // self.n_head).transpose(1, 2)
        q = q.view(B, T, self.n_head, C // self.n_head).transpose(1, 2)
        v = v.view(B, T, self.n_head, C // self.n_head).transpose(1, 2)
        att = (q @ k.transpose(-2, -1)) * (1.0 / math.sqrt(k.size(-1)))
        att = att.masked_fill(self.bias[:, :, :T, :T] == 0, float("-inf"))
        y = F.softmax(att, dim=-1) @ v
        return self.c_proj(y.transpose(1, 2).contiguous().view(B, T, C))


class GPT(nn.Module):
    def __init__(self):
        super().__init__()
        self.transformer = nn.ModuleDict(
            dict(
                wte=nn.Embedding(16, 8),
                wpe=nn.Embedding(8, 8),
                drop=nn.Dropout(0.0),
                h=nn.ModuleList([CausalSelfAttention() for _ in range(2)]),
                ln_f=nn.LayerNorm(8),
            )
        )
        self.lm_head = nn.Linear(8, 16, bias=False)
        self.block_size = 8

    def forward(self, idx, targets=None):
        b, t = idx.size()
        assert t <= self.block_size, f"Cannot forward sequence of length {t}"
        pos = torch.arange(0, t, dtype=torch.long, device=idx.device)
        x = self.transformer.drop(self.transformer.wte(idx) + self.transformer.wpe(pos))
        for block in self.transformer.h:
            x = x + block(x)
        logits = self.lm_head(self.transformer.ln_f(x))
        loss = None
        if targets is not None:
            loss = F.cross_entropy(logits.view(-1, logits.size(-1)), targets.view(-1), ignore_index=-1)
        return logits, loss

    @torch.no_grad()
    def generate(self, idx, max_new_tokens, top_k=None):
        for _ in range(max_new_tokens):
            idx_cond = idx if idx.size(1) <= self.block_size else idx[:, -self.block_size :]
            logits, _ = self(idx_cond)
            logits = logits[:, -1, :]
            if top_k is not None:
                v, _ = torch.topk(logits, min(top_k, logits.size(-1)))
                logits[logits < v[:, [-1]]] = -float("Inf")
            idx = torch.cat((idx, torch.multinomial(F.softmax(logits, dim=-1), num_samples=1)), dim=1)
        return idx


@programs(lambda: (GPT(), torch.randint(0, 16, (2, 4))))
def tiny_gpt(model, idx):
    return model(idx, idx)


@programs(lambda: (GPT(), torch.randint(0, 16, (2, 4))))
def tiny_gpt_generates(model, idx):
    return model.generate(idx, 6, top_k=3)


class Autoencoder(nn.Module):
    def __init__(self):
        super().__init__()
        self.encoder = nn.Sequential(nn.Linear(8, 4), nn.ReLU(), nn.Linear(4, 2))
        self.decoder = nn.Sequential(nn.Linear(2, 4), nn.ReLU(), nn.Linear(4, 8), nn.Sigmoid())

    def forward(self, x):
        shape = x.shape
        return self.decoder(self.encoder(x.flatten(1))).view(shape)


@programs(lambda: (Autoencoder(), torch.rand(3, 2, 4)))
def autoencoder(model, x):
    return F.binary_cross_entropy(model(x), x)


class Siamese(nn.Module):
    def __init__(self):
        super().__init__()
        self.net = nn.Linear(4, 3)

    def forward_once(self, x):
        return self.net(x).view(x.size()[0], -1)

    def forward(self, a, b):
        return torch.sigmoid(F.pairwise_distance(self.forward_once(a), self.forward_once(b)))


@programs(lambda: (Siamese(), torch.randn(2, 4), torch.randn(2, 4)))
def siamese(model, a, b):
    return model(a, b)


class GCN(nn.Module):
    def __init__(self):
        super().__init__()
        self.w = nn.Parameter(torch.randn(4, 2))

    def forward(self, x, edges):
        src, dst = edges
        out = torch.zeros(x.size(0), 2)
        out.index_add_(0, dst, (x @ self.w)[src])
        degree = torch.zeros(x.size(0)).scatter_add_(0, dst, torch.ones(dst.size(0)))
        return out / degree.clamp(min=1).unsqueeze(-1)


@programs(lambda: (GCN(), torch.randn(3, 4), torch.tensor([[0, 1, 2], [1, 2, 0]])))
def message_passing(model, x, edges):
    return model(x, edges)


@programs(lambda: (torch.randn(3, 4), torch.randn(4)))
def attention_pooling(x, query):
    weights = torch.softmax(x @ query / x.shape[-1] ** 0.5, dim=0)
    return (weights[:, None] * x).sum(0)


class NeuralODE(nn.Module):
    def __init__(self):
        super().__init__()
        self.net = nn.Sequential(nn.Linear(2, 8), nn.Tanh(), nn.Linear(8, 2))

    def forward(self, t, y):
        return self.net(y**3)


def odeint(f, y0, t):
    ys = [y0]
    for t0, t1 in zip(t[:-1], t[1:]):
        h = t1 - t0
        y = ys[-1]
        k1 = f(t0, y)
        k2 = f(t0 + h / 2, y + h * k1 / 2)
        ys.append(y + h * k2)
    return torch.stack(ys)


@programs(lambda: (NeuralODE(), torch.randn(2)))
def integrate(model, y0):
    return odeint(model, y0, torch.linspace(0, 1, 4))


class Swish(nn.Module):
    def forward(self, x):
        return x * torch.sigmoid(x)


class InvertedResidual(nn.Module):
    def __init__(self, inp, oup, stride, expand):
        super().__init__()
        hidden = int(round(inp * expand))
        self.use_res_connect = stride == 1 and inp == oup
        layers: list[nn.Module] = []
        if expand != 1:
            layers.append(nn.Sequential(nn.Conv2d(inp, hidden, 1, bias=False), nn.BatchNorm2d(hidden), nn.ReLU6(True)))
        layers.extend([nn.Conv2d(hidden, hidden, 3, stride, 1, groups=hidden), Swish(), nn.Conv2d(hidden, oup, 1)])
        self.conv = nn.Sequential(*layers)

    def forward(self, x):
        return x + self.conv(x) if self.use_res_connect else self.conv(x)


@programs(lambda: (InvertedResidual(4, 4, 1, 2), torch.randn(2, 4, 6, 6)))
def mobile_block(model, x):
    return model(x)


@programs(lambda: (nn.Sequential(InvertedResidual(4, 8, 2, 1), InvertedResidual(8, 8, 1, 2)), torch.randn(2, 4, 6, 6)))
def mobile_blocks(model, x):
    return model(x).mean([2, 3])


class DenseLayer(nn.Module):
    def __init__(self, c, growth=2):
        super().__init__()
        self.norm = nn.BatchNorm2d(c)
        self.conv = nn.Conv2d(c, growth, 3, padding=1)

    def forward(self, features):
        x = torch.cat(features, 1) if isinstance(features, list) else features
        return self.conv(F.relu(self.norm(x)))


class DenseBlock(nn.ModuleDict):
    def __init__(self):
        super().__init__()
        for i in range(3):
            self.add_module(f"denselayer{i + 1}", DenseLayer(4 + i * 2))

    def forward(self, init_features):
        features = [init_features]
        for name, layer in self.items():
            features.append(layer(features))
        return torch.cat(features, 1)


@programs(lambda: (DenseBlock(), torch.randn(2, 4, 4, 4)))
def dense_block(model, x):
    return model(x)


@programs(lambda: (torch.rand(4, 4).cumsum(1), torch.rand(3, 4).cumsum(1)))
def box_overlap(a, b):
    lt = torch.max(a[:, None, :2], b[None, :, :2])
    rb = torch.min(a[:, None, 2:], b[None, :, 2:])
    wh = (rb - lt).clamp(min=0)
    inter = wh[..., 0] * wh[..., 1]
    area = lambda t: (t[:, 2] - t[:, 0]) * (t[:, 3] - t[:, 1])  # noqa: E731
    return inter / (area(a)[:, None] + area(b) - inter)


@programs(lambda: (torch.randn(2, 3, 4, 4),))
def flip_and_average(x):
    augmented = [x, x.flip(-1), x.flip(-2), torch.rot90(x, 2, dims=(-2, -1))]
    return torch.stack([a.mean(dim=(-2, -1)) for a in augmented]).mean(0)


@programs(lambda: (torch.randn(5, 2), torch.tensor([0, 1, 0, 1, 1])))
def prototypes(embeddings, labels):
    return torch.stack([(embeddings * (labels == c).unsqueeze(1)).sum(0) / (labels == c).sum() for c in range(2)])


@programs(lambda: (torch.randn(6, 2, 4).log_softmax(2), torch.randint(1, 4, (2, 3))))
def ctc(log_probs, targets):
    return F.ctc_loss(log_probs, targets, torch.tensor([6, 6]), torch.tensor([3, 3]))
