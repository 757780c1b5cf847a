"""Which of the candidates for a launch a builder emits, and what the others would launch."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING

from vkml.ir.lowering import CannotLower
from vkml.kernels.candidates import Candidate, picked, worth_measuring
from vkml.kernels.spec import Dispatch
from vkml.kernels.views import View
from vkml.lowering.trials import Trial

if TYPE_CHECKING:
    from vkml.lowering.vulkan_builder import VulkanBuilder


class _TakenBackError(Exception):
    """What was emitted was for looking at."""


def select(
    build: VulkanBuilder,
    question: str,
    candidates: Callable[[], Iterator[Candidate]],
    rows: View | None,
) -> list[View]:
    """Emits the candidate that was picked for a question, or the first, which is the rule's choice.

    Args:
        build: where launches go; its trials receive those of all candidates.
        question: all that times hang on.
        candidates: makes them.
        rows: the operand whose passes other products may share.
    """
    lying = rows and (rows.buffer, rows.shape, rows.strides, rows.offset)
    if build.trials is not None and build.trials.wants(question, lying):
        build.trials.add(question, [_tried(build, each, rows) for each in worth_measuring(candidates())])
    label = None if build.target.picks is None else build.target.picks.get(question)
    if label is None:
        return next(candidates()).emit()
    chosen = picked(candidates(), label)
    rule = next(candidates())
    if chosen.label != rule.label:
        # A file may name what does not suit these very operands, constants among them.
        with build.undoing(CannotLower):
            return chosen.emit()
    return rule.emit()


def _tried(build: VulkanBuilder, candidate: Candidate, rows: View | None) -> Trial:
    """A candidate's launches, taken back when they are known; none where it has no form here."""
    launches: tuple[Dispatch, ...] = ()
    shared: frozenset[int] = frozenset()
    before = len(build.launches)
    with build.undoing(_TakenBackError, CannotLower, is_apart=True):
        candidate.emit()
        launches = tuple(build.launches[before:])
        shared = frozenset(
            number - before
            for number in build.shared_passes
            if number >= before and rows and _reads(build.launches[number], rows)
        )
        raise _TakenBackError
    return Trial(candidate.label, candidate.expected, launches, shared)


def _reads(launch: Dispatch, rows: View) -> bool:
    return any(view.buffer is rows.buffer for view in launch.reads)
