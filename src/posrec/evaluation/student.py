"""Student's t with any number of degrees of freedom, whole or not, and Welch's for errors of several sources.

With x = sqrt(df) tan(angle) the density of t becomes cos(angle) ** (df - 1) on a quarter turn, up to a factor, so that
a tail's share is the quotient of two integrals of a smooth and bounded function.
"""

import math
from collections.abc import Sequence

import torch

POINTS = 2_000
NORMAL_FROM = 10_000  # degrees of freedom; the normal distribution to four digits


def two_sided_p(t: float, freedom: float) -> float:
    """The chance of a value at least as far from 0 as `t`.

    >>> [round(two_sided_p(t, freedom), 4) for t, freedom in [(12.706, 1), (2.776, 4), (2.0, 2.5), (1.96, math.inf)]]
    [0.05, 0.05, 0.1574, 0.05]
    """
    if freedom > NORMAL_FROM:
        return math.erfc(abs(t) / math.sqrt(2))
    angle = math.atan(abs(t) / math.sqrt(freedom))
    return powers_of_cosine(angle, freedom - 1) / powers_of_cosine(0.0, freedom - 1)


def powers_of_cosine(begin: float, power: float) -> float:
    """The integral of cos(x) ** power from `begin` to a quarter turn, by the midpoint rule."""
    width = (math.pi / 2 - begin) / POINTS
    places = begin + width * (torch.arange(POINTS, dtype=torch.float64) + 0.5)
    return float((places.cos() ** power).sum()) * width


def margin_of(freedom: float) -> float:
    """How many standard errors the 95 % interval goes to either side: the t whose two-sided p is 0.05."""
    low, high = 1.0, 16.0
    while high - low > 1e-5:
        middle = (low + high) / 2
        low, high = (middle, high) if two_sided_p(middle, freedom) > 0.05 else (low, middle)
    return high


def welch(errors: Sequence[tuple[float, float]]) -> tuple[float, float]:
    """(standard error, degrees of freedom) of independent sources -> those of their sum (Welch, 1947)."""
    variance = sum(error**2 for error, _ in errors)
    if variance == 0:
        return 0.0, math.inf
    return math.sqrt(variance), variance**2 / sum(error**4 / freedom for error, freedom in errors if error)
