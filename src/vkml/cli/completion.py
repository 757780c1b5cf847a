"""Shell completion, by click: the script that a shell reads, and what is proposed for options' values.

The script has the shell run ``vkml`` with the line so far in its environment; click answers from the commands
and the types of their options. So nothing heavy may be imported where these are stated (``app.py``).
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import click

SHELLS = ("bash", "zsh", "fish")
VARIABLE = "_VKML_COMPLETE"
"""What the script sets, as click calls it for a program of this name."""
_DEVICES = ("auto", "cpu", "vulkan:0", "vulkan:1")


def completion_script(shell: str) -> str:
    """The script that one of `SHELLS` is to read, for ``vkml completion SHELL``."""
    from click.shell_completion import get_completion_class

    from vkml.cli.app import app

    found = get_completion_class(shell)
    assert found is not None
    return found(app, {}, "vkml", VARIABLE).source()


def propose_devices(context: click.Context, parameter: click.Parameter, incomplete: str) -> list[str]:
    """Names that devices have on most machines: to look for this one's takes longer than somebody waits."""
    return [name for name in _DEVICES if name.startswith(incomplete)]
