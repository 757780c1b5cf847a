"""vkml itself, on one device with one precision."""

from __future__ import annotations

from dataclasses import dataclass

import vkml
from benchmarks.measure import Array, Feed, NotAvailable, Prepared


@dataclass(frozen=True)
class Vkml:
    """A vkml session."""

    name: str
    device: str
    precision: str
    threads: int = 0
    """Of the CPU; 0: as many as it takes by itself."""

    def prepare(self, path: str) -> Prepared:
        options = vkml.SessionOptions(intra_op_num_threads=self.threads)
        try:
            session = vkml.InferenceSession(path, options, devices=self.device, precision=self.precision)
        except vkml.Error as problem:
            raise NotAvailable(str(problem)) from None

        def run(feed: Feed) -> list[Array]:
            return session.run(None, feed)

        return Prepared(run, session.close, session.device, session)
