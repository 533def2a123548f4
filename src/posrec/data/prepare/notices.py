"""What `posrec prepare` says about a log that is unlikely to be what was wanted."""

import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import polars as pl

from posrec.data.prepare import steps
from posrec.data.prepare.latest import count_hours
from posrec.data.source.readers.columns import BETWEEN_IDS, normal_ids
from posrec.errors import plural

FEW_SAMPLES = 1000  # to train on
FEW_TEST_SAMPLES = 100
LASTING_SHARE = 0.01  # of the sessions, which may last for days unnoticed
MANY_CLICKS = 1000  # of a session; no shopper has more
BURST = 120  # clicks in as many seconds; no shopper is as quick
SHOWN_VISITORS = 3
SHOWN_IDS = 3
YEAR_1990 = 7305  # its first day, counted from 1970
FAR_SHARE = 0.001  # of the clicks, which may be a year from the others unnoticed


def advice(manifest: dict[str, Any]) -> Iterator[str]:
    counts = manifest["counts"]
    if counts["train_samples"] < FEW_SAMPLES:
        yield few_samples(manifest)
    elif 0 < counts["test_samples"] < FEW_TEST_SAMPLES:
        yield (
            f"only {counts['test_samples']:,} test samples: too few to compare models by; "
            "raise --test-days or --test-share, or use a longer log"
        )


def few_samples(manifest: dict[str, Any]) -> str:
    options = manifest["options"]
    fixes = "use a longer log"
    if manifest["log"]["target_events"]:
        fixes += ", name more kinds with --target-events"
    largest = max(manifest["steps"], key=lambda step: int(step["removed_clicks"]))
    if largest["removed_clicks"]:
        fixes += (
            f", or lower --min-support (now {options['min_support']}) or --min-length (now "
            f"{options['min_length']}): the step '{largest['step']}' removed "
            f"{largest['removed_clicks']:,} clicks"
        )
    samples = manifest["counts"]["train_samples"]
    verb = "is" if samples == 1 else "are"
    return (
        f"only {plural(samples, 'training sample')} {verb} left, and most models need at least "
        f"{FEW_SAMPLES:,}; {fixes}"
    )


def impossible_times(days: Mapping[int, int]) -> Iterator[str]:
    """Warnings about the times of a log, given the clicks of each day."""
    today = int(time.time() * 1000) // steps.DAY
    early = [day for day in days if day < YEAR_1990]
    late = [day for day in days if day > today + 1]
    far = days_apart(days, today)
    clicks = sum(days.values())
    for problem, wrong_days, allowed in (
        ("before 1990", early, 0),
        ("more than a day from now", late, 0),
        ("more than a year from all others", far, FAR_SHARE * clicks),
    ):
        count = sum(days[day] for day in wrong_days)
        if count == 0 or count < allowed:
            continue
        verb = "is" if count == 1 else "are"
        yield (
            f"warning: {count:,} of {plural(clicks, 'click')} {verb} dated {problem}, e.g. "
            f"{np.datetime64(min(wrong_days), 'D')}. The latest sessions are those of the test "
            "part, so wrong times spoil it: check the time column and --time-unit, or drop these "
            "clicks with --since and --until"
        )


def lookalike_ids(names: pl.Series) -> Iterator[str]:
    """A warning about ids of items that `--normalize-ids` would join."""
    items = pl.DataFrame({"id": names.cast(pl.String)})
    if not items["id"].str.contains(r"^\s|\s$|[^\x00-\x7F]").any():
        return  # all are in their normal form
    items = items.with_columns(normal=normal_ids(pl.col("id")))
    groups = items.group_by("normal", maintain_order=True).agg("id")
    alike = groups["id"].filter(groups["id"].list.len() > 1)
    examples = [" and ".join(map(ascii, ids[:2])) for ids in alike[:SHOWN_IDS]]
    if examples:
        yield (
            f"warning: the ids of {plural(len(alike), 'item')} differ only in the spaces around "
            f"them or in their Unicode form, e.g. {', '.join(examples)}. --normalize-ids joins them"
        )


def days_apart(days: Mapping[int, int], today: int) -> list[int]:
    """Possible days that a year without clicks separates from the days with most clicks."""
    possible = np.array(sorted(day for day in days if YEAR_1990 <= day <= today + 1))
    gaps = np.flatnonzero(np.diff(possible) > 365)
    stretches = [stretch.tolist() for stretch in np.split(possible, gaps + 1)]
    clicks = [sum(days[day] for day in stretch) for stretch in stretches]
    del stretches[clicks.index(max(clicks))]
    return [day for stretch in stretches for day in stretch]


Visitors = tuple[tuple[str, int], ...]  # the id and the number of clicks of each


@dataclass(frozen=True)
class Measured:
    sessions: int
    lasting: int  # sessions of more than a day
    longest: int  # milliseconds
    busy: int  # sessions with more clicks than a shopper makes
    busy_clicks: int
    busiest: Visitors
    hours: pl.DataFrame  # what `count_hours` counts


def measure(
    clicks: pl.DataFrame, grouped: pl.DataFrame, gap: int | None, max_clicks: int | None
) -> Measured:
    """Measure sessions that are yet to be split after `gap`.

    `clicks` are those before they were `grouped`, with the ids of their sessions. Sessions of more
    than `max_clicks`, which will be dropped, are not busy.
    """
    split = grouped if gap is None else steps.cut_at_inactivity(grouped, gap)
    begins, lengths = steps.session_rows(split)
    first, last = steps.first_and_last(grouped["time"].to_numpy(), begins)
    durations = last - first
    busy = (lengths > MANY_CLICKS) | has_burst(split, lengths)
    if max_clicks is not None:
        busy &= lengths <= max_clicks
    first_rows = grouped["session"].to_numpy()[begins[busy]]
    counts = lengths[busy].astype(np.int64)
    ids = clicks["session"].gather(first_rows).cast(pl.String)
    visitors = pl.DataFrame({"id": ids, "clicks": counts}).group_by("id").sum()
    return Measured(
        sessions=len(lengths),
        lasting=int((durations > steps.DAY).sum()),
        longest=int(durations.max(initial=0)),
        busy=len(counts),
        busy_clicks=int(counts.sum()),
        busiest=busiest(visitors.rows()),
        hours=count_hours(split, begins, lengths),
    )


def busiest(visitors: Iterable[tuple[str, int]]) -> Visitors:
    in_order = sorted(visitors, key=lambda visitor: (-visitor[1], visitor[0]))
    return tuple(in_order[:SHOWN_VISITORS])


def has_burst(clicks: pl.DataFrame, lengths: steps.Codes) -> steps.Mask:
    """[sessions] whether a session has BURST clicks in as many seconds, and not all at one time."""
    long = lengths > BURST  # only the clicks of these few sessions are compared
    times = clicks["time"].to_numpy()[np.repeat(long, lengths)]
    sessions = np.repeat(np.flatnonzero(long), lengths[long])
    same_session = sessions[BURST:] == sessions[:-BURST]
    duration = times[BURST:] - times[:-BURST]
    is_burst = same_session & (duration > 0) & (duration <= BURST * steps.SECOND)
    bursts = np.zeros(len(lengths), dtype=np.bool_)
    bursts[sessions[BURST:][is_burst]] = True
    return bursts


def session_warnings(
    parts: Sequence[Measured], gap: int | None, columns: Sequence[str]
) -> Iterator[str]:
    """Warnings about long sessions and bots; `columns` are those of the session, if named."""
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
        names = []
        for visitor, count in busiest(row for part in parts for row in part.busiest):
            name = visitor.replace(BETWEEN_IDS, " ").strip()
            names.append(f"{name} ({plural(count, 'click')})")
        yield (
            f"warning: {plural(busy, 'session')} with {plural(clicks, 'click')} may be those of "
            f"bots: more than {MANY_CLICKS:,} clicks, or a click a second for {BURST // 60} "
            f"minutes. The busiest: {', '.join(names)}. --max-session-clicks N drops sessions of "
            "more than N clicks"
        )
