"""``vkml train`` on folders of images: a small convolutional network that adapts to their size."""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from vkml import nn
from vkml.cli.augmentation import Augmented
from vkml.cli.guard import UsageError
from vkml.cli.output import console, show_table, table
from vkml.cli.progress import StageProgress
from vkml.cli.train import (
    Sets,
    TrainRequest,
    batch_of,
    class_metadata,
    fitted,
    held_out,
    outputs_of,
    show_end,
    write_model,
)
from vkml.cpu.memory import amount, free_memory
from vkml.cpu.pool import available_processors
from vkml.data import DataLoader, ImageFolder
from vkml.errors import InvalidArgument, InvalidData, NoSuchFile
from vkml.ir.dtypes import UINT8
from vkml.ir.wording import counted
from vkml.pictures import GREY_MODES, pillow
from vkml.tensors import Tensor
from vkml.tensors.creation import tensor

if TYPE_CHECKING:
    from rich.console import Console

Array = np.ndarray[Any, Any]
LARGEST = 64
"""Edge in pixels beyond which images are made smaller where no size is asked for."""
_AT_ONCE = 64
"""Images that are read together."""


def train_images(request: TrainRequest) -> int:
    """Carries the command out for a folder; returns its exit code."""
    out = console()
    training = request.data / "train"
    judged = next((request.data / name for name in ("val", "valid", "validation", "test")
                   if (request.data / name).is_dir()), None) if training.is_dir() else None  # fmt: skip
    if judged is not None:
        learned = class_folders(training)
        parts = [learned, class_folders(judged, learned.classes)]
    else:
        parts = [class_folders(request.data)]
    classes = parts[0].classes
    if len(classes) < 2:
        raise UsageError(f"{parts[0].root} has one class, {classes[0]!r}: there is nothing to tell apart")
    every = [path for part in parts for path, _ in part.samples]
    channels, edge = told_form(every, request.size)
    need = len(every) * channels * edge * edge
    free = free_memory()
    if free is not None and need > free // 2:
        raise InvalidArgument(
            f"{len(every)} images of {edge}×{edge} take {amount(need)}, {amount(free)} are free: "
            "a smaller --size takes less"
        )
    for part in parts:
        part.size = edge, edge
        part.transform = None if channels == 3 else _grey
    read = [_read(part, request.skip_bad, out) for part in parts]
    if len(read) == 2:
        sets = Sets(read[0], read[1])
    else:
        inputs, targets = read[0]
        chosen, others = held_out(targets, request.validation, request.seed, True)
        sets = Sets(
            (inputs[chosen], targets[chosen]), (inputs[others], targets[others]) if len(others) else None
        )
    judging = 0 if sets.validation is None else len(sets.validation[1])
    out.print(
        f"{len(classes)} classes, images of {edge}×{edge} in {'grey' if channels == 1 else 'colour'}; "
        f"{len(sets.training[1])} to train, {judging} to judge by",
        markup=False,
    )
    import vkml

    vkml.manual_seed(request.seed)
    model = ImageModel(sets.training[0], len(classes))
    samples = Augmented(*sets.training, request.augment) if request.augment else None
    history = fitted(request, model, sets, "cross_entropy", ["accuracy"], samples)
    device = next(model.parameters()).device
    found = outputs_of(model, sets.judged[0], batch_of(request, sets), device)
    show_classes(out, classes, found, sets.judged[1], sets.validation is not None)
    whole = nn.Sequential(model, nn.Softmax(1))
    example = sets.training[0][:2].astype(np.float32) / 255
    write_model(whole, example, request.output, ("image", "probabilities"), class_metadata(classes))
    return show_end(out, request, history, f"vkml run {request.output} -i {every[0]}")


def class_folders(folder: Path, classes: Sequence[str] | None = None) -> ImageFolder:
    """The images of a folder in which each class has a folder.

    Args:
        folder: it.
        classes: what they may be, in the order of their numbers, where that is known.

    Raises:
        UsageError: there are no such folders, or no images in one, or other classes.
    """
    try:
        found = ImageFolder(folder, dtype=np.uint8)
    except NoSuchFile as problem:
        raise UsageError(
            f"{problem} There is to be a folder for each class, with its images, as in {folder / 'cat'}, "
            f"{folder / 'dog'}"
        ) from None
    if classes is not None:
        unknown = [name for name in found.classes if name not in classes]
        if unknown:
            raise UsageError(f"{folder} has a class {unknown[0]!r} that there is no training for")
        numbers = [classes.index(name) for name in found.classes]
        found.target_transform = numbers.__getitem__
    return found


def told_form(files: Sequence[str], size: int | None) -> tuple[int, int]:
    """Channels and edge of the images that a network is given: those of the files, at most `LARGEST`.

    Args:
        files: of all images; those that cannot be read do not count.
        size: the edge, where it is asked for.
    """
    channels, edges = 1, []
    for path in files:
        try:
            with pillow().open(path) as picture:
                edges.append(min(picture.size))
                if picture.mode not in GREY_MODES:
                    channels = 3
        except Exception:  # whoever reads it says what is wrong
            continue
    if size is None:
        size = min(LARGEST, max(8, 8 * round(float(np.median(edges)) / 8))) if edges else LARGEST
    return channels, size


def _grey(picture: Any) -> Any:
    return picture.convert("L")


def _read(images: ImageFolder, skip_bad: bool, out: Console) -> tuple[Array, Array]:
    """Images [samples, channels, edge, edge] of uint8, and their classes' numbers."""
    loader: DataLoader[Any] = DataLoader(
        images, _AT_ONCE, num_workers=available_processors(), errors="skip" if skip_bad else "raise"
    )
    pixels, numbers = [], []
    try:
        with StageProgress() as progress:
            for some, targets in loader:
                pixels.append(some.numpy())
                numbers.append(targets.numpy())
                progress("read", min(_AT_ONCE * len(pixels), len(images)), len(images))
    except InvalidData as problem:
        if skip_bad:
            raise
        raise InvalidData(f"{problem} (--skip-bad goes on without such files)") from None
    if loader.skipped:
        listed = ", ".join(each.name or "" for each in loader.skipped[:3])
        more = ", …" if len(loader.skipped) > 3 else ""
        out.print(
            f"skipped {counted(len(loader.skipped), 'file')} that cannot be read: {listed}{more}",
            markup=False,
        )
    found = np.concatenate(numbers)
    number = images.target_transform or int
    unread = [name for name, at in images.class_to_idx.items() if number(at) not in found]
    if unread:
        raise InvalidData(f"none of the images of class {unread[0]!r} can be read")
    return np.concatenate(pixels), found


class ImageModel(nn.Module):
    """Convolutions of 3×3 that halve an image until it is 4 to 7 pixels wide, then one layer.

    Args:
        images: of training, uint8, [samples, channels, edge, edge]; brought to mean 0 and deviation 1.
        classes: how many there are.
    """

    def __init__(self, images: Array, classes: int) -> None:
        super().__init__()
        channels, edge = images.shape[1], images.shape[2]
        chosen = images[:: max(1, len(images) // 1000)].astype(np.float64) / 255
        mean, deviation = chosen.mean((0, 2, 3)), chosen.std((0, 2, 3))
        self.register_buffer("mean", tensor(mean.astype(np.float32).reshape(-1, 1, 1)))
        spread = np.where(deviation > 1e-3, deviation, 1).astype(np.float32).reshape(-1, 1, 1)
        self.register_buffer("deviation", tensor(spread))
        layers: list[nn.Module] = []
        wide = 32
        layers += _convolution(channels, wide)
        for _ in range(max(1, int(math.log2(edge / 4)))):
            more = min(256, 2 * wide)
            layers += [*_convolution(wide, more), nn.MaxPool2d(2)]
            wide = more
        self.features = nn.Sequential(*layers, *_convolution(wide, wide))
        self.head = nn.Sequential(
            nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Dropout(0.2), nn.Linear(wide, classes)
        )

    def forward(self, x: Tensor) -> Tensor:
        """Logits of images, [samples, channels, edge, edge]: uint8, or floats from 0 to 1."""
        if x.dtype == UINT8:
            x = x.to(self.mean.dtype) / 255.0
        made: Tensor = self.head(self.features((x - self.mean) / self.deviation))
        return made


def _convolution(given: int, made: int) -> list[nn.Module]:
    return [nn.Conv2d(given, made, 3, padding=1, bias=False), nn.BatchNorm2d(made), nn.ReLU()]


def show_classes(
    out: Console, classes: Sequence[str], found: Array, targets: Array, is_held_out: bool
) -> None:
    """A table of how many samples of each class were found."""
    is_right = found.argmax(1) == targets
    rows = table("class", "samples", "right", "accuracy", right=("samples", "right", "accuracy"))
    for number, name in enumerate(classes):
        chosen = is_right[targets == number]
        share = f"{100 * chosen.mean():.1f} %" if len(chosen) else "none"
        rows.add_row(name, str(len(chosen)), str(int(chosen.sum())), share)
    rows.add_section()
    rows.add_row("all", str(len(is_right)), str(int(is_right.sum())), f"{100 * is_right.mean():.1f} %")
    what = "held out" if is_held_out else "of training"
    show_table(out, rows, f"{counted(len(targets), 'sample')} {what}")
