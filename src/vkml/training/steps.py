"""Steps of training and validation: what is computed for a batch, captured where that can be."""

from __future__ import annotations

import contextlib
import functools
import math
import warnings
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from vkml import nn, optim
from vkml.amp import GradScaler
from vkml.errors import CaptureError
from vkml.ir import DType
from vkml.ir.dtypes import FLOAT32
from vkml.nn.utils import clip_grad_norm_, clip_grad_value_
from vkml.tensors import Tensor
from vkml.tensors import operations as op
from vkml.tensors.autocast import autocast
from vkml.tensors.autograd import no_grad
from vkml.tensors.backward import compute
from vkml.tensors.capture import is_capturing
from vkml.tensors.creation import as_tensor, zeros_like
from vkml.tensors.jit import jit
from vkml.training.arguments import LossFunction
from vkml.training.batches import mapped
from vkml.training.metrics import Metric

Array = np.ndarray[Any, Any]


class Captured:
    """A function of batches that is captured by `vkml.jit`, or else runs as it is written.

    A call that fails leaves no tensor to be computed from what failed.

    Args:
        function: of tensors of a device; returns a tensor or None.
        device: its name.
        is_wanted: whether to capture it at all.
        noted: gives a function that has everything be as it is now, when called.
    """

    def __init__(
        self, function: Callable[..., Any], device: str, is_wanted: bool,
        noted: Callable[[], Callable[[], None]],
    ) -> None:  # fmt: skip
        @functools.wraps(function)
        def computed(*arguments: Any) -> Any:
            if is_capturing():
                return function(*arguments)
            undo = noted()
            try:
                made = function(*arguments)
                compute([] if made is None else [made], None if made is None else made.value)
            except BaseException:
                undo()
                raise
            return made

        self._function, self._device = computed, device
        self._captured: Callable[..., Any] | None = jit(computed, device=device) if is_wanted else None

    @property
    def is_captured(self) -> bool:
        """Whether it is captured, as far as one knows yet."""
        return self._captured is not None

    def __call__(self, *arguments: Any) -> Any:
        arguments = mapped(self._near, arguments)
        if self._captured is not None:
            try:
                return self._captured(*arguments)
            except CaptureError as problem:
                warnings.warn(
                    f"the step is not captured, and slower for it: {problem} (jit=False turns this off)",
                    UserWarning,
                    stacklevel=4,
                )
                self._captured = None
        return self._function(*mapped(lambda leaf: as_tensor(leaf, device=self._device), arguments))

    def forget(self) -> None:
        """Captures anew: the function does something else from now on, or is to give its memory back."""
        if self._captured is not None:
            self._captured = jit(self._function, device=self._device)

    def _near(self, leaf: Any) -> Any:
        """A leaf that the run itself can bring to the device: an array, or a tensor that is there."""
        if not isinstance(leaf, Tensor) or leaf.device == self._device:
            return leaf
        return leaf.detach().numpy() if leaf.device == "cpu" else leaf.to(self._device)


def called(model: Callable[..., Any], inputs: Any) -> Any:
    """What a model makes of inputs: one, several in a tuple or list, or by name in a mapping."""
    if isinstance(inputs, Mapping):
        return model(**inputs)
    if isinstance(inputs, tuple | list):
        return model(*inputs)
    return model(inputs)


class Learning:
    """Steps that train a model.

    Args:
        model: it.
        loss: of its output and a target.
        optimizer: of its parameters.
        metrics: that take in what it gives.
        device: where it is.
        half: the narrow type of autocast, or None.
        scaler: of gradients in float16.
        clip_norm: the greatest norm of all gradients as one vector.
        clip_value: the greatest size of a gradient's element.
        accumulate: batches a step of the optimizer.
        jit: whether to capture.
    """

    def __init__(
        self, model: nn.Module, loss: LossFunction, optimizer: optim.Optimizer, metrics: Sequence[Metric],
        *, device: str, half: DType | None, scaler: GradScaler, clip_norm: float | None,
        clip_value: float | None, accumulate: int, jit: bool,
    ) -> None:  # fmt: skip
        self._model, self._loss, self._optimizer, self._metrics = model, loss, optimizer, metrics
        self._device, self._half, self._scaler = device, half, scaler
        self._clip_norm, self._clip_value, self._accumulate = clip_norm, clip_value, accumulate
        self._sums: dict[Tensor, Tensor] = {}
        """Of parameters that had gradients, the sum of these since the last step."""
        self._samples = 0
        self._waiting = 0
        if accumulate > 1:
            act = self._gather
        elif _needs_closure(optimizer):
            act = self._search
        else:
            act = self._learn
        self._act = Captured(act, device, jit, self._noted)
        self._finish = Captured(self._apply, device, jit, self._noted)

    @property
    def is_captured(self) -> bool:
        """Whether steps are captured, as far as one knows yet."""
        return self._act.is_captured

    def __call__(self, inputs: Any, target: Any, samples: int) -> float:
        """Trains with a batch; returns its loss.

        Args:
            inputs: of the model.
            target: of the loss.
            samples: of the batch.
        """
        loss = float(self._act(inputs, target).item())
        if self._accumulate > 1 and math.isfinite(loss):
            self._samples += samples
            self._waiting += 1
            if self._waiting == self._accumulate:
                self.flush()
        return loss

    def flush(self) -> None:
        """Applies gradients that wait."""
        if self._waiting:
            self._finish(np.array(self._samples, np.float32))
            self._samples = self._waiting = 0

    @property
    def is_waiting(self) -> bool:
        """Whether gradients wait for more of them."""
        return self._waiting > 0

    def forget(self) -> None:
        """Captures anew at the next step."""
        self._act.forget()
        self._finish.forget()

    def look(self, inputs: Any, target: Any) -> None:
        """Computes gradients of a batch, not captured: for `detect_anomaly`."""
        tensors = mapped(lambda leaf: as_tensor(leaf, device=self._device), (inputs, target))
        self._optimizer.zero_grad()
        try:
            _, loss = self._forward(*tensors)
            loss.backward()
        finally:
            self._optimizer.zero_grad()

    def _noted(self) -> Callable[[], None]:
        optimizer = self._optimizer
        state = {parameter: dict(found) for parameter, found in optimizer.state.items()}
        sums = dict(self._sums)
        held = [value for found in state.values() for value in found.values() if isinstance(value, Tensor)]
        undo = _noted(self._model, self._metrics, [*held, *sums.values()])

        def undone() -> None:
            optimizer.state, self._sums = state, sums
            optimizer.zero_grad()
            undo()

        return undone

    # -- what is captured -----------------------------------------------------------------------------------

    def _forward(self, inputs: Any, target: Any) -> tuple[Any, Tensor]:
        with casting(self._device, self._half):
            output = called(self._model, inputs)
            return output, self._loss(output, target)

    def _learn(self, inputs: Any, target: Any) -> Tensor:
        """A batch, a step."""
        self._optimizer.zero_grad()
        output, loss = self._forward(inputs, target)
        self._scaler.scale(loss).backward()
        self._step(loss)
        self._observe(output, target)
        return loss.detach()

    def _search(self, inputs: Any, target: Any) -> Tensor:
        """A batch, a step of an optimizer that computes losses itself, the first of which counts."""
        seen: list[tuple[Any, Tensor]] = []

        def closure() -> Tensor:
            self._optimizer.zero_grad()
            output, loss = self._forward(inputs, target)
            loss.backward()
            self._clip()
            if not seen:
                seen.append((output, loss))
            return loss

        self._optimizer.step(closure)
        output, loss = seen[0]
        self._observe(output, target)
        return loss.detach()

    def _gather(self, inputs: Any, target: Any) -> Tensor:
        """A batch, whose gradients are added to those that wait, each sample counting the same."""
        self._optimizer.zero_grad()
        output, loss = self._forward(inputs, target)
        self._scaler.scale(loss).backward()
        samples = _samples_of(inputs)
        with no_grad():
            for parameter in self._parameters():
                if parameter.grad is not None:
                    if parameter not in self._sums:
                        self._sums[parameter] = zeros_like(parameter)
                    self._sums[parameter].add_(parameter.grad * float(samples))
        self._optimizer.zero_grad()
        self._observe(output, target)
        return loss.detach()

    def _apply(self, samples: Tensor) -> None:
        """A step by the gradients that wait."""
        with no_grad():
            for parameter, total in self._sums.items():
                parameter.grad = total / samples
        self._step(None)
        with no_grad():
            for total in self._sums.values():
                total.zero_()
        self._optimizer.zero_grad()

    def _step(self, loss: Tensor | None) -> None:
        if self._clip_norm is not None or self._clip_value is not None:
            self._scaler.unscale_(self._optimizer)
            self._clip()
        if loss is None or self._scaler.is_enabled() or not self._optimizer.can_skip():
            self._scaler.step(self._optimizer)
        else:
            # A loss that is no number changes nothing, so that what made it can be looked for.
            is_lost = op.logical_not(op.isfinite(loss.detach()))
            self._optimizer.found_inf = {loss.device: is_lost.to(FLOAT32).reshape(())}
            try:
                self._optimizer.step()
            finally:
                self._optimizer.found_inf = None
        self._scaler.update()

    def _clip(self) -> None:
        if self._clip_norm is not None:
            clip_grad_norm_(self._parameters(), self._clip_norm)
        if self._clip_value is not None:
            clip_grad_value_(self._parameters(), self._clip_value)

    def _parameters(self) -> list[Tensor]:
        return [parameter for group in self._optimizer.param_groups for parameter in group["params"]]

    def _observe(self, output: Any, target: Any) -> None:
        observe(self._metrics, output, target)


class Judging:
    """Steps that compare a model's output with targets, and change nothing.

    Args:
        model: it.
        loss: of its output and a target.
        metrics: that take in what it gives.
        device: where it is.
        half: the narrow type of autocast, or None.
        jit: whether to capture.
    """

    def __init__(
        self, model: nn.Module, loss: LossFunction, metrics: Sequence[Metric], *, device: str,
        half: DType | None, jit: bool,
    ) -> None:  # fmt: skip
        self._model, self._loss, self._metrics = model, loss, metrics
        self._device, self._half = device, half
        self._act = Captured(self._judge, device, jit, lambda: _noted(model, metrics, []))

    def __call__(self, inputs: Any, target: Any) -> float:
        """The loss of a batch."""
        with no_grad():
            return float(self._act(inputs, target).item())

    def forget(self) -> None:
        """Captures anew at the next step."""
        self._act.forget()

    def _judge(self, inputs: Any, target: Any) -> Tensor:
        with casting(self._device, self._half):
            output = called(self._model, inputs)
            loss = self._loss(output, target)
        observe(self._metrics, output, target)
        return loss


def observe(metrics: Sequence[Metric], output: Any, target: Any) -> None:
    """Has metrics take in what a model gives."""
    if not metrics:
        return
    with no_grad():
        seen = mapped(lambda leaf: leaf.detach() if isinstance(leaf, Tensor) else leaf, output)
        for metric in metrics:
            metric.observe(seen, target)


def casting(device: str, half: DType | None) -> contextlib.AbstractContextManager[Any]:
    """Autocast in a narrow type, where there is one."""
    return contextlib.nullcontext() if half is None else autocast(device, half)


def _noted(model: nn.Module, metrics: Sequence[Metric], others: Sequence[Tensor]) -> Callable[[], None]:
    """A function that gives a model, metrics and other tensors the values that they have now."""
    sums = [metric.state() for metric in metrics]
    tensors = [*model._tensors(), *others, *(value for found in sums for value in found.values())]
    before = [(tensor, tensor.value) for tensor in tensors]

    def undo() -> None:
        for metric, found in zip(metrics, sums, strict=True):
            metric._sums = found
        for tensor, value in before:
            if tensor.value is not value:
                tensor._restore(value)

    return undo


def _needs_closure(optimizer: optim.Optimizer) -> bool:
    return isinstance(optimizer, optim.LBFGS)


def _samples_of(inputs: Any) -> int:
    found: list[Tensor] = []
    mapped(found.append, inputs)
    return int(found[0].shape[0])
