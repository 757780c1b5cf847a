"""Metrics: numbers beside the loss, summed up where a model's outputs are and read when someone looks."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from typing import Any

import numpy as np

from vkml import nn
from vkml.errors import InvalidArgument
from vkml.ir.dtypes import FLOAT32, INT32, INT64
from vkml.tensors import Tensor
from vkml.tensors import operations as op
from vkml.tensors.creation import arange, full, zeros
from vkml.training.arguments import alike, chosen

Array = np.ndarray[Any, Any]
_CARRY = 1 << 30


class Metric:
    """Base of metrics: `observe` sums up a batch on the device, `value` makes a number of the sums.

    Sums are tensors that are written in place, so that a step that `vkml.jit` captures goes on with them.

    Args:
        name: under which it is shown and noted.
    """

    def __init__(self, name: str) -> None:
        self.name = name
        self._sums: dict[str, Tensor] = {}

    def observe(self, output: Any, target: Any) -> None:
        """Takes a batch in.

        Args:
            output: the model's, [batch, ...].
            target: [batch, ...].
        """
        raise NotImplementedError

    def value(self) -> float:
        """The number of all batches since the last `reset`; NaN of none."""
        raise NotImplementedError

    def reset(self) -> None:
        """Begins anew."""
        for tensor in self._sums.values():
            tensor.zero_()

    def state(self) -> dict[str, Tensor]:
        """The sums, to be saved."""
        return dict(self._sums)

    def load_state(self, state: dict[str, Tensor], device: str) -> None:
        """Goes on from sums that were saved.

        Args:
            state: sums by name.
            device: where they are to be.
        """
        self._sums = {name: tensor.to(device).clone() for name, tensor in state.items()}

    def _count(self, name: str, counts: Tensor) -> None:
        """Adds counts of a batch, each below 2³⁰, to a sum: its last 30 bits, and what they carried.

        An epoch of pictures of which each pixel counts has more than an int32 holds, and not all devices have
        int64.
        """
        low, high = self._sum(name, counts, INT32), self._sum(f"{name} carried", counts, INT32)
        after = low + counts.to(INT32)
        carried = (after >= _CARRY).to(INT32)
        high.add_(carried)
        low.copy_(after - carried * _CARRY)

    def _add(self, name: str, amount: Tensor) -> None:
        """Adds to a sum of float32 together with what earlier additions rounded off (Kahan 1965)."""
        total, lost = self._sum(name, amount, FLOAT32), self._sum(f"{name} lost", amount, FLOAT32)
        wanted = amount.to(FLOAT32) - lost
        after = total + wanted
        lost.copy_((after - total) - wanted)
        total.copy_(after)

    def _sum(self, name: str, like: Tensor, dtype: Any) -> Tensor:
        if name not in self._sums:
            self._sums[name] = zeros(*like.shape, dtype=dtype, device=like.device)
        return self._sums[name]

    def _read(self, name: str) -> Array:
        parts = [self._sums.get(each) for each in (name, f"{name} carried")]
        low, high = (
            np.zeros(()) if each is None else each.detach().numpy().astype(np.float64) for each in parts
        )
        return np.asarray(low + high * _CARRY)


def _ratio(part: Any, whole: Any) -> float:
    return float(part) / float(whole) if whole else math.nan


def _classes(output: Tensor, target: Tensor, threshold: float) -> tuple[Tensor, Tensor, Tensor]:
    """Classes that were predicted, those wanted, and the scores, [batch, classes, ...], or those of one."""
    if output.ndim > 1 and output.shape[1] > 1:
        if target.ndim == output.ndim:  # probabilities, or one of each is 1
            target = target.argmax(1)
        return output.argmax(1).to(INT32), target.to(INT32), output
    scores = output.reshape(-1)
    return (scores > threshold).to(INT32), target.reshape(-1).to(INT32), scores


class Accuracy(Metric):
    """The share of samples whose class is found.

    Args:
        name: of the metric.
        threshold: above which an output of one column means the second of two classes: 0 of logits.
        ignore_index: a class that does not count, as `cross_entropy`'s.
    """

    def __init__(self, name: str = "accuracy", threshold: float = 0.0, ignore_index: int = -100) -> None:
        super().__init__(name)
        self._threshold, self._ignored = threshold, ignore_index

    def observe(self, output: Any, target: Any) -> None:
        found, wanted, _ = _classes(output, target, self._threshold)
        self._count("right", op.eq(found, wanted).to(FLOAT32).sum())
        self._count("all", op.ne(wanted, self._ignored).to(FLOAT32).sum())

    def value(self) -> float:
        return _ratio(self._read("right"), self._read("all"))


class TopK(Metric):
    """The share of samples whose class is among the k best.

    Args:
        k: how many.
        ignore_index: a class that does not count.
    """

    def __init__(self, k: int = 5, ignore_index: int = -100) -> None:
        if k < 1:
            raise InvalidArgument(f"the best {k} classes are none: k is 1 or more")
        super().__init__(f"top{k}")
        self._k, self._ignored = k, ignore_index

    def observe(self, output: Any, target: Any) -> None:
        _, wanted, scores = _classes(output, target, 0.0)
        if scores.ndim < 2 or scores.shape[1] < self._k:
            raise InvalidArgument(
                f"{self.name} needs {self._k} classes, the model gives {list(output.shape)}"
            )
        # Whether fewer than k are better: no order is needed.
        is_counted = op.ne(wanted, self._ignored)
        place = op.where(is_counted, wanted, 0).unsqueeze(1).to(INT64)
        own = op.gather(scores, 1, place)
        better = (scores > own).to(FLOAT32).sum(1)
        hits = op.logical_and(better < self._k, is_counted)
        self._count("right", hits.to(FLOAT32).sum())
        self._count("all", is_counted.to(FLOAT32).sum())

    def value(self) -> float:
        return _ratio(self._read("right"), self._read("all"))


class _OfClasses(Metric):
    """Base of metrics of how often each class was right, missed and wrongly found.

    Args:
        name: of the metric.
        average: "macro" for the mean over classes, those without any sample or prediction left out; "micro"
            for all samples as one; None for the second of two classes alone, and "macro" of more.
        threshold: as `Accuracy`'s.
        ignore_index: a class that does not count.
    """

    def __init__(
        self, name: str, average: str | None = None, threshold: float = 0.0, ignore_index: int = -100
    ) -> None:
        super().__init__(name)
        if average not in (None, "macro", "micro"):
            raise InvalidArgument(f"{name}: average is 'macro', 'micro' or None, not {average!r}")
        self._average, self._threshold, self._ignored = average, threshold, ignore_index

    def observe(self, output: Any, target: Any) -> None:
        found, wanted, scores = _classes(output, target, self._threshold)
        count = scores.shape[1] if scores.ndim > 1 else 2
        found, wanted = found.reshape(-1), wanted.reshape(-1)
        is_counted = op.ne(wanted, self._ignored).to(FLOAT32).unsqueeze(1)
        numbers = arange(count, dtype=INT32, device=output.device).unsqueeze(0)
        predicted = op.eq(found.to(INT32).unsqueeze(1), numbers).to(FLOAT32) * is_counted
        actual = op.eq(wanted.to(INT32).unsqueeze(1), numbers).to(FLOAT32)
        self._count("right", (predicted * actual).sum(0))
        self._count("predicted", predicted.sum(0))
        self._count("actual", actual.sum(0))

    def value(self) -> float:
        right, predicted, actual = (self._read(name) for name in ("right", "predicted", "actual"))
        if not right.ndim:
            return math.nan
        average = self._average or ("second" if len(right) == 2 else "macro")
        if average == "second":
            return self.score(right[1], predicted[1], actual[1])
        if average == "micro":
            return self.score(right.sum(), predicted.sum(), actual.sum())
        seen = [at for at in range(len(right)) if predicted[at] or actual[at]]
        scores = [self.score(right[at], predicted[at], actual[at]) for at in seen]
        return _ratio(sum(scores), len(scores))

    def score(self, right: float, predicted: float, actual: float) -> float:
        """The metric of one class."""
        raise NotImplementedError


class F1(_OfClasses):
    """The harmonic mean of precision and recall; of more than two classes, the mean of theirs.

    Args:
        name: of the metric.
        average: "macro" for the mean over classes that there are; "micro" for all samples as one; None for
            the second of two classes alone, and "macro" of more.
        threshold: as `Accuracy`'s.
        ignore_index: a class that does not count.
    """

    def __init__(
        self, name: str = "f1", average: str | None = None, threshold: float = 0.0, ignore_index: int = -100
    ) -> None:
        super().__init__(name, average, threshold, ignore_index)

    def score(self, right: float, predicted: float, actual: float) -> float:
        return float(2 * right / (predicted + actual)) if right else 0.0


class Precision(_OfClasses):
    """The share of what is found that is right; see `F1` for arguments and more than two classes."""

    def __init__(
        self,
        name: str = "precision",
        average: str | None = None,
        threshold: float = 0.0,
        ignore_index: int = -100,
    ) -> None:
        super().__init__(name, average, threshold, ignore_index)

    def score(self, right: float, predicted: float, actual: float) -> float:
        return float(right / predicted) if right else 0.0


class Recall(_OfClasses):
    """The share of what there is that is found; see `F1` for arguments and more than two classes."""

    def __init__(
        self,
        name: str = "recall",
        average: str | None = None,
        threshold: float = 0.0,
        ignore_index: int = -100,
    ) -> None:
        super().__init__(name, average, threshold, ignore_index)

    def score(self, right: float, predicted: float, actual: float) -> float:
        return float(right / actual) if right else 0.0


class _OfErrors(Metric):
    """Base of means over elements of what a model gets wrong."""

    def observe(self, output: Any, target: Any) -> None:
        error = output - alike(target, output)
        self._add("errors", self.error(error).to(FLOAT32).sum())
        self._count("all", full((), error.numel(), dtype=INT32, device=error.device))

    def error(self, difference: Tensor) -> Tensor:
        """What is averaged, of output less target."""
        raise NotImplementedError

    def value(self) -> float:
        return _ratio(self._read("errors"), self._read("all"))


class MAE(_OfErrors):
    """The mean absolute error."""

    def __init__(self, name: str = "mae") -> None:
        super().__init__(name)

    def error(self, difference: Tensor) -> Tensor:
        return difference.abs()


class MSE(_OfErrors):
    """The mean squared error."""

    def __init__(self, name: str = "mse") -> None:
        super().__init__(name)

    def error(self, difference: Tensor) -> Tensor:
        return difference.square()


class RMSE(MSE):
    """The root of the mean squared error."""

    def __init__(self, name: str = "rmse") -> None:
        super().__init__(name)

    def value(self) -> float:
        return math.sqrt(super().value())


class R2(Metric):
    """The share of the target's variance that a model explains: 1 of all, 0 of none.

    Batches are joined as Chan, Golub and LeVeque (1983) do, so that a target far from 0 costs no precision.
    """

    def __init__(self, name: str = "r2") -> None:
        super().__init__(name)

    def observe(self, output: Any, target: Any) -> None:
        wanted = alike(target, output).to(FLOAT32)
        self._add("errors", (output.to(FLOAT32) - wanted).square().sum())
        count = float(wanted.numel())
        mean = wanted.mean()
        spread = (wanted - mean).square().sum()
        before, middle = self._sum("count", mean, FLOAT32), self._sum("mean", mean, FLOAT32)
        apart, after = mean - middle, before + count
        self._add("spread", spread + apart.square() * (before * count / after))
        middle.copy_(middle + apart * (count / after))
        before.copy_(after)

    def value(self) -> float:
        return 1 - _ratio(self._read("errors"), self._read("spread"))


class Mean(Metric):
    """The mean of what a function makes of output and target, each batch weighted by its samples.

    Args:
        function: of output and target: a tensor of one element.
        name: of the metric; that of the function where left out.
    """

    def __init__(self, function: Callable[[Any, Any], Tensor], name: str | None = None) -> None:
        super().__init__(name or getattr(function, "__name__", None) or type(function).__name__)
        self._function = function

    def observe(self, output: Any, target: Any) -> None:
        found = self._function(output, target)
        if not isinstance(found, Tensor) or found.numel() != 1:
            raise InvalidArgument(f"the metric {self.name!r} makes no tensor of one element")
        first = target if isinstance(target, Tensor) else output
        samples = first.shape[0] if first.ndim else 1
        self._add("sum", found.detach().reshape(()) * float(samples))
        self._count("all", full((), samples, dtype=INT32, device=found.device))

    def value(self) -> float:
        return _ratio(self._read("sum"), self._read("all"))


_NAMED: dict[str, Callable[[], Metric]] = {
    "accuracy": Accuracy, "top1": lambda: TopK(1), "top3": lambda: TopK(3), "top5": TopK, "f1": F1,
    "precision": Precision, "recall": Recall, "mae": MAE, "mse": MSE, "rmse": RMSE, "r2": R2,
}  # fmt: skip


def metrics_of(metrics: Any, threshold: float = 0.0) -> list[Metric]:
    """Metrics as `vkml.fit` takes them.

    Args:
        metrics: one, or several: names ("accuracy", "top5", "f1", "precision", "recall", "mae", "mse",
            "rmse", "r2"), metrics or their classes, or functions of output and target that make a tensor of
            one element, whose mean is shown.
        threshold: of classes by name where outputs have one column.

    Raises:
        InvalidArgument: there is no such metric, or there are two of one name.
    """
    given = [metrics] if isinstance(metrics, str) or not isinstance(metrics, Iterable) else list(metrics)
    found = [_metric(metric, threshold) for metric in given if metric is not None]
    names = [metric.name for metric in found]
    twice = next((name for name in names if names.count(name) > 1 or name in ("loss", "epoch", "lr")), None)
    if twice is not None:
        raise InvalidArgument(f"there are two columns {twice!r}: give one of the metrics another name")
    return found


def _metric(metric: Any, threshold: float) -> Metric:
    if isinstance(metric, str):
        made = _NAMED[chosen("metric", metric, _NAMED)]()
        if isinstance(made, Accuracy | _OfClasses):
            made._threshold = threshold
        return made
    if isinstance(metric, Metric):
        return metric
    if isinstance(metric, type) and issubclass(metric, Metric | nn.Module):
        made_of: Callable[[], Any] = metric
        metric = made_of()
        return metric if isinstance(metric, Metric) else Mean(metric)
    if callable(metric):
        return Mean(metric)
    raise InvalidArgument(
        f"a metric is a name, a Metric or a function of output and target, not {type(metric).__name__}"
    )
