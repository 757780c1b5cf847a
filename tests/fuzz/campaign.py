"""A campaign: cases one after another, findings told apart, made small and saved."""

from __future__ import annotations

import functools
import hashlib
import re
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from tests.fuzz.case import Case
from tests.fuzz.children import Child, Reply
from tests.fuzz.driver import Finding
from tests.fuzz.minimise import minimised
from tests.fuzz.tensors import Array, load_tensors

MUTATED_SHARE = 3
"""Every third case is a mutated one."""


@dataclass
class Found:
    """A finding and the smallest case that shows it."""

    finding: Finding
    path: Path
    origin: str
    command: str
    times: int = 1


@dataclass
class Report:
    """What a campaign came to."""

    cases: int = 0
    seconds: float = 0.0
    counts: Counter[str] = field(default_factory=Counter)
    found: dict[str, Found] = field(default_factory=dict)
    """Signature → finding."""


def signature(finding: Finding) -> str:
    """What two findings of one cause mostly have in common: the kind, the operator, the words."""
    words = finding.message
    if finding.kind in ("wrong", "operator", "memory"):
        words = ""
    words = re.sub(r"'[^']*'|\"[^\"]*\"|\[[^\]]*\]|\([^)]*\)|[-+]?\d[\d.e+-]*", "", words)
    if "it cannot be computed from its constants" in words:
        return f"{finding.kind}||{words.rsplit(':', 1)[-1].split(' encountered')[0].strip()}"
    if finding.kind == "exception":
        words = finding.message[finding.message.rfind("(") :]
    return f"{finding.kind}|{finding.where}|{' '.join(words.split())[:160]}"


def kinship(finding: Finding) -> str:
    """What a smaller case's finding must share with the first one's."""
    if finding.kind == "wrong":
        return finding.kind  # a fused group's last operator need not be the wrong one
    return signature(finding) if finding.kind == "refused" else f"{finding.kind}|{finding.where}"


class Campaign:
    """Judges cases on one device."""

    def __init__(
        self,
        device: str,
        seed: int,
        folder: Path,
        *,
        environment: dict[str, str] | None = None,
        say: Callable[[str], None] = print,
        minimises: bool = True,
        ops: Sequence[str] = (),
        seconds: float = 90.0,
    ) -> None:
        """States what is tried.

        Args:
            device: what `--device` takes.
            seed: of all cases.
            folder: where reproducers are put.
            environment: of the child, besides this process's own.
            say: told of findings.
            minimises: whether cases are made smaller.
            ops: operators and patterns to draw from; all, where none are chosen.
            seconds: that making one case smaller may take.
        """
        self.device, self.seed, self.folder, self.say, self.ops = device, seed, folder, say, tuple(ops)
        self.minimises, self.seconds = minimises, seconds
        self.report = Report()
        self.child = Child(environment)
        self._scratch = Path(tempfile.mkdtemp(prefix="vkml-fuzz-"))

    def run(self, cases: int | None = None, minutes: float | None = None, first: int = 0) -> Report:
        """So many cases, or as many as the time allows."""
        start = time.monotonic()
        for index in _numbers(first, cases):
            if minutes is not None and time.monotonic() - start > minutes * 60:
                break
            source = "mutated" if index % MUTATED_SHARE == MUTATED_SHARE - 1 else "random"
            self.judge({"source": source, "seed": self.seed, "index": index, "ops": self.ops})
            self.report.seconds = time.monotonic() - start
        return self.report

    def judge(self, request: dict[str, object]) -> Reply:
        """One case; what is found is noted."""
        reply = self.child.ask({**request, "device": self.device})
        self.report.cases += 1
        self.report.counts += reply.counts
        for finding in reply.findings:
            key = signature(finding)
            if key in self.report.found:
                self.report.found[key].times += 1
            else:
                self._note(key, finding, request)
        return reply

    def close(self) -> None:
        """Ends the child."""
        self.child.close()
        for path in self._scratch.iterdir():
            path.unlink()
        self._scratch.rmdir()

    def __enter__(self) -> Campaign:
        return self

    def __exit__(self, *rest: object) -> None:
        self.close()

    def _note(self, key: str, finding: Finding, request: dict[str, object]) -> None:
        name = f"{finding.kind}-{finding.where or 'model'}-{hashlib.sha1(key.encode()).hexdigest()[:8]}"
        path = self.folder / re.sub(r"[^\w.-]", "_", name)
        self.folder.mkdir(parents=True, exist_ok=True)
        self.child.ask({**request, "device": self.device, "keep": str(path), "values": str(self._values)})
        case = Case.load(path)
        # Until it is small, the finding counts as known, whatever name it has then.
        self.report.found[key] = found = Found(finding, path, case.origin, "")
        if self.minimises:
            shows = functools.partial(self._shows, finding)
            small = minimised(case, shows, self._values_of, seconds=self.seconds)
            small.save(path)
            for other in self.child.ask(
                {"source": "saved", "path": str(path), "device": self.device}
            ).findings:
                if kinship(other) == kinship(finding):
                    found.finding = other
                    break
        found.command = f"python -m tests.fuzz --replay {path} --device {self.device}"
        self.say(f"\n{found.finding}\n  from {found.origin}\n  {found.command}")
        self.say(described(Case.load(path)))

    @property
    def _values(self) -> Path:
        return self._scratch / "values.npz"

    def _values_of(self, case: Case) -> list[dict[str, Array]]:
        found: list[dict[str, Array]] = [{} for _ in case.feeds]
        case.save(self._scratch / "case")
        self._values.unlink(missing_ok=True)
        request = {"source": "saved", "path": str(self._scratch / "case"), "device": self.device}
        self.child.ask({**request, "values": str(self._values)})
        if self._values.exists():
            for label, _, array in load_tensors(self._values)[0]:
                number, name = label.split("/", 1)
                found[int(number)][name] = array
        return found

    def _shows(self, finding: Finding, case: Case) -> bool:
        case.save(self._scratch / "candidate")
        request = {"source": "saved", "path": str(self._scratch / "candidate"), "device": self.device}
        reply = self.child.ask(request)
        return any(kinship(other) == kinship(finding) for other in reply.findings)


def _numbers(first: int, count: int | None) -> Iterator[int]:
    index = first
    while count is None or index < first + count:
        yield index
        index += 1


def described(case: Case) -> str:
    """A case in a few lines of text."""
    proto = case.proto()
    if proto is None:
        return f"  {len(case.model)} bytes that are no model"
    lines = [
        f"  opset {[entry.version for entry in proto.opset_import]}, runs {[vars(run) for run in case.runs]}"
    ]
    for node in proto.graph.node:
        settings = {entry.name: _shown(entry) for entry in node.attribute}
        lines.append(
            f"  {list(node.output)} = {node.op_type}({', '.join(node.input)}) {settings or ''}"[:300]
        )
    for tensor in proto.graph.initializer:
        lines.append(f"  constant {tensor.name!r}: type {tensor.data_type}, shape {list(tensor.dims)}")
    for name, array in (case.feeds[0] if case.feeds else {}).items():
        values = array.reshape(-1)[:8].tolist()
        lines.append(f"  input {name!r}: {array.dtype}{list(array.shape)} {values}"[:200])
    return "\n".join(lines)


def _shown(attribute: object) -> str:
    from onnx import helper

    try:
        return str(helper.get_attribute_value(attribute))[:60]  # type: ignore[arg-type]
    except ValueError:
        return "?"
