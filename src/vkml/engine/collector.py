"""Holds Python's garbage collector while a graph is built."""

from __future__ import annotations

import gc
from contextlib import AbstractContextManager

from vkml.process_settings import ProcessSetting

_is_enabled = ProcessSetting(gc.isenabled, lambda is_enabled: gc.enable() if is_enabled else gc.disable())


def collector_paused() -> AbstractContextManager[None]:
    """Within, no collection looks for cycles of garbage.

    Loading and planning make objects by the hundred thousand and next to no garbage, and the collector walks
    over all of them again and again: a quarter of the time of a graph of 100,000 nodes.
    """
    return _is_enabled.changed(False)
