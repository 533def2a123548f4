"""How popular items are, as an order: what fills a list when nothing better is known."""

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
