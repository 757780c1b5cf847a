"""``vkml inspect --graph``: boxes in layers that do not overlap, and edges that lead down from box to box."""

from __future__ import annotations

import itertools
import random
from pathlib import Path
from xml.etree import ElementTree

import numpy as np
import pytest

from tests.cli.conftest import Command
from tests.control_models import model
from vkml.cli.graph_drawing import graph_drawing
from vkml.cli.layers import GAP, layout
from vkml.engine.sketch import Sketch
from vkml.onnx import load_graph


def test_layers_lead_down_and_boxes_keep_apart() -> None:
    generator = random.Random(0)
    for size in (1, 2, 40, 150):
        widths = [generator.uniform(40, 200) for _ in range(size)]
        edges = [(generator.randrange(max(0, end - 9), end), end) for end in range(1, size) for _ in range(2)]
        found = layout(widths, edges)
        assert all(found.layers[start] < found.layers[end] for start, end in edges)
        for layer in set(found.layers):
            row = sorted(at for at in range(size) if found.layers[at] == layer)
            row.sort(key=found.centres.__getitem__)
            for one, other in itertools.pairwise(row):
                apart = found.centres[other] - found.centres[one] - (widths[one] + widths[other]) / 2
                assert apart >= GAP - 1e-6
        assert min(c - w / 2 for c, w in zip(found.centres, widths, strict=True)) >= -1e-6
        assert max(c + w / 2 for c, w in zip(found.centres, widths, strict=True)) <= found.width + 1e-6
        for (start, end), way in zip(edges, found.ways, strict=True):
            assert way[0] == (found.layers[start], found.centres[start])
            assert way[-1] == (found.layers[end], found.centres[end])
            assert [layer for layer, _ in way] == list(range(found.layers[start], found.layers[end] + 1))


def test_a_chain_is_straight_and_its_sources_are_near() -> None:
    found = layout([80.0] * 6, [(0, 1), (1, 2), (2, 3), (4, 3), (3, 5)])
    assert found.layers == [0, 1, 2, 3, 2, 4]  # the source of the last join lies beside what it joins
    assert found.centres[0] == pytest.approx(found.centres[1], abs=1)


def test_crossings_that_need_not_be_are_gone() -> None:
    # Two chains that are stated crosswise.
    found = layout([50.0] * 6, [(0, 3), (1, 2), (2, 5), (3, 4)])
    left, right = sorted((0, 1), key=found.centres.__getitem__)
    ends = {0: 4, 1: 5}
    assert found.centres[ends[left]] < found.centres[ends[right]]


def test_a_graph_s_boxes_have_operators_names_and_shapes(
    command: Command, scale_model: Path, tmp_path: Path
) -> None:
    done = command("inspect", scale_model, "--graph", tmp_path / "graph.svg")
    assert done.code == 0 and f"wrote {tmp_path / 'graph.svg'}" in done.out
    root = ElementTree.parse(tmp_path / "graph.svg").getroot()
    texts = [each.text for each in root.iter() if each.tag.endswith("text")]
    assert {"input", "image", "batch×1×4×4", "MatMul", "Mul", "output", "scores"} <= set(texts)
    notes = [each.text or "" for each in root.iter() if each.tag.endswith("title")]
    [product] = [note for note in notes if note.startswith("MatMul node")]
    assert "constant float[16,3]" in product
    lines = [each for each in root.iter() if each.tag.endswith("polyline")]
    assert len(lines) == 2 + 1 + 2 + 2  # of image twice, of Flatten, of MatMul and Mul, and to the outputs


def test_control_flow_and_unknown_operators_are_drawn() -> None:
    text = """
    g (float[4] x, bool c) => (float[4] y) {
      y = If (c) <
        then_branch = a () => (float[4] p) { p = Relu(x) }, else_branch = b () => (float[4] q) { q = Neg(x) }
      >
    }
    """
    drawn = graph_drawing(load_graph(model(text)), "branches").svg()
    assert drawn.count("<polyline") == 3 and "then_branch = a graph of 1 node" in drawn
    sketch = Sketch("odd")
    odd = sketch.finish(sketch.node("Frobnicate", sketch.input("x", (2,)), sketch.constant(np.zeros(3))))
    assert "Frobnicate" in graph_drawing(odd, "odd").svg()


def test_drawings_have_an_ending_that_says_their_kind(
    command: Command, scale_model: Path, tmp_path: Path
) -> None:
    done = command("inspect", scale_model, "--graph", tmp_path / "graph.pdf")
    assert done.code == 2 and ".svg or .png" in done.err and not done.out
