"""`vkml.fit`: trains a model with batches of data, and says how that goes."""

from __future__ import annotations

import contextlib
import copy
import itertools
import math
import os
import time
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from vkml import nn
from vkml.amp import GradScaler
from vkml.errors import AnomalyFound, InvalidArgument, InvalidCheckpoint, NoDevice
from vkml.ir.dtypes import FLOAT16
from vkml.precisions import PRECISIONS
from vkml.tensors import Tensor
from vkml.tensors.anomaly import set_detect_anomaly
from vkml.tensors.generator import default_generators, generator_of, manual_seed, set_rng_state
from vkml.tensors.random import randint
from vkml.tensors.tensor import device_name
from vkml.tracing import precision as products
from vkml.training.arguments import half_type, loss_function, optimizer_of, takes_probabilities
from vkml.training.batches import ArrayBatches, batches_of, held_out, is_arrays, parts_of
from vkml.training.callbacks import Callback, LRSchedule
from vkml.training.checkpoint import Checkpoint, checkpoints_in, read_checkpoint
from vkml.training.display import Display, display_of
from vkml.training.failures import explain_loss, explain_memory
from vkml.training.history import History, Row
from vkml.training.interrupts import Interrupts
from vkml.training.metrics import Metric, metrics_of
from vkml.training.steps import Judging, Learning


def fit(
    model: nn.Module, data: Any, loss: Any, optimizer: Any = "adamw", epochs: int = 10, *, metrics: Any = (),
    callbacks: Callback | Sequence[Callback] = (), validation: Any = None, device: Any = None,
    batch_size: int = 32, shuffle: bool = True, lr: float | None = None, scheduler: Any = None,
    clip_norm: float | None = None, clip_value: float | None = None, accumulate: int = 1,
    precision: Any = None, jit: bool = True, seed: int | None = None, steps_per_epoch: int | None = None,
    resume: bool | str | os.PathLike[str] | None = None, progress: Any = True, detect_anomaly: bool = False,
) -> History:  # fmt: skip
    """Trains a model.

    Forward pass, gradients, clipping, the optimizer's step and the metrics' sums are captured by `vkml.jit`
    as one plan for each shape of a batch; what cannot be captured runs as it is written, and a warning says
    why. Ctrl-C ends a training after the step at hand, with all that it has.

    Args:
        model: it is trained in place.
        data: batches, pairs of inputs and target: a loader, a list, anything that can be gone through once an
            epoch; or all samples: a `vkml.data.Dataset`, or arrays or tensors, ``(inputs, targets)``. Inputs
            that are a tuple are the model's arguments, a mapping its named ones. float64 arrays come to the
            model in its own type.
        loss: a name ("cross_entropy", "mse", "bce_with_logits", …, as in `vkml.nn.functional`), a loss
            module, or a function of output and target.
        optimizer: a name ("adamw", "sgd", …), a class or function of parameters, or an optimizer.
        epochs: how many rounds over the data; with `resume`, those of before included.
        metrics: names ("accuracy", "top5", "f1", "precision", "recall", "mae", "mse", "rmse", "r2"), metrics
            of `vkml.training`, or functions of output and target.
        callbacks: see `vkml.training.Callback`.
        validation: data that the model is judged by after each epoch; a number between 0 and 1 is the share
            of the samples that is held out for it, where `data` are all samples.
        device: where to train, as in ``"vulkan:0"``; "auto" for the best there is; where the model is if left
            out.
        batch_size: where `data` are all samples.
        shuffle: whether each epoch has an order of its own, where `data` are all samples.
        lr: the learning rate of an optimizer that is not made yet.
        scheduler: of learning rates: one of `vkml.optim.lr_scheduler`, a function that makes one of the
            optimizer, or an `LRSchedule`.
        clip_norm: the greatest norm of all gradients as one vector.
        clip_value: the greatest size of an element of a gradient.
        accumulate: how many batches' gradients make one step; each sample counts the same.
        precision: "bfloat16" or "float16" for autocast (float16 with `GradScaler`); "highest", "high" or
            "medium" for float32 products, as `vkml.set_float32_matmul_precision`.
        jit: whether steps are captured.
        seed: of all random numbers and orders: the same seed, the same training.
        steps_per_epoch: at most so many batches an epoch.
        resume: a checkpoint of `vkml.training.Checkpoint`, or its folder, to go on from; True for the folder
            of the callback, if there is a checkpoint in it.
        progress: whether anything is shown: a bar in a terminal, a line an epoch elsewhere.
        detect_anomaly: whether each step looks for NaN operator by operator: slow.

    Returns:
        the history, a row an epoch.

    Raises:
        InvalidArgument: an argument that cannot be meant; data that give no batches.
        AnomalyFound: the loss is NaN or infinite; the message says in which step, and which operator made it.
        OutOfMemory: a batch is too large for the device; all that it took is free again.
        InvalidCheckpoint: what is to be resumed is damaged.

    Example:
        >>> import numpy as np, vkml
        >>> x = np.random.default_rng(0).standard_normal((256, 2)).astype(np.float32)
        >>> y = (x[:, 0] > x[:, 1]).astype(np.int64)
        >>> model = vkml.nn.Linear(2, 2)
        >>> history = vkml.fit(
        ...     model, (x, y), "cross_entropy", "adam", epochs=20, lr=0.05, metrics="accuracy",
        ...     validation=0.25, seed=0, progress=False,
        ... )
        >>> history.epochs[-1]["val_accuracy"] > 0.9
        True
    """
    trainer = Trainer(
        model, data, loss, optimizer, epochs, metrics=metrics, callbacks=callbacks, validation=validation,
        device=device, batch_size=batch_size, shuffle=shuffle, lr=lr, scheduler=scheduler,
        clip_norm=clip_norm, clip_value=clip_value, accumulate=accumulate, precision=precision, jit=jit,
        seed=seed, steps_per_epoch=steps_per_epoch, resume=resume, progress=progress,
        detect_anomaly=detect_anomaly,
    )  # fmt: skip
    return trainer.run()


def evaluate(
    model: nn.Module, data: Any, loss: Any, *, metrics: Any = (), device: Any = None, batch_size: int = 32,
    precision: Any = None, jit: bool = True,
) -> Row:  # fmt: skip
    """Loss and metrics of a model on data, in the mode of use, nothing of it changed; see `fit`.

    Returns:
        ``"loss"`` and the metrics by name.

    Example:
        >>> import numpy as np, vkml
        >>> data = np.ones((3, 2), np.float32), np.zeros(3, np.int64)
        >>> sorted(vkml.training.evaluate(vkml.nn.Linear(2, 2), data, "cross_entropy", metrics="accuracy"))
        ['accuracy', 'loss']
    """
    where = _device_of(model, device)
    model.to(where)
    found = metrics_of(metrics, 0.5 if takes_probabilities(loss) else 0.0)
    judging = Judging(model, _loss_on(loss, where), found, device=where, half=half_type(precision), jit=jit)
    data = batches_of(data, "data", batch_size, False, 0)
    total, samples = 0.0, 0
    was_training = model.training
    model.eval()
    try:
        with _products(precision):
            for batch in data:
                inputs, target, count = parts_of(batch, _float_type(model))
                total += judging(inputs, target) * count
                samples += count
    finally:
        model.train(was_training)
    return {"loss": total / samples if samples else math.nan, **{each.name: each.value() for each in found}}


class Trainer:
    """A training in progress, as callbacks see it; `fit` makes and runs one.

    Attributes:
        model: what is trained.
        optimizer: of its parameters.
        device: the name of the device on which it is.
        epochs: how many there are to be.
        epoch: the number of the one at hand, from 1.
        step: how many batches there were in all epochs.
        updates: how many steps the optimizer made.
        history: what became of the epochs so far.
        is_resumed: whether it goes on from a checkpoint.
    """

    def __init__(
        self, model: nn.Module, data: Any, loss: Any, optimizer: Any, epochs: int, *, metrics: Any,
        callbacks: Callback | Sequence[Callback], validation: Any, device: Any, batch_size: int,
        shuffle: bool, lr: float | None, scheduler: Any, clip_norm: float | None, clip_value: float | None,
        accumulate: int, precision: Any, jit: bool, seed: int | None, steps_per_epoch: int | None,
        resume: bool | str | os.PathLike[str] | None, progress: Any, detect_anomaly: bool,
    ) -> None:  # fmt: skip
        if not isinstance(model, nn.Module):
            raise InvalidArgument(f"a model is an nn.Module, not {type(model).__name__}")
        for name, number in (
            ("epochs", epochs),
            ("accumulate", accumulate),
            ("steps_per_epoch", steps_per_epoch),
        ):
            if number is not None and number < 1:
                raise InvalidArgument(f"{name} is {number}: it is 1 or more")
        half = half_type(precision)
        self._precision = precision
        if seed is not None:
            manual_seed(seed)
        self.model, self.epochs = model, epochs
        self.device = _device_of(model, device)
        model.to(self.device)
        self._seed = int(randint(0, 2**31 - 1, (1,)).item()) if seed is None else seed
        self._set_data(data, validation, batch_size, shuffle)
        self._limit, self._progress = steps_per_epoch, progress
        self._finds_anomalies = detect_anomaly
        self.optimizer = optimizer_of(optimizer, model.parameters(), lr)
        self._callbacks = _ordered(callbacks, scheduler)
        for callback in self._callbacks:
            if isinstance(callback, LRSchedule):
                callback.prepare(self.optimizer)
        loss_of = _loss_on(loss, self.device)
        threshold = 0.5 if takes_probabilities(loss) else 0.0
        self._metrics = metrics_of(metrics, threshold)
        self._judges = metrics_of(_copies(self._metrics))
        self._scaler = GradScaler(self.device, enabled=half == FLOAT16)
        is_captured = jit and not detect_anomaly
        self._learning = Learning(
            model, loss_of, self.optimizer, self._metrics, device=self.device, half=half, scaler=self._scaler,
            clip_norm=clip_norm, clip_value=clip_value, accumulate=accumulate, jit=is_captured,
        )  # fmt: skip
        self._judging = Judging(model, loss_of, self._judges, device=self.device, half=half, jit=is_captured)
        self._float_type = _float_type(model)
        self.history = History()
        self.epoch = self.step = self.updates = 0
        self._done = self._samples = 0
        self._loss = 0.0
        self._begun: dict[str, Any] = {}
        """Of random generators, the states in which the epoch began."""
        self._reason: str | None = None
        self._interrupts = Interrupts()
        self._display = Display(epochs)
        self._open: Iterator[Any] | None = None
        """What is gone through: a loader whose iterator is gone has ended its epoch, as its state says."""
        self._state_within: dict[str, Any] | None = None
        self.is_resumed = False
        self._resume(resume)

    def _set_data(self, data: Any, validation: Any, batch_size: int, shuffle: bool) -> None:
        if is_arrays(data):
            data = ArrayBatches(data, batch_size, shuffle, self._seed)
        if isinstance(validation, float | int) and not isinstance(validation, bool):
            data, validation = held_out(data, validation, self._seed)
        self._data = batches_of(data, "data", batch_size, shuffle, self._seed)
        self._validation = (
            None
            if validation is None
            else batches_of(validation, "validation", batch_size, False, self._seed)
        )

    # -- for callbacks --------------------------------------------------------------------------------------

    def stop(self, reason: str) -> None:
        """Ends the training: after the epoch where it is called behind one, else after the step.

        Args:
            reason: what the history says of it.
        """
        self._reason = self._reason or reason

    def recapture(self) -> None:
        """Has steps captured anew: the model computes something else from now on."""
        self._learning.forget()
        self._judging.forget()

    @property
    def is_within_epoch(self) -> bool:
        """Whether some of the epoch's batches are done, and its row is not."""
        return self._done > 0

    @property
    def is_step_applied(self) -> bool:
        """Whether no gradients wait for those of more batches."""
        return not self._learning.is_waiting

    def state_dict(self) -> dict[str, Any]:
        """All that a training needs to go on from here, as `vkml.save` takes it."""
        data = getattr(self._data, "state_dict", None)
        return {
            "training": {
                "epoch": self.epoch - 1 if self.is_within_epoch else self.epoch,
                "step": self.step, "updates": self.updates, "seed": self._seed, "done": self._done,
                "samples": self._samples, "loss": self._loss, "rows": self.history.epochs,
            },
            "model": self.model.state_dict(),
            "optimizer": self.optimizer.state_dict(),
            "scaler": self._scaler.state_dict(),
            "generators": _generator_states(), "generators at the epoch's begin": self._begun,
            "metrics": [metric.state() for metric in self._metrics] if self.is_within_epoch else [],
            "callbacks": [callback.state_dict() for callback in self._callbacks],
            "data": None if data is None else data(),
        }  # fmt: skip

    # -- going on from a checkpoint -------------------------------------------------------------------------

    def _resume(self, resume: bool | str | os.PathLike[str] | None) -> None:
        if resume is None or resume is False:
            return
        if resume is True:
            folders = [each.folder for each in self._callbacks if isinstance(each, Checkpoint)]
            if not folders:
                raise InvalidArgument(
                    "resume=True goes on from the folder of a Checkpoint among callbacks: none"
                )
            self.is_resumed = True
            if not checkpoints_in(folders[0]):
                return
            resume = folders[0]
        state = read_checkpoint(resume)
        try:
            self._restore(state)
        except (KeyError, TypeError, ValueError, RuntimeError) as problem:
            raise InvalidCheckpoint(
                f"{os.fspath(resume)!r} is a checkpoint of another training: {problem}"
            ) from problem
        self.is_resumed = True

    def _restore(self, state: dict[str, Any]) -> None:
        found = state["training"]
        self.model.load_state_dict(state["model"])
        self.optimizer.load_state_dict(state["optimizer"])
        self._scaler.load_state_dict(state["scaler"])
        if len(state["callbacks"]) != len(self._callbacks):
            raise InvalidArgument(
                f"it had {len(state['callbacks'])} callbacks, there are {len(self._callbacks)}"
            )
        for callback, kept in zip(self._callbacks, state["callbacks"], strict=True):
            callback.load_state_dict(kept)
        self.epoch, self.step, self.updates = found["epoch"], found["step"], found["updates"]
        self._seed = found["seed"]
        if isinstance(self._data, ArrayBatches):
            self._data.set_seed(self._seed)
        self.history.epochs[:] = found["rows"]
        _set_generators(state["generators"])
        if state["data"] is not None and hasattr(self._data, "load_state_dict"):
            self._data.load_state_dict(state["data"])
        if found["done"]:
            self._state_within = state

    # -- rounds ---------------------------------------------------------------------------------------------

    def run(self) -> History:
        """Trains; see `fit`."""
        was_training = self.model.training
        with (
            _products(self._precision),
            Interrupts() as self._interrupts,
            display_of(self._progress, self.epochs, self.device) as self._display,
        ):
            try:
                self._call("on_train_begin")
                while self.epoch < self.epochs and self._reason is None:
                    self._run_epoch()
                for callback in reversed(self._callbacks):
                    callback.on_train_end(self)
            finally:
                self._open = None
                self.model.train(was_training)
        self.history.stopped = self._reason
        self.history.is_interrupted = self._interrupts.is_asked
        self.history.is_captured = self._learning.is_captured
        if self._reason is not None:
            self._display.note(f"stopped: {self._reason}")
        return self.history

    def _run_epoch(self) -> None:
        self.epoch += 1
        self._call("on_epoch_begin")
        started = time.perf_counter()
        self._begin_epoch()
        before = self._samples if self._state_within is None else self._state_within["training"]["samples"]
        self._train()
        seconds = time.perf_counter() - started
        row: Row = {"epoch": self.epoch, **self._numbers()}
        if not self._is_ending():
            row.update(self._validate())
        if self._is_ending():
            self._reason = self._reason or f"Ctrl-C in epoch {self.epoch}, after {self._done} steps of it"
            return
        row["lr"] = float(self.optimizer.param_groups[0]["lr"])
        row["seconds"] = time.perf_counter() - started
        row["samples_per_second"] = (self._samples - before) / seconds
        self._done = 0
        self.history.epochs.append(row)
        for callback in self._callbacks:
            callback.on_epoch_end(self, row)
        self._display.row(row)
        if self._interrupts.is_asked:
            self._reason = self._reason or f"Ctrl-C after epoch {self.epoch}"

    def _is_ending(self) -> bool:
        """Whether the epoch at hand is not gone through with."""
        return self._done > 0 and (self._interrupts.is_asked or self._reason is not None)

    def _begin_epoch(self) -> None:
        """Begins an epoch, or goes on within one."""
        is_there = self._state_within is not None and hasattr(self._data, "load_state_dict")
        if hasattr(self._data, "set_epoch") and not is_there:
            self._data.set_epoch(self.epoch - 1)
        self.model.train()
        for metric in self._metrics:
            metric.reset()
        self._done = self._samples = 0
        self._loss = 0.0
        self._begun = _generator_states()

    def _train(self) -> None:
        within, self._state_within = self._state_within, None
        if within is not None:
            self._begun = within["generators at the epoch's begin"]
            _set_generators(self._begun)
        batches = self._parts(self._data)
        if within is not None:
            batches = self._go_on(within, batches)
        if self._limit is not None:
            batches = itertools.islice(batches, self._limit - self._done)
        self._open = batches
        total = _length(self._data, self._limit)
        self._display.begin(self.epoch, total, "", self._done, self._samples)
        watching = [each for each in self._callbacks if type(each).on_step_end is not Callback.on_step_end]
        for inputs, target, count in batches:
            loss = self._learn(inputs, target, count)
            self.step += 1
            self._done += 1
            self._samples += count
            self._loss += loss * count
            self._display.step(self._done, self._samples, self._numbers)
            if self.is_step_applied:
                self._updated()
            for callback in watching:
                callback.on_step_end(self, loss)
            if self.is_step_applied and self._is_ending():
                return
        if not self.is_step_applied:
            self._learning.flush()
            self._updated()
        if not self._done:
            raise InvalidArgument(
                "the data gave no batch"
                + (
                    f" in epoch {self.epoch}: an iterator can be gone through once, give a list or a loader"
                    if self.step
                    else ""
                )
            )

    def _go_on(self, within: dict[str, Any], batches: Iterator[Any]) -> Iterator[Any]:
        """The batches of an epoch behind those that were done before a checkpoint."""
        found = within["training"]
        self._done, self._samples, self._loss = found["done"], found["samples"], found["loss"]
        skipped = 0 if hasattr(self._data, "load_state_dict") else self._done
        # What data draw as they begin, they draw once more: of the generators as they were then.
        first = list(itertools.islice(batches, skipped, skipped + 1))
        _set_generators(within["generators"])
        for metric, state in zip(self._metrics, within["metrics"], strict=True):
            metric.load_state(state, self.device)
        return itertools.chain(first, batches)

    def _updated(self) -> None:
        self.updates += 1
        for callback in self._callbacks:
            if type(callback).on_update_end is not Callback.on_update_end:
                callback.on_update_end(self)

    def _learn(self, inputs: Any, target: Any, count: int) -> float:
        where = f"step {self._done + 1} of epoch {self.epoch}"
        try:
            with set_detect_anomaly(True) if self._finds_anomalies else contextlib.nullcontext():
                loss = self._learning(inputs, target, count)
        except AnomalyFound as found:
            raise AnomalyFound(f"{found}, in {where}") from None
        except MemoryError as problem:
            failure = explain_memory(problem, where, count)
            self._forget_all()
        else:
            if math.isfinite(loss):
                return loss
            raise explain_loss(loss, where, self.model, (inputs, target), self._learning.look)
        raise failure

    def _forget_all(self) -> None:
        """Lets go of plans and gradients."""
        self.recapture()
        self.optimizer.zero_grad()

    def _validate(self) -> Row:
        if self._validation is None:
            return {}
        for metric in self._judges:
            metric.reset()
        self.model.eval()
        total, samples = 0.0, 0
        self._display.begin(self.epoch, _length(self._validation, None), "validation")
        for done, (inputs, target, count) in enumerate(self._parts(self._validation), 1):
            total += self._judging(inputs, target) * count
            samples += count
            self._display.step(done, samples, dict)
            if self._interrupts.is_asked:
                return {}
        if not samples:
            raise InvalidArgument("the validation data gave no batch")
        return {"val_loss": total / samples, **{f"val_{each.name}": each.value() for each in self._judges}}

    def _parts(self, data: Any) -> Iterator[Any]:
        for batch in data:
            yield parts_of(batch, self._float_type)

    def _numbers(self) -> dict[str, float]:
        """Loss and metrics of the epoch so far."""
        return {
            "loss": self._loss / self._samples if self._samples else math.nan,
            **{metric.name: metric.value() for metric in self._metrics},
        }

    def _call(self, name: str) -> None:
        for callback in self._callbacks:
            getattr(callback, name)(self)


def _device_of(model: nn.Module, device: Any) -> str:
    if device == "auto":
        from vkml.engine.devices import devices

        return str(devices()[0].name)
    if device is not None:
        return device_name(device)
    found = next(iter(model._tensors()), None)
    return "cpu" if found is None else found.device


def _float_type(model: nn.Module) -> np.dtype[Any]:
    floats = (each.dtype.storage for each in model._tensors() if each.dtype.is_float)
    return next(floats, np.dtype(np.float32))


def _loss_on(loss: Any, device: str) -> Any:
    found = loss_function(loss)
    return found.to(device) if isinstance(found, nn.Module) else found


def _copies(metrics: Sequence[Metric]) -> list[Metric]:
    return [copy.deepcopy(metric) for metric in metrics]


def _ordered(callbacks: Callback | Sequence[Callback], scheduler: Any) -> list[Callback]:
    """Schedules first and checkpoints last, so that these have what the others changed."""
    given = [callbacks] if isinstance(callbacks, Callback) else list(callbacks)
    if scheduler is not None:
        schedules = scheduler if isinstance(scheduler, list | tuple) else [scheduler]
        given = [*(each if isinstance(each, Callback) else LRSchedule(each) for each in schedules), *given]
    wrong = next((each for each in given if not isinstance(each, Callback)), None)
    if wrong is not None:
        raise InvalidArgument(f"callbacks are vkml.training.Callback, not {type(wrong).__name__}")
    return sorted(
        given,
        key=lambda each: 0 if isinstance(each, LRSchedule) else 2 if isinstance(each, Checkpoint) else 1,
    )


def _length(data: Any, limit: int | None) -> int | None:
    """How many batches there are, where that is known."""
    try:
        found = len(data)
    except TypeError:
        return limit
    return found if limit is None else min(found, limit)


def _generator_states() -> dict[str, Tensor]:
    return {each.device: each.get_state() for each in {generator_of("cpu"), *default_generators()}}


def _set_generators(states: dict[str, Tensor]) -> None:
    for name, state in states.items():
        with contextlib.suppress(NoDevice):
            set_rng_state(state, name)


@contextlib.contextmanager
def _products(precision: Any) -> Iterator[None]:
    """How exactly float32 products are computed, for a while."""
    before = products.get_float32_matmul_precision()
    if precision in PRECISIONS:
        products.set_float32_matmul_precision(precision)
    try:
        yield
    finally:
        products.set_float32_matmul_precision(before)
