"""Items clicked near each other in the training sessions: their counts, and item vectors smoothed
over them."""

import math

import torch
from torch import Tensor, nn

import posrec.kernels as kernels
from posrec.nn.counting import nearest
from posrec.nn.items.item_table import padded_rows
from posrec.nn.items.sparse_matrix import SparseMatrix, sums_of_rows

UNSMOOTHED_TO = 1e-6  # the relative error of `unsmoothed`


def co_clicks(
    items: Tensor,
    offsets: Tensor,
    number: int,
    window: int,
    before: float = 1.0,
    recency: float = 0.0,
) -> tuple[Tensor, Tensor, Tensor]:
    """The pairs of different items clicked at most `window` apart in a session, and their counts.

        C_ji = sum over clicks on j and i in the same session of
               direction(distance) / |distance| * exp(-recency * age of the session)

    A click on i after j has direction 1, one before j has `before`. The age of a session is the
    share of sessions that began after it.

    `items [N]` are clicks on items 1..number, of which session s, the oldest first, has
    `items[offsets[s] : offsets[s + 1]]`. Returns j [E], i [E] and C_ji [E] in double precision,
    sorted by j, and for each j by the latest click on i, the newest first.

    >>> clicks = torch.tensor([1, 2, 3])
    >>> item, other, count = co_clicks(clicks, torch.tensor([0, 3]), 3, window=2, before=0.5)
    >>> item.tolist(), other.tolist(), count.tolist()
    ([1, 1, 2, 2, 3, 3], [3, 2, 3, 1, 2, 1], [0.5, 1.0, 1.0, 0.5, 0.5, 0.25])
    """
    lengths = offsets.diff()
    items = items[offsets[0] : offsets[-1]].long()
    click = torch.arange(len(items), device=items.device)
    sessions = len(lengths)
    session = torch.repeat_interleave(lengths)  # [N] the number of each click's session
    weight = torch.exp(-recency * (sessions - 1 - session).double() / sessions)
    pairs = [items[:0]]
    weights = [weight[:0]]
    clicks = [items[:0]]  # on i
    for distance in range(1, min(window, int(lengths.max()) - 1) + 1):
        earlier = items[:-distance]
        later = items[distance:]
        together = (session[:-distance] == session[distance:]) & (earlier != later)
        earlier = earlier[together]
        later = later[together]
        near = weight[:-distance][together] / distance
        pairs += [earlier * (number + 1) + later, later * (number + 1) + earlier]
        weights += [near, before * near]
        clicks += [click[distance:][together], click[:-distance][together]]
    pair, entry = torch.unique(torch.cat(pairs), return_inverse=True)
    count = torch.zeros(len(pair), dtype=torch.double, device=items.device)
    count.index_add_(0, entry, torch.cat(weights))
    newest = torch.zeros_like(pair).scatter_reduce_(0, entry, torch.cat(clicks), "amax")
    order = newest.sort(descending=True, stable=True).indices
    order = order[(pair[order] // (number + 1)).sort(stable=True).indices]
    return pair[order] // (number + 1), pair[order] % (number + 1), count[order]


class CoClickGraph(nn.Module):
    """The graph of co-clicked items, over which item vectors are smoothed: X = E + w A E.

    Row i of A has the `neighbours` items most often clicked near item i, weighted by their counts;
    it sums to one. An item without neighbours keeps its vector, as all do before `count`. A run
    holds X and not the graph."""

    def __init__(self, weight: float, neighbours: int, window: int) -> None:
        super().__init__()
        self.weight = weight
        self.neighbours = neighbours
        self.window = window
        self.has_edges = False
        self.edges = SparseMatrix()  # A

    def count(self, items: Tensor, offsets: Tensor, number: int) -> None:
        """Build the graph from the training sessions, for a table of items 1..number."""
        if self.weight == 0:
            return
        item, other, count = co_clicks(items, offsets, number, self.window)
        chosen = nearest(item, count.float(), self.neighbours)
        row = item[chosen] - 1
        column = other[chosen] - 1
        value = count[chosen]
        rows = padded_rows(number)
        total = value.new_zeros(rows).index_add_(0, row, value)
        value = (value / total[row]).float()
        self.has_edges = len(value) > 0
        most = rows * self.neighbours if items.is_cuda else None
        self.edges.fill(row, column, value, (rows, rows), most)

    def smoothed(self, table: Tensor) -> Tensor:
        """X = E + w A E, for E [rows, d]."""
        return self.edges.times(table, self.smooth) if self.has_edges else table

    def smooth(self, table: Tensor, *lists: Tensor) -> Tensor:
        """E + w A E, for the lists of A."""
        if kernels.supports(table):
            smoothed: Tensor = kernels.smooth(table, self.weight, *lists)
            return smoothed
        return torch.add(table, sums_of_rows(table, *lists), alpha=self.weight)

    def unsmoothed(self, smoothed: Tensor) -> Tensor:
        """The E whose `smoothed` is X, by iterating E = X - w A E; each round multiplies the error
        by w or less. From a weight of 1 on that need not converge. Then E = X / (1 + w), which is
        exact if an item and its neighbours have the same vector."""
        if not self.has_edges:
            return smoothed
        table = smoothed / (1 + self.weight)
        if abs(self.weight) < 1:
            rounds = math.ceil(math.log(UNSMOOTHED_TO) / math.log(abs(self.weight)))
            for _ in range(rounds):
                table = table + smoothed - self.smoothed(table)
        return table
