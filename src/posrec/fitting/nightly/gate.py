"""The gate: why a night's model must not be served, as sentences with their figures.

volume   the latest day has about as many clicks and sessions as the nights before, of the same kind
fair     the new model is not worse than the running one on the same clicks
level    neither model is far below what was promoted in the last nights
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean, median, stdev

from posrec.errors import plural
from posrec.fitting.nightly.history import Record

# Of the latest day: its counts, and shares of its clicks and sessions.
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
# The clicks that models are compared on.
KNOWN = "known"
ALL = "all"
CLICKS = {KNOWN: "the clicks whose item both models know", ALL: "all clicks"}
ERRORS = 2  # standard errors of a difference, which may be chance
SPREADS = 3
# The spread of so few nights is taken to be at least this share of their mean.
FEW_NIGHTS = 4
LEAST_SPREAD = 0.1

Figures = Mapping[
    str, float | None
]  # the metric on KNOWN and on ALL; None without a click


@dataclass(frozen=True)
class Gate:
    """What a night must hold: `posrec nightly --help` explains each option."""

    metric: str = "recall@20"
    tolerance: float = 0.002
    least: int = 100
    factor: float = 3.0

    def volume(
        self, latest: Mapping[str, float], nights: Sequence[Record]
    ) -> Iterator[str]:
        for name, sentence in {**COUNTS, **SHARES}.items():
            earlier = [night["latest_day"][name] for night in nights]
            if not earlier:
                continue
            style = ",.0f" if name in COUNTS else ".1%"
            least = 1 if name in COUNTS else SMALL_SHARE
            usual = median(earlier)
            ratio = max(latest[name], least) / max(usual, least)
            if not 1 / self.factor <= ratio <= self.factor:
                yield (
                    f"{sentence.format(format(latest[name], style))}, and the median of "
                    f"{plural(len(earlier), 'promoted night')} is {usual:{style}}: more than a "
                    f"factor of {self.factor:g} apart (--factor)"
                )

    def faults(self, night: Record, nights: Sequence[Record]) -> Iterator[str]:
        """Of the figures of a night's models, given the last promoted nights."""
        yield from self.enough(KNOWN, night["samples"][KNOWN])
        new = night["new"]
        for part in CLICKS:
            yield from self.level("new", part, new[part], nights)
        if running := night.get("running"):
            # Not of all clicks: an older model knows fewer of their items.
            yield from self.level("running", KNOWN, running[KNOWN], nights)
            yield from self.fair(new, running, night["error"])

    def enough(self, part: str, samples: int) -> Iterator[str]:
        """Whether there are samples to compare models by."""
        if samples < self.least:
            yield (
                f"the latest day has only {plural(samples, 'sample')} of {CLICKS[part]}, fewer "
                f"than {self.least:,} (--least): check the end of the log, and its item ids"
            )

    def fair(
        self, new: Figures, running: Figures, error: Mapping[str, float]
    ) -> Iterator[str]:
        for part, meaning in CLICKS.items():
            figure = new[part]
            other = running[part]
            allowed = self.tolerance + ERRORS * error[part]
            if figure is None or other is None or figure >= other - allowed:
                continue
            yield (
                f"the new model's {self.metric} on {meaning} is {figure:.3f}, and the running "
                f"model's {other:.3f}: more than {allowed:.3f} lower (--tolerance and {ERRORS} "
                "standard errors)"
            )

    def level(
        self, model: str, part: str, figure: float | None, nights: Sequence[Record]
    ) -> Iterator[str]:
        """Whether a model's figure is about as high as those of the last nights' new models."""
        earlier = [
            night["new"][part] for night in nights if night["metric"] == self.metric
        ]
        earlier = [value for value in earlier if value is not None]
        if figure is None or not earlier:
            return
        usual = fmean(earlier)
        spread = stdev(earlier) if len(earlier) > 1 else 0.0
        if len(earlier) < FEW_NIGHTS:
            spread = max(spread, LEAST_SPREAD * usual)
        allowed = self.tolerance + SPREADS * spread
        if figure < usual - allowed:
            yield (
                f"the {model} model's {self.metric} on {CLICKS[part]} is {figure:.3f}, and the "
                f"mean of {plural(len(earlier), 'promoted night')} is {usual:.3f}: more than "
                f"{allowed:.3f} lower (--tolerance and {SPREADS} times their spread)"
            )
