"""Shell completion: scripts for bash, zsh and fish that know the commands and their options."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from vkml.cli.guard import UsageError

SHELLS = ("bash", "zsh", "fish")
VALUES = {
    "--device": ("auto", "cpu", "vulkan:0", "vulkan:1"),
    "--precision": ("highest", "high", "medium"),
    "--fit": ("stretch", "crop", "pad"),
    "--task": ("classification", "regression"),
}
"""Options → what is proposed behind them; behind others, files are."""


@dataclass(frozen=True)
class Command:
    """A command as completion knows it.

    Attributes:
        summary: what it does.
        options: its options, each with all its spellings → what it says in the help.
    """

    summary: str
    options: Mapping[tuple[str, ...], str]


def completion_script(shell: str) -> str:
    """The script that a shell is to read, for ``vkml completion SHELL``.

    Raises:
        UsageError: no such shell is known.
    """
    if shell not in SHELLS:
        raise UsageError(f"completion {shell}: expected one of {', '.join(SHELLS)}")
    commands = known_commands()
    if shell == "fish":
        return _fish(commands)
    start = "autoload -U +X bashcompinit && bashcompinit\n" if shell == "zsh" else ""
    return start + _bash(commands)


def known_commands() -> dict[str, Command]:
    """All commands, as the command line has them."""
    from vkml.cli.app import app

    found = {}
    for name, command in app.commands.items():
        options = {}
        for param in command.params:
            spelt = tuple(each for each in (*param.opts, *param.secondary_opts) if each.startswith("-"))
            if spelt:
                options[spelt] = getattr(param, "help", None) or ""
        options["-h", "--help"] = "Show the options."
        found[name] = Command((command.help or "").strip().splitlines()[0], options)
    return found


def _bash(commands: Mapping[str, Command]) -> str:
    cases = [
        f'    {name}) options="{" ".join(each for names in command.options for each in names)}" ;;'
        for name, command in commands.items()
    ]
    values = [f'    {option}) proposed="{" ".join(words)}" ;;' for option, words in _spelt(commands).items()]
    return "\n".join(
        [
            "_vkml() {",
            '  local current="${COMP_WORDS[COMP_CWORD]}" before="${COMP_WORDS[COMP_CWORD-1]}"',
            '  local options="" proposed=""',
            '  case "${COMP_WORDS[1]}" in',
            *cases,
            "  esac",
            '  case "$before" in',
            *values,
            "  esac",
            "  if (( COMP_CWORD == 1 )); then",
            f'    COMPREPLY=($(compgen -W "{" ".join(commands)} help --help --version" -- "$current"))',
            '  elif [[ -n "$proposed" ]]; then',
            '    COMPREPLY=($(compgen -W "$proposed" -- "$current"))',
            '  elif [[ "$current" == -* ]]; then',
            '    COMPREPLY=($(compgen -W "$options" -- "$current"))',
            "  else",
            "    local IFS=$'\\n'",
            '    COMPREPLY=($(compgen -f -- "$current"))',
            "  fi",
            "}",
            "complete -o filenames -F _vkml vkml",
            "",
        ]
    )


def _spelt(commands: Mapping[str, Command]) -> dict[str, tuple[str, ...]]:
    """Every spelling of the options that have values to propose → these."""
    found = {}
    for command in commands.values():
        for names in command.options:
            words = next((VALUES[name] for name in names if name in VALUES), None)
            if words is not None:
                found.update(dict.fromkeys(names, words))
    return found


def _fish(commands: Mapping[str, Command]) -> str:
    lines = []
    values = _spelt(commands)
    for name, command in commands.items():
        lines.append(f"complete -c vkml -n __fish_use_subcommand -f -a {name} -d {_quoted(command.summary)}")
        for names, text in command.options.items():
            spelt = " ".join(
                f"-l {each[2:]}" if each.startswith("--") else f"-s {each[1:]}" for each in names
            )
            proposed = next(
                (f" -x -a {_quoted(' '.join(values[each]))}" for each in names if each in values), ""
            )
            where = _quoted(f"__fish_seen_subcommand_from {name}")
            lines.append(f"complete -c vkml -n {where} {spelt}{proposed} -d {_quoted(text)}")
    return "\n".join([*lines, ""])


def _quoted(text: str) -> str:
    return "'" + text.replace("\\", "\\\\").replace("'", "\\'") + "'"
