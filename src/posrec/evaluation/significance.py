"""Is one model better than another, or was it chance? Paired tests on the same samples, with sessions as clusters.

The samples of a session are not independent: a session that suits a model suits it at every click. So the bootstrap
draws whole sessions, and standard errors are estimated over sessions.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from posrec.data.dataset import SessionDataset

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


def session_of_samples(samples: SessionDataset) -> Tensor:
    """The number of the session that each sample is from, [N]."""
    return samples.locate(torch.arange(len(samples)))[0]


def compare_paired(first: Tensor, second: Tensor, session: Tensor, seed: int = 0, draws: int = DRAWS) -> Comparison:
    """`first`, `second` [N]: gains of two models on the same samples; `session [N]`: the session of each sample.

    The interval is the bootstrap's. The p-value is that of a paired test over sessions, which needs no draws and so
    can be small. With `draws=0` the interval is the normal one: quicker, and with thousands of sessions the same.
    """
    if first.shape != second.shape or first.shape != session.shape:
        raise ValueError(f"{len(first)}, {len(second)} and {len(session)} samples: a paired test needs the same ones")
    _, number = session.unique(return_inverse=True)  # type: ignore[no-untyped-call]
    sessions = int(number.max()) + 1
    sums = torch.zeros(sessions, dtype=torch.float64).index_add(0, number, (first - second).double())
    counts = torch.bincount(number, minlength=sessions).double()
    difference = float(sums.sum() / counts.sum())
    error = clustered_error(sums, counts, difference)
    p = two_sided_p(difference, error)
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


def two_sided_p(difference: float, error: float, freedom: float = math.inf) -> float:
    """The chance of a difference at least this large if there were none: Student's t with `freedom` degrees.

    Infinite freedom, the limit for thousands of sessions, is the normal distribution.

    >>> cases = [(12.706, 1), (2.776, 4), (-2.0, 2.5), (1.96, math.inf)]
    >>> [round(two_sided_p(difference, 1.0, freedom), 4) for difference, freedom in cases]
    [0.05, 0.05, 0.1574, 0.05]
    """
    if error == 0:
        return 1.0 if difference == 0 else 0.0
    from scipy.stats import t  # imported here: it takes a second, and training does not need it

    return 2 * float(t.sf(abs(difference / error), freedom))


def margin(error: float, freedom: float) -> float:
    """Half the width of the 95 % interval of a mean with this standard error."""
    from scipy.stats import t

    return error * float(t.ppf(0.975, freedom)) if error else 0.0


def welch(errors: Sequence[tuple[float, float]]) -> tuple[float, float]:
    """(standard error, degrees of freedom) of independent sources -> those of their sum (Welch, 1947).

    scipy has this for two samples only, and given the samples; here a third source is the error over sessions.
    """
    variance = sum(error**2 for error, _ in errors)
    if variance == 0:
        return 0.0, math.inf
    return math.sqrt(variance), variance**2 / sum(error**4 / freedom for error, freedom in errors if error)


def holm(p_values: list[float]) -> list[float]:
    """p-values corrected for many comparisons (Holm, 1979), in the order given."""
    order = sorted(range(len(p_values)), key=lambda index: p_values[index])
    corrected, largest = [0.0] * len(p_values), 0.0
    for place, index in enumerate(order):
        largest = max(largest, min(1.0, (len(p_values) - place) * p_values[index]))
        corrected[index] = largest
    return corrected
