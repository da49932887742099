"""Functional ops that run on the outputs of tiles part by part. Nothing here needs torch."""

ELEMENTWISE = frozenset(
    [
        "abs", "add", "bfloat16", "clamp", "contiguous", "div", "double", "elu", "erf", "exp", "float",
        "gelu", "half", "hardswish", "leaky_relu", "log1p", "masked_fill", "mish", "mul", "neg", "pow",
        "relu", "relu6", "rsub", "sigmoid", "silu", "softplus", "sqrt", "square", "sub", "tanh", "to",
        "true_divide", "type_as", "where", "__add__", "__mul__", "__neg__", "__pow__", "__radd__",
        "__rmul__", "__rsub__", "__sub__", "__truediv__",
    ]
)  # fmt: skip
"""Element by element: of numbers, and of other outputs that are cut alike."""

VIEWS = frozenset(
    [
        "__getitem__", "chunk", "expand", "flatten", "permute", "reshape", "split", "swapaxes", "transpose",
        "unsqueeze", "view",
    ]
)  # fmt: skip
"""These leave the axis along which the tiles lie as it is, or move it, or take some of the parts."""

GATHERED = frozenset(["cat", "stack"])
"""These put values together that are cut alike, along another axis."""

HEADS = GATHERED | {"__matmul__", "dropout", "matmul", "scaled_dot_product_attention", "softmax"}
"""These go part by part where the axis is one of batches or heads, which they leave alone."""

LOSS = "cross_entropy"
"""It takes logits in parts."""

LAYERS = {
    "ELU": "elu", "GELU": "gelu", "GELUActivation": "gelu", "Hardswish": "hardswish", "Identity": "to",
    "LeakyReLU": "leaky_relu", "Mish": "mish", "NewGELUActivation": "gelu", "ReLU": "relu", "ReLU6": "relu6",
    "Sigmoid": "sigmoid", "SiLU": "silu", "SiLUActivation": "silu", "Softplus": "softplus", "Tanh": "tanh",
}  # fmt: skip
"""Classes of layers that are such an op, by short name. Their code runs as it is: other ops in it join."""

WEIGHT_OPS = {"linear": "Linear", "embedding": "Embedding"}
"""Functional ops that are split, by name, each with the layer that it stands for. Its weight is the second
tensor that it is given."""
