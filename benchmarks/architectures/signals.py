"""Networks over sound and series, and over the nodes of a graph."""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn
from torch.nn import functional

from benchmarks.architectures.vision import TransformerBlock


class Speech(nn.Module):
    """As wav2vec: convolutions over samples, positions by a grouped convolution, a transformer."""

    def __init__(self, channels: int = 128, width: int = 192, blocks: int = 4) -> None:
        super().__init__()
        shapes = [(1, 10, 5), *[(channels, 3, 2)] * 4, *[(channels, 2, 2)] * 2]
        self.convolutions = nn.ModuleList([nn.Conv1d(s, channels, k, t, bias=False) for s, k, t in shapes])
        self.first = nn.GroupNorm(channels, channels)
        self.norm, self.projection = nn.LayerNorm(channels), nn.Linear(channels, width)
        self.positions = nn.Conv1d(width, width, 64, padding=32, groups=16)
        self.blocks = nn.Sequential(*[TransformerBlock(width, 4) for _ in range(blocks)])
        self.head = nn.Linear(width, 32)

    def forward(self, samples: Tensor) -> Tensor:
        x = samples[:, None]
        for at, convolution in enumerate(self.convolutions):
            x = convolution(x)
            x = functional.gelu(x if at else self.first(x))
        x = self.projection(self.norm(x.transpose(1, 2)))
        x = x + functional.gelu(self.positions(x.transpose(1, 2))[..., :-1]).transpose(1, 2)
        return self.head(self.blocks(x))


class Listener(nn.Module):
    """As Whisper's encoder: a spectrum by STFT in mel bands, two convolutions, a transformer."""

    def __init__(self, bands: int = 80, width: int = 192, blocks: int = 4) -> None:
        super().__init__()
        self.register_buffer("window", torch.hann_window(400))
        self.register_buffer("filters", torch.rand(bands, 201) * 0.1)
        self.first, self.second = nn.Conv1d(bands, width, 3, padding=1), nn.Conv1d(width, width, 3, 2, 1)
        angles = torch.arange(64)[:, None] / 10000 ** (torch.arange(width // 2) / (width // 2))
        self.register_buffer("positions", torch.cat((angles.sin(), angles.cos()), 1))
        self.blocks = nn.Sequential(*[TransformerBlock(width, 4) for _ in range(blocks)])

    def forward(self, samples: Tensor) -> Tensor:
        found = torch.stft(samples, 400, 160, window=self.window, center=False, return_complex=False)
        power = found.pow(2).sum(-1)
        bands = torch.clamp(self.filters @ power, min=1e-10).log10()
        bands = (torch.maximum(bands, bands.amax((1, 2), keepdim=True) - 8.0) + 4.0) / 4.0
        x = functional.gelu(self.second(functional.gelu(self.first(bands)))).transpose(1, 2)
        return self.blocks(x + self.positions[: x.shape[1]])


class _Dilated(nn.Module):
    def __init__(self, width: int, dilation: int) -> None:
        super().__init__()
        self.space = 2 * dilation
        self.first = nn.Conv1d(width, width, 3, padding=self.space, dilation=dilation)
        self.second = nn.Conv1d(width, width, 3, dilation=dilation)

    def forward(self, x: Tensor) -> Tensor:
        y = functional.relu(self.first(x)[:, :, : -self.space])
        y = functional.relu(self.second(functional.pad(y, (self.space, 0))))
        return functional.relu(x + y)


class Forecaster(nn.Module):
    """A temporal convolutional network: causal, ever wider apart."""

    def __init__(self, series: int = 8, width: int = 64, levels: int = 6, horizon: int = 24) -> None:
        super().__init__()
        self.before = nn.Conv1d(series, width, 1)
        self.blocks = nn.Sequential(*[_Dilated(width, 2**level) for level in range(levels)])
        self.head = nn.Linear(width, horizon)

    def forward(self, series: Tensor) -> Tensor:
        mean = series.mean(1, keepdim=True)
        deviation = torch.sqrt(series.var(1, keepdim=True, unbiased=False) + 1e-5)
        x = self.before(((series - mean) / deviation).transpose(1, 2))
        return self.head(self.blocks(x)[:, :, -1])


class _Messages(nn.Module):
    """Graph attention: edges weigh what they bring, nodes add it up."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.inside, self.score = nn.Linear(2 * width, width), nn.Linear(width, 1)
        self.update, self.norm = nn.Linear(2 * width, width), nn.LayerNorm(width)

    def forward(self, x: Tensor, sources: Tensor, targets: Tensor) -> Tensor:
        count, width = x.shape
        hidden = functional.leaky_relu(self.inside(torch.cat((x[sources], x[targets]), -1)), 0.2)
        weights = torch.exp(torch.tanh(self.score(hidden)))
        columns = targets[:, None]
        totals = torch.zeros(count, 1).scatter_add(0, columns, weights)
        mixed = torch.zeros(count, width).scatter_add(0, columns.expand(-1, width), hidden * weights)
        mixed = mixed / (totals + 1e-6)
        return x + self.norm(functional.relu(self.update(torch.cat((x, mixed), -1))))


class GraphNetwork(nn.Module):
    """Messages along edges, and one answer for the whole graph."""

    def __init__(self, features: int = 16, width: int = 64, layers: int = 3) -> None:
        super().__init__()
        self.before, self.head = nn.Linear(features, width), nn.Linear(width, 10)
        self.layers = nn.ModuleList([_Messages(width) for _ in range(layers)])

    def forward(self, nodes: Tensor, edges: Tensor) -> tuple[Tensor, Tensor]:
        x = functional.relu(self.before(nodes))
        for layer in self.layers:
            x = layer(x, edges[0], edges[1])
        return x, self.head(x.mean(0) / math.sqrt(2))
