"""Programs about nn.Module: containers, buffers, hooks, shared and changed parameters, modes, recurrent networks.

Each program keeps the style of its authors, and none was chosen because a compiler captures it.
"""

import copy
from collections import OrderedDict

import torch
import torch.nn.functional as F
from torch import nn

from benchmarks.coverage_case import Corpus

programs = Corpus()


def with_input(make, shape=(3, 4)):
    return lambda: (make(), torch.randn(*shape))


class MLP(nn.Module):
    def __init__(self, d=4, hidden=8):
        super().__init__()
        self.fc1 = nn.Linear(d, hidden)
        self.act = nn.GELU()
        self.drop = nn.Dropout(0.1)
        self.fc2 = nn.Linear(hidden, d)

    def forward(self, x):
        return self.fc2(self.drop(self.act(self.fc1(x))))


@programs(with_input(MLP))
def call_a_module(model, x):
    return model(x)


@programs(with_input(MLP))
def train_and_eval(model, x):
    model.eval()
    a = model(x)
    model.train()
    return a, model(x), model.training


@programs(with_input(lambda: nn.Sequential(nn.Linear(4, 4), nn.ReLU(), nn.Linear(4, 2))))
def sequential(model, x):
    return model(x), len(model), model[0](x), [type(m).__name__ for m in model]


@programs(with_input(lambda: nn.Sequential(OrderedDict(first=nn.Linear(4, 4), act=nn.Tanh()))))
def named_sequential(model, x):
    return model.act(model.first(x)), [n for n, _ in model.named_children()]


class Residual(nn.Module):
    def __init__(self, depth=3):
        super().__init__()
        self.layers = nn.ModuleList([nn.Linear(4, 4) for _ in range(depth)])
        self.norms = nn.ModuleDict({"pre": nn.LayerNorm(4), "post": nn.LayerNorm(4)})

    def forward(self, x):
        x = self.norms["pre"](x)
        for i, layer in enumerate(self.layers):
            x = x + F.relu(layer(x)) / (i + 1)
        return self.norms["post"](x)


@programs(with_input(Residual))
def module_list_and_dict(model, x):
    return model(x), len(model.layers), "pre" in model.norms


@programs(with_input(Residual))
def slices_of_a_module_list(model, x):
    for layer in model.layers[:-1]:
        x = layer(x)
    return model.layers[-1](x)


class Counting(nn.Module):
    def __init__(self):
        super().__init__()
        self.register_buffer("steps", torch.zeros(1))
        self.register_buffer("mean", torch.zeros(4), persistent=False)
        self.momentum = 0.1

    def forward(self, x):
        if self.training:
            self.steps += 1
            self.mean = (1 - self.momentum) * self.mean + self.momentum * x.mean(0).detach()
        return x - self.mean


@programs(with_input(Counting))
def buffers_written_in_forward(model, x):
    return model(model(x)), model.steps


class WithState(nn.Module):
    def __init__(self):
        super().__init__()
        self.calls = 0
        self.history = []

    def forward(self, x):
        self.calls += 1
        self.history.append(x.shape[0])
        self.last = x * self.calls
        return self.last


@programs(with_input(WithState))
def python_attributes_written_in_forward(model, x):
    model(x)
    return model(x), model.calls, model.history


class OwnParameters(nn.Module):
    def __init__(self):
        super().__init__()
        self.weight = nn.Parameter(torch.randn(4, 4))
        self.scale = nn.Parameter(torch.tensor(2.0))
        self.register_parameter("bias", None)
        self.weights = nn.ParameterList([nn.Parameter(torch.randn(4)) for _ in range(2)])
        self.table = nn.ParameterDict({"a": nn.Parameter(torch.randn(4))})

    def forward(self, x):
        y = F.linear(x, self.weight, self.bias) * self.scale
        for w in self.weights:
            y = y * w
        return y + self.table["a"]


@programs(with_input(OwnParameters))
def own_parameters(model, x):
    return model(x)


@programs(with_input(MLP))
def count_parameters(model, x):
    return sum(p.numel() for p in model.parameters() if p.requires_grad), model(x)


@programs(with_input(MLP))
def weight_penalty(model, x):
    penalty = sum(p.pow(2).sum() for name, p in model.named_parameters() if name.endswith("weight"))
    return model(x).mean() + 1e-4 * penalty


@programs(with_input(MLP))
def walk_the_modules(model, x):
    linear = [m for m in model.modules() if isinstance(m, nn.Linear)]
    names = [n for n, m in model.named_modules() if n]
    return sum(m.weight.norm() for m in linear), names, x + 1


@programs(with_input(MLP))
def state_dict_inside(model, x):
    state = model.state_dict()
    return {k: v.norm() for k, v in state.items()}, x + 1


@programs(with_input(MLP))
def get_submodule_and_parameter(model, x):
    return model.get_submodule("fc1")(x), model.get_parameter("fc2.weight").sum(), hasattr(model, "fc3")


@programs(with_input(MLP))
def forward_hook(model, x):
    seen = []
    handle = model.fc1.register_forward_hook(lambda m, args, out: seen.append(out.mean()))
    y = model(x)
    handle.remove()
    return y, seen


def hooked():
    model = MLP()
    model.activations = {}

    def keep(module, args, output):
        model.activations["fc1"] = output

    model.fc1.register_forward_hook(keep)
    model.fc2.register_forward_pre_hook(lambda m, args: (args[0] * 2,))
    return model


@programs(with_input(hooked))
def hooks_registered_before(model, x):
    return model(x), model.activations["fc1"]


class Tied(nn.Module):
    def __init__(self):
        super().__init__()
        self.embed = nn.Embedding(10, 4)
        self.head = nn.Linear(4, 10, bias=False)
        self.head.weight = self.embed.weight

    def forward(self, ids):
        return self.head(self.embed(ids))


@programs(lambda: (Tied(), torch.randint(0, 10, (2, 3))))
def tied_weights(model, ids):
    return model(ids), model.head.weight is model.embed.weight


class Branches(nn.Module):
    def __init__(self, use_norm=True, act="relu"):
        super().__init__()
        self.norm = nn.LayerNorm(4) if use_norm else nn.Identity()
        self.act = {"relu": F.relu, "gelu": F.gelu}[act]
        self.proj = nn.Linear(4, 4)
        self.shortcut = None

    def forward(self, x):
        y = self.act(self.proj(self.norm(x)))
        return y if self.shortcut is None else y + self.shortcut(x)


@programs(with_input(Branches), with_input(lambda: Branches(False, "gelu")))
def configuration_in_attributes(model, x):
    return model(x)


class Base(nn.Module):
    def forward(self, x):
        return self.body(x)

    def body(self, x):
        raise NotImplementedError


class Derived(Base):
    def __init__(self):
        super().__init__()
        self.lin = nn.Linear(4, 4)

    def body(self, x):
        return self.lin(x)

    def forward(self, x):
        return super().forward(x) + x


@programs(with_input(Derived))
def inherited_forward(model, x):
    return model(x)


class Wrapper(nn.Module):
    def __init__(self, module):
        super().__init__()
        self.module = module

    def __getattr__(self, name):
        try:
            return super().__getattr__(name)
        except AttributeError:
            return getattr(self.module, name)

    def forward(self, *args, **kwargs):
        return self.module(*args, **kwargs)


@programs(with_input(lambda: Wrapper(MLP())))
def wrapped_module_with_getattr(model, x):
    return model(x), model.fc1.weight.shape


@programs(with_input(lambda: nn.LSTM(4, 5, batch_first=True), (2, 3, 4)))
def lstm(model, x):
    out, (h, c) = model(x)
    return out[:, -1], h, c


@programs(with_input(lambda: nn.GRU(4, 5, num_layers=2, bidirectional=True), (2, 3, 4)))
def gru(model, x):
    return model(x)


@programs(with_input(lambda: nn.LSTMCell(4, 5), (3, 2, 4)))
def lstm_cell_in_a_loop(cell, xs):
    h = torch.zeros(2, 5)
    c = torch.zeros(2, 5)
    outs = []
    for x in xs:
        h, c = cell(x, (h, c))
        outs.append(h)
    return torch.stack(outs)


@programs(with_input(lambda: nn.RNN(4, 4, nonlinearity="relu"), (2, 3, 4)))
def plain_rnn(model, x):
    return model(x)[0]


@programs(with_input(lambda: nn.MultiheadAttention(4, 2, batch_first=True), (2, 3, 4)))
def multihead_attention(model, x):
    out, weights = model(x, x, x, need_weights=True)
    return out, weights, model(x, x, x, need_weights=False)[0]


@programs(with_input(lambda: nn.TransformerEncoderLayer(4, 2, 8, batch_first=True, dropout=0.0), (2, 3, 4)))
def transformer_encoder_layer(model, x):
    return model(x, src_key_padding_mask=torch.zeros(2, 3, dtype=torch.bool))


@programs(with_input(lambda: nn.TransformerDecoderLayer(4, 2, 8, batch_first=True, dropout=0.0), (2, 3, 4)))
def transformer_decoder_layer(model, x):
    mask = nn.Transformer.generate_square_subsequent_mask(3)
    return model(x, x, tgt_mask=mask)


@programs(with_input(lambda: nn.Transformer(4, 2, 1, 1, 8, dropout=0.0, batch_first=True), (2, 3, 4)))
def whole_transformer(model, x):
    return model(x, x)


@programs(with_input(lambda: nn.Sequential(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.ReLU(inplace=True)), (2, 3, 6, 6)))
def convolution_block(model, x):
    return model(x), model[1].running_mean, model[1].num_batches_tracked


class Depthwise(nn.Module):
    def __init__(self, c=4):
        super().__init__()
        self.dw = nn.Conv2d(c, c, 3, padding=1, groups=c, bias=False)
        self.pw = nn.Conv2d(c, c * 2, 1)
        self.se = nn.Sequential(nn.AdaptiveAvgPool2d(1), nn.Conv2d(c * 2, c * 2, 1), nn.Sigmoid())

    def forward(self, x):
        y = self.pw(self.dw(x))
        return y * self.se(y)


@programs(with_input(Depthwise, (2, 4, 6, 6)))
def squeeze_and_excite(model, x):
    return model(x)


@programs(with_input(lambda: nn.utils.parametrizations.weight_norm(nn.Linear(4, 4))))
def weight_norm(model, x):
    return model(x)


@programs(with_input(lambda: nn.utils.parametrizations.spectral_norm(nn.Linear(4, 4)).eval()))
def spectral_norm(model, x):
    return model(x)


class Symmetric(nn.Module):
    def forward(self, w):
        return w.triu() + w.triu(1).transpose(-1, -2)


def parametrized():
    layer = nn.Linear(4, 4)
    nn.utils.parametrize.register_parametrization(layer, "weight", Symmetric())
    return layer


@programs(with_input(parametrized))
def parametrization(model, x):
    return model(x), model.weight


@programs(with_input(MLP))
def replace_a_parameter(model, x):
    model.fc1.bias = None
    return model(x)


@programs(with_input(MLP))
def replace_a_submodule(model, x):
    model.act = nn.SiLU()
    return model(x)


@programs(with_input(MLP))
def freeze_parameters(model, x):
    for p in model.fc1.parameters():
        p.requires_grad_(False)
    return model(x)


@programs(with_input(MLP))
def apply_a_function(model, x):
    def init(m):
        if isinstance(m, nn.Linear):
            with torch.no_grad():
                m.weight.fill_(0.5)
                m.bias.zero_()

    model.apply(init)
    return model(x)


@programs(with_input(MLP))
def initialize_weights(model, x):
    nn.init.xavier_uniform_(model.fc1.weight)
    nn.init.zeros_(model.fc1.bias)
    nn.init.constant_(model.fc2.bias, 0.5)
    return model(x)


@programs(with_input(MLP))
def make_a_module_inside(model, x):
    act = nn.LeakyReLU(0.2)
    norm = nn.LayerNorm(4, elementwise_affine=False)
    return norm(act(model(x)))


@programs(with_input(MLP))
def make_a_linear_inside(model, x):
    extra = nn.Linear(4, 2)
    return extra(model(x))


@programs(with_input(lambda: nn.LazyLinear(3)))
def lazy_linear(model, x):
    return model(x)


class CreatesLater(nn.Module):
    def __init__(self):
        super().__init__()
        self.cache = None

    def forward(self, x):
        if self.cache is None or self.cache.shape != x.shape:
            self.cache = torch.arange(x.numel()).view(x.shape).to(x)
        return x + self.cache


@programs(with_input(CreatesLater))
def cache_made_on_first_use(model, x):
    return model(x) + model(x)


@programs(with_input(MLP))
def forward_overridden_on_the_instance(model, x):
    original = model.forward
    model.forward = lambda t: original(t) * 2
    y = model(x)
    del model.forward
    return y


@programs(with_input(MLP))
def functional_call(model, x):
    params = {k: v * 2 for k, v in model.named_parameters()}
    return torch.func.functional_call(model, params, (x,))


@programs(with_input(MLP))
def deep_copy_of_a_module(model, x):
    twin = copy.deepcopy(model)
    return twin(x) + model(x)


@programs(with_input(MLP))
def zero_grad(model, x):
    model.zero_grad()
    return model(x), model.fc1.weight.grad is None


@programs(with_input(MLP))
def move_and_cast(model, x):
    return model.double()(x.double())


class KeywordForward(nn.Module):
    def __init__(self):
        super().__init__()
        self.lin = nn.Linear(4, 4)

    def forward(self, x, *, mask=None, scale: float = 1.0, return_dict=False):
        y = self.lin(x) * scale
        if mask is not None:
            y = y.masked_fill(mask, 0)
        return {"out": y} if return_dict else (y,)


@programs(with_input(KeywordForward))
def keyword_arguments_of_forward(model, x):
    return model(x, mask=x > 0, return_dict=True)["out"], model(x, scale=2.0)[0]


class Gate(nn.Module):
    def __init__(self):
        super().__init__()
        self.experts = nn.ModuleList(nn.Linear(4, 4) for _ in range(3))
        self.router = nn.Linear(4, 3)

    def forward(self, x):
        weights = self.router(x).softmax(-1)
        outs = torch.stack([e(x) for e in self.experts], dim=-1)
        return (outs * weights.unsqueeze(1)).sum(-1)


@programs(with_input(Gate))
def soft_mixture_of_experts(model, x):
    return model(x)


class Film(nn.Module):
    def __init__(self):
        super().__init__()
        self.net = nn.Linear(4, 8)

    def forward(self, x, cond):
        gamma, beta = self.net(cond).chunk(2, dim=-1)
        return x * (1 + gamma) + beta


@programs(lambda: (Film(), torch.randn(3, 4), torch.randn(3, 4)))
def conditioning(model, x, cond):
    return model(x, cond)


class Checkpointed(nn.Module):
    def __init__(self):
        super().__init__()
        self.block = MLP()
        self.block.drop.p = 0.0

    def forward(self, x):
        return torch.utils.checkpoint.checkpoint(self.block, x, use_reentrant=False)


@programs(with_input(Checkpointed))
def checkpointed_block(model, x):
    return model(x)


class StochasticDepth(nn.Module):
    def __init__(self, p=0.5):
        super().__init__()
        self.p = p
        self.lin = nn.Linear(4, 4)

    def forward(self, x):
        if not self.training or self.p == 0.0:
            return x + self.lin(x)
        keep = 1 - self.p
        mask = x.new_empty((x.shape[0],) + (1,) * (x.ndim - 1)).bernoulli_(keep)
        return x + self.lin(x) * mask / keep


@programs(with_input(StochasticDepth))
def stochastic_depth(model, x):
    return model(x)


class RMSNorm(nn.Module):
    def __init__(self, dim, eps=1e-6):
        super().__init__()
        self.eps = eps
        self.weight = nn.Parameter(torch.ones(dim))

    def _norm(self, x):
        return x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + self.eps)

    def forward(self, x):
        return self._norm(x.float()).type_as(x) * self.weight

    def extra_repr(self):
        return f"eps={self.eps}"


@programs(with_input(lambda: RMSNorm(4)))
def rms_norm(model, x):
    return model(x), model.extra_repr()


class MultiInput(nn.Module):
    def __init__(self):
        super().__init__()
        self.towers = nn.ModuleDict({"image": nn.Linear(4, 4), "text": nn.Linear(3, 4)})

    def forward(self, inputs):
        return sum(self.towers[name](value) for name, value in inputs.items() if name in self.towers)


@programs(lambda: (MultiInput(), {"image": torch.randn(2, 4), "text": torch.randn(2, 3), "id": 7}))
def dictionary_of_towers(model, inputs):
    return model(inputs)


@programs(with_input(lambda: nn.ModuleList([nn.Linear(4, 4)])))
def append_to_a_module_list(layers, x):
    layers.append(nn.ReLU())
    for layer in layers:
        x = layer(x)
    return x


@programs(with_input(lambda: nn.Embedding(10, 4, padding_idx=0), (1, 1)))
def embedding_bag_of_words(embed, x):
    ids = torch.tensor([[1, 2, 0], [3, 0, 0]])
    vectors = embed(ids)
    mask = (ids != embed.padding_idx).unsqueeze(-1)
    return (vectors * mask).sum(1) / mask.sum(1)


@programs(with_input(MLP))
def requires_grad_of_module(model, x):
    model.requires_grad_(False)
    return model(x).requires_grad


@programs(with_input(MLP))
def repr_of_module_parts(model, x):
    return model.fc1.in_features, str(model.act), model.__class__.__name__, model(x)


@programs(with_input(MLP))
def full_backward_hook(model, x):
    model.fc1.register_full_backward_hook(lambda m, gi, go: None)
    return model(x)


@programs(with_input(MLP))
def tensor_hook_on_activation(model, x):
    y = model.fc1(x)
    y.register_hook(lambda g: g * 2)
    return model.fc2(y)
