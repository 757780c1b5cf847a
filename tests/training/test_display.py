"""What a training shows: a line an epoch in files and pipes, a bar in terminals, nothing when asked."""

from __future__ import annotations

import io
import re

import pytest
from rich.console import Console

import vkml
from tests.training.problems import classes, perceptron
from vkml.training import display


def fitted(**named: object) -> vkml.training.History:
    return vkml.fit(
        perceptron(), classes(40), "cross_entropy", epochs=3, metrics="accuracy", validation=0.25,
        batch_size=5, **named,
    )  # type: ignore[arg-type]  # fmt: skip


def test_a_line_an_epoch(capsys: pytest.CaptureFixture[str]) -> None:
    history = fitted()
    shown = capsys.readouterr()
    assert not shown.out
    lines = shown.err.splitlines()
    assert len(lines) == 3
    for line, row in zip(lines, history, strict=True):
        numbers = {name: f"{value:.4g}" for name, value in row.items()}
        assert line.startswith(
            f"epoch {row['epoch']}/3  loss {numbers['loss']} (val {numbers['val_loss']})  "
            f"accuracy {numbers['accuracy']} (val {numbers['val_accuracy']})  "
        )
        assert line.endswith("/s")


def test_nothing_when_asked(capsys: pytest.CaptureFixture[str]) -> None:
    fitted(progress=False)
    shown = capsys.readouterr()
    assert not shown.out and not shown.err


@pytest.mark.parametrize("has_colour", [True, False])
def test_a_bar(monkeypatch: pytest.MonkeyPatch, has_colour: bool) -> None:
    monkeypatch.setattr(display, "REFRESH", 0.0)
    drawn = io.StringIO()
    if not has_colour:
        monkeypatch.setenv("NO_COLOR", "1")
    console = Console(file=drawn, force_terminal=True, width=80, highlight=False)
    fitted(progress=console)
    text = re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", drawn.getvalue())
    assert (re.search(r"\x1b\[[39]\d", drawn.getvalue()) is not None) is has_colour
    assert max(len(line) for line in re.split(r"[\r\n]", text)) <= 80
    bars = [line for line in re.split(r"[\r\n]", text) if "━" in line]
    assert bars and max(len(line) for line in bars) <= 77  # a terminal puts ^C behind it
    assert re.search(r"epoch 2/3.*3/6", text) and "validation" in text
    assert "accuracy" in text and "iB" in text and re.search(r"\d:\d\d", text)
    for epoch in (1, 2, 3):
        assert f"epoch {epoch}/3  loss" in text
    assert drawn.getvalue().count("\x1b[?25l") == drawn.getvalue().count("\x1b[?25h")  # the cursor is back


def test_what_a_checkpoint_has_was_not_done_now(monkeypatch: pytest.MonkeyPatch) -> None:
    """Rate and time left are those of the steps since, of which this one took two minutes."""
    now = iter(range(0, 600, 60))
    monkeypatch.setattr(display.time, "perf_counter", lambda: float(next(now)))
    drawn = io.StringIO()
    bar = display.Bar(1, Console(file=drawn, force_terminal=True, width=100), "cpu")
    with bar:
        bar.begin(1, 100, "", done=90, samples=90 * 6000)
        bar.step(91, 91 * 6000, dict)
        text = re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", drawn.getvalue())
        assert re.search(r"91/100 +50/s 18:00", text)


@pytest.mark.parametrize(
    ("number", "text"),
    [(0.4, "0"), (999, "999"), (1234, "1.23k"), (99_960, "100k"), (4.56e6, "4.56M"), (2e9, "2G")],
)
def test_rates(number: float, text: str) -> None:
    assert display._short(number) == text


@pytest.mark.parametrize(("seconds", "text"), [(0.4, "0:00"), (61, "1:01"), (3723, "1:02:03")])
def test_times(seconds: float, text: str) -> None:
    assert display._clock(seconds) == text
