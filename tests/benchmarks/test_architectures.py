"""The benchmark of exported networks: what it exports is kept, sizes that grow come in turn."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from benchmarks.architectures import catalogue
from benchmarks.architectures.__main__ import Cycled, by_numpy, least_ratio
from benchmarks.measure import Errors, Feed, Measured, measure
from tests.benchmarks.test_measure import MadeUpPeer


def feeds(count: int) -> list[Feed]:
    return [{"x": np.full(2, at + 1.0)} for at in range(count)]


def test_feeds_come_in_turn_after_the_first_which_is_compared() -> None:
    ready = Cycled(MadeUpPeer("a", []), feeds(3)).prepare("")
    seen = [ready.run({})[0][0] for _ in range(6)]
    assert seen == [1, 1, 1, 2, 3, 1], "measure loads with one run and compares another"
    first, second = measure("", {}, [Cycled(MadeUpPeer(name, []), feeds(3)) for name in "ab"], 0.01)
    assert first.errors == second.errors == Errors(0, 0)


def test_the_ratio_is_of_the_shortest_runs() -> None:
    assert least_ratio(Measured("a", runs=[2.0, 9.0]), Measured("b", runs=[7.0, 3.0, 8.0])) == 1.5


def test_networks_are_exported_once_for_a_state_of_their_sources(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made: list[Path] = []

    def export(architecture: catalogue.Architecture, path: Path) -> None:
        made.append(path)
        path.write_bytes(b"model")
        arrays = {f"{at}/{name}": value for at, feed in enumerate(feeds(2)) for name, value in feed.items()}
        np.savez(path.with_suffix(".npz"), **arrays)

    monkeypatch.setenv("VKML_BENCHMARK_DIR", str(tmp_path / "kept"))
    monkeypatch.setattr(catalogue, "_export", export)
    for _ in range(2):
        path, found = catalogue.files_of("tagger (LSTM, GRU)")
        assert path.read_bytes() == b"model"
        assert [feed["x"][0] for feed in found] == [1, 2]
    assert made == [path]


def test_networks_lie_in_modules_that_are_there() -> None:
    folder = Path(catalogue.__file__).parent
    for architecture in catalogue.ARCHITECTURES.values():
        module, _, kind = architecture.module.partition(".")
        assert f"class {kind}(" in (folder / f"{module}.py").read_text()


def test_networks_of_libraries_are_known_by_names_of_their_own() -> None:
    assert not catalogue.ARCHITECTURES.keys() & catalogue.LIBRARIES.keys()
    stems = {"".join(letter if letter.isalnum() else "_" for letter in name) for name in catalogue.ALL}
    assert len(stems) == len(catalogue.ALL), "each has a file of its own"
    for network in catalogue.LIBRARIES.values():
        assert network.make is not None and network.names


def test_nodes_without_a_kernel_are_named(tmp_path: Path) -> None:
    import vkml.onnx
    from benchmarks.models import Network
    from vkml.ir import dtypes

    net = Network("odd")
    net.output(net.node("Det", net.node("Relu", net.input("x", (3, 3)))), "y", (), dtypes.FLOAT32)
    path = tmp_path / "odd.onnx"
    vkml.onnx.save_graph(net.finish(), path)
    assert by_numpy(path, {"x": np.eye(3, dtype=np.float32)}, "cpu") == ["Det"]
