"""Who calls: the program, or this package."""

from __future__ import annotations

import os
import sys

_PACKAGE = os.path.join(os.path.dirname(os.path.dirname(__file__)), "")


def is_called_by_program(file: str) -> bool:
    """Whether what calls a file's functions is none of this package's.

    Args:
        file: name of the one that asks, whose own calls of each other are passed over.
    """
    frame = sys._getframe(1)
    while frame.f_code.co_filename == file and frame.f_back is not None:
        frame = frame.f_back
    return not frame.f_code.co_filename.startswith(_PACKAGE)
