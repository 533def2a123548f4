"""Metrics of recommended lists beyond accuracy. `top [N, K]` holds the item numbers of N lists.

>>> top, clicks = torch.tensor([[1, 2], [1, 3]]), torch.tensor([0, 4, 2, 2])
>>> float(novelty(top, clicks)), float(serendipity(top, torch.tensor([2, 3]), clicks))
(1.5, 0.5)
"""

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

LISTS_AT_A_TIME = 4096  # lists whose vectors are compared at once


def novelty(top: Tensor, clicks: Tensor) -> Tensor:
    """The mean of -log2 p(i) over recommended items; p(i) is i's share of training clicks."""
    shares = clicks[top.flatten()].double().clamp(min=1) / clicks.sum()
    return -shares.log2().mean()


def vector_diversity(top: Tensor, vectors: Tensor) -> Tensor:
    """The mean of 1 - cos over all pairs of items of a list, by item vectors [n, d]."""
    units = torch.nn.functional.normalize(vectors.float(), dim=1)
    k = top.shape[1]
    found = []
    for some in torch.split(top, LISTS_AT_A_TIME):
        # The sum over all pairs is |sum of the unit vectors|^2, less the k pairs of an item with itself.
        sums = units[(some - 1).to(units.device)].sum(1)
        found.append(1 - (sums.square().sum(1) - k) / (k * (k - 1)))
    return torch.cat(found).double().mean()


def group_diversity(top: Tensor, groups: Tensor) -> Tensor:
    """The share of pairs of a list's items in different groups; groups [n + 1] by number."""
    k = top.shape[1]
    same = torch.zeros((), dtype=torch.int64)
    for some in torch.split(groups[top], LISTS_AT_A_TIME):
        same += (some[:, :, None] == some[:, None, :]).sum()
    return 1 - (same - top.numel()) / (len(top) * k * (k - 1))


def serendipity(top: Tensor, targets: Tensor, clicks: Tensor) -> Tensor:
    """The share of targets that are in their list and not among the K most clicked items."""
    hit = (top == targets[:, None]).any(1)
    expected = (clicks[1:].topk(min(top.shape[1], len(clicks) - 1)).indices + 1)[
        None
    ] == targets[:, None]
    return (hit & ~expected.any(1)).double().mean()


def revenue(top: Tensor, targets: Tensor, prices: Tensor) -> Tensor:
    """The mean price of a target that is in its list, else 0; prices [n + 1] by number."""
    hit = (top == targets[:, None]).any(1)
    worth = prices[
        torch.where(hit, targets, 0)
    ]  # a target may be an item that was never in training
    return torch.where(hit, worth.nan_to_num(0.0), 0.0).mean()


def list_metrics(
    top: Tensor,
    targets: Tensor,
    clicks: Tensor,
    vectors: Tensor | None,
    columns: Mapping[str, Sequence[Any]],
) -> dict[str, float]:
    """Every metric whose needs are met: item vectors, or a column `category` or `price`."""
    k = top.shape[1]
    found = {
        "novelty": novelty(top, clicks),
        "serendipity": serendipity(top, targets, clicks),
    }
    if vectors is not None and k > 1:
        found["diversity"] = vector_diversity(top, vectors)
    if "category" in columns and k > 1:
        found["category_diversity"] = group_diversity(
            top, numbered(columns["category"], len(clicks))
        )
    if (prices := as_prices(columns.get("price"), len(clicks))) is not None:
        found["revenue"] = revenue(top, targets, prices)
    return {f"{name}@20": float(value) for name, value in found.items()}


def numbered(values: Sequence[Any], size: int) -> Tensor:
    """[size] equal for equal values; an item without a value is a group of its own."""
    codes: dict[str, int] = {}
    groups = [
        -1 - place if one is None else codes.setdefault(str(one), len(codes))
        for place, one in enumerate(values)
    ]
    return torch.tensor([-size - 1, *groups][:size])


def as_prices(values: Sequence[Any] | None, size: int) -> Tensor | None:
    """[size] by item number, NaN without a price; None if the column is not of numbers."""
    try:
        prices = [float("nan") if one is None else float(one) for one in values or ()]
    except (TypeError, ValueError):
        return None
    return torch.tensor([0.0, *prices][:size], dtype=torch.float64) if prices else None
