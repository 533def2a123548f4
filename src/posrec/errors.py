"""Errors that are shown to the user in a line or two: what is wrong, where, and what to do."""


class InputError(ValueError):
    """Something that the user can fix is wrong: a file, a column, an option. The command line exits with 2."""


class DoesNotFit(InputError):
    """The work needs more memory than there is."""


class NotInstalled(InputError):
    """The packages of an extra are needed and not installed."""


def not_installed(what: str, extra: str) -> NotInstalled:
    """The error for `what`, which needs the packages of `extra`."""
    return NotInstalled(f"{what} needs packages that are not installed: pip install 'posrec[{extra}]'")


class RunFailed(RuntimeError):
    """The work can't be finished, for the reason given. The command line exits with 1."""


class RunStopped(RuntimeError):
    """The user stopped the work. The command line exits with 130."""
