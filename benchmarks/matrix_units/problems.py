"""The shapes that are measured: sizes of products, from models and squares."""

from __future__ import annotations

from dataclasses import dataclass, replace

from benchmarks.matrix_units.variants import Window


@dataclass(frozen=True)
class Problem:
    """C[b] (m × n) = A[b] (m × k) · B (k × n), B the same for all b unless it is batched."""

    label: str
    m: int
    n: int
    k: int
    batch: int = 1
    is_b_batched: bool = False
    window: Window | None = None
    """A convolution: m counts pixels, k is size² · channels, A is the images (channels last)."""
    is_a_half: bool = False
    """A is there in fp16, as the kernel before left it (its window may be a single element)."""

    @property
    def operations(self) -> int:
        return 2 * self.batch * self.m * self.n * self.k

    @property
    def a_elements(self) -> int:
        if self.window is None:
            return self.batch * self.m * self.k
        window = self.window
        images = self.m // (window.out_y * window.out_x)
        return images * window.in_y * window.in_x * window.channels


def square(size: int) -> Problem:
    return Problem(f"square {size}", size, size, size)


def convolution(
    images: int, side: int, channels: int, filters: int, size: int, stride: int = 1, label: str = ""
) -> Problem:
    """A square convolution with "same" padding over channels-last images."""
    window = Window(side, side, channels, size, stride, size // 2)
    m = images * window.out_y * window.out_x
    name = label or f"conv b{images} {side}² {channels}→{filters} {size}×{size}" + (
        f"/{stride}" if stride > 1 else ""
    )
    return Problem(name, m, filters, size * size * channels, window=window)


def halved(problem: Problem) -> Problem:
    """The same with A in fp16."""
    window = problem.window or Window(problem.m, 1, problem.k, 1, 1, 0)
    return replace(problem, label=f"{problem.label}, fp16", window=window, is_a_half=True)


def _transformer(label: str, m: int) -> tuple[Problem, ...]:
    return tuple(
        Problem(f"{label} {k}→{n}", m, n, k) for n, k in ((768, 768), (2304, 768), (3072, 768), (768, 3072))
    )


SQUARES = tuple(square(size) for size in (8192, 4096, 2048, 1024, 8191, 4095, 4097, 1000))
BERT_SMALL = _transformer("bert b1 s128", 128)
BERT_LARGE = _transformer("bert b8 s512", 4096)
VIT = _transformer("vit b1", 197)
GPT2 = (*_transformer("gpt2 s256", 256), Problem("gpt2 s256 head", 256, 50257, 768))
CONVOLUTIONS_1 = tuple(
    convolution(1, side, channels, filters, size)
    for side, channels, filters, size in (
        (56, 64, 64, 3),
        (28, 128, 128, 3),
        (14, 256, 256, 3),
        (7, 512, 512, 3),
        (56, 64, 256, 1),
        (14, 1024, 256, 1),
    )
)
CONVOLUTIONS_32 = tuple(
    convolution(32, side, channels, filters, size)
    for side, channels, filters, size in (
        (56, 64, 64, 3),
        (28, 128, 128, 3),
        (14, 256, 256, 3),
        (7, 512, 512, 3),
        (56, 64, 256, 1),
        (56, 256, 64, 1),
        (14, 1024, 256, 1),
        (7, 512, 2048, 1),
    )
)
BATCHED = (
    Problem("scores 96×512×512×64", 512, 512, 64, 96, True),
    Problem("values 96×512×64×512", 512, 64, 512, 96, True),
)

SUITES: dict[str, tuple[Problem, ...]] = {
    "squares": SQUARES,
    "bert1": BERT_SMALL,
    "bert8": BERT_LARGE,
    "bert8_half": tuple(halved(problem) for problem in BERT_LARGE),
    "vit": VIT,
    "gpt2": GPT2,
    "conv1": CONVOLUTIONS_1,
    "conv1_half": tuple(halved(problem) for problem in CONVOLUTIONS_1),
    "conv32": CONVOLUTIONS_32,
    "conv32_half": tuple(halved(problem) for problem in CONVOLUTIONS_32),
    "batched": BATCHED,
}
