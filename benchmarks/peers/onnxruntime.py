"""ONNX Runtime, on the CPU and through CUDA, with and without CUDA graphs."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from benchmarks.measure import Array, Feed, NotAvailable, Prepared


def _package(provider: str) -> Any:
    """The package, where it has the provider."""
    try:
        import onnxruntime
    except ImportError:
        raise NotAvailable("the package onnxruntime is not installed") from None
    if provider not in onnxruntime.get_available_providers():
        raise NotAvailable(f"the installed onnxruntime has no {provider} (the package onnxruntime-gpu may)")
    if provider.startswith("CUDA") and hasattr(onnxruntime, "preload_dlls"):
        onnxruntime.preload_dlls()
    return onnxruntime


def _session(package: Any, path: str, providers: list[Any], threads: int = 0) -> Any:
    options = package.SessionOptions()
    options.log_severity_level = 3
    options.intra_op_num_threads = threads
    session = package.InferenceSession(path, options, providers=providers)
    wanted = providers[0][0] if isinstance(providers[0], tuple) else providers[0]
    if session.get_providers()[0] != wanted:
        raise NotAvailable(f"onnxruntime fell back to {session.get_providers()[0]}")
    return session


@dataclass(frozen=True)
class OnnxRuntimeCpu:
    """The CPU provider."""

    name: str = "ort-cpu"
    threads: int = 0
    """0: as many as it takes by itself."""

    def prepare(self, path: str) -> Prepared:
        session = _session(_package("CPUExecutionProvider"), path, ["CPUExecutionProvider"], self.threads)
        return Prepared(lambda feed: session.run(None, feed), lambda: None, "cpu")


@dataclass(frozen=True)
class OnnxRuntimeCuda:
    """The CUDA provider, inputs and outputs in host memory each run."""

    name: str
    uses_tf32: bool

    def prepare(self, path: str) -> Prepared:
        package = _package("CUDAExecutionProvider")
        session = _session(package, path, [_provider(self.uses_tf32)])
        return Prepared(lambda feed: session.run(None, feed), lambda: None, "cuda", session)


@dataclass(frozen=True)
class OnnxRuntimeCudaGraph:
    """The CUDA provider replaying a CUDA graph; inputs are written into bound buffers, outputs read back."""

    name: str
    uses_tf32: bool

    def prepare(self, path: str) -> Prepared:
        package = _package("CUDAExecutionProvider")
        session = _session(package, path, [_provider(self.uses_tf32, enable_cuda_graph="1")])
        binding = session.io_binding()
        inputs: dict[str, Any] = {}
        outputs: list[Any] = []

        def bind(feed: Feed) -> None:
            for name, value in feed.items():
                inputs[name] = package.OrtValue.ortvalue_from_numpy(np.ascontiguousarray(value), "cuda", 0)
                binding.bind_ortvalue_input(name, inputs[name])
            for info in session.get_outputs():
                if not all(isinstance(size, int) for size in info.shape):
                    raise NotAvailable("CUDA graphs need outputs of static shape")
                kind = np.float16 if info.type == "tensor(float16)" else np.float32
                value = package.OrtValue.ortvalue_from_shape_and_type(info.shape, kind, "cuda", 0)
                outputs.append(value)
                binding.bind_ortvalue_output(info.name, value)

        def run(feed: Feed) -> list[Array]:
            if not inputs:
                bind(feed)
            for name, value in feed.items():
                inputs[name].update_inplace(value)
            session.run_with_iobinding(binding)
            return [value.numpy() for value in outputs]

        return Prepared(run, lambda: None, "cuda")


def _provider(uses_tf32: bool, **options: str) -> tuple[str, dict[str, str]]:
    return "CUDAExecutionProvider", {"use_tf32": "1" if uses_tf32 else "0", **options}
