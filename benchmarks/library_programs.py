"""Owns which programs of other libraries are looked at: models of `transformers` with tiny configurations.

It is data alone, so that the programs can be named without the libraries; `library_worker.py` builds them. Weights are
random and nothing is downloaded.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

Settings = Mapping[str, Any]


@dataclass(frozen=True)
class Program:
    """A model and what is done with it.

    `model`, `config`: names in transformers. `inputs`: a name in `library_worker.INPUTS`. `generate`: the arguments of
    `generate()` whose tokens are compared; None for inference and training steps. `other_path`: the library itself
    computes in another way while it is compiled, so results are close and not equal. `lora`: peft trains low-rank
    factors beside frozen weights.
    """

    model: str
    config: str
    settings: Settings = field(default_factory=dict)
    inputs: str = "language"
    generate: Settings | None = None
    other_path: bool = False
    lora: bool = False

    @property
    def packages(self) -> tuple[str, ...]:
        """What has to be installed to run it."""
        return ("transformers", "peft") if self.lora else ("transformers",)


LAYERS = {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 40}
ENCODER = dict(LAYERS, vocab_size=99, max_position_embeddings=64)
DECODER = dict(ENCODER, num_key_value_heads=2, pad_token_id=0, bos_token_id=1, eos_token_id=2)
PICTURES = dict(LAYERS, image_size=32, patch_size=8)
GPT2 = {
    "vocab_size": 99,
    "n_embd": 32,
    "n_layer": 2,
    "n_head": 4,
    "n_positions": 64,
    "bos_token_id": 1,
    "eos_token_id": 2,
}
BOTH_HALVES = {
    "vocab_size": 99,
    "d_model": 32,
    "encoder_layers": 2,
    "decoder_layers": 2,
    "encoder_attention_heads": 4,
    "decoder_attention_heads": 4,
    "encoder_ffn_dim": 37,
    "decoder_ffn_dim": 37,
}
WHISPER = dict(
    BOTH_HALVES,
    num_mel_bins=8,
    max_source_positions=20,
    max_target_positions=32,
    pad_token_id=0,
    decoder_start_token_id=1,
    bos_token_id=1,
    eos_token_id=2,
    suppress_tokens=None,
    begin_suppress_tokens=None,
)
T5 = {
    "vocab_size": 99,
    "d_model": 32,
    "d_kv": 8,
    "d_ff": 37,
    "num_layers": 2,
    "num_heads": 4,
    "decoder_start_token_id": 0,
}
WAV2VEC2 = dict(
    LAYERS,
    vocab_size=20,
    conv_dim=(16, 16),
    conv_stride=(4, 4),
    conv_kernel=(8, 4),
    num_feat_extract_layers=2,
    num_conv_pos_embeddings=16,
    num_conv_pos_embedding_groups=2,
)
DEBERTA = dict(ENCODER, relative_attention=True, position_biased_input=False, pos_att_type=["c2p", "p2c"])
CLIP = {"text_config": dict(ENCODER, eos_token_id=2, bos_token_id=1), "vision_config": PICTURES, "projection_dim": 16}
SEGFORMER = {
    "depths": [1, 1, 1, 1],
    "hidden_sizes": [8, 16, 16, 16],
    "num_attention_heads": [1, 2, 2, 4],
    "decoder_hidden_size": 16,
}
SWIN = {"image_size": 32, "patch_size": 2, "embed_dim": 16, "depths": [1, 1], "num_heads": [2, 4], "window_size": 4}
OPT = {
    "vocab_size": 99,
    "hidden_size": 32,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "ffn_dim": 37,
    "max_position_embeddings": 64,
    "word_embed_proj_dim": 32,
}
LLAMA = ("LlamaForCausalLM", "LlamaConfig", DECODER)

PROGRAMS = {
    "bert": Program("BertForSequenceClassification", "BertConfig", ENCODER, "classes"),
    "roberta": Program("RobertaForMaskedLM", "RobertaConfig", ENCODER, "text"),
    "distilbert": Program(
        "DistilBertForSequenceClassification",
        "DistilBertConfig",
        {"vocab_size": 99, "dim": 32, "n_layers": 2, "n_heads": 4, "hidden_dim": 37},
        "classes",
    ),
    "deberta": Program("DebertaV2ForSequenceClassification", "DebertaV2Config", DEBERTA, "classes"),
    "electra": Program("ElectraForTokenClassification", "ElectraConfig", dict(ENCODER, embedding_size=16), "text"),
    "gpt2": Program("GPT2LMHeadModel", "GPT2Config", GPT2),
    "gptneox": Program("GPTNeoXForCausalLM", "GPTNeoXConfig", ENCODER),
    "opt": Program("OPTForCausalLM", "OPTConfig", OPT),
    "llama": Program(*LLAMA),
    "llama-lora": Program(*LLAMA, lora=True),
    "mistral": Program("MistralForCausalLM", "MistralConfig", dict(DECODER, sliding_window=8)),
    "qwen2": Program("Qwen2ForCausalLM", "Qwen2Config", DECODER),
    "qwen3": Program("Qwen3ForCausalLM", "Qwen3Config", dict(DECODER, head_dim=8)),
    "gemma2": Program("Gemma2ForCausalLM", "Gemma2Config", dict(DECODER, head_dim=8)),
    "phi3": Program("Phi3ForCausalLM", "Phi3Config", DECODER),
    "mixtral": Program("MixtralForCausalLM", "MixtralConfig", dict(DECODER, num_local_experts=4)),
    "mamba": Program(
        "MambaForCausalLM",
        "MambaConfig",
        {"vocab_size": 99, "hidden_size": 32, "num_hidden_layers": 2},
        other_path=True,
    ),
    "t5": Program("T5ForConditionalGeneration", "T5Config", T5, "sequences"),
    "bart": Program(
        "BartForConditionalGeneration", "BartConfig", dict(BOTH_HALVES, max_position_embeddings=64), "sequences"
    ),
    "whisper": Program("WhisperForConditionalGeneration", "WhisperConfig", WHISPER, "speech"),
    "wav2vec2": Program("Wav2Vec2ForCTC", "Wav2Vec2Config", WAV2VEC2, "sound"),
    "vit": Program("ViTForImageClassification", "ViTConfig", PICTURES, "pictures"),
    "swin": Program("SwinForImageClassification", "SwinConfig", SWIN, "pictures"),
    "resnet": Program(
        "ResNetForImageClassification",
        "ResNetConfig",
        {"embedding_size": 8, "hidden_sizes": [8, 16], "depths": [1, 1]},
        "pictures",
    ),
    "convnext": Program(
        "ConvNextForImageClassification",
        "ConvNextConfig",
        {"hidden_sizes": [8, 16, 16, 16], "depths": [1, 1, 1, 1]},
        "pictures",
    ),
    "segformer": Program("SegformerForSemanticSegmentation", "SegformerConfig", SEGFORMER, "pictures"),
    "clip": Program("CLIPModel", "CLIPConfig", CLIP, "captions"),
    "gpt2-generate": Program("GPT2LMHeadModel", "GPT2Config", GPT2, "text", generate={}),
    "llama-beams": Program(*LLAMA, "text", generate={"num_beams": 3}),
    "llama-static-cache": Program(*LLAMA, "text", generate={"cache_implementation": "static"}),
}
