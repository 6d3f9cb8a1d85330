"""A language model in the style of model libraries: config objects, outputs that are dataclasses and dicts, caches."""

# The programs keep the style of users, against the advice of linters.

from __future__ import annotations

import collections
import dataclasses
from typing import Any

import pytest
import torch
from torch import nn

from tests.end_to_end.programs import Programs

programs = Programs()


@pytest.mark.parametrize("program", programs)
def test_same_as_eager(program):
    program.check()


class Config:
    def __init__(self, **changes):
        self.hidden, self.heads, self.layers, self.vocabulary = 8, 2, 2, 20
        self.use_return_dict = self.use_cache = True
        self.output_hidden_states = False
        for name, value in changes.items():
            setattr(self, name, value)


class ModelOutput(collections.OrderedDict):
    def __post_init__(self):
        for field in dataclasses.fields(self):
            value = getattr(self, field.name)
            if value is not None:
                self[field.name] = value

    def __getitem__(self, key):
        if isinstance(key, str):
            return {k: v for k, v in self.items()}[key]  # noqa: C416
        return self.to_tuple()[key]

    def __setattr__(self, name, value):
        if name in self.keys() and value is not None:
            super().__setitem__(name, value)
        super().__setattr__(name, value)

    def __setitem__(self, key, value):
        super().__setitem__(key, value)
        super().__setattr__(key, value)

    def to_tuple(self):
        return tuple(self[key] for key in self.keys())


@dataclasses.dataclass
class DecoderOutput(ModelOutput):
    loss: Any = None
    logits: Any = None
    last_hidden_state: Any = None
    past_key_values: Any = None
    hidden_states: Any = None


class Cache:
    def __init__(self):
        self.keys: list[torch.Tensor] = []
        self.values: list[torch.Tensor] = []
        self.seen = 0

    def __len__(self):
        return len(self.keys)

    def __iter__(self):
        for i in range(len(self)):
            yield self.keys[i], self.values[i]

    def get_seq_length(self, layer=0):
        return 0 if len(self.keys) <= layer else self.keys[layer].shape[-2]

    def update(self, key, value, layer, options=None):
        if layer == 0:
            self.seen += key.shape[-2]
        if len(self.keys) <= layer:
            self.keys.append(key)
            self.values.append(value)
        else:
            self.keys[layer] = torch.cat([self.keys[layer], key], dim=-2)
            self.values[layer] = torch.cat([self.values[layer], value], dim=-2)
        return self.keys[layer], self.values[layer]

    @classmethod
    def from_tuples(cls, past):
        cache = cls()
        for layer, (key, value) in enumerate(past or ()):
            cache.update(key, value, layer)
        return cache


class Attention(nn.Module):
    def __init__(self, config, layer):
        super().__init__()
        self.config, self.layer = config, layer
        self.q, self.k, self.v, self.o = (nn.Linear(config.hidden, config.hidden) for _ in range(4))
        self.head_size = config.hidden // config.heads

    def forward(self, x, mask=None, past_key_values=None, output_attentions=False, **kwargs):
        batch, length, _ = x.size()

        def heads(t):
            return t.view(batch, -1, self.config.heads, self.head_size).transpose(1, 2)

        q, k, v = map(heads, (self.q(x), self.k(x), self.v(x)))
        if past_key_values is not None:
            k, v = past_key_values.update(k, v, self.layer, {"position": None})
        weights = q @ k.transpose(2, 3) / self.head_size**0.5
        if mask is not None:
            weights = weights + mask[:, :, :, : k.shape[-2]]
        weights = nn.functional.softmax(weights, dim=-1, dtype=torch.float32).to(q.dtype)
        outputs = (self.o((weights @ v).transpose(1, 2).contiguous().reshape(batch, length, -1)),)
        if output_attentions:
            outputs += (weights,)
        return outputs


class Layer(nn.Module):
    def __init__(self, config, layer):
        super().__init__()
        self.attention = Attention(config, layer)
        self.norms = nn.ModuleList([nn.LayerNorm(config.hidden) for _ in range(2)])
        self.mlp = nn.Sequential(nn.Linear(config.hidden, 16), nn.GELU(), nn.Linear(16, config.hidden))

    def forward(self, hidden_states, **kwargs):
        residual = hidden_states
        hidden_states, *rest = self.attention(self.norms[0](hidden_states), **kwargs)
        hidden_states = residual + hidden_states
        return (hidden_states + self.mlp(self.norms[1](hidden_states)), *rest)


class Decoder(nn.Module):
    def __init__(self, config):
        super().__init__()
        self.config = config
        self.embedding = nn.Embedding(config.vocabulary, config.hidden)
        self.layers = nn.ModuleList([Layer(config, i) for i in range(config.layers)])
        self.norm = nn.LayerNorm(config.hidden)

    @property
    def dtype(self):
        return next(p.dtype for p in self.parameters() if p.is_floating_point())

    @property
    def device(self):
        return next(self.parameters()).device

    def mask(self, attention_mask, length, past):
        lowest = torch.finfo(self.dtype).min
        mask = torch.full((length, length + past), lowest, device=self.device).triu(past + 1)[None, None]
        if attention_mask is not None:
            mask = mask.expand(attention_mask.shape[0], 1, length, length + past).clone()
            mask = mask.masked_fill(attention_mask[:, None, None, :] == 0, lowest)
        return mask

    def forward(
        self,
        input_ids=None,
        attention_mask=None,
        past_key_values=None,
        inputs_embeds=None,
        use_cache=None,
        output_hidden_states=None,
        return_dict=None,
        **kwargs,
    ):
        config = self.config
        keep = output_hidden_states if output_hidden_states is not None else config.output_hidden_states
        use_cache = use_cache if use_cache is not None else config.use_cache
        return_dict = return_dict if return_dict is not None else config.use_return_dict
        if (input_ids is None) ^ (inputs_embeds is not None):
            raise ValueError("give either input_ids or inputs_embeds")
        x = self.embedding(input_ids) if inputs_embeds is None else inputs_embeds
        as_tuples = use_cache and not isinstance(past_key_values, Cache)
        if as_tuples:
            past_key_values = Cache.from_tuples(past_key_values)
        past = past_key_values.get_seq_length() if past_key_values is not None else 0
        mask = self.mask(attention_mask, x.shape[1], past)
        kept = () if keep else None
        for layer in self.layers[: config.layers]:
            if keep:
                kept += (x,)
            x = layer(x, mask=mask, past_key_values=past_key_values, **kwargs)[0]
        x = self.norm(x)
        cache = past_key_values if use_cache else None
        if as_tuples:
            cache = tuple(cache)
        if not return_dict:
            return tuple(value for value in (x, cache, kept) if value is not None)
        return DecoderOutput(last_hidden_state=x, past_key_values=cache, hidden_states=kept)


class LanguageModel(nn.Module):
    def __init__(self, **changes):
        super().__init__()
        self.config = Config(**changes)
        self.model = Decoder(self.config)
        self.head = nn.Linear(self.config.hidden, self.config.vocabulary, bias=False)
        self.head.weight = self.model.embedding.weight

    def forward(self, input_ids=None, labels=None, return_dict=None, **kwargs):
        return_dict = return_dict if return_dict is not None else self.config.use_return_dict
        outputs = self.model(input_ids=input_ids, return_dict=return_dict, **kwargs)
        logits = self.head(outputs[0]).float()
        loss = None
        if labels is not None:
            shifted = logits[..., :-1, :].contiguous().view(-1, self.config.vocabulary)
            loss = nn.functional.cross_entropy(shifted, labels[..., 1:].contiguous().view(-1))
        if not return_dict:
            rest = (logits, *outputs[1:])
            return rest if loss is None else (loss, *rest)
        return DecoderOutput(
            loss=loss,
            logits=logits,
            past_key_values=outputs.past_key_values,
            hidden_states=outputs.hidden_states,
        )


def tokens():
    return torch.randint(0, 20, (2, 5))


def model():
    return LanguageModel(), tokens()


@programs(model)
def output_read_in_every_way(m, ids):
    out = m(input_ids=ids, labels=ids)
    return out.loss, out["logits"], out[0], list(out.keys()), out.to_tuple()[1]


@programs(model)
def output_returned(m, ids):
    return m(input_ids=ids, labels=ids)


@programs(model)
def plain_tuples(m, ids):
    return m(input_ids=ids, labels=ids, return_dict=False, use_cache=False, output_hidden_states=True)


@programs(lambda: (LanguageModel(use_cache=False), tokens(), torch.tensor([[0, 1, 1, 1, 1], [1, 1, 1, 1, 1]])))
def padded(m, ids, attention_mask):
    return m(input_ids=ids, attention_mask=attention_mask).logits


@programs(lambda: (LanguageModel(), tokens(), Cache()))
def cache_object_from_outside(m, ids, cache):
    first = m(input_ids=ids, past_key_values=cache)
    second = m(input_ids=ids[:, :1], past_key_values=first.past_key_values)
    return second.logits, len(cache), cache.seen


@programs(model)
def cache_as_tuples(m, ids):
    first = m(input_ids=ids)
    return m(input_ids=ids[:, :1], past_key_values=first.past_key_values)


@programs(model)
def greedy_decoding(m, ids):
    cache, step = None, ids
    with torch.no_grad():
        for _ in range(3):
            out = m(input_ids=step, past_key_values=cache)
            cache, step = out.past_key_values, out.logits[:, -1:].argmax(-1)
            ids = torch.cat([ids, step], dim=1)
    return ids


@programs(lambda: (LanguageModel(), torch.randn(2, 5, 8)))
def embeddings_instead_of_tokens(m, embeddings):
    return m.model(inputs_embeds=embeddings, output_hidden_states=True).hidden_states


@programs(model)
def wrong_arguments(m, ids):
    try:
        return m.model()
    except ValueError as error:
        return ids * 2, str(error)
