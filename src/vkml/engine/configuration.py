"""Entries of configurations: pairs of texts that options hold beside their fields."""

from __future__ import annotations

from typing import Any, Self

from vkml.errors import InvalidSetting, WrongType


class Configured:
    """Options with entries."""

    @property
    def entries(self) -> dict[str, str]:
        """All entries, by key."""
        found: dict[str, str] = self.__dict__.setdefault("_entries", {})
        return found

    def __copy__(self) -> Self:
        made = type(self).__new__(type(self))
        made.__dict__.update({name: _copied(value) for name, value in self.__dict__.items()})
        return made

    def _add_entry(self, key: str, value: str) -> None:
        if not isinstance(key, str) or not isinstance(value, str):
            raise WrongType(f"an entry is two texts, not {key!r} and {value!r}")
        self.entries[key] = value

    def _entry(self, key: str) -> str:
        found = self.entries.get(key)
        if found is None:
            raise InvalidSetting(
                f"{type(self).__name__} does not have configuration with key: {key}; it has "
                f"{sorted(self.entries) or 'none'}"
            )
        return found


def _copied(value: Any) -> Any:
    """What was told, apart from the original: dicts and lists of it, not what these hold."""
    if isinstance(value, dict):
        return {key: _copied(each) for key, each in value.items()}
    return list(value) if isinstance(value, list) else value
