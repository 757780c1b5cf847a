"""Loggers that import `logging` when they are first used: it takes 5 ms, while a device could be opening."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import logging


class _Late:
    def __init__(self, name: str) -> None:
        self._name = name

    def __getattr__(self, attribute: str) -> Any:
        import logging

        return getattr(logging.getLogger(self._name), attribute)


def logger(name: str) -> logging.Logger:
    """What `logging.getLogger` returns, or as good.

    Args:
        name: of the logger.
    """
    found: Any = _Late(name)
    return found  # type: ignore[no-any-return]
