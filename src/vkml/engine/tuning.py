"""Measured selection: candidates for a plan's launches are timed on its device, and the fastest is kept."""

from __future__ import annotations

import logging
import math
import statistics
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from vkml.cpu.processor import usable_cores
from vkml.dataclasses import dataclass
from vkml.engine.compilation import MOST_THREADS, compile_kernels
from vkml.engine.trial_timing import Bench, TrialProgram
from vkml.engine.tuning_file import Found, Measured, cached, for_device, keep, read_file, setup_of
from vkml.errors import OutOfMemory
from vkml.forks import renew_in_child
from vkml.ir import Constant, TensorType
from vkml.kernels.candidates import Picks
from vkml.lowering.builder import prepared_forms
from vkml.lowering.trials import Trial, Trials
from vkml.lowering.vulkan import Piece, collect_trials

if TYPE_CHECKING:
    from vkml.engine.options import Progress, SessionOptions
    from vkml.engine.weights import WeightStore
    from vkml.lowering.target import Target
    from vkml.vulkan import Device, DeviceInfo, Pipeline

_log = logging.getLogger("vkml")


@dataclass(frozen=True)
class Effort:
    """How much time measuring may take."""

    seconds: float
    """For all plans of a session."""
    samples: int
    """Of each candidate; an odd number."""


EFFORTS = {"quick": Effort(2.0, 3), "full": Effort(60.0, 9)}
HOPELESS = 1.3
"""A candidate whose fastest run took so many times as long as another's is measured no further."""
AT_ROOFLINE = 1.1
"""Nothing is sought that would be faster than so many times the time in which memory can be read."""
LEAST_GAIN = 0.03
"""By which a candidate has to be faster than the rule's choice."""
CACHED_BYTES = 32 << 20
"""Of weights and inputs, from which on not all are still in caches when they are read again."""
_UNKNOWN_MICROSECONDS = 10.0
"""What is expected of launches that rules have no estimate for."""

clock: Callable[[], float] = time.monotonic
"""Seconds, for the limit of time."""
timed: Callable[[TrialProgram], float] = TrialProgram.seconds
"""Runs a candidate; the seconds that it took."""


class Tuning:
    """What a session goes by on one device, and the time that it may still measure.

    Args:
        info: the device that is measured.
        opened: waits for it, and returns it open.
        weights: of the session there.
        options: of the session; its setting `tune` is "off" where a file is all that is gone by.
    """

    def __init__(
        self,
        info: DeviceInfo,
        opened: Callable[[], Device],
        weights: WeightStore,
        options: SessionOptions,
    ) -> None:
        self._info, self._opened, self._weights = info, opened, weights
        self._progress: Progress | None = options.progress
        self._memory_limit = options.memory_limit
        self._time_limit = options.run_time_limit if math.isfinite(options.run_time_limit) else None
        self._effort_name = options.tune
        self._effort = EFFORTS.get(options.tune)
        self._left = self._effort.seconds if self._effort else 0.0
        self.asked: dict[str, int] = {}
        """Questions of this session's plans, and how often they came up."""
        self._renew()
        renew_in_child(self._renew)
        name = options.tuning_file
        self.setup = setup_of(info)
        self._given = for_device(read_file(name), info, name) if name else {}
        self.found: Found = {**(cached(info) if self._effort else {}), **self._given}
        """By question; what a file says goes before what other sessions have found."""

    def asked_and_found(self) -> Found:
        """What has been found for this session's plans."""
        with self._lock:
            return {question: self.found[question] for question in self.asked if question in self.found}

    def _renew(self) -> None:
        self._lock = threading.RLock()

    def target_for(
        self,
        piece: Piece,
        types: Mapping[str, TensorType],
        constants: Mapping[str, Constant],
        target: Target,
    ) -> Target:
        """The target that a piece of known sizes is to be lowered for: with picks, after measuring.

        Args:
            piece: of a plan.
            types: of its values.
            constants: of its graph.
            target: of the device.
        """
        with self._lock:
            if self._effort is not None:
                self._measure_new(self._effort, piece, types, constants, target)
            return replace(target, picks=Picks({key: each.pick for key, each in self.found.items()}))

    def _is_new(self, question: str) -> bool:
        """Whether this session has to measure: neither a file nor a session of as much effort has."""
        known = self.found.get(question)
        if known is None:
            return True
        is_settled = self._effort_name == "quick" or known.effort == "full"
        return not (is_settled or question in self._given or question in self.asked)

    def _measure_new(
        self,
        effort: Effort,
        piece: Piece,
        types: Mapping[str, TensorType],
        constants: Mapping[str, Constant],
        target: Target,
    ) -> None:
        started = clock()
        before = {id(each): (each, set(prepared_forms(each))) for each in constants.values()}
        trials = Trials(self._is_new)
        try:
            collect_trials(piece, types, constants, target, trials)
            for question, count in trials.counts.items():
                self.asked[question] = self.asked.get(question, 0) + count
            if not trials.found:
                return
            found = {
                question: Measured(each[0].label, "rule" if len(each) > 1 else self._effort_name)
                for question, each in trials.found.items()
            }
            held = sum(each.type.bytes for each in {id(c): c for c in constants.values()}.values())
            held += sum(types[name].host_bytes for name in piece.inputs)
            found.update(self._measured(effort, trials, held, started + self._left))
            self.found.update(keep(self._info, found))
        finally:
            self._left = max(0.0, self._left - (clock() - started))
            for constant, forms in before.values():
                # Layouts of weights for candidates, of which the plan makes anew what it wants.
                made = prepared_forms(constant)
                for form in set(made) - forms:
                    del made[form]

    def _measured(self, effort: Effort, trials: Trials, held: int, deadline: float) -> Found:
        """Times candidates, those first that a run spends the most time on, until the time is over."""
        device = self._opened()
        questions = {key: each for key, each in trials.found.items() if len(each) > 1}
        order = sorted(questions, key=lambda key: -trials.counts[key] * _expected(questions[key][0]))
        found: Found = {}
        bench: Bench | None = None
        taken: list[Pipeline] = []
        try:
            for batch in _batches(order, questions):
                began = clock()
                kernels = [
                    launch.kernel for key in batch for trial in questions[key] for launch in trial.launches
                ]
                kernels += self._weights.packing_kernels(_constants(questions[key] for key in batch))
                try:
                    pipelines = compile_kernels(device, kernels, taken, _until(deadline))
                except _TimeIsOverError:
                    return found
                if bench is None:
                    bench = Bench(
                        device,
                        self._weights,
                        is_cold=held > CACHED_BYTES and not self._info.is_software,
                        memory_limit=self._memory_limit,
                        time_limit=self._time_limit,
                    )
                for key in batch:
                    if clock() >= deadline:
                        return found
                    share = trials.share(key)
                    measured = self._race(effort, bench, questions[key], share, pipelines, deadline)
                    if measured is not None:
                        found[key] = measured
                    if self._progress:
                        self._progress("tune", len(found), len(order))
                device.release_all(taken)
                # The next batch will take about as long.
                if 2 * clock() - began > deadline:
                    return found
            return found
        except OutOfMemory as problem:
            _log.debug("nothing more is measured: %s", problem)
            return found
        finally:
            if bench is not None:
                bench.close()
            device.release_all(taken)

    def _race(
        self,
        effort: Effort,
        bench: Bench,
        trials: Sequence[Trial],
        share: float,
        pipelines: Mapping[int, Pipeline],
        deadline: float,
    ) -> Measured | None:
        """Times the candidates of a question in turns; None where time or memory did not suffice."""
        programs: list[TrialProgram] = []
        times: dict[str, list[float]] = {}
        try:
            bench.prepare(trials)
            for trial in trials:
                programs.append(TrialProgram(bench, trial, pipelines, share))
            alive = list(programs)
            for number in range(1 + effort.samples):
                for program in alive:
                    if clock() >= deadline:
                        break
                    taken = timed(program)
                    if number:  # the first time clocks rise, and caches of code fill
                        times.setdefault(program.label, []).append(taken)
                if clock() >= deadline:
                    break
                if not number:
                    continue
                fastest = {program.label: min(times[program.label]) for program in alive}
                best = min(fastest.values())
                if best <= AT_ROOFLINE * bench.least_seconds(trials):
                    break
                alive = [each for each in alive if fastest[each.label] <= HOPELESS * best]
                if len(alive) == 1:
                    break
        except OutOfMemory as problem:
            _log.debug("candidates are not measured: %s", problem)
            return None
        finally:
            for program in programs:
                program.free()
            bench.release()
        if len(times) < len(programs):
            return None
        medians = {label: statistics.median(samples) for label, samples in times.items()}
        rule = trials[0].label
        pick = min(medians, key=lambda label: medians[label])
        if medians[pick] > (1 - LEAST_GAIN) * medians[rule]:
            pick = rule
        assert self._effort_name in EFFORTS
        return Measured(pick, self._effort_name, {label: 1e6 * t for label, t in medians.items()})


class _TimeIsOverError(Exception):
    """Raised between two kernels."""


def _until(deadline: float) -> Callable[[str, int, int], None]:
    """What ends compiling when the time is over: a driver may take seconds for a kernel."""

    def check(stage: str, done: int, total: int) -> None:
        if done < total and clock() >= deadline:
            raise _TimeIsOverError

    return check


def _expected(rule: Trial) -> float:
    return _UNKNOWN_MICROSECONDS if rule.expected is None else rule.expected


def _constants(questions: Iterator[Sequence[Trial]]) -> list[Constant]:
    """Those that candidates read."""
    found = {
        id(view.buffer.constant): view.buffer.constant
        for trials in questions
        for trial in trials
        for launch in trial.launches
        for view in launch.reads
        if view.buffer.constant is not None
    }
    return list(found.values())


def _batches(order: Sequence[str], questions: Mapping[str, Sequence[Trial]]) -> Iterator[list[str]]:
    """Questions whose kernels are compiled together: as many as keep all threads busy for a while."""
    most = 2 * min(MOST_THREADS, usable_cores())
    batch: list[str] = []
    count = 0
    for key in order:
        batch.append(key)
        count += len({launch.kernel.name for trial in questions[key] for launch in trial.launches})
        if count >= most:
            yield batch
            batch, count = [], 0
    if batch:
        yield batch
