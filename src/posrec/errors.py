"""What can go wrong in a way the user is told of in a line or two: what, where, and what to do."""


class InputError(ValueError):
    """Something in the user's hands is wrong: a file, a column, an option. The command line exits with 2."""


class NotInstalled(InputError):
    """Something is asked for that an extra's packages are needed for."""


def not_installed(what: str, extra: str) -> NotInstalled:
    """`what` is asked for, and the packages of `extra` are not there."""
    return NotInstalled(f"{what} needs packages that are not installed: pip install 'posrec[{extra}]'")


class RunFailed(RuntimeError):
    """The work can't go on, and says why. The command line exits with 1."""


class RunStopped(RuntimeError):
    """The work was asked to stop, and can be resumed. The command line exits with 130."""
