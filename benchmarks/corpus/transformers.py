"""Programs in the style of the transformers library: configurations, outputs, caches, masks, generation steps.

Each program keeps the style of its authors, and none was chosen because a compiler captures it.
"""

import math
from collections import OrderedDict
from dataclasses import dataclass, fields
from functools import partial
from typing import Any, Optional

import torch
import torch.nn.functional as F
from torch import nn

from benchmarks.coverage_case import Corpus

programs = Corpus()


class Config:
    model_type = "tiny"

    def __init__(self, **kwargs):
        self.vocab_size = kwargs.pop("vocab_size", 16)
        self.hidden_size = kwargs.pop("hidden_size", 8)
        self.num_attention_heads = kwargs.pop("num_attention_heads", 2)
        self.num_key_value_heads = kwargs.pop("num_key_value_heads", 1)
        self.num_hidden_layers = kwargs.pop("num_hidden_layers", 2)
        self.hidden_act = kwargs.pop("hidden_act", "silu")
        self.use_cache = kwargs.pop("use_cache", True)
        self.output_attentions = False
        self.output_hidden_states = False
        self.use_return_dict = True
        for key, value in kwargs.items():
            setattr(self, key, value)


class ModelOutput(OrderedDict):
    def __post_init__(self):
        for f in fields(self):
            v = getattr(self, f.name)
            if v is not None:
                self[f.name] = v

    def __getitem__(self, k):
        if isinstance(k, str):
            return dict(self.items())[k]
        return self.to_tuple()[k]

    def __setattr__(self, name, value):
        if name in self.keys() and value is not None:
            super().__setitem__(name, value)
        super().__setattr__(name, value)

    def __setitem__(self, key, value):
        super().__setitem__(key, value)
        super().__setattr__(key, value)

    def to_tuple(self):
        return tuple(self[k] for k in self.keys())


@dataclass
class BaseOutput(ModelOutput):
    last_hidden_state: Any = None
    past_key_values: Optional[Any] = None
    hidden_states: Optional[tuple] = None
    attentions: Optional[tuple] = None


@dataclass
class CausalOutput(ModelOutput):
    loss: Any = None
    logits: Any = None
    past_key_values: Any = None


ACT2FN = {"silu": F.silu, "gelu": nn.functional.gelu, "relu": F.relu}


class Norm(nn.Module):
    def __init__(self, hidden_size, eps=1e-6):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(hidden_size))
        self.variance_epsilon = eps

    def forward(self, hidden_states):
        input_dtype = hidden_states.dtype
        hidden_states = hidden_states.to(torch.float32)
        variance = hidden_states.pow(2).mean(-1, keepdim=True)
        hidden_states = hidden_states * torch.rsqrt(variance + self.variance_epsilon)
        return self.weight * hidden_states.to(input_dtype)


class Rotary(nn.Module):
    def __init__(self, dim, base=10000):
        super().__init__()
        inv_freq = 1.0 / (base ** (torch.arange(0, dim, 2).float() / dim))
        self.register_buffer("inv_freq", inv_freq, persistent=False)

    @torch.no_grad()
    def forward(self, x, position_ids):
        freqs = position_ids[:, :, None].float() * self.inv_freq[None, None, :]
        emb = torch.cat((freqs, freqs), dim=-1)
        return emb.cos().to(dtype=x.dtype), emb.sin().to(dtype=x.dtype)


def rotate_half(x):
    x1 = x[..., : x.shape[-1] // 2]
    x2 = x[..., x.shape[-1] // 2 :]
    return torch.cat((-x2, x1), dim=-1)


def apply_rotary(q, k, cos, sin, unsqueeze_dim=1):
    cos, sin = cos.unsqueeze(unsqueeze_dim), sin.unsqueeze(unsqueeze_dim)
    return (q * cos) + (rotate_half(q) * sin), (k * cos) + (rotate_half(k) * sin)


def repeat_kv(hidden_states, n_rep):
    batch, heads, slen, dim = hidden_states.shape
    if n_rep == 1:
        return hidden_states
    hidden_states = hidden_states[:, :, None, :, :].expand(batch, heads, n_rep, slen, dim)
    return hidden_states.reshape(batch, heads * n_rep, slen, dim)


class DynamicCache:
    def __init__(self):
        self.key_cache = []
        self.value_cache = []

    def update(self, key, value, layer_idx):
        if len(self.key_cache) <= layer_idx:
            self.key_cache.append(key)
            self.value_cache.append(value)
        else:
            self.key_cache[layer_idx] = torch.cat([self.key_cache[layer_idx], key], dim=-2)
            self.value_cache[layer_idx] = torch.cat([self.value_cache[layer_idx], value], dim=-2)
        return self.key_cache[layer_idx], self.value_cache[layer_idx]

    def get_seq_length(self, layer_idx=0):
        return 0 if len(self.key_cache) <= layer_idx else self.key_cache[layer_idx].shape[-2]

    def __len__(self):
        return len(self.key_cache)

    def __getitem__(self, i):
        return self.key_cache[i], self.value_cache[i]

    def __iter__(self):
        for i in range(len(self)):
            yield self[i]


class StaticCache:
    def __init__(self, length=8, layers=2):
        self.k = [torch.zeros(2, 1, length, 4) for _ in range(layers)]
        self.v = [torch.zeros(2, 1, length, 4) for _ in range(layers)]

    def update(self, key, value, layer_idx, position):
        self.k[layer_idx].index_copy_(2, position, key)
        self.v[layer_idx].index_copy_(2, position, value)
        return self.k[layer_idx], self.v[layer_idx]


def eager_attention(module, q, k, v, mask, scaling, **kwargs):
    k, v = repeat_kv(k, module.groups), repeat_kv(v, module.groups)
    weights = torch.matmul(q, k.transpose(2, 3)) * scaling
    if mask is not None:
        weights = weights + mask[:, :, :, : k.shape[-2]]
    weights = F.softmax(weights, dim=-1, dtype=torch.float32).to(q.dtype)
    return torch.matmul(weights, v).transpose(1, 2).contiguous(), weights


def sdpa_attention(module, q, k, v, mask, scaling, **kwargs):
    k, v = repeat_kv(k, module.groups), repeat_kv(v, module.groups)
    out = F.scaled_dot_product_attention(q, k, v, attn_mask=mask, scale=scaling)
    return out.transpose(1, 2).contiguous(), None


ATTENTION = {"eager": eager_attention, "sdpa": sdpa_attention}


class Attention(nn.Module):
    def __init__(self, config, layer_idx):
        super().__init__()
        self.config, self.layer_idx = config, layer_idx
        self.head_dim = config.hidden_size // config.num_attention_heads
        self.groups = config.num_attention_heads // config.num_key_value_heads
        self.scaling = self.head_dim**-0.5
        self.q_proj = nn.Linear(config.hidden_size, config.num_attention_heads * self.head_dim, bias=False)
        self.k_proj = nn.Linear(config.hidden_size, config.num_key_value_heads * self.head_dim, bias=False)
        self.v_proj = nn.Linear(config.hidden_size, config.num_key_value_heads * self.head_dim, bias=False)
        self.o_proj = nn.Linear(config.num_attention_heads * self.head_dim, config.hidden_size, bias=False)

    def forward(self, hidden_states, position_embeddings, attention_mask=None, past_key_values=None, **kwargs):
        input_shape = hidden_states.shape[:-1]
        shape = (*input_shape, -1, self.head_dim)
        q = self.q_proj(hidden_states).view(shape).transpose(1, 2)
        k = self.k_proj(hidden_states).view(shape).transpose(1, 2)
        v = self.v_proj(hidden_states).view(shape).transpose(1, 2)
        q, k = apply_rotary(q, k, *position_embeddings)
        if past_key_values is not None:
            k, v = past_key_values.update(k, v, self.layer_idx)
        interface = eager_attention
        if getattr(self.config, "attn", "eager") != "eager":
            interface = ATTENTION[self.config.attn]
        out, weights = interface(self, q, k, v, attention_mask, self.scaling, **kwargs)
        return self.o_proj(out.reshape(*input_shape, -1).contiguous()), weights


class Layer(nn.Module):
    def __init__(self, config, layer_idx):
        super().__init__()
        self.self_attn = Attention(config, layer_idx)
        self.gate = nn.Linear(config.hidden_size, 16, bias=False)
        self.up = nn.Linear(config.hidden_size, 16, bias=False)
        self.down = nn.Linear(16, config.hidden_size, bias=False)
        self.act_fn = ACT2FN[config.hidden_act]
        self.input_layernorm = Norm(config.hidden_size)
        self.post_attention_layernorm = Norm(config.hidden_size)

    def forward(self, hidden_states, output_attentions: Optional[bool] = False, **kwargs):
        residual = hidden_states
        hidden_states, weights = self.self_attn(self.input_layernorm(hidden_states), **kwargs)
        hidden_states = residual + hidden_states
        residual = hidden_states
        hidden_states = self.post_attention_layernorm(hidden_states)
        hidden_states = residual + self.down(self.act_fn(self.gate(hidden_states)) * self.up(hidden_states))
        outputs = (hidden_states,)
        if output_attentions:
            outputs += (weights,)
        return outputs


class PreTrained(nn.Module):
    base_model_prefix = "model"
    supports_gradient_checkpointing = True

    def __init__(self, config, *args):
        super().__init__()
        self.config = config

    @property
    def device(self):
        return next(self.parameters()).device

    @property
    def dtype(self):
        return next(p.dtype for p in self.parameters() if p.is_floating_point())

    def get_extended_attention_mask(self, mask, dtype=None):
        dtype = self.dtype if dtype is None else dtype
        extended = mask[:, None, None, :].to(dtype=dtype)
        return (1.0 - extended) * torch.finfo(dtype).min

    def post_init(self):
        self.apply(self._init_weights)

    def _init_weights(self, module):
        if isinstance(module, nn.Linear):
            module.weight.data.normal_(mean=0.0, std=0.02)


class Model(PreTrained):
    def __init__(self, config):
        super().__init__(config)
        self.embed_tokens = nn.Embedding(config.vocab_size, config.hidden_size)
        self.layers = nn.ModuleList([Layer(config, i) for i in range(config.num_hidden_layers)])
        self.norm = Norm(config.hidden_size)
        self.rotary = Rotary(config.hidden_size // config.num_attention_heads)
        self.gradient_checkpointing = False
        self.post_init()

    def forward(
        self,
        input_ids=None,
        attention_mask=None,
        past_key_values=None,
        inputs_embeds=None,
        use_cache=None,
        output_attentions=None,
        output_hidden_states=None,
        return_dict=None,
    ):
        if (input_ids is None) ^ (inputs_embeds is not None):
            raise ValueError("You must specify exactly one of input_ids or inputs_embeds")
        output_attentions = output_attentions if output_attentions is not None else self.config.output_attentions
        output_hidden_states = (
            output_hidden_states if output_hidden_states is not None else self.config.output_hidden_states
        )
        use_cache = use_cache if use_cache is not None else self.config.use_cache
        return_dict = return_dict if return_dict is not None else self.config.use_return_dict
        if inputs_embeds is None:
            inputs_embeds = self.embed_tokens(input_ids)
        if use_cache and past_key_values is None:
            past_key_values = DynamicCache()
        seen = past_key_values.get_seq_length() if isinstance(past_key_values, DynamicCache) else 0
        length = inputs_embeds.shape[1]
        position_ids = torch.arange(seen, seen + length, device=inputs_embeds.device).unsqueeze(0)
        causal = torch.full((length, seen + length), torch.finfo(inputs_embeds.dtype).min)
        causal = torch.triu(causal, diagonal=seen + 1)[None, None]
        if attention_mask is not None:
            causal = causal + self.get_extended_attention_mask(attention_mask)
        hidden_states = inputs_embeds
        embeddings = self.rotary(hidden_states, position_ids)
        all_hidden = () if output_hidden_states else None
        all_attn = () if output_attentions else None
        for layer in self.layers[: self.config.num_hidden_layers]:
            if output_hidden_states:
                all_hidden += (hidden_states,)
            outputs = layer(
                hidden_states,
                output_attentions=output_attentions,
                position_embeddings=embeddings,
                attention_mask=causal,
                past_key_values=past_key_values,
            )
            hidden_states = outputs[0]
            if output_attentions:
                all_attn += (outputs[1],)
        hidden_states = self.norm(hidden_states)
        if not return_dict:
            return tuple(v for v in [hidden_states, past_key_values, all_hidden, all_attn] if v is not None)
        return BaseOutput(hidden_states, past_key_values if use_cache else None, all_hidden, all_attn)


class CausalLM(PreTrained):
    _tied_weights_keys = ("lm_head.weight",)

    def __init__(self, config):
        super().__init__(config)
        self.model = Model(config)
        self.lm_head = nn.Linear(config.hidden_size, config.vocab_size, bias=False)
        self.lm_head.weight = self.model.embed_tokens.weight

    def forward(self, input_ids, labels=None, num_logits_to_keep=0, **kwargs):
        outputs = self.model(input_ids=input_ids, **kwargs)
        hidden_states = outputs[0]
        keep = slice(-num_logits_to_keep, None) if num_logits_to_keep else slice(None)
        logits = self.lm_head(hidden_states[:, keep, :])
        loss = None
        if labels is not None:
            logits = logits.float()
            loss = F.cross_entropy(logits[:, :-1].reshape(-1, logits.size(-1)), labels[:, 1:].reshape(-1))
        return CausalOutput(loss=loss, logits=logits, past_key_values=outputs.past_key_values)


def ids(length=5):
    return torch.randint(0, 16, (2, length))


def base(**options):
    return lambda: (Model(Config(**options)), ids())


def causal(**options):
    return lambda: (CausalLM(Config(**options)), ids())


@programs(base())
def base_model(model, input_ids):
    return model(input_ids)


@programs(base(attn="sdpa"))
def attention_from_a_table(model, input_ids):
    return model(input_ids, use_cache=False).last_hidden_state


@programs(base())
def all_hidden_states_and_attentions(model, input_ids):
    out = model(input_ids, output_hidden_states=True, output_attentions=True)
    return out.hidden_states, out.attentions, list(out.keys())


@programs(base())
def tuple_output(model, input_ids):
    return model(input_ids, return_dict=False)[0]


@programs(base())
def attention_mask(model, input_ids):
    mask = torch.ones_like(input_ids)
    mask[0, -1] = 0
    return model(input_ids, attention_mask=mask, use_cache=False)["last_hidden_state"]


@programs(base())
def embeddings_as_input(model, input_ids):
    return model(inputs_embeds=model.embed_tokens(input_ids) * 2, use_cache=False)[0]


@programs(base())
def wrong_arguments_are_caught(model, input_ids):
    try:
        model()
    except ValueError as error:
        return str(error), input_ids + 1


@programs(causal())
def causal_language_model(model, input_ids):
    return model(input_ids, labels=input_ids)


@programs(causal())
def loss_only(model, input_ids):
    return model(input_ids, labels=input_ids, use_cache=False).loss


@programs(causal())
def last_logits(model, input_ids):
    return model(input_ids, num_logits_to_keep=1).logits


@programs(causal(num_key_value_heads=2, hidden_act="gelu"))
def another_configuration(model, input_ids):
    return model(input_ids).logits


@programs(causal())
def greedy_steps(model, input_ids):
    cache = DynamicCache()
    out = input_ids
    for _ in range(3):
        logits = model(input_ids, past_key_values=cache).logits
        input_ids = logits[:, -1:].argmax(-1)
        out = torch.cat([out, input_ids], dim=-1)
    return out


def filled_cache():
    cache = DynamicCache()
    for layer in range(2):
        cache.update(torch.randn(2, 1, 3, 4), torch.randn(2, 1, 3, 4), layer)
    return cache


@programs(lambda: (CausalLM(Config()), ids(1), filled_cache()))
def one_step_with_a_cache(model, input_ids, cache):
    out = model(input_ids, past_key_values=cache)
    return out.logits, cache.get_seq_length(), len(cache), [k.shape for k, v in cache]


@programs(lambda: (StaticCache(), torch.randn(2, 1, 1, 4), torch.tensor([3])))
def static_cache(cache, key, position):
    k, v = cache.update(key, key * 2, 1, position)
    return k.sum() + v.sum()


@programs(causal())
def model_properties(model, input_ids):
    return model.device, model.dtype, model.config.model_type, model(input_ids).logits


@programs(causal())
def tied_embeddings(model, input_ids):
    return [getattr(model.model.embed_tokens, "weight") is model.lm_head.weight], model(input_ids).logits


@programs(lambda: (torch.randn(2, 16), 0.7, 5), lambda: (torch.randn(2, 16), 0.5, 3))
def sample_next_token(logits, temperature, k):
    logits = logits / temperature
    kth = torch.topk(logits, k)[0][..., -1, None]
    logits = logits.masked_fill(logits < kth, -float("inf"))
    return torch.multinomial(F.softmax(logits, dim=-1), num_samples=1)


@programs(lambda: (torch.randn(2, 16), 0.9))
def nucleus_filter(logits, top_p):
    sorted_logits, sorted_indices = torch.sort(logits, descending=True)
    cumulative = sorted_logits.softmax(dim=-1).cumsum(dim=-1)
    remove = cumulative > top_p
    remove[..., 1:] = remove[..., :-1].clone()
    remove[..., 0] = 0
    return logits.masked_fill(remove.scatter(1, sorted_indices, remove), -float("inf"))


@programs(lambda: (torch.randn(2, 16), ids()))
def repetition_penalty(scores, input_ids):
    score = torch.gather(scores, 1, input_ids)
    score = torch.where(score < 0, score * 1.2, score / 1.2)
    return scores.scatter(1, input_ids, score)


class Processor:
    def __call__(self, ids, scores):
        raise NotImplementedError


class MinLength(Processor):
    def __init__(self, n, eos):
        self.n, self.eos = n, eos

    def __call__(self, ids, scores):
        if ids.shape[-1] < self.n:
            scores = scores.clone()
            scores[:, self.eos] = -math.inf
        return scores


class Temperature(Processor):
    def __init__(self, t):
        self.t = t

    def __call__(self, ids, scores):
        return scores / self.t


class ProcessorList(list):
    def __call__(self, ids, scores, **kwargs):
        for processor in self:
            scores = processor(ids, scores)
        return scores


@programs(lambda: (ProcessorList([MinLength(8, 2), Temperature(0.5)]), ids(), torch.randn(2, 16)))
def logits_processors(processors, input_ids, scores):
    return processors(input_ids, scores)


@programs(lambda: (torch.ones(2, 5, dtype=torch.long), torch.float32))
def prepare_4d_mask(mask, dtype):
    length = mask.shape[-1]
    causal = torch.full((length, length), torch.finfo(dtype).min, dtype=dtype).triu(1)
    causal = causal[None, None].expand(mask.shape[0], 1, -1, -1).clone()
    padding = causal[:, :, :, :length] + mask[:, None, None, :]
    padding = padding == 0
    causal[:, :, :, :length] = causal[:, :, :, :length].masked_fill(padding, torch.finfo(dtype).min)
    return causal


class RelativeBias(nn.Module):
    def __init__(self, buckets=8, heads=2):
        super().__init__()
        self.buckets = buckets
        self.table = nn.Embedding(buckets, heads)

    @staticmethod
    def bucket(relative, buckets=8, max_distance=16):
        n = buckets // 2
        out = (relative > 0).to(torch.long) * n
        relative = torch.abs(relative)
        exact = n // 2
        large = exact + (torch.log(relative.float() / exact) / math.log(max_distance / exact) * (n - exact)).to(
            torch.long
        )
        large = torch.min(large, torch.full_like(large, n - 1))
        return out + torch.where(relative < exact, relative, large)

    def forward(self, q, k):
        relative = torch.arange(k)[None, :] - torch.arange(q)[:, None]
        return self.table(self.bucket(relative, self.buckets)).permute(2, 0, 1).unsqueeze(0)


@programs(lambda: (RelativeBias(), torch.randn(2, 2, 4, 4)))
def relative_position_bias(module, scores):
    return scores + module(scores.size(-2), scores.size(-1))


def alibi(heads, length):
    slopes = torch.tensor([2 ** (-8 * (i + 1) / heads) for i in range(heads)])
    return slopes[:, None, None] * torch.arange(length)[None, None, :]


@programs(lambda: torch.randn(2, 4, 5, 5))
def alibi_bias(scores):
    return (scores + alibi(scores.size(1), scores.size(-1))).softmax(-1)


class BertEmbeddings(nn.Module):
    def __init__(self):
        super().__init__()
        self.word = nn.Embedding(16, 8, padding_idx=0)
        self.position = nn.Embedding(32, 8)
        self.kind = nn.Embedding(2, 8)
        self.norm = nn.LayerNorm(8, eps=1e-12)
        self.register_buffer("position_ids", torch.arange(32).expand((1, -1)), persistent=False)
        self.position_embedding_type = getattr(Config(), "position_embedding_type", "absolute")

    def forward(self, input_ids, token_type_ids=None, past_length=0):
        length = input_ids.size()[1]
        position_ids = self.position_ids[:, past_length : length + past_length]
        if token_type_ids is None:
            token_type_ids = torch.zeros(input_ids.size(), dtype=torch.long, device=self.position_ids.device)
        x = self.word(input_ids) + self.kind(token_type_ids)
        if self.position_embedding_type == "absolute":
            x += self.position(position_ids)
        return self.norm(x)


@programs(lambda: (BertEmbeddings(), ids()))
def bert_embeddings(module, input_ids):
    return module(input_ids), module(input_ids, past_length=2)


def chunked(fn, size, dim, *inputs):
    if size > 0:
        parts = tuple(t.chunk(t.shape[dim] // size, dim=dim) for t in inputs)
        return torch.cat(tuple(fn(*part) for part in zip(*parts)), dim=dim)
    return fn(*inputs)


@programs(lambda: (nn.Linear(8, 8), torch.randn(2, 4, 8)))
def chunked_feed_forward(layer, x):
    return chunked(lambda t: F.gelu(layer(t)), 2, 1, x)


@programs(lambda: (nn.Linear(8, 2), torch.randn(2, 5, 8), ids()))
def sequence_classification(head, hidden, input_ids):
    lengths = torch.eq(input_ids, 0).int().argmax(-1) - 1
    lengths = lengths % input_ids.shape[-1]
    logits = head(hidden)
    return logits[torch.arange(2), lengths]


@programs(lambda: (torch.randn(2, 3, 8, 8), nn.Conv2d(3, 8, 4, stride=4)))
def patch_embedding(pixels, projection):
    patches = projection(pixels).flatten(2).transpose(1, 2)
    cls = torch.zeros(1, 1, 8).expand(pixels.shape[0], -1, -1)
    return torch.cat((cls, patches), dim=1)


@programs(lambda: (torch.randn(2, 4, 8), torch.randn(4, 8)))
def window_partition(x, bias):
    b, n, c = x.shape
    x = x.view(b, 2, n // 2, c).permute(0, 2, 1, 3).contiguous()
    return x.view(b, n, c) + bias


class MoeBlock(nn.Module):
    def __init__(self):
        super().__init__()
        self.gate = nn.Linear(8, 4, bias=False)
        self.w = nn.Parameter(torch.randn(4, 8, 8))

    def forward(self, hidden):
        b, s, d = hidden.shape
        flat = hidden.view(-1, d)
        weights, selected = torch.topk(F.softmax(self.gate(flat), dim=1, dtype=torch.float), 2, dim=-1)
        weights /= weights.sum(dim=-1, keepdim=True)
        out = torch.einsum("td,edf->tef", flat, self.w)
        picked = out.gather(1, selected[..., None].expand(-1, -1, d))
        return (picked * weights[..., None]).sum(1).view(b, s, d), selected


@programs(lambda: (MoeBlock(), torch.randn(2, 3, 8)))
def dense_mixture_of_experts(module, x):
    return module(x)


class Gradient(PreTrained):
    def __init__(self):
        super().__init__(Config())
        self.block = nn.Linear(8, 8)
        self.gradient_checkpointing = True
        self._gradient_checkpointing_func = partial(torch.utils.checkpoint.checkpoint, use_reentrant=False)

    def forward(self, x):
        if self.gradient_checkpointing and self.training:
            return self._gradient_checkpointing_func(self.block.__call__, x)
        return self.block(x)


@programs(lambda: (Gradient(), torch.randn(2, 8)))
def gradient_checkpointing(model, x):
    return model(x)


@programs(lambda: {"input_ids": ids(), "labels": ids(), "text": "hello"})
def collate_and_move(batch):
    return {k: (v.to("cpu") if isinstance(v, torch.Tensor) else v) for k, v in batch.items()}


def can_return_tuple(fn):
    def wrapper(self, *args, **kwargs):
        wanted = kwargs.pop("return_dict", True)
        out = fn(self, *args, **kwargs)
        return out if wanted else out.to_tuple()

    return wrapper


class Decorated(nn.Module):
    @can_return_tuple
    def forward(self, x):
        return BaseOutput(last_hidden_state=x * 2)


@programs(lambda: (Decorated(), torch.randn(2, 8)))
def decorated_forward(model, x):
    return model(x, return_dict=False), model(x).last_hidden_state


@programs(lambda: (BaseOutput(last_hidden_state=torch.randn(2, 3), hidden_states=(torch.randn(2),)),))
def output_as_argument(out):
    return out.last_hidden_state + 1, out[1], "attentions" in out, out.to_tuple()[0].shape


@programs(lambda: (torch.randn(2, 4, 8), torch.tensor([4, 2])))
def pool_by_lengths(hidden, lengths):
    mask = torch.arange(hidden.size(1))[None, :] < lengths[:, None]
    return (hidden * mask.unsqueeze(-1)).sum(1) / lengths.unsqueeze(-1)


@programs(lambda: (torch.randn(2, 5, 6),))
def fused_qkv(x):
    q, k, v = x.view(2, 5, 3, 2).unbind(2)
    return torch.stack(torch.split(x, 2, dim=-1)).sum(0), q @ k.mT @ v


@programs(lambda: (torch.randn(2, 8),))
def new_gelu(x):
    return 0.5 * x * (1.0 + torch.tanh(math.sqrt(2.0 / math.pi) * (x + 0.044715 * torch.pow(x, 3.0))))


@programs(lambda: (CausalLM(Config()), ids()))
def perplexity(model, input_ids):
    with torch.inference_mode(False), torch.no_grad():
        logits = model(input_ids, use_cache=False).logits
    logp = logits[:, :-1].log_softmax(-1).gather(-1, input_ids[:, 1:, None]).squeeze(-1)
    return torch.exp(-logp.mean())


@programs(lambda: (CausalLM(Config()), ids()))
def beam_expansion(model, input_ids):
    beams = input_ids.repeat_interleave(2, dim=0)
    scores = model(beams, use_cache=False).logits[:, -1].log_softmax(-1)
    best, index = scores.view(2, -1).topk(2)
    return best, torch.div(index, 16, rounding_mode="floor"), index % 16
