"""``vkml doctor``: facts of the installation, and each kernel's known answer on each device."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from contextlib import nullcontext
from dataclasses import asdict
from typing import TYPE_CHECKING

from vkml.cli.guard import UsageError
from vkml.cli.output import console, print_json, show_table, table
from vkml.cli.terminal import printable
from vkml.ir.wording import counted

if TYPE_CHECKING:
    from rich.console import Console
    from rich.text import Text

    from vkml.engine.doctor import CaseResult


def show_diagnosis(
    devices: Sequence[str], *, match: str, everything: bool, verbose: bool, as_json: bool
) -> int:
    """Runs the cases and prints what came of them; 1 where a case failed."""
    import vkml
    from vkml.engine import doctor

    names = list(devices) or [device.name for device in vkml.devices(True if everything else None)]
    known = {device.name for device in vkml.devices(True)} | {"auto"}
    for name in names:
        if name not in known:
            raise UsageError(f"there is no device {name!r}; there is: {', '.join(sorted(known))}")
    cases = doctor.cases(match)
    if not cases:
        raise UsageError(f"--match {match}: no case has it in its name")
    facts = doctor.facts()
    out = console()
    if not as_json:
        rows = table("installation", "")
        for name, value in facts:
            rows.add_row(name, value)
        for (title, reason), number in Counter(doctor.rejected()).items():
            rows.add_row("unused device", f"{title}{f' (×{number})' if number > 1 else ''}: {reason}")
        show_table(out, rows)
    results: list[CaseResult] = []
    is_shown = out.is_terminal and not as_json
    for name in names:
        waiting = out.status(f"{name}: {counted(len(cases), 'case')}") if is_shown else nullcontext()
        with waiting:
            found = [doctor.run_case(case, name) for case in cases]
        results += found
        if not as_json:
            _show(out, name, found, verbose)
    failed = sum(result.status == doctor.FAIL for result in results)
    count = counted(len(results), "case")
    if as_json:
        print_json(
            {"facts": dict(facts), "results": [asdict(result) for result in results], "failed": failed}
        )
    elif failed:
        verb = "FAILS" if failed == 1 else "FAIL"
        out.print(f"{failed} of {count} {verb}", style="bold red", markup=False)
    else:
        out.print(f"all {count} PASS", style="bold green", markup=False)
    return 1 if failed else 0


def _show(out: Console, device: str, results: Sequence[CaseResult], verbose: bool) -> None:
    """One line a family; the cases that did not pass, or all, below it."""
    from rich.text import Text

    from vkml.engine import doctor

    rows = table(device, "cases", "status", "detail")
    said: dict[str, str] = {}
    """What the first case with a detail is called: a lack that all cases share is told once."""
    for family in dict.fromkeys(result.family for result in results):
        members = [result for result in results if result.family == family]
        counts = Counter(result.status for result in members)
        worst = next(status for status in (doctor.FAIL, doctor.ON_CPU, doctor.PASS) if counts[status])
        split = ", ".join(f"{count} {status}" for status, count in counts.items()) if len(counts) > 1 else ""
        rows.add_row(family, str(len(members)), _coloured(worst), split)
        for result in members:
            if verbose or result.status != doctor.PASS:
                first = said.setdefault(result.detail, result.case) if result.detail else result.case
                told = result.detail if first == result.case else f"as {first}"
                detail = Text(printable(told))  # of several lines, where a compiler has spoken
                rows.add_row(f"  {result.case}", "", _coloured(result.status), detail)
    show_table(out, rows)


def _coloured(status: str) -> Text:
    from rich.text import Text

    return Text(status, style={"PASS": "green", "FAIL": "bold red"}.get(status, "yellow"))
