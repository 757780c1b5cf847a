"""Losses against PyTorch's, with all that they can be told."""

from __future__ import annotations

import functools
import itertools
import warnings
from typing import Any

import numpy as np
import pytest

import vkml
from tests.nn.comparing import compare
from vkml import nn
from vkml.nn import functional

RANDOM = np.random.default_rng(5)
REDUCTIONS = ("mean", "sum", "none")


@pytest.mark.parametrize("shape", [(4,), (5, 4), (3, 4, 2, 3)])
@pytest.mark.parametrize("kind", ["classes", "probabilities"])
def test_cross_entropy(shape: tuple[int, ...], kind: str) -> None:
    torch = pytest.importorskip("torch")
    logits, weights = RANDOM.standard_normal(shape), RANDOM.random(4) + 0.5
    places = shape[:1] + shape[2:] if len(shape) > 1 else ()
    if kind == "classes":
        target = RANDOM.integers(0, 4, places)
        target = np.where(RANDOM.random(places) < 0.2, -100, target) if places else target
    else:
        target = RANDOM.random(shape)
    for weighted, reduction, smoothing in itertools.product((False, True), REDUCTIONS, (0.0, 0.3)):
        found = functional.cross_entropy(
            vkml.tensor(logits), vkml.tensor(target), vkml.tensor(weights) if weighted else None,
            reduction=reduction, label_smoothing=smoothing,
        )  # fmt: skip
        wanted = torch.nn.functional.cross_entropy(
            torch.tensor(logits), torch.tensor(target), torch.tensor(weights) if weighted else None,
            reduction=reduction, label_smoothing=smoothing,
        )  # fmt: skip
        np.testing.assert_allclose(
            found.numpy(), wanted.numpy(), rtol=1e-10, err_msg=f"{weighted} {reduction} {smoothing}"
        )


def _signs(*shape: int) -> Any:
    return np.where(np.random.default_rng(1).random(shape) < 0.5, -1, 1).astype(np.float32)


def _drawn(*shape: int, low: float = -2.0, high: float = 2.0, seed: int = 0) -> Any:
    return np.random.default_rng(seed).uniform(low, high, shape).astype(np.float32)


X, Y = _drawn(4, 5), _drawn(4, 5, seed=1)
P, Q = _drawn(4, 5, low=0.02, high=0.98), _drawn(4, 5, low=0.0, high=1.0, seed=2)
LOGS = np.log(P / P.sum(1, keepdims=True))
CLASSES = np.array([3, 0, 4, 1])
LABELS = np.array([[3, 0, -1, 1, 1], [2, -1, 0, 0, 0], [-1, 1, 1, 1, 1], [0, 1, 2, 3, 4]])
COUNTS = np.floor(_drawn(4, 5, low=0.0, high=6.0))
WEIGHT = _drawn(5, low=0.5, high=2.0)

Cases = list[tuple[str, list[Any], list[int], dict[str, Any]]]
CASES: Cases = [
    ("mse_loss", [X, Y], [], {}), ("l1_loss", [X, Y], [], {}), ("smooth_l1_loss", [X, Y], [], {"beta": 0.7}),
    ("smooth_l1_loss", [X, Y], [], {"beta": 0.0}), ("huber_loss", [X, Y], [], {"delta": 0.8}),
    ("binary_cross_entropy", [P, Q], [1], {}), ("binary_cross_entropy", [P, Q, WEIGHT], [1, 2], {}),
    ("binary_cross_entropy_with_logits", [X * 10, Q], [], {}),
    ("binary_cross_entropy_with_logits", [X, Q, WEIGHT], [1, 2], {}), ("kl_div", [LOGS, Q], [], {}),
    ("kl_div", [LOGS, LOGS[::-1].copy()], [], {"log_target": True}),
    ("poisson_nll_loss", [X, COUNTS], [1], {"full": True}),
    ("poisson_nll_loss", [P, COUNTS], [1], {"log_input": False}),
    ("gaussian_nll_loss", [X, Y, P], [], {}), ("gaussian_nll_loss", [X, Y, P[:, :1]], [], {"full": True}),
    ("gaussian_nll_loss", [X, Y, P[:, 0] - 0.02], [], {"eps": 0.3}),
    ("soft_margin_loss", [X, _signs(4, 5)], [1], {}), ("hinge_embedding_loss", [X, _signs(4, 5)], [1], {}),
    ("hinge_embedding_loss", [X, _signs(4, 5)], [1], {"margin": 0.3}),
    ("margin_ranking_loss", [X, Y, _signs(4, 5)], [2], {"margin": 0.5}),
    ("cosine_embedding_loss", [X, Y, _signs(4)], [2], {"margin": -0.2}),
    ("cosine_embedding_loss", [X[0], Y[0], np.float32(1)], [2], {}),
    ("triplet_margin_loss", [X, Y, X + Y], [], {}),
    ("triplet_margin_loss", [X, Y, X + Y], [], {"swap": True, "p": 1.0, "margin": 3.0}),
    ("triplet_margin_with_distance_loss", [X[0], Y[0], P[0]], [], {"margin": 3.0}),
    ("multi_margin_loss", [X, CLASSES], [], {}),
    ("multi_margin_loss", [X[0], CLASSES[0]], [], {"margin": 2.0}),
    ("multi_margin_loss", [X, CLASSES], [], {"p": 2, "weight": WEIGHT}),
    ("multilabel_margin_loss", [X, LABELS], [], {}), ("multilabel_margin_loss", [X[0], LABELS[0]], [], {}),
    ("multilabel_soft_margin_loss", [X, (Q > 0.5).astype(np.float32)], [1], {}),
    ("multilabel_soft_margin_loss", [X, (Q > 0.5).astype(np.float32), WEIGHT], [1, 2], {}),
]  # fmt: skip


@pytest.mark.parametrize(("name", "inputs", "constants", "named"), CASES)
def test_against_torch(
    name: str, inputs: list[Any], constants: list[int], named: dict[str, Any], device_name: str
) -> None:
    torch = pytest.importorskip("torch")
    for reduction in REDUCTIONS if device_name == "cpu" else REDUCTIONS[:1]:
        found, wanted = dict(named, reduction=reduction), dict(named, reduction=reduction)
        if "weight" in named:
            found["weight"] = vkml.tensor(named["weight"], device=device_name)
            wanted["weight"] = torch.tensor(named["weight"]).double()
        compare(
            lambda *x: getattr(functional, name)(*x, **found),  # noqa: B023
            lambda *x: getattr(torch.nn.functional, name)(*x, **wanted),  # noqa: B023
            [np.asarray(x) for x in inputs],
            device_name,
            constants=constants,
        )


def test_more_arguments(device_name: str) -> None:
    torch = pytest.importorskip("torch")
    weight = _drawn(4, 5, low=0.5, high=1.5)
    for name in ("mse_loss", "l1_loss", "huber_loss"):
        for reduction in REDUCTIONS:
            compare(
                lambda x, y, w: getattr(functional, name)(x, y, weight=w, reduction=reduction),  # noqa: B023
                lambda x, y, w: getattr(torch.nn.functional, name)(x, y, weight=w, reduction=reduction),  # noqa: B023
                [X, Y, weight],
                device_name,
                constants=[1, 2],
            )
    compare(
        lambda x, t, w: functional.binary_cross_entropy_with_logits(x, t, pos_weight=w),
        lambda x, t, w: torch.nn.functional.binary_cross_entropy_with_logits(x, t, pos_weight=w),
        [X, Q, WEIGHT],
        device_name,
        constants=[1, 2],
    )
    compare(
        lambda x, t: functional.kl_div(x, t, reduction="batchmean"),
        lambda x, t: torch.nn.functional.kl_div(x, t, reduction="batchmean"),
        [LOGS, np.where(Q < 0.3, 0, Q).astype(np.float32)],
        device_name,
        constants=[1],
    )
    for dim in (0, 1):
        compare(
            lambda x, y: functional.cosine_similarity(x, y, dim),  # noqa: B023
            lambda x, y: torch.nn.functional.cosine_similarity(x, y, dim),  # noqa: B023
            [X, Y],
            device_name,
        )
    compare(
        lambda x, y: functional.pairwise_distance(x, y, 3.0, keepdim=True),
        lambda x, y: torch.nn.functional.pairwise_distance(x, y, 3.0, keepdim=True),
        [X, Y],
        device_name,
    )


MODULES: list[tuple[str, dict[str, Any], list[Any]]] = [
    ("MSELoss", {}, [X, Y]), ("L1Loss", {"reduction": "sum"}, [X, Y]),
    ("SmoothL1Loss", {"beta": 0.3}, [X, Y]),
    ("HuberLoss", {"delta": 0.3}, [X, Y]), ("BCELoss", {"weight": WEIGHT}, [P, Q]),
    ("BCEWithLogitsLoss", {"pos_weight": WEIGHT}, [X, Q]),
    ("KLDivLoss", {"reduction": "batchmean"}, [LOGS, Q]),
    ("NLLLoss", {"weight": WEIGHT, "ignore_index": 1}, [LOGS, CLASSES]),
    ("CrossEntropyLoss", {"label_smoothing": 0.1}, [X, CLASSES]),
    ("PoissonNLLLoss", {"full": True}, [X, COUNTS]),
    ("GaussianNLLLoss", {"full": True}, [X, Y, P]), ("SoftMarginLoss", {}, [X, _signs(4, 5)]),
    ("HingeEmbeddingLoss", {"margin": 0.5}, [X, _signs(4, 5)]),
    ("MarginRankingLoss", {"margin": 0.5}, [X, Y, _signs(4, 5)]),
    ("CosineEmbeddingLoss", {"margin": 0.1}, [X, Y, _signs(4)]),
    ("TripletMarginLoss", {"margin": 2.0, "swap": True}, [X, Y, P]),
    ("TripletMarginWithDistanceLoss", {"margin": 2.0}, [X, Y, P]),
    ("MultiMarginLoss", {"weight": WEIGHT, "p": 2}, [X, CLASSES]), ("MultiLabelMarginLoss", {}, [X, LABELS]),
    ("MultiLabelSoftMarginLoss", {"weight": WEIGHT}, [X, (Q > 0.5).astype(np.float32)]),
    ("CosineSimilarity", {"dim": 0}, [X, Y]), ("PairwiseDistance", {"p": 1.0}, [X, Y]),
]  # fmt: skip


@pytest.mark.parametrize(("name", "named", "inputs"), MODULES)
def test_modules(name: str, named: dict[str, Any], inputs: list[Any]) -> None:
    torch = pytest.importorskip("torch")
    arrays = {key: value for key, value in named.items() if isinstance(value, np.ndarray)}
    ours = getattr(nn, name)(**{**named, **{key: vkml.tensor(value) for key, value in arrays.items()}})
    theirs = getattr(torch.nn, name)(
        **{**named, **{key: torch.tensor(value) for key, value in arrays.items()}}
    )
    assert repr(ours) == repr(theirs) and list(ours.state_dict()) == list(theirs.state_dict())
    theirs.double()
    compare(ours, theirs, inputs, "cpu", constants=range(1, len(inputs)))


def test_at_logits_of_zero(device_name: str) -> None:
    """Networks begin there: slopes are those of both sides."""
    for name, target, slope in (
        ("binary_cross_entropy_with_logits", 1.0, -0.5), ("binary_cross_entropy_with_logits", 0.0, 0.5),
        ("soft_margin_loss", 1.0, -0.5), ("multilabel_soft_margin_loss", 1.0, -0.5),
    ):  # fmt: skip
        x = vkml.zeros(1, device=device_name, requires_grad=True)
        getattr(functional, name)(x, vkml.full([1], target, device=device_name)).backward()
        assert x.grad is not None and x.grad.item() == pytest.approx(slope), name


def test_by_hand() -> None:
    x = vkml.tensor([0.0, 2.0, -3.0])
    assert functional.smooth_l1_loss(x, vkml.zeros(3), reduction="none").tolist() == [0, 1.5, 2.5]
    assert functional.huber_loss(x, vkml.zeros(3), "none", 2.0).tolist() == [0, 2, 4]
    found = functional.binary_cross_entropy(vkml.tensor([0.0, 1.0, 0.5]), vkml.tensor([1.0, 1.0, 0.5]))
    assert found.item() == pytest.approx((100 + np.log(2)) / 3)
    far = functional.binary_cross_entropy_with_logits(vkml.tensor([-1e4, 1e4]), vkml.tensor([0.0, 1.0]))
    assert far.item() == 0


def test_wrong_targets(device_name: str) -> None:
    smoothed = functools.partial(functional.cross_entropy, label_smoothing=0.1)
    with pytest.raises(ValueError, match="target has the shape"):
        functional.cross_entropy(vkml.ones(3, 4), vkml.zeros(4, dtype=vkml.int64))
    with pytest.raises(ValueError, match="probabilities"):
        functional.cross_entropy(vkml.ones(3, 4), vkml.ones(3))
    scores = vkml.ones(2, 3, device=device_name)
    for loss in (functional.cross_entropy, functional.nll_loss, smoothed):
        for label in (-1, 3):
            with pytest.raises(IndexError):
                loss(scores, vkml.tensor([0, label], device=device_name)).item()
        labels = vkml.tensor([0, -1], device=device_name)
        assert loss(scores, labels, ignore_index=-1).isfinite().item()
        with pytest.raises(RuntimeError, match="each of the 3 classes"):
            loss(scores, vkml.tensor([0, 1]), weight=vkml.ones(2))
    many = vkml.zeros(1, 300)
    assert functional.nll_loss(many, vkml.tensor([255], dtype=vkml.uint8)).item() == 0
    with pytest.raises(ValueError, match="reduction"):
        functional.mse_loss(vkml.ones(3), vkml.ones(3), reduction="max")
    with pytest.raises(ValueError, match="reduction"):
        functional.cross_entropy(vkml.ones(3, 4), vkml.zeros(3, dtype=vkml.int64), reduction="max")
    with pytest.raises(RuntimeError, match="must match"):
        functional.huber_loss(vkml.ones(3), vkml.ones(4))
    with pytest.raises(ValueError, match="must have the shape"):
        functional.binary_cross_entropy(vkml.ones(3), vkml.ones(1))
    with pytest.raises(ValueError, match="incorrect size"):
        functional.gaussian_nll_loss(vkml.ones(3, 4), vkml.ones(3, 4), vkml.ones(4))
    with pytest.raises(RuntimeError, match="multi_margin"):
        functional.multi_margin_loss(vkml.ones(3, 4), vkml.zeros(4, dtype=vkml.int64))
    with pytest.raises(ValueError, match="margin"):
        functional.triplet_margin_loss(vkml.ones(3), vkml.ones(3), vkml.ones(3), margin=0)


@pytest.mark.parametrize("name", ["mse_loss", "l1_loss", "smooth_l1_loss", "huber_loss"])
def test_shapes_that_are_broadcast_are_warned_of(name: str) -> None:
    loss = getattr(nn.functional, name)
    with pytest.warns(UserWarning, match=r"\[3\].*\[3, 1\].*broadcast"):
        assert loss(vkml.ones(3, 1), vkml.zeros(3), reduction="none").shape == (3, 3)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        loss(vkml.ones(3, 1), vkml.zeros(3, 1))


@pytest.mark.parametrize("name", ["nll_loss", "cross_entropy"])
def test_classes_are_integers(name: str) -> None:
    with pytest.raises(RuntimeError):
        getattr(nn.functional, name)(vkml.ones(2, 3), vkml.tensor([0.0, 1.0]))
