"""Tables of vectors as modules."""

from __future__ import annotations

from typing import Any

from vkml.ir import DType
from vkml.nn import functional, init
from vkml.nn.module import Module, Parameter
from vkml.tensors import Tensor
from vkml.tensors.autograd import no_grad
from vkml.tensors.creation import empty


class _Table(Module):
    def __init__(
        self, num_embeddings: int, embedding_dim: int, padding_idx: int | None, max_norm: float | None,
        norm_type: float, scale_grad_by_freq: bool, weight: Tensor | None, device: Any, dtype: DType | None,
    ) -> None:  # fmt: skip
        super().__init__()
        if padding_idx is not None:
            if not -num_embeddings <= padding_idx < num_embeddings:
                raise AssertionError(f"padding_idx must be within num_embeddings, {padding_idx} is not")
            padding_idx %= num_embeddings
        self.num_embeddings, self.embedding_dim = num_embeddings, embedding_dim
        self.padding_idx, self.max_norm, self.norm_type = padding_idx, max_norm, norm_type
        self.scale_grad_by_freq = scale_grad_by_freq
        if weight is None:
            self.weight = Parameter(empty(num_embeddings, embedding_dim, device=device, dtype=dtype))
            self.reset_parameters()
        elif tuple(weight.shape) == (num_embeddings, embedding_dim):
            self.weight = weight if isinstance(weight, Parameter) else Parameter(weight)
        else:
            raise AssertionError("Shape of weight does not match num_embeddings and embedding_dim")

    @no_grad()
    def reset_parameters(self) -> None:
        """Normally, of mean 0 and standard deviation 1; zeros for the padding."""
        init.normal_(self.weight)
        if self.padding_idx is not None and not self.weight.is_meta:
            self.weight[self.padding_idx] = 0

    def _repr(self, *first: str) -> list[str]:
        parts = [f"{self.num_embeddings}, {self.embedding_dim}", *first]
        if self.max_norm is not None:
            parts.append(f"max_norm={self.max_norm}")
        if self.norm_type != 2:
            parts.append(f"norm_type={self.norm_type}")
        if self.scale_grad_by_freq:
            parts.append(f"scale_grad_by_freq={self.scale_grad_by_freq}")
        return parts


class Embedding(_Table):
    """Rows of a table by number; see `functional.embedding`.

    Args:
        num_embeddings: rows.
        embedding_dim: features of a row.
        padding_idx: a row of zeros that is not learned.
        max_norm: rows that are read, and whose norm is greater, are scaled to it.
        norm_type: which norm that is.
        scale_grad_by_freq: whether gradients are divided by how often their row is read.
        sparse: has to be False: gradients have all rows.
        _weight: the table, where there is one.
        device: of the table.
        dtype: of the table.
    """

    def __init__(
        self, num_embeddings: int, embedding_dim: int, padding_idx: int | None = None,
        max_norm: float | None = None, norm_type: float = 2.0, scale_grad_by_freq: bool = False,
        sparse: bool = False, _weight: Tensor | None = None, device: Any = None, dtype: DType | None = None,
    ) -> None:  # fmt: skip
        super().__init__(
            num_embeddings, embedding_dim, padding_idx, max_norm, norm_type, scale_grad_by_freq, _weight,
            device, dtype,
        )  # fmt: skip
        self.sparse = sparse

    @classmethod
    def from_pretrained(
        cls, embeddings: Tensor, freeze: bool = True, padding_idx: int | None = None,
        max_norm: float | None = None, norm_type: float = 2.0, scale_grad_by_freq: bool = False,
        sparse: bool = False,
    ) -> Embedding:  # fmt: skip
        """One of a table that there is, which is learned unless it is frozen.

        Args:
            embeddings: [rows, features].
            freeze: whether it is not learned.
            padding_idx: as for `Embedding`, as are the others.
            max_norm: see there.
            norm_type: see there.
            scale_grad_by_freq: see there.
            sparse: see there.

        Raises:
            AssertionError: the table has not two axes.
        """
        if embeddings.ndim != 2:
            raise AssertionError("Embeddings parameter is expected to be 2-dimensional")
        made = cls(
            embeddings.shape[0], embeddings.shape[1], padding_idx, max_norm, norm_type, scale_grad_by_freq,
            sparse, embeddings,
        )  # fmt: skip
        made.weight.requires_grad_(not freeze)
        return made

    def forward(self, input: Tensor) -> Tensor:
        return functional.embedding(
            input, self.weight, self.padding_idx, self.max_norm, self.norm_type, self.scale_grad_by_freq,
            self.sparse,
        )  # fmt: skip

    def extra_repr(self) -> str:
        padding = [] if self.padding_idx is None else [f"padding_idx={self.padding_idx}"]
        return ", ".join(self._repr(*padding))


class EmbeddingBag(_Table):
    """Sums, means or maxima of rows of a table; see `functional.embedding_bag`.

    Args:
        num_embeddings: rows.
        embedding_dim: features of a row.
        max_norm: rows that are read, and whose norm is greater, are scaled to it.
        norm_type: which norm that is.
        scale_grad_by_freq: whether gradients are divided by how often their row is read.
        mode: "mean", "sum" or "max".
        sparse: has to be False: gradients have all rows.
        _weight: the table, where there is one.
        include_last_offset: whether the offsets end with that of the last bag's end.
        padding_idx: a row that does not count, and is not learned.
        device: of the table.
        dtype: of the table.
    """

    def __init__(
        self, num_embeddings: int, embedding_dim: int, max_norm: float | None = None, norm_type: float = 2.0,
        scale_grad_by_freq: bool = False, mode: str = "mean", sparse: bool = False,
        _weight: Tensor | None = None, include_last_offset: bool = False, padding_idx: int | None = None,
        device: Any = None, dtype: DType | None = None,
    ) -> None:  # fmt: skip
        super().__init__(
            num_embeddings, embedding_dim, padding_idx, max_norm, norm_type, scale_grad_by_freq, _weight,
            device, dtype,
        )  # fmt: skip
        self.mode, self.sparse, self.include_last_offset = mode, sparse, include_last_offset

    def forward(
        self, input: Tensor, offsets: Tensor | None = None, per_sample_weights: Tensor | None = None
    ) -> Tensor:
        return functional.embedding_bag(
            input, self.weight, offsets, self.max_norm, self.norm_type, self.scale_grad_by_freq, self.mode,
            self.sparse, per_sample_weights, self.include_last_offset, self.padding_idx,
        )  # fmt: skip

    def extra_repr(self) -> str:
        padding = [] if self.padding_idx is None else [f"padding_idx={self.padding_idx}"]
        return ", ".join([*self._repr(), f"mode={self.mode!r}", *padding])
