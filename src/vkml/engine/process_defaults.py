"""What sessions go by where their options leave it open: settings of the whole process."""

from __future__ import annotations

from vkml.dataclasses import dataclass
from vkml.engine.array_likes import as_integer
from vkml.errors import InvalidArgument, InvalidSetting


@dataclass
class _Defaults:
    severity: int = 2
    verbosity: int = 0
    threads: int = 0


_defaults = _Defaults()


def default_severity() -> int:
    """The level below which sessions whose `log_severity_level` is -1 log nothing."""
    return _defaults.severity


def shared_threads() -> int:
    """Threads of the CPU for sessions without threads of their own; 0: one a core."""
    return _defaults.threads


def set_default_logger_severity(severity: int) -> None:
    """Sets from which level on sessions log that do not say so themselves.

    Args:
        severity: 0 verbose, 1 info, 2 warning, 3 error, 4 fatal.

    Raises:
        InvalidSetting: it is another.
    """
    level = as_integer(severity, "a severity")
    if not 0 <= level <= 4:
        raise InvalidSetting(f"a severity is a whole number from 0 (verbose) to 4 (fatal), not {level}")
    _defaults.severity = level


def set_default_logger_verbosity(verbosity: int) -> None:
    """Accepted: there is one kind of verbose messages.

    Args:
        verbosity: a whole number.
    """
    _defaults.verbosity = as_integer(verbosity, "a verbosity")


def set_global_thread_pool_sizes(intra_op_num_threads: int = 0, inter_op_num_threads: int = 0) -> None:
    """Sets the threads of the CPU for sessions that are made afterwards with `use_per_session_threads` False.

    Args:
        intra_op_num_threads: threads that share the work of one operator; 0: one a core.
        inter_op_num_threads: accepted: independent operators share those threads.

    Raises:
        InvalidArgument: a number is negative.
    """
    sizes = [as_integer(size, "a number of threads") for size in (intra_op_num_threads, inter_op_num_threads)]
    if min(sizes) < 0:
        raise InvalidArgument(f"numbers of threads are not negative, got {sizes}")
    _defaults.threads = sizes[0]
