"""What `posrec prepare` says about a log that is unlikely to be what was wanted."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import numpy as np
import polars as pl

from posrec.data.prepare import steps
from posrec.data.prepare.options import RecipeOptions
from posrec.data.source.readers.columns import BETWEEN_IDS
from posrec.errors import plural

FEW_SAMPLES = 1000  # to train on
FEW_TEST_SAMPLES = 100
LASTING_SHARE = (
    0.01  # of the sessions, that may last for days before a warning is printed
)
MANY_CLICKS = 1000  # of a session; no shopper has more
BURST = 120  # clicks in as many seconds; no shopper is as quick
SHOWN_VISITORS = 3
YEAR_1990 = 7305  # its first day, counted from 1970
FAR_SHARE = 0.001  # of the clicks, that are dated a year from the others, before a warning is printed


def notices(manifest: dict[str, Any], options: RecipeOptions) -> Iterator[str]:
    """What is said of a prepared dataset."""
    counts = manifest["counts"]
    if counts["train_samples"] < FEW_SAMPLES:
        yield few_samples(manifest, options)
    elif 0 < counts["test_samples"] < FEW_TEST_SAMPLES:
        yield (
            f"only {counts['test_samples']:,} test samples: too few to compare models by; raise --test-days or "
            "--test-share, or use a longer log"
        )


def few_samples(manifest: dict[str, Any], options: RecipeOptions) -> str:
    removed = max(manifest["steps"], key=lambda step: int(step["removed_clicks"]))
    samples = manifest["counts"]["train_samples"]
    advice = "use a longer log"
    if manifest["log"]["target_events"]:
        advice += ", name more kinds with --target-events"
    if removed["removed_clicks"]:
        advice += (
            f", or lower --min-support (now {options.min_support}) or --min-length (now {options.min_length}): the "
            f"step '{removed['step']}' removed {removed['removed_clicks']:,} clicks"
        )
    count = (
        "1 training sample is" if samples == 1 else f"{samples:,} training samples are"
    )
    return f"only {count} left, and most models need at least {FEW_SAMPLES:,}; {advice}"


def impossible_times(days: Mapping[int, int], today: int) -> Iterator[str]:
    """Warnings about the times of a log, given how many clicks each day has."""
    possible = sorted(day for day in days if YEAR_1990 <= day <= today + 1)
    starts = [
        place
        for place, day in enumerate(possible)
        if place == 0 or day - possible[place - 1] > 365
    ]
    stretches = [
        possible[first:after] for first, after in pairwise([*starts, len(possible)])
    ]
    rest = max(
        stretches, key=lambda stretch: sum(days[day] for day in stretch), default=[]
    )
    wrong = {
        "dated before 1990": [day for day in days if day < YEAR_1990],
        "dated more than a day from now": [day for day in days if day > today + 1],
        "dated more than a year from all others": [
            day for one in stretches if one is not rest for day in one
        ],
    }
    clicks = sum(days.values())
    for which, found in wrong.items():
        count = sum(days[day] for day in found)
        if count and (found[0] not in possible or count >= FAR_SHARE * clicks):
            yield (
                f"warning: {count:,} of {plural(clicks, 'click')} {'is' if count == 1 else 'are'} {which}, e.g. "
                f"{np.datetime64(min(found), 'D')}. The latest sessions are those of the test part, so wrong times "
                "spoil it: check the time column and --time-unit, or remove these clicks"
            )


@dataclass(frozen=True)
class Measured:
    sessions: int
    lasting: int  # sessions of more than a day
    longest: int  # milliseconds
    busy: int  # sessions with more clicks than a shopper makes
    busy_clicks: int
    busiest: tuple[
        tuple[str, int], ...
    ]  # the ids of some visitors who have them, and their clicks


def measure(
    given: pl.DataFrame, grouped: pl.DataFrame, gap: int | None, max_clicks: int | None
) -> Measured:
    """Measure sessions that are yet to be split after `gap`, without those of more than
    `max_clicks`.

    `given` are the same clicks before they were grouped, with the ids of their sessions.
    """
    cut = grouped if gap is None else steps.cut_at_inactivity(grouped, gap)
    begins, lengths = steps.session_rows(cut)
    first, last = steps.first_and_last(grouped["time"].to_numpy(), begins)
    durations = last - first
    busy = (lengths > MANY_CLICKS) | has_burst(cut, lengths)
    if max_clicks is not None:
        busy &= lengths <= max_clicks
    counts = (
        len(lengths),
        int((durations > steps.DAY).sum()),
        int(durations.max(initial=0)),
    )
    if not busy.any():
        return Measured(*counts, 0, 0, ())
    first_rows = grouped["session"].to_numpy()[begins[busy]]
    clicks = lengths[busy].astype(np.int64)
    ids = given["session"].gather(first_rows).cast(pl.String)
    visitors = pl.DataFrame({"id": ids, "clicks": clicks}).group_by("id").sum()
    return Measured(*counts, len(clicks), int(clicks.sum()), busiest(visitors.rows()))


def busiest(visitors: Iterable[tuple[str, int]]) -> tuple[tuple[str, int], ...]:
    return tuple(
        sorted(visitors, key=lambda visitor: (-visitor[1], visitor[0]))[:SHOWN_VISITORS]
    )


def has_burst(clicks: pl.DataFrame, lengths: steps.Codes) -> steps.Mask:
    """[sessions] whether a session has BURST clicks in as many seconds, and not all at one time."""
    long = lengths > BURST  # of these alone, which are few, clicks are compared
    times = clicks["time"].to_numpy()[np.repeat(long, lengths)]
    numbers = np.repeat(np.flatnonzero(long), lengths[long])
    took = times[BURST:] - times[:-BURST]
    found = (
        (numbers[BURST:] == numbers[:-BURST])
        & (took > 0)
        & (took <= BURST * steps.SECOND)
    )
    has = np.zeros(len(lengths), dtype=np.bool_)
    has[numbers[BURST:][found]] = True
    return has


def session_warnings(
    parts: Sequence[Measured], gap: int | None, columns: Sequence[str]
) -> Iterator[str]:
    """`columns` are those of the session, if they were named."""
    sessions = sum(part.sessions for part in parts)
    lasting = sum(part.lasting for part in parts)
    if gap is None and lasting > LASTING_SHARE * sessions:
        advice = "pass --gap 30m to split them after half an hour of inactivity"
        if len(columns) == 1:
            user = f"pass --user-column {columns[0]} instead of --session-column"
            advice = f"if {columns[0]!r} holds users, {user}; or {advice}"
        longest = max(part.longest for part in parts)
        yield (
            f"warning: {lasting:,} of {sessions:,} sessions last longer than a day, the longest "
            f"{longest / steps.DAY:,.0f} days; {advice}"
        )
    if busy := sum(part.busy for part in parts):
        clicks = sum(part.busy_clicks for part in parts)
        shown = busiest(visitor for part in parts for visitor in part.busiest)
        names = [
            (visitor.replace(BETWEEN_IDS, " ").strip(), plural(count, "click"))
            for visitor, count in shown
        ]
        visitors = ", ".join(f"{visitor} ({count})" for visitor, count in names)
        yield (
            f"warning: {plural(busy, 'session')} with {plural(clicks, 'click')} may be those of bots: more than "
            f"{MANY_CLICKS:,} clicks, or a click a second for {BURST // 60} minutes. The busiest: {visitors}. "
            "--max-session-clicks N drops sessions of more than N clicks"
        )
