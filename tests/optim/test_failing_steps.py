"""A step that cannot be computed has not been taken."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import vkml
from vkml import Tensor, nn
from vkml.vulkan import Device


def test_a_batch_that_is_too_large_leaves_no_traces(
    vulkan_device_name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Neither in parameters nor in what the optimizer and BatchNorm remember; the next batch trains."""
    vkml.manual_seed(0)
    model = nn.Sequential(nn.Linear(4, 8), nn.BatchNorm1d(8), nn.Dropout(0.5), nn.Linear(8, 2))
    model.to(vulkan_device_name)
    optimizer = vkml.optim.Adam(model.parameters(), lr=0.1)

    def step(rows: int) -> Tensor:
        optimizer.zero_grad()
        x = vkml.tensor(np.random.default_rng(rows).standard_normal((rows, 4)).astype(np.float32))
        loss: Tensor = model(x.to(vulkan_device_name)).pow(2).mean()
        loss.backward()
        optimizer.step()
        return loss

    def state() -> dict[str, bytes]:
        tensors = {name: value for name, value in model.state_dict().items() if "tracked" not in name}
        for number, held in optimizer.state_dict()["state"].items():
            tensors.update({f"{number}.{name}": value for name, value in held.items()})
        return {name: value.detach().numpy().tobytes() for name, value in tensors.items()}

    step(8)
    before = state()
    allocate = Device.allocate

    def failing(device: Device, size: int, kind: Any, label: str = "", limit: float | None = None) -> Any:
        return allocate(device, size, kind, label, 1e-12 if size > 30_000 else limit)

    monkeypatch.setattr(Device, "allocate", failing)
    for _ in range(2):
        with pytest.raises(vkml.OutOfMemory, match=vulkan_device_name):
            step(4000)
        assert state() == before
    assert np.isfinite(step(8).item())
    after = state()
    assert all(after[name] != before[name] for name in before)
