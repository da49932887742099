"""Makes the entries of a configuration small by what they are called."""

import re
from collections.abc import Callable
from typing import Any

VOCABULARY = 128
"""The number of token ids; those from 100 on are special."""

HEAD = 16
_SIZE = 64
_FIRST_SPECIAL = 100

_LIMITS = {
    re.compile(pattern): limit
    for pattern, limit in {
        r".*vocab_size|.*vocab_size_per_layer_input|num_embeddings": VOCABULARY,
        r"n_group|topk_group": 1,
        r"(.*_)?(num_)?experts_per_tok|moe_topk|moe_top_?k|top_k_experts|num_experts_per_token": 2,
        r".*experts": 4,
        r".*layers|n_layer|.*depth|num_blocks|num_block": 2,
        r"mamba_d_head": 2 * HEAD,
        r".*heads?|n_head": 4,
        r"qk_head_dim": 2 * HEAD,
        r".*head_dim|.*head_size|d_kv|rotary_dim|query_pre_attn_scalar|dim_head": HEAD,
        r".*lora_rank|.*lora_dim": HEAD,
        r".*intermediate_size|.*intermediate_dim|.*ffn_dim|d_ff|.*mlp_dim|.*linear_units|n_inner": _SIZE,
        r".*ffn_hidden_size|.*inner_dim|conv_bias_dim|.*feed_forward_size": _SIZE,
        r".*hidden_size|d_model|n_embd|.*embed_dim|.*hidden_dim|.*projection_dim|.*embedding_size": _SIZE,
        r".*_hidden_size_.*|.*embedding_dim|word_embed_proj_dim|.*hidden_dimension|dim|emb_dim": _SIZE,
        r"hidden_size_per_layer_input|codebook_dim|classifier_proj_size|output_dim|.*latent_dim": _SIZE,
        r"image_size|.*_image_size|input_size|image_height|image_width": 64,
        r"patch_size": 16,
        r"codebook_size|num_codebook_vectors": 32,
        r"num_filters|.*conv_channels|upsample_initial_channel": 16,
        r"base_channels": 32,
        r"num_frames": 4,
        r"num_queries|num_denoising": 20,
    }.items()
}
"""The most that an entry may be, by its name; the first that matches counts."""

_DROPPED = frozenset(
    {
        "stage_names",
        "out_features",
        "out_indices",
        "torch_dtype",
        "dtype",
        "id2label",
        "label2id",
        "per_layer_config",
    }
)
"""Entries that follow from others, and would say what was."""

_SPECIAL = re.compile(r".*token_(id|index|ids)|.*_(bos|eos|pad)_id|.*token")
_COUNT = re.compile(r".*layers|n_layer|.*depth")
_PLACES = re.compile(r".*index(es)?|.*indices")
_ONES = re.compile(
    r"depths?|.*num_blocks|blocks_per_stage|.*numb_of_layers|layers_per_stage|num_block_repeats"
)
_WIDTHS = re.compile(r"hidden_sizes|embed_dims?|conv_dim|.*hidden_sizes|tdnn_dim|dims?")


def shrunk(entries: dict[str, Any]) -> dict[str, Any]:
    """The same configuration, small.

    Args:
        entries: a configuration as a dictionary; those within it are shrunk, too.
    """
    counts = {value for name, value in entries.items() if _COUNT.fullmatch(name) and _is_count(value)}
    small = {n: _small(n, value, counts) for n, value in entries.items() if n not in _DROPPED}
    heads = entries.get("num_heads")
    if isinstance(heads, (list, tuple)) and isinstance(entries.get("embed_dim"), int):
        small["embed_dim"] = 8 * heads[0]
    if isinstance(entries.get("rope_parameters"), dict) and "rope_theta" in entries["rope_parameters"]:
        rotated = HEAD * entries["rope_parameters"].get("partial_rotary_factor", 1.0)
        small["rope_parameters"]["mrope_section"] = [2, 3, 3] if rotated == HEAD else [1, 1, 2]
    return small


def _small(name: str, value: Any, counts: set[int]) -> Any:
    if isinstance(value, dict):
        return shrunk(value) if all(isinstance(key, str) for key in value) else value
    if isinstance(value, (list, tuple)):
        return _small_list(name, list(value), counts)
    if not _is_count(value):
        return value
    if _SPECIAL.fullmatch(name):
        return _special(value)
    limits = (limit for pattern, limit in _LIMITS.items() if pattern.fullmatch(name))
    return min(value, next(limits, value))


def _small_list(name: str, values: list[Any], counts: set[int]) -> list[Any]:
    """Entries of two layers, of two kinds if there are; places, depths and widths that are small."""
    if len(values) > 2 and len(values) in counts:
        return [values[0], next((value for value in values if value != values[0]), values[0])]
    rules: list[tuple[re.Pattern[str], Callable[[int], int]]] = [
        (_SPECIAL, _special),
        (_ONES, lambda _: 1),
        (_WIDTHS, lambda value: value // 4 if value % 32 == 0 else value),
        (re.compile("image_size"), lambda value: min(value, 64)),
    ]
    if not all(_is_count(value) for value in values):
        return [shrunk(value) if isinstance(value, dict) else value for value in values]
    if _PLACES.fullmatch(name) and len(values) > 1:
        return [0, 1]
    for pattern, rule in rules:
        if pattern.fullmatch(name):
            return [rule(value) for value in values]
    return values


def _special(value: int) -> int:
    return value if value < _FIRST_SPECIAL else _FIRST_SPECIAL + value % (VOCABULARY - _FIRST_SPECIAL)


def _is_count(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)
