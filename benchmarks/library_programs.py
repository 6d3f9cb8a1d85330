"""The programs of other libraries that are compiled and compared with eager: models with tiny configurations.

Contains data alone, so that the programs can be named without the libraries; `library_worker.py` builds the models.
Weights are random and nothing is downloaded. `python -m benchmarks libraries` and tests/models run the programs.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

Settings = Mapping[str, Any]


@dataclass(frozen=True)
class Program:
    """A model and its use."""

    #: The class in transformers, or the name that `timm.create_model` takes.
    model: str
    #: The class in transformers; empty for timm.
    config: str
    settings: Settings = field(default_factory=dict)
    #: A name in `library_worker.INPUTS`.
    inputs: str = "language"
    #: The arguments of `generate()` whose tokens are compared; None for inference and training steps.
    generate: Settings | None = None
    #: True if the library itself computes differently while it is compiled, so results are close and not equal.
    other_path: bool = False
    #: True if peft trains low-rank factors, with the model's own weights frozen.
    lora: bool = False

    @property
    def packages(self) -> tuple[str, ...]:
        """The packages that the model needs."""
        if not self.config:
            return ("timm",)
        return ("transformers", "peft") if self.lora else ("transformers",)


def _of(family: str, head: str, settings: Settings, inputs: str = "language", **more: Any) -> Program:
    """Returns a model and a configuration of transformers whose names share their first part."""
    return Program(f"{family}{head}", f"{family}Config", settings, inputs, **more)


def _timm(model: str, settings: Settings, inputs: str = "timm") -> Program:
    return Program(model, "", settings, inputs)


def _with_each_experts(name: str, program: Program) -> dict[str, Program]:
    """Returns a mixture of experts in each implementation of transformers."""
    return {
        f"{name}-{experts}": replace(program, settings={**program.settings, "experts_implementation": experts})
        for experts in ("eager", "batched_mm", "grouped_mm")
    }


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
SWIN = {
    "image_size": 32,
    "drop_path_rate": 0.0,
    "patch_size": 2,
    "embed_dim": 16,
    "depths": [1, 1],
    "num_heads": [2, 4],
    "window_size": 4,
}
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
LM = "ForCausalLM"
MASKED = "ForMaskedLM"
CLASSES = "ForImageClassification"
SEQUENCES = "ForConditionalGeneration"
SPEECH_TO_TEXT = dict(
    BOTH_HALVES,
    input_feat_per_channel=8,
    max_source_positions=40,
    max_target_positions=32,
    num_conv_layers=2,
    conv_channels=16,
    decoder_start_token_id=1,
)
HUBERT = dict(WAV2VEC2, hidden_dropout=0.0, feat_proj_dropout=0.0)
EXPERTS = {"num_experts_per_tok": 2, "moe_intermediate_size": 16}
DEEPSEEK = dict(
    DECODER,
    **EXPERTS,
    num_key_value_heads=4,
    n_routed_experts=4,
    n_group=2,
    topk_group=1,
    kv_lora_rank=8,
    q_lora_rank=8,
    qk_rope_head_dim=4,
    v_head_dim=8,
    qk_nope_head_dim=4,
    first_k_dense_replace=1,
)
QWEN3_NEXT = dict(
    DECODER,
    **EXPERTS,
    head_dim=8,
    shared_expert_intermediate_size=16,
    num_experts=4,
    linear_key_head_dim=8,
    linear_value_head_dim=8,
    linear_num_key_heads=2,
    linear_num_value_heads=4,
    layer_types=["linear_attention", "full_attention"],
)
STATES = {"vocab_size": 99, "hidden_size": 32, "num_hidden_layers": 2}
MAMBA2 = dict(STATES, num_heads=8, head_dim=8, state_size=8, n_groups=2, chunk_size=4)
JAMBA = dict(DECODER, num_experts=4, attn_layer_period=2, attn_layer_offset=1, mamba_d_state=8, mamba_dt_rank=4)
BAMBA = dict(
    DECODER,
    attn_layer_indices=[1],
    mamba_n_heads=8,
    mamba_d_head=8,
    mamba_d_state=8,
    mamba_n_groups=1,
    mamba_chunk_size=4,
)
GRANITE_MOE_HYBRID = dict(
    DECODER,
    num_local_experts=4,
    num_experts_per_tok=2,
    layer_types=["mamba", "attention"],
    mamba_n_heads=8,
    mamba_d_head=8,
    mamba_d_state=8,
    mamba_n_groups=1,
    mamba_chunk_size=4,
    shared_intermediate_size=16,
)
ZAMBA2 = dict(
    DECODER,
    num_hidden_layers=3,
    num_key_value_heads=4,
    mamba_d_state=8,
    mamba_ngroups=1,
    n_mamba_heads=8,
    mamba_headdim=8,
    chunk_size=4,
    attention_head_dim=16,
    layers_block_type=["mamba", "hybrid", "mamba"],
    num_mem_blocks=1,
)
GEMMA3N = dict(
    DECODER,
    head_dim=8,
    sliding_window=4,
    vocab_size_per_layer_input=99,
    hidden_size_per_layer_input=8,
    laurel_rank=4,
    num_kv_shared_layers=0,
    layer_types=["sliding_attention", "full_attention"],
    intermediate_size=[40, 40],
    activation_sparsity_pattern=[0.5, 0.0],
)
PERCEIVER = {
    "vocab_size": 99,
    "d_model": 16,
    "num_latents": 8,
    "d_latents": 16,
    "num_blocks": 1,
    "num_self_attends_per_block": 2,
    "num_self_attention_heads": 2,
    "num_cross_attention_heads": 2,
    "max_position_embeddings": 64,
}
SAM = {
    "vision_config": {
        "hidden_size": 32,
        "output_channels": 16,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "image_size": 32,
        "patch_size": 4,
        "mlp_ratio": 2.0,
        "window_size": 3,
        "global_attn_indexes": [1],
        "num_pos_feats": 8,
    },
    "prompt_encoder_config": {
        "hidden_size": 16,
        "image_size": 32,
        "patch_size": 4,
        "mask_input_channels": 4,
        "num_point_embeddings": 4,
    },
    "mask_decoder_config": {
        "hidden_size": 16,
        "num_hidden_layers": 2,
        "mlp_dim": 24,
        "num_attention_heads": 2,
        "attention_downsample_rate": 2,
        "iou_head_hidden_dim": 16,
        "iou_head_depth": 2,
    },
}
MOONSHINE = {
    "vocab_size": 99,
    "hidden_size": 32,
    "intermediate_size": 40,
    "encoder_num_hidden_layers": 1,
    "decoder_num_hidden_layers": 1,
    "encoder_num_attention_heads": 4,
    "decoder_num_attention_heads": 4,
    "max_position_embeddings": 64,
    "pad_token_id": 0,
    "bos_token_id": 1,
    "eos_token_id": 2,
    "decoder_start_token_id": 1,
}
TIME_SERIES = {
    "prediction_length": 4,
    "context_length": 8,
    "num_time_features": 1,
    "d_model": 32,
    "encoder_layers": 1,
    "decoder_layers": 1,
    "encoder_layerdrop": 0.0,
    "decoder_layerdrop": 0.0,
    "lags_sequence": [1, 2, 3, 4, 5, 6, 7],
}
STAGES = {"hidden_sizes": [8, 16, 16, 16], "depths": [1, 1, 1, 1]}

ENCODERS = {
    "bert": _of("Bert", "ForSequenceClassification", ENCODER, "classes"),
    "roberta": _of("Roberta", MASKED, ENCODER, "text"),
    "distilbert": _of(
        "DistilBert",
        "ForSequenceClassification",
        {"vocab_size": 99, "dim": 32, "n_layers": 2, "n_heads": 4, "hidden_dim": 37},
        "classes",
    ),
    "deberta": _of("DebertaV2", "ForSequenceClassification", DEBERTA, "classes"),
    "deberta-v1": _of("Deberta", MASKED, DEBERTA),
    "electra": _of("Electra", "ForTokenClassification", dict(ENCODER, embedding_size=16), "text"),
    "albert": _of("Albert", MASKED, dict(ENCODER, embedding_size=16)),
    "perceiver": _of("Perceiver", MASKED, PERCEIVER, "perceived"),
    "convbert": _of("ConvBert", MASKED, dict(ENCODER, embedding_size=32, conv_kernel_size=3)),
    "esm": _of("Esm", MASKED, dict(ENCODER, pad_token_id=0, mask_token_id=1, position_embedding_type="rotary")),
    "fnet": _of("FNet", MASKED, ENCODER, "tokens"),
    "funnel": _of(
        "Funnel",
        MASKED,
        {
            "vocab_size": 99,
            "block_sizes": [1, 1],
            "num_decoder_layers": 1,
            "d_model": 32,
            "n_head": 4,
            "d_head": 8,
            "d_inner": 37,
        },
    ),
    "longformer": _of("Longformer", MASKED, dict(ENCODER, attention_window=4)),
    "mobilebert": _of(
        "MobileBert",
        MASKED,
        dict(ENCODER, embedding_size=16, intra_bottleneck_size=16, num_feedforward_networks=2),
    ),
    "modernbert": _of(
        "ModernBert",
        MASKED,
        dict(
            ENCODER, local_attention=4, pad_token_id=0, bos_token_id=1, eos_token_id=2, cls_token_id=1, sep_token_id=2
        ),
    ),
    "nystromformer": _of(
        "Nystromformer", MASKED, dict(ENCODER, num_landmarks=8, segment_means_seq_len=8, conv_kernel_size=3)
    ),
    "xlnet": _of("XLNet", "LMHeadModel", {"vocab_size": 99, "d_model": 32, "n_layer": 2, "n_head": 4, "d_inner": 37}),
}

DECODERS = {
    "gpt2": _of("GPT2", "LMHeadModel", GPT2),
    "gptneox": _of("GPTNeoX", LM, ENCODER),
    "opt": _of("OPT", LM, OPT),
    "llama": Program(*LLAMA),
    "llama-lora": Program(*LLAMA, lora=True),
    "mistral": _of("Mistral", LM, dict(DECODER, sliding_window=8)),
    "qwen2": _of("Qwen2", LM, DECODER),
    "qwen3": _of("Qwen3", LM, dict(DECODER, head_dim=8)),
    "gemma": _of("Gemma", LM, dict(DECODER, head_dim=8)),
    "gemma2": _of("Gemma2", LM, dict(DECODER, head_dim=8)),
    "gemma3": Program("Gemma3ForCausalLM", "Gemma3TextConfig", dict(DECODER, head_dim=8, sliding_window=4)),
    "gemma3n": Program("Gemma3nForCausalLM", "Gemma3nTextConfig", GEMMA3N),
    "phi3": _of("Phi3", LM, DECODER),
    "bloom": _of("Bloom", LM, {"vocab_size": 99, "hidden_size": 32, "n_layer": 2, "n_head": 4}),
    "cohere": _of("Cohere", LM, DECODER),
    "falcon": _of("Falcon", LM, dict(ENCODER, alibi=True, ffn_hidden_size=40)),
    "gpt-neo": _of(
        "GPTNeo",
        LM,
        {
            "vocab_size": 99,
            "hidden_size": 32,
            "num_layers": 2,
            "num_heads": 4,
            "attention_types": [[["global", "local"], 1]],
            "window_size": 4,
            "max_position_embeddings": 64,
        },
    ),
    "mpt": _of("Mpt", LM, {"vocab_size": 99, "d_model": 32, "n_heads": 4, "n_layers": 2, "max_seq_len": 64}),
    "granite": _of("Granite", LM, DECODER),
    "lfm2": _of("Lfm2", LM, dict(DECODER, layer_types=["conv", "full_attention"])),
    "olmo3": _of("Olmo3", LM, dict(DECODER, sliding_window=4, layer_types=["sliding_attention", "full_attention"])),
    "olmo2": _of("Olmo2", LM, DECODER),
    "stablelm": _of("StableLm", LM, DECODER),
}

EXPERT_MIXTURES = {
    "mixtral": _of("Mixtral", LM, dict(DECODER, num_local_experts=4)),
    **_with_each_experts("mixtral", _of("Mixtral", LM, dict(DECODER, num_local_experts=4, output_router_logits=True))),
    **_with_each_experts("qwen3-moe", _of("Qwen3Moe", LM, dict(DECODER, **EXPERTS, num_experts=4, head_dim=8))),
    **_with_each_experts("deepseek-v3", _of("DeepseekV3", LM, DEEPSEEK)),
    **_with_each_experts(
        "gpt-oss", _of("GptOss", LM, dict(DECODER, num_local_experts=4, num_experts_per_tok=2, head_dim=8))
    ),
    **_with_each_experts(
        "ernie4.5-moe",
        _of("Ernie4_5_Moe", LM, dict(DECODER, moe_intermediate_size=16, moe_k=2, moe_num_experts=4)),
    ),
    **_with_each_experts("olmoe", _of("Olmoe", LM, dict(DECODER, num_experts=4, num_experts_per_tok=2))),
    "llama4": Program(
        "Llama4ForCausalLM",
        "Llama4TextConfig",
        dict(DECODER, head_dim=8, num_local_experts=4, intermediate_size_mlp=40, interleave_moe_layer_step=1),
    ),
    "jetmoe": _of("JetMoe", LM, dict(DECODER, kv_channels=8, num_local_experts=4)),
    "switch-transformers": _of(
        "SwitchTransformers",
        SEQUENCES,
        dict(
            T5,
            num_layers=1,
            num_decoder_layers=1,
            num_experts=4,
            expert_capacity=8,
            num_sparse_encoder_layers=1,
            num_sparse_decoder_layers=1,
            router_jitter_noise=0.0,
        ),
        "sequences",
    ),
}

STATE_SPACES = {
    "mamba": _of("Mamba", LM, STATES, other_path=True),
    "falcon-mamba": _of("FalconMamba", LM, STATES, other_path=True),
    "mamba2": _of("Mamba2", LM, MAMBA2),
    "bamba": _of("Bamba", LM, BAMBA),
    "granite-moe-hybrid": _of("GraniteMoeHybrid", LM, GRANITE_MOE_HYBRID),
    "zamba2": _of("Zamba2", LM, ZAMBA2),
    "jamba": _of("Jamba", LM, dict(JAMBA, experts_implementation="batched_mm"), other_path=True),
    "qwen3-next": _of("Qwen3Next", LM, dict(QWEN3_NEXT, experts_implementation="batched_mm")),
    "qwen3.5": Program(
        "Qwen3_5ForCausalLM",
        "Qwen3_5TextConfig",
        {key: value for key, value in QWEN3_NEXT.items() if key not in EXPERTS and "expert" not in key},
    ),
    "recurrent-gemma": _of(
        "RecurrentGemma", LM, dict(DECODER, num_hidden_layers=3, lru_width=32, attention_window_size=8)
    ),
    "rwkv": _of("Rwkv", LM, dict(STATES, attention_hidden_size=32, intermediate_size=37, context_length=64), "tokens"),
}

TWO_HALVES = {
    "t5": _of("T5", SEQUENCES, T5, "sequences"),
    "longt5": _of("LongT5", SEQUENCES, dict(T5, local_radius=3), "sequences"),
    "bart": _of("Bart", SEQUENCES, dict(BOTH_HALVES, max_position_embeddings=64), "sequences"),
    "led": _of(
        "LED",
        SEQUENCES,
        dict(BOTH_HALVES, max_encoder_position_embeddings=64, max_decoder_position_embeddings=64, attention_window=4),
        "sequences",
    ),
    "m2m100": _of(
        "M2M100",
        SEQUENCES,
        dict(BOTH_HALVES, max_position_embeddings=64, encoder_layerdrop=0.0, decoder_layerdrop=0.0),
        "sequences",
    ),
    "pegasus": _of("Pegasus", SEQUENCES, dict(BOTH_HALVES, max_position_embeddings=64), "sequences"),
    "prophetnet": _of(
        "ProphetNet",
        SEQUENCES,
        {
            "vocab_size": 99,
            "hidden_size": 32,
            "encoder_ffn_dim": 37,
            "num_encoder_layers": 1,
            "num_encoder_attention_heads": 4,
            "decoder_ffn_dim": 37,
            "num_decoder_layers": 1,
            "num_decoder_attention_heads": 4,
            "max_position_embeddings": 64,
        },
        "sequences",
    ),
}

SOUNDS = {
    "whisper": _of("Whisper", SEQUENCES, WHISPER, "speech"),
    "wav2vec2": _of("Wav2Vec2", "ForCTC", WAV2VEC2, "sound"),
    "hubert": _of("Hubert", "ForCTC", HUBERT, "sound"),
    "wavlm": _of("WavLM", "ForCTC", HUBERT, "sound"),
    "sew": _of("SEW", "ForCTC", dict(HUBERT, squeeze_factor=2), "sound"),
    "audio-spectrogram": _of(
        "AST",
        "ForAudioClassification",
        dict(LAYERS, patch_size=8, max_length=40, num_mel_bins=16, time_stride=8, frequency_stride=8),
        "spectrogram",
    ),
    "speech-to-text": _of("Speech2Text", SEQUENCES, SPEECH_TO_TEXT, "frames"),
    "moonshine": _of("Moonshine", SEQUENCES, MOONSHINE, "samples"),
    "time-series-transformer": _of("TimeSeriesTransformer", "ForPrediction", TIME_SERIES, "dated series"),
    "patch-tst": _of(
        "PatchTST",
        "ForPrediction",
        {
            "num_input_channels": 2,
            "context_length": 16,
            "patch_length": 4,
            "patch_stride": 4,
            "d_model": 16,
            "num_hidden_layers": 2,
            "ffn_dim": 24,
            "prediction_length": 4,
        },
        "series",
    ),
}

VISION = {
    "vit": _of("ViT", CLASSES, PICTURES, "pictures"),
    "dinov2": _of("Dinov2", CLASSES, PICTURES, "pictures"),
    "beit": _of("Beit", CLASSES, dict(PICTURES, use_relative_position_bias=True, drop_path_rate=0.0), "pictures"),
    "vit-mae": _of(
        "ViTMAE",
        "ForPreTraining",
        dict(
            PICTURES,
            decoder_num_attention_heads=4,
            decoder_hidden_size=32,
            decoder_num_hidden_layers=1,
            decoder_intermediate_size=40,
        ),
        "masked pictures",
    ),
    "yolos": _of(
        "Yolos",
        "ForObjectDetection",
        {**PICTURES, "image_size": [32, 32], "num_detection_tokens": 5},
        "pictures",
    ),
    "swin": _of("Swin", CLASSES, SWIN, "pictures"),
    "swinv2": _of("Swinv2", CLASSES, SWIN, "pictures"),
    "resnet": _of("ResNet", CLASSES, {"embedding_size": 8, "hidden_sizes": [8, 16], "depths": [1, 1]}, "pictures"),
    "convnext": _of("ConvNext", CLASSES, STAGES, "pictures"),
    "cvt": _of(
        "Cvt",
        CLASSES,
        {"embed_dim": [8, 16, 16], "num_heads": [1, 2, 2], "depth": [1, 2, 3], "drop_path_rate": [0.1, 0.1, 0.1]},
        "pictures",
    ),
    "efficientnet": _of(
        "EfficientNet",
        CLASSES,
        {
            "image_size": 32,
            "width_coefficient": 0.25,
            "depth_coefficient": 0.3,
            "hidden_dim": 320,
            "kernel_sizes": [3, 5],
            "in_channels": [32, 16],
            "out_channels": [16, 24],
            "strides": [1, 2],
            "num_block_repeats": [1, 2],
            "expand_ratios": [1, 6],
        },
        "pictures",
    ),
    "focalnet": _of(
        "FocalNet",
        CLASSES,
        dict(
            STAGES,
            image_size=32,
            embed_dim=8,
            focal_levels=[1, 1, 1, 1],
            focal_windows=[3, 3, 3, 3],
            drop_path_rate=0.0,
        ),
        "pictures",
    ),
    "hiera": _of(
        "Hiera",
        CLASSES,
        {
            "embed_dim": 8,
            "image_size": [32, 32],
            "patch_stride": [4, 4],
            "depths": [1, 1, 1],
            "num_heads": [1, 2, 2],
            "num_query_pool": 2,
            "masked_unit_size": [4, 4],
            "masked_unit_attention": [True, True, False],
        },
        "pictures",
    ),
    "levit": _of(
        "Levit",
        CLASSES,
        {
            "image_size": 32,
            "hidden_sizes": [16, 24, 32],
            "num_attention_heads": [2, 2, 2],
            "depths": [1, 1, 1],
            "key_dim": [8, 8, 8],
        },
        "pictures",
    ),
    "mobilevit": _of(
        "MobileViT",
        CLASSES,
        {
            "image_size": 32,
            "hidden_sizes": [16, 16, 16],
            "neck_hidden_sizes": [8, 8, 16, 16, 16, 16, 32],
            "num_attention_heads": 2,
        },
        "pictures",
    ),
    "dinov3": _of("DINOv3ViT", "Model", dict(PICTURES, num_register_tokens=2), "pictures"),
    "siglip2": _of(
        "Siglip2Vision", "Model", {**LAYERS, "num_patches": 16, "patch_size": 4, "num_channels": 3}, "pictures of sizes"
    ),
    "detr": _of(
        "Detr",
        "ForObjectDetection",
        {
            "d_model": 32,
            "encoder_layers": 1,
            "decoder_layers": 1,
            "encoder_attention_heads": 4,
            "decoder_attention_heads": 4,
            "encoder_ffn_dim": 40,
            "decoder_ffn_dim": 40,
            "num_queries": 5,
            "use_timm_backbone": False,
            "use_pretrained_backbone": False,
            "backbone_config": {
                "model_type": "resnet",
                "embedding_size": 8,
                "hidden_sizes": [8, 16],
                "depths": [1, 1],
                "out_features": ["stage2"],
            },
        },
        "pictures",
    ),
    "dpt": _of(
        "DPT",
        "ForDepthEstimation",
        dict(
            PICTURES,
            num_hidden_layers=4,
            backbone_out_indices=[0, 1, 2, 3],
            neck_hidden_sizes=[8, 8, 16, 16],
            fusion_hidden_size=16,
        ),
        "pictures",
    ),
    "segformer": _of("Segformer", "ForSemanticSegmentation", SEGFORMER, "pictures"),
    "video-mae": _of("VideoMAE", "ForVideoClassification", dict(PICTURES, num_frames=4, tubelet_size=2), "video"),
    "sam": _of("Sam", "Model", SAM, "points"),
    "blip": _of(
        "Blip",
        SEQUENCES,
        {
            "text_config": dict(ENCODER, encoder_hidden_size=32, bos_token_id=1, eos_token_id=2, sep_token_id=2),
            "vision_config": PICTURES,
            "projection_dim": 16,
        },
        "labelled pictures",
    ),
    "clip": _of("CLIP", "Model", CLIP, "captions"),
}

TIMM = {
    "timm-byobnet": _timm("test_byobnet", {}),
    "timm-vit": _timm(
        "vit_tiny_patch16_224", {"img_size": 32, "patch_size": 8, "depth": 2, "embed_dim": 32, "num_heads": 4}
    ),
    "timm-resnet": _timm("resnet10t", {"layers": (1, 1, 1, 1), "channels": (8, 8, 16, 16)}),
    "timm-se-resnext": _timm(
        "seresnext26t_32x4d",
        {"layers": (1, 1, 1, 1), "channels": (16, 16, 16, 16), "base_width": 16, "cardinality": 2},
    ),
    "timm-densenet": _timm("densenet121", {"growth_rate": 8, "block_config": (2, 2)}),
    "timm-efficientnet": _timm("test_efficientnet", {}),
    "timm-mobilenet-v3": _timm("mobilenetv3_small_050", {}),
    "timm-nfnet": _timm("test_nfnet", {}),
    "timm-mambaout": _timm("test_mambaout", {}),
    "timm-vit-small": _timm("test_vit", {"img_size": 32, "patch_size": 8}),
    "timm-swin": _timm(
        "swin_tiny_patch4_window7_224",
        {"img_size": 32, "window_size": 4, "embed_dim": 16, "depths": (1, 1), "num_heads": (2, 4)},
    ),
    "timm-xcit": _timm("xcit_nano_12_p16_224", {"img_size": 32, "embed_dim": 32, "depth": 2, "num_heads": 4}),
}

GENERATED = {
    "gpt2-generate": Program("GPT2LMHeadModel", "GPT2Config", GPT2, "text", generate={}),
    "llama-beams": Program(*LLAMA, "text", generate={"num_beams": 3}),
    "llama-static-cache": Program(*LLAMA, "text", generate={"cache_implementation": "static"}),
}

PROGRAMS: dict[str, Program] = {
    **ENCODERS,
    **DECODERS,
    **EXPERT_MIXTURES,
    **STATE_SPACES,
    **TWO_HALVES,
    **SOUNDS,
    **VISION,
    **TIMM,
    **GENERATED,
}
