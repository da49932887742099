"""Tensors of torch: their memory, their layout, and values that hold several.

In:    tensors, alone or inside nested values.
Out:   marks on storages, copies with the same layout, other memory behind the same object.
Start: `pytree`, then `storage`.
"""
