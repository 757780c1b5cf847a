"""``vkml train``: folders of images and tables become models that ``vkml run`` takes."""

from __future__ import annotations

import csv
import dataclasses
import io
import json
import os
import signal
import subprocess
import sys
import textwrap
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

import vkml
from tests.cli.conftest import Command
from tests.patience import patience
from vkml.cli.app import app
from vkml.cli.augmentation import AUGMENTATIONS, Augmented
from vkml.cli.tables import Column, features, read_table, told_columns
from vkml.cli.train import TrainRequest, held_out
from vkml.cli.train_table import TableModel, told_task
from vkml.pictures import ENDINGS

Array = np.ndarray[Any, Any]


def picture(kind: int, number: int, colour: bool = False) -> Image.Image:
    """Stripes that lie or stand, brighter to one side, with noise."""
    rng = np.random.default_rng(1000 * kind + number)
    stripes = np.tile(np.arange(12) % 4 < 2, (12, 1)) * 120 + rng.integers(0, 100, (12, 12))
    array = (stripes if kind else stripes.T).astype(np.uint8)
    if colour:
        return Image.fromarray(np.stack([array, 255 - array, array // 2], 2))
    return Image.fromarray(array)


def folder_of_images(folder: Path, count: int = 24, colour: bool = False) -> Path:
    for kind, name in enumerate(("lying", "standing")):
        (folder / name).mkdir(parents=True)
        for number in range(count):
            picture(kind, number, colour).save(folder / name / f"{number:02d}.png")
    return folder


def table_of(path: Path, rows: int = 160, seed: int = 0) -> Path:
    """Classes and a number that follow from two numbers and a colour, with gaps."""
    rng = np.random.default_rng(seed)
    with path.open("w", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(["width", "height", "colour", "note", "same", "kind", "weight"])
        for at in range(rows):
            width, height = rng.normal(50, 20), rng.normal(0.01, 0.002)
            colour = ["red", "green", "blue"][rng.integers(3)]
            kind = (
                "large" if (width - 50) / 20 + (height - 0.01) / 0.002 + (colour == "red") > 0.5 else "small"
            )
            weight = 1000 + 3 * width + 40 * (colour == "blue")
            cells = [f"{width:.3f}", f"{height:.6f}", colour]
            if at % 11 == 0:
                cells[at % 2] = "NA"
            if at % 13 == 0:
                cells[2] = ""
            writer.writerow([*cells, f"row {at}", "x", kind, f"{weight:.2f}"])
    return path


def test_images_become_a_model_that_runs(command: Command, tmp_path: Path, either_device_name: str) -> None:
    folder, model = folder_of_images(tmp_path / "images"), tmp_path / "stripes.onnx"
    done = command(
        "train", folder, "-o", model, "--epochs", 4, "--size", 8, "--batch", 8, "-d", either_device_name
    )
    assert done.code == 0, done.err
    assert "2 classes, images of 8×8 in grey; 38 to train, 10 to judge by" in done.out
    assert "100.0 %" in done.out and f"vkml run {model}" in done.out
    assert len([line for line in done.err.splitlines() if line.startswith("epoch ")]) == 4
    picture(1, 500).save(tmp_path / "new.png")
    ran = command("run", model, "-i", tmp_path / "new.png", "-d", either_device_name)
    assert ran.code == 0 and "standing" in ran.out and "lying" in ran.out
    ranked = command("run", model, "-i", tmp_path / "new.png", "--top", 1, "--json").json["top"]["rows"][0]
    assert ranked[0]["class"] == "standing"
    with Image.open(model.with_suffix(".png")) as curve:
        assert curve.size[0] > 300
    with vkml.InferenceSession(str(model), devices="cpu") as session:
        (given,) = session.get_inputs()
        assert (given.name, list(given.shape), given.type) == ("image", ["batch", 1, 8, 8], "tensor(float)")


def test_the_model_computes_what_training_did(command: Command, tmp_path: Path) -> None:
    """Scaling is part of it; onnxruntime and its own share of right answers agree."""
    runtime = pytest.importorskip("onnxruntime")
    folder, model = folder_of_images(tmp_path / "images", colour=True), tmp_path / "stripes.onnx"
    done = command("train", folder, "-o", model, "--epochs", 3, "--val", 0, "-d", "cpu", "--batch", 8)
    assert done.code == 0, done.err
    right = 0
    session = runtime.InferenceSession(str(model), providers=["CPUExecutionProvider"])
    for kind, name in enumerate(("lying", "standing")):
        for path in sorted((folder / name).iterdir()):
            with Image.open(path) as opened:
                size = session.get_inputs()[0].shape[-1]
                pixels = np.asarray(opened.resize((size, size), Image.Resampling.BILINEAR))
            found = session.run(None, {"image": (pixels / np.float32(255)).transpose(2, 0, 1)[None]})[0]
            np.testing.assert_allclose(found.sum(), 1, rtol=1e-5)
            right += int(found.argmax() == kind)
    (line,) = (line for line in done.out.splitlines() if line.startswith("all "))
    assert line.split()[1:3] == ["48", str(right)]
    assert "48 samples of training" in done.out and "in colour" in done.out


def test_folders_for_training_and_judging(command: Command, tmp_path: Path) -> None:
    folder_of_images(tmp_path / "images" / "train", 8)
    folder_of_images(tmp_path / "images" / "val", 3)
    done = command("train", tmp_path / "images", "-o", tmp_path / "m.onnx", "--epochs", 1, "-d", "cpu")
    assert done.code == 0 and "16 to train, 6 to judge by" in done.out


def test_tables_become_models_that_take_tables(
    command: Command, tmp_path: Path, either_device_name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    table, model = table_of(tmp_path / "table.csv"), tmp_path / "kind.onnx"
    words = ["train", table, "-o", model, "--target", "kind", "-d", either_device_name, "--epochs", 20]
    done = command(*words)
    assert done.code == 0, done.err
    assert "left out: note: 160 different texts in 160 rows" in done.out
    assert "left out: same: all of its cells hold the same" in done.out
    assert "kind: 2 classes, from 4 columns; 128 rows to train, 32 to judge by" in done.out
    others = table_of(tmp_path / "others.csv", 40, seed=5)
    ran = command("run", model, "-i", others, "--top", 1, "--json", "-d", either_device_name).json
    wanted = [row["kind"] for row in csv.DictReader(others.open())]
    found = [row[0]["class"] for row in ran["top"]["rows"]]
    assert np.mean([one == other for one, other in zip(found, wanted, strict=True)]) > 0.8
    monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(others.read_bytes())))
    piped = command("run", model, "-", "--top", 1, "--json", "-d", either_device_name).json
    assert piped["top"] == ran["top"]


def test_numbers_come_in_their_own_unit(command: Command, tmp_path: Path) -> None:
    table, model = table_of(tmp_path / "table.csv"), tmp_path / "weight.onnx"
    done = command("train", table, "-o", model, "--target", "weight", "-d", "cpu", "--epochs", 60)
    assert done.code == 0, done.err
    assert "weight: a number" in done.out
    (line,) = (line for line in done.out.splitlines() if line.startswith("R²"))
    assert float(line.split()[1]) > 0.8
    others = table_of(tmp_path / "others.csv", 40, seed=5)
    ran = command("run", model, "-i", others, "--json").json
    (output,) = ran["outputs"]
    wanted = np.array([[float(row["weight"])] for row in csv.DictReader(others.open())])
    errors = np.array(output["values"]) - wanted
    assert 1 - (errors**2).sum() / ((wanted - wanted.mean()) ** 2).sum() > 0.75


def test_a_training_goes_on_where_it_ended(command: Command, tmp_path: Path) -> None:
    """Of as many epochs in two parts the model is the same, bit for bit."""
    table = table_of(tmp_path / "table.csv")

    def trained(name: str, *words: object) -> Any:
        model = tmp_path / f"{name}.onnx"
        given = ("train", table, "-o", model, "--target", "kind", "-d", "cpu", "--patience", 0)
        return command(*given, *words), model

    done, whole = trained("whole", "--epochs", 4, "--log-dir", tmp_path / "a")
    assert done.code == 0
    trained("part", "--epochs", 4, "--log-dir", tmp_path / "b")
    for path in (tmp_path / "b" / "checkpoints").iterdir():
        if path.name != "epoch-00003.safetensors":
            path.unlink()
    refused, _ = trained("part", "--epochs", 4, "--log-dir", tmp_path / "b")
    assert refused.code == 2 and "--resume" in refused.err
    done, part = trained("part", "--epochs", 4, "--log-dir", tmp_path / "b", "--resume")
    assert done.code == 0 and part.read_bytes() == whole.read_bytes()
    with (tmp_path / "b" / "log.csv").open() as file:
        assert [row["epoch"] for row in csv.DictReader(file)] == ["1", "2", "3", "4"]
    assert list((tmp_path / "b").glob("events.*"))


def test_what_is_missing_or_unseen_is_no_error(tmp_path: Path) -> None:
    path = tmp_path / "t.csv"
    path.write_text("a;b;y\n1,5;x;0\n;y;1\n3;x;0\n4;;1\n".replace("1,5", "1.5"))
    table = read_table(path)
    columns, _ = told_columns(table, "y")
    assert columns == [Column("a"), Column("b", ("x", "y"))]
    inputs = features(table, columns)
    np.testing.assert_array_equal(inputs, [[1.5, 0], [np.nan, 1], [3, 0], [4, np.nan]])
    model = TableModel(columns, inputs, np.array([0, 1, 0, 1]), 2).eval()
    x = vkml.tensor(np.array([[np.nan, np.nan], [1e30, 7], [2, 1]], np.float32))
    assert np.isfinite(model(x).detach().numpy()).all()
    path.write_text("b,a\nz,1\n")
    np.testing.assert_array_equal(features(read_table(path), columns), [[1, np.nan]])


def test_each_class_gives_its_share() -> None:
    targets = np.repeat([0, 1, 2], [50, 30, 1])
    training, judged = held_out(targets, 0.2, 0, True)
    assert np.bincount(targets[judged], minlength=3).tolist() == [10, 6, 0]
    assert sorted([*training, *judged]) == list(range(81))
    assert len(held_out(targets, 0.0, 0, True)[1]) == 0
    assert len(held_out(targets, 0.2, 0, False)[1]) == 16


@pytest.mark.parametrize(
    ("texts", "task"),
    [
        (["0", "1"] * 3, "classification"),
        (["0.5", "1"] * 3, "regression"),
        (["3", "5", "6", "7", "2", "4", "8", "5"], "regression"),  # most are there once
        ([str(number) for number in range(21)] * 5, "regression"),  # more than are told apart
        (["a", "b"] * 3, "classification"),
    ],
)
def test_a_column_is_of_classes_or_of_a_quantity(texts: list[str], task: str) -> None:
    rest = [field.name for field in dataclasses.fields(TrainRequest) if field.name not in ("target", "task")]
    request = TrainRequest(**dict.fromkeys(rest), target="y", task=None)
    assert (told_task(request, texts) is None) == (task == "regression")


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with all kinds of wrong things in it, in which the command runs."""
    monkeypatch.chdir(tmp_path)
    folder_of_images(tmp_path / "images", 6)
    folder_of_images(tmp_path / "bad", 6)
    (tmp_path / "bad" / "lying" / "03.png").write_bytes(b"\x89PNG no more")
    (tmp_path / "empty").mkdir()
    (tmp_path / "one" / "cat").mkdir(parents=True)
    picture(0, 0).save(tmp_path / "one" / "cat" / "a.png")
    (tmp_path / "hollow" / "cat").mkdir(parents=True)
    table_of(tmp_path / "table.csv", 30)
    (tmp_path / "header.csv").write_text("a,b\n")
    (tmp_path / "ragged.csv").write_text("a,b\n1,2\n3\n")
    (tmp_path / "blank.csv").write_text("a,b\n1,\n2,NA\n")
    (tmp_path / "binary.csv").write_bytes(b"\xff\xfe\x00")
    return tmp_path


@pytest.mark.parametrize(
    ("words", "code", "said"),
    [
        ("nothing", 2, "no file or folder nothing"),
        ("images -o model.bin", 2, "ends with .onnx"),
        ("images -o nowhere/m.onnx", 2, "no folder nowhere"),
        ("images --val 1", 2, "--val 1"),
        ("images --resume", 2, "--log-dir"),
        ("images --target x", 2, "for tables"),
        ("empty", 2, "any class folder in empty. There is to be a folder for each class"),
        ("hollow", 2, "no valid file for the classes cat in hollow"),
        ("one", 2, "one has one class, 'cat'"),
        ("bad", 2, "bad/lying/03.png cannot be read as a picture"),
        ("table.csv", 2, "--target COLUMN"),
        ("table.csv --target kinds", 2, "no column 'kinds' (it has width, height"),
        ("table.csv --target same", 2, "holds 'x' alone: there is nothing to predict"),
        ("table.csv --target note", 2, "these are no classes"),
        ("table.csv --target kind --task regression", 2, "holds texts"),
        ("table.csv --target kind --task guessing", 2, "'classification', 'regression'"),
        ("table.csv --target kind --size 8", 2, "for folders of images"),
        ("header.csv --target a", 2, "no rows"),
        ("ragged.csv --target a", 2, "line 3: 1 fields, there are 2 columns"),
        ("blank.csv --target b", 2, "is empty"),
        ("binary.csv --target b", 2, "codec can't decode"),
        ("images --augment crop", 2, "'crop' is not one of 'flip'"),
        ("table.csv --target kind --augment flip", 2, "for folders of images"),
        ("images -d vulkan:77", 1, "vulkan:77"),
        ("images --precision half-way", 2, "'half-way' is not one of 'highest'"),
    ],
)
def test_what_cannot_be_meant_is_said(
    command: Command, place: Path, words: str, code: int, said: str
) -> None:
    done = command("train", *words.split())
    assert done.code == code and said in done.err, done.err
    assert "internal error" not in done.err
    assert not (place / "model.onnx").exists()


def test_bad_images_are_skipped_where_asked(command: Command, place: Path) -> None:
    done = command("train", "bad", "--skip-bad", "--epochs", 1, "-d", "cpu")
    assert done.code == 0 and "skipped 1 file that cannot be read: bad/lying/03.png" in done.out
    for path in (place / "bad" / "lying").iterdir():
        path.write_bytes(b"GIF89a, and no more")
    done = command("train", "bad", "--skip-bad")
    assert done.code == 2 and "none of the images of class 'lying'" in done.err
    done = command("train", "bad/..", "--skip-bad", "-o", "other.onnx")
    assert done.code == 2 and "Found no valid file" in done.err


def test_pictures_of_all_kinds_are_trained_with(command: Command, tmp_path: Path) -> None:
    """What `vkml.data` reads: none is passed over for its name, and what is hidden is no class."""
    for kind, name in enumerate(("lying", "standing")):
        (tmp_path / "images" / name / "more").mkdir(parents=True)
        for number, ending in enumerate(ENDINGS):
            folder = tmp_path / "images" / name / ("more" if number % 2 else "")
            picture(kind, number).save(folder / f"{number}{ending.upper()}")
    (tmp_path / "images" / ".ipynb_checkpoints").mkdir()
    model = tmp_path / "m.onnx"
    done = command("train", tmp_path / "images", "-o", model, "--epochs", 1, "--val", 0, "-d", "cpu")
    assert done.code == 0, done.err
    assert f"; {2 * len(ENDINGS)} to train" in done.out
    for path in (tmp_path / "images" / "lying").glob("*.*"):
        assert command("run", model, "-i", path, "-d", "cpu").code == 0


def test_classes_in_metadata_may_be_anything(command: Command, scale_model: Path, tmp_path: Path) -> None:
    from dataclasses import replace

    graph = vkml.onnx.load_graph(scale_model)
    for text, is_shown in (('["a", "b", "c"]', True), ("{", False), ("[1]", False), (json.dumps({}), False)):
        vkml.onnx.save_graph(replace(graph, metadata={"vkml.classes": text}), tmp_path / "m.onnx")
        done = command("run", tmp_path / "m.onnx", "--random")
        assert done.code == 0 and ("probability" in done.out) is is_shown
    refused = command("run", tmp_path / "m.onnx", "-i", "a.csv")
    assert refused.code == 2 and "columns of a table" in refused.err


STARTED = """
    import signal, sys
    signal.signal(signal.SIGINT, signal.default_int_handler)
    from vkml.cli import main
    main(sys.argv[1:])
"""


@pytest.mark.skipif(os.name == "nt", reason="signals are Unix's")
def test_an_interrupt_leaves_the_model_that_there_is(command: Command, tmp_path: Path) -> None:
    table, model = table_of(tmp_path / "table.csv"), tmp_path / "kind.onnx"
    words = ["train", table, "-o", model, "--target", "kind", "-d", "cpu", "--epochs", 10**6]
    words += ["--patience", 10**6]
    process = subprocess.Popen(
        [sys.executable, "-c", textwrap.dedent(STARTED), *map(str, words)], stdout=subprocess.PIPE,
        stderr=subprocess.PIPE, text=True,
    )  # fmt: skip
    assert process.stderr is not None
    for line in process.stderr:
        if line.startswith("epoch ") and " 2/" in line:
            process.send_signal(signal.SIGINT)
            break
    out, _ = process.communicate(timeout=patience(120))
    assert process.returncode == 130
    assert f"wrote {model}" in out and "ended by Ctrl-C" in out
    assert command("run", model, "-i", table).code == 0


def test_augmented_images_are_of_each_sample_and_differ() -> None:
    rng = np.random.default_rng(0)
    images = rng.integers(0, 256, (6, 3, 16, 16)).astype(np.uint8)
    targets = np.arange(6)
    (option,) = [each for each in app.commands["train"].params if each.name == "augment"]
    assert tuple(option.type.choices) == tuple(AUGMENTATIONS)  # type: ignore[attr-defined]
    for name in AUGMENTATIONS:
        loader = vkml.data.DataLoader(Augmented(images, targets, (name,)), 6, generator=vkml.Generator())
        epochs = [next(iter(loader)) for _ in range(8)]
        assert all(made.dtype == vkml.uint8 and made.shape == images.shape for made, _ in epochs)
        assert all(numbers.tolist() == targets.tolist() for _, numbers in epochs)
        every = np.stack([made.numpy() for made, _ in epochs])
        assert len({each.tobytes() for each in every}) > 4, name
        if name.startswith("flip"):  # nothing but the two that there are
            axis = -1 if name == "flip" else -2
            for epoch in every:
                for found, image in zip(epoch, images, strict=True):
                    assert (found == image).all() or (found == np.flip(image, axis)).all()


def test_a_training_with_augmentation_goes_on_where_it_ended(command: Command, tmp_path: Path) -> None:
    images = folder_of_images(tmp_path / "images", 8)

    def trained(name: str, *words: object) -> Any:
        model = tmp_path / f"{name}.onnx"
        given = ("train", images, "-o", model, "-d", "cpu", "--patience", 0, "--epochs", 3)
        return command(*given, "--augment", "shift", "--augment", "flip", *words), model

    done, whole = trained("whole", "--log-dir", tmp_path / "a")
    assert done.code == 0, done.err
    trained("part", "--log-dir", tmp_path / "b")
    for path in (tmp_path / "b" / "checkpoints").iterdir():
        if path.name != "epoch-00002.safetensors":
            path.unlink()
    done, part = trained("part", "--log-dir", tmp_path / "b", "--resume")
    assert done.code == 0 and part.read_bytes() == whole.read_bytes()
    assert command("run", whole, "-i", images / "lying" / "00.png", "-d", "cpu").code == 0
