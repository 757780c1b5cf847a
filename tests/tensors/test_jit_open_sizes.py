"""Captured functions whose arguments come in many sizes: one capture serves them, and says what each does."""

from __future__ import annotations

import gc
import math
import numbers
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np
import pytest

import vkml
from vkml import Tensor, nn, optim
from vkml.errors import CaptureError, EngineError
from vkml.tensors import captured_program, open_captures
from vkml.tensors.captured_program import CapturedProgram

Array = np.ndarray[Any, Any]
LENGTHS = (4, 4, 5, 6, 7, 9, 7, 16, 3, 2, 33, 8, 5)


@pytest.fixture
def captured(monkeypatch: pytest.MonkeyPatch) -> list[CapturedProgram]:
    """All captures that are made."""
    made: list[CapturedProgram] = []
    first = CapturedProgram.__init__

    def noted(self: CapturedProgram, *arguments: Any) -> None:
        first(self, *arguments)
        made.append(self)

    monkeypatch.setattr(captured_program.CapturedProgram, "__init__", noted)
    return made


@pytest.fixture(autouse=True)
def all_bits() -> Iterator[None]:
    """Of products: plans of open sizes and of known ones may have other kernels, which round otherwise."""
    before = vkml.get_float32_matmul_precision()
    vkml.set_float32_matmul_precision("highest")
    yield
    vkml.set_float32_matmul_precision(before)


def is_open(capture: CapturedProgram) -> bool:
    """Whether a capture is for several sizes."""
    inputs = capture._program.runner._inputs
    return any(not isinstance(size, int) for value in inputs for size in value.tensor.shape or ())


def agree(found: Any, wanted: Any) -> None:
    np.testing.assert_allclose(found, wanted, rtol=2e-4, atol=1e-5)


def compare(
    build: Callable[[str], tuple[Callable[..., Any], list[Tensor]]],
    batches: Sequence[tuple[Array, ...]],
    device: str,
    **named: Any,
) -> None:
    """Runs a captured function and one that is not on the same batches; results and tensors then agree."""

    def run(wrap: Callable[[Any], Any]) -> tuple[list[Any], list[Array]]:
        vkml.manual_seed(3)
        function, states = build(device)
        act = wrap(function)
        found = [act(*[vkml.tensor(x, device=device) for x in batch]) for batch in batches]
        values = [each.numpy() for made in found for each in (made if isinstance(made, tuple) else (made,))]
        return values, [state.detach().numpy() for state in states]

    found, states = run(lambda function: vkml.jit(function, **named))
    wanted, exact = run(lambda function: function)
    for one, other in zip([*found, *states], [*wanted, *exact], strict=True):
        assert one.shape == other.shape
        agree(one, other)


def normal(*shape: int, seed: int = 0) -> Array:
    return np.random.default_rng([*shape, seed]).standard_normal(shape).astype(np.float32)


def labels(*shape: int, classes: int = 3) -> Array:
    return np.random.default_rng(shape).integers(0, classes, shape)


def stepping(
    model: nn.Module, loss_of: Callable[..., Tensor], kind: str = "SGD", **settings: Any
) -> tuple[Callable[..., Any], list[Tensor]]:
    """A training step, and what it writes."""
    parameters = list(model.parameters())
    optimizer = getattr(optim, kind)(parameters, **(settings or {"lr": 0.05}))

    def step(*given: Tensor) -> Tensor:
        optimizer.zero_grad()
        loss = loss_of(model, *given)
        loss.backward()
        optimizer.step()
        return loss

    return step, parameters


LOSSES: dict[str, Callable[..., Tensor]] = {
    "cross entropy": lambda m, x: nn.functional.cross_entropy(m(x), x[:, 0].long().abs() % 3),
    "smoothed labels": lambda m, x: nn.functional.cross_entropy(
        m(x), x[:, 0].long().abs() % 3, label_smoothing=0.1
    ),
    "mean square": lambda m, x: nn.functional.mse_loss(m(x), x[:, :3]),
    "L1": lambda m, x: nn.functional.l1_loss(m(x), x[:, :3]),
    "Huber": lambda m, x: nn.functional.huber_loss(m(x), x[:, :3]),
    "BCE": lambda m, x: nn.functional.binary_cross_entropy_with_logits(m(x), x[:, :3].sigmoid()),
    "divergence": lambda m, x: nn.functional.kl_div(
        m(x).log_softmax(-1), x[:, :3].softmax(-1), reduction="batchmean"
    ),
    "sum": lambda m, x: (m(x) ** 2).sum() / x.shape[0],
    "mean by axis": lambda m, x: m(x).mean(0).square().sum() + m(x).var(0).sum(),
}


@pytest.mark.parametrize("name", LOSSES)
def test_losses_and_their_gradients(name: str, captured: list[CapturedProgram]) -> None:
    def build(device: str) -> tuple[Callable[..., Any], list[Tensor]]:
        model = nn.Sequential(nn.Linear(5, 8), nn.Tanh(), nn.LayerNorm(8), nn.Linear(8, 3)).to(device)
        return stepping(model, LOSSES[name])

    compare(build, [(normal(size, 5, seed=at),) for at, size in enumerate(LENGTHS)], "cpu")
    assert [is_open(capture) for capture in captured] == [False, True]


@pytest.mark.parametrize(
    ("kind", "settings"),
    [
        ("SGD", {"lr": 0.1, "momentum": 0.9, "nesterov": True}),
        ("Adam", {"lr": 0.01}),
        ("AdamW", {"lr": 0.01, "weight_decay": 0.1}),
        ("RMSprop", {"lr": 0.01}),
        ("Adagrad", {"lr": 0.1}),
    ],
)
def test_optimizers(
    kind: str, settings: dict[str, Any], either_device_name: str, captured: list[CapturedProgram]
) -> None:
    def build(device: str) -> tuple[Callable[..., Any], list[Tensor]]:
        model = nn.Linear(5, 3).to(device)

        def loss_of(model: nn.Module, x: Tensor) -> Tensor:
            return model(x).square().mean()

        return stepping(model, loss_of, kind, **settings)

    compare(build, [(normal(size, 5, seed=at),) for at, size in enumerate(LENGTHS)], either_device_name)
    assert [is_open(capture) for capture in captured] == [False, True]


def test_a_language_model(either_device_name: str, captured: list[CapturedProgram]) -> None:
    """Batch and length vary, and the mask that hides what comes later with them."""

    def build(device: str) -> tuple[Callable[..., Any], list[Tensor]]:
        embedding = nn.Embedding(11, 8)
        layer = nn.TransformerEncoderLayer(8, 2, 16, 0.0, batch_first=True)
        model = nn.ModuleList([embedding, layer, nn.Linear(8, 11)]).to(device)

        def loss_of(model: Any, x: Tensor) -> Tensor:
            mask = nn.Transformer.generate_square_subsequent_mask(x.shape[1] - 1, device=device)
            made = model[2](model[1](model[0](x[:, :-1]), src_mask=mask, is_causal=True))
            return nn.functional.cross_entropy(made.flatten(0, 1), x[:, 1:].flatten())

        return stepping(model, loss_of)  # type: ignore[arg-type]

    sizes = [(2, 5), (2, 5), (3, 6), (4, 9), (2, 7), (5, 4), (3, 12)]
    compare(build, [(labels(*size, classes=11),) for size in sizes], either_device_name)
    assert [is_open(capture) for capture in captured] == [False, True]


def test_padding_is_hidden(either_device_name: str, captured: list[CapturedProgram]) -> None:
    def build(device: str) -> tuple[Callable[..., Any], list[Tensor]]:
        attention = nn.MultiheadAttention(8, 2, batch_first=True).to(device)

        def loss_of(model: Any, x: Tensor, hidden: Tensor) -> Tensor:
            made, _ = model(x, x, x, key_padding_mask=hidden, need_weights=False)
            seen = (~hidden).to(vkml.float32)
            return (made.square().sum(-1) * seen).sum() / seen.sum()

        return stepping(attention, loss_of)

    batches = []
    for batch, length in [(2, 5), (3, 6), (4, 9), (2, 7), (5, 4)]:
        hidden = np.arange(length) >= 2 + np.arange(batch)[:, None] % 2
        batches.append((normal(batch, length, 8), hidden))
    compare(build, batches, either_device_name)
    assert [is_open(capture) for capture in captured] == [True]


def test_convolutions_and_batch_statistics(either_device_name: str, captured: list[CapturedProgram]) -> None:
    def build(device: str) -> tuple[Callable[..., Any], list[Tensor]]:
        model = nn.Sequential(
            nn.Conv2d(1, 4, 3, padding=1), nn.BatchNorm2d(4), nn.ReLU(), nn.MaxPool2d(2), nn.Flatten(),
            nn.Linear(36, 3),
        ).to(device)  # fmt: skip
        step, states = stepping(model, loss_of_images)
        return step, [*states, *model.buffers()]

    compare(build, [(normal(size, 1, 6, 6),) for size in (4, 5, 6, 9, 7)], either_device_name)
    assert [is_open(capture) for capture in captured] == [True]


def loss_of_images(model: Any, x: Tensor) -> Tensor:
    return nn.functional.mse_loss(model(x), x[:, 0, 0, :3])


def test_what_sizes_decide_is_decided_for_each(device_name: str, captured: list[CapturedProgram]) -> None:
    def build(device: str) -> tuple[Callable[..., Any], list[Tensor]]:
        def act(x: Tensor) -> Tensor:
            return x.sum(0) if x.shape[0] > 8 else x.flip(0) * x.shape[0]

        return act, []

    compare(build, [(normal(size, 3),) for size in (4, 5, 6, 9, 12, 7, 10, 3, 8)], device_name)
    assert [is_open(capture) for capture in captured] == [True, True]


def test_one_size_is_told_from_all_others(device_name: str, captured: list[CapturedProgram]) -> None:
    """The third size is the one: it has a capture of its own, and one with open sizes comes later."""

    def build(device: str) -> tuple[Callable[..., Any], list[Tensor]]:
        return (lambda x: x * 2 if x.shape[0] == 6 else x + x.shape[0]), []

    compare(build, [(normal(size, 3),) for size in (4, 5, 6, 6, 9, 7, 6, 8, 4)], device_name)
    kept = captured[-2:]
    assert sorted(map(is_open, kept)) == [False, True]


def test_arguments_that_vary_apart(device_name: str, captured: list[CapturedProgram]) -> None:
    """Sizes that were always equal are one; where they are not any more, another capture has two."""

    def build(device: str) -> tuple[Callable[..., Any], list[Tensor]]:
        return (lambda x, y: (x.sum(0), y * 2, vkml.cat([x, y]))), []

    sizes = [(4, 4), (5, 5), (6, 6), (7, 7), (7, 4), (5, 9), (3, 3)]
    compare(build, [(normal(one, 2), normal(other, 2)) for one, other in sizes], device_name)
    assert [is_open(capture) for capture in captured] == [True, True]


def test_one_and_none_broadcast(device_name: str) -> None:
    def build(device: str) -> tuple[Callable[..., Any], list[Tensor]]:
        return (lambda x: (x + vkml.ones(3, 1, device=device)).sum(0)), []

    compare(build, [(normal(3, size),) for size in (4, 5, 6, 1, 0, 7, 1, 0)], device_name)


def test_loops_over_sizes_have_a_capture_each(captured: list[CapturedProgram]) -> None:
    def build(device: str) -> tuple[Callable[..., Any], list[Tensor]]:
        def act(x: Tensor) -> Tensor:
            total = x[0]
            for at in range(1, x.shape[0]):
                total = total * 0.5 + x[at]
            return total

        return act, []

    compare(build, [(normal(size, 3, seed=at),) for at, size in enumerate(2 * (4, 5, 6, 9, 7))], "cpu")
    assert not any(map(is_open, captured[-3:]))


def test_random_numbers_have_a_capture_each(device_name: str) -> None:
    def build(device: str) -> tuple[Callable[..., Any], list[Tensor]]:
        model = nn.Sequential(nn.Linear(3, 4), nn.Dropout(0.5)).to(device)
        return stepping(model, lambda model, x: model(x).square().mean())

    compare(build, [(normal(size, 3),) for size in 3 * (4, 5, 6, 7)], device_name)


def test_dynamic_from_the_second_call_on(device_name: str, captured: list[CapturedProgram]) -> None:
    def build(device: str) -> tuple[Callable[..., Any], list[Tensor]]:
        return stepping(nn.Linear(3, 2).to(device), lambda model, x: model(x).square().mean())

    compare(build, [(normal(size, 3),) for size in (4, 4, 5, 6, 9)], device_name, dynamic=True)
    # The first finds that no other width fits: the second leaves it as it is.
    assert [is_open(capture) for capture in captured] == [True, True]


def test_never_dynamic(captured: list[CapturedProgram]) -> None:
    def build(device: str) -> tuple[Callable[..., Any], list[Tensor]]:
        return stepping(nn.Linear(3, 2).to(device), lambda model, x: model(x).square().mean())

    compare(build, [(normal(size, 3),) for size in (4, 5, 6, 4, 5, 6)], "cpu", dynamic=False)
    assert [is_open(capture) for capture in captured] == [False] * 3


def test_sizes_that_come_often_have_a_capture_of_their_own(
    monkeypatch: pytest.MonkeyPatch, captured: list[CapturedProgram]
) -> None:
    monkeypatch.setattr(open_captures, "HOT", 3)

    def build(device: str) -> tuple[Callable[..., Any], list[Tensor]]:
        return (lambda x: x * x.shape[0]), []

    compare(build, [(normal(size, 3),) for size in (4, 5, 6, 7, 6, 6, 6, 6, 6, 7)], "cpu")
    assert [is_open(capture) for capture in captured] == [True, False]


def test_modules_that_change_are_captured_anew(device_name: str) -> None:
    model = nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4)).to(device_name)
    act = vkml.jit(model)
    with vkml.no_grad():
        for at, size in enumerate((4, 5, 6, 7, 9, 4, 5, 8, 3, 10, 6, 11)):
            model.train(at % 6 < 4)
            x = vkml.tensor(normal(size, 3), device=device_name)
            before = model.state_dict()
            kept = {name: value.clone() for name, value in before.items()}
            made = act(x).numpy()
            left = {name: value.numpy() for name, value in model.state_dict().items()}
            model.load_state_dict(kept)
            agree(made, model(x).numpy())
            for name, value in model.state_dict().items():
                agree(left[name], value.numpy())


def test_a_size_alone_is_read(device_name: str) -> None:
    """Of an argument whose elements nobody reads a capture is not told: each size has one."""

    def build(device: str) -> tuple[Callable[..., Any], list[Tensor]]:
        return (lambda x, y: y * x.shape[0]), []

    compare(build, [(normal(size, 3), normal(2)) for size in 2 * (4, 5, 6, 7)], device_name)


def test_a_kept_tensor_is_refused() -> None:
    kept: list[Tensor] = []

    @vkml.jit
    def act(x: Tensor) -> Tensor:
        if x.shape[0] == 6:
            kept.append(x * 2)
        return x + 1

    for size in (4, 5):
        act(vkml.zeros(size))
    with pytest.raises(CaptureError, match="keeps a tensor"):
        act(vkml.zeros(6))


def test_parameters_stay_where_they_are(vulkan_device_name: str) -> None:
    """Runs of open sizes write over the memory that parameters have, and leave none behind."""
    model = nn.Linear(3, 2).to(vulkan_device_name)
    step, (weight, _) = stepping(model, lambda model, x: model(x).square().mean())
    act = vkml.jit(step)
    places = set()
    for size in (4, 5, 6, 7, 9, 8, 11, 10):
        act(vkml.tensor(normal(size, 3), device=vulkan_device_name)).item()
        gc.collect()
        places.add(weight.value.data.address)  # type: ignore[union-attr]
    assert len(places) <= 4, places


@pytest.mark.parametrize("dynamic", [None, True])
def test_sizes_that_are_returned_are_those_of_each_call(
    captured: list[CapturedProgram], dynamic: bool | None
) -> None:
    """As numbers, also those that are computed of sizes, between tensors and in nested results."""

    @vkml.jit(dynamic=dynamic)
    def act(x: Tensor, y: Tensor) -> Any:
        rows = x.shape[0]
        return rows, {"sum": x.sum() + y.sum(), "of both": [rows * 2 + y.shape[0], (x.numel(), 4)]}, x.shape

    for rows, others in ((3, 5), (3, 5), (4, 5), (5, 6), (7, 9), (9, 7), (8, 3), (3, 5)):
        x, y = normal(rows, 4), normal(others)
        found = act(vkml.tensor(x), vkml.tensor(y))
        agree(found[1].pop("sum").numpy(), x.sum() + y.sum())
        assert repr(found) == repr(
            (rows, {"of both": [rows * 2 + others, (rows * 4, 4)]}, vkml.Size((rows, 4)))
        )
    assert any(map(is_open, captured))


@pytest.mark.parametrize("dynamic", [None, True])
def test_an_axis_of_size_0_beside_open_ones(captured: list[CapturedProgram], dynamic: bool | None) -> None:
    """In a shape that is computed, 0 is a size as others are."""
    act = vkml.jit(
        lambda x: (x.unsqueeze(0), vkml.stack([x, x]), x.reshape(2, 0, x.shape[1])), dynamic=dynamic
    )
    for columns in (4, 4, 5, 6, 7, 4):
        shapes = [tuple(made.shape) for made in act(vkml.ones(0, columns))]
        assert shapes == [(1, 0, columns), (2, 0, columns), (2, 0, columns)]
    assert any(map(is_open, captured))


DIGITS = {3: 30.0, 4: 40.0}


@pytest.mark.parametrize(
    "act",
    [
        lambda x: x * DIGITS.get(x.shape[0], 1.0),
        lambda x: x * len({x.shape[0], 4, 5}),
        lambda x: x * float(f"{x.shape[0]}"),
        lambda x: x * len(str(tuple(x.shape))),
        lambda x: {x.shape[0]: x},
    ],
    ids=["key of a dict", "element of a set", "text", "text of a shape", "key of a result"],
)
@pytest.mark.parametrize("dynamic", [None, True])
def test_sizes_that_are_looked_up_or_written_are_numbers(
    act: Callable[[Tensor], Any], dynamic: bool | None
) -> None:
    step = vkml.jit(act, dynamic=dynamic)
    for size in LENGTHS:
        x = normal(size, 4)
        found, wanted = step(vkml.tensor(x)), act(vkml.tensor(x))
        if isinstance(wanted, dict):
            assert list(found) == list(wanted)
            [found], [wanted] = found.values(), wanted.values()
        agree(found.numpy(), wanted.numpy())


def _table(x: Tensor) -> Tensor:
    match x.shape[0]:
        case 44:
            return x * 40
        case rows:
            return x * rows


def _padded(x: Tensor) -> Tensor:
    made = x.new_zeros(x.shape[0] + 1, x.shape[1])
    made[1:] = x
    made[x.shape[0]] = 2
    return made


OPEN: dict[str, Callable[[Tensor], Tensor]] = {
    "is an int": lambda x: x * (2.0 if isinstance(x.shape[0], int) else 3.0),
    "is a number": lambda x: x * (2.0 if isinstance(x.size(0), numbers.Integral) else 3.0),
    "is no float": lambda x: x * (2.0 if isinstance(x.shape[0], float | str) else 3.0),
    "slice": lambda x: x[: x.shape[0] // 2] + x[-(x.shape[0] // 2) :],
    "shift": lambda x: x[: x.shape[0] >> 1] * (x.shape[0] << 2),
    "power": lambda x: x * x.shape[0] ** 2,
    "lowest bits": lambda x: x * (x.shape[0] & 1) + (3 & x.shape[0]) + ~x.shape[0],
    "rounded": lambda x: x * round(x.shape[0]) + math.floor(x.shape[0]) + math.trunc(x.shape[0]),
    "divmod": lambda x: x * sum(divmod(x.shape[0], 3)) + sum(divmod(100, x.shape[0])),
    "product": lambda x: x.reshape(math.prod(x.shape)) * sum(x.shape),
    "product of numpy": lambda x: x.reshape(np.prod(x.shape)),
    "integers of numpy": lambda x: x * (np.int32(2) * x.shape[0]) + x.shape[0] * np.int64(3),
    "array of sizes": lambda x: (
        x * vkml.tensor(np.array(x.shape))[0] + vkml.tensor(np.arange(3) + len(x.shape)).sum()
    ),
    "tensor": lambda x: x * vkml.tensor(x.shape[0]) + vkml.tensor([x.shape[0], 1])[0],
    "tensor of floats": lambda x: x * vkml.tensor(x.shape[0] - 1, dtype=vkml.float64),
    "full": lambda x: x * vkml.full((2,), x.shape[0])[0] + vkml.full((x.shape[0], 1), 0.5),
    "view": lambda x: x.view(x.shape[0], -1) * 2 + x.view(x.size(0), x.size(-1)),
    "parts": lambda x: x.view(x.shape[0], 2, -1).transpose(1, 2).reshape(x.shape[0], -1) * 2,
    "range": lambda x: x + vkml.arange(x.shape[0])[:, None] + vkml.arange(0.0, 2.0 * len(x.shape), 2)[0],
    "range from a float": lambda x: x + vkml.arange(1.0, x.shape[0] + 1)[:, None],
    "identity": lambda x: vkml.eye(x.shape[0]) @ x + vkml.eye(x.shape[0], 4).sum(0),
    "repeated": lambda x: x.repeat_interleave(2, 0) + x.repeat(2, 1),
    "rolled": lambda x: x.roll(x.shape[0] // 2, 0) + x.roll(1, 0) + x.roll((-1, 1), (0, 1)),
    "padded": lambda x: nn.functional.pad(x, (0, 0, 1, x.shape[0])),
    "padded to a multiple": lambda x: nn.functional.pad(x, (0, 0, 0, -x.shape[0] % 8)),
    "one-hot": lambda x: nn.functional.one_hot(vkml.arange(x.shape[0]), x.shape[0]) @ (x * 8).long(),
    "narrow": lambda x: x.narrow(0, x.shape[0] // 2, 1) + x.select(0, x.shape[0] - 1),
    "bytes": lambda x: x * x.nelement() + x.nbytes,
    "greatest k": lambda x: x.topk(x.shape[0] // 2, 0)[0],
    "written into": _padded,
    "table": _table,
    "among": lambda x: x * (2.0 if x.shape[0] in (44, 88) else 3.0),
    "mean": lambda x: x.sum() / x.shape[0] + x.sum() / x.numel(),
    "less than a float": lambda x: x * (2.0 if x.shape[0] < 1e3 and x.shape[0] != 2.5 else 3.0),
}
"""What stays open for one capture."""
CLOSED: dict[str, Callable[[Tensor], Tensor]] = {
    "lists": lambda x: x * len([1, 2, 3, 4, 5, 6, 7][: x.shape[0]]) + len([0] * x.shape[0]),
    "formatted": lambda x: (
        x * float(f"{x.shape[0]:>5}") + float(f"{x.shape[0]:.1f}") + float(str(x.shape[0]))
    ),
    "root": lambda x: x / math.sqrt(x.shape[0]) * x.size(0) ** -0.5 + math.isqrt(x.shape[0]),
    "quotient": lambda x: x[: math.ceil(x.shape[0] / 2)] * (1 / x.shape[0]) * (0.5 * x.shape[0]),
    "bits": lambda x: x * (x.shape[0] ^ 3) + (1 << (x.shape[0] - 1).bit_length()),
    "numbers of numpy": lambda x: x * vkml.tensor(np.sqrt(x.shape[0]) * np.ones(4, np.float32) * x.shape[0]),
    "ranges of numpy": lambda x: x + vkml.tensor(np.arange(x.shape[0], dtype=np.float32)[:, None]),
    "length": lambda x: x * len(x) + sum(row.sum() for row in x),
    "floats beside": lambda x: x * vkml.tensor([x.shape[0], 0.5])[0],
    "range from between": lambda x: x + vkml.arange(0.5, x.shape[0])[:, None],
}
"""What does not, and has a capture for each set of sizes."""


@pytest.mark.parametrize("act", [*OPEN.values(), *CLOSED.values()], ids=[*OPEN, *CLOSED])
def test_programs_that_take_sizes_for_numbers(
    act: Callable[[Tensor], Tensor], captured: list[CapturedProgram]
) -> None:
    """They do what they do by themselves; where they only compute with sizes, one capture serves all."""

    def build(device: str) -> tuple[Callable[..., Any], list[Tensor]]:
        return act, []

    sizes = (5, 5, 6, 7, 9, 4, 8, 12, 7, 8)
    compare(build, [(normal(size, 4, seed=at),) for at, size in enumerate(sizes)], "cpu")
    if act in OPEN.values():
        assert [is_open(capture) for capture in captured] == [False, True]
    else:
        assert not any(map(is_open, captured[-2:]))  # those of the last two calls


def test_a_size_that_cannot_be_open_leaves_others_open(captured: list[CapturedProgram]) -> None:
    """The width, of which a root is taken, would be open, too."""

    def act(x: Tensor) -> Tensor:
        kept = {x.shape[1]: x.sum()}
        return x * x.shape[1] ** -0.5 + kept[x.shape[1]]

    step = vkml.jit(act, dynamic=True)
    for size in (5, 5, 6, 7, 9):
        x = normal(size, 4)
        agree(step(vkml.tensor(x)).numpy(), x / 2 + x.sum())
    assert [is_open(capture) for capture in captured] == [False, True][-len(captured) :]


def test_what_decides_types_is_decided_by_each_capture() -> None:
    """Types that were inferred for one capture say nothing of another's sizes."""
    for lengths in ((9, 10, 11, 12), (3, 4, 2, 9, 5), (16, 3, 8, 2)):
        step = vkml.jit(lambda x: x[:5] * x[:5].shape[0])
        for size in lengths:
            x = normal(size, 4)
            agree(step(vkml.tensor(x)).numpy(), x[:5] * len(x[:5]))


def test_a_size_that_a_program_keeps_says_what_it_is() -> None:
    """It is no number: the capture that it is of serves others as well."""
    kept = []

    def act(x: Tensor) -> Tensor:
        kept.append(x.shape[0])
        return x * x.shape[0]

    step = vkml.jit(act, dynamic=True)
    for size in (3, 4, 5):
        step(vkml.ones(size))
    with pytest.raises(EngineError, match=r"outside of its capture or export: keep int\(n\)"):
        kept[-1] == 5  # noqa: B015
