"""Items clicked near each other in the training sessions: their counts, and item vectors smoothed over them."""

import math
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from posrec import kernels
from posrec.nn.counting import nearest, offsets_of
from posrec.nn.items.item_table import TableRows

UNSMOOTHED_TO = 1e-6  # the relative error of `unsmoothed`
SIZES = 8  # how many different lengths the lists of a graph may have on a GPU


def co_clicks(
    items: Tensor, offsets: Tensor, number: int, window: int, before: float = 1.0, recency: float = 0.0
) -> tuple[Tensor, Tensor, Tensor]:
    """The pairs of different items that were clicked at most `window` apart in a session, and their counts.

        C_ji = sum over clicks on j and i in the same session of
               direction(distance) / |distance| * exp(-recency * age of the session)

    A click on i after j has direction 1, one before j has `before`. The age of a session is the share of sessions that
    began after it.

    Args:
        items: [N] clicks, items 1..number; session s is `items[offsets[s] : offsets[s + 1]]`.
        offsets: [S + 1] where each session begins, oldest first.

    Returns:
        j [E], i [E] and C_ji [E] in double precision, sorted by j. Pairs of a j are in the order of their latest
        clicks, the newest first, so that of equal counts the newest come first.

    >>> item, other, count = co_clicks(torch.tensor([1, 2, 3]), torch.tensor([0, 3]), 3, window=2, before=0.5)
    >>> item.tolist(), other.tolist(), count.tolist()
    ([1, 1, 2, 2, 3, 3], [3, 2, 3, 1, 2, 1], [0.5, 1.0, 1.0, 0.5, 0.5, 0.25])
    """
    lengths, items = offsets.diff(), items[offsets[0] : offsets[-1]].long()
    sessions = len(lengths)
    session = torch.repeat_interleave(torch.arange(sessions, device=items.device), lengths)  # [N]
    weight = torch.exp(-recency * (sessions - 1 - session).double() / sessions)
    pairs, weights, places = [items[:0]], [weight[:0]], [items[:0]]
    click = torch.arange(len(items), device=items.device)
    for distance in range(1, min(window, int(lengths.max()) - 1) + 1):
        earlier, later = items[:-distance], items[distance:]
        together = (session[:-distance] == session[distance:]) & (earlier != later)
        earlier, later, near = earlier[together], later[together], weight[:-distance][together] / distance
        pairs += [earlier * (number + 1) + later, later * (number + 1) + earlier]
        weights += [near, before * near]
        places += [click[distance:][together], click[:-distance][together]]  # of i; so no two of a j are equal
    pair, entry = torch.unique(torch.cat(pairs), return_inverse=True)
    count = torch.zeros(len(pair), dtype=torch.double, device=items.device).index_add_(0, entry, torch.cat(weights))
    newest = torch.zeros_like(pair).scatter_reduce_(0, entry, torch.cat(places), "amax")
    order = newest.sort(descending=True, stable=True).indices
    order = order[(pair[order] // (number + 1)).sort(stable=True).indices]
    return pair[order] // (number + 1), pair[order] % (number + 1), count[order]


class CoClickGraph(nn.Module):
    """The graph of co-clicked items, over which item vectors are smoothed: X = E + w A E.

    Row i of A has the `neighbours` items most often clicked near item i, weighted by their counts; it sums to one. An
    item without neighbours keeps its own vector. Before `count` the graph has no edges, and X = E.

    The graph is not saved with the weights: a run holds X, which is all that is needed to recommend.
    """

    # A and its transpose, as lists: row i has the entries offsets[i] .. offsets[i + 1] - 1 of `columns` and `values`.
    # Where a process holds only some rows of the table, `TableRows.by_source` says which entries it has.
    offsets: Tensor
    columns: Tensor
    values: Tensor
    transposed_offsets: Tensor
    transposed_columns: Tensor
    transposed_values: Tensor

    def __init__(self, weight: float, neighbours: int, window: int) -> None:
        super().__init__()
        self.weight, self.neighbours, self.window = weight, neighbours, window
        self.has_edges, self.rows = False, TableRows(0)
        for name in ("offsets", "columns", "transposed_offsets", "transposed_columns"):
            self.register_buffer(name, torch.empty(0, dtype=torch.int64), persistent=False)
        for name in ("values", "transposed_values"):
            self.register_buffer(name, torch.empty(0), persistent=False)

    def count(self, items: Tensor, offsets: Tensor, rows: TableRows) -> None:
        """Build the graph from the training sessions, for a table with these rows (row i is item i + 1)."""
        if self.weight == 0:
            return
        item, other, count = co_clicks(items, offsets, rows.items, self.window)
        kept = nearest(item, count.float(), self.neighbours)
        row, column, value = item[kept] - 1, other[kept] - 1, count[kept]
        total = value.new_zeros(rows.total).index_add_(0, row, value)
        value = (value / total[row]).float()
        self.has_edges, device = len(value) > 0, self.values.device
        self.rows = rows
        most = rows.total * self.neighbours
        self.offsets, self.columns, self.values = lists(*rows.by_source(row, column, value), device, most)
        self.transposed_offsets, self.transposed_columns, self.transposed_values = lists(
            *rows.by_source(column, row, value), device, most
        )

    def smoothed(self, table: Tensor) -> Tensor:
        """X = E + w A E, for E [rows, d]."""
        if not self.has_edges:
            return table
        forward = (self.offsets, self.columns, self.values)
        backward = (self.transposed_offsets, self.transposed_columns, self.transposed_values)
        smoothed: Tensor = Smoothing.apply(table, self.weight, self.rows, *forward, *backward)  # type: ignore[no-untyped-call]
        return smoothed

    def unsmoothed(self, smoothed: Tensor) -> Tensor:
        """The E whose `smoothed` is X, by iterating E = X - w A E; each round multiplies the error by w or less.

        From a weight of 1 on that need not converge. Then E = X / (1 + w), which is exact where an item and its
        neighbours have the same vector.
        """
        if not self.has_edges:
            return smoothed
        table = smoothed / (1 + self.weight)
        if abs(self.weight) < 1:
            for _ in range(math.ceil(math.log(UNSMOOTHED_TO) / math.log(abs(self.weight)))):
                table = table + smoothed - self.smoothed(table)
        return table


def lists(
    row: Tensor, column: Tensor, value: Tensor, rows: int, device: torch.device, most: int | None = None
) -> tuple[Tensor, Tensor, Tensor]:
    """Entries sorted by row as (offsets [rows + 1], columns, values) on a device.

    On a GPU, lists of `most` entries or fewer have unused places at their ends: a training step is compiled for the
    sizes of its tensors, and the training on all sessions, after one on most of them, should find the same sizes.
    """
    if most is not None and device.type == "cuda":
        unused = -len(column) % math.ceil(most / SIZES)
        column, value = (functional.pad(entries, (0, unused)) for entries in (column, value))
    return offsets_of(row, rows).to(device), column.to(device), value.to(device)


class Smoothing(torch.autograd.Function):
    """E [rows, d] -> E + w A E. The gradient is the same with A's transpose, which is at hand: sums of rows in both
    directions, and no additions into shared rows."""

    @staticmethod
    def forward(ctx: Any, table: Tensor, weight: float, rows: TableRows, *graph: Tensor) -> Tensor:
        ctx.save_for_backward(*graph[3:])
        ctx.weight, ctx.rows = weight, rows
        return smooth(table, weight, rows, *graph[:3])

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        return smooth(gradients[0], ctx.weight, ctx.rows, *ctx.saved_tensors), *([None] * 8)


def smooth(table: Tensor, weight: float, rows: TableRows, offsets: Tensor, columns: Tensor, values: Tensor) -> Tensor:
    """E + w A E, where row i of A has the entries offsets[i] .. offsets[i + 1] - 1 of `columns` and `values`."""
    result = table
    for part, place in rows.sources(table):
        if kernels.supports(table):
            result = kernels.smooth(part, weight, offsets[place], columns, values, result)
        else:
            result = torch.add(result, sum_of_entries(part, place, offsets, columns, values), alpha=weight)
    return result


def sum_of_entries(part: Tensor, place: slice, offsets: Tensor, columns: Tensor, values: Tensor) -> Tensor:
    """A E for a part of E, whose entries are those of `offsets[place]`."""
    if place != slice(None):
        offsets = offsets[place]
        begin, end = int(offsets[0]), int(offsets[-1])
        offsets, columns, values = offsets - begin, columns[begin:end], values[begin:end]
    return functional.embedding_bag(
        columns, part, offsets, mode="sum", per_sample_weights=values.to(part.dtype), include_last_offset=True
    )
