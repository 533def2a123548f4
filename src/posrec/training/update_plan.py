"""How the update of the item table is divided between the multiprocessors of a GPU (`early_update.py`)."""

from dataclasses import dataclass

from posrec.kernels import UPDATERS

# How many of the table's numbers a free multiprocessor updates until the next softmax. Measured on an H200, with
# sessions of up to 20 clicks and 100 dimensions.
MEANWHILE = 115_000
FEWEST = 16  # free multiprocessors for which two updates instead of one are worthwhile
AT_ONCE = 2  # programs of the update on a multiprocessor


@dataclass(frozen=True)
class UpdatePlan:
    """How many rows, from the first on, are updated beside the encoder's kernels, and by how many programs; and how
    many programs update the rows after them."""

    first_rows: int
    first_programs: int
    last_programs: int


def plan_update(multiprocessors: int, sessions: int, rows: int, d: int) -> UpdatePlan:
    """For a table of `rows` rows of `d` numbers, in steps of `sessions` sessions.

    >>> plan_update(multiprocessors=132, sessions=100, rows=43_097, d=100)
    UpdatePlan(first_rows=36800, first_programs=64, last_programs=200)
    """
    free = multiprocessors - sessions
    if free < FEWEST:
        return UpdatePlan(0, 0, UPDATERS)
    first_rows, first_programs = min(rows, free * MEANWHILE // d), AT_ONCE * free
    if rows - first_rows > first_rows:  # these rows take most of the time, and need the whole GPU
        return UpdatePlan(first_rows, first_programs, UPDATERS)
    return UpdatePlan(first_rows, first_programs, max(UPDATERS // 2, UPDATERS - first_programs))
