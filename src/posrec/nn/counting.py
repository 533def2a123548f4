"""What counting models share: popularity, and lists of different lengths in one flat array, of
which list i is `values[offsets[i] : offsets[i + 1]]`."""

import torch
from torch import Tensor


def popularity_order(items: Tensor, number: int) -> Tensor:
    """items [N], every training click -> [number] 0 for the least clicked items, 1 for the next,
    and so on; equal for items with as many clicks. Few ranks are exact in float32.

    >>> popularity_order(torch.tensor([1, 3, 3, 3]), 4).tolist()
    [1.0, 0.0, 2.0, 0.0]
    """
    clicks = torch.bincount(items.long(), minlength=number + 1)[1:]
    ranks: Tensor = torch.unique(clicks, return_inverse=True)[1]
    return ranks.float()


def rest_by_popularity(items: Tensor, number: int) -> Tensor:
    """Scores [number] below 0 in the order of popularity, for items without another score.

    >>> rest_by_popularity(torch.tensor([1, 3, 3, 3]), 4)
    tensor([-0.6667, -1.0000, -0.3333, -1.0000])
    """
    order = popularity_order(items, number)
    return (order - order.max() - 1) / (order.max() + 1)


def offsets_of(owners: Tensor, lists: int) -> Tensor:
    """owners [E], the list of each entry, sorted -> offsets [lists + 1].

    >>> offsets_of(torch.tensor([0, 0, 2]), 3).tolist()
    [0, 2, 2, 3]
    """
    sizes = torch.bincount(owners, minlength=lists)
    return torch.cat([sizes.new_zeros(1), sizes.cumsum(0)])


def spread(
    offsets: Tensor, lists: Tensor, most: int | None = None
) -> tuple[Tensor, Tensor]:
    """The entries of `lists [R]`, one list after the other, at most the first `most` of each:
    `owner [E]`, which of the R lists an entry is from, and `position [E]` in the flat array.

    >>> spread(torch.tensor([0, 2, 2, 5]), torch.tensor([2, 0]))
    (tensor([0, 0, 0, 1, 1]), tensor([2, 3, 4, 0, 1]))
    """
    starts = offsets[lists]
    sizes = offsets[lists + 1] - starts
    if most is not None:
        sizes = sizes.clamp(max=most)
    owner = torch.repeat_interleave(sizes)
    entry = torch.arange(len(owner), device=owner.device)
    return owner, entry + (starts - entries_before(sizes))[owner]


def entries_before(sizes: Tensor) -> Tensor:
    """[R] the number of entries in the lists before each list."""
    return sizes.cumsum(0) - sizes


def first_in_list(owners: Tensor, most: int) -> Tensor:
    """owners [E], sorted -> [E] True for the first `most` entries of each list.

    >>> first_in_list(torch.tensor([0, 0, 0, 4]), 2).tolist()
    [True, True, False, True]
    """
    _, owner, sizes = torch.unique_consecutive(
        owners, return_inverse=True, return_counts=True
    )
    entry = torch.arange(len(owners), device=owners.device)
    within_list: Tensor = entry - entries_before(sizes)[owner]
    return within_list < most


def nearest(row: Tensor, similarity: Tensor, k: int) -> Tensor:
    """The indices of the `k` most similar pairs of each row, sorted by row; of equal ones the
    first. `row [G]` is sorted, `similarity [G]` is float32 and not negative."""
    # The bits of such floats, read as integers, have the same order as the floats, so one sort
    # orders by both keys.
    order = ((row << 32) - similarity.view(torch.int32)).sort(stable=True).indices
    return order[first_in_list(row, k)]


def add_up(table: Tensor, cells: Tensor, values: Tensor) -> None:
    """Set each of `cells [E]` of a flattened `table` to the sum of its `values [E]`; old values are
    overwritten.

    >>> table = torch.full((2, 2), -1.0)
    >>> add_up(table, torch.tensor([1, 3, 1]), torch.tensor([2.0, 3.0, 4.0]))
    >>> table.tolist()
    [[-1.0, 6.0], [-1.0, 3.0]]
    """
    flat = table.view(-1)
    flat[cells] = 0  # faster than a pass over the whole table
    flat.index_add_(0, cells, values)
