"""Sequences of several lengths in one tensor: padded, or packed without what pads them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from vkml.ir import DType
from vkml.tensors import Tensor
from vkml.tensors import operations as op
from vkml.tensors.creation import full, tensor

__all__ = [
    "PackedSequence", "invert_permutation", "pack_padded_sequence", "pack_sequence", "pad_packed_sequence",
    "pad_sequence", "unpack_sequence", "unpad_sequence",
]  # fmt: skip


class _Fields(NamedTuple):
    data: Tensor
    batch_sizes: Tensor
    sorted_indices: Tensor | None
    unsorted_indices: Tensor | None


class PackedSequence(_Fields):
    """Sequences, the longest first, step by step: all first elements, then all second ones, and so on.

    Attributes:
        data: [elements of all sequences, ...].
        batch_sizes: how many sequences have an element at each step, int64 on the CPU.
        sorted_indices: sequence at each place, where they have been put in order.
        unsorted_indices: place of each sequence.
    """

    __slots__ = ()

    def __new__(
        cls, data: Tensor, batch_sizes: Tensor, sorted_indices: Tensor | None = None,
        unsorted_indices: Tensor | None = None,
    ) -> PackedSequence:  # fmt: skip
        if unsorted_indices is None and sorted_indices is not None:
            unsorted_indices = invert_permutation(sorted_indices)
        return super().__new__(cls, data, batch_sizes, sorted_indices, unsorted_indices)

    def to(self, *arguments: Any, device: Any = None, dtype: DType | None = None) -> PackedSequence:
        """With `data`, and what says the order, elsewhere or of another type.

        Args:
            *arguments: as for `Tensor.to`.
            device: by name.
            dtype: by name.
        """
        data = self.data.to(*arguments, device=device, dtype=dtype)
        order = [
            None if x is None else x.to(data.device) for x in (self.sorted_indices, self.unsorted_indices)
        ]
        return PackedSequence(data, self.batch_sizes, *order)

    def cpu(self) -> PackedSequence:
        """On the CPU."""
        return self.to("cpu")

    @property
    def is_cuda(self) -> bool:
        """Whether it is on a device other than the CPU."""
        return self.data.device != "cpu"


def invert_permutation(permutation: Tensor | None) -> Tensor | None:
    """The place of each number in a permutation.

    Args:
        permutation: integers from 0 on, each once; None of None.
    """
    if permutation is None:
        return None
    return tensor(np.argsort(_numbers(permutation)), device=permutation.device)


def _numbers(x: Any) -> np.ndarray[Any, Any]:
    """Integers of the host."""
    return np.asarray(x.detach().numpy() if isinstance(x, Tensor) else x, np.int64).reshape(-1)


def _lengths(sizes: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    """Of sequences at each place, from how many there are at each step."""
    return np.asarray((np.arange(sizes[0])[:, None] < sizes).sum(1)) if sizes.size else np.zeros(0, np.int64)


def packed_lengths(sequence: PackedSequence) -> Tensor:
    """The length of the sequence at each place, int32."""
    lengths = _lengths(_numbers(sequence.batch_sizes)).astype(np.int32)
    return tensor(lengths, device=sequence.data.device)


def padded_of(sequence: PackedSequence, padding_value: float = 0.0) -> Tensor:
    """[steps, batch, ...], the longest sequence first."""
    data, sizes = sequence.data, _numbers(sequence.batch_sizes)
    steps, batch = len(sizes), int(sizes[0])
    begins = np.cumsum(sizes) - sizes
    is_there = np.arange(batch) < sizes[:, None]
    places = np.where(is_there, begins[:, None] + np.arange(batch), 0)
    rows = op.index_select(data, 0, tensor(places.reshape(-1), device=data.device))
    found = op.reshape(rows, steps, batch, *data.shape[1:])
    if is_there.all():
        return found
    mask = tensor(is_there.reshape(steps, batch, *(1,) * (data.ndim - 1)), device=data.device)
    filled: Tensor = op.where(mask, found, padding_value)
    return filled


def packed_like(padded: Tensor, sequence: PackedSequence) -> PackedSequence:
    """[steps, batch, ...] packed as another sequence is."""
    sizes = _numbers(sequence.batch_sizes)
    return PackedSequence(
        _packed(padded, sizes), sequence.batch_sizes, sequence.sorted_indices, sequence.unsorted_indices
    )


def _packed(padded: Tensor, sizes: np.ndarray[Any, Any]) -> Tensor:
    batch = padded.shape[1]
    places = np.concatenate([step * batch + np.arange(size) for step, size in enumerate(sizes)])
    rows = op.reshape(padded, -1, *padded.shape[2:])
    return op.index_select(rows, 0, tensor(places, device=padded.device))


def pack_padded_sequence(
    input: Tensor, lengths: Any, batch_first: bool = False, enforce_sorted: bool = True
) -> PackedSequence:
    """Packs sequences that are padded to one length.

    Args:
        input: [steps, batch, ...], or [batch, steps, ...] where `batch_first`.
        lengths: of each sequence, from 1 on.
        batch_first: whether the batch is the first axis.
        enforce_sorted: whether the longest have to come first; else they are put in order.

    Raises:
        RuntimeError: lengths are not in order, not positive, or not one for each sequence.
    """
    x = op.transpose(input, 0, 1) if batch_first else input
    found = _numbers(lengths)
    if found.size != x.shape[1]:
        raise RuntimeError(
            f"Expected `len(lengths)` to be equal to batch_size, but got {found.size} "
            f"(batch_size={x.shape[1]})"
        )
    if (found <= 0).any():
        raise RuntimeError("Length of all samples has to be greater than 0")
    order = None
    if enforce_sorted:
        if (np.diff(found) > 0).any():
            raise RuntimeError(
                "`lengths` array must be sorted in decreasing order when `enforce_sorted` is True"
            )
    else:
        places = np.argsort(-found, kind="stable")
        order, found = tensor(places, device=input.device), found[places]
        x = op.index_select(x, 1, order)
    if found[0] > x.shape[0]:
        raise RuntimeError(f"the longest sequence has {found[0]} steps, the input {x.shape[0]}")
    sizes = (np.arange(found[0])[:, None] < found).sum(1).astype(np.int64)
    return PackedSequence(_packed(x, sizes), tensor(sizes), order)


def pad_packed_sequence(
    sequence: PackedSequence, batch_first: bool = False, padding_value: float = 0.0,
    total_length: int | None = None,
) -> tuple[Tensor, Tensor]:  # fmt: skip
    """Pads a packed sequence; gives the sequences, in the order in which they were packed, and their lengths.

    Args:
        sequence: packed.
        batch_first: whether the result is [batch, steps, ...] instead of [steps, batch, ...].
        padding_value: behind sequences that end earlier.
        total_length: of the result, at least the longest sequence's.

    Raises:
        ValueError: `total_length` is less than that.
    """
    found = padded_of(sequence, padding_value)
    lengths = _lengths(_numbers(sequence.batch_sizes))
    if total_length is not None:
        more = total_length - found.shape[0]
        if more < 0:
            raise ValueError(
                f"Expected total_length to be at least the length of the longest sequence in input, but got "
                f"total_length={total_length} and max sequence length being {found.shape[0]}"
            )
        if more:
            pads = full((more, *found.shape[1:]), padding_value, dtype=found.dtype, device=found.device)
            found = op.cat([found, pads], 0)
    if sequence.unsorted_indices is not None:
        found = op.index_select(found, 1, sequence.unsorted_indices)
        lengths = lengths[_numbers(sequence.unsorted_indices)]
    return (op.transpose(found, 0, 1) if batch_first else found), tensor(lengths.astype(np.int64))


def pad_sequence(
    sequences: Sequence[Tensor], batch_first: bool = False, padding_value: float = 0.0,
    padding_side: str = "right",
) -> Tensor:  # fmt: skip
    """Tensors of several lengths stacked, [steps, batch, ...] or [batch, steps, ...] where `batch_first`.

    Args:
        sequences: [steps, ...] each, of the same sizes but the first.
        batch_first: whether the result is [batch, steps, ...].
        padding_value: what shorter ones are filled up with.
        padding_side: "right" or "left".

    Raises:
        ValueError: another side.
    """
    if padding_side not in ("left", "right"):
        raise ValueError("padding_side is 'left' or 'right'")
    longest = max(x.shape[0] for x in sequences)
    rows = []
    for x in sequences:
        more = longest - x.shape[0]
        if more:
            pads = full((more, *x.shape[1:]), padding_value, dtype=x.dtype, device=x.device)
            x = op.cat([x, pads] if padding_side == "right" else [pads, x], 0)
        rows.append(x)
    return op.stack(rows, 0 if batch_first else 1)


def unpad_sequence(padded_sequences: Tensor, lengths: Any, batch_first: bool = False) -> list[Tensor]:
    """The sequences in a padded tensor, each of its length.

    Args:
        padded_sequences: [steps, batch, ...], or [batch, steps, ...] where `batch_first`.
        lengths: one for each sequence.
        batch_first: whether the batch is the first axis.
    """
    x = padded_sequences if batch_first else op.transpose(padded_sequences, 0, 1)
    return [x[at, : int(length)] for at, length in enumerate(_numbers(lengths))]


def pack_sequence(sequences: Sequence[Tensor], enforce_sorted: bool = True) -> PackedSequence:
    """Packs tensors of several lengths.

    Args:
        sequences: [steps, ...] each, of the same sizes but the first.
        enforce_sorted: whether the longest have to come first; else they are put in order.

    Raises:
        RuntimeError: they are not in order.
    """
    lengths = [x.shape[0] for x in sequences]
    return pack_padded_sequence(pad_sequence(sequences), lengths, enforce_sorted=enforce_sorted)


def unpack_sequence(packed_sequences: PackedSequence) -> list[Tensor]:
    """The sequences that are packed.

    Args:
        packed_sequences: as `pack_sequence` gives them.

    Returns:
        In the order in which they were packed.
    """
    padded, lengths = pad_packed_sequence(packed_sequences, batch_first=True)
    return unpad_sequence(padded, lengths, batch_first=True)
