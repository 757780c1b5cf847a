"""The networks that are exported: modules, inputs, which sizes stay open."""

from __future__ import annotations

import hashlib
import importlib
import os
import tempfile
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.architectures import libraries
from benchmarks.models import folder

Array = np.ndarray[Any, Any]
Feed = Mapping[str, Array]

OPSET = 17


@dataclass(frozen=True)
class Architecture:
    """A network and what it is run with."""

    module: str
    """The class, as ``language.Encoder``, or the module that has `make`."""
    inputs: Callable[[Any, Any], Sequence[tuple[Any, ...]]]
    """Examples, of PyTorch and a generator of random numbers; the first one is exported."""
    names: tuple[str, ...]
    """Of the inputs."""
    open: Mapping[str, Mapping[int, str]] = field(default_factory=dict)
    """Input → axis → the name of a size that is open."""
    is_quantized: bool = False
    make: Callable[[], Any] | None = None
    """Makes the network, where no class of these modules does."""


def _image(side: int) -> Callable[[Any, Any], Sequence[tuple[Any, ...]]]:
    return lambda torch, draws: [(torch.rand(1, 3, side, side, generator=draws),)]


def _sound(count: int) -> Callable[[Any, Any], Sequence[tuple[Any, ...]]]:
    return lambda torch, draws: [(torch.randn(1, count, generator=draws),)]


def _tokens(*shape: int) -> Callable[[Any, Any], Any]:
    return lambda torch, draws: torch.randint(0, 2000, shape, generator=draws)


def _masked(torch: Any, draws: Any) -> Sequence[tuple[Any, ...]]:
    mask = torch.ones(1, 128, dtype=torch.int64)
    mask[:, 100:] = 0
    return [(_tokens(1, 128)(torch, draws), mask, torch.zeros(1, 128, dtype=torch.int64))]


def _decoder(past: Sequence[int], new: int) -> Callable[[Any, Any], Sequence[tuple[Any, ...]]]:
    def inputs(torch: Any, draws: Any) -> Sequence[tuple[Any, ...]]:
        from benchmarks.architectures.language import decoder_inputs

        return [decoder_inputs(length, new, draws) for length in past]

    return inputs


def _graph(torch: Any, draws: Any) -> Sequence[tuple[Any, ...]]:
    nodes, edges = 500, 4000
    features = torch.randn(nodes, 16, generator=draws)
    return [(features, torch.randint(0, nodes, (2, edges), generator=draws))]


def _denoised(torch: Any, draws: Any) -> Sequence[tuple[Any, ...]]:
    return [(torch.randn(1, 4, 64, 64, generator=draws), torch.tensor([40]))]


_PAST = tuple(f"past.{at}.{what}" for at in range(4) for what in ("key", "value"))
_DECODER = ("input_ids", "attention_mask", "position_ids", *_PAST)
_GROWING: Mapping[str, Mapping[int, str]] = {
    "input_ids": {1: "new"},
    "attention_mask": {1: "total"},
    "position_ids": {1: "new"},
    **{name: {2: "past"} for name in _PAST},
}
_TEXT = {name: {0: "batch", 1: "length"} for name in ("input_ids", "attention_mask", "token_type_ids")}

ARCHITECTURES: dict[str, Architecture] = {
    "encoder": Architecture("language.Encoder", _masked, tuple(_TEXT), _TEXT),
    "decoder, prompt": Architecture("language.Decoder", _decoder([0], 64), _DECODER, _GROWING),
    "decoder, step": Architecture("language.Decoder", _decoder([96], 1), _DECODER, _GROWING),
    "decoder, growing": Architecture("language.Decoder", _decoder(range(64, 128), 1), _DECODER, _GROWING),
    "tagger (LSTM, GRU)": Architecture(
        "language.Tagger", lambda torch, draws: [(_tokens(1, 64)(torch, draws),)], ("input_ids",)
    ),
    "vision transformer": Architecture("vision.VisionTransformer", _image(224), ("image",)),
    "ConvNeXt": Architecture("vision.ConvNext", _image(224), ("image",)),
    "detector": Architecture("vision.Detector", _image(320), ("image",)),
    "segmenter": Architecture("vision.Segmenter", _image(256), ("image",)),
    "U-Net of diffusion": Architecture("vision.Denoiser", _denoised, ("image", "step")),
    "MobileNet, int8": Architecture("vision.MobileNet", _image(224), ("x",), is_quantized=True),
    "speech (samples)": Architecture("signals.Speech", _sound(16000), ("samples",)),
    "speech (spectrum)": Architecture("signals.Listener", _sound(16000), ("samples",)),
    "forecaster (TCN)": Architecture(
        "signals.Forecaster",
        lambda torch, draws: [(torch.randn(1, 336, 8, generator=draws),)],
        ("series",),
        {"series": {0: "batch"}},
    ),
    "graph attention": Architecture(
        "signals.GraphNetwork", _graph, ("nodes", "edges"), {"nodes": {0: "count"}, "edges": {1: "edges"}}
    ),
}
"""Name → network."""


def _of_libraries(networks: Mapping[str, libraries.Library]) -> dict[str, Architecture]:
    return {
        name: Architecture("libraries", network.inputs, network.names, make=network.make)
        for name, network in networks.items()
    }


LIBRARIES = _of_libraries(libraries.NETWORKS)
"""The same of networks for which torchvision or transformers have to be installed,"""
TIMM = _of_libraries(libraries.TIMM)
"""or timm."""
ALL = ARCHITECTURES | LIBRARIES | TIMM


def files_of(name: str) -> tuple[Path, list[Feed]]:
    """The file of a network, exported on first use and whenever its sources have changed, and its feeds."""
    module = ALL[name].module.partition(".")[0]
    sources = [Path(__file__), Path(__file__).with_name(f"{module}.py")]
    state = hashlib.sha256(b"".join(source.read_bytes() for source in sources)).hexdigest()[:8]
    stem = "".join(letter if letter.isalnum() else "_" for letter in name)
    built = folder() / f"{stem}-{state}.onnx"
    if not built.exists():
        built.parent.mkdir(parents=True, exist_ok=True)
        _export(ALL[name], built)
    with np.load(built.with_suffix(".npz")) as kept:
        count = 1 + max(int(key.partition("/")[0]) for key in kept)
        feeds: list[dict[str, Array]] = [{} for _ in range(count)]
        for key in kept:
            at, _, of = key.partition("/")
            feeds[int(at)][of] = kept[key]
    return built, list(feeds)


def _export(architecture: Architecture, path: Path) -> None:
    """Writes the model's file and, beside it, the feeds."""
    try:
        import torch
    except ImportError:
        raise SystemExit("exporting needs PyTorch: pip install torch") from None
    of, _, kind = architecture.module.partition(".")
    torch.manual_seed(0)
    make = architecture.make or getattr(importlib.import_module(f"benchmarks.architectures.{of}"), kind)
    network = make()
    for part in network.modules():  # so that what comes out hangs on what goes in, however deep it is
        if isinstance(part, torch.nn.Conv1d | torch.nn.Conv2d):
            torch.nn.init.kaiming_normal_(part.weight)
        elif isinstance(part, torch.nn.BatchNorm2d):
            part.momentum = 1.0
    examples = architecture.inputs(torch, torch.Generator().manual_seed(0))
    with torch.no_grad():
        network.train()(*examples[0])  # batch normalisation learns what comes
    network.eval()
    feeds = {
        f"{at}/{name}": value.numpy()
        for at, example in enumerate(examples)
        for name, value in zip(architecture.names, example, strict=True)
    }
    with tempfile.TemporaryDirectory(dir=path.parent) as room, warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of sizes that Python sees, and of the exporter's age
        made, beside = Path(room, path.name), Path(room, "feeds.npz")
        torch.onnx.export(
            network,
            examples[0],
            made,
            input_names=list(architecture.names),
            dynamic_axes={name: dict(axes) for name, axes in architecture.open.items()},
            opset_version=OPSET,
            dynamo=False,  # what most files that are about come from, and no further package
        )
        if architecture.is_quantized:
            import onnx

            from tests.quantized.models import quantized

            made.write_bytes(quantized(onnx.load(made)))
        np.savez(beside, **feeds)
        os.replace(beside, path.with_suffix(".npz"))
        os.replace(made, path)
