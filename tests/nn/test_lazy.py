"""Layers whose inputs are counted at their first batch."""

from __future__ import annotations

import copy
from typing import Any

import numpy as np
import pytest

import vkml
from tests.nn.comparing import close, normal, takes, texts_agree
from vkml import nn, optim
from vkml.nn.lazy import LazyModuleMixin

RANDOM = np.random.default_rng(11)
CASES: dict[str, tuple[Any, type, tuple[int, ...]]] = {
    "LazyLinear": (lambda p: p.LazyLinear(2), nn.Linear, (4, 3)),
    "LazyLinear-no-bias": (lambda p: p.LazyLinear(2, False), nn.Linear, (2, 4, 3)),
    "LazyConv1d": (lambda p: p.LazyConv1d(4, 3, padding=1, groups=2), nn.Conv1d, (2, 6, 5)),
    "LazyConv2d": (lambda p: p.LazyConv2d(4, 3, bias=False), nn.Conv2d, (2, 3, 5, 5)),
    "LazyConv2d-single": (lambda p: p.LazyConv2d(4, 3, padding_mode="circular"), nn.Conv2d, (3, 5, 5)),
    "LazyConv3d": (lambda p: p.LazyConv3d(2, 2, 2), nn.Conv3d, (1, 3, 4, 4, 4)),
    "LazyConvTranspose1d": (lambda p: p.LazyConvTranspose1d(4, 3, 2), nn.ConvTranspose1d, (2, 3, 5)),
    "LazyConvTranspose2d": (
        lambda p: p.LazyConvTranspose2d(4, 2, groups=2), nn.ConvTranspose2d, (2, 6, 3, 3)
    ),
    "LazyConvTranspose3d": (lambda p: p.LazyConvTranspose3d(2, 2), nn.ConvTranspose3d, (1, 3, 2, 2, 2)),
    "LazyBatchNorm1d": (lambda p: p.LazyBatchNorm1d(), nn.BatchNorm1d, (6, 3)),
    "LazyBatchNorm2d": (lambda p: p.LazyBatchNorm2d(affine=False), nn.BatchNorm2d, (2, 3, 4, 4)),
    "LazyBatchNorm3d": (lambda p: p.LazyBatchNorm3d(bias=False), nn.BatchNorm3d, (2, 3, 2, 2, 2)),
    "LazyInstanceNorm1d": (lambda p: p.LazyInstanceNorm1d(), nn.InstanceNorm1d, (2, 3, 4)),
    "LazyInstanceNorm2d": (
        lambda p: p.LazyInstanceNorm2d(track_running_stats=False), nn.InstanceNorm2d, (2, 3, 4, 4)
    ),
    "LazyInstanceNorm3d": (lambda p: p.LazyInstanceNorm3d(eps=1e-3), nn.InstanceNorm3d, (2, 3, 2, 2, 3)),
}  # fmt: skip


@pytest.mark.parametrize("name", CASES)
def test_it_becomes_what_it_would_have_been(name: str, device_name: str) -> None:
    make, kind, shape = CASES[name]
    layer = make(nn).to(device_name)
    assert type(layer) is not kind and layer.has_uninitialized_params()
    before = list(layer.parameters())
    vkml.manual_seed(1)
    x = vkml.tensor(normal(RANDOM, *shape), device=device_name)
    result = layer(x)
    assert type(layer) is kind
    assert [id(one) for one in layer.parameters()] == [id(one) for one in before], "other parameters"
    for value in layer.state_dict(keep_vars=True).values():
        assert value.device == device_name
        assert not isinstance(value, nn.UninitializedParameter | nn.UninitializedBuffer)
    assert all(type(value) is nn.Parameter and value.requires_grad for value in layer.parameters())
    if before:
        result.sum().backward()
    assert all(value.grad is not None for value in layer.parameters())
    again = layer(x)
    assert again.shape == result.shape


@pytest.mark.parametrize("name", CASES)
def test_against_torch(name: str) -> None:
    torch = pytest.importorskip("torch")
    make, _, shape = CASES[name]
    if name == "LazyBatchNorm3d" and not takes(torch.nn.LazyBatchNorm3d, "bias"):
        pytest.skip("this PyTorch's LazyBatchNorm3d does not take bias")
    with pytest.warns(UserWarning, match="Lazy") if _warns(torch) else _nothing():
        ours, theirs = make(nn), make(torch.nn)
    assert texts_agree(ours, theirs) and list(ours.state_dict()) == list(theirs.state_dict())
    x = normal(RANDOM, *shape)
    ours(vkml.tensor(x)), theirs(torch.tensor(x))
    assert texts_agree(ours, theirs)
    state = theirs.state_dict()
    assert {key: tuple(value.shape) for key, value in ours.state_dict().items()} == {
        key: tuple(value.shape) for key, value in state.items()
    }
    ours.load_state_dict({key: value.numpy() for key, value in state.items()})
    close(ours(vkml.tensor(x)).detach().numpy(), theirs(torch.tensor(x)).detach().numpy(), "result")


def _warns(torch: Any) -> bool:
    """Whether this torch warns of what it calls new."""
    import warnings

    with warnings.catch_warnings(record=True) as seen:
        warnings.simplefilter("always")
        torch.nn.LazyLinear(1)
    return bool(seen)


class _nothing:
    def __enter__(self) -> None: ...

    def __exit__(self, *_: object) -> None: ...


def test_as_a_seed_says() -> None:
    vkml.manual_seed(7)
    layer = nn.LazyLinear(3)
    layer(vkml.ones(1, 5))
    vkml.manual_seed(7)
    other = nn.Linear(5, 3)
    np.testing.assert_array_equal(layer.weight.detach().numpy(), other.weight.detach().numpy())
    np.testing.assert_array_equal(layer.bias.detach().numpy(), other.bias.detach().numpy())


def test_before_the_first_batch() -> None:
    layer = nn.LazyLinear(3)
    assert repr(layer) == "LazyLinear(in_features=0, out_features=3, bias=True)"
    assert repr(layer.weight) == "<UninitializedParameter>" and layer.weight.requires_grad
    assert isinstance(layer.weight, nn.Parameter) and layer.weight.is_leaf
    layer.double().requires_grad_(False)
    layer.bias.requires_grad_()
    for use in (
        lambda w: w.shape, lambda w: w + 1, lambda w: w.numpy(), lambda w: w.numel(), lambda w: w.sum(),
        lambda w: w.zero_(), lambda w: vkml.matmul(w, vkml.ones(1)), lambda w: w.clone(),
    ):  # fmt: skip
        with pytest.raises((RuntimeError, ValueError), match="UninitializedParameter has no shape"):
            use(layer.weight)
    other = copy.deepcopy(layer)
    other(vkml.ones(2, 4, dtype=vkml.float64))
    assert other.weight.dtype is vkml.float64 and other.weight.shape == (3, 4)
    assert other.bias.requires_grad and not other.weight.requires_grad
    assert isinstance(layer, nn.LazyLinear) and layer.has_uninitialized_params()


def test_an_optimizer_made_before_has_them() -> None:
    model = nn.Sequential(nn.LazyConv2d(2, 3), nn.ReLU(), nn.Flatten(), nn.LazyLinear(1))
    optimizer = optim.SGD(model.parameters(), lr=0.1)
    x = vkml.tensor(normal(RANDOM, 4, 1, 5, 5))
    losses = []
    for _ in range(5):
        optimizer.zero_grad()
        loss = ((model(x) - 1) ** 2).mean()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    assert losses[-1] < 0.5 * losses[0]


def test_states() -> None:
    known = nn.Sequential(nn.Linear(3, 2), nn.BatchNorm1d(2))
    known(vkml.tensor(normal(RANDOM, 5, 3)))
    lazy = nn.Sequential(nn.LazyLinear(2), nn.LazyBatchNorm1d())
    copied = copy.deepcopy(lazy)
    copied.load_state_dict(lazy.state_dict())
    assert copied[0].has_uninitialized_params()
    weight = lazy[0].weight
    lazy.load_state_dict(known.state_dict())
    assert lazy[0].weight is weight and not lazy[0].has_uninitialized_params()
    known.eval(), lazy.eval()
    x = vkml.tensor(normal(RANDOM, 5, 3))
    np.testing.assert_array_equal(lazy(x).detach().numpy(), known(x).detach().numpy())
    assert repr(lazy) == repr(known)
    with pytest.raises(RuntimeError, match="has no shape"):
        known.load_state_dict(copied.state_dict())
    for wrong in ({"weight": vkml.ones(2, 3)}, {"other": vkml.ones(1)}):
        fresh = nn.LazyLinear(2)
        with pytest.raises(RuntimeError, match="does not fit"):
            fresh.load_state_dict(wrong)
        assert fresh.has_uninitialized_params()


def test_what_does_not_fit() -> None:
    with pytest.raises(ValueError, match="divisible"):
        nn.LazyConv1d(3, 2, groups=2)
    with pytest.raises(ValueError, match="divisible"):
        nn.LazyConv1d(4, 2, groups=2)(vkml.ones(1, 3, 5))
    with pytest.raises(RuntimeError, match="3D"):
        nn.LazyConv2d(4, 2)(vkml.ones(1, 3))


def test_a_lazy_module_of_ones_own() -> None:
    class Scale(LazyModuleMixin, nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.scale = nn.UninitializedParameter()
            self.calls = 0

        def initialize_parameters(self, x: Any) -> None:
            self.calls += 1
            if self.has_uninitialized_params():
                self.scale.materialize(x.shape[1:])
                nn.init.constant_(self.scale, 2.0)

        def forward(self, x: Any) -> Any:
            return x * self.scale

    scale = Scale()
    for _ in range(2):
        assert scale(vkml.ones(2, 3)).tolist() == [[2.0] * 3] * 2
    assert scale.calls == 1 and isinstance(scale, Scale)

    class Idle(LazyModuleMixin):
        def __init__(self) -> None:
            super().__init__()
            self.scale = nn.UninitializedParameter()

        def initialize_parameters(self, x: Any) -> None: ...

    with pytest.raises(RuntimeError, match="Idle has not been fully initialized"):
        Idle()(vkml.ones(1))
