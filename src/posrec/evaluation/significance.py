"""Is one model better than another, or was it luck? Paired, on the same samples, with whole sessions drawn together.

The samples of a session are not independent: a session that suits a model suits it at every click. So the bootstrap
draws sessions, not samples, and takes all samples of each.
"""

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from posrec.evaluation.student import two_sided_p

DRAWS = 2000


@dataclass(frozen=True)
class Comparison:
    """The mean difference of a metric (first minus second), its 95 % interval, and a two-sided p-value."""

    difference: float
    low: float
    high: float
    p: float
    error: float  # standard error, over sessions

    @property
    def significant(self) -> bool:
        return self.p < 0.05


def gains(ranks: Tensor, metric: str, k: int) -> Tensor:
    """What each sample adds to a metric's mean, [N]."""
    rank = ranks.double()
    gain = {"recall": torch.ones_like(rank), "mrr": 1 / rank, "ndcg": 1 / torch.log2(rank + 1)}[metric]
    return torch.where(ranks <= k, gain, 0.0)


def compare_paired(first: Tensor, second: Tensor, session: Tensor, seed: int = 0, draws: int = DRAWS) -> Comparison:
    """`first`, `second` [N]: a metric's gains of two models on the same samples; `session [N]`: whose sample each is.

    The interval is the bootstrap's; the p-value is that of a paired t-test on sessions, which needs no draws and so
    can be small. Without draws the interval is the t-test's too: quicker, and on thousands of sessions the same.
    """
    if first.shape != second.shape or first.shape != session.shape:
        raise ValueError(f"{len(first)}, {len(second)} and {len(session)} samples: a paired test needs the same ones")
    _, number = session.unique(return_inverse=True)  # type: ignore[no-untyped-call]
    sessions = int(number.max()) + 1
    sums = torch.zeros(sessions, dtype=torch.float64).index_add(0, number, (first - second).double())
    counts = torch.bincount(number, minlength=sessions).double()
    difference = float(sums.sum() / counts.sum())
    error = clustered_error(sums, counts, difference)
    p = p_of(difference, error)
    if not draws:
        return Comparison(difference, difference - 1.96 * error, difference + 1.96 * error, p, error)
    random = torch.Generator().manual_seed(seed)
    means = []
    for _ in range(draws):
        drawn = torch.randint(sessions, (sessions,), generator=random)
        means.append(sums[drawn].sum() / counts[drawn].sum())
    spread = torch.stack(means).quantile(torch.tensor([0.025, 0.975], dtype=torch.float64))
    return Comparison(difference, float(spread[0]), float(spread[1]), p, error)


def clustered_error(sums: Tensor, counts: Tensor, difference: float) -> float:
    """The standard error of the mean difference, estimated over sessions (the ratio estimator's)."""
    sessions = len(sums)
    residual = sums - difference * counts
    return math.sqrt(float(residual.square().sum()) * sessions / max(1, sessions - 1)) / float(counts.sum())


def p_of(difference: float, error: float, freedom: float = math.inf) -> float:
    """Two-sided p of a difference with this standard error; thousands of sessions have freedom without end."""
    if error == 0:
        return 1.0 if difference == 0 else 0.0
    return two_sided_p(difference / error, freedom)


def holm(p_values: list[float]) -> list[float]:
    """p-values corrected for many comparisons (Holm, 1979), in the order given."""
    order = sorted(range(len(p_values)), key=lambda index: p_values[index])
    corrected, largest = [0.0] * len(p_values), 0.0
    for place, index in enumerate(order):
        largest = max(largest, min(1.0, (len(p_values) - place) * p_values[index]))
        corrected[index] = largest
    return corrected
