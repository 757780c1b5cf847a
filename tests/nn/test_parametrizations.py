"""Parametrized tensors: closed forms, torch's values and gradients, names, copies, what is refused."""

from __future__ import annotations

import copy
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import pytest

import vkml
from tests.nn.comparing import close, normal
from vkml import nn, optim
from vkml.nn.utils import parametrizations, parametrize

RANDOM = np.random.default_rng(3)
MAPS = ("matrix_exp", "cayley", "householder")


class _Symmetric(nn.Module):
    def forward(self, x: Any) -> Any:
        return x.triu() + x.triu(1).mT

    def right_inverse(self, x: Any) -> Any:
        return x.triu()


class _Doubled(nn.Module):
    def forward(self, x: Any) -> Any:
        return x * 2

    def right_inverse(self, x: Any) -> Any:
        return x / 2


class _RankOne(nn.Module):
    def forward(self, x: Any, y: Any) -> Any:
        return x.unsqueeze(-1) @ y.unsqueeze(-2)

    def right_inverse(self, z: Any) -> Any:
        return z[:, 0], z[0] / z[0, 0]


def test_a_parameter_is_what_is_made_of_another(device_name: str) -> None:
    layer = nn.Linear(3, 3).to(device_name)
    before = layer.weight
    assert parametrize.register_parametrization(layer, "weight", _Symmetric()) is layer
    assert layer.parametrizations.weight.original is before, "an optimizer would not have it any more"
    assert type(layer).__name__ == "ParametrizedLinear" and isinstance(layer, nn.Linear)
    assert parametrize.type_before_parametrizations(layer) is nn.Linear
    assert list(layer.state_dict()) == ["bias", "parametrizations.weight.original"]
    assert [name for name, _ in layer.named_parameters()] == list(layer.state_dict())
    upper = np.triu(before.detach().numpy())
    close(layer.weight.detach().numpy(), upper + np.triu(upper, 1).T, "weight")
    optimizer = optim.SGD(layer.parameters(), lr=0.1)
    x = vkml.tensor(normal(RANDOM, 5, 3), device=device_name)
    for _ in range(3):
        optimizer.zero_grad()
        (layer(x) ** 2).sum().backward()
        optimizer.step()
    made = layer.weight.detach().numpy()
    np.testing.assert_array_equal(made, made.T)
    assert np.abs(made - (upper + np.triu(upper, 1).T)).max() > 1e-3, "it has not learned"
    layer.weight = vkml.tensor(np.diag([1.0, 2.0, 3.0]).astype(np.float32), device=device_name)
    close(layer.weight.detach().numpy(), np.diag([1.0, 2.0, 3.0]), "assigned")
    with pytest.raises(KeyError, match="weight"):
        layer.weight = nn.Parameter(vkml.ones(3, 3))


def test_several_one_after_the_other_and_their_removal() -> None:
    layer = nn.Linear(3, 3, bias=False)
    kept = layer.weight
    parametrize.register_parametrization(layer, "weight", _Symmetric())
    parametrize.register_parametrization(layer, "weight", _Doubled())
    assert len(layer.parametrizations.weight) == 2 and parametrize.is_parametrized(layer, "weight")
    assert not parametrize.is_parametrized(layer, "bias") and not parametrize.is_parametrized(nn.ReLU())
    wanted = vkml.tensor([[1.0, 2.0, 0.0], [2.0, 3.0, 4.0], [0.0, 4.0, 5.0]])
    layer.weight = wanted
    close(layer.weight.detach().numpy(), wanted.numpy(), "both undone, the last first")
    close(kept.detach().numpy(), np.triu(wanted.numpy()) / 2, "original")
    other = copy.deepcopy(layer)
    parametrize.remove_parametrizations(layer, "weight")
    assert type(layer) is nn.Linear and layer.weight is kept and list(layer.state_dict()) == ["weight"]
    close(kept.detach().numpy(), wanted.numpy(), "kept as it was")
    # A copy has parametrizations of its own.
    close(other.weight.detach().numpy(), wanted.numpy(), "the copy's")
    parametrize.remove_parametrizations(other, "weight", leave_parametrized=False)
    close(other.weight.detach().numpy(), np.triu(wanted.numpy()) / 2, "the copy's original")
    with pytest.raises(ValueError, match="does not have a parametrization"):
        parametrize.remove_parametrizations(other, "weight")


def test_of_two_tensors_one_of_them_removed() -> None:
    layer = nn.Linear(2, 2)
    for name, made in (("weight", _Doubled()), ("bias", _Doubled())):
        parametrize.register_parametrization(layer, name, made)
    close(layer.bias.detach().numpy(), 2 * layer.parametrizations.bias.original.detach().numpy(), "bias")
    parametrize.remove_parametrizations(layer, "weight")
    assert isinstance(layer.weight, nn.Parameter) and type(layer).__name__ == "ParametrizedLinear"
    assert parametrize.is_parametrized(layer, "bias") and not parametrize.is_parametrized(layer, "weight")
    layer.weight = nn.Parameter(vkml.zeros(2, 2))
    assert layer(vkml.ones(1, 2)).shape == (1, 2)


def test_of_several_originals() -> None:
    layer = nn.Linear(3, 2, bias=False)
    x, y = vkml.tensor([1.0, 2.0]), vkml.tensor([1.0, -1.0, 3.0])
    layer.weight = nn.Parameter(x.unsqueeze(-1) @ y.unsqueeze(0))
    parametrize.register_parametrization(layer, "weight", _RankOne())
    assert list(layer.state_dict()) == [f"parametrizations.weight.original{n}" for n in (0, 1)]
    close(layer.weight.detach().numpy(), np.outer([1, 2], [1, -1, 3]), "weight")
    layer.weight = vkml.tensor([[2.0, 4.0, 6.0], [1.0, 2.0, 3.0]])
    close(layer.weight.detach().numpy(), [[2.0, 4.0, 6.0], [1.0, 2.0, 3.0]], "assigned")
    with pytest.raises(ValueError, match="sequence of tensors"):
        parametrize.remove_parametrizations(layer, "weight", leave_parametrized=False)
    parametrize.remove_parametrizations(layer, "weight")
    assert isinstance(layer.weight, nn.Parameter) and layer.weight.requires_grad


def test_buffers_too() -> None:
    layer = nn.BatchNorm1d(2)
    parametrize.register_parametrization(layer, "running_var", _Doubled())
    assert "parametrizations.running_var.original" in dict(layer.named_buffers())
    close(layer.running_var.numpy(), np.ones(2), "running_var")


def test_it_is_computed_once_inside_of_cached() -> None:
    class Counting(nn.Module):
        calls = 0

        def forward(self, x: Any) -> Any:
            Counting.calls += 1
            return x * 2

    layer = nn.Linear(2, 2)
    parametrize.register_parametrization(layer, "weight", Counting())
    Counting.calls = 0
    with parametrize.cached():
        first = layer.weight
        with parametrize.cached():
            assert layer.weight is first
        assert layer.weight is first and Counting.calls == 1
    assert layer.weight is not first and Counting.calls == 2


def test_what_is_kept_is_the_threads_own() -> None:
    layer = parametrizations.weight_norm(nn.Linear(2, 2))
    with parametrize.cached(), ThreadPoolExecutor(1) as pool:
        kept = layer.weight
        assert layer.weight is kept
        first, second = (pool.submit(lambda: layer.weight).result() for _ in range(2))
    assert first is not kept and second is not first


def test_what_does_not_fit() -> None:
    class Act(nn.Module):
        def __init__(self, act: Any, back: Any = None) -> None:
            super().__init__()
            self.act = act
            if back is not None:
                self.right_inverse = back

        def forward(self, x: Any) -> Any:
            return self.act(x)

    layer = nn.Linear(2, 2)
    for wrong, words in (
        (Act(lambda x: x[:1]), "may not change the shape"),
        (Act(lambda x: x.double()), "may not change the dtype"),
        (Act(lambda x: 1.0), "must return a tensor"),
        (Act(lambda x: x, lambda x: 1.0), "right_inverse' must return"),
        (Act(lambda x: x, lambda x: x.double()), "may not change the dtype"),
    ):
        with pytest.raises(ValueError, match=words):
            parametrize.register_parametrization(layer, "weight", wrong)
        assert type(layer) is nn.Linear and isinstance(layer.weight, nn.Parameter)
    with pytest.raises(ValueError, match="does not have a parameter"):
        parametrize.register_parametrization(layer, "other", _Doubled())
    parametrize.register_parametrization(layer, "weight", Act(lambda x: x[:1]), unsafe=True)
    assert layer.weight.shape == (1, 2)
    with pytest.raises(RuntimeError, match="does not implement right_inverse"):
        layer.weight = vkml.zeros(2, 2)
    for wrong, words in ((Act(lambda x: x[0]), "shape"), (Act(lambda x: x, lambda x: x[0]), "shape")):
        with pytest.raises(ValueError, match=words):
            parametrize.register_parametrization(layer, "weight", wrong)
    assert len(layer.parametrizations.weight) == 1


# -- those that there are ------------------------------------------------------------------------------------


def test_weight_norm_of_an_axis_that_is_not_there() -> None:
    for dim in (2, -2):
        with pytest.raises(IndexError, match="2 axes"):
            parametrizations.weight_norm(nn.Linear(2, 3), dim=dim)


@pytest.mark.parametrize("dim", [0, 1, None])
def test_weight_norm(dim: int | None, device_name: str) -> None:
    layer = nn.Conv2d(3, 4, 2).to(device_name)
    before = layer.weight.detach().numpy()
    parametrizations.weight_norm(layer, dim=dim)
    close(layer.weight.detach().numpy(), before, "it begins as it was")
    axes = tuple(axis for axis in range(4) if axis != dim) if dim is not None else None
    held = layer.parametrizations.weight.original0
    wanted = np.sqrt((before**2).sum(axes, keepdims=dim is not None))
    close(held.detach().numpy(), wanted, "magnitudes")
    with vkml.no_grad():
        held.mul_(3.0)
        layer.parametrizations.weight.original1.mul_(7.0)
    close(layer.weight.detach().numpy(), 3 * before, "only directions count")


def test_spectral_norm(device_name: str) -> None:
    layer = nn.ConvTranspose1d(3, 5, 2).to(device_name)
    parametrizations.spectral_norm(layer, n_power_iterations=3)
    for _ in range(20):
        layer(vkml.ones(1, 3, 4, device=device_name))
    matrix = layer.weight.detach().numpy().transpose(1, 0, 2).reshape(5, 6)
    np.testing.assert_allclose(np.linalg.svd(matrix)[1][0], 1.0, rtol=1e-4)
    layer.eval()
    held = layer.parametrizations.weight[0]._u.numpy()
    layer(vkml.ones(1, 3, 4, device=device_name))
    np.testing.assert_array_equal(layer.parametrizations.weight[0]._u.numpy(), held)
    for name, error in (("weight", IndexError), ("other", ValueError)):
        with pytest.raises(error):
            parametrizations.spectral_norm(nn.Linear(2, 2), name, dim=2)
    with pytest.raises(ValueError, match="positive"):
        parametrizations.spectral_norm(nn.Linear(2, 2), n_power_iterations=0)


@pytest.mark.parametrize("use_trivialization", [True, False])
@pytest.mark.parametrize("orthogonal_map", MAPS)
@pytest.mark.parametrize("shape", [(4, 4), (6, 3), (2, 5)])
def test_orthogonal(shape: tuple[int, int], orthogonal_map: str, use_trivialization: bool) -> None:
    layer = nn.Linear(*shape[::-1], bias=False)
    before = layer.weight.detach().numpy()
    parametrizations.orthogonal(
        layer, orthogonal_map=orthogonal_map, use_trivialization=use_trivialization
    )  # fmt: skip

    def check() -> Any:
        found = layer.weight.detach().numpy()
        tall = found if shape[0] >= shape[1] else found.T
        np.testing.assert_allclose(tall.T @ tall, np.eye(min(shape)), atol=3e-6)
        return found

    first = check()
    if use_trivialization or orthogonal_map == "householder":
        tall = before if shape[0] >= shape[1] else before.T
        q, r = np.linalg.qr(tall)
        q = q * np.sign(np.diag(r))
        close(first, q if shape[0] >= shape[1] else q.T, "it begins as the orthogonal part", rtol=2e-3)
    optimizer = optim.SGD(layer.parameters(), lr=0.2)
    x = vkml.tensor(normal(RANDOM, 8, shape[1]))
    for _ in range(3):
        optimizer.zero_grad()
        ((layer(x) - 1.0) ** 2).mean().backward()
        optimizer.step()
    assert np.abs(check() - first).max() > 1e-3, "it has not learned"
    if use_trivialization or orthogonal_map == "householder":
        wanted = np.linalg.qr(normal(RANDOM, max(shape), min(shape)))[0]
        wanted = wanted if shape[0] >= shape[1] else wanted.T
        layer.weight = vkml.tensor(np.ascontiguousarray(wanted))
        close(layer.weight.detach().numpy(), wanted, "assigned", rtol=2e-3)
    else:
        with pytest.raises(NotImplementedError):
            layer.weight = vkml.tensor(before)


def test_what_is_not_orthogonal() -> None:
    for wrong, words in (
        ({"name": "bias"}, "matrix"), ({"name": "no"}, "no parameter"), ({"orthogonal_map": "qr"}, "one of"),
    ):  # fmt: skip
        with pytest.raises(ValueError, match=words):
            parametrizations.orthogonal(nn.Linear(2, 3), **wrong)  # type: ignore[arg-type]


def test_a_captured_step_trains_them_as_an_eager_one(device_name: str) -> None:
    def trained(is_captured: bool) -> list[Any]:
        vkml.manual_seed(4)
        model = nn.Sequential(
            parametrizations.weight_norm(nn.Linear(5, 6)), nn.Tanh(),
            parametrizations.spectral_norm(nn.Linear(6, 4)), nn.Tanh(), nn.Linear(4, 2),
        ).to(device_name)  # fmt: skip
        optimizer = optim.Adam(model.parameters(), lr=0.01)

        def step(x: Any) -> Any:
            optimizer.zero_grad()
            loss = (model(x) ** 2).sum()
            loss.backward()
            optimizer.step()
            return loss

        act = vkml.jit(step) if is_captured else step
        random = np.random.default_rng(0)
        for _ in range(6):
            act(vkml.tensor(normal(random, 3, 5), device=device_name))
        return [value.numpy() for value in model.state_dict().values()]

    for found, wanted in zip(trained(True), trained(False), strict=True):
        np.testing.assert_array_equal(found, wanted)


# -- against torch -------------------------------------------------------------------------------------------


def _cases() -> dict[str, Any]:
    def of(act: str, layer: Any, **named: Any) -> Any:
        return lambda package: getattr(package.utils.parametrizations, act)(layer(package), **named)

    found = {
        f"weight_norm-{dim}": of("weight_norm", lambda p: p.Conv2d(3, 4, 2), dim=dim) for dim in (0, 1, None)
    }
    found["spectral_norm"] = of("spectral_norm", lambda p: p.Conv2d(3, 4, 2), n_power_iterations=2)
    found["spectral_norm-transposed"] = of("spectral_norm", lambda p: p.ConvTranspose2d(3, 4, 2))
    found["spectral_norm-bias"] = of("spectral_norm", lambda p: p.Conv2d(3, 4, 2), name="bias")
    for each in MAPS:
        for has_base in (True, False):
            for rows, columns in ((4, 4), (5, 4), (3, 4)):
                found[f"{each}-{has_base}-{rows}-{columns}"] = of(
                    "orthogonal",
                    lambda p, rows=rows, columns=columns: p.Linear(columns, rows),
                    orthogonal_map=each,
                    use_trivialization=has_base,
                )
    return found


@pytest.mark.parametrize("name", _cases())
def test_against_torch(name: str) -> None:
    torch = pytest.importorskip("torch")
    ours, theirs = _cases()[name](nn), _cases()[name](torch.nn)
    assert repr(ours) == repr(theirs)
    state = theirs.state_dict()
    assert list(ours.state_dict()) == list(state)
    drawn = {}
    for key, value in state.items():
        moved = value.numpy()
        if key.endswith("original") and "norm" not in name:  # whose diagonal may be signs
            moved = moved + np.tril(0.3 * normal(RANDOM, *value.shape), -1)
        drawn[key] = moved.astype(np.float32)
    theirs.load_state_dict({key: torch.tensor(value) for key, value in drawn.items()})
    ours.load_state_dict(drawn)
    x = normal(RANDOM, 2, 3, 4, 4) if "norm" in name else normal(RANDOM, 2, 4)
    for _ in range(2):  # the second time vectors have moved on
        results = ours(vkml.tensor(x)), theirs(torch.tensor(x))
        close(results[0].detach().numpy(), results[1].detach().numpy(), "result")
        for result in results:
            (result**2).sum().backward()
    parameters = dict(theirs.named_parameters())
    for key, parameter in ours.named_parameters():
        close(parameter.grad.numpy(), parameters[key].grad.numpy(), f"gradient by {key}")
    for key, value in ours.state_dict().items():
        close(value.numpy(), theirs.state_dict()[key].numpy(), key)
