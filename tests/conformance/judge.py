"""Runs a case in a session and compares what comes of it, with the suite's tolerances and stricter ones."""

from __future__ import annotations

import warnings
from typing import Any

import numpy as np

import vkml
from tests.conformance.suite import Case
from tests.conformance.verdict import Verdict
from vkml import vulkan
from vkml.ir import dtypes

Array = np.ndarray[Any, Any]


def judge(
    case: Case,
    device: str,
    *,
    is_perturbed: bool = False,
    tune: str = "off",
    precision: str = "high",
) -> Verdict:
    """Runs all data sets of a case on a device.

    Args:
        case: of the suite.
        device: as `vkml.devices` names it.
        is_perturbed: whether an element of each output is changed before it is compared: a control.
        tune: of the session's options.
        precision: the session's; by default what that is by default.
    """
    said = len(vulkan.validation_messages()) if device != "cpu" else 0
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            devices, fallbacks = _run(case, device, is_perturbed, tune, precision)
    except Exception as error:
        return Verdict(case.name, f"{type(error).__name__}: {_line(str(error))}")
    messages = vulkan.validation_messages()[said:] if device != "cpu" else []
    if messages:
        return Verdict(case.name, f"validation: {_line(str(messages[0]))}", devices, fallbacks)
    return Verdict(case.name, "", devices, fallbacks)


def _run(
    case: Case, device: str, is_perturbed: bool, tune: str, precision: str
) -> tuple[frozenset[str], tuple[str, ...]]:
    """Asserts that the case passes; names of the devices that its programs run on, and what fell back."""
    options = vkml.SessionOptions()
    options.log_severity_level = 4
    options.tune = tune
    vkml.manual_seed(0)  # what is drawn without a seed of its own is the same each time
    source = case.source_for_session()
    with vkml.InferenceSession(source, options, devices=device, precision=precision) as session:
        names = [value.name for value in session.get_inputs()]
        ran = 0
        for inputs, outputs in case.data_sets():
            found = session.run(None, dict(zip(names, inputs, strict=True)))
            if is_perturbed:
                found = [perturbed(value) for value in found]
            assert len(found) == len(outputs), f"{len(found)} outputs, {len(outputs)} expected"
            for at, (mine, theirs) in enumerate(zip(found, outputs, strict=True)):
                compare(mine, theirs, case.rtol, case.atol, f"output {at}")
            ran += 1
        assert ran, "no data"
        plans = session._runner.plans.alive
        fallbacks = {
            f"{label.partition(' ')[0]}: {_line(reason)}"
            for plan in plans
            for label, reason in plan.fallbacks
        }
        devices = frozenset(program.device for plan in plans for program in plan.programs)
        return devices, tuple(sorted(fallbacks))


def perturbed(value: Any) -> Any:
    """A value of which one element is another: the last one, by a hundredth of the greatest or by one."""
    if isinstance(value, list) and value:
        return [*value[:-1], perturbed(value[-1])]
    if not isinstance(value, np.ndarray) or not value.size:
        return value
    made = value.copy()
    flat = made.reshape(-1)
    if made.dtype.kind in "OUS":
        made = made.astype(object)
        flat = made.reshape(-1)
        flat[-1] = f"{flat[-1]} and more"
    elif made.dtype == np.bool_:
        flat[-1] = ~flat[-1]
    elif not dtypes.from_numpy(made.dtype).is_native:
        raw = flat.view(np.uint8)
        raw[-1] ^= 1 if made.dtype.itemsize == 1 else 0x40
    elif made.dtype.kind in "iu":
        flat[-1] += 1
    else:
        size = np.abs(flat[np.isfinite(flat)])
        flat[-1] = (flat[-1] if np.isfinite(flat[-1]) else 0) + 0.01 * max(size.max(initial=0), 1)
    return made


BFLOAT16_TOLERANCE = 2.0**-6


def compare(found: Any, expected: Any, rtol: float, atol: float, what: str = "") -> None:
    """Asserts that a value is what is expected.

    Args:
        found: an array, a list, or None.
        expected: the same; of floats that NumPy has, each within `atol + rtol * |expected|`, and of bfloat16
            with an `rtol` of two places at least, as ONNX's own runner has it. Integers, truth values and
            texts have to be equal, and of other types that NumPy lacks all bits.
        rtol: relative to what is expected.
        atol: absolute.
        what: begins the message.
    """
    if isinstance(expected, list | tuple):
        assert isinstance(found, list | tuple), f"{what} is no sequence"
        assert len(found) == len(expected), f"{what} has {len(found)} elements, {len(expected)} expected"
        for at, (mine, theirs) in enumerate(zip(found, expected, strict=True)):
            compare(mine, theirs, rtol, atol, f"{what}[{at}]")
        return
    if expected is None or found is None:
        assert found is expected, f"{what} is {found!r}, {expected!r} expected"
        return
    assert isinstance(found, np.ndarray), f"{what} is {type(found).__name__}, an array is expected"
    expected = np.asarray(expected)
    assert found.shape == expected.shape, f"{what} has shape {found.shape}, {expected.shape} expected"
    if expected.dtype.kind in "OUS":
        assert _texts(found) == _texts(expected), f"{what} has other texts"
        return
    assert found.dtype == expected.dtype, f"{what} is {found.dtype}, {expected.dtype} expected"
    if expected.dtype == dtypes.BFLOAT16.storage:
        found, expected = found.astype(np.float32), expected.astype(np.float32)
        rtol = max(rtol, BFLOAT16_TOLERANCE)
    if expected.dtype.kind in "fc" and dtypes.from_numpy(expected.dtype).is_native:
        np.testing.assert_allclose(found, expected, rtol=rtol, atol=atol, err_msg=what)
        return
    is_same = _bits(found) == _bits(expected)
    count = int(np.size(is_same) - np.count_nonzero(is_same))
    assert not count, f"{what}: {count} of {expected.size} {expected.dtype} differ in their bits"


def _bits(array: Array) -> Array:
    flat = np.ascontiguousarray(array).reshape(-1)
    return flat.view(np.uint8).reshape(flat.size, -1) if flat.size else np.zeros((0, 1), np.uint8)


def _texts(array: Array) -> list[str]:
    return [each.decode() if isinstance(each, bytes) else str(each) for each in array.reshape(-1).tolist()]


def _line(text: str) -> str:
    return " ".join(text.split())[:300]
