"""Turns exceptions of a command into one clear message and an exit code."""

from __future__ import annotations

import functools
import os
import sys
import traceback
from collections.abc import Callable
from typing import TypeVar

import click

from vkml.errors import Error, InvalidArgument, InvalidData

_Command = TypeVar("_Command", bound=Callable[..., int | None])


class UsageError(InvalidArgument):
    """The command line itself is wrong: an option's value, an input's name, a missing argument."""


def is_debugging() -> bool:
    return os.environ.get("VKML_DEBUG", "") not in ("", "0")


def guarded(command: _Command) -> Callable[..., None]:
    """Wraps a command so that it ends in an exit code; the traceback is shown only when debugging."""

    @functools.wraps(command)
    def run(*arguments: object, **options: object) -> None:
        try:
            code = command(*arguments, **options) or 0
        except (click.exceptions.Exit, SystemExit):
            raise
        except BrokenPipeError:  # click has a code of its own for it
            raise click.exceptions.Exit(141) from None
        except KeyboardInterrupt:
            raise click.exceptions.Exit(130) from None
        except Exception as problem:
            code = _explain(problem)
        raise click.exceptions.Exit(code or _validation_code())

    return run


def _explain(problem: Exception) -> int:
    """Prints what went wrong on the standard error; returns the exit code it stands for."""
    if is_debugging():
        traceback.print_exception(problem)
    if isinstance(problem, InvalidArgument | InvalidData):
        print(f"vkml: {_text(problem)}", file=sys.stderr)
        return 2
    if isinstance(problem, Error | OSError | MemoryError):
        print(f"vkml: {_text(problem)}", file=sys.stderr)
        return 1
    kind = type(problem).__name__
    print(f"vkml: internal error: {kind}: {problem}", file=sys.stderr)
    if not is_debugging():
        print(
            "This is a bug in vkml; --debug shows where. Please report it with that output.", file=sys.stderr
        )
    return 1


def _text(problem: Exception) -> str:
    if isinstance(problem, OSError) and not isinstance(problem, Error) and problem.filename:
        return f"{problem.filename}: {problem.strerror or problem}"
    return str(problem) or type(problem).__name__


def _validation_code() -> int:
    """1, with the messages printed, where the validation layer had something to say."""
    vulkan = sys.modules.get("vkml.vulkan")
    if vulkan is None or os.environ.get("VKML_VALIDATE", "") in ("", "0"):
        return 0
    messages = vulkan.validation_messages()
    for message in messages:
        print(f"validation: {message}", file=sys.stderr)
    return 1 if messages else 0
