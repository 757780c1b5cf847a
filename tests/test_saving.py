"""Files of tensors: what comes back, what PyTorch's packages take and give, what is damaged."""

from __future__ import annotations

import json
import os
import pickletools
import subprocess
import sys
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import vkml
from vkml import Tensor, nn, optim
from vkml.errors import InvalidCheckpoint, NoSuchFile

safetensors = pytest.importorskip("safetensors")
TYPES = (
    "float64", "float32", "float16", "bfloat16", "int64", "int32", "int16", "int8", "uint64", "uint32",
    "uint16", "uint8", "bool",
)  # fmt: skip


def _equal(found: Any, wanted: Any) -> None:
    if isinstance(wanted, Tensor | np.ndarray):
        assert type(found) is type(wanted) if isinstance(wanted, np.ndarray) else isinstance(found, Tensor)
        one, other = (x.detach().numpy() if isinstance(x, Tensor) else x for x in (found, wanted))
        assert one.dtype == other.dtype and one.shape == other.shape
        assert one.tobytes() == other.tobytes()
    elif isinstance(wanted, dict):
        assert list(found) == list(wanted)
        for key in wanted:
            _equal(found[key], wanted[key])
    elif isinstance(wanted, list | tuple):
        assert type(found) is type(wanted) and len(found) == len(wanted)
        for one, other in zip(found, wanted, strict=True):
            _equal(one, other)
    else:
        assert type(found) is type(wanted)
        assert found == wanted or (found != found and wanted != wanted)


def test_everything_comes_back(tmp_path: Path, device_name: str) -> None:
    obj = {
        "numbers": [1, -(2**70), 0.1, float("inf"), float("-inf"), float("nan"), True, None, "text\n\u2206"],
        "tuple": (1, (2.5, [])),
        "by number": {0: {"exp_avg": vkml.ones(2, 3, device=device_name)}, 7: {}},
        "keys": {(1, "a"): 1, None: 2, 1.5: 3},
        "arrays": [np.arange(6, dtype=np.int16).reshape(2, 3), np.zeros((0, 4)), np.array(3, np.float32)],
        "dtype": vkml.bfloat16,
        "bytes": b"\x00\xff",
        "list like a tag": ["tensor", "weights"],
        "a.b": vkml.zeros(1),
        "a": {"b": vkml.ones(1)},
        "tensor": vkml.tensor(2.0, device=device_name),
        "pending": vkml.ones(3) * 2 + 1,
        "parameter": nn.Parameter(vkml.ones(2)),
        "": {"": vkml.ones(2)},
    }
    path = tmp_path / "all.safetensors"
    vkml.save(obj, path)
    found = vkml.load(path)
    _equal(found, obj)
    assert not found["parameter"].requires_grad
    assert vkml.load(str(path), device=device_name)["tensor"].device == device_name
    assert sorted(os.listdir(tmp_path)) == ["all.safetensors"]
    for single in (vkml.ones(3), 5, [], "word", {}):
        vkml.save(single, path)
        _equal(vkml.load(path), single)


def test_types_that_numpy_lacks_are_known_to_a_new_process(tmp_path: Path) -> None:
    kinds = [vkml.bfloat16, vkml.float16]
    vkml.save(kinds, tmp_path / "kinds")
    code = "import sys, vkml; from vkml.data import BinaryDataset; print(vkml.load(sys.argv[1])); "
    code += "print(BinaryDataset(sys.argv[1], 'bfloat16', count=1)[0].dtype)"
    done = subprocess.run(
        [sys.executable, "-c", code, str(tmp_path / "kinds")], capture_output=True, text=True
    )
    assert done.stdout.splitlines() == [str(kinds), "bfloat16"], done.stderr


@pytest.mark.parametrize("name", TYPES)
def test_types(tmp_path: Path, name: str) -> None:
    x = vkml.tensor([[0, 1, 3]]).to(getattr(vkml, name))
    vkml.save({"x": x, "views": [x[0, 1:], x.T]}, tmp_path / "x")
    found = vkml.load(tmp_path / "x")
    _equal(found, {"x": x, "views": [x[0, 1:], x.T]})
    assert found["x"].dtype is getattr(vkml, name)


def test_numpy_scalars_and_subclasses(tmp_path: Path) -> None:
    vkml.save({"n": np.float64(0.1), "i": np.int32(3), "c": Counter([1, 1, 2])}, tmp_path / "x")
    _equal(vkml.load(tmp_path / "x"), {"n": 0.1, "i": 3, "c": {1: 2, 2: 1}})


def test_what_cannot_be_saved(tmp_path: Path) -> None:
    path = tmp_path / "x"
    vkml.save([1], path)
    for wrong, words in (
        ({"a": [1, {"act": len}]}, r"builtin_function_or_method at 'a\.1\.act'"),
        ({"a": {1, 2}}, "set at 'a'"),
        (lambda: 1, "function at 'the top'"),
        ({"s": np.array(["a"])}, "hold no str"),
    ):
        with pytest.raises(Exception, match=words) as found:
            vkml.save(wrong, path)
        assert isinstance(found.value, TypeError | vkml.Error), found.value
    assert vkml.load(path) == [1], "the file that there was is gone"
    assert os.listdir(tmp_path) == ["x"]


def test_no_pickle(tmp_path: Path) -> None:
    vkml.save({"a": [vkml.ones(2), 1]}, tmp_path / "x")
    data = (tmp_path / "x").read_bytes()
    size = int.from_bytes(data[:8], "little")
    assert set(json.loads(data[8 : 8 + size])) == {"__metadata__", "a.0"}
    with pytest.raises(ValueError):
        list(pickletools.genops(data))


def _damaged(data: bytes) -> dict[str, bytes]:
    size = int.from_bytes(data[:8], "little")
    flipped = bytearray(data)
    flipped[-3] ^= 0x10
    header = bytearray(data)
    header[12] ^= 0x20
    return {
        "empty": b"",
        "cut in the header": data[: 8 + size // 2],
        "cut in the tensors": data[:-2],
        "too long": data + b"\0\0",
        "a bit of a tensor": bytes(flipped),
        "a bit of the header": bytes(header),
        "zeros": bytes(len(data)),
        "words": b"this is no file of tensors, it only looks long enough to be one",
        "a length beyond all": b"\xff" * 8 + data[8:],
        "half of it zeros": data[: len(data) // 2] + bytes(len(data) - len(data) // 2),
    }


@pytest.mark.parametrize("kind", _damaged(bytes(64)))
def test_damaged_files(tmp_path: Path, kind: str) -> None:
    good, bad = tmp_path / "good", tmp_path / "bad"
    vkml.save({"weights": {"w": vkml.ones(20, 5)}, "epoch": 3}, good)
    bad.write_bytes(_damaged(good.read_bytes())[kind])
    with pytest.raises(InvalidCheckpoint, match=r"bad.*damaged") as found:
        vkml.load(bad)
    if kind == "a bit of a tensor":
        assert "weights.w" in str(found.value) and "checksum" in str(found.value)
    assert vkml.load(good)["epoch"] == 3


@pytest.mark.parametrize("at", ["write", "flush", "rename"])
def test_what_fails_while_it_is_written_leaves_the_one_before(
    tmp_path: Path, at: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "x"
    vkml.save({"n": 1}, path)

    def fails(*_: Any, **__: Any) -> None:
        raise OSError(28, "No space left on device")

    target = {"write": (safetensors.numpy, "save_file"), "flush": (os, "fsync"), "rename": (os, "replace")}[
        at
    ]
    monkeypatch.setattr(*target, fails)
    with pytest.raises(OSError, match="No space"):
        vkml.save({"n": 2}, path)
    monkeypatch.undo()
    assert vkml.load(path) == {"n": 1} and os.listdir(tmp_path) == ["x"]


def test_it_is_flushed_before_it_is_renamed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    order: list[str] = []
    fsync, replace = os.fsync, os.replace
    monkeypatch.setattr(os, "fsync", lambda file: (order.append("fsync"), fsync(file))[1])
    monkeypatch.setattr(os, "replace", lambda *paths: (order.append("replace"), replace(*paths))[1])
    vkml.save([vkml.ones(2)], tmp_path / "x")
    assert order == (["fsync", "replace"] if os.name == "nt" else ["fsync", "replace", "fsync"])


def test_no_such_file(tmp_path: Path) -> None:
    with pytest.raises(NoSuchFile, match="nothing"):
        vkml.load(tmp_path / "nothing")
    with pytest.raises(FileNotFoundError):
        vkml.save(1, tmp_path / "no folder" / "x")


def test_files_of_others(tmp_path: Path) -> None:
    """A plain file of arrays, with types of its own."""
    import ml_dtypes

    arrays = {"b.w": np.ones((2, 3), np.float32), "a": np.ones(3, ml_dtypes.bfloat16)}
    safetensors.numpy.save_file(arrays, tmp_path / "x", metadata={"format": "pt"})
    _equal(vkml.load(tmp_path / "x"), {"a": vkml.tensor(arrays["a"]), "b.w": vkml.tensor(arrays["b.w"])})
    state = nn.Linear(3, 2).state_dict()
    vkml.save(state, tmp_path / "y")
    found = safetensors.numpy.load_file(tmp_path / "y")
    assert set(found) == {"weight", "bias"}
    np.testing.assert_array_equal(found["weight"], state["weight"].numpy())


def _network(module: Any) -> Any:
    return module.Sequential(module.Linear(3, 4), module.Tanh(), module.Linear(4, 2))


def test_torchs_states_both_ways(tmp_path: Path) -> None:
    """Models through torch's own package; optimizers and schedules through files, trained on in the other."""
    torch = pytest.importorskip("torch")
    from safetensors.torch import load_file, save_file

    ours, theirs = _network(nn), _network(torch.nn)
    save_file(theirs.state_dict(), tmp_path / "theirs")
    ours.load_state_dict(vkml.load(tmp_path / "theirs"))

    def trained(module: Any, library: Any, make: Any, optimizer: Any, schedule: Any, steps: int) -> None:
        for number in range(steps):
            optimizer.zero_grad()
            (module(make([[1.0, 2.0, float(number)]])) ** 2).sum().backward()
            optimizer.step()
            schedule.step()

    def made(library: Any, schedules: Any, module: Any) -> tuple[Any, Any]:
        optimizer = library.Adam(module.parameters(), lr=0.1, amsgrad=True)
        return optimizer, schedules.CosineAnnealingLR(optimizer, 10)

    theirs_too, our_two = (
        made(torch.optim, torch.optim.lr_scheduler, theirs),
        made(optim, optim.lr_scheduler, ours),
    )
    trained(theirs, torch, torch.tensor, *theirs_too, 4)
    trained(ours, vkml, vkml.tensor, *our_two, 4)

    def arrays(value: Any) -> Any:
        if isinstance(value, dict):
            return {key: arrays(item) for key, item in value.items()}
        if isinstance(value, list | tuple):
            return type(value)(arrays(item) for item in value)
        return value.numpy() if isinstance(value, torch.Tensor) else value

    def tensors(value: Any) -> Any:
        if isinstance(value, dict):
            return {key: tensors(item) for key, item in value.items()}
        if isinstance(value, list | tuple):
            return type(value)(tensors(item) for item in value)
        return torch.tensor(value.numpy()) if isinstance(value, Tensor) else value

    vkml.save([arrays(part.state_dict()) for part in theirs_too], tmp_path / "their steps")
    vkml.save([part.state_dict() for part in our_two], tmp_path / "our steps")
    save_file({name: x.contiguous() for name, x in theirs.state_dict().items()}, tmp_path / "theirs")
    vkml.save(ours.state_dict(), tmp_path / "ours")

    again, other = _network(nn), _network(torch.nn)
    again.load_state_dict(vkml.load(tmp_path / "theirs"))
    other.load_state_dict(load_file(tmp_path / "ours"))
    ours_again, others = (
        made(optim, optim.lr_scheduler, again),
        made(torch.optim, torch.optim.lr_scheduler, other),
    )
    for part, state in zip(ours_again, vkml.load(tmp_path / "their steps"), strict=True):
        part.load_state_dict(state)
    for part, state in zip(others, tensors(vkml.load(tmp_path / "our steps")), strict=True):
        part.load_state_dict(state)
    trained(again, vkml, vkml.tensor, *ours_again, 4)
    trained(other, torch, torch.tensor, *others, 4)
    for name, value in again.state_dict().items():
        np.testing.assert_allclose(value.numpy(), other.state_dict()[name].numpy(), rtol=1e-4, atol=1e-5)


@pytest.mark.skipif(os.name == "nt", reason="no modes of files")
@pytest.mark.parametrize("mask", [0o022, 0o077])
def test_others_may_read_a_file_as_the_mask_says(tmp_path: Path, mask: int) -> None:
    before = os.umask(mask)
    try:
        vkml.save({"x": vkml.tensor([1.0])}, tmp_path / "file")
    finally:
        os.umask(before)
    assert (tmp_path / "file").stat().st_mode & 0o777 == 0o666 & ~mask
