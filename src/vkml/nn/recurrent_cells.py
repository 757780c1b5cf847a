"""Recurrent cells: one step of RNN, LSTM and GRU."""

from __future__ import annotations

import math
from typing import Any, ClassVar

from vkml.ir import DType
from vkml.nn import init
from vkml.nn.module import Module, Parameter
from vkml.tensors import Tensor
from vkml.tensors import operations as op
from vkml.tensors.creation import empty, zeros


def lstm_step(gates: Tensor, memory: Tensor) -> tuple[Tensor, Tensor]:
    """The states of an LSTM after a step.

    Args:
        gates: i, f, g and o before their functions, [..., 4 * hidden].
        memory: before the step, [..., hidden].

    Returns:
        The hidden state and the memory.
    """
    let_in, keep, candidate, let_out = op.chunk(gates, 4, -1)
    carried = op.add(op.mul(op.sigmoid(keep), memory), op.mul(op.sigmoid(let_in), op.tanh(candidate)))
    return op.mul(op.sigmoid(let_out), op.tanh(carried)), carried


class RNNCellBase(Module):
    """What recurrent cells have in common: `weight_ih`, `weight_hh`, `bias_ih` and `bias_hh`.

    Args:
        input_size: features of the input.
        hidden_size: features of the state.
        bias: whether there are `bias_ih` and `bias_hh`.
        device: of the parameters.
        dtype: of the parameters.
    """

    chunks: ClassVar[int] = 1

    def __init__(
        self, input_size: int, hidden_size: int, bias: bool = True, device: Any = None,
        dtype: DType | None = None,
    ) -> None:  # fmt: skip
        super().__init__()
        self.input_size, self.hidden_size, self.bias = input_size, hidden_size, bias
        rows = self.chunks * hidden_size
        self.weight_ih = Parameter(empty(rows, input_size, device=device, dtype=dtype))
        self.weight_hh = Parameter(empty(rows, hidden_size, device=device, dtype=dtype))
        self.bias_ih = Parameter(empty(rows, device=device, dtype=dtype)) if bias else None
        self.bias_hh = Parameter(empty(rows, device=device, dtype=dtype)) if bias else None
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Evenly from ±1 / √hidden_size, as PyTorch begins."""
        bound = 1 / math.sqrt(self.hidden_size) if self.hidden_size else 0
        for parameter in self.parameters():
            init.uniform_(parameter, -bound, bound)

    def _state(self, input: Tensor, state: Tensor | None) -> Tensor:
        name = type(self).__name__
        if input.ndim not in (1, 2):
            raise ValueError(f"{name}: Expected input to be 1D or 2D, got {input.ndim}D instead")
        shape = (*input.shape[:-1], self.hidden_size)
        if state is None:
            return zeros(*shape, device=input.device, dtype=input.dtype)
        if tuple(state.shape) != shape:
            raise RuntimeError(
                f"{name}: the state has the shape {list(state.shape)} instead of {list(shape)}"
            )
        return state

    def _products(self, input: Tensor, state: Tensor) -> tuple[Tensor, Tensor]:
        return (
            op.linear(input, self.weight_ih, self.bias_ih),
            op.linear(state, self.weight_hh, self.bias_hh),
        )

    def extra_repr(self) -> str:
        return f"{self.input_size}, {self.hidden_size}" + ("" if self.bias else ", bias=False")


class RNNCell(RNNCellBase):
    """h = f(W_ih x + b_ih + W_hh h + b_hh).

    Args:
        input_size: features of the input.
        hidden_size: of the state.
        bias: whether there are biases.
        nonlinearity: "tanh" or "relu".
        device: of the parameters.
        dtype: of the parameters.
    """

    def __init__(
        self, input_size: int, hidden_size: int, bias: bool = True, nonlinearity: str = "tanh",
        device: Any = None, dtype: DType | None = None,
    ) -> None:  # fmt: skip
        if nonlinearity not in ("tanh", "relu"):
            raise RuntimeError(f"Unknown nonlinearity: {nonlinearity}")
        super().__init__(input_size, hidden_size, bias, device, dtype)
        self.nonlinearity = nonlinearity

    def forward(self, input: Tensor, hx: Tensor | None = None) -> Tensor:
        given, carried = self._products(input, self._state(input, hx))
        total = op.add(given, carried)
        return op.tanh(total) if self.nonlinearity == "tanh" else op.relu(total)


class LSTMCell(RNNCellBase):
    """One step of an LSTM: (h, c) from the input [batch, features] and the states before.

    Arguments as of `RNNCellBase`.
    """

    chunks = 4

    def forward(self, input: Tensor, hx: tuple[Tensor, Tensor] | None = None) -> tuple[Tensor, Tensor]:
        hidden, memory = hx if hx is not None else (None, None)
        given, carried = self._products(input, self._state(input, hidden))
        return lstm_step(op.add(given, carried), self._state(input, memory))


class GRUCell(RNNCellBase):
    """One step of a GRU: h from the input [batch, features] and the state before.

    Arguments as of `RNNCellBase`.
    """

    chunks = 3

    def forward(self, input: Tensor, hx: Tensor | None = None) -> Tensor:
        hidden = self._state(input, hx)
        given, carried = (op.chunk(x, 3, -1) for x in self._products(input, hidden))
        reset, update = (op.sigmoid(op.add(given[at], carried[at])) for at in range(2))
        candidate = op.tanh(op.add(given[2], op.mul(reset, carried[2])))
        return op.add(candidate, op.mul(update, op.sub(hidden, candidate)))
