"""First and second sessions in processes of their own."""

from __future__ import annotations

from pathlib import Path

from benchmarks.cold import ROOT, STAGES, cold
from benchmarks.models import mnist_like
from vkml.onnx import save_graph


def test_what_a_first_and_a_second_session_take(vulkan_device_name: str, tmp_path: Path) -> None:
    model = tmp_path / "model.onnx"
    save_graph(mnist_like(), model)
    first, second = (
        cold(str(model), vulkan_device_name, "high", ROOT / "src", tmp_path / "caches", tmp_path / "bytecode")
        for _ in range(2)
    )
    assert set(first.stages) <= set(STAGES) and sum(first.stages.values()) <= first.total
    assert min(first.stages[stage] for stage in ("import", "device", "lower", "kernels", "upload", "run")) > 0
    assert set(first.busy) == set(first.stages) and 0 < sum(first.busy.values()) < first.total
    assert first.sources >= 3 and first.compiling > 0 and second.sources == 0
    assert first.pipelines == second.pipelines >= first.sources
    assert first.drivers >= first.longest > 0
    entries = [path.parent.name for path in (tmp_path / "caches").rglob("*") if path.is_file()]
    assert "pipelines" in entries  # what the driver compiled is kept, too
    assert first.peaks["run"] >= first.anonymous > 1 << 20
