"""What measurement of candidates has found, by device and version of the kernels: files, and the cache."""

from __future__ import annotations

import contextlib
import functools
import hashlib
import json
import logging
import os
import secrets
import sys
from collections.abc import Mapping
from dataclasses import field
from importlib import resources
from typing import TYPE_CHECKING, Any

from vkml.dataclasses import dataclass
from vkml.errors import InvalidArgument, NoSuchFile
from vkml.vulkan import cache

if TYPE_CHECKING:
    from vkml.vulkan import DeviceInfo

_log = logging.getLogger("vkml")
FORMAT = "vkml tuning 1"
EFFORTS = ("rule", "quick", "full")
"""How a pick was made: by the rule, for there was no time to measure, or by so many samples."""
_TRIES = 3


@dataclass(frozen=True)
class Measured:
    """The candidate that a question is answered with."""

    pick: str
    effort: str
    """One of `EFFORTS`."""
    microseconds: Mapping[str, float] = field(default_factory=dict)
    """Of each candidate that was measured, the median."""


Found = dict[str, Measured]
"""By question."""


@dataclass(frozen=True)
class Setup:
    """What measured times hold for."""

    vendor: str
    device: str
    driver: str
    kernels: str
    """A digest of what kernels, and rules about them, are written in."""

    def __str__(self) -> str:
        return f"{self.device} ({self.vendor}), driver {self.driver}, kernels {self.kernels}"


def setup_of(info: DeviceInfo) -> Setup:
    """The setup of a device with the kernels of this version."""
    driver = f"{info.driver} {info.driver_info} {info.driver_version}"
    return Setup(info.vendor, info.title, driver, kernels_digest())


@functools.cache
def kernels_digest() -> str:
    """A digest of the sources of kernels, their compiler and the rules that choose among them."""
    digest = hashlib.sha256()
    folders = [resources.files("vkml.kernels"), resources.files("vkml.kernels.slang")]
    files = [each for folder in folders for each in folder.iterdir() if each.name.endswith((".py", ".slang"))]
    for each in sorted(files, key=lambda each: str(each)):
        digest.update(each.name.encode() + b"\0" + each.read_bytes() + b"\0")
    return digest.hexdigest()[:16]


# -- files ---------------------------------------------------------------------------------------------------


def write_file(path: str | os.PathLike[str], found: Mapping[Setup, Found]) -> None:
    """Writes a tuning file, in one step.

    Args:
        path: of the file.
        found: by setup.
    """
    text = json.dumps({"format": FORMAT, "setups": [_section(*each) for each in found.items()]}, indent=1)
    temporary = (
        f"{os.fspath(path)}.{secrets.token_hex(4)}.new"  # of its own: others may write at the same time
    )
    try:
        with open(temporary, "x", encoding="utf-8") as stream:
            stream.write(text + "\n")
        os.replace(temporary, path)
    except OSError as problem:
        with contextlib.suppress(OSError):
            os.unlink(temporary)
        raise InvalidArgument(f"the tuning file {os.fspath(path)!r} cannot be written: {problem}") from None


def read_file(path: str | os.PathLike[str]) -> dict[Setup, Found]:
    """What a tuning file holds.

    Raises:
        NoSuchFile: there is none.
        InvalidArgument: it is none, or damaged.
    """
    name = os.fspath(path)
    try:
        with open(path, encoding="utf-8") as stream:
            text = stream.read()
    except FileNotFoundError:
        raise NoSuchFile(f"there is no tuning file {name!r}") from None
    except (OSError, UnicodeDecodeError) as problem:
        raise InvalidArgument(f"the tuning file {name!r} cannot be read: {problem}") from None
    try:
        return _parsed(json.loads(text))
    except (ValueError, RecursionError) as problem:
        raise InvalidArgument(
            f"{name!r} is no tuning file, or damaged: {problem}; `vkml tune MODEL -o FILE` writes one"
        ) from None


def for_device(found: Mapping[Setup, Found], info: DeviceInfo, name: str) -> Found:
    """What a file says of a device; nothing, and a warning, where it was made for others.

    Args:
        found: from `read_file`.
        info: the device.
        name: of the file.
    """
    setup = setup_of(info)
    if setup in found:
        return found[setup]
    others = "; ".join(map(str, found)) or "no device"
    _log.warning(
        "the tuning file %r is ignored on %s: it is for %s, not for %s", name, info.name, others, setup
    )
    return {}


def _section(setup: Setup, found: Found) -> dict[str, Any]:
    picks = {
        question: {
            "pick": each.pick,
            "by": each.effort,
            "microseconds": {label: round(time, 3) for label, time in each.microseconds.items()},
        }
        for question, each in sorted(found.items())
    }
    stated = {
        "vendor": setup.vendor,
        "device": setup.device,
        "driver": setup.driver,
        "kernels": setup.kernels,
    }
    return {**stated, "picks": picks}


def _parsed(content: object) -> dict[Setup, Found]:
    """Raises ValueError where it is not as `write_file` writes it."""
    if not isinstance(content, dict) or content.get("format") != FORMAT:
        raise ValueError(f'its "format" is not "{FORMAT}"')
    sections = content.get("setups")
    if not isinstance(sections, list):
        raise ValueError('"setups" is not a list')
    found: dict[Setup, Found] = {}
    for section in sections:
        if not isinstance(section, dict) or not isinstance(section.get("picks"), dict):
            raise ValueError('a setup has no "picks"')
        stated = [section.get(name) for name in ("vendor", "device", "driver", "kernels")]
        if not all(isinstance(each, str) for each in stated):
            raise ValueError("a setup does not state vendor, device, driver and kernels")
        found[Setup(*map(str, stated))] = {
            question: _parsed_pick(question, each) for question, each in section["picks"].items()
        }
    return found


def _parsed_pick(question: str, stated: object) -> Measured:
    entry = stated if isinstance(stated, dict) else {}
    pick, effort, times = (entry.get(name) for name in ("pick", "by", "microseconds"))
    if not (isinstance(pick, str) and effort in EFFORTS and isinstance(times, dict)):
        raise ValueError(f'the pick for "{question}" is not as it is written')
    if not all(type(time) in (int, float) and 0 <= time <= sys.float_info.max for time in times.values()):
        raise ValueError(f'the times for "{question}" are not numbers of microseconds')
    return Measured(pick, str(effort), {label: float(time) for label, time in times.items()})


# -- the cache -----------------------------------------------------------------------------------------------


def cached(info: DeviceInfo) -> Found:
    """What sessions on this device have found before."""
    setup = setup_of(info)
    payload = cache.read(_entry(setup))
    if payload is None:
        return {}
    try:
        return _parsed(json.loads(payload)).get(setup, {})
    except (ValueError, RecursionError) as problem:
        _log.warning("what was measured on %s before is damaged and made anew: %s", info.name, problem)
        return {}


def keep(info: DeviceInfo, found: Found) -> Found:
    """Adds findings to the cache; what is to be gone by: others' where they were there before.

    An answer stays once it is there, so that sessions compute the same bits, unless more effort was made.

    Args:
        info: the device.
        found: what has been found.
    """
    setup = setup_of(info)
    merged = found
    for _ in range(_TRIES):  # another process may write at the same time
        there = cached(info)
        merged = {**there, **found}
        for question, each in there.items():
            if EFFORTS.index(each.effort) >= EFFORTS.index(merged[question].effort):
                merged[question] = each
        if merged == there:
            break
        content = {"format": FORMAT, "setups": [_section(setup, merged)]}
        if not cache.write(_entry(setup), json.dumps(content).encode()):
            break
    return {question: merged[question] for question in found}


def _entry(setup: Setup) -> str:
    return f"tuning/{hashlib.sha256(repr(setup).encode()).hexdigest()[:32]}"
