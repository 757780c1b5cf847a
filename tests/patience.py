"""How long tests wait before they take something for hung: the longer, the more there is to do here."""

from __future__ import annotations

import os


def patience(seconds: float) -> float:
    """A time limit that fits the machine's load.

    Args:
        seconds: ample on a machine that does nothing else.
    """
    return seconds * max(1.0, 2 * os.getloadavg()[0] / (os.cpu_count() or 1))
