"""Metrics of recommended lists beyond accuracy. `top [N, K]` holds the item numbers of N lists.

>>> top, clicks = torch.tensor([[1, 2], [1, 3]]), torch.tensor([0, 4, 2, 2])
>>> float(novelty(top, clicks)), float(serendipity(top, torch.tensor([2, 3]), clicks))
(1.5, 0.5)
"""

import math
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
    diversity = []
    for lists in torch.split(top, LISTS_AT_A_TIME):
        # The sum over all pairs is |sum of the unit vectors|^2, less the k pairs of an item with
        # itself.
        sums = units[(lists - 1).to(units.device)].sum(1)
        diversity.append(1 - (sums.square().sum(1) - k) / (k * (k - 1)))
    return torch.cat(diversity).double().mean()


def group_diversity(top: Tensor, groups: Tensor) -> Tensor:
    """The share of pairs of a list's items in different groups; groups [n + 1] by number."""
    k = top.shape[1]
    same = torch.zeros((), dtype=torch.int64)
    for lists in torch.split(groups[top], LISTS_AT_A_TIME):
        same += (lists[:, :, None] == lists[:, None, :]).sum()
    return 1 - (same - top.numel()) / (len(top) * k * (k - 1))


def serendipity(top: Tensor, targets: Tensor, clicks: Tensor) -> Tensor:
    """The share of targets that are in their list and not among the K most clicked items."""
    hit = (top == targets[:, None]).any(1)
    k = min(top.shape[1], len(clicks) - 1)
    most_clicked = clicks[1:].topk(k).indices + 1
    expected = (most_clicked == targets[:, None]).any(1)
    return (hit & ~expected).double().mean()


def revenue(top: Tensor, targets: Tensor, prices: Tensor) -> Tensor:
    """The mean price of a target that is in its list, else 0; prices [n + 1] by number."""
    hit = (top == targets[:, None]).any(1)
    # A target that is not in its list may be an item without a price: one that training lacks.
    worth = prices[torch.where(hit, targets, 0)]
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
    metrics = {
        "novelty": novelty(top, clicks),
        "serendipity": serendipity(top, targets, clicks),
    }
    if vectors is not None and k > 1:
        metrics["diversity"] = vector_diversity(top, vectors)
    if "category" in columns and k > 1:
        categories = numbered(columns["category"], len(clicks))
        metrics["category_diversity"] = group_diversity(top, categories)
    prices = as_prices(columns.get("price"), len(clicks))
    if prices is not None:
        metrics["revenue"] = revenue(top, targets, prices)
    return {f"{name}@20": float(value) for name, value in metrics.items()}


def numbered(values: Sequence[Any], size: int) -> Tensor:
    """[size] equal for equal values; an item without a value is a group of its own."""
    codes: dict[Any, int] = {}
    groups = [-1]  # of the padding, item 0
    for index, value in enumerate(values):
        key = index if value is None else str(value)
        groups.append(codes.setdefault(key, len(codes)))
    return torch.tensor(groups[:size])


def as_prices(values: Sequence[Any] | None, size: int) -> Tensor | None:
    """[size] by item number, NaN without a price; None if the column is not of numbers."""
    try:
        prices = [math.nan if value is None else float(value) for value in values or ()]
    except (TypeError, ValueError):
        return None
    if not prices:
        return None
    known = torch.tensor([0.0, *prices][:size], dtype=torch.float64)
    return torch.where(known.isfinite(), known, math.nan)  # "inf" is not a price
