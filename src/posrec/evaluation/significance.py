"""Is one model better than another, or was it chance? Paired tests on the same samples, and the
test of figures that are read again and again.

The samples of a session are not independent, so standard errors are estimated over sessions, and
for feedback over visitors.
"""

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from statistics import stdev
from typing import TYPE_CHECKING, TypeVar

import numpy as np
import numpy.typing as npt

if TYPE_CHECKING:  # torch is imported where it is used: a report on feedback needs none
    from torch import Tensor

    from posrec.data.dataset import SessionDataset

LEVEL = 0.05
MIXTURE_UNITS = 500  # `always_valid` is sharpest from 2 to 200 times as many units

Array = TypeVar("Array", "Tensor", npt.NDArray[np.float64])


@dataclass(frozen=True)
class Comparison:
    """The mean difference of a metric (first minus second), its 95 % interval, and two-sided p."""

    difference: float
    low: float
    high: float
    p: float
    error: float  # standard error, over sessions


@dataclass(frozen=True)
class PairedTest:
    """How two models differ in one metric; `corrected` is p after Holm over all tests."""

    first: str
    second: str
    metric: str
    comparison: Comparison
    corrected: float

    @property
    def p_text(self) -> str:
        return "< 0.001" if self.corrected < 0.001 else f"{self.corrected:.3f}"

    @property
    def is_shown(self) -> bool:
        return self.corrected < LEVEL

    @property
    def verdict(self) -> str:
        if not self.is_shown:
            return "no difference shown"
        better = self.first if self.comparison.difference > 0 else self.second
        return f"{better} is better"

    def exchanged(self) -> "PairedTest":
        """The same test with the second model first."""
        tested = self.comparison
        comparison = replace(
            tested, difference=-tested.difference, low=-tested.high, high=-tested.low
        )
        return PairedTest(
            self.second, self.first, self.metric, comparison, self.corrected
        )


def tests_of(model: str, pairs: Iterable[PairedTest], metric: str) -> list[PairedTest]:
    """The tests of a model in a metric, with the model first, against each of the others."""
    return [
        pair if pair.first == model else pair.exchanged()
        for pair in pairs
        if pair.metric == metric and model in (pair.first, pair.second)
    ]


def session_of_samples(samples: "SessionDataset") -> "Tensor":
    import torch

    return samples.locate(torch.arange(len(samples)))[0]


def compare_paired(first: "Tensor", second: "Tensor", session: "Tensor") -> Comparison:
    """Gains of two models on the same samples, [N] each; `session [N]`: the session of each sample.

    There are enough sessions for the normal distribution.
    """
    import torch

    if first.shape != second.shape or first.shape != session.shape:
        seen = f"{len(first)}, {len(second)} and {len(session)} samples"
        raise ValueError(f"{seen}: a paired test needs the same ones")
    _, number = session.unique(return_inverse=True)  # type: ignore[no-untyped-call]
    counts = torch.bincount(number).double()
    sums = torch.zeros_like(counts).index_add(0, number, (first - second).double())
    difference = float(sums.sum() / counts.sum())
    error = standard_error(influences(sums, counts))
    half = margin(error, math.inf)
    p = two_sided_p(difference, error)
    return Comparison(difference, difference - half, difference + half, p, error)


def influences(sums: Array, counts: Array) -> Array:
    """How far each unit (session, visitor) moves the ratio of sums to counts, to first order."""
    total = counts.sum()
    influence: Array = (sums - sums.sum() / total * counts) / total
    return influence


def standard_error(influence: Array) -> float:
    """Of an estimate, from the influence of each of its independent units (the delta method)."""
    units = len(influence)
    return math.sqrt(float((influence**2).sum()) * units / max(1, units - 1))


def two_sided_p(difference: float, error: float, freedom: float = math.inf) -> float:
    """The chance of a difference at least this large if there were none: Student's t.

    >>> cases = [(12.706, 1), (2.776, 4), (-2.0, 2.5), (1.96, math.inf)]
    >>> [round(two_sided_p(difference, 1.0, freedom), 4) for difference, freedom in cases]
    [0.05, 0.05, 0.1574, 0.05]
    """
    if error == 0:
        return 1.0 if difference == 0 else 0.0
    # scipy.stats has the same, and its import takes a second.
    from scipy.special import stdtr

    return 2 * float(stdtr(freedom, -abs(difference / error)))


def always_valid(
    difference: float, error: float, units: int, level: float = LEVEL
) -> tuple[float, float]:
    """p of a difference over `units`, and half its interval, however often one looks.

    It is Robbins' mixture (1970) of the likelihood ratios over all sizes of the difference
    (asymptotic: Waudby-Smith et al., arXiv 2103.06476). With n the units, m = MIXTURE_UNITS, z the
    difference divided by its error, and a the level:

        p = sqrt(1 + n/m) exp(-z^2/2 · n/(n + m))
        the interval ends at z^2 = (1 + m/n) log((1 + n/m) / a^2)

    >>> [round(value, 3) for value in always_valid(3.0, 1.0, 10_000)]
    [0.063, 3.08]
    """
    if not (units and error):
        return 1.0, math.inf
    share = units / (units + MIXTURE_UNITS)
    p = math.exp(-((difference / error) ** 2) / 2 * share) / math.sqrt(1 - share)
    return min(1.0, p), error * math.sqrt(-math.log((1 - share) * level**2) / share)


def margin(error: float, freedom: float) -> float:
    """Half the width of the 95 % interval of a mean with this standard error."""
    from scipy.special import stdtrit

    return error * float(stdtrit(freedom, 1 - LEVEL / 2)) if error else 0.0


def error_over_seeds(values: Sequence[float]) -> tuple[float, float]:
    """The standard error of the mean of several trainings, and its degrees of freedom."""
    seeds = len(values)
    return stdev(values) / math.sqrt(seeds), seeds - 1


def welch(errors: Sequence[tuple[float, float]]) -> tuple[float, float]:
    """Welch (1947): standard error and degrees of freedom of a sum of independent sources, from
    those of each. scipy has this for two samples only; here a third source is the error over
    sessions.
    """
    variance = sum(error**2 for error, _ in errors)
    if variance == 0:
        return 0.0, math.inf
    spread = sum(error**4 / freedom for error, freedom in errors if error)
    return math.sqrt(variance), variance**2 / spread


def combine_errors(
    over_sessions: Comparison, sessions: int, over_seeds: Iterable[tuple[float, float]]
) -> tuple[float, float, float]:
    """A difference and half its 95 % interval, in points, and its p. The errors of each model's
    mean over seeds are in points too."""
    points = 100 * over_sessions.difference
    error, freedom = welch([(100 * over_sessions.error, sessions - 1), *over_seeds])
    return points, margin(error, freedom), two_sided_p(points, error, freedom)


def sign_test(ahead: int, behind: int) -> float:
    """The chance of so few on one side, or fewer, if each side were as likely (two-sided, exact).

    >>> sign_test(4, 0), sign_test(5, 1), sign_test(2, 2)
    (0.125, 0.21875, 1.0)
    """
    trials = ahead + behind
    ways = sum(math.comb(trials, fewer) for fewer in range(min(ahead, behind) + 1))
    return min(1.0, math.ldexp(ways, 1 - trials))


def holm(p_values: list[float]) -> list[float]:
    """p-values corrected for many comparisons (Holm, 1979), in the order given."""
    order = sorted(range(len(p_values)), key=lambda index: p_values[index])
    corrected = [0.0] * len(p_values)
    largest = 0.0
    for smaller, index in enumerate(order):
        largest = max(largest, min(1.0, (len(p_values) - smaller) * p_values[index]))
        corrected[index] = largest
    return corrected
