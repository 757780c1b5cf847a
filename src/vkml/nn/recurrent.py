"""Recurrent layers: RNN, LSTM and GRU over sequences."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, ClassVar

from vkml.ir import DType, dtypes
from vkml.nn import functional, init
from vkml.nn.module import Module, Parameter
from vkml.nn.recurrent_cells import lstm_step
from vkml.nn.utils.rnn import PackedSequence, packed_lengths, packed_like, padded_of
from vkml.tensors import Tensor
from vkml.tensors import operations as op
from vkml.tensors.autocast import LOWER, autocasts
from vkml.tensors.creation import empty, zeros
from vkml.tracing import Traced, apply, apply_all, constant

State = Tensor | tuple[Tensor, Tensor] | None


class RNNBase(Module):
    """What recurrent layers have in common.

    Args:
        mode: "RNN_TANH", "RNN_RELU", "LSTM" or "GRU".
        input_size: features of an element of the sequence.
        hidden_size: of the state.
        num_layers: layers, each of which reads the sequence that the one before has made.
        bias: whether there are `bias_ih` and `bias_hh`.
        batch_first: whether sequences are [batch, steps, features] instead of [steps, batch, features].
        dropout: share of what a layer makes that is dropped before the next one, in training.
        bidirectional: whether a second state runs from the last step to the first.
        proj_size: of an LSTM: features that the hidden state is brought to behind each step; 0 for none.
        device: of the parameters.
        dtype: of the parameters.

    Parameters are named as PyTorch names them, `weight_ih_l0` and so on, their gates are in its order.
    """

    order: ClassVar[Sequence[int]] = (0,)
    """Of the gates in ONNX, by their numbers here."""
    operator: ClassVar[str] = "RNN"

    def __init__(
        self, mode: str, input_size: int, hidden_size: int, num_layers: int = 1, bias: bool = True,
        batch_first: bool = False, dropout: float = 0.0, bidirectional: bool = False, proj_size: int = 0,
        device: Any = None, dtype: DType | None = None,
    ) -> None:  # fmt: skip
        super().__init__()
        if hidden_size <= 0 or num_layers <= 0:
            raise ValueError("hidden_size and num_layers must be greater than zero")
        if not 0 <= dropout <= 1:
            raise ValueError(f"dropout should be a number in range [0, 1], it is {dropout}")
        if proj_size < 0 or (proj_size and mode != "LSTM"):
            raise ValueError("proj_size is a positive number of features, or zero, and only LSTM has it")
        if proj_size >= hidden_size:
            raise ValueError("proj_size has to be smaller than hidden_size")
        self.mode, self.input_size, self.hidden_size, self.num_layers = (
            mode,
            input_size,
            hidden_size,
            num_layers,
        )
        self.bias, self.batch_first, self.dropout = bias, batch_first, float(dropout)
        self.bidirectional, self.proj_size = bidirectional, proj_size
        rows, made = len(self.order) * hidden_size, proj_size or hidden_size
        directions = 2 if bidirectional else 1
        for layer in range(num_layers):
            for direction in range(directions):
                entering = input_size if layer == 0 else made * directions
                sizes: dict[str, tuple[int, ...]] = {"weight_ih": (rows, entering), "weight_hh": (rows, made)}
                if bias:
                    sizes |= {"bias_ih": (rows,), "bias_hh": (rows,)}
                if proj_size:
                    sizes["weight_hr"] = (proj_size, hidden_size)
                for name, shape in sizes.items():
                    value = Parameter(empty(*shape, device=device, dtype=dtype))
                    setattr(self, _named(name, layer, direction), value)
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Evenly from ±1 / √hidden_size, as PyTorch begins."""
        bound = 1 / math.sqrt(self.hidden_size)
        for parameter in self.parameters():
            init.uniform_(parameter, -bound, bound)

    @property
    def all_weights(self) -> list[list[Parameter]]:
        """The parameters of each layer and direction."""
        names = ["weight_ih", "weight_hh", *(["bias_ih", "bias_hh"] if self.bias else [])]
        names += ["weight_hr"] if self.proj_size else []
        return [
            [getattr(self, _named(name, layer, direction)) for name in names]
            for layer in range(self.num_layers)
            for direction in range(self._directions)
        ]

    def flatten_parameters(self) -> None:
        """Nothing: parameters need not lie side by side."""

    @property
    def _directions(self) -> int:
        return 2 if self.bidirectional else 1

    def forward(self, input: Tensor | PackedSequence, hx: State = None) -> Any:
        """All hidden states of the last layer, and the last states of all.

        Args:
            input: [steps, batch, input_size], or [batch, steps, input_size] where `batch_first`,
                [steps, input_size], or a packed sequence.
            hx: the states before the first step, zeros where it is left out: [layers * directions, batch,
                features]; of an LSTM two of them.
        """
        lengths = None
        if isinstance(input, PackedSequence):
            x, lengths = padded_of(input), packed_lengths(input)
        else:
            x = input
        if x.ndim not in (2, 3):
            raise ValueError(f"{type(self).__name__}: Expected input to be 2D or 3D, got {x.ndim}D instead")
        has_batch = x.ndim == 3
        if not has_batch:
            x = op.unsqueeze(x, 1)
        elif self.batch_first and lengths is None:
            x = op.transpose(x, 0, 1)
        if x.shape[-1] != self.input_size:
            raise RuntimeError(
                f"input.size(-1) must be equal to input_size. Expected {self.input_size}, got {x.shape[-1]}"
            )
        order = input.sorted_indices if isinstance(input, PackedSequence) else None
        states = [_ordered(state, order) for state in self._states(hx, x, has_batch)]
        found, last = self._run(x, states, lengths)
        if isinstance(input, PackedSequence):
            made: Any = packed_like(found, input)
            last = [_ordered(state, input.unsorted_indices) for state in last]
        elif not has_batch:
            made, last = op.squeeze(found, 1), [op.squeeze(state, 1) for state in last]
        else:
            made = op.transpose(found, 0, 1) if self.batch_first else found
        return made, (tuple(last) if len(last) > 1 else last[0])

    def _states(self, hx: State, x: Tensor, has_batch: bool) -> list[Tensor]:
        sizes = [self.proj_size or self.hidden_size]
        if self.mode == "LSTM":
            sizes.append(self.hidden_size)
        rows = self.num_layers * self._directions
        if hx is None:
            return [zeros(rows, x.shape[1], size, device=x.device, dtype=x.dtype) for size in sizes]
        given = list(hx) if isinstance(hx, tuple | list) else [hx]
        if len(given) != len(sizes):
            raise RuntimeError(f"{type(self).__name__} takes {len(sizes)} states, not {len(given)}")
        found = [state if has_batch else op.unsqueeze(state, 1) for state in given]
        for state, size, what in zip(found, sizes, ("hidden[0]", "hidden[1]"), strict=False):
            if tuple(state.shape) != (rows, x.shape[1], size):
                raise RuntimeError(
                    f"Expected {what} size {(rows, x.shape[1], size)}, got {list(state.shape)}"
                )
        return found

    def _run(
        self, x: Tensor, states: Sequence[Tensor], lengths: Tensor | None
    ) -> tuple[Tensor, list[Tensor]]:
        """[steps, batch, features] through all layers; the last states, [layers * directions, batch, …]."""
        last: list[list[Tensor]] = [[] for _ in states]
        for layer in range(self.num_layers):
            if layer and self.dropout and self.training:
                x = functional.dropout(x, self.dropout, True)
            first = layer * self._directions
            own = [state[first : first + self._directions] for state in states]
            weights = self.all_weights[first : first + self._directions]
            if self.proj_size:
                x, *after = _projected(x, own, weights, lengths, self.bias)
            else:
                x, *after = self._layer(x, own, weights, lengths)
            for found, state in zip(last, after, strict=True):
                found.append(state)
        return x, [found[0] if len(found) == 1 else op.cat(found, 0) for found in last]

    @autocasts({"cpu": LOWER, "vulkan": LOWER})
    def _layer(
        self,
        x: Tensor,
        states: Sequence[Tensor],
        weights: Sequence[Sequence[Parameter]],
        lengths: Tensor | None,
    ) -> list[Tensor]:
        """One layer: all its hidden states, directions side by side, and its last states."""
        stacked = [[self._gates(each[at].value) for each in weights] for at in range(4 if self.bias else 2)]
        w, r, *biases = [_stacked(each) for each in stacked]
        bias = apply("Concat", *biases, axis=1) if biases else None
        attributes: dict[str, Any] = {"hidden_size": self.hidden_size}
        if self.bidirectional:
            attributes["direction"] = "bidirectional"
        if self.mode == "RNN_RELU":
            attributes["activations"] = ("Relu",) * self._directions
        if self.mode == "GRU":
            attributes["linear_before_reset"] = 1
        given = [x.value, w, r, bias, None if lengths is None else lengths.value]
        made = apply_all(
            self.operator, [*given, *(state.value for state in states)], 1 + len(states), **attributes
        )
        y = apply("Transpose", made[0], perm=(0, 2, 1, 3))
        joined = op.reshape(Tensor(y), *x.shape[:2], self._directions * self.hidden_size)
        return [joined, *(Tensor(value) for value in made[1:])]

    def _gates(self, rows: Traced) -> Traced:
        """The rows of gates in ONNX's order."""
        if list(self.order) == list(range(len(self.order))):
            return rows
        sizes = constant([self.hidden_size] * len(self.order), dtypes.INT64)
        parts = apply_all("Split", [rows, sizes], len(self.order), axis=0)
        return apply("Concat", *(parts[at] for at in self.order), axis=0)

    def extra_repr(self) -> str:
        shown = f"{self.input_size}, {self.hidden_size}"
        if self.proj_size:
            shown += f", proj_size={self.proj_size}"
        if self.num_layers != 1:
            shown += f", num_layers={self.num_layers}"
        if not self.bias:
            shown += ", bias=False"
        if self.batch_first:
            shown += ", batch_first=True"
        if self.dropout:
            shown += f", dropout={self.dropout}"
        return shown + (", bidirectional=True" if self.bidirectional else "")


def _named(name: str, layer: int, direction: int) -> str:
    return f"{name}_l{layer}" + ("_reverse" if direction else "")


def _ordered(state: Tensor, order: Tensor | None) -> Tensor:
    """A state with its batch in another order."""
    return state if order is None else op.index_select(state, 1, order)


def _stacked(parts: Sequence[Traced]) -> Traced:
    axis = constant([0], dtypes.INT64)
    rows = [apply("Unsqueeze", part, axis) for part in parts]
    return rows[0] if len(rows) == 1 else apply("Concat", *rows, axis=0)


def _projected(
    x: Tensor, states: Sequence[Tensor], weights: Sequence[Sequence[Parameter]], lengths: Tensor | None,
    bias: bool,
) -> list[Tensor]:  # fmt: skip
    """A layer of an LSTM with projections, step by step: its hidden states and its last states."""
    steps = x.shape[0]
    outputs: list[Tensor] = []
    last: list[list[Tensor]] = [[], []]
    for direction, (w, r, *rest) in enumerate(weights):
        biases, projection = rest[:2] if bias else [None, None], rest[-1]
        entering = op.linear(x, w, biases[0])
        hidden, memory = (state[direction] for state in states)
        rows: list[Tensor] = []
        for step in range(steps)[:: -1 if direction else 1]:
            after, carried = lstm_step(op.add(entering[step], op.linear(hidden, r, biases[1])), memory)
            after = op.linear(after, projection)
            shown = after
            if lengths is not None:
                runs = op.unsqueeze(op.gt(lengths, step), 1)
                shown = op.where(runs, after, 0.0)
                after, carried = op.where(runs, after, hidden), op.where(runs, carried, memory)
            hidden, memory = after, carried
            rows.append(shown)
        outputs.append(op.stack(rows[::-1] if direction else rows, 0))
        last[0].append(hidden)
        last[1].append(memory)
    joined = outputs[0] if len(outputs) == 1 else op.cat(outputs, 2)
    return [joined, *(op.stack(each, 0) for each in last)]


class RNN(RNNBase):
    """h = f(W_ih x + b_ih + W_hh h + b_hh), f being tanh or relu; see `RNNBase`.

    Args:
        input_size: features of an element of the sequence.
        hidden_size: of the state.
        num_layers: layers.
        nonlinearity: "tanh" or "relu".
        bias: whether there are biases.
        batch_first: whether the batch is the first axis.
        dropout: between layers, in training.
        bidirectional: whether there are both directions.
        device: of the parameters.
        dtype: of the parameters.
    """

    def __init__(
        self, input_size: int, hidden_size: int, num_layers: int = 1, nonlinearity: str = "tanh",
        bias: bool = True, batch_first: bool = False, dropout: float = 0.0, bidirectional: bool = False,
        device: Any = None, dtype: DType | None = None,
    ) -> None:  # fmt: skip
        if nonlinearity not in ("tanh", "relu"):
            raise ValueError(f"Unknown nonlinearity '{nonlinearity}'. Select from 'tanh' or 'relu'.")
        super().__init__(
            f"RNN_{nonlinearity.upper()}", input_size, hidden_size, num_layers, bias, batch_first, dropout,
            bidirectional, 0, device, dtype,
        )  # fmt: skip
        self.nonlinearity = nonlinearity


class GRU(RNNBase):
    """Gates r and z and a candidate n; h = (1 - z) n + z h; see `RNNBase` (Cho et al., 2014)."""

    order = (1, 0, 2)
    operator = "GRU"

    def __init__(
        self, input_size: int, hidden_size: int, num_layers: int = 1, bias: bool = True,
        batch_first: bool = False, dropout: float = 0.0, bidirectional: bool = False,
        device: Any = None, dtype: DType | None = None,
    ) -> None:  # fmt: skip
        super().__init__(
            "GRU", input_size, hidden_size, num_layers, bias, batch_first, dropout, bidirectional, 0, device,
            dtype,
        )  # fmt: skip


class LSTM(RNNBase):
    """Gates i, f, o and a candidate g; c = f c + i g and h = o tanh(c); see `RNNBase`.

    Hochreiter and Schmidhuber, 1997; with `proj_size` Sak et al., 2014.

    Example:
        >>> import vkml
        >>> layer = vkml.nn.LSTM(3, 5)
        >>> y, (h, c) = layer(vkml.zeros(7, 2, 3))
        >>> y.shape, h.shape, c.shape
        (vkml.Size([7, 2, 5]), vkml.Size([1, 2, 5]), vkml.Size([1, 2, 5]))
    """

    order = (0, 3, 1, 2)
    operator = "LSTM"

    def __init__(
        self, input_size: int, hidden_size: int, num_layers: int = 1, bias: bool = True,
        batch_first: bool = False, dropout: float = 0.0, bidirectional: bool = False, proj_size: int = 0,
        device: Any = None, dtype: DType | None = None,
    ) -> None:  # fmt: skip
        super().__init__(
            "LSTM", input_size, hidden_size, num_layers, bias, batch_first, dropout, bidirectional, proj_size,
            device, dtype,
        )  # fmt: skip
