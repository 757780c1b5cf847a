"""A function of the program takes what is logged."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
from onnx import TensorProto, helper


@pytest.fixture(autouse=True)
def _given_up(ort: Any) -> Iterator[None]:
    yield
    ort.set_default_logger_callback(None)
    ort.set_default_logger_severity(2)


def _run(ort: Any, **settings: Any) -> None:
    """A model whose output is another than stated, which is worth a warning."""
    value = helper.make_tensor_value_info
    graph = helper.make_graph(
        [helper.make_node("Add", ["a", "b"], ["c"])],
        "misstated",
        [value("a", TensorProto.FLOAT, [2]), value("b", TensorProto.FLOAT, [2])],
        [value("c", TensorProto.FLOAT, [3])],
    )
    model = helper.make_model(graph, ir_version=8, opset_imports=[helper.make_opsetid("", 17)])
    options = ort.SessionOptions()
    for name, setting in settings.items():
        setattr(options, name, setting)
    feeds = {name: np.zeros(2, np.float32) for name in "ab"}
    session = ort.InferenceSession(model.SerializeToString(), options, providers=["CPUExecutionProvider"])
    session.run(None, feeds)


def test_set_default_logger_callback(ort: Any, capfd: pytest.CaptureFixture[str]) -> None:
    taken: list[tuple[int, str, str, str, str]] = []
    ort.set_default_logger_callback(lambda *message: taken.append(message))
    _run(ort)
    assert taken and {severity for severity, *_ in taken} == {2}
    assert all(isinstance(part, str) for message in taken for part in message[1:])
    assert any("output" in text for *_, text in taken) and "output" not in capfd.readouterr().err
    ort.set_default_logger_callback(None)
    taken.clear()
    _run(ort)
    assert not taken


def test_severities_are_those_of_the_session(ort: Any) -> None:
    taken: list[int] = []
    ort.set_default_logger_callback(lambda severity, *_: taken.append(severity), 4)
    _run(ort)
    assert not taken
    _run(ort, log_severity_level=2)
    assert set(taken) == {2}


def test_a_callback_that_raises(ort: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    told: list[Any] = []
    monkeypatch.setattr(sys, "unraisablehook", lambda unraisable: told.append(unraisable.exc_value))

    def callback(*_: Any) -> None:
        raise KeyError("mine")

    ort.set_default_logger_callback(callback)
    _run(ort)
    assert told and all(isinstance(error, KeyError) for error in told)


def test_what_is_no_callback(ort: Any) -> None:
    for wrong in ((3,), (lambda *_: None, 5), (None, -1)):
        with pytest.raises(RuntimeError):
            ort.set_default_logger_callback(*wrong)
