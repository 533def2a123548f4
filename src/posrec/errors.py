"""The one error a user's input can cause: a line or two that says what, where, and what to do."""


class InputError(ValueError):
    """Something in the user's hands is wrong: a file, a column, an option. The command line exits with 2."""
