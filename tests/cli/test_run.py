"""``vkml run``: feeds from files, outputs to files, ranking, and what it says of wrong command lines."""

from __future__ import annotations

import io
import unicodedata
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

import vkml
from tests.cli.conftest import Command, matrix
from tests.control_models import model
from vkml.engine.sketch import Sketch
from vkml.ir import dtypes

Array = np.ndarray[Any, Any]


@pytest.fixture
def image() -> Array:
    return np.random.default_rng(0).random((1, 1, 4, 4)).astype(np.float32)


def scores_of(image: Array) -> Array:
    return image.reshape(len(image), 16).astype(np.float64) @ matrix().astype(np.float64)


def test_writes_each_output_as_an_array(
    command: Command, scale_model: Path, tmp_path: Path, image: Array, device_name: str
) -> None:
    np.save(tmp_path / "x.npy", image)
    done = command(
        "run", scale_model, "-i", f"image={tmp_path / 'x.npy'}", "-o", tmp_path / "out", "-d", device_name,
        "--precision", "highest",
    )  # fmt: skip
    assert done.code == 0, done.err
    assert np.load(tmp_path / "out" / "scores.npy") == pytest.approx(scores_of(image), rel=1e-5)
    assert np.array_equal(np.load(tmp_path / "out" / "doubled_image.npy"), 2 * image)
    assert f"on {device_name}" in done.out


def test_input_name_may_be_left_out_where_there_is_one(
    command: Command, scale_model: Path, tmp_path: Path, image: Array
) -> None:
    np.save(tmp_path / "x.npy", image)
    done = command("run", scale_model, "-i", tmp_path / "x.npy", "-d", "cpu", "--json")
    assert np.array(done.json["outputs"][0]["values"]) == pytest.approx(scores_of(image), rel=1e-5)
    assert done.json["device"] == "cpu"
    assert len(done.json["run_seconds"]) == 1


def test_npz_fills_inputs_by_their_names(command: Command, sum_model: Path, tmp_path: Path) -> None:
    a, b = np.arange(6).reshape(2, 3), np.array([10, 20, 30])
    np.savez(tmp_path / "both.npz", a=a, b=b)
    done = command("run", sum_model, "-i", tmp_path / "both.npz", "-d", "cpu", "--json")
    assert done.json["outputs"][0]["values"] == (a + b).tolist()


def test_an_array_saved_without_a_name_is_the_only_input_s(
    command: Command, scale_model: Path, tmp_path: Path, image: Array
) -> None:
    np.savez(tmp_path / "one.npz", image)
    done = command("run", scale_model, tmp_path / "one.npz", "-d", "cpu", "--json")
    assert np.array(done.json["outputs"][0]["values"]) == pytest.approx(scores_of(image), rel=1e-5)


def test_files_may_follow_the_model(command: Command, scale_model: Path, tmp_path: Path) -> None:
    for value in (0, 255):
        Image.fromarray(np.full((4, 4), value, np.uint8)).save(tmp_path / f"{value}.png")
    paths = [tmp_path / "0.png", tmp_path / "255.png"]
    done = command("run", scale_model, *paths, "-d", "cpu", "--scale", "255", "--json")
    assert [np.max(each) for each in done.json["outputs"][1]["values"]] == [0, 510]


@pytest.mark.parametrize("kind", ["png", "npy", "npz", "pb"])
def test_the_standard_input_is_told_by_its_first_bytes(
    command: Command, scale_model: Path, monkeypatch: pytest.MonkeyPatch, kind: str
) -> None:
    from onnx import numpy_helper

    value, file = np.zeros((1, 1, 4, 4), np.float32), io.BytesIO()
    if kind == "png":
        Image.fromarray(np.zeros((4, 4), np.uint8)).save(file, "png")
    elif kind == "npy":
        np.save(file, value)
    elif kind == "npz":
        np.savez(file, image=value)
    else:
        file.write(numpy_helper.from_array(value).SerializeToString())
    monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(file.getvalue())))
    done = command("run", scale_model, "-", "-d", "cpu", "--json")
    assert done.code == 0, done.err
    assert done.json["outputs"][0]["values"] == [[0, 0, 0]]


@pytest.mark.parametrize(("data", "said"), [(b"", "is empty"), (b"words", "neither a picture nor")])
def test_what_comes_on_the_standard_input_and_cannot_be_read(
    command: Command, scale_model: Path, monkeypatch: pytest.MonkeyPatch, data: bytes, said: str
) -> None:
    monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(data)))
    done = command("run", scale_model, "-i", "image=-", "-d", "cpu")
    assert done.code in (1, 2) and "the standard input" in done.err and said in done.err


def test_tensor_files_are_read(command: Command, sum_model: Path, tmp_path: Path) -> None:
    from onnx import numpy_helper

    a, b = np.arange(4).reshape(2, 2), np.array([5, -7])
    for name, value in (("a", a), ("b", b)):
        (tmp_path / f"{name}.pb").write_bytes(numpy_helper.from_array(value, name).SerializeToString())
    words = ("-i", f"a={tmp_path / 'a.pb'}", "-i", f"b={tmp_path / 'b.pb'}")
    done = command("run", sum_model, *words, "-d", "cpu", "--json")
    assert done.json["outputs"][0]["values"] == (a + b).tolist()


def test_random_inputs_fit_given_ones_and_repeat_by_seed(
    command: Command, sum_model: Path, tmp_path: Path
) -> None:
    np.save(tmp_path / "a.npy", np.zeros((2, 5), np.int64))
    words = ["run", sum_model, "-i", f"a={tmp_path / 'a.npy'}", "--random", "-d", "cpu", "--json", "--seed"]
    first, second, other = (command(*words, seed).json["outputs"][0]["values"] for seed in (1, 1, 2))
    assert np.shape(first) == (2, 5)
    assert first == second != other


def test_images_become_a_batch_of_the_input_s_size(
    command: Command, scale_model: Path, tmp_path: Path
) -> None:
    pixels = np.arange(16, dtype=np.uint8).reshape(4, 4) * 16
    Image.fromarray(pixels).save(tmp_path / "small.png")
    flat = np.full((40, 24, 3), 255, np.uint8)
    Image.fromarray(flat).save(tmp_path / "large.png")
    done = command(
        "run", scale_model, "-i", tmp_path / "small.png", "-i", tmp_path / "large.png", "-d", "cpu", "--json"
    )
    doubled = np.array(done.json["outputs"][1]["values"])
    assert doubled.shape == (2, 1, 4, 4)
    assert doubled[0, 0] == pytest.approx(pixels * (2 / 255))
    assert doubled[1, 0] == pytest.approx(np.full((4, 4), 2.0))


def test_mean_and_deviation_are_applied_to_images(
    command: Command, scale_model: Path, tmp_path: Path
) -> None:
    Image.fromarray(np.full((4, 4), 255, np.uint8)).save(tmp_path / "white.png")
    scale = ("--mean", "0.5", "--std", "0.25")
    done = command("run", scale_model, "-i", tmp_path / "white.png", *scale, "-d", "cpu", "--json")
    assert np.array(done.json["outputs"][1]["values"]) == pytest.approx(np.full((1, 1, 4, 4), 4.0))


def test_transparent_places_count_as_black(command: Command, scale_model: Path, tmp_path: Path) -> None:
    pixels = np.full((4, 4, 4), 255, np.uint8)
    pixels[:2, :, 3] = 0
    Image.fromarray(pixels).save(tmp_path / "glass.png")
    done = command("run", scale_model, "-i", tmp_path / "glass.png", "-d", "cpu", "--json")
    doubled = np.array(done.json["outputs"][1]["values"])[0, 0]
    assert doubled.tolist() == [[0.0] * 4] * 2 + [[2.0] * 4] * 2


def test_top_ranks_with_a_softmax_where_scores_are_no_distribution(
    command: Command, scale_model: Path, tmp_path: Path, image: Array
) -> None:
    np.save(tmp_path / "x.npy", image)
    (tmp_path / "labels.txt").write_text("cat\ndog\nfox\n")
    words = ["run", scale_model, "-i", tmp_path / "x.npy", "-d", "cpu", "--top", 2]
    scores = scores_of(image)[0]
    wanted = np.exp(scores) / np.exp(scores).sum()
    ranked = command(*words, "--labels", tmp_path / "labels.txt", "--json").json["top"]
    order = np.argsort(-wanted)
    assert [entry["class"] for entry in ranked["rows"][0]] == [
        ("cat", "dog", "fox")[index] for index in order[:2]
    ]
    assert ranked["rows"][0][0]["probability"] == pytest.approx(wanted[order[0]], rel=1e-5)
    assert ranked["note"] == "softmax of the model's scores"
    plain = command(*words, "--no-softmax", "--json").json["top"]
    assert plain["rows"][0][0]["score"] == pytest.approx(scores.max(), rel=1e-5)
    assert "softmax of the model's scores" in command(*words).out


def test_repeat_times_every_run(command: Command, scale_model: Path) -> None:
    done = command("run", scale_model, "--random", "--dim", "batch=3", "--repeat", 4, "-d", "cpu", "--json")
    assert len(done.json["run_seconds"]) == 4
    assert done.json["outputs"][0]["shape"] == [3, 3]


WRONG_COMMAND_LINES = {
    "no input": ([], 2, ["no value for image", "--random"]),
    "unknown input": (["-i", "picture=x.npy"], 2, ["no input 'picture'", "image"]),
    "missing input file": (["-i", "image=nothing.npy"], 2, ["no file nothing.npy"]),
    "unreadable ending": (["-i", "image=words.txt"], 2, ["cannot read .txt"]),
    "broken array file": (["-i", "image=broken.npy"], 2, ["broken.npy", "not an array file"]),
    "broken image": (["-i", "image=broken.png"], 2, ["broken.png", "cannot be read as an image"]),
    "wrong rank": (["-i", "image=flat.npy"], 2, ["image"]),
    "wrong size": (["-i", "image=wide.npy"], 2, ["image"]),
    "text for numbers": (["-i", "image=text.npy"], 2, ["text.npy", "float32"]),
    "twice": (["-i", "image=flat.npy", "-i", "image=flat.npy"], 2, ["given twice"]),
    "unknown device": (["--random", "-d", "vulkan:99"], 1, ["vulkan:99"]),
    "no device's name": (["--random", "-d", "gpu"], 2, ["gpu"]),
    "unknown precision": (["--random", "--precision", "low"], 2, ["'low'", "'highest', 'high', 'medium'"]),
    "bad dimension": (["--random", "--dim", "batch"], 2, ["NAME=N"]),
    "superscript dimension": (["--random", "--dim", "batch=²"], 2, ["whole number"]),
    "foreign digits": (["--random", "--dim", "batch=٣"], 2, ["whole number"]),
    "absurd dimension": (["--random", "--dim", "batch=99999999999999999999"], 2, ["no tensor is that large"]),
    "endless dimension": (["--random", "--dim", f"batch={'9' * 5000}"], 2, ["no tensor is that large"]),
    "huge dimension": (
        ["--random", "--dim", f"batch={10**17}"],
        2,
        ["image", "any machine has", "--dim"],
    ),
    "large dimension": (["--random", "--dim", f"batch={10**12}"], 2, ["image", "GiB", "are free", "--dim"]),
    "dimension of another size": (
        ["-i", "image=two.npy", "--dim", "batch=3"],
        2,
        ["--dim batch=3", "'image' has 2 there"],
    ),
    "dimension twice": (["--random", "--dim", "batch=2", "--dim", "batch=3"], 2, ["batch is given twice"]),
    "negative seed": (["--random", "--seed", "-1"], 2, ["seed"]),
    "endless mean": (["--random", "--mean", "1e999"], 2, ["--mean", "finite"]),
    "no mean": (["--random", "--std", "nan"], 2, ["--std", "finite"]),
    "nothing behind the name": (["-i", "image="], 2, ["-i image=", "missing"]),
    "array of another name": (["-i", "named.npz"], 2, ["'picture'", "no input", "image"]),
    "array too many": (["-i", "more.npz"], 2, ["'label'", "no input", "image"]),
    "standard input twice": (["-", "-i", "image=-"], 2, ["standard input", "one input only"]),
    "surplus labels": (["--random", "--top", "1", "--labels", "four.txt"], 2, ["4 labels", "3 classes"]),
    "unknown fit": (["--random", "--fit", "squeeze"], 2, ["--fit", "'squeeze'", "'stretch', 'crop', 'pad'"]),
    "edge without crop": (["--random", "--edge", "8"], 2, ["--edge", "--fit crop"]),
    "no scale": (["--random", "--scale", "0"], 2, ["--scale 0"]),
    "labels in a folder": (["--random", "--top", "1", "--labels", "folder"], 2, ["folder is a directory"]),
    "no labels": (["--random", "--top", "1", "--labels", "none"], 2, ["no file none"]),
    "folder as input": (["-i", "folder.npy"], 2, ["folder.npy is a directory"]),
    "empty array file": (["-i", "empty.npy"], 2, ["empty.npy", "not an array file"]),
    "empty archive": (["-i", "empty.npz"], 2, ["empty.npz", "not an array file"]),
    "no array file": (["-i", "words.npy"], 2, ["words.npy", "not an array file"]),
    "cut archive": (["-i", "cut.npz"], 2, ["cut.npz", "not an array file"]),
    "damaged archive": (["-i", "damaged.npz"], 2, ["damaged.npz", "'image' cannot be read"]),
    "damaged compression": (["-i", "packed.npz"], 2, ["packed.npz", "'image' cannot be read"]),
    "archive of others": (["-i", "others.npz"], 2, ["others.npz", "a, b"]),
    "pickled": (["-i", "pickled.npy"], 2, ["pickled.npy", "not an array file"]),
    "header of terabytes": (["-i", "huge.npy"], 2, ["huge.npy", "not an array file"]),
    "output in a file": (["--random", "-o", "words.txt"], 2, ["words.txt"]),
    "unknown dimension": (["--random", "--dim", "rows=2"], 2, ["rows", "batch"]),
    "bad repeat": (["--random", "--repeat", "0"], 2, ["repeat"]),
    "unknown option": (["--randon"], 2, ["--randon"]),
    "labels without top": (["--random", "--labels", "words.txt"], 2, ["--top"]),
    "bad mean": (["--random", "--mean", "a,b"], 2, ["--mean"]),
}


@pytest.mark.parametrize("name", WRONG_COMMAND_LINES)
def test_wrong_command_lines_say_what_is_wrong(
    command: Command, scale_model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("words.txt").write_text("words")
    Path("broken.npy").write_bytes(b"\x93NUMPY broken")
    Path("broken.png").write_bytes(b"\x89PNG broken")
    np.save("flat.npy", np.zeros((16,), np.float32))
    np.save("wide.npy", np.zeros((1, 1, 4, 5), np.float32))
    np.save("two.npy", np.zeros((2, 1, 4, 4), np.float32))
    np.save("text.npy", np.array([["a"]]))
    Path("folder").mkdir()
    Path("folder.npy").mkdir()
    Path("empty.npy").touch()
    Path("empty.npz").touch()
    Path("words.npy").write_bytes(b"words")
    np.savez("whole.npz", image=np.arange(160, dtype=np.float32).reshape(10, 1, 4, 4))
    whole = Path("whole.npz").read_bytes()
    Path("cut.npz").write_bytes(whole[: len(whole) // 2])
    Path("damaged.npz").write_bytes(whole[:300] + b"damage" + whole[306:])
    np.savez_compressed("packed.npz", image=np.arange(160, dtype=np.float32))
    packed = Path("packed.npz").read_bytes()
    Path("packed.npz").write_bytes(packed[:60] + bytes(40) + packed[100:])
    np.savez("others.npz", a=np.zeros(1), b=np.zeros(1))
    np.savez("named.npz", picture=np.zeros((1, 1, 4, 4), np.float32))
    np.savez("more.npz", image=np.zeros((1, 1, 4, 4), np.float32), label=np.zeros(1))
    Path("four.txt").write_text("a\nb\nc\nd\n\n")
    np.save("pickled.npy", np.array([{}], object))
    with Path("huge.npy").open("wb") as file:
        header = {"descr": "<f4", "fortran_order": False, "shape": (10**6, 10**6)}
        np.lib.format.write_array_header_1_0(file, header)
    words, code, parts = WRONG_COMMAND_LINES[name]
    done = command("run", scale_model, *words)
    assert done.code == code, done
    assert not done.out
    assert "Traceback" not in done.err and "internal error" not in done.err
    for part in parts:
        assert part in done.err


@pytest.mark.parametrize("dtype", [dtypes.INT4, dtypes.UINT4, dtypes.INT2, dtypes.UINT2], ids=str)
def test_types_below_a_byte(command: Command, tmp_path: Path, dtype: dtypes.DType) -> None:
    """Read from wider integers and from packed tensors, written as bytes."""
    from onnx import helper

    sketch = Sketch("copy", opset=25)
    vkml.onnx.save_graph(sketch.finish(sketch.input("x", (5,), dtype)), tmp_path / "copy.onnx")
    numbers = np.array([0, 1, -2, -1, 1] if dtype.kind == "i" else [0, 1, 2, 3, 1])
    np.save(tmp_path / "x.npy", numbers)
    tensor = helper.make_tensor("x", dtype.code, numbers.shape, numbers.tolist())
    (tmp_path / "x.pb").write_bytes(tensor.SerializeToString())
    for name in ("x.npy", "x.pb"):
        done = command("run", tmp_path / "copy.onnx", "-i", tmp_path / name, "-d", "cpu", "--json")
        assert done.code == 0, done.err
        assert done.json["outputs"][0]["values"] == numbers.tolist()
    assert command("run", tmp_path / "copy.onnx", "--random", "-d", "cpu").code == 0
    np.save(tmp_path / "x.npy", numbers + 200)
    done = command("run", tmp_path / "copy.onnx", "-i", tmp_path / "x.npy", "-d", "cpu")
    assert done.code == 2 and dtype.name in done.err


@pytest.mark.parametrize("dtype", [dtypes.BFLOAT16, dtypes.FLOAT8E5M2, dtypes.FLOAT4E2M1], ids=str)
def test_floats_that_numpy_lacks(command: Command, tmp_path: Path, dtype: dtypes.DType) -> None:
    """Read from wider floats, rounded, and from tensors; written as float32, which has all their numbers."""
    from onnx import numpy_helper

    sketch = Sketch("copy", opset=25)
    vkml.onnx.save_graph(sketch.finish(sketch.input("x", (3,), dtype)), tmp_path / "copy.onnx")
    given = np.array([0.1, -1.5, 6])
    np.save(tmp_path / "x.npy", given)
    tensor = numpy_helper.from_array(given.astype(dtype.storage))
    (tmp_path / "x.pb").write_bytes(tensor.SerializeToString())
    for name in ("x.npy", "x.pb"):
        done = command(
            "run",
            tmp_path / "copy.onnx",
            "-i",
            tmp_path / name,
            "-d",
            "cpu",
            "-o",
            tmp_path / "out",
            "--json",
        )
        assert done.code == 0, done.err
        assert done.json["outputs"][0]["type"] == dtype.storage.name
        written = np.load(tmp_path / "out" / "output.npy")
        assert written.dtype == np.float32
        np.testing.assert_array_equal(written, given.astype(dtype.storage).astype(np.float32))
    assert command("run", tmp_path / "copy.onnx", "--random", "-d", "cpu").code == 0
    np.save(tmp_path / "x.npy", given + 1e39)
    done = command("run", tmp_path / "copy.onnx", "-i", tmp_path / "x.npy", "-d", "cpu")
    assert done.code == 2 and dtype.storage.name in done.err


def test_strings_are_written_without_pickling(command: Command, tmp_path: Path) -> None:
    sketch = Sketch("copy")
    vkml.onnx.save_graph(sketch.finish(sketch.input("x", (2,), dtypes.STRING)), tmp_path / "copy.onnx")
    np.save(tmp_path / "x.npy", np.array(["größe", ""]))
    done = command(
        "run", tmp_path / "copy.onnx", "-i", tmp_path / "x.npy", "-d", "cpu", "-o", tmp_path / "out"
    )
    assert done.code == 0, done.err
    assert np.load(tmp_path / "out" / "output.npy").tolist() == ["größe", ""]


def test_long_names_make_short_file_names(command: Command, tmp_path: Path) -> None:
    sketch = Sketch("copy")
    x = sketch.input("x", (1,))
    for end in "ab":
        sketch.output(sketch.node("Relu", x), "ö" * 300 + end, (1,), dtypes.FLOAT32)
    vkml.onnx.save_graph(sketch.finish(), tmp_path / "copy.onnx")
    done = command("run", tmp_path / "copy.onnx", "--random", "-d", "cpu", "-o", tmp_path / "out")
    assert done.code == 0, done.err
    assert len(list((tmp_path / "out").iterdir())) == 2


def test_file_names_differ_by_more_than_their_letters_case(command: Command, tmp_path: Path) -> None:
    """Else one output would overwrite another on file systems that do not tell them apart."""
    sketch = Sketch("copy")
    x = sketch.input("x", (1,))
    names = ["Y", "y", "größe", "GRÖSSE", "gro\u0308ße", "y_2", "a/b", "A_b"]
    for name in names:
        sketch.output(sketch.node("Relu", x), name, (1,), dtypes.FLOAT32)
    vkml.onnx.save_graph(sketch.finish(), tmp_path / "copy.onnx")
    done = command("run", tmp_path / "copy.onnx", "--random", "-d", "cpu", "-o", tmp_path / "out")
    assert done.code == 0, done.err
    written = [path.name for path in (tmp_path / "out").iterdir()]
    alike = {unicodedata.normalize("NFC", name).casefold() for name in written}
    assert len(written) == len(alike) == len(names), written


def test_lossy_conversions_are_refused(command: Command, sum_model: Path, tmp_path: Path) -> None:
    np.save(tmp_path / "a.npy", np.full((2, 2), 1.5))
    np.save(tmp_path / "b.npy", np.array([1.0, 2.0]))
    done = command("run", sum_model, "-i", f"a={tmp_path / 'a.npy'}", "-i", f"b={tmp_path / 'b.npy'}")
    assert done.code == 2
    assert "float64" in done.err and "int64" in done.err


@pytest.mark.parametrize(
    ("given", "dtype"),
    [
        (np.array([-1, 2]), dtypes.UINT64),  # each of these comes back from the other type as it was
        (np.array([2**63, 2], np.uint64), dtypes.INT64),
        (np.array([200, 2], np.uint8), dtypes.INT8),
        (np.array([-1, 2], np.int32), dtypes.UINT32),
        (np.array([1e300, 2]), dtypes.FLOAT32),
        (np.array([70000, 2]), dtypes.FLOAT16),
        (np.array([np.nan, 2]), dtypes.INT32),
        (np.array([2, 1]), dtypes.BOOL),
    ],
    ids=str,
)
def test_numbers_that_the_type_does_not_have_are_refused(
    command: Command, tmp_path: Path, given: np.ndarray[Any, Any], dtype: dtypes.DType
) -> None:
    sketch = Sketch("copy")
    vkml.onnx.save_graph(sketch.finish(sketch.input("x", (2,), dtype)), tmp_path / "copy.onnx")
    np.save(tmp_path / "x.npy", given)
    done = command("run", tmp_path / "copy.onnx", "-i", tmp_path / "x.npy", "-d", "cpu")
    assert done.code == 2, done.out
    assert given.dtype.name in done.err and dtype.numpy_name in done.err


def test_infinities_and_nan_are_numbers_of_every_float(command: Command, tmp_path: Path) -> None:
    sketch = Sketch("copy")
    vkml.onnx.save_graph(sketch.finish(sketch.input("x", (3,), dtypes.FLOAT16)), tmp_path / "copy.onnx")
    np.save(tmp_path / "x.npy", np.array([np.inf, -np.inf, np.nan]))
    done = command(
        "run", tmp_path / "copy.onnx", "-i", tmp_path / "x.npy", "-d", "cpu", "-o", tmp_path / "out"
    )
    assert done.code == 0, done.err
    np.testing.assert_array_equal(np.load(tmp_path / "out" / "output.npy"), [np.inf, -np.inf, np.nan])


def test_images_without_pillow_say_what_to_install(
    command: Command, scale_model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "x.png").write_bytes(b"")
    monkeypatch.setitem(__import__("sys").modules, "PIL", None)
    done = command("run", scale_model, "-i", tmp_path / "x.png", "-d", "cpu")
    assert done.code == 2
    assert "pip install 'vkml[image]'" in done.err


def test_each_value_of_a_sequence_is_an_output(command: Command, tmp_path: Path) -> None:
    text = "g (float[3] x) => (seq(float[n]) parts, float[3] y) { parts = SplitToSequence(x) y = Neg(x) }"
    (tmp_path / "model.onnx").write_bytes(model(text))
    np.save(tmp_path / "x.npy", np.array([1, 2, 3], np.float32))
    done = command(
        "run", tmp_path / "model.onnx", "-i", tmp_path / "x.npy", "-d", "cpu", "--json", "-o", tmp_path / "o"
    )
    names = ["parts[0]", "parts[1]", "parts[2]", "y"]
    assert [output["name"] for output in done.json["outputs"]] == names
    assert [output["values"] for output in done.json["outputs"]] == [[1], [2], [3], [-1, -2, -3]]
    assert np.load(tmp_path / "o" / "parts_1_.npy").tolist() == [2]
    done = command("inspect", tmp_path / "model.onnx")
    assert "sequence(float[n])" in done.out
