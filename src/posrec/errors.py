"""Errors that are shown to the user in a line or two: what is wrong, where, and what to do."""

import importlib
import logging
import warnings
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from difflib import get_close_matches
from typing import Any


class InputError(ValueError):
    """The user can fix what is wrong: a file, a column, an option. The command exits with 2."""


class DoesNotFit(InputError):
    """The work needs more memory than there is."""


class NothingToRead(InputError):
    """The log has no clicks."""


class NotInstalled(InputError):
    """The packages of an extra are needed and not installed."""


def not_installed(purpose: str, extra: str) -> NotInstalled:
    return NotInstalled(
        f"{purpose} needs packages that are not installed: pip install 'posrec[{extra}]'"
    )


def imported(module: str, purpose: str, extra: str) -> Any:
    """A module of an optional package; if it is missing, the error names the extra."""
    try:
        return importlib.import_module(module)
    except ImportError:
        raise not_installed(purpose, extra) from None


def first_line(error: Exception) -> str:
    """The first line of what a library says, for an error of ours that quotes it."""
    return (str(error).strip() or type(error).__name__).splitlines()[0]


def did_you_mean(word: str, names: Iterable[str]) -> str:
    """For an error about a misspelt name: the name that is most like it, or nothing.

    >>> did_you_mean("posrec-pluss", ["posrec", "posrec-plus"])
    " (did you mean 'posrec-plus'?)"
    """
    close = get_close_matches(word, names, n=1)
    return f" (did you mean {close[0]!r}?)" if close else ""


class RunFailed(RuntimeError):
    """The work can't be finished, for the reason given. The command line exits with 1."""


class RunStopped(RuntimeError):
    """The user stopped the work. The command line exits with 130."""


@contextmanager
def warnings_hidden(*names: str) -> Iterator[None]:
    """In the block, neither warnings of Python nor of the loggers with these names are shown."""
    loggers = [logging.getLogger(name) for name in names]
    levels = [logger.level for logger in loggers]
    for logger in loggers:
        logger.setLevel(logging.ERROR)
    try:
        with warnings.catch_warnings(action="ignore"):
            yield
    finally:
        for logger, level in zip(loggers, levels, strict=True):
            logger.setLevel(level)


def plural(count: int, noun: str) -> str:
    """
    >>> plural(1, "session"), plural(1200, "session")
    ('1 session', '1,200 sessions')
    """
    return f"{count:,} {noun}" + ("" if count == 1 else "s")
