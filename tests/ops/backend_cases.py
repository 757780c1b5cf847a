"""Cases of the ONNX backend suite, by operator."""

from __future__ import annotations

import functools
from typing import Any

import numpy as np

import vkml
from tests.comparing import assert_close


@functools.cache
def backend_cases() -> tuple[Any, ...]:
    """The suite's node cases; making them runs onnx's own code on all of their inputs."""
    from onnx.backend.test.case.node import collect_testcases

    with np.errstate(all="ignore"):
        return tuple(collect_testcases())


def names_of(*ops: str) -> list[str]:
    """Names of the cases whose first node is of one of these operators."""
    return [case.name for case in backend_cases() if case.model and case.model.graph.node[0].op_type in ops]


def check_backend_case(name: str, device: str) -> vkml.InferenceSession:
    """Runs a case on a device with the suite's tolerances; the closed session."""
    [case] = [case for case in backend_cases() if case.name == name]
    with vkml.InferenceSession(case.model.SerializeToString(), devices=device) as session:
        for given, expected in case.data_sets:
            feed = dict(zip((value.name for value in session.get_inputs()), given, strict=True))
            for found, wanted in zip(session.run(None, feed), expected, strict=True):
                assert_close(np.asarray(found), np.asarray(wanted), rtol=case.rtol, atol=case.atol, what=name)
    return session
