"""Judges a case: vkml's session against vkml's NumPy, and that against other runtimes."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np
import onnx

import vkml
from tests.fuzz import trusted
from tests.fuzz.case import POISON, Case
from tests.fuzz.comparison import difference
from tests.fuzz.disturbances import RandomDisturbance, Traits
from tests.fuzz.driver import Finding, Outcome, run_case
from tests.fuzz.evaluation import Evaluation, Mismatch
from tests.fuzz.limits import limit_of
from tests.fuzz.operators import OperatorCheck
from tests.fuzz.stages import stage
from tests.fuzz.tensors import Array

UNKNOWN_BYTES = 1 << 40
"""Counted for cases whose tensors were too large to be made."""


@dataclass
class Verdict:
    """What came of a case."""

    findings: list[Finding] = field(default_factory=list)
    counts: Counter[str] = field(default_factory=Counter)
    """What was run and compared, for the share of cases that show anything; and `bytes` of all tensors."""


def traits_of(device: str, precision: str) -> Traits:
    """What a device may do to numbers."""
    if device == "cpu":
        return Traits(winograd=precision != "highest")
    return Traits(rough_quotients=True, flushes=True)


def judge(case: Case, device: str) -> Verdict:
    """Runs a case on a device, named as `vkml.InferenceSession` knows it, and compares."""
    return _Judge(case, device).run()


class _Judge:
    def __init__(self, case: Case, device: str) -> None:
        self.case, self.device = case, device
        self.verdict = Verdict()
        self.proto = case.proto()
        self.traces: dict[int, dict[str, Array]] = {}
        """Feed → all values as onnxruntime has them, if it runs the model."""
        self.lacks_kernels = False
        """Whether onnxruntime refuses for want of a kernel only."""
        self.outcome = Outcome()
        self.evaluation: Evaluation | None = None
        self.expected: dict[int, dict[str, Array]] = {}
        self.samples: dict[tuple[int, int], dict[str, Array] | None] = {}
        self.excused: list[str] = []
        """Nodes that onnxruntime runs only because one before, excusably, gave them other values."""

    def add(self, kind: str, message: str, where: str | None = None) -> None:
        ops = {node.op_type for node in self.proto.graph.node} if self.proto is not None else set()
        words = message.replace("'", " ").split()
        found = next((word for word in words if word in ops), "") if where is None else where
        self.verdict.findings.append(Finding(kind, found, message))

    def count(self, what: str, number: int = 1) -> None:
        self.verdict.counts[what] += number

    def run(self) -> Verdict:
        with stage("vkml"):
            self.outcome = run_case(self.case, self.device)
        self.verdict.findings += self.outcome.findings
        self.verdict.counts.update({f"{kind} steps": count for kind, count in self.outcome.steps.items()})
        self._check_validation()
        self._trace()
        with stage("evaluation"):
            self._load()
            self._compare()
        return self.verdict

    def _compare(self) -> None:
        operators = self._check_operators()
        if self.outcome.refusal is not None:
            self.count("refused")
            self._check_refusal(self.outcome.refusal, 0)
        else:
            for number, result in enumerate(self.outcome.results):
                if isinstance(result, vkml.Error):
                    self.count("raised")
                    self._check_refusal(
                        result, self.case.runs[number].feed, self.case.runs[number].presentation
                    )
                elif self.case.runs[number].presentation != POISON:
                    self.count("ran")
                    self._check_result(number, result)
        # What a session refuses has been said.
        has_refused = self.outcome.refusal or any(isinstance(r, vkml.Error) for r in self.outcome.results)
        self.verdict.findings += [f for f in operators if not (has_refused and f.kind == "refused")]

    def _check_operators(self) -> list[Finding]:
        if self.evaluation is None or self.proto is None:
            return []
        check = OperatorCheck(self.proto, self.evaluation)
        for number in sorted({run.feed for run in self.case.runs}):
            check.run(self.case.feeds[number], self.traces.get(number))
        self.excused += check.excused
        self.verdict.counts += check.counts
        return check.findings

    def _check_validation(self) -> None:
        if self.device != "cpu":
            from vkml import vulkan

            messages = vulkan.validation_messages()
            for message in messages[_seen[0] :]:
                self.add("validation", str(message)[:400])
            _seen[0] = len(messages)

    def _trace(self) -> None:
        if self.proto is None:
            return
        try:
            runtime = trusted.Onnxruntime(trusted.laid_open(self.proto))
        except trusted.Refused as error:
            self.lacks_kernels = str(error).startswith("NotImplemented")
            self.count("onnxruntime refuses")
            return
        for number in sorted({run.feed for run in self.case.runs}):
            try:
                self.traces[number] = runtime.run(self.case.feeds[number])
                self.count("onnxruntime ran")
            except trusted.Refused:
                self.count("onnxruntime raised")

    def _load(self) -> None:
        try:
            self.evaluation = Evaluation(self.case.model)
        except vkml.Error as error:
            if self.outcome.refusal is None:
                self.add("accepted", f"a session takes what the loader refuses: {error}")
        except Exception as error:
            self.add("exception", f"while loading: {error}", type(error).__name__)

    # -- refusals -------------------------------------------------------------------------------------------

    def _check_refusal(self, error: vkml.Error, feed: int, way: str = "plain") -> None:
        """A refusal is right where others refuse too, or where it is a known limit."""
        if isinstance(error, MemoryError):
            self.count("bytes", UNKNOWN_BYTES)
        if any(finding.kind == "exception" for finding in self.outcome.findings):
            return  # which has been told of
        if limit_of(str(error), self.proto) or any(f"{label}:" in str(error) for label in self.excused):
            self.count("limits")
            return
        what = f"{type(error).__name__}: {error}" + (f" (feed given as {way})" if way != "plain" else "")
        if feed in self.traces:
            self.add("refused", f"onnxruntime runs what vkml refuses: {what}")
        elif self._reference_runs(feed):
            self.add("refused", f"onnx's evaluator runs what vkml refuses: {what}")

    def _reference_runs(self, feed: int) -> bool:
        """Whether onnx finds the model valid and its evaluator runs it, and onnxruntime has nothing to say.

        The evaluator itself checks next to nothing, so only models count that were made to be valid, at the
        sizes that they were made for.
        """
        if self.proto is None or self.case.is_mutated or feed or not self.lacks_kernels:
            return False
        try:
            onnx.checker.check_model(self.proto, full_check=True)
            trusted.reference(self.proto, self.case.feeds[feed])
        except Exception:  # the checker's errors are of several kinds
            return False
        return True

    # -- results --------------------------------------------------------------------------------------------

    def _check_result(self, number: int, result: Mapping[str, Array]) -> None:
        if self.evaluation is None or self.proto is None:
            return
        names = [value.name for value in self.proto.graph.output]
        if self.outcome.outputs != names:
            self.add("wrong", f"outputs {self.outcome.outputs} instead of {names}", "")
            return
        run = self.case.runs[number]
        try:
            if run.feed not in self.expected:
                self.expected[run.feed] = self.evaluation.run(self.case.feeds[run.feed])
                self.count("bytes", self.evaluation.bytes)
        except Mismatch:
            return  # found again, and told of, where operators are checked
        except MemoryError:
            self.count("bytes", UNKNOWN_BYTES)
            return
        except vkml.Error as error:
            node = self.evaluation.current
            if node is not None and not self.evaluation.read & set(node.outputs):
                self.count("measured only")  # a session need not compute what nobody reads
                return
            self.add("unreported", f"the session ran what its operators refuse: {error}")
            return
        for name in result:
            expected = self.expected[run.feed][name]

            def sample(which: int, name: str = name) -> Array | None:
                found = self._sample(run.feed, which)
                return None if found is None else found[name]

            try:
                wrong = difference(result[name], expected, sample)
            except MemoryError:
                self.count("bytes", UNKNOWN_BYTES)
                self.count("out of memory")
                continue
            self.count("compared")
            if wrong is not None:
                way = f" (run {number}, given as {run.presentation})" if number else ""
                self.add("wrong", f"output {name!r}{way}: {wrong.words}", self._maker(name))

    def _sample(self, feed: int, which: int) -> dict[str, Array] | None:
        """All outputs with disturbed steps."""
        assert self.evaluation is not None
        if (feed, which) not in self.samples:
            traits = traits_of(self.device, self.case.precision)
            disturbance = RandomDisturbance(np.random.default_rng(which), traits, which)
            try:
                self.samples[feed, which] = self.evaluation.run(self.case.feeds[feed], disturbance)
            except (vkml.Error, Mismatch):
                self.samples[feed, which] = None
        return self.samples[feed, which]

    def _maker(self, name: str) -> str:
        assert self.proto is not None
        return next((node.op_type for node in self.proto.graph.node if name in node.output), "")


_seen = [0]
"""How many messages of Vulkan's validation layer have been told."""
