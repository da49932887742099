"""gluonts: forecasts, whose models return parameters of distributions, or train by a likelihood."""

import functools
from collections.abc import Callable
from typing import Any

import torch
from gluonts.torch.distributions import StudentTOutput
from gluonts.torch.model.d_linear.module import DLinearModel
from gluonts.torch.model.deepar.module import DeepARModel
from gluonts.torch.model.i_transformer.module import ITransformerModel
from gluonts.torch.model.lag_tst.module import LagTSTModel
from gluonts.torch.model.patch_tst.module import PatchTSTModel
from gluonts.torch.model.simple_feedforward.module import SimpleFeedForwardModel
from gluonts.torch.model.tft.module import TemporalFusionTransformerModel
from gluonts.torch.model.tide.module import TiDEModel
from torch import Tensor, nn

from wild.specimen import Batch, Specimen

_ROWS, _PAST, _FUTURE = 4, 8, 4
_LENGTHS: dict[str, Any] = {"context_length": _PAST, "prediction_length": _FUTURE}
_BLOCKS: dict[str, Any] = {
    **{"d_model": 16, "nhead": 2, "dim_feedforward": 16, "dropout": 0.0, "activation": "relu"},
    **{"norm_first": False, "num_encoder_layers": 2, "scaling": "mean"},
}


class _Likelihood(nn.Module):
    """The model's own loss."""

    def __init__(self, build: Callable[[], Any]) -> None:
        super().__init__()
        self.model = build()

    def forward(self, **batch: Tensor) -> Tensor:
        loss: Tensor = self.model.loss(**batch).mean()
        return loss


def _deep_ar() -> nn.Module:
    return DeepARModel("D", **_LENGTHS, hidden_size=8, lags_seq=[1, 2], cardinality=[3], dropout_rate=0.0)


def _tide() -> nn.Module:
    return TiDEModel(
        **_LENGTHS,
        **{"num_feat_dynamic_real": 1, "num_feat_dynamic_proj": 2, "num_feat_static_real": 1},
        **{"num_feat_static_cat": 1, "cardinality": [3], "embedding_dimension": [2], "dropout_rate": 0.0},
        **{"feat_proj_hidden_dim": 4, "encoder_hidden_dim": 8, "decoder_hidden_dim": 8},
        **{"temporal_hidden_dim": 8, "distr_hidden_dim": 4, "decoder_output_dim": 4},
        **{"num_layers_encoder": 1, "num_layers_decoder": 1, "layer_norm": True, "scaling": "mean"},
        distr_output=StudentTOutput(),
    )


def _patch_tst() -> nn.Module:
    return PatchTSTModel(
        **_LENGTHS, **_BLOCKS, patch_len=4, stride=2, padding_patch="end", num_feat_dynamic_real=0
    )


_MODELS: dict[str, Callable[[], nn.Module]] = {
    "SimpleFeedForward": lambda: SimpleFeedForwardModel(**_LENGTHS, hidden_dimensions=[8]),
    "DLinear": lambda: DLinearModel(**_LENGTHS, hidden_dimension=8, kernel_size=3),
    "PatchTST": _patch_tst,
    "ITransformer": lambda: ITransformerModel(**_LENGTHS, **_BLOCKS),
    "LagTST": lambda: LagTSTModel(**_LENGTHS, **_BLOCKS, freq="D", lags_seq=[1, 2]),
    "TiDE": _tide,
    "DeepAR": _deep_ar,
    "TemporalFusionTransformer": lambda: TemporalFusionTransformerModel(
        **_LENGTHS, num_heads=2, d_hidden=8, d_var=8, c_feat_static_cat=[3], dropout_rate=0.0
    ),
}


def _inputs(build: Callable[[], nn.Module], trained: bool) -> Batch:
    asked: Any = build()
    batch: dict[str, Any] = {}
    described = asked.describe_inputs(_ROWS)
    for name, shape in described.shapes.items():
        whole = described.dtypes[name] in (torch.long, torch.int)
        shape = tuple(2 if size == -1 else size for size in shape)  # as many series as you like
        batch[name] = torch.randint(0, 3, shape) if whole else torch.rand(shape)
    if "past_observed_values" in batch:
        batch["past_observed_values"] = torch.ones_like(batch["past_observed_values"])
    if trained:
        future = (_ROWS, _FUTURE, *batch["past_target"].shape[2:])
        batch |= {"future_target": torch.rand(future), "future_observed_values": torch.ones(future)}
    return batch


def specimens() -> list[Specimen]:
    """Each model by its forward, and by its loss."""
    found = []
    for name, build in _MODELS.items():
        inputs = functools.partial(_inputs, build)
        if name != "DeepAR":  # its forward draws samples
            found.append(Specimen("gluonts", name, build, functools.partial(inputs, False)))
        likelihood = functools.partial(_Likelihood, build)
        found.append(Specimen("gluonts", f"{name}, loss", likelihood, functools.partial(inputs, True)))
    return found
