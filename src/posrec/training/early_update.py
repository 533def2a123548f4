"""Adam of the item table beside the encoder's kernels, for encoders whose gradient is zero in most rows of the table.

The encoder's kernels have one program for each session, which takes a whole multiprocessor; the others are free. After
the softmax the gradient of a row is known, unless the encoder's backward pass adds to it, as it does for the items of
the batch. These rows are listed and updated apart, and so are the rows that the next batch reads. All others may be
updated at any time before the next softmax. The streams of a step:

    the current one    encode | softmax | backward ............ | listed rows ... | encode, of the next step
    FusedStep.beside          | list of the next step           | other weights   |
    for_first_rows                      | first rows ................................................|
    for_last_rows                                               | last rows       |

The first rows are as many as the free multiprocessors update until the next softmax (`update_plan.py`).
"""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from posrec.kernels.listed_rows import ListedRows
from posrec.kernels.table_update import KnownSoftmax, adam, adam_of_listed
from posrec.nn.batch import SessionBatch
from posrec.training.update_plan import plan_update


class EarlyUpdate:
    """Updates the first `held` rows of `table` in steps of `sessions` sessions."""

    def __init__(self, table: Tensor, held: int, sessions: int, state: dict[str, Tensor], options: Any) -> None:
        self.table, self.held, self.state, self.options = table, held, state, options
        multiprocessors = torch.cuda.get_device_properties(table.device).multi_processor_count
        self.plan = plan_update(multiprocessors, sessions, held, table.shape[1])
        self.for_first_rows = torch.cuda.Stream()  # type: ignore[no-untyped-call]
        self.for_last_rows = torch.cuda.Stream()  # type: ignore[no-untyped-call]
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
        # A capture may only wait for streams that belong to it, and this makes the stream one of them.
        self.for_first_rows.wait_stream(torch.cuda.current_stream())

    def make_list(self, number: int) -> None:
        """List the rows that are updated apart in step `number`: those of its batch, whose gradient is complete after
        the backward pass, and those of the next batch, which the next step reads first."""
        items = [batch.items for batch in self.batches[number : number + 2]]
        if items:
            self.lists[number % 2].make(torch.cat(items))

    def make_next_list(self) -> None:
        self.make_list(self.number + 1)

    def finish_first_rows(self) -> None:
        """Wait for the first rows of the step before. Then its list is no longer read."""
        torch.cuda.current_stream().wait_stream(self.for_first_rows)
        self.known = None

    def update_first_rows(self, known: KnownSoftmax, softmax_done: torch.cuda.Event) -> None:
        """Begin with the first rows; called after the backward pass was launched."""
        self.known = known  # its memory must not be used again before the first rows are finished
        if not self.plan.first_rows:
            return
        self.for_first_rows.wait_event(softmax_done)
        with torch.cuda.stream(self.for_first_rows):
            # Two programs fit on a multiprocessor, but none beside one of the encoder's. Launched first, they would
            # occupy twice as many multiprocessors; so they come after a small copy.
            self.step_copy.copy_(self.state["step"])
            state = {**self.state, "step": self.step_copy}
            rows, apart = (0, self.plan.first_rows), self.lists[self.number % 2]
            adam(self.table, None, state, self.options, known, *rows, apart, self.plan.first_programs)

    def update_other_rows(self, known: KnownSoftmax, of_table: Tensor) -> None:
        """Update the listed rows, whose `of_table` is then zero, and those after the first rows."""
        here, apart, plan = torch.cuda.current_stream(), self.lists[self.number % 2], self.plan
        self.for_last_rows.wait_stream(here)
        adam_of_listed(self.table, of_table, self.state, self.options, known, apart)
        if plan.first_rows < self.held:
            rows = (plan.first_rows, self.held)
            with torch.cuda.stream(self.for_last_rows):
                adam(self.table, None, self.state, self.options, known, *rows, apart, plan.last_programs)
        here.wait_stream(self.for_last_rows)
        self.number += 1
