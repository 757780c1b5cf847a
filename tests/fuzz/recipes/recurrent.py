"""Recurrent layers and the choice of boxes."""

from __future__ import annotations

from tests.fuzz.graphs import GraphBuilder, Skip
from tests.fuzz.recipes.registry import data_input, recipe
from tests.fuzz.tensors import FLOAT, INT32, Fill, indices

GATES = {"LSTM": 4, "GRU": 3, "RNN": 1}
SMOOTH = ("Tanh", "Sigmoid", "HardSigmoid", "Softsign")
"""Activations that keep a state between bounds, whatever comes in."""


@recipe("LSTM", "GRU", "RNN")
def recurrent(build: GraphBuilder, op: str) -> None:
    data = data_input(build, op, 3, 3, fill=Fill("ordinary"))
    layout = 1 if build.opset >= 14 and build.chance(0.3) else 0
    steps, batch, size = (data.dims[1], data.dims[0], data.dims[2]) if layout else data.dims
    if not size or steps > 12:
        raise Skip("a layer of nothing, or a long one")
    direction = build.pick(None, "forward", "reverse", "bidirectional")
    directions, hidden = 2 if direction == "bidirectional" else 1, build.pick(1, 2, 3, 5, 8, 17)
    rows = GATES[op] * hidden
    state = (batch, directions, hidden) if layout else (directions, batch, hidden)

    def maybe(share: float, *shape: int):  # type: ignore[no-untyped-def]
        return build.new(data.code, shape, Fill("ordinary")) if build.chance(share) else None

    inputs = [
        data,
        build.new(data.code, (directions, rows, size), Fill("ordinary"), constant=0.8),
        build.new(data.code, (directions, rows, hidden), Fill("ordinary"), constant=0.8),
        maybe(0.7, directions, 2 * rows),
        build.new(INT32, (batch,), indices(0, steps + 1)) if build.chance(0.3) else None,
        maybe(0.4, *state),
    ]
    if op == "LSTM":
        inputs += [maybe(0.4, *state), maybe(0.3, directions, 3 * hidden)]
    attributes = {"direction": direction, "hidden_size": hidden, "layout": layout or None}
    if build.chance(0.3):
        count = {"LSTM": 3, "GRU": 2, "RNN": 1}[op]
        attributes["activations"] = [build.pick(*SMOOTH) for _ in range(count)] * directions
    if build.chance(0.2):
        attributes["clip"] = 0.75
    if op == "GRU" and build.opset >= 3:
        attributes["linear_before_reset"] = build.pick(None, 0, 1)
    if op == "LSTM":
        attributes["input_forget"] = build.pick(None, 0, 1)
    outputs = [build.chance(0.7) for _ in range(3 if op == "LSTM" else 2)]
    build.node(op, inputs, attributes, outputs if any(outputs) else 1)


@recipe("NonMaxSuppression")
def non_max_suppression(build: GraphBuilder, op: str) -> None:
    batch, classes, boxes = build.integer(1, 3), build.integer(1, 3), build.size()
    places = build.take([FLOAT], shape=(batch, boxes, 4), fill=Fill("ordinary"))
    scores = build.take([FLOAT], shape=(batch, classes, boxes), fill=Fill("ordinary"))
    inputs = [places, scores]
    if build.chance(0.9):
        inputs.append(build.decided([build.integer(0, 8)]))
        if build.chance(0.7):
            inputs.append(build.decided([build.pick(0.0, 0.3, 0.5, 1.0)], FLOAT))
            if build.chance(0.6):
                inputs.append(build.decided([build.pick(-1.0, 0.0, 0.5)], FLOAT))
    build.node(op, inputs, {"center_point_box": build.pick(None, 0, 1)})
