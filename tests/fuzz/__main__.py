"""``python -m tests.fuzz``: runs the fuzzer for a while, or one case again."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from tests.fuzz.campaign import Campaign, described
from tests.fuzz.case import Case
from tests.fuzz.children import Child


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.fuzz", description=__doc__)
    parser.add_argument("--minutes", type=float, help="how long to run (1 where no --cases are given)")
    parser.add_argument("--cases", type=int, help="how many cases to run")
    parser.add_argument("--device", default="cpu", help="cpu, lavapipe, swiftshader, vulkan:0, …")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--first", type=int, default=0, help="number of the first case")
    parser.add_argument("--ops", default="", help="operators to draw from, separated by commas; without: all")
    parser.add_argument(
        "--findings", type=Path, default=Path("fuzz-findings"), help="where reproducers are put"
    )
    parser.add_argument("--replay", type=Path, metavar="CASE", help="judges a saved case again")
    parser.add_argument(
        "--as-found", action="store_true", help="saves cases as they were found, not made smaller"
    )
    options = parser.parse_args()
    if options.replay is not None:
        return replay(options.replay, options.device)
    if options.minutes is None and options.cases is None:
        options.minutes = 1.0
    ops = [op for op in options.ops.split(",") if op]
    folder, minimises = options.findings, not options.as_found
    campaign = Campaign(options.device, options.seed, folder, minimises=minimises, ops=ops)
    with campaign:
        try:
            campaign.run(options.cases, options.minutes, options.first)
        except KeyboardInterrupt:
            print("interrupted")
    report = campaign.report
    print(f"\n{report.cases} cases in {report.seconds:.0f} s on {options.device}, seed {options.seed}:")
    print("  " + ", ".join(f"{count} {what}" for what, count in report.counts.most_common()))
    print(f"{len(report.found)} findings")
    for found in report.found.values():
        print(f"  {found.times:4} × {str(found.finding)[:160]}\n         {found.command}")
    return 1 if report.found else 0


def replay(path: Path, device: str) -> int:
    """Judges a saved case; prints it and what is wrong."""
    case = Case.load(path)
    print(f"{case.origin}\n{described(case)}")
    with Child() as child:
        reply = child.ask({"source": "saved", "path": str(path.resolve()), "device": device})
    for finding in reply.findings:
        print(f"\n{finding}")
    print(f"\n{len(reply.findings)} findings; {dict(reply.counts)}")
    return 1 if reply.findings else 0


if __name__ == "__main__":
    sys.exit(main())
