"""``vkml train``: trains a model on a folder of images or a table, and writes it as ONNX."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from vkml.cli.classes import CLASSES_KEY, classes_text
from vkml.cli.guard import UsageError
from vkml.cli.output import console
from vkml.dataclasses import dataclass
from vkml.ir.wording import counted, size

if TYPE_CHECKING:
    from rich.console import Console

    from vkml import nn
    from vkml.training import History

Array = np.ndarray[Any, Any]
INTERRUPTED = 130
"""Exit code of what Ctrl-C ended."""


@dataclass(frozen=True)
class TrainRequest:
    """The options of ``vkml train``, as given."""

    data: Path
    output: Path
    target: str | None
    task: str | None
    epochs: int
    batch: int | None
    size: int | None
    lr: float
    seed: int
    device: str
    validation: float
    patience: int
    log_dir: Path | None
    resume: bool
    skip_bad: bool
    precision: str | None
    augment: tuple[str, ...] = ()


@dataclass(frozen=True)
class Sets:
    """Inputs and targets of the samples to train and to judge by; one of the two may be all there is."""

    training: tuple[Array, Array]
    validation: tuple[Array, Array] | None

    @property
    def judged(self) -> tuple[Array, Array]:
        """What the finished model is judged by."""
        return self.training if self.validation is None else self.validation


def train_model(request: TrainRequest) -> int:
    """Carries the command out; returns its exit code."""
    if not request.data.exists():
        raise UsageError(f"there is no file or folder {request.data}")
    if request.output.suffix.lower() != ".onnx":
        raise UsageError(f"-o {request.output}: the model's file ends with .onnx")
    if not request.output.parent.is_dir():
        raise UsageError(f"-o {request.output}: there is no folder {request.output.parent}")
    if not 0 <= request.validation < 1:
        raise UsageError(f"--val {request.validation:g}: a share of the samples, 0 or more and less than 1")
    if request.resume and request.log_dir is None:
        raise UsageError("--resume goes on from the checkpoints in --log-dir; give that, too")
    if request.data.is_dir():
        from vkml.cli.train_images import train_images

        if request.target is not None or request.task is not None:
            raise UsageError(f"--target and --task are for tables; {request.data} is a folder of images")
        return train_images(request)
    from vkml.cli.train_table import train_table

    if request.target is None:
        raise UsageError(f"{request.data} is a table: give --target COLUMN, what is to be predicted")
    if request.size is not None or request.skip_bad or request.augment:
        raise UsageError(
            f"--size, --skip-bad and --augment are for folders of images; {request.data} is a file"
        )
    return train_table(request)


def fitted(
    request: TrainRequest, model: nn.Module, sets: Sets, loss: Any, metrics: Sequence[Any],
    samples: Any = None,
) -> History:  # fmt: skip
    """Trains a model as a request says; it is what it was in its best epoch.

    Args:
        request: what is asked for.
        model: is trained.
        sets: samples to train and to judge by.
        loss: of `vkml.fit`.
        metrics: likewise.
        samples: what is trained with, where it is not the samples as they are.
    """
    import vkml
    from vkml import optim, training

    curve, out = request.output.with_suffix(".png"), console(stderr=True)
    callbacks: list[training.Callback] = [
        training.LRSchedule(lambda optimizer: optim.lr_scheduler.CosineAnnealingLR(optimizer, request.epochs))
    ]
    if sets.validation is not None:
        callbacks.append(training.EarlyStopping(patience=request.patience))
    if request.log_dir is not None:
        request.log_dir.mkdir(parents=True, exist_ok=True)
        callbacks += [
            training.CSVLogger(request.log_dir / "log.csv"),
            training.Checkpoint(request.log_dir / "checkpoints"),
        ]
        if not request.resume and any((request.log_dir / "checkpoints").glob("*.safetensors")):
            raise UsageError(
                f"{request.log_dir} has checkpoints of a training before: --resume goes on from them, "
                "another --log-dir begins anew"
            )
        try:
            callbacks.append(training.TensorBoard(request.log_dir))
        except ImportError as problem:
            out.print(f"no event files for TensorBoard: {problem}", markup=False)
    history = vkml.fit(
        model, sets.training if samples is None else samples, loss, "adamw", request.epochs,
        lr=request.lr, metrics=metrics, validation=sets.validation, batch_size=batch_of(request, sets),
        device=request.device, seed=request.seed, callbacks=callbacks, clip_norm=1.0,
        resume=request.resume or None, precision=request.precision, progress=out,
    )  # fmt: skip
    if history.epochs:
        try:
            history.plot(curve)
        except ImportError as problem:
            out.print(f"no learning curve: {problem}", markup=False)
    model.eval()
    return history


def batch_of(request: TrainRequest, sets: Sets) -> int:
    """Samples a step: 64 where nothing is asked for, fewer where an epoch would have fewer than 16 steps."""
    fitting = 1 << max(0, len(sets.training[1]) // 16).bit_length() >> 1
    return request.batch or min(64, max(8, fitting))


def outputs_of(model: Callable[[Any], Any], inputs: Array, batch: int, device: str) -> Array:
    """What a model gives for inputs, batch by batch."""
    import vkml

    act = vkml.jit(model, device=device)
    with vkml.no_grad():
        return np.concatenate([act(inputs[at : at + batch]).numpy() for at in range(0, len(inputs), batch)])


def write_model(
    model: nn.Module, example: Array, path: Path, names: tuple[str, str], metadata: dict[str, str]
) -> None:
    """Writes a model as ONNX, for any number of samples.

    Args:
        model: takes one input and gives one output.
        example: an input.
        path: of the file.
        names: of input and output.
        metadata: to be written with it.
    """
    import vkml

    model.to("cpu").eval()
    made = vkml.onnx.export(
        model, (vkml.tensor(example),), input_names=[names[0]], output_names=[names[1]],
        dynamic_shapes=({0: "batch"},),
    )  # fmt: skip
    assert made is not None
    graph = vkml.onnx.load_graph(made)
    vkml.onnx.save_graph(replace(graph, metadata={**graph.metadata, **metadata}), path, producer="vkml train")


def class_metadata(classes: Sequence[str]) -> dict[str, str]:
    """The names of classes, for a model's metadata."""
    return {CLASSES_KEY: classes_text(classes)}


def held_out(targets: Array, share: float, seed: int, is_class: bool) -> tuple[Array, Array]:
    """Numbers of the samples to train with, and of those to judge by: a share, of each class where it can be.

    Args:
        targets: of all samples.
        share: of the samples to judge by.
        seed: of which.
        is_class: whether targets are classes.
    """
    random = np.random.Generator(np.random.Philox(key=seed))
    groups = [np.flatnonzero(targets == each) for each in np.unique(targets)] if is_class else None
    if groups is None:
        groups = [np.arange(len(targets))]
    judged = []
    for group in groups:
        order = random.permutation(group)
        count = min(round(share * len(group)), len(group) - 1)
        judged.append(order[:count])
    chosen = np.sort(np.concatenate(judged)) if share else np.empty(0, np.int64)
    return np.setdiff1d(np.arange(len(targets)), chosen), chosen


def show_end(out: Console, request: TrainRequest, history: History, usage: str) -> int:
    """Says what was written and how to use it; returns the exit code."""
    written = [request.output]
    curve = request.output.with_suffix(".png")
    if history.epochs and curve.exists():
        written.append(curve)
    for path in written:
        out.print(f"wrote {path} ({size(path.stat().st_size)})", markup=False, soft_wrap=True)
    if request.log_dir is not None:
        out.print(f"checkpoints and logs: {request.log_dir}", markup=False, soft_wrap=True)
    out.print(f"try: {usage}", markup=False, soft_wrap=True)
    if history.is_interrupted:
        out.print(f"ended by Ctrl-C, {counted(len(history), 'epoch')} done", markup=False)
        return INTERRUPTED
    return 0
