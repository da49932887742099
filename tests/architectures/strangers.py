"""More models of the transformers library: none was looked at while programs were written."""

from __future__ import annotations

from typing import Any

import torch

from architectures.base import VOCABULARY, Architecture, noise, token_ids
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
from architectures.hugging_face import GPT, GROUPED, HALVES, LAYERS, SMALL, T5, TOKENS, VISION, row

_HALVES = HALVES | {"decoder_start_token_id": 1}
_BART = TOKENS | _HALVES | {"d_model": 32, "max_position_embeddings": 64}
_T5 = T5 | {"decoder_start_token_id": 0}
_CLIP = {"text_config": SMALL, "vision_config": VISION, "projection_dim": 16}
_WAVE = {"conv_dim": [16, 16], "conv_kernel": [10, 4], "conv_stride": [5, 4]}
_WAVE |= {"num_conv_pos_embeddings": 8, "num_conv_pos_embedding_groups": 2, "apply_spec_augment": False}
_EXPERTS = {"num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 16}
_SERIES = {"d_model": 16, "num_input_channels": 2, "context_length": 16, "patch_length": 4}


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
    row("gemma3", "Gemma3ForCausalLM", language, GROUPED, {"sliding_window": 4}),
    row("phi", "PhiForCausalLM", masked, SMALL),
    row("phi3", "Phi3ForCausalLM", language, SMALL, {"num_key_value_heads": 2}),
    row("gptj", "GPTJForCausalLM", language, GPT, {"rotary_dim": 4}),
    row("gpt_neox", "GPTNeoXForCausalLM", masked, SMALL),
    row("cohere", "CohereForCausalLM", language, GROUPED),
    row("olmo2", "Olmo2ForCausalLM", language, GROUPED),
    row("starcoder2", "Starcoder2ForCausalLM", masked, GROUPED, {"sliding_window": 4}),
    row("mpt", "MptForCausalLM", language, TOKENS, {"d_model": 32, "n_heads": 4, "n_layers": 2}),
    row("roberta", "RobertaForMaskedLM", masked, SMALL),
    row("electra", "ElectraForSequenceClassification", classified, SMALL, {"embedding_size": 16}),
    row("mpnet", "MPNetForMaskedLM", masked, SMALL),
    row("roformer", "RoFormerForMaskedLM", masked, SMALL, {"embedding_size": 16}),
    row("convbert", "ConvBertModel", sentences, SMALL, {"embedding_size": 16, "head_ratio": 2}),
    row(
        "nystromformer",
        "NystromformerModel",
        sentences,
        SMALL,
        {"num_landmarks": 4, "segment_means_seq_len": 4},
    ),
    row("esm", "EsmForMaskedLM", masked, SMALL, {"mask_token_id": 4, "position_embedding_type": "rotary"}),
    row(
        "modernbert",
        "ModernBertForMaskedLM",
        masked,
        SMALL,
        {"local_attention": 4, "cls_token_id": 1, "sep_token_id": 2},
    ),
    row(
        "xlm",
        "XLMModel",
        sentences,
        {"vocab_size": VOCABULARY, "emb_dim": 32, "n_layers": 2, "n_heads": 4, "max_position_embeddings": 64},
    ),
    row("pegasus", "PegasusForConditionalGeneration", translation, _BART),
    row(
        "m2m_100",
        "M2M100ForConditionalGeneration",
        translation,
        _BART,
        {"encoder_layerdrop": 0.0, "decoder_layerdrop": 0.0},
    ),
    row("mt5", "MT5ForConditionalGeneration", translation, _T5),
    row(
        "longt5",
        "LongT5ForConditionalGeneration",
        translation,
        _T5,
        {"local_radius": 4, "encoder_attention_type": "transient-global", "global_block_size": 4},
    ),
    row("deit", "DeiTForImageClassification", _labelled_images(), VISION),
    row(
        "dinov2",
        "Dinov2ForImageClassification",
        _labelled_images(),
        LAYERS,
        {"image_size": 16, "patch_size": 4, "drop_path_rate": 0.1},
    ),
    row(
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
    row(
        "regnet",
        "RegNetForImageClassification",
        _labelled_images(32),
        {"embedding_size": 8, "hidden_sizes": [8, 16], "depths": [1, 2], "groups_width": 4},
    ),
    row(
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
    row(
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
    row(
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
    row(
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
    row("yolos", "YolosModel", images(), VISION, {"image_size": [16, 16], "num_detection_tokens": 4}),
    row(
        "siglip",
        "SiglipModel",
        captioned(return_loss=True),
        {"text_config": SMALL, "vision_config": VISION},
    ),
    row("timesformer", "TimesformerModel", _videos, VISION, {"num_frames": 4}),
    row("hubert", "HubertForCTC", waves, SMALL, _WAVE, {"ctc_loss_reduction": "mean"}),
    row("wavlm", "WavLMModel", lambda: {"input_values": noise(2, 800)}, SMALL, _WAVE, {"num_buckets": 8}),
    row(
        "ast",
        "ASTForAudioClassification",
        _spectrogram,
        LAYERS,
        {
            "intermediate_size": 64,
            "patch_size": 4,
            "frequency_stride": 4,
            "time_stride": 4,
            "max_length": 24,
            "num_mel_bins": 16,
        },
    ),
    row(
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
    row("layoutlm", "LayoutLMForSequenceClassification", _boxed, SMALL, {"max_2d_position_embeddings": 64}),
    row("bros", "BrosModel", _floating_boxes, SMALL, {"hidden_size": 128}),
    row(
        "lxmert",
        "LxmertModel",
        _regions,
        SMALL,
        {"l_layers": 1, "x_layers": 1, "r_layers": 1, "visual_feat_dim": 16},
    ),
    row(
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
    row("informer", "InformerForPrediction", _series_with_time, _WITH_TIME),
    row(
        "clipseg",
        "CLIPSegForImageSegmentation",
        _queried,
        _CLIP,
        {"extract_layers": [0, 1], "reduce_dim": 16, "decoder_num_attention_heads": 2},
    ),
    row(
        "rwkv",
        "RwkvForCausalLM",
        language,
        TOKENS,
        {
            "hidden_size": 32,
            "num_hidden_layers": 2,
            "attention_hidden_size": 32,
            "intermediate_size": 64,
            "context_length": 64,
        },
    ),
    row(
        "falcon_mamba",
        "FalconMambaForCausalLM",
        language,
        TOKENS,
        {"hidden_size": 32, "num_hidden_layers": 2, "state_size": 4},
    ),
    row(
        "olmoe",
        "OlmoeForCausalLM",
        language,
        SMALL,
        {
            "experts_implementation": "batched_mm",
            "num_experts": 4,
            "num_experts_per_tok": 2,
            "num_key_value_heads": 2,
        },
    ),
    row("ctrl", "CTRLLMHeadModel", language, GPT, {"dff": 64}),
    row(
        "deberta",
        "DebertaForSequenceClassification",
        classified,
        SMALL,
        {"relative_attention": True, "pos_att_type": ["p2c", "c2p"]},
    ),
)
"""Those that were looked at while something was mended."""

LAST: tuple[Architecture, ...] = (
    row("qwen2", "Qwen2ForCausalLM", language, GROUPED),
    row("smollm3", "SmolLM3ForCausalLM", language, GROUPED),
    row("granite", "GraniteForCausalLM", language, GROUPED, {"embedding_multiplier": 2.0}),
    row("codegen", "CodeGenForCausalLM", language, GPT, {"rotary_dim": 4}),
    row("helium", "HeliumForCausalLM", masked, GROUPED),
    row("nemotron", "NemotronForCausalLM", language, GROUPED),
    row("glm", "GlmForCausalLM", language, GROUPED),
    row("diffllama", "DiffLlamaForCausalLM", language, GROUPED),
    row("persimmon", "PersimmonForCausalLM", language, SMALL),
    row(
        "lfm2",
        "Lfm2ForCausalLM",
        language,
        GROUPED,
        {"layer_types": ["conv", "full_attention"], "block_multiple_of": 16},
    ),
    row("biogpt", "BioGptForCausalLM", masked, SMALL, {"layerdrop": 0.0}),
    row("squeezebert", "SqueezeBertModel", sentences, SMALL, {"embedding_size": 32}),
    row("megatron_bert", "MegatronBertForMaskedLM", masked, SMALL),
    row("ernie", "ErnieForSequenceClassification", classified, SMALL),
    row("big_bird", "BigBirdForMaskedLM", masked, SMALL, {"attention_type": "original_full"}),
    row(
        "tapas",
        "TapasModel",
        lambda: sentences() | {"token_type_ids": torch.zeros(2, LENGTH, 7, dtype=torch.long)},
        SMALL,
        {"type_vocab_sizes": [3, 8, 8, 2, 8, 8, 8]},
    ),
    row("ibert", "IBertForSequenceClassification", classified, SMALL),
    row("luke", "LukeModel", sentences, SMALL, {"entity_vocab_size": 8, "entity_emb_size": 16}),
    row("mbart", "MBartForConditionalGeneration", translation, _BART),
    row("marian", "MarianMTModel", translation, _BART),
    row("blenderbot", "BlenderbotForConditionalGeneration", translation, _BART),
    row("umt5", "UMT5ForConditionalGeneration", translation, _T5),
    row(
        "pegasus_x",
        "PegasusXForConditionalGeneration",
        translation,
        _BART,
        {"block_size": 4, "num_global_tokens": 4},
    ),
    row("ijepa", "IJepaModel", images(), VISION),
    row(
        "convnextv2",
        "ConvNextV2ForImageClassification",
        _labelled_images(),
        {"hidden_sizes": [8, 16], "depths": [1, 2], "num_stages": 2},
    ),
    row(
        "mobilenet_v1",
        "MobileNetV1ForImageClassification",
        _labelled_images(32),
        {"depth_multiplier": 0.25, "min_depth": 4},
    ),
    row(
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
    row(
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
    row(
        "bit",
        "BitForImageClassification",
        _labelled_images(32),
        {"embedding_size": 8, "hidden_sizes": [8, 16], "depths": [1, 2], "num_groups": 4},
    ),
    row(
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
    row(
        "vitdet",
        "VitDetModel",
        images(32),
        LAYERS,
        {
            "image_size": 32,
            "pretrain_image_size": 32,
            "patch_size": 4,
            "window_size": 4,
            "window_block_indices": [0],
            "use_relative_position_embeddings": True,
        },
    ),
    row(
        "videomae",
        "VideoMAEForPreTraining",
        _masked_videos,
        VISION,
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
    row(
        "vivit",
        "VivitModel",
        _videos,
        LAYERS,
        {"intermediate_size": 64, "image_size": 16, "num_frames": 4, "tubelet_size": [2, 4, 4]},
    ),
    row(
        "unispeech",
        "UniSpeechForCTC",
        waves,
        SMALL,
        _WAVE,
        {"ctc_loss_reduction": "mean", "num_ctc_classes": VOCABULARY},
    ),
    row("sew", "SEWModel", lambda: {"input_values": noise(2, 800)}, SMALL, _WAVE, {"squeeze_factor": 2}),
    row(
        "data2vec_audio",
        "Data2VecAudioModel",
        lambda: {"input_values": noise(2, 800)},
        SMALL,
        _WAVE,
        {"conv_pos_kernel_size": 3},
    ),
    row(
        "moonshine",
        "MoonshineForConditionalGeneration",
        lambda: {"input_values": noise(2, 2000), "labels": token_ids(2, 5)},
        TOKENS,
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
    row(
        "lilt",
        "LiltModel",
        lambda: {k: v for k, v in _boxed().items() if k != "labels"},
        SMALL,
        {"hidden_size": 48, "max_2d_position_embeddings": 64},
    ),
    row(
        "layoutlmv3",
        "LayoutLMv3Model",
        lambda: {k: v for k, v in _boxed().items() if k != "labels"},
        SMALL,
        {"max_2d_position_embeddings": 64, "coordinate_size": 6, "shape_size": 4, "visual_embed": False},
    ),
    row("visual_bert", "VisualBertModel", _embedded_regions, SMALL, {"visual_embedding_dim": 16}),
    row(
        "patchtsmixer",
        "PatchTSMixerForPrediction",
        _history,
        _SERIES,
        {"num_layers": 2, "prediction_length": 4, "patch_stride": 4, "loss": "mse"},
    ),
    row("git", "GitForCausalLM", captioned(), SMALL, {"vision_config": VISION}),
    row(
        "altclip",
        "AltCLIPModel",
        captioned(return_loss=True),
        {"text_config": SMALL | {"project_dim": 16}, "vision_config": VISION, "projection_dim": 16},
    ),
    row("owlvit", "OwlViTModel", captioned(return_loss=True), _CLIP),
    row(
        "xclip",
        "XCLIPModel",
        lambda: sentences() | {"pixel_values": noise(2, 4, 3, 16, 16)},
        {
            "text_config": SMALL,
            "vision_config": VISION
            | {
                "mit_hidden_size": 32,
                "mit_intermediate_size": 64,
                "mit_num_attention_heads": 4,
                "num_frames": 4,
            },
            "projection_dim": 32,
        },
    ),
    row(
        "qwen3_moe",
        "Qwen3MoeForCausalLM",
        language,
        GROUPED,
        _EXPERTS,
        {"experts_implementation": "batched_mm"},
    ),
    row(
        "granitemoe",
        "GraniteMoeForCausalLM",
        language,
        GROUPED,
        {"num_local_experts": 4, "num_experts_per_tok": 2, "experts_implementation": "batched_mm"},
    ),
    row("imagegpt", "ImageGPTModel", lambda: {"input_ids": token_ids(2, LENGTH)}, GPT),
    row("openai_gpt", "OpenAIGPTLMHeadModel", language, GPT),
    row(
        "zamba2",
        "Zamba2ForCausalLM",
        language,
        SMALL,
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
    row(
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
