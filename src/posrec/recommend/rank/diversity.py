"""More different items in one list: maximal marginal relevance over item vectors, or one item of each group.

Maximal marginal relevance (Carbonell and Goldstein, SIGIR 1998) fills a list one item at a time. With the weight w, the
next item is the one with the highest

    (1 - w) relevance(i)  -  w max_{j in the list} max(0, cos(i, j))

where relevance is the score, scaled so that the best of the considered items has 1 and the last 0. w = 0 leaves the
list as it is. Items that point away from all others get no bonus for it: a negative cosine counts as 0.

>>> vectors = np.array([[1.0, 0.0], [1.0, 0.0], [0.0, 1.0]], np.float32)
>>> marginal_relevance(np.array([3.0, 2.9, 1.0], np.float32), vectors, weight=0.5, k=2)
[0, 2]
"""

from collections.abc import Sequence

import numpy as np

from posrec.recommend.rank.best_items import Columns, Floats

POOL = 5  # items that are considered for each item of a list
SMALLEST_POOL = 100
GROUP_POOL = 8  # the same, where one item of each group is taken
DEEPER = 8  # how many times more are considered where they have too few groups


def marginal_relevance(scores: Floats, vectors: Floats, weight: float, k: int) -> list[int]:
    """The places of k of P items with scores [P], the best first, and vectors [P, d], in the order of the list."""
    if not len(scores):
        return []
    relevance = (scores - scores[-1]) / max(float(scores[0] - scores[-1]), np.finfo(np.float32).tiny)
    lengths = np.linalg.norm(vectors, axis=1, keepdims=True)
    units = vectors / np.maximum(lengths, np.finfo(np.float32).tiny)
    nearest = np.zeros(len(scores), np.float32)
    chosen: list[int] = []
    gains = (1 - weight) * relevance
    for _ in range(min(k, len(scores))):
        gain = gains - weight * nearest
        gain[chosen] = -np.inf
        chosen.append(int(gain.argmax()))
        nearest = np.maximum(nearest, units @ units[chosen[-1]])
    return chosen


def one_of_each_group(numbers: Sequence[int], groups: Columns, k: int) -> list[int]:
    """The places of the first item of each group, k at most. `groups [n]` holds the group of every item."""
    found: dict[int, int] = {}
    for place, number in enumerate(numbers):
        found.setdefault(int(groups[number - 1]), place)
        if len(found) == k:
            break
    return list(found.values())
