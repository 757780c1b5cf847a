"""Mistakes planted in a child's vkml, to see that the fuzzer finds them: named by VKML_FUZZ_PLANT."""

from __future__ import annotations

import os
import time
import warnings
from collections.abc import Callable
from typing import Any

import numpy as np

import vkml
import vkml.ops
from tests.fuzz import oracle
from vkml.engine.session import InferenceSession
from vkml.ir.operator import REGISTRY

VICTIM = "Tanh"
"""The operator whose models go wrong."""


def plant(mistake: str) -> None:
    """Puts a mistake into this process."""
    if mistake == "operator":
        _wrap_evaluation(lambda array: array + array.dtype.type(0.01))
    elif mistake == "judge":
        _break_judge()
    elif mistake:
        _wrap_runs(MISTAKES[mistake])


def _wrap_evaluation(change: Callable[[Any], Any]) -> None:
    spec = REGISTRY["", VICTIM]
    right = spec.evaluate
    spec.evaluate = lambda node, inputs: [change(right(node, inputs)[0])]  # type: ignore[method-assign]


def _break_judge() -> None:
    """A mistake of the fuzzer's own."""
    right = oracle._Judge._compare

    def compare(self: Any) -> None:
        if VICTIM.encode() in self.case.model:
            raise LookupError("planted")
        right(self)

    oracle._Judge._compare = compare  # type: ignore[method-assign]


def _wrap_runs(mistake: Callable[[InferenceSession, list[Any]], list[Any]]) -> None:
    right_init, right_run = InferenceSession.__init__, InferenceSession.run

    def init(self: Any, model: Any, *rest: Any, **named: Any) -> None:
        self.has_victim = VICTIM.encode() in bytes(model)
        right_init(self, model, *rest, **named)

    def run(self: Any, names: Any, feed: Any) -> Any:
        results = right_run(self, names, feed)
        return mistake(self, results) if self.has_victim else results

    InferenceSession.__init__, InferenceSession.run = init, run  # type: ignore[method-assign]


def _wrong(session: Any, results: list[Any]) -> list[Any]:
    return [array + array.dtype.type(0.01) if array.dtype.kind == "f" else array for array in results]


def _aliased(session: Any, results: list[Any]) -> list[Any]:
    """Results that the next run writes into."""
    kept = session.__dict__.setdefault("kept", results)
    for old, new in zip(kept, results, strict=True):
        if old.shape == new.shape:
            old[...] = new
    return list(kept)


def _crash(session: Any, results: list[Any]) -> list[Any]:
    os.abort()


def _hang(session: Any, results: list[Any]) -> list[Any]:
    while True:
        time.sleep(0.1)


def _spin(session: Any, results: list[Any]) -> list[Any]:
    while True:
        pass


def _grow(session: Any, results: list[Any]) -> list[Any]:
    np.ones(100 << 20, np.float32).sum()
    return results


def _raise(session: Any, results: list[Any]) -> list[Any]:
    raise KeyError("planted")


def _refuse(session: Any, results: list[Any]) -> list[Any]:
    raise vkml.NotImplemented(f"{VICTIM} is not to my taste")


def _warn(session: Any, results: list[Any]) -> list[Any]:
    warnings.warn("planted", RuntimeWarning, stacklevel=1)
    return results


MISTAKES: dict[str, Callable[[Any, list[Any]], list[Any]]] = {
    "wrong": _wrong, "aliasing": _aliased, "crash": _crash, "hang": _hang, "spin": _spin, "memory": _grow,
    "exception": _raise, "refused": _refuse, "warning": _warn,
}  # fmt: skip

plant(os.environ.get("VKML_FUZZ_PLANT", ""))
