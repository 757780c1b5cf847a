"""Every layer of `vkml.nn`, and what it is called with."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

import vkml
from vkml import nn

Array = np.ndarray[Any, Any]


@dataclass(frozen=True)
class Case:
    """A layer.

    Attributes:
        make: it.
        inputs: makes what it is called with, for a batch.
        axes: of each input, which one is the batch; None where it has none.
    """

    make: Callable[[], nn.Module]
    inputs: Callable[[int], Sequence[Array]]
    axes: Sequence[int | None] = (0,)


def normal(*shape: int) -> Array:
    """Normally distributed float32, the same for each shape."""
    return np.random.default_rng(list(shape)).standard_normal(shape).astype(np.float32)


def places(most: int, *shape: int) -> Array:
    """Integers from 0."""
    return np.random.default_rng(list(shape)).integers(0, most, shape)


def _image(*rest: int) -> Callable[[int], Sequence[Array]]:
    return lambda n: [normal(n, *rest)]


def _pairs(*rest: int) -> Callable[[int], Sequence[Array]]:
    return lambda n: [normal(n, *rest), normal(n + 64, *rest)[:n]]


def _positive(n: int) -> Array:
    return np.abs(normal(n, 5)) + np.float32(0.1)


def _signs(*shape: int) -> Array:
    return (places(2, *shape) * 2 - 1).astype(np.float32)


LINES, IMAGES, VOLUMES = _image(4, 12), _image(4, 8, 9), _image(4, 6, 6, 7)
TWO, THREE = (0, 0), (0, 0, 0)

_plain = {
    name: Case(getattr(nn, name), _image(3, 5))
    for name in (
        "CELU", "ELU", "GELU", "Hardshrink", "Hardsigmoid", "Hardswish", "Hardtanh", "Identity", "LeakyReLU",
        "LogSigmoid", "Mish", "PReLU", "RReLU", "ReLU", "ReLU6", "SELU", "SiLU", "Sigmoid", "Softplus",
        "Softshrink", "Softsign", "Tanh", "Tanhshrink", "Dropout", "AlphaDropout", "FeatureAlphaDropout",
        "Flatten",
    )
}  # fmt: skip
_spatial = {1: (LINES, "1d"), 2: (IMAGES, "2d"), 3: (VOLUMES, "3d")}


def _each_rank(make: Callable[[Any, int], nn.Module], name: str) -> dict[str, Case]:
    """A layer of one to three spatial axes."""
    return {
        f"{name}{suffix}": Case(
            lambda suffix=suffix, rank=rank: make(getattr(nn, f"{name}{suffix}"), rank), x
        )
        for rank, (x, suffix) in _spatial.items()
    }


def _lazy(make: Callable[[Any, int], nn.Module], name: str) -> dict[str, Case]:
    """A layer of one to three spatial axes that has been called, and so knows its sizes."""

    def made(suffix: str, rank: int, x: Callable[[int], Sequence[Array]]) -> nn.Module:
        layer = make(getattr(nn, f"{name}{suffix}"), rank)
        layer(vkml.tensor(x(2)[0]))
        return layer

    return {
        f"{name}{suffix}": Case(lambda suffix=suffix, rank=rank, x=x: made(suffix, rank, x), x)
        for rank, (x, suffix) in _spatial.items()
    }


CASES: dict[str, Case] = {
    **_plain,
    "GLU": Case(nn.GLU, _image(3, 6)),
    "LogSoftmax": Case(lambda: nn.LogSoftmax(-1), _image(3, 5)),
    "Softmax": Case(lambda: nn.Softmax(1), _image(3, 5)),
    "Softmax2d": Case(nn.Softmax2d, IMAGES),
    "Softmin": Case(lambda: nn.Softmin(-1), _image(3, 5)),
    "Threshold": Case(lambda: nn.Threshold(0.1, 2.0), _image(3, 5)),
    "Dropout1d": Case(nn.Dropout1d, LINES),
    "Dropout2d": Case(nn.Dropout2d, IMAGES),
    "Dropout3d": Case(nn.Dropout3d, VOLUMES),
    "LazyLinear": Case(lambda: _called(nn.LazyLinear(4), normal(2, 5)), _image(3, 5)),
    "Linear": Case(lambda: nn.Linear(5, 4), _image(3, 5)),
    "Bilinear": Case(lambda: nn.Bilinear(5, 4, 3), lambda n: [normal(n, 5), normal(n, 4)], TWO),
    "Unflatten": Case(lambda: nn.Unflatten(1, (2, 3)), _image(6, 5)),
    **_each_rank(lambda made, rank: made(4, 6, 3, stride=2, padding=1, groups=2), "Conv"),
    **_each_rank(lambda made, rank: made(4, 6, 3, stride=2, padding=1, output_padding=1), "ConvTranspose"),
    **_each_rank(lambda made, rank: made(4), "BatchNorm"),
    **_lazy(lambda made, rank: made(6, 3, padding=1), "LazyConv"),
    **_lazy(lambda made, rank: made(6, 3, stride=2), "LazyConvTranspose"),
    **_lazy(lambda made, rank: made(), "LazyBatchNorm"),
    **_lazy(lambda made, rank: made(affine=True), "LazyInstanceNorm"),
    **_each_rank(lambda made, rank: made(4, affine=True), "InstanceNorm"),
    **_each_rank(lambda made, rank: made(2), "CircularPad"),
    **_each_rank(lambda made, rank: made(2, 1.5), "ConstantPad"),
    **_each_rank(lambda made, rank: made(2), "ReflectionPad"),
    **_each_rank(lambda made, rank: made(2), "ReplicationPad"),
    **_each_rank(lambda made, rank: made(2), "ZeroPad"),
    **_each_rank(lambda made, rank: made(3), "AdaptiveAvgPool"),
    **_each_rank(lambda made, rank: made(3), "AdaptiveMaxPool"),
    **_each_rank(lambda made, rank: made(3, 2, 1, ceil_mode=True), "AvgPool"),
    **_each_rank(lambda made, rank: made(2, 2), "LPPool"),
    **_each_rank(lambda made, rank: made(3, 2, 1), "MaxPool"),
    "MaxUnpool1d": Case(lambda: _Unpooled(1), _image(2, 8)),
    "MaxUnpool2d": Case(lambda: _Unpooled(2), _image(2, 8, 6)),
    "MaxUnpool3d": Case(lambda: _Unpooled(3), _image(2, 4, 6, 8)),
    "LayerNorm": Case(lambda: nn.LayerNorm([3, 5]), _image(4, 3, 5)),
    "RMSNorm": Case(lambda: nn.RMSNorm(5), _image(3, 5)),
    "GroupNorm": Case(lambda: nn.GroupNorm(2, 4), IMAGES),
    "LocalResponseNorm": Case(lambda: nn.LocalResponseNorm(3), IMAGES),
    "CosineSimilarity": Case(nn.CosineSimilarity, _pairs(5), TWO),
    "PairwiseDistance": Case(nn.PairwiseDistance, _pairs(5), TWO),
    "ChannelShuffle": Case(lambda: nn.ChannelShuffle(2), IMAGES),
    "PixelShuffle": Case(lambda: nn.PixelShuffle(2), IMAGES),
    "PixelUnshuffle": Case(lambda: nn.PixelUnshuffle(2), _image(3, 8, 6)),
    "Upsample": Case(lambda: nn.Upsample(scale_factor=2, mode="bicubic"), IMAGES),
    "UpsamplingBilinear2d": Case(lambda: nn.UpsamplingBilinear2d(scale_factor=2), IMAGES),
    "UpsamplingNearest2d": Case(lambda: nn.UpsamplingNearest2d(size=(5, 13)), IMAGES),
    "Unfold": Case(lambda: nn.Unfold(3, padding=1, stride=2), IMAGES),
    "Fold": Case(lambda: nn.Fold((5, 6), 2), _image(12, 20)),
    "Embedding": Case(lambda: nn.Embedding(10, 4), lambda n: [places(10, n, 3)]),
    "EmbeddingBag": Case(lambda: nn.EmbeddingBag(10, 4), lambda n: [places(10, n, 3)]),
    "RNN": Case(lambda: nn.RNN(4, 5, 2), lambda n: [normal(6, n, 4)], (1,)),
    "LSTM": Case(lambda: nn.LSTM(4, 5, 2, bidirectional=True), lambda n: [normal(6, n, 4)], (1,)),
    "GRU": Case(lambda: nn.GRU(4, 5, batch_first=True), _image(6, 4)),
    "RNNCell": Case(lambda: nn.RNNCell(4, 5), _image(4)),
    "LSTMCell": Case(lambda: nn.LSTMCell(4, 5), _image(4)),
    "GRUCell": Case(lambda: nn.GRUCell(4, 5), lambda n: [normal(n, 4), normal(n, 5)], TWO),
    "MultiheadAttention": Case(
        lambda: nn.MultiheadAttention(8, 2, batch_first=True),
        lambda n: [normal(n, 5, 8), normal(n, 6, 8), normal(n, 6, 8)],
        THREE,
    ),
    "TransformerEncoderLayer": Case(
        lambda: nn.TransformerEncoderLayer(8, 2, 16, batch_first=True), _image(5, 8)
    ),
    "TransformerDecoderLayer": Case(
        lambda: nn.TransformerDecoderLayer(8, 2, 16, batch_first=True),
        lambda n: [normal(n, 5, 8), normal(n, 6, 8)],
        TWO,
    ),
    "TransformerEncoder": Case(
        lambda: nn.TransformerEncoder(nn.TransformerEncoderLayer(8, 2, 16, batch_first=True), 2),
        _image(5, 8),
    ),
    "TransformerDecoder": Case(
        lambda: nn.TransformerDecoder(nn.TransformerDecoderLayer(8, 2, 16, batch_first=True), 2),
        lambda n: [normal(n, 5, 8), normal(n, 6, 8)],
        TWO,
    ),
    "Transformer": Case(
        lambda: nn.Transformer(8, 2, 1, 1, 16, batch_first=True),
        lambda n: [normal(n, 5, 8), normal(n, 6, 8)],
        TWO,
    ),
    "Sequential": Case(lambda: nn.Sequential(nn.Linear(5, 4), nn.ReLU()), _image(5)),
    # Losses have no batch among their results' sizes; their means divide by it.
    "L1Loss": Case(nn.L1Loss, _pairs(5), TWO),
    "MSELoss": Case(nn.MSELoss, _pairs(5), TWO),
    "HuberLoss": Case(nn.HuberLoss, _pairs(5), TWO),
    "SmoothL1Loss": Case(nn.SmoothL1Loss, _pairs(5), TWO),
    "BCELoss": Case(
        nn.BCELoss, lambda n: [1 / (1 + np.exp(-normal(n, 5))), places(2, n, 5).astype(np.float32)], TWO
    ),
    "BCEWithLogitsLoss": Case(
        nn.BCEWithLogitsLoss, lambda n: [normal(n, 5), places(2, n, 5).astype(np.float32)], TWO
    ),
    "CrossEntropyLoss": Case(nn.CrossEntropyLoss, lambda n: [normal(n, 5), places(5, n)], TWO),
    "NLLLoss": Case(nn.NLLLoss, lambda n: [normal(n, 5), places(5, n)], TWO),
    "KLDivLoss": Case(
        lambda: nn.KLDivLoss(reduction="batchmean"), lambda n: [normal(n, 5), _positive(n)], TWO
    ),
    "PoissonNLLLoss": Case(nn.PoissonNLLLoss, lambda n: [normal(n, 5), _positive(n)], TWO),
    "GaussianNLLLoss": Case(
        nn.GaussianNLLLoss, lambda n: [normal(n, 5), normal(n + 64, 5)[:n], _positive(n)], THREE
    ),
    "SoftMarginLoss": Case(nn.SoftMarginLoss, lambda n: [normal(n, 5), _signs(n, 5)], TWO),
    "HingeEmbeddingLoss": Case(nn.HingeEmbeddingLoss, lambda n: [normal(n, 5), _signs(n, 5)], TWO),
    "MultiLabelMarginLoss": Case(
        nn.MultiLabelMarginLoss, lambda n: [normal(n, 5), np.array([[1, 3, -1, 0, 0]] * n)], TWO
    ),
    "MultiLabelSoftMarginLoss": Case(
        nn.MultiLabelSoftMarginLoss, lambda n: [normal(n, 5), places(2, n, 5).astype(np.float32)], TWO
    ),
    "MultiMarginLoss": Case(nn.MultiMarginLoss, lambda n: [normal(n, 5), places(5, n)], TWO),
    "CosineEmbeddingLoss": Case(nn.CosineEmbeddingLoss, lambda n: [*_pairs(5)(n), _signs(n)], THREE),
    "MarginRankingLoss": Case(nn.MarginRankingLoss, lambda n: [*_pairs()(n), _signs(n)], THREE),
    "TripletMarginLoss": Case(nn.TripletMarginLoss, lambda n: [*_pairs(5)(n), normal(n + 128, 5)[:n]], THREE),
    "TripletMarginWithDistanceLoss": Case(
        nn.TripletMarginWithDistanceLoss, lambda n: [*_pairs(5)(n), normal(n + 128, 5)[:n]], THREE
    ),
}


def _called(layer: nn.Module, x: Array) -> nn.Module:
    layer(vkml.tensor(x))
    return layer


class _Unpooled(nn.Module):
    """What a maximum pooling took, where it was."""

    def __init__(self, rank: int) -> None:
        super().__init__()
        self.pool = getattr(nn, f"MaxPool{rank}d")(2, return_indices=True)
        self.unpool = getattr(nn, f"MaxUnpool{rank}d")(2)

    def forward(self, x: Any) -> Any:
        return self.unpool(*self.pool(x))


NOT_ALONE = {
    "Module": "a base", "OnnxModule": "of a model", "RNNBase": "a base", "RNNCellBase": "a base",
    "ModuleDict": "computes nothing", "ModuleList": "computes nothing", "ParameterDict": "computes nothing",
    "ParameterList": "computes nothing", "CTCLoss": "its steps go by lengths that are looked at",
    "DataParallel": "its module is exported",
    "SyncBatchNorm": "computes as BatchNorm where there are no replicas",
}  # fmt: skip
"""Modules that are no layers to be called, or that cannot be exported, and why."""
