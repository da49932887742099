"""Torch functions that are not simply computed where their arguments lie, by name."""

QUERIES = frozenset(
    {"__get__", "__set__", "dim", "size", "numel", "is_floating_point", "stride", "untyped_storage"}
)
"""Questions that launch nothing."""

KEEP_ARGUMENTS = frozenset(
    {
        "backward", "grad", "register_hook", "retain_grad", "requires_grad_",  # want these very tensors
        "_pack_padded_sequence", "_pad_packed_sequence",  # take lengths on the host
    }
)  # fmt: skip
"""Functions that are not to be given copies."""

LEAVE = frozenset({"cpu", "cuda", "numpy", "tolist"})
"""What leaves the devices has a value."""
