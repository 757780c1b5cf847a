"""`python -m benchmarks --against`: which peers are meant."""

from __future__ import annotations

import pytest

from benchmarks.__main__ import rivals


def test_names_and_beginnings_of_names() -> None:
    assert rivals(["ort-cuda", "ncnn"]) == [
        "vkml",
        "vkml-highest",
        "ort-cuda",
        "ncnn-vulkan",
        "ncnn-vulkan-fp32",
    ]
    assert rivals(["torch"]) == ["vkml", "vkml-highest", "torch-cpu", "torch-cuda", "torch-cuda-graph"]
    assert rivals(["vkml"]) == ["vkml", "vkml-highest"]


def test_unknown_names() -> None:
    with pytest.raises(SystemExit, match="no peer is called 'tensorrt'"):
        rivals(["tensorrt"])
