"""What lowering an operator may end in besides results."""

from __future__ import annotations


class CannotLower(Exception):
    """A node has no form on this device; the text is the reason that the user will read."""
