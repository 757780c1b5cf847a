"""The runtimes that are compared, each in a module of its own; `PEERS` lists them by name."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from benchmarks.measure import Peer
from benchmarks.peers.ncnn import NcnnVulkan
from benchmarks.peers.onnxruntime import OnnxRuntimeCpu, OnnxRuntimeCuda, OnnxRuntimeCudaGraph
from benchmarks.peers.torch import Torch
from benchmarks.peers.vkml import Vkml

PEERS: dict[str, Callable[[str], Peer]] = {
    "vkml": lambda device: Vkml("vkml", device, "high"),
    "vkml-highest": lambda device: Vkml("vkml-highest", device, "highest"),
    "vkml-cpu": lambda device: Vkml("vkml-cpu", "cpu", "highest"),
    "ort-cpu": lambda device: OnnxRuntimeCpu(),
    "ort-cuda": lambda device: OnnxRuntimeCuda("ort-cuda", uses_tf32=True),
    "ort-cuda-strict": lambda device: OnnxRuntimeCuda("ort-cuda-strict", uses_tf32=False),
    "ort-cuda-graph": lambda device: OnnxRuntimeCudaGraph("ort-cuda-graph", uses_tf32=True),
    "ort-cuda-graph-strict": lambda device: OnnxRuntimeCudaGraph("ort-cuda-graph-strict", uses_tf32=False),
    "ncnn-vulkan": lambda device: NcnnVulkan("ncnn-vulkan", uses_half=True),
    "ncnn-vulkan-fp32": lambda device: NcnnVulkan("ncnn-vulkan-fp32", uses_half=False),
    "torch-cpu": lambda device: Torch("torch-cpu", "cpu", is_graph=False),
    "torch-cuda": lambda device: Torch("torch-cuda", "cuda", is_graph=False),
    "torch-cuda-graph": lambda device: Torch("torch-cuda-graph", "cuda", is_graph=True),
}
"""Name → what makes the peer for a vkml device."""


def make_peers(names: Sequence[str], device: str) -> list[Peer]:
    """The peers named; `SystemExit` for an unknown name."""
    for name in names:
        if name not in PEERS:
            raise SystemExit(f"there is no peer {name!r}; there is {', '.join(PEERS)}")
    return [PEERS[name](device) for name in names]
