"""Small models of the transformers library, built from configurations with random weights."""

from __future__ import annotations

from copy import deepcopy
from typing import Any

import torch
from torch import nn

from architectures.base import VOCABULARY, Architecture, seeded, token_ids
from architectures.batches import (
    LENGTH,
    Inputs,
    captioned,
    classified,
    episodes,
    images,
    interleaved,
    language,
    masked,
    patched,
    questions,
    sentences,
    series,
    spectra,
    spoken,
    translation,
    waves,
)

TOKENS = {"vocab_size": VOCABULARY, "pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2}
LAYERS = {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4}
_BARE = TOKENS | {"hidden_size": 32, "num_hidden_layers": 2}
SMALL = TOKENS | LAYERS | {"intermediate_size": 64, "max_position_embeddings": 64}
GROUPED = SMALL | {"num_key_value_heads": 2, "head_dim": 8}
GPT = TOKENS | {"n_embd": 32, "n_layer": 2, "n_head": 4, "n_positions": 64}
_EXPERTS = {
    "num_experts": 4,
    "num_experts_per_tok": 2,
    "moe_intermediate_size": 16,
    "shared_expert_intermediate_size": 32,
}
HALVES = {
    "encoder_layers": 2,
    "decoder_layers": 2,
    "encoder_attention_heads": 4,
    "decoder_attention_heads": 4,
    "encoder_ffn_dim": 64,
    "decoder_ffn_dim": 64,
}
_BART = TOKENS | HALVES | {"d_model": 32, "max_position_embeddings": 64}
T5 = TOKENS | {"d_model": 32, "d_kv": 8, "d_ff": 64, "num_layers": 2, "num_heads": 4}
VISION = LAYERS | {"intermediate_size": 64, "image_size": 16, "patch_size": 4}
_RESNET = {"embedding_size": 8, "hidden_sizes": [8, 16], "depths": [1, 2], "layer_type": "basic"}


def row(name: str, model: str, inputs: Inputs, *settings: dict[str, Any]) -> Architecture:
    """Return the row of the transformers class `model` configured by the union of `settings`."""

    def build() -> nn.Module:
        import transformers

        architecture = getattr(transformers, model)
        merged = {key: value for part in settings for key, value in part.items()}
        module: nn.Module = architecture(architecture.config_class(**deepcopy(merged)))
        return module

    return Architecture(name, seeded(build), inputs)


_CLASSES = torch.tensor([0, 1])
_MAP = torch.ones(2, 32, 32, dtype=torch.long)

HELD_IN: tuple[Architecture, ...] = (
    row("llama", "LlamaForCausalLM", language, GROUPED),
    row("gpt2", "GPT2LMHeadModel", language, GPT),
    row("bert", "BertForSequenceClassification", classified, SMALL),
    row("t5", "T5ForConditionalGeneration", translation, T5, {"decoder_start_token_id": 0}),
    row("bart", "BartForConditionalGeneration", translation, _BART),
    row(
        "clip",
        "CLIPModel",
        captioned(return_loss=True),
        {"text_config": SMALL, "vision_config": VISION, "projection_dim": 16},
    ),
    row("vit", "ViTForImageClassification", images(labels=_CLASSES), VISION),
    row(
        "mixtral",
        "MixtralForCausalLM",
        language,
        GROUPED,
        {"num_local_experts": 4, "output_router_logits": True},
    ),
)

_DECODERS = (
    row("mistral", "MistralForCausalLM", language, GROUPED, {"sliding_window": 4}),
    row("qwen3", "Qwen3Model", sentences, GROUPED),
    row("gemma2", "Gemma2ForCausalLM", language, GROUPED, {"sliding_window": 4}),
    row("falcon", "FalconForCausalLM", language, TOKENS, LAYERS),
    row(
        "gpt_neo",
        "GPTNeoModel",
        sentences,
        TOKENS,
        {"hidden_size": 32, "num_layers": 2, "num_heads": 4, "window_size": 4},
        {"attention_types": [[["global", "local"], 1]], "max_position_embeddings": 64},
    ),
    row("opt", "OPTForCausalLM", masked, SMALL, {"ffn_dim": 64, "word_embed_proj_dim": 16}),
    row("bloom", "BloomForCausalLM", masked, TOKENS, {"hidden_size": 32, "n_head": 4}),
    row(
        "stablelm",
        "StableLmModel",
        sentences,
        GROUPED,
        {"use_parallel_residual": True, "qk_layernorm": True},
    ),
    row("qwen2_moe", "Qwen2MoeForCausalLM", language, GROUPED, _EXPERTS),
    row(
        "qwen3_next",
        "Qwen3NextModel",
        sentences,
        GROUPED,
        _EXPERTS,
        {"linear_num_key_heads": 2, "linear_num_value_heads": 2},
        {"linear_key_head_dim": 8, "linear_value_head_dim": 8},
        {"layer_types": ["linear_attention", "full_attention"]},
    ),
    row(
        "deepseek_v3",
        "DeepseekV3Model",
        sentences,
        SMALL,
        {"n_routed_experts": 4, "num_experts_per_tok": 2, "n_group": 2, "topk_group": 1},
        {"moe_intermediate_size": 16, "first_k_dense_replace": 1, "num_key_value_heads": 4},
        {"q_lora_rank": 16, "kv_lora_rank": 16, "v_head_dim": 8},
        {"qk_rope_head_dim": 4, "qk_nope_head_dim": 4},
    ),
    row(
        "gpt_oss",
        "GptOssModel",
        sentences,
        GROUPED,
        {"num_local_experts": 4, "num_experts_per_tok": 2, "sliding_window": 4},
    ),
    row(
        "jamba",
        "JambaForCausalLM",
        language,
        GROUPED,
        {"num_experts": 4, "output_router_logits": True, "attn_layer_period": 2},
        {"attn_layer_offset": 1, "mamba_d_state": 4, "use_mamba_kernels": False},
    ),
    row("mamba", "MambaForCausalLM", language, _BARE, {"state_size": 4}),
    row(
        "mamba2",
        "Mamba2Model",
        sentences,
        _BARE,
        {"state_size": 8, "num_heads": 8, "head_dim": 8, "n_groups": 2, "chunk_size": 4},
    ),
    row(
        "recurrent_gemma",
        "RecurrentGemmaForCausalLM",
        language,
        GROUPED,
        {"lru_width": 32, "attention_window_size": 8, "block_types": ["recurrent", "attention"]},
    ),
)

_ENCODERS = (
    row(
        "distilbert",
        "DistilBertForQuestionAnswering",
        questions,
        TOKENS,
        {"dim": 32, "n_layers": 2, "n_heads": 4, "hidden_dim": 64, "max_position_embeddings": 64},
    ),
    row("albert", "AlbertModel", sentences, SMALL, {"embedding_size": 16}),
    row(
        "deberta_v2",
        "DebertaV2Model",
        sentences,
        SMALL,
        {"relative_attention": True, "pos_att_type": ["p2c", "c2p"], "position_buckets": 8},
        {"conv_kernel_size": 3},
    ),
    row("longformer", "LongformerModel", sentences, SMALL, {"attention_window": 4}),
    row(
        "xlnet",
        "XLNetModel",
        sentences,
        TOKENS,
        {"d_model": 32, "n_layer": 2, "n_head": 4, "d_inner": 64},
    ),
    row(
        "funnel",
        "FunnelModel",
        sentences,
        TOKENS,
        {"block_sizes": [1, 1], "num_decoder_layers": 1},
        {"d_model": 32, "n_head": 4, "d_head": 8, "d_inner": 64},
    ),
    row(
        "mobilebert",
        "MobileBertForMaskedLM",
        masked,
        SMALL,
        {"embedding_size": 16, "intra_bottleneck_size": 16, "num_feedforward_networks": 2},
    ),
    row("fnet", "FNetModel", lambda: {"input_ids": token_ids(2, LENGTH)}, SMALL),
    row(
        "perceiver",
        "PerceiverForMaskedLM",
        masked,
        {"vocab_size": VOCABULARY, "d_model": 16, "d_latents": 16, "num_latents": 6},
        {"num_self_attends_per_block": 2, "num_blocks": 2, "max_position_embeddings": LENGTH},
        {"num_self_attention_heads": 2, "num_cross_attention_heads": 2, "qk_channels": 8},
        {"v_channels": 16},
    ),
)

_PAIRS = (
    row(
        "led",
        "LEDForConditionalGeneration",
        translation,
        _BART,
        {"attention_window": 4, "max_encoder_position_embeddings": 64},
        {"max_decoder_position_embeddings": 64},
    ),
    row(
        "switch_transformers",
        "SwitchTransformersForConditionalGeneration",
        translation,
        T5,
        {"num_sparse_encoder_layers": 1, "num_sparse_decoder_layers": 1, "num_experts": 4},
        {"decoder_start_token_id": 0, "num_decoder_layers": 2},
    ),
    row(
        "prophetnet",
        "ProphetNetForConditionalGeneration",
        translation,
        TOKENS,
        {"num_encoder_layers": 2, "num_encoder_attention_heads": 4, "encoder_ffn_dim": 64},
        {"num_decoder_layers": 2, "num_decoder_attention_heads": 4, "decoder_ffn_dim": 64},
        {"hidden_size": 32, "max_position_embeddings": 64},
    ),
    row(
        "encoder_decoder",
        "EncoderDecoderModel",
        translation,
        {"encoder": SMALL | {"model_type": "bert"}, "decoder_start_token_id": 1},
        {"decoder": GPT | {"model_type": "gpt2", "add_cross_attention": True}},
        {"pad_token_id": 0},
    ),
)

_VISUAL = (
    row(
        "beit",
        "BeitModel",
        images(),
        VISION,
        {"use_relative_position_bias": True},
    ),
    row(
        "swin",
        "SwinModel",
        images(),
        {"image_size": 16, "patch_size": 2, "embed_dim": 8, "depths": [2, 1]},
        {"num_heads": [2, 4], "window_size": 2},
    ),
    row(
        "convnext",
        "ConvNextModel",
        images(),
        {"hidden_sizes": [8, 16], "depths": [1, 2], "num_stages": 2},
    ),
    row("resnet", "ResNetForImageClassification", images(labels=_CLASSES), _RESNET),
    row(
        "mobilenet_v2",
        "MobileNetV2Model",
        images(64),
        {"depth_multiplier": 0.1, "min_depth": 4, "depth_divisible_by": 4},
        {"initializer_range": 0.4},
    ),
    row(
        "segformer",
        "SegformerForSemanticSegmentation",
        images(32, labels=_MAP),
        {"num_encoder_blocks": 2, "depths": [1, 1], "hidden_sizes": [8, 16]},
        {"sr_ratios": [2, 1], "patch_sizes": [7, 3], "strides": [4, 2], "mlp_ratios": [2, 2]},
        {"num_attention_heads": [1, 2], "decoder_hidden_size": 16},
    ),
    row(
        "upernet",
        "UperNetForSemanticSegmentation",
        images(32, labels=_MAP),
        {
            "backbone_config": {
                "model_type": "convnext",
                "hidden_sizes": [8] * 4,
                "depths": [1] * 4,
                "out_features": ["stage1", "stage2", "stage3", "stage4"],
            }
        },
        {"hidden_size": 16, "pool_scales": [1, 2]},
        {"auxiliary_in_channels": 8, "auxiliary_channels": 8},
    ),
    row(
        "detr",
        "DetrForObjectDetection",
        images(32),
        HALVES,
        {"backbone_config": _RESNET | {"model_type": "resnet", "out_features": ["stage2"]}},
        {"d_model": 32, "num_queries": 5, "auxiliary_loss": True},
    ),
    row(
        "vit_mae",
        "ViTMAEForPreTraining",
        images(),
        VISION,
        {"decoder_hidden_size": 16, "decoder_num_hidden_layers": 1},
        {"decoder_num_attention_heads": 2, "decoder_intermediate_size": 32},
    ),
)

_AUDIBLE = (
    row(
        "whisper",
        "WhisperForConditionalGeneration",
        spectra,
        _BART,
        {"num_mel_bins": 8, "max_source_positions": 12, "max_target_positions": 16},
        {"decoder_start_token_id": 1},
    ),
    row(
        "wav2vec2",
        "Wav2Vec2ForCTC",
        waves,
        SMALL,
        {"conv_dim": [16, 16], "conv_kernel": [10, 4], "conv_stride": [5, 4]},
        {"num_conv_pos_embeddings": 8, "num_conv_pos_embedding_groups": 2},
        {"apply_spec_augment": False, "ctc_loss_reduction": "mean"},
    ),
    row(
        "speecht5",
        "SpeechT5ForTextToSpeech",
        spoken,
        TOKENS,
        HALVES,
        {"hidden_size": 32, "num_mel_bins": 8, "reduction_factor": 1, "speaker_embedding_dim": 8},
        {"speech_decoder_prenet_units": 16, "speech_decoder_postnet_units": 16},
        {"speech_decoder_postnet_layers": 2, "apply_spec_augment": False},
        {"encoder_layerdrop": 0.0, "decoder_layerdrop": 0.0},  # by chance all layers are left out
        {"max_text_positions": 64, "max_speech_positions": 64},
    ),
)

_MULTIMODAL = (
    row(
        "blip",
        "BlipForConditionalGeneration",
        captioned(labels=token_ids(2, LENGTH)),
        {"text_config": SMALL | {"encoder_hidden_size": 32, "sep_token_id": 2}},
        {"vision_config": VISION, "projection_dim": 16, "image_text_hidden_size": 16},
    ),
    row(
        "vilt",
        "ViltForQuestionAnswering",
        captioned(labels=torch.ones(2, 2)),
        SMALL,
        VISION,
    ),
    row(
        "llava",
        "LlavaForConditionalGeneration",
        interleaved,
        {"text_config": GROUPED | {"model_type": "llama"}, "image_token_index": 3},
        {"vision_config": VISION | {"model_type": "clip_vision_model"}},
    ),
    row(
        "qwen2_vl",
        "Qwen2VLForConditionalGeneration",
        patched,
        {
            "text_config": GROUPED
            | {
                "rope_parameters": {
                    "rope_type": "default",
                    "rope_theta": 1e4,
                    "mrope_section": [1, 1, 2],
                }
            },
            "vision_config": {"depth": 2, "embed_dim": 32, "hidden_size": 32, "num_heads": 4}
            | {"patch_size": 4, "temporal_patch_size": 2, "spatial_merge_size": 2},
        },
        {"image_token_id": 3, "vision_start_token_id": 4, "tie_word_embeddings": True},
    ),
    row(
        "groupvit",
        "GroupViTModel",
        captioned(return_loss=True),
        {"text_config": SMALL, "projection_dim": 16, "projection_intermediate_dim": 32},
        {
            "vision_config": VISION
            | {"depths": [1, 1], "num_group_tokens": [4, 2], "num_output_groups": [4, 2]}
        },
    ),
)

_SEQUENTIAL = (
    row(
        "time_series_transformer",
        "TimeSeriesTransformerForPrediction",
        series,
        HALVES,
        {"d_model": 16, "prediction_length": 4, "context_length": 8, "lags_sequence": [1, 2]},
        {"num_time_features": 1, "num_static_categorical_features": 1},
        {"cardinality": [3], "embedding_dimension": [2]},
    ),
    row(
        "decision_transformer",
        "DecisionTransformerModel",
        episodes,
        GPT,
        {"state_dim": 5, "act_dim": 3, "hidden_size": 32, "max_ep_len": 20},
    ),
)

OTHERS: tuple[Architecture, ...] = (
    *_DECODERS,
    *_ENCODERS,
    *_PAIRS,
    *_VISUAL,
    *_AUDIBLE,
    *_MULTIMODAL,
    *_SEQUENTIAL,
)
