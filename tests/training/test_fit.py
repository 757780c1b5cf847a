"""`vkml.fit`: that it does what a loop does, in all its forms, and captures each step once."""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

import vkml
from tests.training.problems import Array, classes, line, perceptron, weights
from vkml import nn, optim
from vkml.errors import InvalidArgument
from vkml.nn import functional as F
from vkml.tensors.captured_program import CapturedProgram


def looped(
    model: nn.Module, batches: list[tuple[Array, Array]], device: str, epochs: int, clip: float | None = None
) -> list[float]:
    """Losses of epochs of a plain loop with AdamW."""
    optimizer = optim.AdamW(model.to(device).parameters(), lr=0.01)
    losses = []
    for _ in range(epochs):
        total = samples = 0.0
        for x, y in batches:
            optimizer.zero_grad()
            loss = F.cross_entropy(model(vkml.tensor(x, device=device)), vkml.tensor(y, device=device))
            loss.backward()
            if clip is not None:
                nn.utils.clip_grad_norm_(model.parameters(), clip)
            optimizer.step()
            total, samples = total + loss.item() * len(x), samples + len(x)
        losses.append(total / samples)
    return losses


def batches_of(x: Array, y: Array, size: int) -> list[tuple[Array, Array]]:
    return [(x[at : at + size], y[at : at + size]) for at in range(0, len(x), size)]


@pytest.mark.parametrize("clip", [None, 0.3])
def test_it_learns_what_a_loop_learns(device_name: str, clip: float | None) -> None:
    data = batches_of(*classes(50), 16)  # the last one has 2
    model, other = perceptron(), perceptron()
    history = vkml.fit(
        model, data, "cross_entropy", "adamw", 4, lr=0.01, device=device_name, clip_norm=clip, progress=False
    )
    assert history.is_captured
    np.testing.assert_allclose(history["loss"], looped(other, data, device_name, 4, clip), rtol=1e-5)
    np.testing.assert_allclose(weights(model), weights(other), rtol=1e-4, atol=1e-6)
    assert {value.device for value in model.parameters()} == {device_name}


def test_steps_that_are_not_captured_are_the_same(device_name: str) -> None:
    found = []
    for jit in (True, False):
        model = perceptron(dropout=0.3)
        history = vkml.fit(
            model, classes(40), "cross_entropy", epochs=3, metrics="accuracy", seed=4, jit=jit,
            batch_size=8, device=device_name, progress=False,
        )  # fmt: skip
        assert history.is_captured is jit
        found.append((history["loss"], history["accuracy"], weights(model)))
    for captured, plain in zip(*found, strict=True):
        np.testing.assert_allclose(captured, plain, rtol=1e-5, atol=1e-6)


def test_each_shape_is_captured_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """A last batch that is shorter costs one capture more, and none in later epochs."""
    made: list[Any] = []
    begin = CapturedProgram.__init__

    def noted(self: Any, function: Any, arguments: Any, *others: Any) -> None:
        made.append((function.__name__, arguments[0].shape[0]))
        begin(self, function, arguments, *others)

    monkeypatch.setattr(CapturedProgram, "__init__", noted)
    vkml.fit(
        perceptron(), classes(52), "cross_entropy", "sgd", 6, lr=0.1, batch_size=16,
        metrics=["accuracy", "f1"], validation=classes(20), progress=False, clip_norm=1.0,
        scheduler=lambda optimizer: optim.lr_scheduler.ExponentialLR(optimizer, 0.9),
    )  # fmt: skip
    assert sorted(made) == [("_judge", 4), ("_judge", 16), ("_learn", 4), ("_learn", 16)]


class Looking(nn.Module):
    """A layer that looks at its result, which no capture can."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.Linear(6, 3)

    def forward(self, x: vkml.Tensor) -> vkml.Tensor:
        made: vkml.Tensor = self.inner(x)
        return made * 2 if made.sum().item() > 0 else made


def test_what_cannot_be_captured_runs_with_one_warning(device_name: str) -> None:
    with pytest.warns(UserWarning, match="not captured") as seen:
        history = vkml.fit(
            Looking(), classes(64), "cross_entropy", epochs=3, lr=0.05, batch_size=16, device=device_name,
            progress=False,
        )  # fmt: skip
    assert not history.is_captured
    assert len([one for one in seen if "not captured" in str(one.message)]) == 1
    assert history["loss"][-1] < history["loss"][0]


def test_accumulated_gradients_are_those_of_the_large_batch(device_name: str) -> None:
    found = []
    for size, accumulate in ((24, 1), (8, 3)):
        model = perceptron()
        counted = Counted()
        # 60 samples: the last step is of 12, of which the small batches have 8 and 4.
        vkml.fit(
            model, classes(60), "cross_entropy", "sgd", 2, lr=0.5, batch_size=size, shuffle=False,
            accumulate=accumulate, device=device_name, progress=False, callbacks=counted,
        )  # fmt: skip
        found.append((counted.updates, weights(model)))
    assert found[0][0] == found[1][0] == 6
    np.testing.assert_allclose(found[0][1], found[1][1], rtol=1e-4, atol=1e-6)


class Counted(vkml.training.Callback):
    """Notes how many steps the optimizer made."""

    updates = 0

    def on_update_end(self, trainer: vkml.training.Trainer) -> None:
        self.updates += 1
        assert trainer.updates == self.updates


@pytest.mark.parametrize("optimizer", ["adam", optim.Adam, lambda params, lr: optim.Adam(params, lr=lr)])
def test_optimizers_by_name_class_and_function(optimizer: Any) -> None:
    model = perceptron()
    vkml.fit(model, classes(32), "cross_entropy", optimizer, 1, lr=0.02, shuffle=False, progress=False)
    other = perceptron()
    made = optim.Adam(other.parameters(), lr=0.02)
    vkml.fit(other, classes(32), nn.CrossEntropyLoss(), made, 1, shuffle=False, progress=False)
    np.testing.assert_array_equal(weights(model), weights(other))


def test_losses_by_name_join_targets_that_pytorch_would_broadcast() -> None:
    x, y = line(64)
    losses = []
    for target in (y, y[:, 0]):
        history = vkml.fit(
            Line(), (x, target), "mse", "sgd", 30, lr=0.1, metrics=["mae", "r2"], seed=0, progress=False
        )
        losses.append(history["loss"])
        assert history["r2"][-1] > 0.999
    assert losses[0] == losses[1] and losses[0][-1] < 1e-3
    with pytest.raises(InvalidArgument, match=r"\[32, 1\].*\[32, 2\]"):
        vkml.fit(Line(), (x, np.zeros((64, 2), np.float32)), "mse", progress=False)


def Line() -> nn.Module:
    vkml.manual_seed(2)
    return nn.Linear(4, 1)


def test_binary_targets_may_be_integers() -> None:
    x, y = classes(200, 2)
    history = vkml.fit(
        nn.Linear(6, 1),
        (x, y),
        "bce_with_logits",
        "adam",
        30,
        lr=0.05,
        metrics="accuracy",
        seed=1,
        progress=False,
    )
    assert history["accuracy"][-1] > 0.95


def test_lbfgs_closes_over_its_losses() -> None:
    history = vkml.fit(
        Line(), [line(64)], "mse", lambda params: optim.LBFGS(params, lr=0.5, max_iter=10), 3, progress=False,
        jit=False, metrics="mae",
    )  # fmt: skip
    assert history["loss"][-1] < 1e-4 < history["loss"][0]


def test_inputs_may_be_several_and_named() -> None:
    class Two(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer = nn.Linear(4, 1)

        def forward(self, left: vkml.Tensor, right: vkml.Tensor) -> vkml.Tensor:
            made: vkml.Tensor = self.layer(vkml.cat([left, right], 1))
            return made

    x, y = line(32)
    several = ((x[:, :2], x[:, 2:]), y)
    named = ({"right": x[:, 2:], "left": x[:, :2]}, y)
    losses = []
    for data in (several, named):
        vkml.manual_seed(0)
        losses.append(vkml.fit(Two(), data, "mse", epochs=2, shuffle=False, progress=False)["loss"])
    assert losses[0] == losses[1]


def test_the_same_seed_is_the_same_training(device_name: str) -> None:
    runs = []
    for seed in (3, 3, 4):
        model = perceptron(dropout=0.5)
        history = vkml.fit(
            model, classes(40), "cross_entropy", epochs=2, seed=seed, batch_size=8, validation=0.25,
            device=device_name, progress=False,
        )  # fmt: skip
        runs.append((history["val_loss"], weights(model).tolist()))
    assert runs[0] == runs[1] != runs[2]


def test_orders_differ_from_epoch_to_epoch_and_are_whole() -> None:
    seen: list[list[float]] = []

    def noted(output: vkml.Tensor, target: vkml.Tensor) -> vkml.Tensor:
        seen.append(target[:, 0].tolist())
        return F.mse_loss(output, target)

    x, y = line(24)
    vkml.fit(Line(), (x, y), noted, epochs=2, batch_size=8, jit=False, progress=False, seed=0)
    first, second = seen[0] + seen[1] + seen[2], seen[3] + seen[4] + seen[5]
    assert first != second and sorted(first) == sorted(second) == sorted(y[:, 0].tolist())


def test_a_share_is_held_out() -> None:
    x, y = line(100)
    judged: list[float] = []

    class Noted(vkml.training.Metric):
        def observe(self, output: Any, target: Any) -> None:
            judged.extend(target[:, 0].tolist())

        def value(self) -> float:
            return float(len(judged))

    history = vkml.fit(
        Line(), (x, y), "mse", epochs=1, metrics=Noted("seen"), validation=0.2, jit=False, progress=False
    )
    assert len(judged) == 100 and sorted(judged) == sorted(y[:, 0].tolist())
    assert history["val_seen"] == [100.0]
    for share in (0.001, 0.999):
        with pytest.raises(InvalidArgument, match="leaves"):
            vkml.fit(Line(), (x, y), "mse", validation=share, progress=False)


def test_validation_leaves_the_model_as_it_is(device_name: str) -> None:
    models = []
    for validation in (None, classes(30, seed=8)):
        vkml.manual_seed(0)
        model = nn.Sequential(nn.Linear(6, 8), nn.BatchNorm1d(8), nn.ReLU(), nn.Linear(8, 3))
        history = vkml.fit(
            model, classes(48), "cross_entropy", epochs=2, seed=0, validation=validation, device=device_name,
            progress=False,
        )  # fmt: skip
        assert model.training
        models.append(weights(model))
        if validation is not None:
            found = vkml.training.evaluate(model, validation, "cross_entropy", metrics="accuracy")
            assert found["loss"] == pytest.approx(history["val_loss"][-1], rel=1e-6)
            assert set(found) == {"loss", "accuracy"}
    np.testing.assert_array_equal(*models)


def test_plateaus_and_schedules_of_steps() -> None:
    model = Line()
    optimizer = optim.SGD(model.parameters(), lr=1.0)
    schedule = optim.lr_scheduler.OneCycleLR(optimizer, 0.1, total_steps=12)
    rates = vkml.fit(model, line(64), "mse", optimizer, 3, batch_size=16, scheduler=schedule, progress=False)[
        "lr"
    ]
    other = optim.SGD(Line().parameters(), lr=1.0)
    wanted = optim.lr_scheduler.OneCycleLR(other, 0.1, total_steps=12)
    steps = []
    for _ in range(11):
        with warnings.catch_warnings(action="ignore"):
            wanted.step()
        steps.append(other.param_groups[0]["lr"])
    assert rates[:2] == pytest.approx([steps[3], steps[7]])

    plateau = vkml.training.LRSchedule(
        lambda optimizer: optim.lr_scheduler.ReduceLROnPlateau(optimizer, patience=0, threshold=1e9),
        monitor="loss",
    )
    history = vkml.fit(Line(), line(32), "mse", "sgd", 4, lr=0.1, scheduler=plateau, progress=False)
    assert history["lr"] == pytest.approx([0.1, 0.01, 0.001, 0.0001])


def test_precision_is_for_this_training_alone() -> None:
    before = vkml.get_float32_matmul_precision()
    seen: list[Any] = []

    def noted(output: vkml.Tensor, target: vkml.Tensor) -> vkml.Tensor:
        seen.append((output.dtype, vkml.get_float32_matmul_precision()))
        return F.cross_entropy(output, target)

    for precision in ("highest", "bfloat16", "float16"):
        model = perceptron()
        history = vkml.fit(
            model, classes(96), noted, "adamw", 3, lr=0.02, precision=precision, progress=False, jit=False
        )
        assert history["loss"][-1] < history["loss"][0]
        assert {value.dtype for value in model.parameters()} == {vkml.float32}
    assert vkml.get_float32_matmul_precision() == before
    assert list(dict.fromkeys(seen)) == [
        (vkml.float32, "highest"), (vkml.bfloat16, before), (vkml.float16, before)
    ]  # fmt: skip


def test_batches_may_be_endless() -> None:
    def endless() -> Iterator[tuple[Array, Array]]:
        while True:
            yield line(8)

    history = vkml.fit(Line(), endless(), "mse", epochs=3, steps_per_epoch=4, progress=False)
    assert len(history) == 3
    with pytest.raises(InvalidArgument, match=r"epoch 2.*iterator"):
        vkml.fit(Line(), iter([line(8)]), "mse", epochs=2, progress=False)


def test_datasets_and_their_loaders(device_name: str) -> None:
    """A dataset is loaded in batches; a share of it is held out; loaders may put batches on the device."""
    data = vkml.data.TensorDataset(*(vkml.tensor(part) for part in classes(60)))
    given = {"epochs": 3, "lr": 0.05, "device": device_name, "progress": False, "seed": 0}
    history = vkml.fit(perceptron(), data, "cross_entropy", batch_size=8, validation=0.2, **given)
    assert history["loss"][-1] < history["loss"][0] and len(history["val_loss"]) == 3
    assert history.is_captured
    losses = []
    for place in (None, device_name):
        vkml.manual_seed(3)
        loader = vkml.data.DataLoader(data, 8, shuffle=True, num_workers=2, device=place)
        losses.append(vkml.fit(perceptron(), loader, "cross_entropy", **given)["loss"])
    np.testing.assert_allclose(losses[0], losses[1], rtol=1e-5)
    with pytest.raises(InvalidArgument, match="leaves"):
        vkml.fit(perceptron(), data, "cross_entropy", validation=0.001, **given)


def test_a_model_is_judged_by_all_kinds_of_data() -> None:
    """Items of a dataset are no batches; what cannot be gone through is an error that says so."""
    arrays, model = classes(60), perceptron()
    data = vkml.data.TensorDataset(*(vkml.tensor(part) for part in arrays))
    wanted = vkml.training.evaluate(model, arrays, "cross_entropy", metrics="accuracy")
    for given in (data, vkml.data.DataLoader(data, 7)):
        found = vkml.training.evaluate(model, given, "cross_entropy", metrics="accuracy")
        assert found == pytest.approx(wanted, rel=1e-5)
    with pytest.raises(InvalidArgument, match="batches that can be gone through"):
        vkml.training.evaluate(model, 3, "cross_entropy")


def test_arrays_of_float64_come_in_the_models_type() -> None:
    x, y = line(16)
    history = vkml.fit(
        Line(), [(x.astype(np.float64), y.astype(np.float64))], "mse", epochs=1, progress=False
    )
    model = Line()
    assert history["loss"] == vkml.fit(model, [(x, y)], "mse", epochs=1, progress=False)["loss"]
    assert {value.dtype for value in model.parameters()} == {vkml.float32}


def test_lists_and_tensors_are_data_too() -> None:
    x, y = line(16)
    losses = [
        vkml.fit(Line(), data, "mse", epochs=2, shuffle=False, progress=False)["loss"]
        for data in (
            (x, y), (vkml.tensor(x), vkml.tensor(y)), [(x, y)], [[vkml.tensor(x), vkml.tensor(y)]],
            ((x, y),),
        )
    ]  # fmt: skip
    assert all(one == losses[0] for one in losses)


@pytest.mark.parametrize(
    ("named", "said"),
    [
        ({"loss": "crossentropy"}, "did you mean 'cross_entropy'"),
        ({"optimizer": "rmsprob"}, "did you mean 'rmsprop'"),
        ({"metrics": "acuracy"}, "did you mean 'accuracy'"),
        ({"metrics": ["mae", "mae"]}, "two columns 'mae'"),
        ({"epochs": 0}, "epochs is 0"),
        ({"accumulate": 0}, "accumulate is 0"),
        ({"batch_size": 0}, "batch_size is 0"),
        ({"precision": "float8"}, "no precision 'float8'"),
        ({"callbacks": [print]}, "callbacks are"),
        ({"data": 3}, "not int"),
        ({"data": [np.ones((2, 4), np.float32)]}, "pair of inputs and target"),
        ({"data": (np.ones((2, 4)), np.ones((3, 1)))}, r"\[2, 3\]"),
        ({"data": (np.ones((0, 4)), np.ones((0, 1)))}, "no samples"),
        ({"data": []}, "no batch"),
        ({"validation": []}, "validation data gave no batch"),
        ({"validation": 0.5, "data": [line(4)]}, "holds samples of arrays or of a dataset out"),
        ({"resume": True}, "Checkpoint among callbacks"),
        ({"model": nn.Flatten()}, "nothing to train"),
        ({"model": print}, "nn.Module"),
        ({"scheduler": lambda optimizer: 3}, "lr_scheduler"),
        ({"optimizer": optim.SGD([vkml.zeros(1, requires_grad=True)], lr=1.0), "lr": 0.1}, "made already"),
    ],
)  # fmt: skip
def test_arguments_that_cannot_be_meant(named: dict[str, Any], said: str) -> None:
    arguments = {"model": Line(), "data": line(8), "loss": "mse", "progress": False, **named}
    with pytest.raises(InvalidArgument, match=said):
        vkml.fit(**arguments)
