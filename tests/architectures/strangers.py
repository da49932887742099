"""More models of the transformers library: none was looked at while programs were written."""

from __future__ import annotations

from copy import deepcopy
from typing import Any

import torch
from torch import nn

from architectures.base import VOCABULARY, Architecture, noise, seeded, token_ids
from architectures.batches import (
    LENGTH,
    Inputs,
    captioned,
    classified,
    images,
    language,
    masked,
    sentences,
    translation,
    waves,
)

_TOKENS = {"vocab_size": VOCABULARY, "pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2}
_LAYERS = {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4}
_SMALL = _TOKENS | _LAYERS | {"intermediate_size": 64, "max_position_embeddings": 64}
_GROUPED = _SMALL | {"num_key_value_heads": 2, "head_dim": 8}
_GPT = _TOKENS | {"n_embd": 32, "n_layer": 2, "n_head": 4, "n_positions": 64}
_HALVES = {
    "encoder_layers": 2,
    "decoder_layers": 2,
    "encoder_attention_heads": 4,
    "decoder_attention_heads": 4,
    "encoder_ffn_dim": 64,
    "decoder_ffn_dim": 64,
    "decoder_start_token_id": 1,
}
_BART = _TOKENS | _HALVES | {"d_model": 32, "max_position_embeddings": 64}
_T5 = _TOKENS | {"d_model": 32, "d_kv": 8, "d_ff": 64, "num_layers": 2, "num_heads": 4}
_T5 |= {"decoder_start_token_id": 0}
_VISION = _LAYERS | {"intermediate_size": 64, "image_size": 16, "patch_size": 4}
_CLIP = {"text_config": _SMALL, "vision_config": _VISION, "projection_dim": 16}
_WAVE = {"conv_dim": [16, 16], "conv_kernel": [10, 4], "conv_stride": [5, 4]}
_WAVE |= {"num_conv_pos_embeddings": 8, "num_conv_pos_embedding_groups": 2, "apply_spec_augment": False}
_EXPERTS = {"num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 16}
_SERIES = {"d_model": 16, "num_input_channels": 2, "context_length": 16, "patch_length": 4}


def _row(name: str, model: str, inputs: Inputs, *settings: dict[str, Any]) -> Architecture:
    """A transformers class of some settings."""

    def build() -> nn.Module:
        import transformers

        architecture = getattr(transformers, model)
        merged = {key: value for part in settings for key, value in part.items()}
        module: nn.Module = architecture(architecture.config_class(**deepcopy(merged)))
        return module

    return Architecture(name, seeded(build), inputs)


def _labelled_images(side: int = 16) -> Inputs:
    return images(side, labels=torch.tensor([0, 1]))


def _boxed() -> dict[str, Any]:
    """Words with the boxes where they stand on a page."""
    corners = (noise(2, LENGTH, 2).abs() * 9).long().clamp(0, 20)
    return classified() | {"bbox": torch.cat([corners, corners + 5], -1)}


def _floating_boxes() -> dict[str, Any]:
    return sentences() | {"bbox": noise(2, LENGTH, 8).abs().clamp(max=1)}


def _videos() -> dict[str, Any]:
    return {"pixel_values": noise(2, 4, 3, 16, 16)}


def _masked_videos() -> dict[str, Any]:
    mask = torch.zeros(2, 32, dtype=torch.bool)
    mask[:, ::2] = True
    return _videos() | {"bool_masked_pos": mask}


def _spectrogram() -> dict[str, Any]:
    return {"input_values": noise(2, 24, 16), "labels": torch.tensor([0, 1])}


def _speech() -> dict[str, Any]:
    return {"input_features": noise(2, 24, 8), "labels": token_ids(2, 7)}


def _regions() -> dict[str, Any]:
    """Sentences with the features of regions of an image."""
    return sentences() | {"visual_feats": noise(2, 5, 16), "visual_pos": noise(2, 5, 4).abs().clamp(max=1)}


def _embedded_regions() -> dict[str, Any]:
    return sentences() | {"visual_embeds": noise(2, 5, 16)}


def _history() -> dict[str, Any]:
    return {"past_values": noise(2, 16, 2), "future_values": noise(2, 4, 2)}


def _series_with_time() -> dict[str, Any]:
    return {
        "past_values": noise(2, 10).abs(),
        "past_time_features": noise(2, 10, 1),
        "past_observed_mask": torch.ones(2, 10),
        "future_values": noise(2, 4).abs(),
        "future_time_features": noise(2, 4, 1),
    }


_WITH_TIME = {"d_model": 16, "prediction_length": 4, "context_length": 8, "lags_sequence": [1, 2]}
_WITH_TIME |= _HALVES | {"num_time_features": 1}


def _queried() -> dict[str, Any]:
    return captioned()() | {"conditional_pixel_values": noise(2, 3, 16, 16, seed=5)}


def _scores() -> dict[str, Any]:
    return sentences() | {"labels": noise(2)}


def _long(length: int) -> Inputs:
    def inputs() -> dict[str, Any]:
        return {"input_ids": token_ids(2, length), "labels": token_ids(2, length)}

    return inputs


FIRST: tuple[Architecture, ...] = (
    _row("gemma3", "Gemma3ForCausalLM", language, _GROUPED, {"sliding_window": 4}),
    _row("phi", "PhiForCausalLM", masked, _SMALL),
    _row("phi3", "Phi3ForCausalLM", language, _SMALL, {"num_key_value_heads": 2}),
    _row("gptj", "GPTJForCausalLM", language, _GPT, {"rotary_dim": 4}),
    _row("gpt_neox", "GPTNeoXForCausalLM", masked, _SMALL),
    _row("cohere", "CohereForCausalLM", language, _GROUPED),
    _row("olmo2", "Olmo2ForCausalLM", language, _GROUPED),
    _row("starcoder2", "Starcoder2ForCausalLM", masked, _GROUPED, {"sliding_window": 4}),
    _row("mpt", "MptForCausalLM", language, _TOKENS, {"d_model": 32, "n_heads": 4, "n_layers": 2}),
    _row("roberta", "RobertaForMaskedLM", masked, _SMALL),
    _row("electra", "ElectraForSequenceClassification", classified, _SMALL, {"embedding_size": 16}),
    _row("mpnet", "MPNetForMaskedLM", masked, _SMALL),
    _row("roformer", "RoFormerForMaskedLM", masked, _SMALL, {"embedding_size": 16}),
    _row("convbert", "ConvBertModel", sentences, _SMALL, {"embedding_size": 16, "head_ratio": 2}),
    _row(
        "nystromformer",
        "NystromformerModel",
        sentences,
        _SMALL,
        {"num_landmarks": 4, "segment_means_seq_len": 4},
    ),
    _row("esm", "EsmForMaskedLM", masked, _SMALL, {"mask_token_id": 4, "position_embedding_type": "rotary"}),
    _row(
        "modernbert",
        "ModernBertForMaskedLM",
        masked,
        _SMALL,
        {"local_attention": 4, "cls_token_id": 1, "sep_token_id": 2},
    ),
    _row(
        "xlm",
        "XLMModel",
        sentences,
        {"vocab_size": VOCABULARY, "emb_dim": 32, "n_layers": 2, "n_heads": 4, "max_position_embeddings": 64},
    ),
    _row("pegasus", "PegasusForConditionalGeneration", translation, _BART),
    _row(
        "m2m_100",
        "M2M100ForConditionalGeneration",
        translation,
        _BART,
        {"encoder_layerdrop": 0.0, "decoder_layerdrop": 0.0},
    ),
    _row("mt5", "MT5ForConditionalGeneration", translation, _T5),
    _row(
        "longt5",
        "LongT5ForConditionalGeneration",
        translation,
        _T5,
        {"local_radius": 4, "encoder_attention_type": "transient-global", "global_block_size": 4},
    ),
    _row("deit", "DeiTForImageClassification", _labelled_images(), _VISION),
    _row(
        "dinov2",
        "Dinov2ForImageClassification",
        _labelled_images(),
        _LAYERS,
        {"image_size": 16, "patch_size": 4, "drop_path_rate": 0.1},
    ),
    _row(
        "swinv2",
        "Swinv2Model",
        images(),
        {
            "image_size": 16,
            "patch_size": 2,
            "embed_dim": 8,
            "depths": [2, 1],
            "num_heads": [2, 4],
            "window_size": 2,
        },
    ),
    _row(
        "regnet",
        "RegNetForImageClassification",
        _labelled_images(32),
        {"embedding_size": 8, "hidden_sizes": [8, 16], "depths": [1, 2], "groups_width": 4},
    ),
    _row(
        "efficientnet",
        "EfficientNetModel",
        images(32),
        {
            "hidden_dim": 320,
            "width_coefficient": 0.25,
            "depth_coefficient": 0.5,
            "image_size": 32,
            "kernel_sizes": [3, 3],
            "in_channels": [8, 8],
            "out_channels": [8, 8],
            "strides": [1, 2],
            "num_block_repeats": [1, 2],
            "expand_ratios": [1, 2],
        },
    ),
    _row(
        "mobilevit",
        "MobileViTModel",
        images(64),
        {
            "image_size": 64,
            "hidden_sizes": [16, 24, 32],
            "neck_hidden_sizes": [8, 8, 16, 16, 16, 16, 32],
            "num_attention_heads": 4,
        },
    ),
    _row(
        "levit",
        "LevitModel",
        images(64),
        {
            "image_size": 64,
            "hidden_sizes": [16, 24, 32],
            "num_attention_heads": [2, 3, 4],
            "depths": [1, 1, 1],
            "key_dim": [8, 8, 8],
        },
    ),
    _row(
        "poolformer",
        "PoolFormerModel",
        images(32),
        {
            "hidden_sizes": [8, 16],
            "depths": [1, 2],
            "num_encoder_blocks": 2,
            "patch_sizes": [7, 3],
            "strides": [4, 2],
            "padding": [2, 1],
        },
    ),
    _row("yolos", "YolosModel", images(), _VISION, {"image_size": [16, 16], "num_detection_tokens": 4}),
    _row(
        "siglip",
        "SiglipModel",
        captioned(return_loss=True),
        {"text_config": _SMALL, "vision_config": _VISION},
    ),
    _row("timesformer", "TimesformerModel", _videos, _VISION, {"num_frames": 4}),
    _row("hubert", "HubertForCTC", waves, _SMALL, _WAVE, {"ctc_loss_reduction": "mean"}),
    _row("wavlm", "WavLMModel", lambda: {"input_values": noise(2, 800)}, _SMALL, _WAVE, {"num_buckets": 8}),
    _row(
        "ast",
        "ASTForAudioClassification",
        _spectrogram,
        _LAYERS,
        {
            "intermediate_size": 64,
            "patch_size": 4,
            "frequency_stride": 4,
            "time_stride": 4,
            "max_length": 24,
            "num_mel_bins": 16,
        },
    ),
    _row(
        "speech_to_text",
        "Speech2TextForConditionalGeneration",
        _speech,
        _BART,
        {
            "input_feat_per_channel": 8,
            "conv_channels": 16,
            "max_source_positions": 32,
            "max_target_positions": 16,
            "encoder_layerdrop": 0.0,
            "decoder_layerdrop": 0.0,
        },
    ),
    _row("layoutlm", "LayoutLMForSequenceClassification", _boxed, _SMALL, {"max_2d_position_embeddings": 64}),
    _row("bros", "BrosModel", _floating_boxes, _SMALL, {"hidden_size": 128}),
    _row(
        "lxmert",
        "LxmertModel",
        _regions,
        _SMALL,
        {"l_layers": 1, "x_layers": 1, "r_layers": 1, "visual_feat_dim": 16},
    ),
    _row(
        "patchtst",
        "PatchTSTForPrediction",
        _history,
        _SERIES,
        {
            "num_hidden_layers": 2,
            "num_attention_heads": 2,
            "ffn_dim": 32,
            "prediction_length": 4,
            "patch_stride": 4,
            "loss": "mse",
        },
    ),
    _row("informer", "InformerForPrediction", _series_with_time, _WITH_TIME),
    _row(
        "clipseg",
        "CLIPSegForImageSegmentation",
        _queried,
        _CLIP,
        {"extract_layers": [0, 1], "reduce_dim": 16, "decoder_num_attention_heads": 2},
    ),
    _row(
        "rwkv",
        "RwkvForCausalLM",
        language,
        _TOKENS,
        {
            "hidden_size": 32,
            "num_hidden_layers": 2,
            "attention_hidden_size": 32,
            "intermediate_size": 64,
            "context_length": 64,
        },
    ),
    _row(
        "falcon_mamba",
        "FalconMambaForCausalLM",
        language,
        _TOKENS,
        {"hidden_size": 32, "num_hidden_layers": 2, "state_size": 4},
    ),
    _row(
        "olmoe",
        "OlmoeForCausalLM",
        language,
        _SMALL,
        {
            "experts_implementation": "batched_mm",
            "num_experts": 4,
            "num_experts_per_tok": 2,
            "num_key_value_heads": 2,
        },
    ),
    _row("ctrl", "CTRLLMHeadModel", language, _GPT, {"dff": 64}),
    _row(
        "deberta",
        "DebertaForSequenceClassification",
        classified,
        _SMALL,
        {"relative_attention": True, "pos_att_type": ["p2c", "c2p"]},
    ),
)
"""Those that were looked at while something was mended."""

LAST: tuple[Architecture, ...] = (
    _row("qwen2", "Qwen2ForCausalLM", language, _GROUPED),
    _row("smollm3", "SmolLM3ForCausalLM", language, _GROUPED),
    _row("granite", "GraniteForCausalLM", language, _GROUPED, {"embedding_multiplier": 2.0}),
    _row("codegen", "CodeGenForCausalLM", language, _GPT, {"rotary_dim": 4}),
    _row("helium", "HeliumForCausalLM", masked, _GROUPED),
    _row("nemotron", "NemotronForCausalLM", language, _GROUPED),
    _row("glm", "GlmForCausalLM", language, _GROUPED),
    _row("diffllama", "DiffLlamaForCausalLM", language, _GROUPED),
    _row("persimmon", "PersimmonForCausalLM", language, _SMALL),
    _row(
        "lfm2",
        "Lfm2ForCausalLM",
        language,
        _GROUPED,
        {"layer_types": ["conv", "full_attention"], "block_multiple_of": 16},
    ),
    _row("biogpt", "BioGptForCausalLM", masked, _SMALL, {"layerdrop": 0.0}),
    _row("squeezebert", "SqueezeBertModel", sentences, _SMALL, {"embedding_size": 32}),
    _row("megatron_bert", "MegatronBertForMaskedLM", masked, _SMALL),
    _row("ernie", "ErnieForSequenceClassification", classified, _SMALL),
    _row("big_bird", "BigBirdForMaskedLM", masked, _SMALL, {"attention_type": "original_full"}),
    _row(
        "tapas",
        "TapasModel",
        lambda: sentences() | {"token_type_ids": torch.zeros(2, LENGTH, 7, dtype=torch.long)},
        _SMALL,
        {"type_vocab_sizes": [3, 8, 8, 2, 8, 8, 8]},
    ),
    _row("ibert", "IBertForSequenceClassification", classified, _SMALL),
    _row("luke", "LukeModel", sentences, _SMALL, {"entity_vocab_size": 8, "entity_emb_size": 16}),
    _row("mbart", "MBartForConditionalGeneration", translation, _BART),
    _row("marian", "MarianMTModel", translation, _BART),
    _row("blenderbot", "BlenderbotForConditionalGeneration", translation, _BART),
    _row("umt5", "UMT5ForConditionalGeneration", translation, _T5),
    _row(
        "pegasus_x",
        "PegasusXForConditionalGeneration",
        translation,
        _BART,
        {"block_size": 4, "num_global_tokens": 4},
    ),
    _row("ijepa", "IJepaModel", images(), _VISION),
    _row(
        "convnextv2",
        "ConvNextV2ForImageClassification",
        _labelled_images(),
        {"hidden_sizes": [8, 16], "depths": [1, 2], "num_stages": 2},
    ),
    _row(
        "mobilenet_v1",
        "MobileNetV1ForImageClassification",
        _labelled_images(32),
        {"depth_multiplier": 0.25, "min_depth": 4},
    ),
    _row(
        "pvt",
        "PvtModel",
        images(32),
        {
            "image_size": 32,
            "num_encoder_blocks": 2,
            "depths": [1, 1],
            "hidden_sizes": [8, 16],
            "sequence_reduction_ratios": [2, 1],
            "patch_sizes": [4, 2],
            "strides": [4, 2],
            "num_attention_heads": [1, 2],
            "mlp_ratios": [2, 2],
        },
    ),
    _row(
        "focalnet",
        "FocalNetModel",
        images(),
        {
            "image_size": 16,
            "patch_size": 2,
            "embed_dim": 8,
            "depths": [1, 1],
            "hidden_sizes": [8, 16],
            "focal_levels": [1, 1],
            "focal_windows": [3, 3],
        },
    ),
    _row(
        "bit",
        "BitForImageClassification",
        _labelled_images(32),
        {"embedding_size": 8, "hidden_sizes": [8, 16], "depths": [1, 2], "num_groups": 4},
    ),
    _row(
        "hiera",
        "HieraModel",
        images(32),
        {
            "image_size": [32, 32],
            "patch_size": [3, 3],
            "patch_stride": [4, 4],
            "patch_padding": [1, 1],
            "embed_dim": 8,
            "depths": [1, 2],
            "num_heads": [1, 2],
            "query_stride": [2, 2],
            "num_query_pool": 1,
            "masked_unit_size": [2, 2],
            "embed_dim_multiplier": 2.0,
        },
    ),
    _row(
        "vitdet",
        "VitDetModel",
        images(32),
        _LAYERS,
        {
            "image_size": 32,
            "pretrain_image_size": 32,
            "patch_size": 4,
            "window_size": 4,
            "window_block_indices": [0],
            "use_relative_position_embeddings": True,
        },
    ),
    _row(
        "videomae",
        "VideoMAEForPreTraining",
        _masked_videos,
        _VISION,
        {
            "num_frames": 4,
            "tubelet_size": 2,
            "decoder_hidden_size": 16,
            "decoder_num_hidden_layers": 1,
            "decoder_num_attention_heads": 2,
            "decoder_intermediate_size": 32,
            "norm_pix_loss": False,
        },
    ),
    _row(
        "vivit",
        "VivitModel",
        _videos,
        _LAYERS,
        {"intermediate_size": 64, "image_size": 16, "num_frames": 4, "tubelet_size": [2, 4, 4]},
    ),
    _row(
        "unispeech",
        "UniSpeechForCTC",
        waves,
        _SMALL,
        _WAVE,
        {"ctc_loss_reduction": "mean", "num_ctc_classes": VOCABULARY},
    ),
    _row("sew", "SEWModel", lambda: {"input_values": noise(2, 800)}, _SMALL, _WAVE, {"squeeze_factor": 2}),
    _row(
        "data2vec_audio",
        "Data2VecAudioModel",
        lambda: {"input_values": noise(2, 800)},
        _SMALL,
        _WAVE,
        {"conv_pos_kernel_size": 3},
    ),
    _row(
        "moonshine",
        "MoonshineForConditionalGeneration",
        lambda: {"input_values": noise(2, 2000), "labels": token_ids(2, 5)},
        _TOKENS,
        {
            "hidden_size": 32,
            "intermediate_size": 64,
            "encoder_num_hidden_layers": 2,
            "decoder_num_hidden_layers": 2,
            "encoder_num_attention_heads": 4,
            "decoder_num_attention_heads": 4,
            "decoder_start_token_id": 1,
        },
    ),
    _row(
        "lilt",
        "LiltModel",
        lambda: {k: v for k, v in _boxed().items() if k != "labels"},
        _SMALL,
        {"hidden_size": 48, "max_2d_position_embeddings": 64},
    ),
    _row(
        "layoutlmv3",
        "LayoutLMv3Model",
        lambda: {k: v for k, v in _boxed().items() if k != "labels"},
        _SMALL,
        {"max_2d_position_embeddings": 64, "coordinate_size": 6, "shape_size": 4, "visual_embed": False},
    ),
    _row("visual_bert", "VisualBertModel", _embedded_regions, _SMALL, {"visual_embedding_dim": 16}),
    _row(
        "patchtsmixer",
        "PatchTSMixerForPrediction",
        _history,
        _SERIES,
        {"num_layers": 2, "prediction_length": 4, "patch_stride": 4, "loss": "mse"},
    ),
    _row("git", "GitForCausalLM", captioned(), _SMALL, {"vision_config": _VISION}),
    _row(
        "altclip",
        "AltCLIPModel",
        captioned(return_loss=True),
        {"text_config": _SMALL | {"project_dim": 16}, "vision_config": _VISION, "projection_dim": 16},
    ),
    _row("owlvit", "OwlViTModel", captioned(return_loss=True), _CLIP),
    _row(
        "xclip",
        "XCLIPModel",
        lambda: sentences() | {"pixel_values": noise(2, 4, 3, 16, 16)},
        {
            "text_config": _SMALL,
            "vision_config": _VISION
            | {
                "mit_hidden_size": 32,
                "mit_intermediate_size": 64,
                "mit_num_attention_heads": 4,
                "num_frames": 4,
            },
            "projection_dim": 32,
        },
    ),
    _row(
        "qwen3_moe",
        "Qwen3MoeForCausalLM",
        language,
        _GROUPED,
        _EXPERTS,
        {"experts_implementation": "batched_mm"},
    ),
    _row(
        "granitemoe",
        "GraniteMoeForCausalLM",
        language,
        _GROUPED,
        {"num_local_experts": 4, "num_experts_per_tok": 2, "experts_implementation": "batched_mm"},
    ),
    _row("imagegpt", "ImageGPTModel", lambda: {"input_ids": token_ids(2, LENGTH)}, _GPT),
    _row("openai_gpt", "OpenAIGPTLMHeadModel", language, _GPT),
    _row(
        "zamba2",
        "Zamba2ForCausalLM",
        language,
        _SMALL,
        {
            "mamba_d_state": 8,
            "mamba_headdim": 8,
            "n_mamba_heads": 8,
            "chunk_size": 4,
            "num_mem_blocks": 1,
            "hybrid_layer_ids": [1],
            "layer_types": ["mamba", "hybrid"],
            "use_mamba_kernels": False,
        },
    ),
    _row(
        "reformer",
        "ReformerModelWithLMHead",
        _long(16),
        {
            "vocab_size": VOCABULARY,
            "hidden_size": 32,
            "num_attention_heads": 2,
            "attention_head_size": 16,
            "feed_forward_size": 32,
            "axial_pos_shape": [4, 4],
            "axial_pos_embds_dim": [16, 16],
            "local_attn_chunk_length": 4,
            "attn_layers": ["local", "local"],
            "is_decoder": True,
            "pad_token_id": 0,
            "eos_token_id": 2,
            "hidden_dropout_prob": 0.0,
        },
    ),
)
"""Those that were looked at last."""

STRANGERS = (*FIRST, *LAST)
