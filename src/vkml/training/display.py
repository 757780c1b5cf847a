"""What a training shows while it runs: a bar where someone watches, a line an epoch elsewhere."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from vkml.engine.ort_value import device_of

if TYPE_CHECKING:
    from rich.console import Console
    from rich.progress import Progress, TaskID

Numbers = dict[str, float]
REFRESH = 0.1
"""Seconds between two drawings: metrics are read, and waited for, no oftener."""
_EMPTY: dict[str, Any] = {"numbers": "", "rate": "", "left": "", "memory": ""}
_UNSHOWN = ("epoch", "lr", "seconds", "samples_per_second")


def display_of(progress: bool | Console, epochs: int, device: str) -> Display:
    """What shows a training.

    Args:
        progress: whether anything is shown; a console of rich's, for where.
        epochs: how many there are to be.
        device: whose memory is shown.
    """
    if progress is False:
        return Display(epochs)
    if progress is True:
        from rich.console import Console

        progress = Console(stderr=True, highlight=False, emoji=False)
    return Bar(epochs, progress, device) if progress.is_terminal else Lines(epochs)


class Display:
    """Shows nothing; base of what does.

    Args:
        epochs: how many there are to be.
    """

    def __init__(self, epochs: int) -> None:
        self.epochs = epochs

    def begin(self, epoch: int, steps: int | None, what: str, done: int = 0, samples: int = 0) -> None:
        """A round over data begins, or goes on.

        Args:
            epoch: its number, from 1.
            steps: of the round, None where that is not known.
            what: the round is for: "" for training.
            done: steps of it that a checkpoint has.
            samples: of these.
        """

    def step(self, done: int, samples: int, numbers: Callable[[], Numbers]) -> None:
        """A step was made.

        Args:
            done: of this round.
            samples: of this round.
            numbers: gives loss and metrics so far, which costs.
        """

    def row(self, row: dict[str, Any]) -> None:
        """An epoch has ended."""

    def note(self, text: str) -> None:
        """Something happened that whoever watches wants to know."""

    def close(self) -> None:
        """Wipes what is in motion; nothing is drawn after it."""

    def __enter__(self) -> Display:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


class Lines(Display):
    """A line an epoch, on the standard error."""

    def row(self, row: dict[str, Any]) -> None:
        rate = f"{_short(row['samples_per_second'])}/s"
        print(f"{_line(row, self.epochs)}  {rate}", file=sys.stderr, flush=True)

    def note(self, text: str) -> None:
        print(text, file=sys.stderr, flush=True)


class Bar(Display):
    """A bar that grows, below a line for each epoch that has ended.

    Args:
        epochs: how many there are to be.
        console: where it is drawn.
        device: whose memory is shown.
    """

    def __init__(self, epochs: int, console: Console, device: str) -> None:
        super().__init__(epochs)
        self._console, self._device = console, device
        self._progress: Progress | None = None
        self._task: TaskID | None = None
        self._epoch, self._steps, self._what = 0, 0, ""
        self._before = 0, 0
        self._begun = self._drawn = 0.0

    def begin(self, epoch: int, steps: int | None, what: str, done: int = 0, samples: int = 0) -> None:
        if self._progress is None:
            self._progress = _bar(self._console)
            self._progress.start()
            self._task = self._progress.add_task("", total=steps, **_EMPTY)
        assert self._task is not None
        self._epoch, self._what, self._before = epoch, what, (done, samples)
        self._begun = self._drawn = time.perf_counter()
        if not what:
            self._steps = steps or 0
        title = f"epoch {epoch}/{self.epochs}" + (f" {what}" if what else "")
        self._progress.reset(self._task, total=steps, description=title, **_EMPTY)
        self._progress.refresh()

    def step(self, done: int, samples: int, numbers: Callable[[], Numbers]) -> None:
        now = time.perf_counter()
        if now - self._drawn < REFRESH or self._progress is None or self._task is None:
            return
        shown = "  ".join(f"{name} {value:.4g}" for name, value in list(numbers().items())[:2])
        seconds = time.perf_counter() - self._begun
        left = ""
        before, samples_before = self._before
        if self._steps and not self._what:
            steps = self._steps * (self.epochs - self._epoch + 1) - done
            left = _clock(steps * seconds / (done - before))
        self._progress.update(
            self._task,
            completed=done,
            numbers=shown,
            rate=f"{_short((samples - samples_before) / seconds)}/s",
            left=left,
            memory=_memory(self._device),
        )
        self._progress.refresh()
        self._drawn = time.perf_counter()

    def row(self, row: dict[str, Any]) -> None:
        self._console.print(_line(row, self.epochs), markup=False, highlight=False)

    def note(self, text: str) -> None:
        self._console.print(text, markup=False, highlight=False)

    def close(self) -> None:
        if self._progress is not None:
            self._progress.stop()
            self._progress = None


def _bar(console: Console) -> Progress:
    from rich.constrain import Constrain
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn

    class Narrow(Progress):
        """Leaves room for the ``^C`` of a terminal, behind which a full line could not be wiped."""

        def get_renderable(self) -> Constrain:
            return Constrain(super().get_renderable(), max(1, console.width - 3))

    return Narrow(
        TextColumn("{task.description}", markup=False),
        BarColumn(bar_width=None),
        MofNCompleteColumn(),
        *(TextColumn(f"{{task.fields[{name}]}}", markup=False) for name in _EMPTY),
        console=console,
        auto_refresh=False,  # no thread beside the training
        transient=True,
        expand=True,
    )


def _line(row: dict[str, Any], epochs: int) -> str:
    """An epoch's numbers on one line, validation's behind training's; 80 columns hold two of them."""
    parts = [f"epoch {row['epoch']:{len(str(epochs))}d}/{epochs}"]
    for name, value in row.items():
        if name in _UNSHOWN or not isinstance(value, float):
            continue
        if not name.startswith("val_"):
            judged = row.get(f"val_{name}")
            beside = f" (val {judged:.4g})" if isinstance(judged, float) else ""
            parts.append(f"{name} {value:.4g}{beside}")
        elif name.removeprefix("val_") not in row:
            parts.append(f"{name} {value:.4g}")
    parts.append(f"{row['seconds']:.3g} s")
    return "  ".join(parts)


def _short(number: float) -> str:
    """A number in three or four characters: ``950``, ``12.3k``, ``4.56M``."""
    for unit in ("", "k", "M"):
        if number < 999.5:
            return f"{number:.0f}" if not unit else f"{number:.3g}{unit}"
        number /= 1000
    return f"{number:.3g}G"


def _clock(seconds: float) -> str:
    """A time as a clock shows it: ``0:42``, ``1:03:20``."""
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02d}:{rest:02d}" if hours else f"{minutes}:{rest:02d}"


def _memory(device: str) -> str:
    """What this process holds of a device's memory; of the CPU, what it occupies. Nothing where unknown."""
    found = device_of(device)
    if found is not None:
        return _bytes(found.allocated_bytes)
    try:
        with open("/proc/self/statm", encoding="ascii") as file:
            pages = int(file.read().split()[1])
    except (OSError, ValueError, IndexError):
        return ""
    import resource

    return _bytes(pages * resource.getpagesize())


def _bytes(count: float) -> str:
    for unit in ("B", "KiB", "MiB", "GiB"):
        if count < 1000:
            return f"{count:.3g} {unit}" if count < 100 else f"{count:.0f} {unit}"
        count /= 1024
    return f"{count:.3g} TiB"
