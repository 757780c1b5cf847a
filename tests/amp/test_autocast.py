"""Mixed precision: which type operations run in, through gradients, captures, contexts and decorators."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import vkml
from vkml import Tensor, nn
from vkml.nn import functional
from vkml.tensors import autocast as policies

F32, F16, BF16 = vkml.float32, vkml.float16, vkml.bfloat16
OPERATIONS: dict[str, Callable[[Any, Any], Any]] = {
    "matmul": lambda m, x: m.matmul(x, x),
    "@": lambda m, x: x @ x,
    "+": lambda m, x: x + x,
    "relu": lambda m, x: m.relu(x),
    "exp": lambda m, x: m.exp(x),
    "log": lambda m, x: m.log(x),
    "pow": lambda m, x: m.pow(x, 3),
    "**": lambda m, x: x**3,
    "sum": lambda m, x: m.sum(x),
    "prod": lambda m, x: m.prod(x),
    "mean": lambda m, x: m.mean(x),
    "softmax": lambda m, x: m.softmax(x, 0),
    "log_softmax": lambda m, x: m.log_softmax(x, 0),
    "cumsum": lambda m, x: m.cumsum(x, 0),
    "rsqrt": lambda m, x: m.rsqrt(x),
    "sqrt": lambda m, x: m.sqrt(x),
    "cat": lambda m, x: m.cat([x, x.float()]),
    "stack": lambda m, x: m.stack([x, x.float()]),
}
LAYERS: dict[str, Callable[[Any, Any], Any]] = {
    "linear": lambda f, x: f.linear(x, x),
    "mse_loss": lambda f, x: f.mse_loss(x, x),
    "l1_loss": lambda f, x: f.l1_loss(x, x),
    "bce": lambda f, x: f.binary_cross_entropy_with_logits(x, x),
    "gelu": lambda f, x: f.gelu(x),
    "softplus": lambda f, x: f.softplus(x),
}


@pytest.mark.parametrize("narrow", ["float16", "bfloat16"])
@pytest.mark.parametrize("given", ["float32", "narrow", "float64"])
def test_types_are_torchs_on_the_cpu(narrow: str, given: str) -> None:
    torch = pytest.importorskip("torch")
    kind = narrow if given == "narrow" else given
    ours, theirs = vkml.ones(2, 2, dtype=getattr(vkml, kind)), torch.ones(2, 2, dtype=getattr(torch, kind))
    tables = [(OPERATIONS, vkml, torch), (LAYERS, functional, torch.nn.functional)]
    with vkml.autocast("cpu", getattr(vkml, narrow)), torch.autocast("cpu", getattr(torch, narrow)):
        for table, mine, other in tables:
            for name, act in table.items():
                if name in ("cat", "stack") and given == "float64":
                    continue  # PyTorch refuses these
                wanted = str(act(other, theirs).dtype).removeprefix("torch.")
                assert act(mine, ours).dtype is getattr(vkml, wanted), name


def test_types_on_vulkan(vulkan_device_name: str) -> None:
    """PyTorch's lists for CUDA."""
    x = vkml.ones(2, 2, device=vulkan_device_name)
    wide = {
        "exp", "log", "pow", "**", "sum", "prod", "softmax", "log_softmax", "cumsum", "rsqrt", "mse_loss",
        "l1_loss", "bce", "softplus",
    }  # fmt: skip
    with vkml.autocast("vulkan"):
        for table, module in ((OPERATIONS, vkml), (LAYERS, functional)):
            for name, act in table.items():
                if name in ("matmul", "@", "linear"):
                    assert act(module, x).dtype is F16, name
                if name in wide:
                    assert act(module, x.half()).dtype is F32, name
        assert (x @ x).relu().mean().dtype is F16
        assert (vkml.ones(2, 2) @ vkml.ones(2, 2)).dtype is F32  # the CPU's is not on
    assert (x @ x).dtype is F32


def test_nested_contexts_decorators_and_threads() -> None:
    x = vkml.ones(2, 2)
    found: list[Any] = []

    @vkml.autocast("cpu", F16)
    def product() -> Tensor:
        return x @ x

    def elsewhere() -> None:
        found.append((x @ x).dtype)

    assert not vkml.is_autocast_enabled("cpu")
    with vkml.autocast("cpu"):
        assert (x @ x).dtype is BF16 and vkml.get_autocast_dtype("cpu") is BF16
        assert not vkml.is_autocast_enabled("vulkan")
        with vkml.autocast("cpu", enabled=False):
            assert (x @ x).dtype is F32 and not vkml.is_autocast_enabled("cpu")
            assert product().dtype is F16
        assert (x @ x).dtype is BF16
        thread = threading.Thread(target=elsewhere)
        thread.start()
        thread.join()
        with pytest.raises(RuntimeError), vkml.autocast("cpu", F16):
            x @ vkml.ones(3, 2)
        assert (x @ x).dtype is BF16
    assert found == [F32]
    assert product().dtype is F16 and (x @ x).dtype is F32
    again = vkml.autocast("cpu")
    with again, again:
        pass
    assert (x @ x).dtype is F32
    with pytest.warns(UserWarning, match="it is off"), vkml.autocast("cpu", F32):
        assert (x @ x).dtype is F32
    with pytest.raises(RuntimeError, match="device_type"):
        vkml.autocast("metal")


def test_double_precision_and_integers_stay() -> None:
    with vkml.autocast("cpu"):
        x = vkml.ones(2, 2, dtype=vkml.float64)
        assert (x @ x).dtype is vkml.float64
        assert vkml.ones(2, dtype=vkml.int32).sum().dtype is vkml.int64
        assert vkml.ones(2, dtype=BF16).sum(dtype=BF16).dtype is BF16


def test_gradients_come_in_the_types_of_parameters(device_name: str) -> None:
    kind = device_name.split(":")[0]
    weight = vkml.tensor([[1.0, 2.0], [3.0, 4.0]], device=device_name, requires_grad=True)
    x = vkml.tensor([[1.0, 0.5]], device=device_name)
    with vkml.autocast(kind, F16):
        y = functional.linear(x, weight)
        assert y.dtype is F16
        loss = functional.mse_loss(y, vkml.zeros(1, 2, device=device_name))
    assert loss.dtype is F32
    loss.backward()
    assert weight.grad is not None and weight.grad.dtype is F32
    np.testing.assert_allclose(weight.grad.numpy(), [[2.0, 1.0], [5.0, 2.5]], rtol=1e-3)


LAYERS_IN_USE: dict[str, tuple[Callable[[], nn.Module], tuple[int, ...]]] = {
    "convolutions": (
        lambda: nn.Sequential(
            nn.Conv2d(1, 4, 3), nn.BatchNorm2d(4), nn.ReLU(), nn.GroupNorm(2, 4), nn.MaxPool2d(2),
            nn.Flatten(), nn.Linear(36, 3),
        ),
        (2, 1, 8, 8),
    ),
    "transformer": (lambda: nn.TransformerEncoderLayer(8, 2, 16, dropout=0.0, batch_first=True), (2, 5, 8)),
    "normalisations": (
        lambda: nn.Sequential(
            nn.Linear(8, 8), nn.LayerNorm(8), nn.Linear(8, 8), nn.RMSNorm(8), nn.PReLU(),
            nn.Unflatten(1, (2, 4)), nn.InstanceNorm1d(2, affine=True),
        ),
        (3, 8),
    ),
    "recurrent": (lambda: nn.LSTM(4, 6, 2, bidirectional=True), (3, 2, 4)),
}  # fmt: skip


@pytest.mark.parametrize("name", LAYERS_IN_USE)
def test_layers(device_name: str, name: str) -> None:
    """Whole networks compute nearly the same, and gradients of all parameters come in their type."""
    make, shape = LAYERS_IN_USE[name]
    vkml.manual_seed(2)
    model = make().to(device_name)
    x = vkml.randn(*shape).to(device_name)

    def run(is_on: bool) -> tuple[np.ndarray, list[np.ndarray]]:
        model.zero_grad()
        with vkml.autocast(device_name, F16, enabled=is_on):
            y = model(x)
            y = y[0] if isinstance(y, tuple) else y
            loss = functional.mse_loss(y, vkml.ones(*y.shape, device=device_name))
        loss.backward()
        found = []
        for parameter in model.parameters():
            assert parameter.grad is not None and parameter.grad.dtype is F32
            found.append(parameter.grad.numpy())
        return y.detach().float().numpy(), found

    wide, gradients = run(False)
    narrow, others = run(True)
    # Of what is rounded to 11 bits at each product, and at bfloat16 to 8.
    np.testing.assert_allclose(narrow, wide, atol=2e-2)
    for one, other in zip(others, gradients, strict=True):
        np.testing.assert_allclose(one, other, atol=3e-2 * max(1.0, float(np.abs(other).max())))
    assert not np.array_equal(narrow, wide)


def test_captures_differ_by_it(device_name: str) -> None:
    kind, calls = device_name.split(":")[0], [0]

    @vkml.jit
    def product(x: Tensor) -> Tensor:
        calls[0] += 1
        return x @ x

    x = vkml.full((2, 2), 1.0009765625 / 2, device=device_name)
    for _ in range(3):
        wide = product(x)
        with vkml.autocast(kind, F16):
            narrow = product(x)
        assert (wide.dtype, narrow.dtype) == (F32, F16)
    assert calls == [4]

    @vkml.jit
    def within(x: Tensor) -> Tensor:
        with vkml.autocast(kind, F16):
            return x @ x

    assert [within(x).dtype for _ in range(3)] == [F16] * 3


def test_a_network_learns(device_name: str) -> None:
    kind = device_name.split(":")[0]
    vkml.manual_seed(1)
    model = nn.Sequential(nn.Linear(2, 16), nn.Tanh(), nn.Linear(16, 1)).to(device_name)
    optimizer, scaler = vkml.optim.Adam(model.parameters(), lr=0.05), vkml.GradScaler()
    points = np.array([[0, 0], [0, 1], [1, 0], [1, 1]], np.float32)
    x, y = (vkml.tensor(a, device=device_name) for a in (points, points.sum(1, keepdims=True) % 2))

    @vkml.jit
    def step(x: Tensor, y: Tensor) -> Tensor:
        optimizer.zero_grad()
        with vkml.autocast(kind, F16):
            loss = functional.mse_loss(model(x), y)
        scaler.scale(loss).backward()
        scaler.unscale_(optimizer)
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        scaler.step(optimizer)
        scaler.update()
        return loss

    losses = [step(x, y).item() for _ in range(80)]
    assert losses[-1] < 0.01 < losses[0]
    assert all(parameter.dtype is F32 for parameter in model.parameters())


def test_every_name_of_the_lists_that_there_is_is_wrapped() -> None:
    """A function that is added under a name of the lists is cast without anybody thinking of it."""
    from vkml.tensors import operations

    for module in (operations, functional):
        for name in policies.POLICIES.keys() & vars(module).keys():
            found = getattr(module, name)
            if callable(found):
                assert getattr(found, "policies", None) == policies.POLICIES[name], name
    assert Tensor.matmul.policies and Tensor.__matmul__.policies and Tensor.__pow__.policies  # type: ignore[attr-defined]
