"""speechbrain: models of speech, with lengths of utterances as parts of the longest."""

import functools
from collections.abc import Callable
from typing import Any

import torch
from speechbrain.lobes.models import CRDNN, ECAPA_TDNN, RNNLM, Xvector, conv_tasnet
from speechbrain.lobes.models.HifiGAN import HifiganGenerator
from speechbrain.lobes.models.MetricGAN import EnhancementGenerator
from speechbrain.lobes.models.ResNet import ResNet
from speechbrain.lobes.models.transformer.TransformerASR import TransformerASR
from speechbrain.lobes.models.transformer.TransformerLM import TransformerLM
from speechbrain.nnet import RNN
from speechbrain.nnet.losses import ctc_loss
from torch import Tensor, nn

from wild.specimen import Batch, Specimen

_LENGTHS = [1.0, 0.75, 0.5, 1.0]
_ASR: dict[str, Any] = {
    **{"tgt_vocab": 12, "input_size": 8, "d_model": 16, "nhead": 2, "num_encoder_layers": 2},
    **{"num_decoder_layers": 2, "d_ffn": 16, "dropout": 0.0, "csgu_linear_units": 16, "kernel_size": 3},
}
_CONFORMER = {
    "encoder_module": "conformer",
    "attention_type": "RelPosMHAXL",
    "causal": False,
    "normalize_before": True,
}


class _Recognizes(nn.Module):
    """A recurrent encoder and the loss of connectionist temporal classification."""

    def __init__(self) -> None:
        super().__init__()
        self.encoder = RNN.LSTM(12, input_shape=[None, None, 8], num_layers=1, bidirectional=True)
        self.head = nn.Linear(24, 6)

    def forward(self, features: Tensor, lengths: Tensor, tokens: Tensor, token_lengths: Tensor) -> Tensor:
        encoded, _ = self.encoder(features, lengths=lengths)
        chances = self.head(encoded).log_softmax(-1)
        loss: Tensor = ctc_loss(chances, tokens, lengths, token_lengths, blank_index=0)
        return loss


def _features(channels: int = 8) -> tuple[Tensor, Tensor]:
    return torch.randn(4, 20, channels), torch.tensor(_LENGTHS)


def _frames() -> Batch:
    return (torch.randn(4, 20, 8),)


def _tokens() -> Batch:
    return (torch.randint(1, 12, (4, 9)),)


def _speech_and_text() -> Batch:
    return torch.randn(4, 20, 8), torch.randint(1, 12, (4, 5)), torch.tensor(_LENGTHS)


def _with_targets() -> Batch:
    return *_features(), torch.randint(1, 6, (4, 5)), torch.tensor(_LENGTHS)


def _crdnn() -> nn.Module:
    return CRDNN.CRDNN(
        **{"input_shape": [None, None, 8], "cnn_blocks": 1, "cnn_channels": [4], "rnn_layers": 1},
        **{
            "inter_layer_pooling_size": [2],
            "rnn_neurons": 8,
            "dnn_blocks": 1,
            "dnn_neurons": 8,
            "dropout": 0.0,
        },
    )


def _ecapa() -> nn.Module:
    return ECAPA_TDNN.ECAPA_TDNN(
        8, lin_neurons=8, channels=[16] * 4 + [32], attention_channels=8, res2net_scale=4, se_channels=8
    )


def _hifigan() -> nn.Module:
    return HifiganGenerator(8, 1, "1", [[1, 3, 5]], [3], [4, 4], 8, [2, 2])


_ROWS: dict[str, tuple[Callable[[], nn.Module], Callable[[], Batch]]] = {
    "CRDNN": (_crdnn, _frames),
    "ECAPA_TDNN": (_ecapa, _features),
    "Xvector": (
        lambda: Xvector.Xvector(
            **{"tdnn_channels": [8] * 4 + [16], "lin_neurons": 8, "in_channels": 8},
        ),
        _features,
    ),
    "ResNet": (lambda: ResNet(8, channels=[4] * 4, block_sizes=[1] * 4, lin_neurons=8), _features),
    "MetricGAN generator": (lambda: EnhancementGenerator(8, 200), _features),
    "TransformerLM": (lambda: TransformerLM(12, 16, 2, 2, d_ffn=16, dropout=0.0), _tokens),
    "TransformerASR": (lambda: TransformerASR(**_ASR), _speech_and_text),
    "TransformerASR, Conformer": (lambda: TransformerASR(**_ASR, **_CONFORMER), _speech_and_text),
    "TransformerASR, Branchformer": (
        lambda: TransformerASR(**_ASR, **{**_CONFORMER, "encoder_module": "branchformer"}),
        _speech_and_text,
    ),
    "RNNLM": (lambda: RNNLM.RNNLM(12, 8, dropout=0.0, rnn_neurons=8, dnn_neurons=8), _tokens),
    "LiGRU": (lambda: RNN.LiGRU(8, input_shape=[4, 20, 8], bidirectional=True), _frames),
    "LSTM, CTC": (_Recognizes, _with_targets),
    "conv_tasnet": (lambda: conv_tasnet.MaskNet(8, 4, 8, 3, 2, 1, 2), lambda: (torch.randn(4, 8, 20),)),
    "HifiGAN generator": (_hifigan, lambda: (torch.randn(4, 8, 10),)),
}


def specimens() -> list[Specimen]:
    """Recognizers, embeddings of speakers, separators and a vocoder."""
    return [
        Specimen("speechbrain", name, functools.partial(build), inputs)
        for name, (build, inputs) in _ROWS.items()
    ]
