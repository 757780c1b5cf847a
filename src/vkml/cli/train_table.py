"""``vkml train`` on a table: a perceptron that takes its columns as they are."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from vkml import nn
from vkml.cli.guard import UsageError
from vkml.cli.output import console, show_table, table
from vkml.cli.tables import (
    COLUMNS_KEY,
    Column,
    Table,
    columns_text,
    features,
    is_missing,
    is_numeric,
    read_table,
    told_columns,
)
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
from vkml.cli.train_images import show_classes
from vkml.errors import InvalidArgument
from vkml.ir.wording import counted, number
from vkml.tensors import Tensor
from vkml.tensors import operations as op
from vkml.tensors.creation import tensor

Array = np.ndarray[Any, Any]
MOST_CLASSES = 20
"""A target of whole numbers, of which there are more, is a quantity."""


def train_table(request: TrainRequest) -> int:
    """Carries the command out for a table; returns its exit code."""
    assert request.target is not None
    out = console()
    given = read_table(request.data)
    texts = given.column(request.target)
    kept = [at for at, text in enumerate(texts) if not is_missing(text)]
    if len(kept) < len(texts):
        counts = counted(len(texts) - len(kept), "row")
        out.print(f"{counts} without a {request.target} left out", markup=False)
        given = Table(given.path, {name: [cells[at] for at in kept] for name, cells in given.cells.items()})
        texts = given.column(request.target) if kept else []
    classes = told_task(request, texts)
    columns, left = told_columns(given, request.target)
    for reason in left:
        out.print(f"left out: {reason}", markup=False)
    if not columns:
        raise InvalidArgument(f"{request.data} has no column to predict {request.target!r} from")
    inputs = features(given, columns)
    if classes is None:
        targets = np.array([float(text) for text in texts], np.float32)[:, None]
    else:
        numbers = {text: at for at, text in enumerate(classes)}
        targets = np.array([numbers[text.strip()] for text in texts], np.int64)
    training, judged = held_out(targets, request.validation, request.seed, classes is not None)
    sets = Sets(
        (inputs[training], targets[training]), (inputs[judged], targets[judged]) if len(judged) else None
    )
    kind = "a number" if classes is None else f"{len(classes)} classes"
    out.print(
        f"{request.target}: {kind}, from {counted(len(columns), 'column')}; {len(training)} rows to train, "
        f"{len(judged)} to judge by",
        markup=False,
    )
    import vkml

    vkml.manual_seed(request.seed)
    model = TableModel(columns, *sets.training, 1 if classes is None else len(classes))
    if classes is None:
        history = fitted(request, model, sets, model.scaled_loss, ["mae", "r2"])
    else:
        history = fitted(request, model, sets, "cross_entropy", ["accuracy"])
    device = next(model.parameters()).device
    found = outputs_of(model, sets.judged[0], batch_of(request, sets), device)
    metadata = {COLUMNS_KEY: columns_text(columns)}
    if classes is None:
        _show_numbers(request.target, found, sets.judged[1], sets.validation is not None)
        write_model(model, inputs[:2], request.output, ("table", "prediction"), metadata)
    else:
        show_classes(out, classes, found, sets.judged[1], sets.validation is not None)
        metadata |= class_metadata(classes)
        whole = nn.Sequential(model, nn.Softmax(1))
        write_model(whole, inputs[:2], request.output, ("table", "probabilities"), metadata)
    return show_end(out, request, history, f"vkml run {request.output} -i {request.data}")


def told_task(request: TrainRequest, texts: Sequence[str]) -> tuple[str, ...] | None:
    """The classes to tell apart; None where the target is a quantity.

    Raises:
        UsageError: the task asked for is not one of this column.
        InvalidArgument: there is nothing to predict.
    """
    held = {text.strip() for text in texts}
    where = f"column {request.target!r} of {request.data}"
    if not held:
        raise InvalidArgument(f"{where} is empty: there is nothing to learn from")
    if len(held) < 2:
        raise InvalidArgument(f"{where} holds {next(iter(held))!r} alone: there is nothing to predict")
    most = max(2, len(texts) // 2)
    is_quantity = is_numeric(held) and (
        len(held) > min(most, MOST_CLASSES) or any(not float(text).is_integer() for text in held)
    )
    task = request.task or ("regression" if is_quantity else "classification")
    if task == "regression":
        if not is_numeric(held):
            raise UsageError(f"--task regression: {where} holds texts")
        return None
    if len(held) > most:
        raise UsageError(
            f"{where} holds {len(held)} different values in {len(texts)} rows: these are no classes"
        )
    return tuple(sorted(held, key=(float if is_numeric(held) else str)))


class TableModel(nn.Module):
    """A perceptron over columns as they come: NaN for what is missing, categories by number.

    Numbers are given the mean of the training's in place of what is missing, and a column that says so; they
    are brought to mean 0 and deviation 1. Categories become a column each.

    Args:
        columns: what the columns of its input are.
        inputs: of training, [rows, columns].
        targets: of training: classes, [rows], or numbers, [rows, 1].
        outputs: classes, or 1 for a number, which comes in its own unit.
    """

    def __init__(self, columns: Sequence[Column], inputs: Array, targets: Array, outputs: int) -> None:
        super().__init__()
        self._numbers = [at for at, column in enumerate(columns) if column.categories is None]
        self._categories = [
            (at, len(column.categories)) for at, column in enumerate(columns) if column.categories is not None
        ]
        values = inputs[:, self._numbers].astype(np.float64)
        is_known = ~np.isnan(values)
        counts = np.maximum(is_known.sum(0), 1)
        mean = np.where(is_known, values, 0).sum(0) / counts
        deviation = np.sqrt((np.where(is_known, values - mean, 0) ** 2).sum(0) / counts)
        self._gaps = [at for at in range(len(self._numbers)) if not is_known[:, at].all()]
        self.register_buffer("mean", tensor(mean.astype(np.float32)))
        self.register_buffer("deviation", tensor(np.where(deviation > 0, deviation, 1).astype(np.float32)))
        self._is_number = targets.ndim == 2
        middle, spread = (targets.mean(), targets.std() or 1.0) if self._is_number else (0.0, 1.0)
        self.register_buffer("target_mean", tensor(np.float32(middle)))
        self.register_buffer("target_deviation", tensor(np.float32(spread)))
        wide = len(self._numbers) + len(self._gaps) + sum(count + 1 for _, count in self._categories)
        hidden = int(min(256, max(32, 2 ** round(math.log2(4 * wide)))))
        self.layers = nn.Sequential(
            nn.Linear(wide, hidden), nn.ReLU(), nn.Dropout(0.1), nn.Linear(hidden, hidden), nn.ReLU(),
            nn.Linear(hidden, outputs),
        )  # fmt: skip

    def forward(self, x: Tensor) -> Tensor:
        """What is predicted for rows, [rows, columns]: logits, or a number in the target's unit."""
        parts: list[Tensor] = []
        if self._numbers:
            values = op.cat([x[:, at : at + 1] for at in self._numbers], 1)
            is_missing_there = op.isnan(values)
            filled = op.where(is_missing_there, self.mean, values)
            # Ten deviations are as far as a number may be: one more digit in a cell is no answer of its own.
            parts.append(((filled - self.mean) / self.deviation).clamp(-10.0, 10.0))
            parts += [is_missing_there[:, at : at + 1].to(x.dtype) for at in self._gaps]
        for at, count in self._categories:
            # The last is what is missing, or what training has not seen.
            cell = x[:, at : at + 1]
            number = op.where(op.isnan(cell), float(count), cell)
            parts += [op.eq(number, float(each)).to(x.dtype) for each in range(count + 1)]
        made: Tensor = self.layers(op.cat(parts, 1))
        return made * self.target_deviation + self.target_mean if self._is_number else made

    def scaled_loss(self, output: Tensor, target: Tensor) -> Tensor:
        """The mean squared error, in deviations of the target, so that its unit makes no difference."""
        error: Tensor = (output - target) / self.target_deviation
        return error.square().mean()


def _show_numbers(name: str, found: Array, targets: Array, is_held_out: bool) -> None:
    errors = found.astype(np.float64) - targets
    spread = float(((targets - targets.mean()) ** 2).sum())
    rows = table("measure", "value", right=("value",))
    rows.add_row("R²", number(1 - float((errors**2).sum()) / spread) if spread else "none: one value alone")
    rows.add_row("mean absolute error", number(float(np.abs(errors).mean())))
    rows.add_row("root mean squared error", number(math.sqrt(float((errors**2).mean()))))
    rows.add_row(f"mean of {name}", number(float(targets.mean())))
    rows.add_row(f"deviation of {name}", number(float(targets.std())))
    what = "rows held out" if is_held_out else "rows of training"
    show_table(console(), rows, f"{counted(len(targets), 'row').split()[0]} {what}")
