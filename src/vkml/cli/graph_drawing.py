"""A drawing of a model's graph: a box a node, in layers from the inputs down to the outputs."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from vkml.cli.drawing import CHARACTER, Box, Drawing, Label, Line, colours, fitting, legend
from vkml.cli.layers import layout
from vkml.dataclasses import dataclass
from vkml.engine.text_table import cut_middle
from vkml.ir.graph import Graph, Node, Value
from vkml.ir.types import TensorType, ValueType
from vkml.ir.wording import counted, shape_text

_NAME = 30
"""Characters of a name that a box shows."""
_HEIGHT, _APART, _MARGIN, _TOP = 46.0, 34.0, 20.0, 44.0
_INPUT, _OUTPUT = "#eeeeee", "#dddddd"


@dataclass(frozen=True)
class _Card:
    """What a box shows."""

    title: str
    name: str
    shape: str
    note: str
    kind: str = ""
    """The operator; "" for inputs and outputs."""

    @property
    def width(self) -> float:
        texts = ((self.title, 12), (self.name, 10), (self.shape, 10))
        return max(70.0, *(len(text) * size * CHARACTER + 14 for text, size in texts))


def graph_drawing(graph: Graph, title: str) -> Drawing:
    """Draws a graph; bodies of control flow are counted in their nodes' notes.

    Args:
        graph: of a model.
        title: above it.
    """
    cards: list[_Card] = []
    makers: dict[str, int] = {}
    edges: list[tuple[int, int]] = []
    for value in graph.inputs:
        makers[value.name] = len(cards)
        cards.append(_end("input", value))
    types = {value.name: value.type for value in graph.outputs} | dict(graph.types)
    for node in graph.nodes:
        edges += [(makers[name], len(cards)) for name in dict.fromkeys(node.reads) if name in makers]
        makers.update(dict.fromkeys([name for name in node.outputs if name], len(cards)))
        cards.append(_of_node(node, graph, types))
    for value in graph.outputs:
        if value.name in makers:
            edges.append((makers[value.name], len(cards)))
        cards.append(_end("output", value))
    found = layout([card.width for card in cards], edges)
    fills = colours([kind for kind, _ in Counter(card.kind for card in cards if card.kind).most_common()])
    width = max(found.width, 400.0) + 2 * _MARGIN
    left = (width - found.width) / 2
    heading = Label(_MARGIN, 24, fitting(title, width - _MARGIN, 15), 15, is_bold=True)
    drawing = Drawing(width, 0.0, [heading])

    def top(layer: int) -> float:
        return _TOP + layer * (_HEIGHT + _APART)

    for way in found.ways:
        points = [(left + way[0][1], top(way[0][0]) + _HEIGHT)]
        for layer, x in way[1:-1]:
            points += [(left + x, top(layer)), (left + x, top(layer) + _HEIGHT)]
        points.append((left + way[-1][1], top(way[-1][0]) - 1))
        drawing.shapes.append(Line(tuple(points), "#999999", has_arrow=True))
    for card, layer, centre in zip(cards, found.layers, found.centres, strict=True):
        fill = fills.get(card.kind) or (_INPUT if card.title == "input" else _OUTPUT)
        x, y = left + centre, top(layer)
        drawing.shapes.append(Box(x - card.width / 2, y, card.width, _HEIGHT, fill, card.note))
        drawing.shapes.append(Label(x, y + 14, card.title, 12, True, is_bold=True))
        drawing.shapes.append(Label(x, y + 27, card.name, 10, True))
        drawing.shapes.append(Label(x, y + 40, card.shape, 10, True, "#444444"))
    bottom = top(1 + max(found.layers, default=0))
    shapes, end = legend(fills, _MARGIN, bottom, width - 2 * _MARGIN)
    drawing.shapes += shapes
    drawing.height = end + 6
    return drawing


def _end(title: str, value: Value) -> _Card:
    shape = _shape(value.type)
    return _Card(title, cut_middle(value.name, _NAME), shape, f"{title} {value.name}: {value.type}")


def _of_node(node: Node, graph: Graph, types: dict[str, ValueType]) -> _Card:
    title = f"{node.domain}.{node.op}" if node.domain else node.op
    outputs = [name for name in node.outputs if name]
    shapes = [_shape(types[name]) for name in outputs if name in types]
    lines = [node.label]
    for name in node.inputs:
        constant = graph.constants.get(name)
        what = f"constant {constant.type}" if constant is not None else str(types.get(name, ""))
        lines.append(f"reads {name} {what}".rstrip() if name else "reads nothing")
    lines += [f"makes {name} {types.get(name, '')}".rstrip() for name in outputs]
    lines += [f"{key} = {_brief(value)}" for key, value in node.attributes.items()]
    name = node.name or (outputs[0] if outputs else "")
    return _Card(title, cut_middle(name, _NAME), cut_middle(" ".join(shapes), _NAME), "\n".join(lines), title)


def _brief(value: object) -> str:
    if isinstance(value, Graph):
        return f"a graph of {counted(len(value.nodes), 'node')}"
    if isinstance(value, str | int | float) or (isinstance(value, Sequence) and len(value) <= 16):
        return cut_middle(str(value), 80)
    return type(value).__name__


def _shape(type_: ValueType) -> str:
    return shape_text(type_.shape) if isinstance(type_, TensorType) and type_.shape is not None else ""
