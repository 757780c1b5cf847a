"""`vkml.func.vmap` is a loop over examples."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import vkml
from vkml import Tensor, nn
from vkml.func import grad, hessian, jacfwd, jacrev, jvp, vmap
from vkml.nn import functional as F
from vkml.tracing import batching

Array = np.ndarray[Any, Any]
SIZE = 3


def normal(*shape: int, seed: int = 0) -> Tensor:
    return vkml.tensor(np.random.default_rng((seed, *shape)).standard_normal(shape).astype(np.float32))


W, K, IMAGE = normal(4, 5, seed=1), normal(2, 3, 3, 3, seed=2), (3, 6, 6)
INDEX = vkml.tensor([2, 0, 1])

CASES: dict[str, tuple[Callable[..., Any], tuple[tuple[int, ...], ...]]] = {
    "pointwise of other ranks": (lambda x, y: x * y + vkml.sin(x) / (y * y + 1), ((2, 4), (4,))),
    "with what is the same for all": (lambda x: x + W, ((5,),)),
    "product": (lambda x, y: x @ y, ((2, 4), (4, 3))),
    "product with a vector": (lambda x, y: x @ y, ((2, 4), (4,))),
    "product of vectors": (lambda x, y: x @ y, ((4,), (4,))),
    "product with a matrix of all": (lambda x: x @ W, ((2, 4),)),
    "matrix of all times a vector": (lambda x: W @ x, ((5,),)),
    "matrix of all times matrices": (lambda x: W @ x, ((2, 5, 3),)),
    "batch by matrix": (lambda x, y: x @ y, ((2, 3, 4), (4, 3))),
    "sums": (lambda x: x.sum() + x.mean(0).sum() + x.amax(-1, keepdim=True).sum(), ((2, 4),)),
    "sum of a number": (lambda x: x.sum() * 2, ((),)),
    "softmax": (lambda x: vkml.softmax(x, 0) + vkml.log_softmax(x, -1), ((2, 4),)),
    "shapes": (lambda x: x.reshape(4, 2).transpose(0, 1).unsqueeze(1).expand(2, 3, 4).flatten(), ((2, 4),)),
    "parts": (lambda x: vkml.cat([x[1:, ::2], x[:1, 1:3]], 0), ((3, 4),)),
    "split and stack": (lambda x, y: vkml.stack([*x.split(2), y], -1), ((4,), (2,))),
    "rows by number": (lambda x: x[INDEX] + x.index_select(0, INDEX), ((3, 2),)),
    "order": (lambda x: (x.sort(0)[0], x.topk(2)[1], x.argmax(-1), x.cumsum(0)), ((3, 4),)),
    "scatter": (lambda x: vkml.zeros(3, 4).scatter(0, INDEX.reshape(1, 3), x), ((1, 3),)),
    "pad": (lambda x: F.pad(x, (1, 2)), ((2, 3),)),
    "images": (lambda x: F.max_pool2d(F.conv2d(x.unsqueeze(0), K, padding=1), 2), (IMAGE,)),
    "norms": (lambda x: F.layer_norm(x, (4,)) + F.rms_norm(x, (4,)), ((2, 4),)),
    "attention": (lambda q, k: F.scaled_dot_product_attention(q, k, k), ((2, 3, 4), (2, 5, 4))),
    "no rule": (lambda x: vkml.linalg.det(x) + vkml.linalg.inv(x).sum(), ((3, 3),)),
    "in place": (lambda x: x.clone().mul_(2).add_(x), ((2,),)),
    "not of the example": (lambda x: (x, W.sum()), ((2,),)),
    "gradient": (grad(lambda x: (x.tanh() @ W).pow(2).sum()), ((4,),)),
    "jacobian": (jacrev(lambda x: (x @ W).sin()), ((4,),)),
    "hessian": (hessian(lambda x: (x * x * x).sum()), ((3,),)),
    "push": (lambda x: jvp(lambda y: y.exp() * y, (x,), (x + 1,))[1], ((3,),)),
}


def _arrays(results: Any) -> list[Array]:
    return [x.detach().numpy() for x in (results if isinstance(results, tuple) else (results,))]


@pytest.mark.parametrize("name", CASES)
def test_it_is_a_loop_over_examples(name: str) -> None:
    function, shapes = CASES[name]
    given = [normal(SIZE, *shape, seed=at + 5) for at, shape in enumerate(shapes)]
    found = _arrays(vmap(function)(*given))
    rows = [_arrays(function(*[x[at] for x in given])) for at in range(SIZE)]
    for at, result in enumerate(found):
        wanted = np.stack([row[at] for row in rows])
        assert result.dtype == wanted.dtype
        np.testing.assert_allclose(result, wanted, rtol=1e-4, atol=1e-5)


def test_rules_are_used(monkeypatch: pytest.MonkeyPatch) -> None:
    """What has one is one application for all examples."""

    def refused(self: Any, made: Any, inputs: Any) -> Any:
        raise AssertionError(f"{made.node.op} has no rule")

    monkeypatch.setattr(batching.Batch, "_one_by_one", refused)
    for name, (function, shapes) in CASES.items():
        if name not in ("attention", "no rule", "rows by number", "images", "order", "norms", "scatter"):
            vmap(function)(*[normal(SIZE, *shape) for shape in shapes])


def test_axes_of_arguments_and_results(device_name: str) -> None:
    x, y = normal(4, SIZE).to(device_name), {"a": normal(2, SIZE).to(device_name), "b": [W.to(device_name)]}

    def function(x: Tensor, y: dict[str, Any], factor: float) -> tuple[Tensor, Tensor]:
        return (x * factor) @ y["b"][0], y["a"].sum()

    first, second = vmap(function, in_dims=(1, {"a": -1, "b": None}, None), out_dims=(-1, 0))(x, y, 2.0)
    wanted = [function(x[:, at], {"a": y["a"][:, at], "b": y["b"]}, 2.0) for at in range(SIZE)]
    np.testing.assert_allclose(first.numpy(), np.stack([w[0].numpy() for w in wanted], -1), rtol=1e-5)
    np.testing.assert_allclose(second.numpy(), np.stack([w[1].numpy() for w in wanted]), rtol=1e-5)
    assert first.device == device_name


def test_nested_and_in_chunks() -> None:
    x, y = normal(4, 3), normal(5, 3)
    pairs = vmap(vmap(vkml.dot, in_dims=(None, 0)), in_dims=(0, None))
    np.testing.assert_allclose(pairs(x, y).numpy(), x.numpy() @ y.numpy().T, rtol=1e-5)
    parts = vmap(lambda a: (a * 2, a.sum()), out_dims=(1, 0), chunk_size=3)(x)
    np.testing.assert_array_equal(parts[0].numpy(), 2 * x.numpy().T)
    np.testing.assert_allclose(parts[1].numpy(), x.numpy().sum(1), rtol=1e-6)


def test_gradients_of_each_example() -> None:
    """Within: one gradient an example; around it: those flow back through the batch, and are captured."""
    model = nn.Linear(3, 2)
    x, y = normal(4, 3), vkml.tensor([0, 1, 1, 0])

    def loss(params: dict[str, Tensor], x: Tensor, y: Tensor) -> Tensor:
        return F.cross_entropy(vkml.func.functional_call(model, params, (x,)), y)

    params = {name: param.detach() for name, param in model.named_parameters()}
    each = vmap(grad(loss), in_dims=(None, 0, 0))(params, x, y)
    total = grad(lambda params: vmap(loss, in_dims=(None, 0, 0))(params, x, y).mean())(params)
    captured = vkml.jit(lambda x: vmap(grad(loss), in_dims=(None, 0, 0))(params, x, y)["weight"])(x)
    np.testing.assert_allclose(captured.numpy(), each["weight"].numpy(), rtol=1e-6)
    for name in params:
        wanted = np.stack([grad(loss)(params, x[at], y[at])[name].numpy() for at in range(4)])
        np.testing.assert_allclose(each[name].numpy(), wanted, rtol=1e-5, atol=1e-6)
        np.testing.assert_allclose(total[name].numpy(), wanted.mean(0), rtol=1e-4, atol=1e-6)
    leaf = x.clone().requires_grad_()
    vmap(lambda row: (row * row.detach()).sum())(leaf).sum().backward()
    assert leaf.grad is not None
    np.testing.assert_array_equal(leaf.grad.numpy(), x.numpy())
    rows = vmap(jacfwd(lambda row: row.pow(3)))(x)
    np.testing.assert_allclose(rows.numpy().sum(-1), 3 * x.numpy() ** 2, rtol=1e-5)


def test_random_numbers() -> None:
    x = vkml.zeros(SIZE, 4)
    with pytest.raises(RuntimeError, match="randomness='different'"):
        vmap(lambda row: row + vkml.rand(4))(x)
    same = vmap(lambda row: row + vkml.rand(4), randomness="same")(x).numpy()
    assert (same == same[0]).all() and len(set(same[0])) == 4
    found = vmap(lambda row: row + vkml.rand(4), randomness="different")(x).numpy()
    assert len({*found.reshape(-1)}) == found.size
    nested = vmap(vmap(lambda one: one + vkml.rand(()), randomness="different"), randomness="different")(x)
    assert len({*nested.numpy().reshape(-1)}) == nested.numel()
    mixed = vmap(vmap(lambda one: one + vkml.rand(()), randomness="same"), randomness="different")(x).numpy()
    assert (mixed == mixed[:, :1]).all() and len({*mixed[:, 0]}) == SIZE
    with pytest.raises(RuntimeError, match="randomness is one of"):
        vmap(vkml.sin, randomness="any")


def test_refusals() -> None:
    x = normal(SIZE, 4)
    with pytest.raises(RuntimeError, match="looks at the elements"):
        vmap(lambda row: row * 2 if row.sum() > 0 else row)(x)
    with pytest.raises(RuntimeError, match="looks at the elements"):
        vmap(lambda row: vkml.tensor(row.exp().numpy()))(x)
    with pytest.raises(ValueError, match="differ"):
        vmap(vkml.add)(x, normal(2, 4))
    with pytest.raises(ValueError, match="no argument has an axis"):
        vmap(vkml.sin, in_dims=None)(x)
    with pytest.raises(ValueError, match="in_dims has 2"):
        vmap(vkml.sin, in_dims=2)(x)
    with pytest.raises(ValueError, match="does not fit 1 arguments"):
        vmap(vkml.sin, in_dims=(0, 0))(x)
    with pytest.raises(ValueError, match="no tensor"):
        vmap(lambda row, y: row)(x, 3)
    with pytest.raises(ValueError, match="out_dims has 3"):
        vmap(vkml.sin, out_dims=3)(x)
    with pytest.raises(ValueError, match="returns float"):
        vmap(lambda row: 1.0)(x)
    with pytest.raises(ValueError, match="chunk_size"):
        vmap(vkml.sin, chunk_size=0)
    with pytest.raises(vkml.NotImplemented, match="gradient of its own"):
        vmap(lambda row: vkml.utils.checkpoint.checkpoint(vkml.sin, row))(x.clone().requires_grad_())
