"""What autograd keeps, and what a layer needs while it runs."""

from __future__ import annotations

from typing import Any

import torch
from capture.cases.case import BOTH, Net, case, linear, linears, rows
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint


@case(*BOTH)
def what_activations_keep() -> tuple[Any, ...]:
    """A linear layer keeps its input, which its predecessor made; ReLU, Tanh, Sigmoid and Softmax
    keep their output; GELU its input."""
    layers = [linear(), nn.ReLU(), linear(), nn.Tanh(), linear(), nn.GELU(), linear(), nn.Softmax(-1)]
    return nn.Sequential(*layers), rows()


@case(*BOTH)
def what_norms_keep() -> tuple[Any, ...]:
    """LayerNorm keeps its input, and mean and inverse deviation of each row (2 x 4 bytes each)."""
    return nn.Sequential(linear(), nn.LayerNorm(4), linear()), rows()


@case(True)
def what_a_batch_norm_keeps() -> tuple[Any, ...]:
    """Its input, and mean and inverse deviation of each of five channels (20 bytes each)."""
    return nn.Sequential(nn.Conv2d(3, 5, 3, padding=1), nn.BatchNorm2d(5), nn.ReLU()), rows(2, 3, 4, 4)


@case(*BOTH)
def what_dropout_keeps() -> tuple[Any, ...]:
    """In training the mask, which on a CPU is one of floats; in evaluation it hands on its input."""
    return nn.Sequential(linear(), nn.Dropout(0.5), linear()), rows()


@case(*BOTH)
def what_an_embedding_keeps() -> tuple[Any, ...]:
    """The indices, which are the model's input: nothing that it made."""
    return nn.Sequential(nn.Embedding(10, 4), linear()), torch.zeros(2, 3, dtype=torch.long)


@case(*BOTH)
def what_a_convolution_keeps() -> tuple[Any, ...]:
    """Its input; max pooling keeps indices of 8 bytes for each output beside its input."""
    return nn.Sequential(nn.Conv2d(3, 5, 3), nn.MaxPool2d(2), nn.Flatten(), linear(5, 2)), rows(2, 3, 4, 4)


@case(*BOTH)
def outputs_that_are_views() -> tuple[Any, ...]:
    """Flatten, unflatten and identity make nothing, and lie with what they are views of."""
    layers = (linear(), nn.Unflatten(1, (2, 2)), nn.Identity(), nn.Flatten(), linear())
    return nn.Sequential(*layers), rows()


@case(True)
def in_place_activations() -> tuple[Any, ...]:
    """ReLU in place keeps its output, which is the memory that the layer before made."""
    return nn.Sequential(linear(), nn.ReLU(inplace=True), linear(), nn.Sigmoid()), rows()


@case(True)
def a_checkpointed_region() -> tuple[Any, ...]:
    """Only what goes into the region is kept."""

    def forward(m: Any, x: Tensor) -> Tensor:
        return m.c(checkpoint(m.block, m.a(x), use_reentrant=False))

    block = nn.Sequential(linear(), nn.Tanh(), linear(), nn.Tanh())
    return Net(forward, **linears("ac"), block=block), rows()


@case(*BOTH)
def autocast() -> tuple[Any, ...]:
    """Weights and inputs are cast inside the layer; outputs take two bytes for each element."""

    def forward(m: Any, x: Tensor) -> Tensor:
        with torch.autocast("cpu", dtype=torch.bfloat16):
            return m.b(m.a(x))

    return Net(forward, **linears("ab")), rows()


@case(True)
def half_precision() -> tuple[Any, ...]:
    """Two bytes for each element, of weights as well."""
    return nn.Sequential(linear(), nn.ReLU(), linear()).bfloat16(), rows().bfloat16()


@case(True)
def an_input_that_wants_a_gradient() -> tuple[Any, ...]:
    """Then the first layer makes that gradient in backward."""
    return nn.Sequential(linear(), linear()), rows().requires_grad_()


@case(False)
def what_is_held_inside_a_layer() -> tuple[Any, ...]:
    """The most that is alive at once: the first two of three are, beside what is handed on."""
    layer = Net(lambda m, x: (x.exp() + x.exp()).sum(1))
    return Net(lambda m, x: m.layer(m.a(x)), a=linear(), layer=layer), rows()


@case(*BOTH)
def a_single_layer() -> tuple[Any, ...]:
    """The root is a layer if it has no children."""
    return linear(), rows()


@case(True)
def a_twin() -> tuple[Any, ...]:
    """Layers of one class with the same work on the same shapes; another width is none."""
    return nn.Sequential(linear(), linear(), linear(4, 5), linear(5, 4), linear()), rows()
