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

    def prepare(self, path: str) -> Prepared:
        try:
            session = vkml.InferenceSession(path, devices=self.device, precision=self.precision)
        except vkml.Error as problem:
            raise NotAvailable(str(problem)) from None

        def run(feed: Feed) -> list[Array]:
            return session.run(None, feed)

        return Prepared(run, session.close, session.device, session)
