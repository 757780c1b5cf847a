"""Random recurrent layers: nodes of LSTM, GRU and RNN with attributes and inputs of every kind."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import numpy as np

Array = np.ndarray[Any, Any]
GATES = {"LSTM": 4, "GRU": 3, "RNN": 1}
STATES = {"LSTM": 2, "GRU": 1, "RNN": 1}
FUNCTIONS = {"LSTM": 3, "GRU": 2, "RNN": 1}
NUMBERS = {"LeakyRelu": "a", "ThresholdedRelu": "a", "Elu": "a", "HardSigmoid": "ab", "Affine": "ab",
           "ScaledTanh": "ab", "Relu": "", "Tanh": "", "Sigmoid": "", "Softsign": "",
           "Softplus": ""}  # fmt: skip
"""Activations and which of alpha and beta they have."""


@dataclass(frozen=True)
class RecurrentCase:
    """A node and its inputs."""

    op: str
    inputs: list[Array | None]
    attributes: dict[str, Any]
    outputs: tuple[str, ...]

    def typed(self, dtype: Any) -> RecurrentCase:
        """The same numbers in another type."""
        return replace(
            self,
            inputs=[
                None if array is None else array if array.dtype == np.int32 else array.astype(dtype)
                for array in self.inputs
            ],
        )

    def doubled(self) -> RecurrentCase:
        return self.typed(np.float64)


def recurrent_case(
    rng: np.random.Generator,
    op: str,
    *,
    steps: int,
    batch: int,
    size: int,
    hidden: int,
    direction: str | None = "forward",
    has_bias: bool = True,
    has_initial: bool = True,
    lengths: list[int] | None = None,
    has_peepholes: bool = False,
    outputs: tuple[str, ...] | None = None,
    **attributes: Any,
) -> RecurrentCase:
    """A layer of the given sizes; weights are small enough that errors do not grow from step to step."""
    directions = 2 if direction == "bidirectional" else 1
    rows = GATES[op] * hidden

    def numbers(*shape: int, scale: float = 1.0) -> Array:
        return (rng.standard_normal(shape) * scale).astype(np.float32)

    layout = attributes.get("layout", 0)
    state = (batch, directions, hidden) if layout else (directions, batch, hidden)
    inputs: list[Array | None] = [
        numbers(*((batch, steps, size) if layout else (steps, batch, size))),
        numbers(directions, rows, size, scale=size**-0.5),
        numbers(directions, rows, hidden, scale=0.8 * hidden**-0.5),
        numbers(directions, 2 * rows, scale=0.3) if has_bias else None,
        None if lengths is None else np.array(lengths, np.int32),
        *(numbers(*state, scale=0.5) if has_initial else None for _ in range(STATES[op])),
    ]
    if has_peepholes:
        inputs.append(numbers(directions, 3 * hidden, scale=0.5))
    while inputs[-1] is None:
        inputs.pop()
    named = outputs or ("Y", "Y_h", "Y_c")[: STATES[op] + 1]
    stated = {"direction": direction, "hidden_size": hidden, **attributes}
    return RecurrentCase(op, inputs, {k: v for k, v in stated.items() if v is not None}, named)


def random_case(rng: np.random.Generator, op: str, *, is_plain: bool = False) -> RecurrentCase:
    """A layer with a random choice of everything.

    Args:
        rng: random numbers.
        op: LSTM, GRU or RNN.
        is_plain: only what onnxruntime's CPU provider runs.
    """

    def chance(share: float) -> bool:
        return bool(rng.random() < share)

    direction = str(rng.choice(["forward", "reverse", "bidirectional"]))
    steps, batch = int(rng.integers(1, 7)), int(rng.choice([1, 2, 3, 8]))
    attributes: dict[str, Any] = {}
    if chance(0.4):
        count = FUNCTIONS[op]
        names = [str(name) for name in rng.choice(sorted(NUMBERS), count)]
        names *= 2 if direction == "bidirectional" else 1
        attributes["activations"] = tuple(names)
        for key in "ab":
            stated = [name for name in names if key in NUMBERS[name]]
            if stated:
                values = rng.uniform(0.2, 0.6, len(stated)).astype(np.float32)
                attributes[f"activation_{'alpha' if key == 'a' else 'beta'}"] = tuple(map(float, values))
    if chance(0.3):
        attributes["clip"] = float(np.float32(rng.uniform(0.3, 1.0)))
    if op == "GRU":
        attributes["linear_before_reset"] = int(chance(0.5))
    if op == "LSTM" and chance(0.3):
        attributes["input_forget"] = 1
    if not is_plain and chance(0.4):
        attributes["layout"] = 1
    outputs: tuple[str, ...] = ("Y", "Y_h", "Y_c")[: STATES[op] + 1]
    if chance(0.4):
        kept = [name if chance(0.5) else "" for name in outputs]
        outputs = tuple(kept) if any(kept) else outputs
    return recurrent_case(
        rng,
        op,
        steps=steps,
        batch=batch,
        size=int(rng.choice([1, 3, 8])),
        hidden=int(rng.choice([1, 2, 3, 8, 17])),
        direction=direction,
        has_bias=chance(0.7),
        has_initial=chance(0.6),
        lengths=rng.integers(0, steps + 1, batch).tolist() if chance(0.4) else None,
        has_peepholes=op == "LSTM" and chance(0.4),
        outputs=outputs,
        **attributes,
    )
