"""What counting models share: the order of items by popularity, and lists of different lengths in one flat array.

List i of such an array is `values[offsets[i] : offsets[i + 1]]`.
"""

import torch
from torch import Tensor


def popularity_order(items: Tensor, number: int) -> Tensor:
    """items [N], every training click -> [number] 0 for the least clicked items, 1 for the next, and so on.

    Items clicked equally often share a place. Places are few, so that they stay exact in float32 beside other scores.

    >>> popularity_order(torch.tensor([1, 3, 3, 3]), 4).tolist()
    [1.0, 0.0, 2.0, 0.0]
    """
    clicks = torch.bincount(items.long(), minlength=number + 1)[1:]
    places: Tensor = torch.unique(clicks, return_inverse=True)[1]
    return places.float()


def rest_by_popularity(items: Tensor, number: int) -> Tensor:
    """The same as scores [number] below 0, for items that a model has nothing better to say about.

    >>> rest_by_popularity(torch.tensor([1, 3, 3, 3]), 4)
    tensor([-0.6667, -1.0000, -0.3333, -1.0000])
    """
    order = popularity_order(items, number)
    return (order - order.max() - 1) / (order.max() + 1)


def offsets_of(owners: Tensor, lists: int) -> Tensor:
    """owners [E], the list each entry belongs to -> offsets [lists + 1], for entries sorted by their list.

    >>> offsets_of(torch.tensor([0, 0, 2]), 3).tolist()
    [0, 2, 2, 3]
    """
    sizes = torch.bincount(owners, minlength=lists)
    return torch.cat([sizes.new_zeros(1), sizes.cumsum(0)])


def spread(offsets: Tensor, lists: Tensor, most: int | None = None) -> tuple[Tensor, Tensor]:
    """All entries of `lists [R]`, one list after the other; of each at most the first `most`.

    Gives `owner [E]`, which of the R an entry came from, and `place [E]`, where in the flat array it is.

    >>> spread(torch.tensor([0, 2, 2, 5]), torch.tensor([2, 0]))
    (tensor([0, 0, 0, 1, 1]), tensor([2, 3, 4, 0, 1]))
    """
    starts = offsets[lists]
    sizes = offsets[lists + 1] - starts
    if most is not None:
        sizes = sizes.clamp(max=most)
    owner = torch.repeat_interleave(sizes)
    before = sizes.cumsum(0) - sizes  # [R] entries of the lists before each
    return owner, torch.arange(len(owner), device=owner.device) + (starts - before)[owner]


def first_in_list(owners: Tensor, most: int) -> Tensor:
    """owners [E], sorted -> [E] True for the first `most` entries of each list.

    >>> first_in_list(torch.tensor([0, 0, 0, 4]), 2).tolist()
    [True, True, False, True]
    """
    _, number, sizes = torch.unique_consecutive(owners, return_inverse=True, return_counts=True)
    before = sizes.cumsum(0) - sizes  # entries of the lists before each
    place: Tensor = torch.arange(len(owners), device=owners.device) - before[number]
    return place < most


def add_up(table: Tensor, places: Tensor, values: Tensor) -> None:
    """Give each of `places [E]` of a flattened `table` the sum of its values [E], whatever was there before.

    >>> table = torch.full((2, 2), -1.0)
    >>> add_up(table, torch.tensor([1, 3, 1]), torch.tensor([2.0, 3.0, 4.0]))
    >>> table.tolist()
    [[-1.0, 6.0], [-1.0, 3.0]]
    """
    flat = table.view(-1)
    flat[places] = 0  # a few places, rather than a pass over the whole table
    flat.index_add_(0, places, values)
