"""The gate: why a night's model must not be served, as sentences with their figures.

volume   the latest day has about as many clicks and sessions as other nights, of the same kind
fair     the new model is not worse than the running one
level    neither model is far below what was promoted in the last nights
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean, median, stdev

from posrec.errors import InputError, plural
from posrec.evaluation.metrics import CUTOFFS, GAINS
from posrec.fitting.nightly.home import Record

COUNTS = {
    "clicks": "the latest day has {} clicks",
    "sessions": "the latest day has {} sessions",
}
SHARES = {
    "unknown": "{} of the latest day's clicks are on items that training did not see",
    "one_click": "{} of the latest day's sessions have a single click",
    "repeats": "{} of the latest day's clicks repeat the one before",
    "at_once": "{} of the latest day's clicks have the time of the one before",
}
SMALL_SHARE = 0.01  # a smaller one counts as this
CLICKS = {"known": "the clicks whose item both models know", "all": "all clicks"}
ERRORS = 2  # standard errors of a difference, which may be chance
SPREADS = 3
# The spread of so few nights is taken to be at least this share of their mean.
FEW_NIGHTS = 4
LEAST_SPREAD = 0.1


@dataclass(frozen=True)
class Gate:
    """The options of the gate, which the help of `posrec nightly` explains."""

    metric: str = "recall@20"
    tolerance: float = 0.002
    least: int = 100
    factor: float = 3.0

    def check(self) -> None:
        metrics = [f"{name}@{cutoff}" for name in GAINS for cutoff in CUTOFFS]
        if self.metric not in metrics:
            choices = ", ".join(metrics)
            raise InputError(f"--metric {self.metric} is not one of {choices}")

    def volume(
        self, latest: Mapping[str, float], nights: Sequence[Record]
    ) -> Iterator[str]:
        for name, sentence in {**COUNTS, **SHARES}.items() if nights else ():
            style, least = (",.0f", 1) if name in COUNTS else (".1%", SMALL_SHARE)
            usual = median(night["latest_day"][name] for night in nights)
            ratio = max(latest[name], least) / max(usual, least)
            if not 1 / self.factor <= ratio <= self.factor:
                yield (
                    f"{sentence.format(format(latest[name], style))}, and the median of "
                    f"{plural(len(nights), 'promoted night')} is {usual:{style}}: more than a "
                    f"factor of {self.factor:g} apart (--factor)"
                )

    def enough(self, part: str, samples: int) -> Iterator[str]:
        if samples < self.least:
            yield (
                f"the latest day has only {plural(samples, 'sample')} of {CLICKS[part]}, fewer "
                f"than {self.least:,} (--least): check the end of the log, and its item ids"
            )

    def models(self, night: Record, nights: Sequence[Record]) -> Iterator[str]:
        """Of the figures of a night's models, given the last promoted nights."""
        yield from self.enough("known", night["samples"]["known"])
        for part in CLICKS:
            yield from self.level(night, "new", part, nights)
        if "running" in night:
            # Not of all clicks: an older model knows fewer of their items.
            yield from self.level(night, "running", "known", nights)
            for part in CLICKS:
                other = ("the running model's", night["running"][part])
                slack = ERRORS * night["error"][part]
                allowed = f"{ERRORS} standard errors"
                yield from self.lower(night, "new", part, other, slack, allowed)

    def level(
        self, night: Record, model: str, part: str, nights: Sequence[Record]
    ) -> Iterator[str]:
        figures = [n["new"][part] for n in nights if n["metric"] == self.metric]
        figures = [figure for figure in figures if figure is not None]
        if not figures:
            return
        usual = fmean(figures)
        spread = stdev(figures) if len(figures) > 1 else 0.0
        if len(figures) < FEW_NIGHTS:
            spread = max(spread, LEAST_SPREAD * usual)
        other = (f"the mean of {plural(len(figures), 'promoted night')} is", usual)
        allowed = f"{SPREADS} times their spread"
        yield from self.lower(night, model, part, other, SPREADS * spread, allowed)

    def lower(
        self,
        night: Record,
        model: str,
        part: str,
        other: tuple[str, float | None],
        slack: float,
        allowed: str,
    ) -> Iterator[str]:
        """Whether a model's figure is lower than another by more than the tolerance and `slack`."""
        figure = night[model][part]
        name, usual = other
        slack += self.tolerance
        if figure is not None and usual is not None and figure < usual - slack:
            yield (
                f"the {model} model's {self.metric} on {CLICKS[part]} is {figure:.3f}, and "
                f"{name} {usual:.3f}: more than {slack:.3f} lower (--tolerance and {allowed})"
            )
