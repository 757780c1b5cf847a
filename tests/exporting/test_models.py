"""Whole models that are exported: nested results; there and back; on the command line."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime  # noqa: F401  before any device is used
import pytest

import vkml
from tests.exporting.checking import checked, close, flat, reference, session_of
from tests.exporting.layers import normal, places
from tests.exporting.test_open_sizes import Language, Picture
from vkml import nn
from vkml.cli import main


class Tagger(nn.Module):
    """Embedded tokens through an LSTM, its last state classified; nested results."""

    def __init__(self) -> None:
        super().__init__()
        self.tokens = nn.Embedding(20, 6, padding_idx=0)
        self.lstm = nn.LSTM(6, 5, num_layers=2, bidirectional=True, batch_first=True)
        self.tags = nn.Linear(10, 4)
        self.kind = nn.Sequential(nn.LayerNorm(10), nn.Linear(10, 3))

    def forward(self, tokens: Any, mask: Any = None) -> Any:
        x, (hidden, _) = self.lstm(self.tokens(tokens))
        if mask is not None:
            x = x.masked_fill(mask.logical_not().unsqueeze(-1), 0.0)
        return {"tags": self.tags(x), "kind": self.kind(x.mean(1)), "state": (hidden, None)}


def test_a_tagger(device_name: str) -> None:
    vkml.manual_seed(1)
    module = Tagger().eval().to(device_name)
    given = (places(20, 2, 5), places(2, 2, 5).astype(bool))
    sizes = {0: "batch", 1: "length"}
    made = vkml.onnx.export(module, given, dynamic_shapes={"tokens": sizes, "mask": sizes})
    assert made is not None
    graph = checked(made).graph
    assert [value.name for value in graph.output] == ["tags", "kind", "state_0"]
    assert {"tokens.weight", "lstm.weight_ih_l0", "tags.bias"} <= {
        tensor.name for tensor in graph.initializer
    }
    session = session_of(made, device_name)
    for n, t in ((2, 5), (1, 3), (4, 8)):
        tokens, mask = places(20, n, t), places(2, n, t).astype(bool)
        feeds = {"tokens": tokens, "mask": mask}
        wanted = flat(module(*(vkml.tensor(x, device=device_name) for x in feeds.values())))
        close(reference(made, feeds), wanted, "onnxruntime")
        close(session.run(None, feeds), wanted, "a session")


@pytest.mark.parametrize("kind", ["language", "picture"])
def test_there_and_back_and_there_again(kind: str) -> None:
    vkml.manual_seed(1)
    if kind == "language":
        module, given, other = Language(), places(11, 2, 6), places(11, 3, 9)
        sizes: dict[int, str] = {0: "batch", 1: "length"}
    else:
        module, given, other = Picture(), normal(2, 3, 8, 6), normal(1, 3, 10, 12)
        sizes = {0: "n", 2: "h", 3: "w"}
    module.eval()
    made = vkml.onnx.export(module, (given,), dynamic_shapes=(sizes,))
    back = nn.from_onnx(made)
    ours, theirs = module(vkml.tensor(other)), back(vkml.tensor(other))
    close(flat(theirs), flat(ours), "values", 1e-3)
    kept = dict(module.named_parameters())
    for results in (ours, theirs):
        many = results if isinstance(results, tuple) else (results,)
        sum((result**2).mean() for result in many).backward()  # type: ignore[union-attr]
    graded = [name for name, parameter in back.named_parameters() if parameter.grad is not None]
    assert len(graded) > 5 and set(graded) == {name for name, one in kept.items() if one.grad is not None}
    for name in graded:
        ours_, theirs_ = kept[name].grad, back.get_parameter(name).grad
        assert ours_ is not None and theirs_ is not None
        close([theirs_.numpy()], [ours_.numpy()], name, 2e-3)
    again = vkml.onnx.export(back, (given,), input_names=["x"], dynamic_shapes={"inputs_0": sizes})
    assert again is not None
    checked(again)
    close(reference(again, {"x": other}), flat(module(vkml.tensor(other))), "onnxruntime", 1e-3)


def test_the_command_line_runs_it(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    module = nn.Sequential(nn.Linear(4, 3), nn.Softmax(-1))
    path = tmp_path / "model.onnx"
    x = normal(2, 4)
    vkml.onnx.export(module, (x,), path, input_names=["x"], dynamic_shapes=({0: "n"},))
    np.save(tmp_path / "x.npy", normal(5, 4))
    with pytest.raises(SystemExit) as end:
        main(
            [
                "run",
                str(path),
                "--input",
                f"x={tmp_path / 'x.npy'}",
                "--device",
                "cpu",
                "--output",
                str(tmp_path),
            ]
        )
    assert end.value.code in (0, None), capsys.readouterr()
    [found] = [np.load(one) for one in tmp_path.glob("*output*.npy")]
    close([found], flat(module(vkml.tensor(normal(5, 4)))), "the command line")
