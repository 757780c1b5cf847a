"""The same attentions by PyTorch on CUDA: flash attention, what it chooses by itself, and three kernels."""

from __future__ import annotations

import statistics
from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np

from benchmarks.attention_units.check import Data, Reference, judge
from benchmarks.attention_units.launch import Halfs
from benchmarks.matrix_units.peers import graph_seconds

MODES = ("flash", "default", "naive")


def torch_times(data: Data, reference: Reference, seconds: float) -> dict[str, tuple[float, float]]:
    """Median seconds and the relative error of each mode; empty where there is no PyTorch with CUDA."""
    try:
        import torch
    except ImportError:
        return {}
    if not torch.cuda.is_available():
        return {}
    problem = data.problem
    if problem.causal_offset:
        return {}
    found = {}
    tensors = [torch.from_numpy(each).cuda() for each in (data.q, data.k, data.v)]
    if problem.are_rows_outside:
        tensors = [each.transpose(1, 2) for each in tensors]
    for mode in MODES:
        call = _call(torch, mode, tensors, problem.scale, problem.is_causal, problem.group)
        try:
            result = call(0)
        except (RuntimeError, torch.cuda.OutOfMemoryError) as error:
            print(f"torch {mode}: {str(error)[:200]}")
            continue
        if problem.are_rows_outside:
            result = result.transpose(1, 2)
        host = np.ascontiguousarray(result.cpu().numpy())
        found[mode] = (graph_seconds(torch, call, 1, seconds), judge(data, reference, host).error)
        del result
        torch.cuda.empty_cache()
    return found


def torch_backward_times(data: Data, d_out: Halfs, seconds: float) -> dict[str, float]:
    """Median seconds of the gradients by flash attention and by cuDNN, not replayed as a graph."""
    try:
        import torch
    except ImportError:
        return {}
    if not torch.cuda.is_available() or data.problem.causal_offset:
        return {}
    from torch.nn.attention import SDPBackend, sdpa_kernel

    problem = data.problem
    tensors = [torch.from_numpy(each).cuda() for each in (data.q, data.k, data.v, d_out)]
    if problem.are_rows_outside:
        tensors = [each.transpose(1, 2) for each in tensors]
    q, k, v, gradient = tensors
    for each in (q, k, v):
        each.requires_grad_()
    found = {}
    for name, backend in (("flash", SDPBackend.FLASH_ATTENTION), ("cudnn", SDPBackend.CUDNN_ATTENTION)):
        try:
            with sdpa_kernel(backend):
                out = _call(torch, "default", [q, k, v], problem.scale, problem.is_causal, problem.group)(0)
            run = partial(torch.autograd.grad, out, (q, k, v), gradient, retain_graph=True)
            run()
        except RuntimeError as error:
            print(f"torch {name}: {str(error)[:200]}")
            continue
        found[name] = event_seconds(torch, run, seconds)
    return found


def event_seconds(torch: Any, run: Callable[[], Any], seconds: float) -> float:
    """Median seconds of one call among many, launched by the host."""
    begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    taken: list[float] = []
    turns = 1
    for _ in range(8):
        begin.record()
        for _ in range(turns):
            run()
        end.record()
        torch.cuda.synchronize()
        taken.append(begin.elapsed_time(end) * 1e-3 / turns)
        turns = int(max(1, min(100, seconds / max(taken[-1], 1e-6))))
    return statistics.median(taken[2:])


def _call(
    torch: Any, mode: str, tensors: list[Any], scale: float, is_causal: bool, group: int
) -> Callable[[int], Any]:
    q, k, v = tensors
    attend = torch.nn.functional.scaled_dot_product_attention
    shared = {"enable_gqa": True} if group > 1 else {}
    if mode == "default":
        return lambda index: attend(q, k, v, is_causal=is_causal, scale=scale, **shared)
    if mode == "flash":
        from torch.nn.attention import SDPBackend, sdpa_kernel

        def flash(index: int) -> Any:
            with sdpa_kernel(SDPBackend.FLASH_ATTENTION):
                return attend(q, k, v, is_causal=is_causal, scale=scale, **shared)

        return flash
    k, v = (each.repeat_interleave(group, 1) for each in (k, v))
    hidden = torch.ones(q.shape[-2], k.shape[-2], dtype=torch.bool, device=q.device).triu(1)

    def naive(index: int) -> Any:
        scores = (q * scale) @ k.transpose(-1, -2)
        if is_causal:
            scores = scores.masked_fill(hidden, float("-inf"))
        return torch.softmax(scores, -1) @ v

    return naive
