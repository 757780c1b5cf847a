"""ncnn through Vulkan, for the convolutional networks that `ncnn_format` can write."""

from __future__ import annotations

import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

import vkml.onnx
from benchmarks.measure import Array, Feed, NotAvailable, Prepared
from benchmarks.peers.ncnn_format import translate


@dataclass(frozen=True)
class NcnnVulkan:
    """ncnn on its best Vulkan device, with half precision (its default) or strictly fp32."""

    name: str
    uses_half: bool

    def prepare(self, path: str) -> Prepared:
        try:
            import ncnn
        except ImportError:
            raise NotAvailable("the package ncnn is not installed") from None
        if ncnn.get_gpu_count() == 0:
            raise NotAvailable("ncnn finds no Vulkan device")
        graph = vkml.onnx.load_graph(path)
        layers, weights = translate(graph)
        (given,), (wanted,) = graph.inputs, graph.outputs
        net = ncnn.Net()
        net.opt.use_vulkan_compute = True
        net.opt.use_fp16_packed = net.opt.use_fp16_storage = net.opt.use_fp16_arithmetic = self.uses_half
        with tempfile.TemporaryDirectory() as folder:
            (Path(folder) / "model.param").write_text(layers)
            (Path(folder) / "model.bin").write_bytes(weights)
            if net.load_param(str(Path(folder) / "model.param")) or net.load_model(
                str(Path(folder) / "model.bin")
            ):
                raise NotAvailable("ncnn refused the translated model")
        source = next(node.inputs[0] for node in graph.nodes if wanted.name in node.outputs)
        result = _last_blob(layers, source)

        def run(feed: Feed) -> list[Array]:
            value = feed[given.name]
            with net.create_extractor() as extractor:
                extractor.input(
                    given.name, ncnn.Mat(np.ascontiguousarray(value[0] if value.ndim > 1 else value))
                )
                code, output = extractor.extract(result)
                if code:
                    raise RuntimeError(f"ncnn failed with code {code}")
                return [np.array(output)]

        return Prepared(run, net.clear, _device(ncnn))


def _last_blob(layers: str, name: str) -> str:
    """The name that the model's result has in ncnn: the last layer's output."""
    fields = layers.splitlines()[-1].split()
    outputs = fields[4 + int(fields[2]) :][: int(fields[3])]
    return name if name in outputs else outputs[0]


def _device(ncnn: Any) -> str:
    info = ncnn.get_gpu_info(ncnn.get_default_gpu_index())
    text = info.device_name()
    return text.decode() if isinstance(text, bytes) else str(text)
