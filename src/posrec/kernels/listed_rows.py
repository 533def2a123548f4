"""The different items of some sessions as a list on the device: rows of the item table that a step updates apart."""

import torch
import triton
import triton.language as tl
from torch import Tensor

from posrec.kernels.launch import launch

BLOCK = 4096


@triton.jit(do_not_specialize=["clicks"])
def list_rows(items, clicks, number, list_of_row, rows, count, BLOCK: tl.constexpr):
    """One program, so that the list has no gaps. The first click of an item writes the list's number to its row."""
    now = tl.load(number) + 1
    found = 0
    for start in range(0, clicks, BLOCK):
        place = start + tl.arange(0, BLOCK)
        row = tl.load(items + place, mask=place < clicks, other=0) - 1
        before = tl.atomic_xchg(list_of_row + row, tl.zeros([BLOCK], tl.int32) + now, mask=row >= 0)
        is_new = ((row >= 0) & (before != now)).to(tl.int32)
        tl.store(rows + found + tl.cumsum(is_new, 0) - 1, row.to(tl.int32), mask=is_new > 0)
        found += tl.sum(is_new, 0)
    tl.store(count, found)
    tl.store(number, now)


class ListedRows:
    """Room for a list of up to `longest` of a table's rows, which can be made again and again."""

    def __init__(self, rows_of_table: int, longest: int, device: torch.device) -> None:
        self.rows = torch.zeros(longest, dtype=torch.int32, device=device)
        self.count, self.number = torch.zeros(2, 1, dtype=torch.int32, device=device)
        # [rows_of_table] the number of the latest list that a row was in; the list in `rows` has the number `number`.
        self.list_of_row = torch.zeros(rows_of_table, dtype=torch.int32, device=device)

    def make(self, items: Tensor) -> None:
        """List the rows of `items`, numbers from 1 on; 0 is no item."""
        items = items.contiguous()
        launch(list_rows, 1)(
            items, items.numel(), self.number, self.list_of_row, self.rows, self.count, BLOCK, num_warps=32
        )
