"""Training on several devices is training on one with the same batches."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import vkml
from tests.nn.parallel.models import PAIRS, batches, cnn, mlp, pair_of, require_equal, trained
from vkml import Tensor, nn
from vkml.nn import DataParallel
from vkml.tracing.evaluation import Program
from vkml.vulkan import Device


@pytest.mark.parametrize("is_captured", [False, True])
@pytest.mark.parametrize("pair", PAIRS)
def test_losses_are_those_of_one_device(pair: str, is_captured: bool) -> None:
    devices = pair_of(pair)
    data = batches((13, 10))
    model = DataParallel(mlp().to(devices[0]), devices)
    found = trained(model, data, is_captured, look=lambda: require_equal(model))
    np.testing.assert_allclose(found, trained(mlp(), data, False), rtol=1e-6)


@pytest.mark.parametrize("is_captured", [False, True])
@pytest.mark.parametrize("pair", ["gpus", "gpu and cpu"])
def test_losses_of_convolutions(pair: str, is_captured: bool) -> None:
    devices = pair_of(pair)
    data = batches((6, 1, 8, 8))
    model = DataParallel(cnn().to(devices[0]), devices, shares=[2, 1])
    found = trained(model, data, is_captured, look=lambda: require_equal(model), lr=0.05, momentum=0.9)
    np.testing.assert_allclose(found, trained(cnn(), data, False, lr=0.05, momentum=0.9), rtol=1e-6)


def test_three_devices_and_an_optimizer_that_divides() -> None:
    """What devices round otherwise (Adam's root and division) is computed on one of them alone."""
    devices = [*pair_of("gpus"), "cpu"]
    data = batches((13, 10), 12)
    model = DataParallel(mlp().to(devices[0]), devices, shares=[0.5, 0.2, 0.3])
    optimizer = vkml.optim.AdamW
    found = trained(model, data, True, optimizer, lambda: require_equal(model), lr=0.01)
    np.testing.assert_allclose(found, trained(mlp(), data, False, optimizer, lr=0.01), rtol=1e-5)


@pytest.mark.parametrize("is_captured", [False, True])
def test_batches_of_any_size(is_captured: bool) -> None:
    """The last batch is smaller, one sample is fewer than there are devices."""
    devices = pair_of("gpu and cpu")
    data = [pair for rows in (7, 7, 7, 3, 1, 7, 1, 3) for pair in batches((rows, 10), 1, rows)]
    model = DataParallel(mlp().to(devices[0]), devices)
    found = trained(model, data, is_captured)
    np.testing.assert_allclose(found, trained(mlp(), data, False), rtol=1e-6)
    require_equal(model)


def test_all_that_a_module_takes_and_makes() -> None:
    devices = pair_of("gpu and cpu")

    class Model(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.weight = nn.Parameter(vkml.ones(2))

        def forward(self, pair: Any, *, scale: float, more: Any) -> Any:
            x, y = pair
            return {"sum": x + y * self.weight, "more": (None, more["z"] * scale), "loss": x.sum()}

    x = np.arange(6, dtype=np.float32).reshape(3, 2)
    model = DataParallel(Model().to(devices[0]), devices, output_device="cpu")
    found = model((vkml.tensor(x), vkml.ones(3, 2)), scale=3.0, more={"z": vkml.tensor([1.0, 2.0, 3.0])})
    assert found["sum"].device == "cpu" and found["sum"].tolist() == (x + 1).tolist()
    assert found["loss"].tolist() == [6.0, 9.0]
    assert found["more"][0] is None and found["more"][1].tolist() == [3.0, 6.0, 9.0]


def test_results_that_cannot_be_joined() -> None:
    devices = pair_of("gpu and cpu")

    class Counting(nn.Module):
        def forward(self, x: Tensor) -> int:
            return len(x)

    model = DataParallel(Counting(), devices)
    assert model(vkml.ones(4, 2)) == 2
    with pytest.raises(TypeError, match="differ from device to device"):
        model(vkml.ones(3, 2))


@pytest.mark.parametrize("is_captured", [False, True])
def test_statistics_are_the_first_devices(is_captured: bool) -> None:
    """Each replica normalises by its own share; running statistics are those of the first's."""
    devices = pair_of("gpus")
    rng = np.random.default_rng(3)
    data = [rng.standard_normal((8, 4)).astype(np.float32) * 3 + 1 for _ in range(5)]
    model = DataParallel(nn.BatchNorm1d(4).to(devices[0]), devices)
    alone = nn.BatchNorm1d(4)
    run = vkml.jit(model) if is_captured else model
    for x in data:
        found = run(vkml.tensor(x)).detach().numpy()
        for half in (slice(0, 4), slice(4, 8)):
            wanted = (x[half] - x[half].mean(0)) / np.sqrt(x[half].var(0) + 1e-5)
            np.testing.assert_allclose(found[half], wanted, atol=1e-5)
        alone(vkml.tensor(x[:4]))
    for name in ("running_mean", "running_var"):
        np.testing.assert_allclose(
            model.module.get_buffer(name).numpy(), alone.get_buffer(name).numpy(), rtol=1e-5
        )
    require_equal(model)
    model.eval()
    alone.eval()
    np.testing.assert_allclose(
        model(vkml.tensor(data[0])).detach().numpy(), alone(vkml.tensor(data[0])).detach().numpy(), rtol=1e-5
    )


@pytest.mark.parametrize("is_captured", [False, True])
def test_random_numbers_differ_by_device_and_come_again(is_captured: bool) -> None:
    devices = pair_of("gpus")
    model = DataParallel(nn.Dropout(0.5), devices)
    run = vkml.jit(model) if is_captured else model

    def draws() -> list[list[float]]:
        vkml.manual_seed(7)
        return [run(vkml.ones(2, 64)).tolist() for _ in range(4)]

    first = draws()
    assert first == draws()
    halves = [tuple(row) for drawn in first for row in drawn]
    assert len(set(halves)) == len(halves)


@pytest.mark.parametrize("is_captured", [False, True])
def test_gradients_are_sent_with_the_last_of_several_batches(is_captured: bool) -> None:
    devices = pair_of("gpu and cpu")
    model, alone = DataParallel(mlp().to(devices[0]), devices), mlp()
    data = batches((6, 10), 12)
    losses: list[list[float]] = []
    for one in (model, alone):
        optimizer = vkml.optim.SGD(one.parameters(), lr=0.1)

        def step(*given: Tensor, one: nn.Module = one, optimizer: Any = optimizer) -> Tensor:
            optimizer.zero_grad()
            total = []
            for at in range(0, 6, 2):

                def backward(at: int = at) -> None:
                    made = one(given[at])
                    loss = nn.functional.cross_entropy(made, given[at + 1].to(made.device))
                    loss.backward()
                    total.append(loss)

                if isinstance(one, DataParallel) and at < 4:
                    with one.no_sync():
                        backward()
                else:
                    backward()
            optimizer.step()
            return total[0] + total[1] + total[2]

        run = vkml.jit(step) if is_captured else step
        losses.append(
            [
                run(*(vkml.tensor(x) for pair in data[at : at + 3] for x in pair)).item()
                for at in range(0, 12, 3)
            ]
        )
    np.testing.assert_allclose(losses[0], losses[1], rtol=2e-6)
    require_equal(model)


def test_gradients_that_are_forgotten_are_not_sent() -> None:
    devices = pair_of("gpu and cpu")
    model, x = DataParallel(nn.Linear(2, 1, bias=False).to(devices[0]), devices), vkml.ones(2, 2)
    with model.no_sync():
        model(x * 100).sum().backward()
    assert model.module.weight.grad.tolist() == [[100.0, 100.0]]  # its own share
    model.module.zero_grad()
    model(x).sum().backward()
    assert model.module.weight.grad.tolist() == [[2.0, 2.0]]
    with model.no_sync():
        model(x * 10).sum().backward()
    model(x).sum().backward()
    assert model.module.weight.grad.tolist() == [[24.0, 24.0]]


def test_what_is_written_into_the_module_reaches_the_replicas() -> None:
    """By load_state_dict, between runs of a capture; also a parameter that is put in the place of one."""
    devices = pair_of("gpu and cpu")
    model = DataParallel(nn.Linear(2, 1, bias=False).to(devices[0]), devices)

    def call(x: Tensor) -> Tensor:
        return model(x)

    run = vkml.jit(call)
    for number in range(1, 6):
        state = {"weight": vkml.full((1, 2), float(number))}
        model.load_state_dict(state if number % 2 else {f"module.{name}": x for name, x in state.items()})
        for function in (run, call):
            assert function(vkml.ones(2, 2)).tolist() == [[2.0 * number]] * 2
    model.module.weight = nn.Parameter(vkml.full((1, 2), 9.0, device=devices[0]))
    assert call(vkml.ones(2, 2)).tolist() == [[18.0]] * 2


def test_names_are_the_modules(tmp_path: Path) -> None:
    devices = pair_of("gpu and cpu")
    model, alone = DataParallel(mlp().to(devices[0]), devices), mlp()
    assert list(model.state_dict()) == list(alone.state_dict())
    path = tmp_path / "model.safetensors"
    vkml.save(model.state_dict(), path)
    with vkml.no_grad():
        for parameter in model.parameters():
            parameter.zero_()
    require_equal(model)
    model.load_state_dict(vkml.load(path))
    require_equal(model)
    for name, value in model.state_dict().items():
        assert value.tolist() == alone.state_dict()[name].tolist()


def test_what_does_not_fit_is_refused() -> None:
    devices = pair_of("gpu and cpu")
    with pytest.raises(RuntimeError, match=f"on device {devices[0]}"):
        DataParallel(nn.Linear(2, 2), devices)
    with pytest.raises(ValueError, match="each once"):
        DataParallel(nn.Linear(2, 2), ["cpu", "cpu"])
    with pytest.raises(ValueError, match="there is no device"):
        DataParallel(nn.Linear(2, 2), ["tpu"])
    for shares in ([1], [1, -1], [0, 0], [1, float("nan")]):
        with pytest.raises(ValueError, match="shares"):
            DataParallel(nn.ReLU(), devices, shares=shares)
    with pytest.raises(ValueError, match=r"\[2, 3\] samples"):
        DataParallel(nn.Bilinear(2, 2, 2).to(devices[0]), devices)(vkml.ones(2, 2), vkml.ones(3, 2))


def test_batches_of_the_host_are_cut_without_a_copy(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each device is fed its share; what a caller writes into his array afterwards changes nothing."""
    devices = pair_of("gpu and cpu")
    model = DataParallel(nn.Linear(2, 1, bias=False).to(devices[0]), devices, shares=[3, 1])
    total = vkml.zeros(8, 2)

    @vkml.jit
    def call(x: Tensor) -> Tensor:
        return model(x) + model(total).sum()

    fed: list[list[Any]] = []
    run = Program.run_feeds

    def noting(program: Program, feeds: Any, places: Any) -> Any:
        fed.append(list(feeds))
        return run(program, feeds, places)

    monkeypatch.setattr(Program, "run_feeds", noting)
    weight = model.module.weight.detach().numpy()
    array = np.zeros((8, 2), np.float32)
    results = []
    for number in range(5):
        array[:] = np.arange(16).reshape(8, 2) + number
        total.fill_(number)
        given = vkml.tensor(array / 2) * 2 if number % 2 else array  # computed by the call, or as it is
        results.append((call(given), array @ weight.T + 8 * number * weight.sum()))
    assert len(fed) == 3
    for feeds in fed:
        shapes = {feed.shape for feed in feeds if isinstance(feed, np.ndarray)}
        assert {(2, 2), (6, 2)} <= shapes and (8, 2) not in shapes
    for found, wanted in results:
        np.testing.assert_allclose(found.detach().numpy(), wanted, rtol=1e-5)


@pytest.mark.parametrize("is_captured", [False, True])
def test_a_device_that_fails_says_which_it_is(monkeypatch: pytest.MonkeyPatch, is_captured: bool) -> None:
    """Parameters are then as they were, and a smaller batch trains on."""
    devices = pair_of("gpus")
    layers = nn.Sequential(mlp(dropout=0.1), nn.BatchNorm1d(5), nn.Linear(5, 5))
    model = DataParallel(layers.to(devices[0]), devices)
    optimizer = vkml.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)

    def step(x: Tensor) -> Tensor:
        optimizer.zero_grad()
        loss: Tensor = model(x).pow(2).mean()
        loss.backward()
        optimizer.step()
        return loss

    run = vkml.jit(step) if is_captured else step
    for _ in range(3):
        run(vkml.ones(4, 10)).item()
    state = {name: value.numpy() for name, value in model.state_dict().items() if "tracked" not in name}
    allocate = Device.allocate

    def failing(device: Device, size: int, kind: Any, label: str = "", limit: float | None = None) -> Any:
        is_full = device.info.name == devices[1] and size > 40_000  # of small batches: some 12,000
        return allocate(device, size, kind, label, 1e-12 if is_full else limit)

    monkeypatch.setattr(Device, "allocate", failing)
    for _ in range(2):
        with pytest.raises(vkml.OutOfMemory, match=devices[1]):
            run(vkml.ones(4000, 10)).item()
    for name, value in state.items():
        assert model.state_dict()[name].numpy().tobytes() == value.tobytes()
    assert np.isfinite(run(vkml.ones(4, 10)).item())
    assert model.module[2].weight.detach().numpy().tobytes() != state["2.weight"].tobytes()
    require_equal(model)


def _normalising(momentum: float | None = 0.1) -> nn.Module:
    vkml.manual_seed(3)
    return nn.Sequential(
        nn.Conv2d(1, 4, 3), nn.BatchNorm2d(4, momentum=momentum), nn.ReLU(), nn.Flatten(), nn.Linear(64, 5),
        nn.BatchNorm1d(5, affine=False, momentum=momentum),
    )  # fmt: skip


@pytest.mark.parametrize(("pair", "is_captured"), [("gpus", True), ("gpu and cpu", False)])
def test_statistics_of_the_whole_batch(pair: str, is_captured: bool) -> None:
    """Losses, and running statistics, of one device that has the whole batch."""
    devices = pair_of(pair)
    data = batches((7, 1, 6, 6), 4)
    momentum = None if is_captured else 0.1
    inner = nn.SyncBatchNorm.convert_sync_batchnorm(_normalising(momentum)).to(devices[0])
    model = DataParallel(inner, devices, shares=[2, 1])
    found = trained(model, data, is_captured, look=lambda: require_equal(model))
    alone = _normalising(momentum)
    np.testing.assert_allclose(found, trained(alone, data, False), rtol=1e-4)
    mine, theirs = model.state_dict(), alone.state_dict()
    assert list(mine) == list(theirs)
    for name in theirs:
        if "running" in name or "num_batches" in name:
            np.testing.assert_allclose(mine[name].numpy(), theirs[name].numpy(), rtol=1e-4, atol=1e-6)
    x = vkml.tensor(data[0][0])
    np.testing.assert_allclose(
        model.eval()(x).detach().numpy(), alone.eval()(x).detach().numpy(), rtol=1e-3, atol=1e-4
    )


def test_a_replica_that_fails_takes_the_others_with_it() -> None:
    devices = pair_of("gpu and cpu")

    class Failing(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            if x.device == "cpu":
                raise KeyError("on the second device")
            return x

    model = DataParallel(nn.Sequential(Failing(), nn.SyncBatchNorm(3).to(devices[0])), devices)
    with pytest.raises(KeyError, match="second device"):
        model(vkml.ones(4, 3))

    class Leaving(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.norm = nn.SyncBatchNorm(3)

        def forward(self, x: Tensor) -> Tensor:
            return x if x.device == "cpu" else self.norm(x)

    with pytest.raises(RuntimeError, match="differ in how many"):
        DataParallel(Leaving().to(devices[0]), devices)(vkml.ones(4, 3))


def test_synchronised_normalisation_by_itself() -> None:
    x = vkml.tensor(np.random.default_rng(0).standard_normal((4, 3, 5)).astype(np.float32))
    ours, theirs = nn.SyncBatchNorm(3), nn.BatchNorm1d(3)
    np.testing.assert_array_equal(ours(x).detach().numpy(), theirs(x).detach().numpy())
    converted = nn.SyncBatchNorm.convert_sync_batchnorm(theirs.eval())
    assert isinstance(converted, nn.SyncBatchNorm) and not converted.training
    assert converted.weight is theirs.weight and converted.running_mean is theirs.running_mean
    with pytest.raises(ValueError, match="at least 2D"):
        ours(vkml.ones(3))
    with pytest.raises(ValueError, match="process_group"):
        nn.SyncBatchNorm(3, process_group=object())  # type: ignore[arg-type]
