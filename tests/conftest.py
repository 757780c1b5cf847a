"""What all tests share: the devices they run on, and checks at a run's end.

Environment: VKML_TEST_DEVICES (comma-separated words found in a device's name, title or driver, or ``cpu``)
narrows the devices; CI=true or VKML_STRICT_SKIPS=1 fails a run whose skip reasons are not all in
``allowed_skips.txt``.
"""

from __future__ import annotations

import functools
import gc
import os
import sys
from collections.abc import Iterator, Sequence
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any

import pytest

from tests.patience import patience

ALLOWED_SKIPS = Path(__file__).parent / "allowed_skips.txt"
SKIPS = pytest.StashKey[set[str]]()
VALIDATION = pytest.StashKey[list[str]]()


# --- devices ------------------------------------------------------------------------------------------------


@functools.cache
def vulkan_devices() -> tuple[tuple[str, str], ...]:
    """Name and test id of each Vulkan device that tests run on; software devices where they are allowed."""
    import vkml

    wanted = [
        word.strip().lower() for word in os.environ.get("VKML_TEST_DEVICES", "").split(",") if word.strip()
    ]
    found: list[tuple[str, str]] = []
    taken: set[str] = set()
    for device in vkml.devices():
        text = f"{device.name} {device.title} {device.driver}".lower().replace("llvmpipe", "lavapipe")
        if device.name == "cpu" or (wanted and not any(word in text for word in wanted)):
            continue
        kinds = [kind for kind in ("lavapipe", "swiftshader", "nvidia", "radeon", "intel") if kind in text]
        kind = kinds[0] if kinds else device.name.replace(":", "")
        label = kind if kind not in taken else f"{kind}-{device.name.replace(':', '')}"
        taken.add(label)
        found.append((device.name, label))
    return tuple(found)


def _parameters(names: Sequence[tuple[str, str]]) -> list[Any]:
    if not names:
        return [pytest.param("", marks=pytest.mark.skip(reason="no Vulkan device to test on"), id="none")]
    return [pytest.param(name, id=label) for name, label in names]


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """`vulkan_device_name`: each Vulkan device in turn; `device_name`: these and the CPU."""
    if "vulkan_device_name" in metafunc.fixturenames:
        metafunc.parametrize("vulkan_device_name", _parameters(vulkan_devices()))
    if "device_name" in metafunc.fixturenames:
        metafunc.parametrize("device_name", _parameters([("cpu", "cpu"), *vulkan_devices()]))


@pytest.fixture(scope="session")
def vulkan_device_names() -> tuple[str, ...]:
    """All Vulkan devices that tests run on; a test that needs one or two of them skips without."""
    return tuple(name for name, _ in vulkan_devices())


@pytest.fixture(params=["cpu", "vulkan"])
def either_device_name(request: pytest.FixtureRequest, vulkan_device_names: tuple[str, ...]) -> str:
    """The CPU, and one Vulkan device: for long trainings, whose kernels have tests of their own on all."""
    if request.param == "cpu":
        return "cpu"
    if not vulkan_device_names:
        pytest.skip("no Vulkan device to test on")
    return vulkan_device_names[0]


@pytest.fixture(autouse=True)
def lowerings_of_its_own() -> None:
    """A test lowers what it plans itself: some change what lowering goes by."""
    from vkml.lowering.kept import forget_lowerings

    forget_lowerings()


@pytest.fixture
def launches_of_their_own(monkeypatch: pytest.MonkeyPatch) -> None:
    """Small launches of a GPU are no phases of others: for tests of kernels, and of how many there are."""
    from vkml.lowering import phases

    monkeypatch.setattr(phases, "forced", 0)


# --- random numbers -----------------------------------------------------------------------------------------

_states: dict[str, Any] = {}
"""Of the modules' generators when their first test began."""


@pytest.fixture(autouse=True)
def numbers_of_its_own(request: pytest.FixtureRequest) -> None:
    """A test of a module with a generator `RANDOM` has the same numbers whatever ran before it."""
    generator = getattr(getattr(request, "module", None), "RANDOM", None)
    if generator is not None:
        bits = generator.bit_generator
        bits.state = _states.setdefault(request.module.__name__, bits.state)


# --- what is collected --------------------------------------------------------------------------------------


@pytest.hookimpl(trylast=True)
def pytest_collection_finish() -> None:
    """Has Python's collector pass over what there is before the first test: modules, the tests themselves.

    Of the whole suite these are 750,000 objects, half a second for each `gc.collect()` of a test and for
    each full collection in between.
    """
    gc.collect()
    gc.freeze()


@pytest.hookimpl(trylast=True)
def pytest_runtest_teardown(item: pytest.Item, nextitem: pytest.Item | None) -> None:
    """Drops, behind a module's last test, the plans of what it evaluated.

    Of the whole suite these are a million objects, a second for each collection.
    """
    evaluation = sys.modules.get("vkml.tracing.evaluation")
    if evaluation is not None and (nextitem is None or nextitem.path != item.path):
        evaluation._structures.clear()
        evaluation._programs.clear()


# --- what hangs ---------------------------------------------------------------------------------------------


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_runtest_protocol(item: pytest.Item) -> Iterator[None]:
    """Gives tests longer, before they count as hung, on a machine that is busy."""
    limit = float(item.config.getini("timeout") or 0)
    if limit and item.get_closest_marker("timeout") is None:
        item.add_marker(pytest.mark.timeout(patience(limit)))
    return (yield)


# --- the end of a run ---------------------------------------------------------------------------------------


def pytest_configure(config: pytest.Config) -> None:
    config.stash[SKIPS] = set()
    config.stash[VALIDATION] = []
    config.pluginmanager.register(_SkipReasons(config), "vkml-skip-reasons")


class _SkipReasons:
    """Notes the reason of every skip, of tests and of whole modules."""

    def __init__(self, config: pytest.Config) -> None:
        self.reasons = config.stash[SKIPS]

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        self._note(report)

    def pytest_collectreport(self, report: pytest.CollectReport) -> None:
        self._note(report)

    def _note(self, report: pytest.TestReport | pytest.CollectReport) -> None:
        if report.skipped and not hasattr(report, "wasxfail") and isinstance(report.longrepr, tuple):
            self.reasons.add(report.longrepr[2].removeprefix("Skipped: "))


@pytest.hookimpl(optionalhook=True)
def pytest_testnodedown(node: Any, error: object) -> None:
    """Takes in what a worker of pytest-xdist saw."""
    output = getattr(node, "workeroutput", {})
    node.config.stash[SKIPS].update(output.get("skips", ()))
    node.config.stash[VALIDATION].extend(output.get("validation", ()))


def _validation_messages() -> list[str]:
    if os.environ.get("VKML_VALIDATE", "") in ("", "0"):
        return []
    from vkml import vulkan

    return [str(message) for message in vulkan.validation_messages()]


def _unexpected_skips(config: pytest.Config) -> list[str]:
    if os.environ.get("VKML_STRICT_SKIPS", "") in ("", "0") and os.environ.get("CI", "") not in ("true", "1"):
        return []
    lines = (line.strip() for line in ALLOWED_SKIPS.read_text().splitlines())
    allowed = [line for line in lines if line and not line.startswith("#")]
    return sorted(r for r in config.stash[SKIPS] if not any(fnmatchcase(r, pattern) for pattern in allowed))


@pytest.hookimpl(trylast=True)
def pytest_sessionfinish(session: pytest.Session) -> None:
    config = session.config
    config.stash[VALIDATION].extend(_validation_messages())
    output = getattr(config, "workeroutput", None)
    if output is not None:
        output["skips"] = sorted(config.stash[SKIPS])
        output["validation"] = config.stash[VALIDATION]
    elif session.exitstatus in (pytest.ExitCode.OK, pytest.ExitCode.NO_TESTS_COLLECTED) and (
        config.stash[VALIDATION] or _unexpected_skips(config)
    ):
        session.exitstatus = pytest.ExitCode.TESTS_FAILED


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_terminal_summary(terminalreporter: Any, config: pytest.Config) -> Iterator[None]:
    """Says behind pytest's own lists, where the end of a log shows it, why a run without failures fails."""
    yield
    messages = config.stash[VALIDATION]
    if messages:
        terminalreporter.section(f"{len(messages)} validation messages: the run fails", red=True)
        for message in messages[:20]:
            terminalreporter.line(message)
    unexpected = _unexpected_skips(config)
    if unexpected:
        terminalreporter.section(f"skip reasons not in {ALLOWED_SKIPS.name}: the run fails", red=True)
        for reason in unexpected:
            terminalreporter.line(reason)
