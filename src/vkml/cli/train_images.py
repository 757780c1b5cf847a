"""``vkml train`` on folders of images: a small convolutional network that adapts to their size."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from vkml import nn
from vkml.cli.guard import UsageError
from vkml.cli.images import AS_IS, IMAGE_ENDINGS, read_image
from vkml.cli.output import console, counted, show_table, table
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
from vkml.errors import InvalidArgument
from vkml.ir.dtypes import UINT8
from vkml.tensors import Tensor
from vkml.tensors.creation import tensor

if TYPE_CHECKING:
    from rich.console import Console

Array = np.ndarray[Any, Any]
LARGEST = 64
"""Edge in pixels beyond which images are made smaller where no size is asked for."""


def train_images(request: TrainRequest) -> int:
    """Carries the command out for a folder; returns its exit code."""
    out = console()
    training = request.data / "train"
    judged = next((request.data / name for name in ("val", "valid", "validation", "test")
                   if (request.data / name).is_dir()), None) if training.is_dir() else None  # fmt: skip
    if training.is_dir() and judged is not None:
        listed = listed_images(training)
        parts = [listed, listed_images(judged, [each.name for each in listed])]
    else:
        parts = [listed_images(request.data)]
    classes = [each.name for each in parts[0]]
    every = [path for part in parts for each in part for path in each.files]
    channels, edge = told_form(every, request.size)
    need = len(every) * channels * edge * edge
    free = free_memory()
    if free is not None and need > free // 2:
        raise InvalidArgument(
            f"{len(every)} images of {edge}×{edge} take {amount(need)}, {amount(free)} are free: "
            "a smaller --size takes less"
        )
    read = [_read(part, channels, edge, request.skip_bad, out) for part in parts]
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
    history = fitted(request, model, sets, "cross_entropy", ["accuracy"])
    device = next(model.parameters()).device
    found = outputs_of(model, sets.judged[0], batch_of(request, sets), device)
    show_classes(out, classes, found, sets.judged[1], sets.validation is not None)
    whole = nn.Sequential(model, nn.Softmax(1))
    example = sets.training[0][:2].astype(np.float32) / 255
    write_model(whole, example, request.output, ("image", "probabilities"), class_metadata(classes))
    return show_end(out, request, history, f"vkml run {request.output} -i {every[0]}")


@dataclass(frozen=True)
class ClassFolder:
    """A class: a folder's name, and the images in it."""

    name: str
    files: tuple[Path, ...]


def listed_images(folder: Path, classes: Sequence[str] | None = None) -> list[ClassFolder]:
    """The class folders of a folder, in the order of their names, with their images in the order of theirs.

    Args:
        folder: of folders.
        classes: what they have to be, where that is known.

    Raises:
        UsageError: there are none, or other ones; or one alone.
    """
    folders = sorted(each for each in folder.iterdir() if each.is_dir() and not each.name.startswith("."))
    if not folders:
        raise UsageError(
            f"{folder} has no folders: there is to be one for each class, with its images, as in "
            f"{folder / 'cat'}, {folder / 'dog'}"
        )
    found = []
    for each in folders:
        files = sorted(path for path in each.rglob("*") if path.suffix.lower() in IMAGE_ENDINGS)
        if not files:
            endings = ", ".join(IMAGE_ENDINGS)
            raise UsageError(f"{each} is empty: it has no images ({endings})")
        found.append(ClassFolder(each.name, tuple(files)))
    if classes is not None:
        unknown = [each.name for each in found if each.name not in classes]
        if unknown:
            raise UsageError(f"{folder} has a class {unknown[0]!r} that there is no training for")
        by_name = {each.name: each for each in found}
        return [by_name.get(name, ClassFolder(name, ())) for name in classes]
    if len(found) < 2:
        raise UsageError(f"{folder} has one class, {found[0].name!r}: there is nothing to tell apart")
    return found


def told_form(files: Sequence[Path], size: int | None) -> tuple[int, int]:
    """Channels and edge of the images that a network is given: those of the files, at most `LARGEST`.

    Args:
        files: of all images; those that cannot be read do not count.
        size: the edge, where it is asked for.
    """
    from PIL import Image

    channels, edges = 1, []
    for path in files:
        try:
            with Image.open(path) as picture:
                edges.append(min(picture.size))
                if picture.mode not in ("1", "L", "LA", "I", "F") and not picture.mode.startswith("I;"):
                    channels = 3
        except Exception:  # whoever reads it says what is wrong
            continue
    if size is None:
        size = min(LARGEST, max(8, 8 * round(float(np.median(edges)) / 8))) if edges else LARGEST
    return channels, size


def _read(
    folders: Sequence[ClassFolder], channels: int, edge: int, skip_bad: bool, out: Console
) -> tuple[Array, Array]:
    """Images [samples, channels, edge, edge] of uint8, and their classes' numbers."""
    images, numbers, skipped = [], [], []
    for number, folder in enumerate(folders):
        for path in folder.files:
            try:
                images.append(read_image(path, (None, channels, edge, edge), UINT8, "the network", AS_IS))
            except InvalidArgument as problem:
                if not skip_bad:
                    raise InvalidArgument(f"{problem} (--skip-bad goes on without such files)") from None
                skipped.append(path)
                continue
            numbers.append(number)
    if skipped:
        listed = ", ".join(map(str, skipped[:3])) + (", …" if len(skipped) > 3 else "")
        out.print(f"skipped {counted(len(skipped), 'file')} that cannot be read: {listed}", markup=False)
    missing = sorted(set(range(len(folders))) - set(numbers)) if skip_bad else []
    if missing and folders[missing[0]].files:
        raise InvalidArgument(f"none of the images of class {folders[missing[0]].name!r} can be read")
    return np.stack(images), np.array(numbers, np.int64)


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
