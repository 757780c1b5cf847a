"""Networks over images: classifiers, a detector, a segmenter, a U-Net."""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence

import torch
from torch import Tensor, nn
from torch.nn import functional


class _Attention(nn.Module):
    """Self-attention whose queries, keys and values are one product."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.together, self.output = nn.Linear(width, 3 * width), nn.Linear(width, width)

    def forward(self, x: Tensor) -> Tensor:
        batch, length, width = x.shape
        parts = self.together(x).reshape(batch, length, 3, self.heads, width // self.heads)
        q, k, v = parts.permute(2, 0, 3, 1, 4).unbind(0)
        weights = (q * (width // self.heads) ** -0.5 @ k.transpose(-2, -1)).softmax(-1)
        return self.output((weights @ v).transpose(1, 2).reshape(batch, length, width))


class TransformerBlock(nn.Module):
    """Attention and two products, each normalised before and added."""

    def __init__(self, width: int, heads: int, times: int = 4) -> None:
        super().__init__()
        self.first, self.second = nn.LayerNorm(width, eps=1e-6), nn.LayerNorm(width, eps=1e-6)
        self.attention = _Attention(width, heads)
        self.inside, self.outside = nn.Linear(width, times * width), nn.Linear(times * width, width)

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.attention(self.first(x))
        return x + self.outside(functional.gelu(self.inside(self.second(x))))


class VisionTransformer(nn.Module):
    """Convolutions before patches, a class token, blocks."""

    def __init__(self, width: int = 192, heads: int = 3, blocks: int = 6, classes: int = 100) -> None:
        super().__init__()
        self.stem = nn.Sequential(
            nn.Conv2d(3, 32, 3, 2, 1, bias=False),
            nn.BatchNorm2d(32),
            nn.ReLU(),
            nn.Conv2d(32, 64, 3, 2, 1, bias=False),
            nn.BatchNorm2d(64),
            nn.ReLU(),
            nn.Conv2d(64, width, 4, 4),
        )
        self.token = nn.Parameter(torch.randn(1, 1, width) * 0.02)
        self.positions = nn.Parameter(torch.randn(1, 197, width) * 0.02)
        self.blocks = nn.Sequential(*[TransformerBlock(width, heads) for _ in range(blocks)])
        self.norm, self.head = nn.LayerNorm(width), nn.Linear(width, classes)

    def forward(self, image: Tensor) -> Tensor:
        x = self.stem(image).flatten(2).transpose(1, 2)
        x = torch.cat((self.token.expand(x.shape[0], -1, -1), x), 1) + self.positions
        return self.head(self.norm(self.blocks(x))[:, 0])


class _ChannelNorm(nn.Module):
    """Normalises channels of images, written out."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.weight, self.bias = nn.Parameter(torch.ones(width)), nn.Parameter(torch.zeros(width))

    def forward(self, x: Tensor) -> Tensor:
        mean = x.mean(1, keepdim=True)
        variance = (x - mean).pow(2).mean(1, keepdim=True)
        x = (x - mean) / torch.sqrt(variance + 1e-6)
        return self.weight[:, None, None] * x + self.bias[:, None, None]


class _ConvNextBlock(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.conv = nn.Conv2d(width, width, 7, padding=3, groups=width)
        self.norm = nn.LayerNorm(width, eps=1e-6)
        self.inside, self.outside = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)
        self.gain = nn.Parameter(torch.full((width,), 0.1))

    def forward(self, x: Tensor) -> Tensor:
        y = self.norm(self.conv(x).permute(0, 2, 3, 1))
        y = self.gain * self.outside(functional.gelu(self.inside(y)))
        return x + y.permute(0, 3, 1, 2)


class ConvNext(nn.Module):
    """Depthwise 7×7 convolutions, products over channels, norms of channels."""

    def __init__(self, widths: Sequence[int] = (48, 96, 192), depths: Sequence[int] = (2, 2, 4)) -> None:
        super().__init__()
        parts: list[nn.Module] = [nn.Conv2d(3, widths[0], 4, 4), _ChannelNorm(widths[0])]
        for at, (width, depth) in enumerate(zip(widths, depths, strict=True)):
            if at:
                parts += [_ChannelNorm(widths[at - 1]), nn.Conv2d(widths[at - 1], width, 2, 2)]
            parts += [_ConvNextBlock(width) for _ in range(depth)]
        self.parts = nn.Sequential(*parts)
        self.norm, self.head = nn.LayerNorm(widths[-1]), nn.Linear(widths[-1], 100)

    def forward(self, image: Tensor) -> Tensor:
        return self.head(self.norm(self.parts(image).mean((-2, -1))))


def _conv(source: int, target: int, kernel: int = 1, stride: int = 1, groups: int = 1) -> nn.Module:
    return nn.Sequential(
        nn.Conv2d(source, target, kernel, stride, kernel // 2, groups=groups, bias=False),
        nn.BatchNorm2d(target),
        nn.SiLU(),
    )


class _Split(nn.Module):
    """YOLO's block: halves, of which one goes on, all joined."""

    def __init__(self, source: int, target: int, count: int, is_added: bool) -> None:
        super().__init__()
        self.half, self.is_added = target // 2, is_added
        self.before, self.behind = _conv(source, target), _conv((2 + count) * self.half, target)
        self.blocks = nn.ModuleList(
            [
                nn.Sequential(_conv(self.half, self.half, 3), _conv(self.half, self.half, 3))
                for _ in range(count)
            ]
        )

    def forward(self, x: Tensor) -> Tensor:
        parts = list(self.before(x).chunk(2, 1))
        for block in self.blocks:
            made = block(parts[-1])
            parts.append(parts[-1] + made if self.is_added else made)
        return self.behind(torch.cat(parts, 1))


class Detector(nn.Module):
    """A YOLO-like detector with the 100 best boxes picked."""

    def __init__(self, width: int = 16, classes: int = 20, side: int = 320, bins: int = 16) -> None:
        super().__init__()
        w, self.bins, self.classes = width, bins, classes
        self.stem = nn.Sequential(_conv(3, w, 3, 2), _conv(w, 2 * w, 3, 2), _Split(2 * w, 2 * w, 1, True))
        self.third = nn.Sequential(_conv(2 * w, 4 * w, 3, 2), _Split(4 * w, 4 * w, 2, True))
        self.fourth = nn.Sequential(_conv(4 * w, 8 * w, 3, 2), _Split(8 * w, 8 * w, 2, True))
        self.fifth = nn.Sequential(_conv(8 * w, 16 * w, 3, 2), _Split(16 * w, 16 * w, 1, True))
        self.narrow, self.wide = _conv(16 * w, 8 * w), _conv(32 * w, 16 * w)
        self.pool = nn.MaxPool2d(5, 1, 2)
        self.up = nn.Upsample(scale_factor=2.0, mode="nearest")
        self.up_fourth, self.up_third = _Split(24 * w, 8 * w, 1, False), _Split(12 * w, 4 * w, 1, False)
        self.down_fourth = _conv(4 * w, 4 * w, 3, 2)
        self.out_fourth = _Split(12 * w, 8 * w, 1, False)
        sizes = (4 * w, 8 * w)
        self.boxes = nn.ModuleList(
            [nn.Sequential(_conv(s, 32, 3), _conv(32, 32, 3), nn.Conv2d(32, 4 * bins, 1)) for s in sizes]
        )
        self.scores = nn.ModuleList(
            [nn.Sequential(_conv(s, 32, 3), _conv(32, 32, 3), nn.Conv2d(32, classes, 1)) for s in sizes]
        )
        centres, strides = [], []
        for stride in (8, 16):
            at = torch.arange(side // stride) + 0.5
            y, x = torch.meshgrid(at, at, indexing="ij")
            centres.append(torch.stack((x, y)).reshape(2, -1))
            strides.append(torch.full((1, centres[-1].shape[1]), float(stride)))
        self.register_buffer("centres", torch.cat(centres, 1)[None])
        self.register_buffer("strides", torch.cat(strides, 1))
        self.register_buffer("numbers", torch.arange(bins, dtype=torch.float32).view(1, bins, 1, 1))

    def forward(self, image: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        third = self.third(self.stem(image))
        fourth = self.fourth(third)
        pooled = [self.narrow(self.fifth(fourth))]
        for _ in range(3):
            pooled.append(self.pool(pooled[-1]))
        fifth = self.wide(torch.cat(pooled, 1))
        fourth = self.up_fourth(torch.cat((self.up(fifth), fourth), 1))
        third = self.up_third(torch.cat((self.up(fourth), third), 1))
        fourth = self.out_fourth(torch.cat((self.down_fourth(third), fourth), 1))
        levels = [
            torch.cat((boxes(x), scores(x)), 1).flatten(2)
            for boxes, scores, x in zip(self.boxes, self.scores, (third, fourth), strict=True)
        ]
        distances, scores = torch.cat(levels, 2).split((4 * self.bins, self.classes), 1)
        parts = distances.view(distances.shape[0], 4, self.bins, -1).transpose(1, 2).softmax(1)
        left, right = (parts * self.numbers).sum(1).chunk(2, 1)
        low, high = self.centres - left, self.centres + right
        boxes = torch.cat(((low + high) / 2, high - low), 1) * self.strides
        best, classes = scores.sigmoid().max(1)
        best, places = best.topk(100, 1)
        boxes = boxes.transpose(1, 2).gather(1, places[:, :, None].expand(-1, -1, 4))
        return boxes, best, classes.gather(1, places)


class _Reduced(nn.Module):
    """SegFormer's attention, whose keys and values are of a smaller image, and its products."""

    def __init__(self, width: int, heads: int, ratio: int) -> None:
        super().__init__()
        self.heads, self.ratio = heads, ratio
        self.query, self.both, self.output = (
            nn.Linear(width, width),
            nn.Linear(width, 2 * width),
            nn.Linear(width, width),
        )
        self.first, self.second = nn.LayerNorm(width), nn.LayerNorm(width)
        if ratio > 1:
            self.smaller, self.norm = nn.Conv2d(width, width, ratio, ratio), nn.LayerNorm(width)
        self.inside, self.outside = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)
        self.depthwise = nn.Conv2d(4 * width, 4 * width, 3, padding=1, groups=4 * width)

    def forward(self, x: Tensor, height: int, breadth: int) -> Tensor:
        batch, length, width = x.shape
        normal = self.first(x)
        q = self.query(normal).view(batch, length, self.heads, -1).transpose(1, 2)
        if self.ratio > 1:
            image = normal.transpose(1, 2).reshape(batch, width, height, breadth)
            normal = self.norm(self.smaller(image).flatten(2).transpose(1, 2))
        k, v = (
            part.reshape(batch, -1, self.heads, width // self.heads).transpose(1, 2)
            for part in self.both(normal).chunk(2, -1)
        )
        weights = (q @ k.transpose(-1, -2) / math.sqrt(width // self.heads)).softmax(-1)
        x = x + self.output((weights @ v).transpose(1, 2).reshape(batch, length, width))
        y = self.inside(self.second(x)).transpose(1, 2).reshape(batch, 4 * width, height, breadth)
        y = self.depthwise(y).flatten(2).transpose(1, 2)
        return x + self.outside(functional.gelu(y))


class Segmenter(nn.Module):
    """SegFormer-like: four scales, joined at the finest, a class for each pixel."""

    def __init__(self, widths: Sequence[int] = (32, 64, 96, 128), classes: int = 21) -> None:
        super().__init__()
        sources, heads, ratios = (3, *widths[:-1]), (1, 2, 3, 4), (8, 4, 2, 1)
        self.patches = nn.ModuleList(
            [
                nn.Conv2d(s, t, 3 if at else 7, 2 if at else 4, 1 if at else 3)
                for at, (s, t) in enumerate(zip(sources, widths, strict=True))
            ]
        )
        self.norms = nn.ModuleList([nn.LayerNorm(width) for width in widths])
        self.ends = nn.ModuleList([nn.LayerNorm(width) for width in widths])
        self.blocks = nn.ModuleList(
            [_Reduced(w, h, r) for w, h, r in zip(widths, heads, ratios, strict=True)]
        )
        self.projections = nn.ModuleList([nn.Linear(width, 96) for width in widths])
        self.joined = nn.Sequential(nn.Conv2d(384, 96, 1, bias=False), nn.BatchNorm2d(96), nn.ReLU())
        self.head = nn.Conv2d(96, classes, 1)

    def forward(self, image: Tensor) -> tuple[Tensor, Tensor]:
        x, scales = image, []
        for at, patches in enumerate(self.patches):
            x = patches(x)
            batch, width, height, breadth = x.shape
            y = self.norms[at](x.flatten(2).transpose(1, 2))
            y = self.ends[at](self.blocks[at](y, height, breadth))
            x = y.reshape(batch, height, breadth, width).permute(0, 3, 1, 2)
            scales.append(x)
        size = scales[0].shape[2:]
        found = []
        for scale, projection in zip(scales, self.projections, strict=True):
            y = projection(scale.flatten(2).transpose(1, 2)).transpose(1, 2)
            y = y.reshape(scale.shape[0], -1, scale.shape[2], scale.shape[3])
            found.append(functional.interpolate(y, size=size, mode="bilinear", align_corners=False))
        scores = self.head(self.joined(torch.cat(found[::-1], 1)))
        whole = functional.interpolate(scores, size=image.shape[2:], mode="bilinear", align_corners=False)
        return scores, whole.argmax(1)


class _Residual(nn.Module):
    def __init__(self, source: int, target: int, time: int) -> None:
        super().__init__()
        self.first, self.second = nn.GroupNorm(8, source), nn.GroupNorm(8, target)
        self.conv, self.again = (
            nn.Conv2d(source, target, 3, padding=1),
            nn.Conv2d(target, target, 3, padding=1),
        )
        self.time = nn.Linear(time, target)
        self.skip = nn.Conv2d(source, target, 1) if source != target else nn.Identity()

    def forward(self, x: Tensor, time: Tensor) -> Tensor:
        y = self.conv(functional.silu(self.first(x)))
        y = y + self.time(functional.silu(time))[:, :, None, None]
        return self.skip(x) + self.again(functional.silu(self.second(y)))


class Denoiser(nn.Module):
    """A U-Net of a diffusion model: group norms, a time, attention at the coarsest scale."""

    def __init__(self, width: int = 32) -> None:
        super().__init__()
        w, time = width, 4 * width
        self.times = nn.Sequential(nn.Linear(width, time), nn.SiLU(), nn.Linear(time, time))
        self.before, self.behind = nn.Conv2d(4, w, 3, padding=1), nn.Conv2d(w, 4, 3, padding=1)
        self.down = nn.ModuleList([_Residual(w, w, time), _Residual(w, 2 * w, time)])
        self.shrink = nn.ModuleList([nn.Conv2d(s, s, 3, 2, 1) for s in (w, 2 * w)])
        self.middle, self.norm = _Residual(2 * w, 4 * w, time), nn.GroupNorm(8, 4 * w)
        self.attention = _Attention(4 * w, 4)
        self.up = nn.ModuleList([_Residual(6 * w, 2 * w, time), _Residual(3 * w, w, time)])
        self.grow = nn.ModuleList(
            [nn.Conv2d(4 * w, 4 * w, 3, padding=1), nn.Conv2d(2 * w, 2 * w, 3, padding=1)]
        )
        self.end = nn.GroupNorm(8, w)
        half = width // 2
        speeds = torch.exp(-math.log(10000) * torch.arange(half) / half)
        self.register_buffer("speeds", speeds, persistent=False)

    def forward(self, image: Tensor, step: Tensor) -> Tensor:
        angles = step[:, None].float() * self.speeds[None]
        time = self.times(torch.cat((angles.cos(), angles.sin()), -1))
        x, kept = self.before(image), []
        for block, shrink in zip(self.down, self.shrink, strict=True):
            x = block(x, time)
            kept.append(x)
            x = shrink(x)
        x = self.middle(x, time)
        batch, width, height, breadth = x.shape
        y = self.attention(self.norm(x).flatten(2).transpose(1, 2))
        x = x + y.transpose(1, 2).reshape(batch, width, height, breadth)
        for block, grow in zip(self.up, self.grow, strict=True):
            x = grow(functional.interpolate(x, scale_factor=2.0, mode="nearest"))
            x = block(torch.cat((x, kept.pop()), 1), time)
        return self.behind(functional.silu(self.end(x)))


class _Inverted(nn.Module):
    """MobileNetV3's block: wide, depthwise, gated by a mean, narrow."""

    def __init__(self, source: int, target: int, stride: int) -> None:
        super().__init__()
        inside = 4 * source
        self.wide = nn.Sequential(
            nn.Conv2d(source, inside, 1, bias=False), nn.BatchNorm2d(inside), nn.Hardswish()
        )
        self.depthwise = nn.Sequential(
            nn.Conv2d(inside, inside, 3, stride, 1, groups=inside, bias=False),
            nn.BatchNorm2d(inside),
            nn.Hardswish(),
        )
        self.gate = nn.Sequential(
            nn.AdaptiveAvgPool2d(1),
            nn.Conv2d(inside, source, 1),
            nn.ReLU(),
            nn.Conv2d(source, inside, 1),
            nn.Hardsigmoid(),
        )
        self.narrow = nn.Sequential(nn.Conv2d(inside, target, 1, bias=False), nn.BatchNorm2d(target))
        self.is_added = source == target and stride == 1

    def forward(self, x: Tensor) -> Tensor:
        y = self.depthwise(self.wide(x))
        y = self.narrow(y * self.gate(y))
        return x + y if self.is_added else y


class MobileNet(nn.Module):
    """MobileNetV3-like, what is quantised."""

    def __init__(self, widths: Sequence[int] = (16, 24, 24, 40, 40, 80, 80)) -> None:
        super().__init__()
        parts: list[nn.Module] = [
            nn.Conv2d(3, widths[0], 3, 2, 1, bias=False),
            nn.BatchNorm2d(widths[0]),
            nn.Hardswish(),
        ]
        for source, target in itertools.pairwise(widths):
            parts.append(_Inverted(source, target, 1 if source == target else 2))
        self.parts = nn.Sequential(*parts)
        self.head = nn.Linear(widths[-1], 100)

    def forward(self, image: Tensor) -> Tensor:
        return self.head(self.parts(image).mean((2, 3)))
