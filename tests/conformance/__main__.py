"""``python -m tests.conformance``: runs ONNX's backend suite on a device and says which cases fail."""

from __future__ import annotations

import argparse
import importlib.metadata
import os
import sys
import textwrap
import time
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from fnmatch import fnmatchcase

# Processes are forked from this one, which therefore must have no threads. NumPy reads it when imported.
os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")

from tests.conformance import workers
from tests.conformance.expected import (
    Expectation,
    Outcome,
    expectation_of,
    expectations,
    known_fallbacks,
    outcome_of,
    stale,
    stale_fallbacks,
    unexpected_fallbacks,
)
from tests.conformance.sample import sample
from tests.conformance.suite import Case, suite
from tests.conformance.verdict import Verdict

WIDTH = 80


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.conformance", description=__doc__)
    parser.add_argument("--device", default="cpu", help="cpu, lavapipe, swiftshader, nvidia, vulkan:0, …")
    parser.add_argument("--pattern", default="*", help="of the cases' names, as in 'test_conv_*'")
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 1, help="processes at a time; 0: none")
    parser.add_argument("--sample", action="store_true", help="only the cases that make test runs")
    parser.add_argument("--fallbacks", action="store_true", help="list what the device has no kernel for")
    parser.add_argument(
        "--perturb", action="store_true", help="change an element of each output: hardly a case may pass"
    )
    parser.add_argument(
        "--tune", choices=("off", "quick", "full"), default="off", help="kernels by measured times, on a GPU"
    )
    parser.add_argument(
        "--precision", choices=("highest", "high", "medium"), default="high", help="of float32's products"
    )
    parser.add_argument("--seconds", type=float, default=workers.SECONDS, help="that a case may take")
    options = parser.parse_args(arguments)
    cases = suite()
    chosen = sample(cases, options.device) if options.sample else list(cases)
    names = [name for name in chosen if fnmatchcase(name, options.pattern)]
    listed = expectations()
    start = time.monotonic()
    onnx = importlib.metadata.version("onnx")
    # A session takes medium for high.
    kind = f"{options.device} at {'high' if options.precision == 'medium' else options.precision}"
    print(f"{len(names)} cases of onnx {onnx} on {kind}, {options.jobs} jobs", flush=True)
    judge = Judging(cases, options.device, options.perturb, options.tune, options.precision)
    verdicts: Iterable[Verdict] = (
        workers.run(names, judge.start, options.jobs, options.seconds)
        if options.jobs
        else map(judge.start(), names)
    )
    found = {verdict.name: verdict for verdict in _followed(verdicts, len(names))}
    if options.perturb:
        return _control(found)
    wrong = stale(cases, listed)
    print("\n".join(summary(cases, found, kind, listed, wrong, time.monotonic() - start)))
    known = known_fallbacks()
    unlisted = {
        name: texts
        for name, verdict in found.items()
        if (texts := unexpected_fallbacks(cases[name], verdict, kind, known))
    }
    print("\n".join(fallback_lines(found, unlisted, is_whole=options.fallbacks)))
    unneeded = stale_fallbacks(cases, found, kind, known)
    for line in unneeded:
        print(f"expected_fallbacks.txt: {line}")
    outcomes = outcomes_of(cases, found, kind, listed)
    is_good = (
        not wrong and not unlisted and not unneeded and all(outcome.is_good for outcome in outcomes.values())
    )
    return 0 if names and is_good else 1


class Judging:
    """What judges cases by their names, made in the process that does it."""

    def __init__(
        self,
        cases: Mapping[str, Case],
        device: str,
        is_perturbed: bool = False,
        tune: str = "off",
        precision: str = "high",
    ) -> None:
        self._cases = cases
        self._device = device
        self._is_perturbed = is_perturbed
        self._tune = tune
        self._precision = precision

    def start(self) -> workers.Judge:
        """Opens vkml, which the process that forks others must not."""
        from tests.conformance.judge import judge
        from tests.fuzz.worker import device_name

        device = device_name(self._device)
        return lambda name: judge(
            self._cases[name],
            device,
            is_perturbed=self._is_perturbed,
            tune=self._tune,
            precision=self._precision,
        )


MOST_BLIND = 0.02
"""Of the cases, that may pass with an element of each output changed: empty outputs, tolerances of one."""


def _control(found: Mapping[str, Verdict]) -> int:
    """Says which cases pass although their outputs are changed; the process's exit code."""
    blind = sorted(name for name, verdict in found.items() if not verdict.failure)
    for name in blind:
        print(f"{name}: passes with an element of each output changed")
    print(f"{len(blind)} of {len(found)} cases pass with an element of each output changed")
    return 0 if found and len(blind) <= MOST_BLIND * len(found) else 1


def outcomes_of(
    cases: Mapping[str, Case], found: Mapping[str, Verdict], device: str, listed: Sequence[Expectation]
) -> dict[str, Outcome]:
    """Name → what the verdict is, with the list in mind."""
    return {
        name: outcome_of(verdict, expectation_of(cases[name], device, listed))
        for name, verdict in found.items()
    }


def summary(
    cases: Mapping[str, Case],
    found: Mapping[str, Verdict],
    device: str,
    listed: Sequence[Expectation],
    wrong: Sequence[str],
    seconds: float,
) -> Iterator[str]:
    """The lines that say what a run found, none wider than `WIDTH`.

    Args:
        cases: of the suite.
        found: name → verdict.
        device: as the user calls it, and at which precision.
        listed: the list of expected failures.
        wrong: what is wrong with that.
        seconds: that it took.
    """
    outcomes = outcomes_of(cases, found, device, listed)
    for title, outcome in (
        ("failed and is not expected to", Outcome.UNEXPECTED_FAILURE),
        ("passed: take it off the list of expected failures", Outcome.UNEXPECTED_PASS),
    ):
        for name in sorted(name for name, each in outcomes.items() if each is outcome):
            text = found[name].failure or title
            yield from textwrap.wrap(name, WIDTH)
            yield from textwrap.wrap(text, WIDTH, initial_indent="    ", subsequent_indent="    ")
    for line in wrong:
        yield from textwrap.wrap(f"expected_failures.txt: {line}", WIDTH, subsequent_indent="    ")
    reasons = Counter(
        line.reason
        for name, outcome in outcomes.items()
        if outcome is Outcome.EXPECTED_FAILURE
        and (line := expectation_of(cases[name], device, listed)) is not None
    )
    where = Counter(_where(found[name]) for name, each in outcomes.items() if each is Outcome.PASSED)
    yield ""
    for outcome in Outcome:
        yield f"{sum(each is outcome for each in outcomes.values()):6}  {outcome.value}"
        details = {Outcome.PASSED: where, Outcome.EXPECTED_FAILURE: reasons}.get(outcome, Counter())
        for text, count in details.most_common():
            head = f"          {count:6}  "
            yield from textwrap.wrap(text, WIDTH, initial_indent=head, subsequent_indent=" " * len(head))
    yield f"{len(outcomes):6}  cases in {seconds:.0f} s"


def fallback_lines(
    found: Mapping[str, Verdict], unlisted: Mapping[str, Sequence[str]], *, is_whole: bool
) -> Iterator[str]:
    """The lines that say how many cases the CPU had to help with, and which of them are not listed.

    Args:
        found: name → verdict.
        unlisted: name → what fell back though no list says so.
        is_whole: whether all are shown, by operator and reason.
    """
    falling = [verdict for verdict in found.values() if verdict.fallbacks]
    yield f"{len(falling):6}  fell back to the CPU, {len(unlisted)} of them are not in expected_fallbacks.txt"
    for name, texts in sorted(unlisted.items()):
        yield from textwrap.wrap(f"{name}: {'; '.join(texts)}", WIDTH, subsequent_indent="    ")
    if is_whole:
        by_reason = Counter(text for verdict in falling for text in verdict.fallbacks)
        for text, count in by_reason.most_common():
            yield from textwrap.wrap(f"{count:6}  {text}", WIDTH, subsequent_indent=" " * 8)
            for verdict in falling:
                if text in verdict.fallbacks:
                    yield f"        {verdict.name}"


def _where(verdict: Verdict) -> str:
    gpus = verdict.devices - {"cpu"}
    if not gpus:
        return "on the CPU" if verdict.devices else "known without a run"
    return f"on {', '.join(sorted(gpus))}{' and the CPU' if 'cpu' in verdict.devices else ''}"


def _followed(verdicts: Iterable[Verdict], count: int) -> Iterator[Verdict]:
    """The same, with a line on a terminal that says how far it is."""
    shows = sys.stderr.isatty()
    for number, verdict in enumerate(verdicts, 1):
        if shows:
            print(f"\r{number:6} of {count}  {verdict.name[:50]:50}", end="", file=sys.stderr, flush=True)
        yield verdict
    if shows:
        print("\r" + " " * (WIDTH - 1) + "\r", end="", file=sys.stderr, flush=True)


if __name__ == "__main__":
    sys.exit(main())
