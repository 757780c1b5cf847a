"""What becomes of gradients when something is changed in place between an operation and `backward`."""

from __future__ import annotations

import operator
import zlib
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np

from tests.tensors.operation_cases import Case, cases
from vkml.dataclasses import dataclass

Random = np.random.Generator
HOW = ("itself", "under no_grad", "a view", "detached")
"""Ways to change a tensor in place."""


@dataclass(frozen=True)
class Change:
    """What is changed in place, once an operation has read it or made it.

    Attributes:
        of: "argument" or "result".
        at: which of these.
        how: one of `HOW`.
    """

    of: str
    at: int
    how: str


@dataclass(frozen=True)
class Call:
    """An operation with arguments of NumPy's.

    Attributes:
        name: of the library, with dots.
        arguments: of it; arrays become tensors.
        options: named ones.
        tracks: of each array, in order, whether gradients flow to it.
    """

    name: str
    arguments: tuple[Any, ...]
    options: dict[str, Any]
    tracks: tuple[bool, ...]

    def outcome(self, library: Any, change: Change | None) -> list[Any] | str:
        """The gradients by all arguments that track, or what `backward` refuses.

        Args:
            library: torch, or vkml.
            change: what is done in between.
        """
        leaves: list[Any] = []
        given: list[Any] = []

        def made(value: Any) -> Any:
            tensor = library.tensor(value)
            if self.tracks[len(given)]:
                leaves.append(tensor.requires_grad_())
                tensor = tensor * 1  # no leaf: it may be changed
            given.append(tensor)
            return tensor

        arguments = mapped(made, self.arguments)
        results = flat(operator.attrgetter(self.name)(library)(*arguments, **self.options))
        results = [one for one in results if hasattr(one, "detach")]
        if change is not None:
            of = given if change.of == "argument" else results
            _changed(library, of[change.at], change.how)
        ends = [one for one in results if one.requires_grad]
        if not ends:
            return []
        random = np.random.default_rng(zlib.crc32(self.name.encode()))

        def weighed(one: Any) -> Any:
            kind = np.float64 if one.dtype == library.float64 else np.float32
            return (one * library.tensor(random.uniform(0.5, 1, tuple(one.shape)).astype(kind))).sum()

        try:
            sum([weighed(one) for one in ends]).backward()
        except RuntimeError as error:
            if "modified by an inplace operation" not in str(error):
                raise
            return "refused"
        return [None if leaf.grad is None else leaf.grad.numpy() for leaf in leaves]

    def changes(self, library: Any) -> Iterator[Change]:
        """All that may be changed."""
        given = [one for one in flat(self.arguments) if isinstance(one, np.ndarray)]
        for at, one in enumerate(given):
            for how in HOW if one.dtype.kind == "f" else HOW[:1]:
                if one.size and (how != "a view" or one.ndim):
                    yield Change("argument", at, how)
        arguments = mapped(library.tensor, self.arguments)
        results = flat(operator.attrgetter(self.name)(library)(*arguments, **self.options))
        for at, result in enumerate([one for one in results if hasattr(one, "detach")]):
            for how in HOW if result.dtype in (library.float32, library.float64) else HOW[:1]:
                if result.numel() and (how != "a view" or result.ndim):
                    yield Change("result", at, how)


def _changed(library: Any, tensor: Any, how: str) -> None:
    """Changes a tensor in place."""

    def act(x: Any) -> None:
        if x.dtype == library.bool:
            x.fill_(False)
        elif x.dtype in (library.float32, library.float64):
            x.mul_(2)
        else:
            x.mul_(1)  # an index stays one

    if how == "under no_grad":
        with library.no_grad():
            act(tensor)
    elif how == "a view":
        act(tensor[:1])
    elif how == "detached":
        act(tensor.detach())
    else:
        act(tensor)


def mapped(function: Callable[[Any], Any], value: Any) -> Any:
    """Nested tuples and lists with tensors in the places of arrays."""
    if isinstance(value, np.ndarray):
        return function(value)
    if isinstance(value, tuple | list):
        return type(value)([mapped(function, one) for one in value])
    return value


def flat(value: Any) -> list[Any]:
    """What is in nested tuples and lists."""
    return [leaf for one in value for leaf in flat(one)] if isinstance(value, tuple | list) else [value]


def drawn(case: Case, seed: int) -> Call | None:
    """A call of a case, some of whose floats track; None where it has none."""
    name, make, options = case
    random = np.random.default_rng([zlib.crc32(name.encode()), seed])
    arguments = make(random)
    floats = [one.dtype.kind == "f" for one in flat(arguments) if isinstance(one, np.ndarray)]
    if not any(floats):
        return None
    tracks = tuple([is_float and random.random() < 0.7 for is_float in floats])
    if not any(tracks):
        tracks = tuple(floats)
    return Call(name, arguments, options, tracks)


def layer_cases() -> list[Case]:
    """Functions of `nn.functional`."""
    found: list[Case] = []

    def add(names: str, make: Callable[[Random], tuple[Any, ...]], **options: Any) -> None:
        found.extend((f"nn.functional.{name}", make, options) for name in names.split())

    def floats(r: Random, *shapes: Sequence[int]) -> tuple[Any, ...]:
        return tuple([r.uniform(-2, 2, shape).astype(np.float32) for shape in shapes])

    add(
        "relu gelu silu mish leaky_relu elu selu celu hardswish hardsigmoid softsign hardtanh relu6 softplus"
        " logsigmoid tanhshrink softshrink hardshrink sigmoid tanh",
        lambda r: floats(r, (3, 4)),
    )
    add("relu elu selu leaky_relu hardtanh silu celu", lambda r: floats(r, (3, 4)), inplace=True)
    add("threshold", lambda r: (*floats(r, (3, 4)), 0.1, 2.0))
    add("prelu", lambda r: floats(r, (2, 3, 4), (3,)))
    add("softmax softmin log_softmax", lambda r: floats(r, (3, 4)), dim=1)
    add("glu", lambda r: floats(r, (3, 4)))
    add("normalize", lambda r: floats(r, (3, 4)))
    add("linear", lambda r: floats(r, (3, 4), (5, 4), (5,)))
    add("bilinear", lambda r: floats(r, (3, 4), (3, 2), (5, 4, 2)))
    add("conv1d", lambda r: floats(r, (2, 3, 6), (4, 3, 3), (4,)))
    add("conv2d", lambda r: floats(r, (2, 3, 6, 6), (4, 3, 3, 3), (4,)), padding=1)
    add("conv2d", lambda r: floats(r, (2, 3, 6, 6), (3, 1, 3, 3)), groups=3)
    add("conv_transpose2d", lambda r: floats(r, (2, 3, 4, 4), (3, 4, 3, 3), (4,)))
    add("max_pool1d avg_pool1d", lambda r: floats(r, (2, 3, 6)), kernel_size=2)
    add("max_pool2d avg_pool2d", lambda r: floats(r, (2, 3, 6, 6)), kernel_size=2)
    add("max_pool2d", lambda r: floats(r, (2, 3, 6, 6)), kernel_size=2, return_indices=True)
    add("adaptive_avg_pool2d adaptive_max_pool2d", lambda r: floats(r, (2, 3, 6, 6)), output_size=2)
    add("lp_pool2d", lambda r: floats(r, (2, 3, 6, 6)), norm_type=2, kernel_size=2)
    add("layer_norm", lambda r: (*floats(r, (3, 4)), (4,), *floats(r, (4,), (4,))))
    add("rms_norm", lambda r: (*floats(r, (3, 4)), (4,), *floats(r, (4,))))
    add("group_norm", lambda r: (*floats(r, (2, 4, 3)), 2, *floats(r, (4,), (4,))))
    add("instance_norm", lambda r: floats(r, (2, 4, 3)))
    add("batch_norm", lambda r: (*floats(r, (5, 3)), None, None, *floats(r, (3,), (3,))), training=True)
    add("embedding", lambda r: (r.integers(0, 5, (2, 3)), *floats(r, (5, 4))))
    add("mse_loss l1_loss smooth_l1_loss huber_loss", lambda r: floats(r, (3, 4), (3, 4)))
    add("binary_cross_entropy_with_logits", lambda r: (*floats(r, (3, 4)), r.random((3, 4), np.float32)))
    add(
        "binary_cross_entropy",
        lambda r: (r.uniform(0.1, 0.9, (3, 4)).astype(np.float32), r.random((3, 4), np.float32)),
    )
    add("kl_div", lambda r: (*floats(r, (3, 4)), r.random((3, 4), np.float32)), reduction="sum")
    add("cross_entropy nll_loss", lambda r: (*floats(r, (3, 4)), r.integers(0, 4, 3)))
    add("cross_entropy", lambda r: (*floats(r, (3, 4)), r.random((3, 4), np.float32)))
    add("poisson_nll_loss", lambda r: (*floats(r, (3, 4)), r.random((3, 4), np.float32)))
    add("gaussian_nll_loss", lambda r: (*floats(r, (3, 4), (3, 4)), r.random((3, 4), np.float32) + 0.1))
    add("hinge_embedding_loss soft_margin_loss", lambda r: (*floats(r, (3,)), np.float32([1, -1, 1])))
    add("cosine_similarity pairwise_distance", lambda r: floats(r, (3, 4), (3, 4)))
    add("cosine_embedding_loss", lambda r: (*floats(r, (3, 4), (3, 4)), np.float32([1, -1, 1])))
    add("margin_ranking_loss", lambda r: (*floats(r, (3,), (3,)), np.float32([1, -1, 1])))
    add("triplet_margin_loss", lambda r: floats(r, (3, 4), (3, 4), (3, 4)))
    add("pad", lambda r: (*floats(r, (2, 3, 4)), (1, 2)))
    add("pad", lambda r: (*floats(r, (2, 3, 4)), (1, 2)), mode="reflect")
    add("interpolate", lambda r: floats(r, (2, 3, 4, 4)), scale_factor=2)
    add("interpolate", lambda r: floats(r, (2, 3, 4, 4)), scale_factor=2, mode="bilinear")
    add("grid_sample", lambda r: (*floats(r, (2, 3, 4, 4)), floats(r, (2, 3, 3, 2))[0] / 2.5))
    add("affine_grid", lambda r: (*floats(r, (2, 2, 3)), (2, 3, 4, 4)))
    add("pixel_shuffle", lambda r: (*floats(r, (2, 4, 3, 3)), 2))
    add("unfold", lambda r: floats(r, (2, 3, 4, 4)), kernel_size=2)
    add("fold", lambda r: floats(r, (2, 12, 9)), output_size=4, kernel_size=2)
    add("scaled_dot_product_attention", lambda r: floats(r, (2, 2, 3, 4), (2, 2, 5, 4), (2, 2, 5, 4)))
    return found


def all_cases() -> list[Case]:
    """Operations on tensors, and those of layers."""
    return [*cases(), *layer_cases()]
