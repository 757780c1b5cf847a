"""The same products and attentions by PyTorch on CUDA: cuBLAS, flash attention and cuDNN."""

from __future__ import annotations

from functools import partial
from typing import Any

from benchmarks.attention_units.peers import event_seconds
from benchmarks.matrix_units.peers import graph_seconds


class Peer:
    """PyTorch on a CUDA device."""

    def __init__(self, torch: Any, seconds: float) -> None:
        self._torch = torch
        self._seconds = seconds

    @staticmethod
    def find(seconds: float) -> Peer | None:
        """It, if it is installed and has a device.

        Args:
            seconds: about how long one chain of calls lasts.
        """
        try:
            import torch
        except ImportError:
            return None
        return Peer(torch, seconds) if torch.cuda.is_available() else None

    def seconds(self, what: str, *arguments: Any) -> float | None:
        """Of one call of `matmul`, `attention` or `attention_gradients`; None where it fails, said why."""
        try:
            return float(getattr(self, f"_{what}")(*arguments))
        except RuntimeError as problem:
            print(f"PyTorch, {what} {arguments}: {str(problem).splitlines()[0][:200]}")
            return None
        finally:
            self._torch.cuda.empty_cache()

    def _matmul(self, mode: str, size: int) -> float:
        torch = self._torch
        if mode == "int8":
            a, b = (torch.randint(-128, 128, (size, size), dtype=torch.int8, device="cuda") for _ in range(2))
            b = b.t()  # what cuBLAS takes
            return graph_seconds(torch, lambda index: torch._int_mm(a, b), 1, self._seconds)
        dtype = {"fp16": torch.float16, "bf16": torch.bfloat16}.get(mode, torch.float32)
        torch.backends.cuda.matmul.allow_tf32 = mode == "tf32"
        a, b = (torch.randn(size, size, device="cuda").to(dtype) for _ in range(2))
        return graph_seconds(torch, lambda index: torch.matmul(a, b), 1, self._seconds)

    def _attention(self, shape: tuple[int, ...], is_causal: bool) -> float:
        torch = self._torch
        q, k, v = (torch.randn(shape, device="cuda").half() for _ in range(3))
        attend = torch.nn.functional.scaled_dot_product_attention
        return graph_seconds(torch, lambda index: attend(q, k, v, is_causal=is_causal), 1, self._seconds)

    def _attention_gradients(self, shape: tuple[int, ...]) -> float:
        torch = self._torch
        q, k, v, cotangent = (torch.randn(shape, device="cuda").half() for _ in range(4))
        for each in (q, k, v):
            each.requires_grad_()
        out = torch.nn.functional.scaled_dot_product_attention(q, k, v)
        run = partial(torch.autograd.grad, out, (q, k, v), cotangent, retain_graph=True)
        return event_seconds(torch, run, self._seconds)
