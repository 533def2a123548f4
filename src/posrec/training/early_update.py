"""Adam of the item table beside the encoder's kernels, for encoders whose gradient is zero in most rows of the table.

The encoder's kernels have one program for each session, which takes a whole multiprocessor; the others are free. What
the update needs is known after the softmax, but for the rows of the batch's items, to which the encoder's backward pass
adds. Those, and the rows that the next batch reads, are listed, and all others need not wait:

    this step         | encode | softmax | backward                         | weights      | encode  the next step
    beside            |        | list    | first rows ..................................................|
    after backward    |        |         |                                  | listed, last rows |

The first rows are as many as the free multiprocessors update until the next softmax.
"""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from posrec.kernels.listed_rows import ListedRows
from posrec.kernels.table_update import UPDATERS, KnownSoftmax, adam, adam_of_listed
from posrec.nn.batch import SessionBatch

# How many of the table's numbers a free multiprocessor updates until the next softmax. Measured on an H200, with
# sessions of up to 20 clicks and 100 dimensions.
MEANWHILE = 115_000
FEWEST = 16  # free multiprocessors for which two updates instead of one are worthwhile
PROGRAMS = 2  # of the update on a multiprocessor at a time


class EarlyUpdate:
    """Updates the first `held` rows of `table` in steps of `sessions` sessions."""

    def __init__(self, table: Tensor, held: int, sessions: int, state: dict[str, Tensor], options: Any) -> None:
        self.table, self.held, self.state, self.options = table, held, state, options
        free = torch.cuda.get_device_properties(table.device).multi_processor_count - sessions
        self.programs = PROGRAMS * free if free >= FEWEST else 0
        self.first_rows = min(held, free * MEANWHILE // table.shape[1]) if self.programs else 0
        self.beside, self.after = torch.cuda.Stream(), torch.cuda.Stream()  # type: ignore[no-untyped-call]
        self.lists: list[ListedRows] = []  # two, in turn: the next step's list is made while this step's is read
        self.step_copy = torch.empty_like(state["step"])
        self.known: KnownSoftmax | None = None

    def begin(self, batches: Sequence[SessionBatch]) -> None:
        """Called before the steps of `batches`."""
        if not self.lists:
            longest = 2 * batches[0].items.numel()
            self.lists = [ListedRows(len(self.table), longest, self.table.device) for _ in range(2)]
        self.batches, self.number = batches, 0
        self.make_list(0)
        self.beside.wait_stream(torch.cuda.current_stream())

    def make_list(self, number: int) -> None:
        """List the rows that must not wait in step `number`: those of its batch and of the one after it."""
        items = [batch.items for batch in self.batches[number : number + 2]]
        if items:
            self.lists[number % 2].make(torch.cat(items))

    def finish_first_rows(self) -> None:
        """Wait for the first rows of the step before. Then its list is no longer read."""
        torch.cuda.current_stream().wait_stream(self.beside)
        self.known = None

    def make_next_list(self) -> None:
        self.make_list(self.number + 1)

    def update_first_rows(self, known: KnownSoftmax, softmax_done: torch.cuda.Event) -> None:
        """Begin with the first rows; called after the backward pass was launched."""
        self.known = known  # its memory must not be used again before the first rows are finished
        if not self.first_rows:
            return
        self.beside.wait_event(softmax_done)
        with torch.cuda.stream(self.beside):
            # Two programs fit on a multiprocessor, but none beside one of the encoder's. Launched first, they would
            # occupy twice as many multiprocessors; so they come after a small copy.
            self.step_copy.copy_(self.state["step"])
            state = {**self.state, "step": self.step_copy}
            apart = self.lists[self.number % 2]
            adam(self.table, None, state, self.options, known, 0, self.first_rows, apart, self.programs)

    def update_other_rows(self, known: KnownSoftmax, of_table: Tensor) -> None:
        """Update the listed rows, whose `of_table` is then zero, and those after the first rows."""
        here, apart = torch.cuda.current_stream(), self.lists[self.number % 2]
        self.after.wait_stream(here)
        adam_of_listed(self.table, of_table, self.state, self.options, known, apart)
        if self.first_rows < self.held:
            rest, programs = (self.first_rows, self.held), UPDATERS - self.programs
            with torch.cuda.stream(self.after):
                adam(self.table, None, self.state, self.options, known, *rest, apart, programs)
        here.wait_stream(self.after)
        self.number += 1
