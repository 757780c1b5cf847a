"""Measured selection: candidates for a plan's launches are timed on its device, and the fastest is kept."""

from __future__ import annotations

import logging
import math
import statistics
import threading
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from vkml.cpu.processor import usable_cores
from vkml.dataclasses import dataclass
from vkml.engine.ahead import Ahead, compiled_ahead
from vkml.engine.compilation import MOST_THREADS
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

        def is_over() -> bool:
            return clock() >= deadline

        def begins(seconds: float) -> bool:
            return clock() + seconds < deadline

        def race(key: str, chosen: Sequence[Trial], samples: int) -> Measured | None:
            """Measures candidates as soon as they are compiled."""
            assert bench is not None
            kernels = [launch.kernel for trial in chosen for launch in trial.launches]
            if not all(ahead.wait(kernel, is_over) for kernel in kernels) or is_over():
                return None
            pipelines = {}
            for kernel in kernels:
                made = device.named_pipeline(kernel.name, taken)
                if made is not None:
                    pipelines[id(kernel)] = made
            there = [
                each for each in chosen if all(id(launch.kernel) in pipelines for launch in each.launches)
            ]
            if not there or there[0] is not chosen[0] or len(there) == 1 < len(chosen):
                return None  # what the driver refuses, or has no time for
            return self._race(samples, bench, there, trials.share(key), pipelines, deadline)

        taken: list[Pipeline] = []
        # One core is for whoever measures.
        most = max(1, min(MOST_THREADS, usable_cores() - 1))
        try:
            with compiled_ahead(lambda: device, lambda: device, most, begins) as ahead:
                bench = Bench(
                    device,
                    self._weights,
                    is_cold=held > CACHED_BYTES and not self._info.is_software,
                    memory_limit=self._memory_limit,
                    time_limit=self._time_limit,
                )
                if bench.is_cold:
                    # The plan wants the rules' choices anyway; where these are at the roofline, nothing else
                    # is compiled.
                    for key in order:
                        self._want(ahead, questions[key][:1])
                    for key in order:
                        measured = race(key, questions[key][:1], 2)
                        if measured is None or is_over():
                            break
                        least = bench.least_seconds(questions[key])
                        if min(measured.microseconds.values()) <= 1e6 * AT_ROOFLINE * least:
                            found[key] = measured
                        else:
                            self._want(ahead, questions[key])
                for key in order:
                    self._want(ahead, questions[key] if key not in found else ())
                ahead.want_all(())
                for key in order:
                    if is_over():
                        break
                    if key not in found:
                        measured = race(key, questions[key], effort.samples)
                        if measured is not None:
                            found[key] = measured
                    if self._progress:
                        self._progress("tune", len(found), len(order))
            return found
        except OutOfMemory as problem:
            _log.debug("nothing more is measured: %s", problem)
            return found
        finally:
            if bench is not None:
                bench.close()
            device.release_all(taken)

    def _want(self, ahead: Ahead, trials: Sequence[Trial]) -> None:
        """Has the kernels of candidates compiled, and those that pack their constants."""
        for kernel in self._weights.packing_kernels(_constants([trials])):
            ahead.want(kernel)
        for trial in trials:
            for launch in trial.launches:
                ahead.want(launch.kernel)

    def _race(
        self,
        samples: int,
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
            for number in range(1 + samples):
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
                if len(alive) == 1 < len(programs):
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
        medians = {label: statistics.median(each) for label, each in times.items()}
        rule = trials[0].label
        pick = min(medians, key=lambda label: medians[label])
        if medians[pick] > (1 - LEAST_GAIN) * medians[rule]:
            pick = rule
        assert self._effort_name in EFFORTS
        return Measured(pick, self._effort_name, {label: 1e6 * t for label, t in medians.items()})


def _expected(rule: Trial) -> float:
    return _UNKNOWN_MICROSECONDS if rule.expected is None else rule.expected


def _constants(questions: Iterable[Sequence[Trial]]) -> list[Constant]:
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
