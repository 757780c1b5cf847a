"""A training that is killed and goes on from its last checkpoint ends as one that is not: bit for bit."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

from tests.patience import patience
from tests.robustness.processes import ROOT

pytest.importorskip("safetensors")
TRAINING = """
    import os, sys
    import numpy as np
    import vkml
    from vkml import nn, optim
    from vkml.data import DataLoader, TensorDataset

    device, folder, steps = sys.argv[1], sys.argv[2], int(sys.argv[3])
    is_captured = sys.argv[4] == "captured"
    checkpoint = os.path.join(folder, "checkpoint.safetensors")
    vkml.manual_seed(5)
    model = nn.Sequential(nn.Linear(6, 16), nn.ReLU(), nn.Dropout(0.2), nn.Linear(16, 3)).to(device)
    optimizer = optim.AdamW(model.parameters(), lr=0.01, amsgrad=True)
    schedule = optim.lr_scheduler.OneCycleLR(optimizer, 0.05, total_steps=steps + 1)
    averaged = optim.swa_utils.AveragedModel(model, multi_avg_fn=optim.swa_utils.get_ema_multi_avg_fn(0.9))
    scaler = vkml.GradScaler(init_scale=1024.0, growth_interval=7)
    rng = np.random.default_rng(1)
    x, y = rng.standard_normal((60, 6), np.float32), rng.integers(0, 3, 60)
    data = TensorDataset(vkml.tensor(x), vkml.tensor(y))
    loader = DataLoader(data, batch_size=8, shuffle=True, num_workers=2)  # 8 batches an epoch, the last short
    parts = {"model": model, "optimizer": optimizer, "schedule": schedule, "mean": averaged, "scaler": scaler}
    parts["loader"] = loader
    done = 0
    if os.path.exists(checkpoint):
        state = vkml.load(checkpoint)
        for name, part in parts.items():
            part.load_state_dict(state[name])
        vkml.set_rng_state(state["random"])
        if device != "cpu":
            vkml.set_rng_state(state["random there"], device)
        done = state["done"]

    def step(x, y):
        optimizer.zero_grad()
        loss = nn.functional.cross_entropy(model(x), y)
        scaler.scale(loss).backward()
        scaler.unscale_(optimizer)
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        scaler.step(optimizer)
        scaler.update()
        averaged.update_parameters(model)
        return loss

    act = vkml.jit(step) if is_captured else step
    print("from", done, flush=True)
    def batches():
        while True:
            yield from loader

    for number, (x, y) in zip(range(done, steps), batches()):
        noise = 0.01 * vkml.randn(len(x), 6)
        act((x + noise).to(device), y.to(device))
        schedule.step()
        state = {name: part.state_dict() for name, part in parts.items()}
        state |= {"done": number + 1, "random": vkml.get_rng_state()}
        if device != "cpu":
            state["random there"] = vkml.get_rng_state(device)
        vkml.save(state, checkpoint)
        print(number + 1, flush=True)
"""
STEPS = 40


def _train(device: str, folder: Path, how: str, kill_after: int | None) -> list[str]:
    """Lines of a training, which is killed as soon as it has said that so many steps are saved."""
    folder.mkdir(exist_ok=True)
    process = subprocess.Popen(
        [sys.executable, "-c", textwrap.dedent(TRAINING), device, str(folder), str(STEPS), how],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        cwd=ROOT,
    )
    lines: list[str] = []
    try:
        assert process.stdout is not None
        for line in process.stdout:
            lines.append(line.strip())
            if kill_after is not None and line.strip() == str(kill_after):
                os.kill(process.pid, signal.SIGKILL)
                break
        _, error = process.communicate(timeout=patience(120))
    finally:
        process.kill()
        process.wait()
    assert process.returncode == (-signal.SIGKILL if kill_after is not None else 0), error
    return lines


@pytest.mark.skipif(os.name != "posix", reason="signals are sent to processes")
@pytest.mark.parametrize("how", ["eager", "captured"])
def test_killed_and_resumed(either_device_name: str, how: str, tmp_path: Path) -> None:
    import vkml

    whole = _train(either_device_name, tmp_path / "whole", how, None)
    assert whole == ["from 0", *map(str, range(1, STEPS + 1))]
    _train(either_device_name, tmp_path / "killed", how, 7)
    second = _train(either_device_name, tmp_path / "killed", how, 23)
    third = _train(either_device_name, tmp_path / "killed", how, None)
    assert int(second[0].split()[1]) >= 7 and int(third[0].split()[1]) >= 23
    found, wanted = (vkml.load(tmp_path / name / "checkpoint.safetensors") for name in ("killed", "whole"))
    assert found["done"] == wanted["done"] == STEPS
    assert found["schedule"] == wanted["schedule"]
    assert found["scaler"] == wanted["scaler"]
    assert found["random"].tolist() == wanted["random"].tolist()
    for part in ("model", "mean"):
        for name, value in wanted[part].items():
            assert found[part][name].numpy().tobytes() == value.numpy().tobytes(), f"{part} {name}"
    for at, state in wanted["optimizer"]["state"].items():
        for name, value in state.items():
            assert found["optimizer"]["state"][at][name].numpy().tobytes() == value.numpy().tobytes(), name
    assert found["random"].tolist() == wanted["random"].tolist()
