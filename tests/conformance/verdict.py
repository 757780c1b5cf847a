"""What became of a case on a device."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Verdict:
    """What became of a case."""

    name: str
    failure: str = ""
    """What was wrong, in a line that begins with its kind and a colon; empty where the case passed."""
    devices: frozenset[str] = frozenset()
    """Names of the devices that programs ran on; none where all was known beforehand."""
    fallbacks: tuple[str, ...] = ()
    """What a device had no kernel for, so that the CPU ran it: operators, and why, as ``TopK: because``."""
