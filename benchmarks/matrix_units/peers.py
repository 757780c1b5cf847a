"""The same products by PyTorch on CUDA: TF32, strict fp32 and fp16, replayed as a CUDA graph."""

from __future__ import annotations

import statistics
from collections.abc import Callable
from typing import Any

import numpy as np

from benchmarks.matrix_units.check import Data, Reference, judge
from benchmarks.matrix_units.launch import COLD_BYTES, MAX_COPIES
from benchmarks.matrix_units.problems import Problem

MODES = ("tf32", "fp32", "fp16")


def torch_times(
    problem: Problem, data: Data, reference: Reference, seconds: float
) -> dict[str, tuple[float, float]]:
    """Median seconds and the relative error of each mode; empty where there is no PyTorch with CUDA.

    Weights are read from as many copies in turns as vkml's are.
    """
    try:
        import torch
    except ImportError:
        return {}
    if not torch.cuda.is_available():
        return {}
    found = {}
    for mode in MODES:
        torch.backends.cuda.matmul.allow_tf32 = mode == "tf32"
        torch.backends.cudnn.allow_tf32 = mode == "tf32"
        torch.backends.cudnn.benchmark = True
        dtype = torch.float16 if mode == "fp16" else torch.float32
        call, copies = _call(torch, problem, data, dtype)
        result = call(0).float()
        window = problem.window
        if window is not None:
            result = result.permute(0, 2, 3, 1)
        host = result.reshape(problem.batch, problem.m, problem.n).cpu().numpy()
        error = judge(data, reference, host, has_bias=not problem.is_b_batched).error
        found[mode] = (graph_seconds(torch, call, copies, seconds), error)
        del call, result
        torch.cuda.empty_cache()
    return found


def _call(torch: Any, problem: Problem, data: Data, dtype: Any) -> tuple[Callable[[int], Any], int]:
    window = problem.window
    bytes_ = data.b.nbytes // (2 if dtype == torch.float16 else 1)
    copies = 1 if problem.is_b_batched else max(1, min(MAX_COPIES, -(-COLD_BYTES // bytes_)))
    a = torch.from_numpy(data.a).cuda().to(dtype)
    bias = torch.from_numpy(data.bias).cuda().to(dtype)
    if window is not None:
        images = a.permute(0, 3, 1, 2)
        kernel = np.ascontiguousarray(
            data.b.reshape(window.size, window.size, window.channels, problem.n).transpose(3, 0, 1, 2)
        )
        weight = torch.from_numpy(kernel).cuda().to(dtype).permute(0, 3, 1, 2)
        weights = [weight.clone() for _ in range(copies)]

        def convolve(index: int) -> Any:
            return torch.nn.functional.conv2d(images, weights[index], bias, window.stride, window.pad)

        return convolve, copies
    if problem.is_b_batched:
        b = torch.from_numpy(data.b).cuda().to(dtype)
        return lambda index: torch.bmm(a, b), 1
    weight = torch.from_numpy(np.ascontiguousarray(data.b.T)).cuda().to(dtype)
    weights = [weight.clone() for _ in range(copies)]
    rows = a.reshape(-1, problem.k)
    return lambda index: torch.nn.functional.linear(rows, weights[index], bias), copies


def graph_seconds(torch: Any, call: Callable[[int], Any], copies: int, seconds: float) -> float:
    """Median seconds of one call among many in a CUDA graph."""
    stream = torch.cuda.Stream()
    with torch.cuda.stream(stream):
        for index in range(3):
            call(index % copies)
        begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        begin.record()
        call(0)
        end.record()
    torch.cuda.synchronize()
    turns = int(max(1, min(100, seconds / max(begin.elapsed_time(end) * 1e-3, 1e-6))))
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        for turn in range(turns):
            call(turn % copies)
    for _ in range(10):
        graph.replay()
    taken: list[float] = []
    for _ in range(6):
        begin.record()
        graph.replay()
        end.record()
        torch.cuda.synchronize()
        taken.append(begin.elapsed_time(end) * 1e-3 / turns)
    return statistics.median(taken[1:])
