"""Recipes: lists of steps from grouped clicks to a training and a test part, counted after each."""

from collections.abc import Iterable
from fractions import Fraction
from functools import partial
from typing import Any

import numpy as np

from posrec.data.prepare import steps
from posrec.data.prepare.options import RecipeOptions
from posrec.data.prepare.parts import ClickParts
from posrec.errors import InputError, plural
from posrec.progress import Progress


class StepLog:
    """What is left after each step, and warnings. Refuses a step that leaves nothing."""

    def __init__(self, progress: Progress) -> None:
        self.progress = progress
        self.steps: list[dict[str, Any]] = []
        self.warnings: list[str] = []

    def warn(self, texts: Iterable[str]) -> None:
        for text in texts:
            self.warnings.append(text)
            self.progress.message(text)

    def record(
        self, step: str, clicks: ClickParts, test: ClickParts | None = None
    ) -> None:
        """Count what a step has left of all clicks, or of training and test."""
        total = clicks.counts if test is None else clicks.counts + test.counts
        left = {
            "clicks": total.clicks,
            "sessions": total.sessions,
            "items": int(np.count_nonzero(total.items)),
        }
        before = self.steps[-1] if self.steps else left
        removed = {f"removed_{name}": before[name] - left[name] for name in left}
        self.steps.append({"step": step, **left, **removed})
        if test is None and not total.clicks:
            clicks_before = plural(before["clicks"], "click")
            sessions_before = plural(before["sessions"], "session")
            raise InputError(
                f"nothing is left after the step '{step}' ({clicks_before} in {sessions_before} "
                "before it); lower --min-support or --min-length, or check that the session column "
                "is the right one"
            )
        for purpose, split in (("train", clicks), ("test", test)):
            if split is not None and not split.counts.clicks:
                raise InputError(
                    f"nothing is left to {purpose} on after the step '{step}'; "
                    "choose another --test-days or a longer log"
                )


Split = tuple[ClickParts, ClickParts | None]  # training and test; None under --no-test


def paper(clicks: ClickParts, options: RecipeOptions, log: StepLog) -> Split:
    """SR-GNN's preprocessing, which the paper follows: each filter runs once, a session's date is
    that of its last-read click, and sessions exactly on the boundary of the split are lost."""
    drop_short = partial(steps.drop_short_sessions, minimum=options.min_length)
    date_sessions = partial(steps.date_sessions, resolution=options.resolution)
    clicks = clicks.map(date_sessions, drop_short)
    log.record(f"sessions under {options.min_length} clicks", clicks)
    frequent = clicks.counts.items >= options.min_support
    clicks = clicks.map(partial(steps.keep_items, chosen=frequent))
    log.record(f"items under {options.min_support} clicks", clicks)
    clicks = clicks.map(drop_short)
    log.record(f"sessions now under {options.min_length} clicks", clicks)
    clicks = clicks.sort_sessions(by_date=True)
    if options.no_test:
        return finish_split(clicks, None, options, log)
    latest_dates = clicks.collect(lambda frame: frame["date"].max())
    latest = max(date for date in latest_dates if date is not None)
    boundary = latest - round((options.test_days or 1) * steps.DAY)
    train, test = clicks.split(partial(steps.split_around_date, boundary=boundary))
    log.record("sessions exactly on the boundary", train, test)
    return finish_split(train, test, options, log)


def clean(clicks: ClickParts, options: RecipeOptions, log: StepLog) -> Split:
    """For a log of one's own: filters are repeated until all hold, and no session is lost."""
    if options.drop_duplicates:
        clicks = clicks.map(steps.drop_duplicates)
        log.record("events that were sent twice", clicks)
    if (maximum := options.max_session_clicks) is not None:
        clicks = clicks.map(partial(steps.keep_lengths, minimum=0, maximum=maximum))
        log.record(f"sessions over {maximum:,} clicks", clicks)
    if options.drop_repeats:
        clicks = clicks.map(steps.drop_repeats)
        log.record("immediate repeats", clicks)
    if (maximum := options.max_length) is not None:
        clicks = clicks.map(partial(steps.keep_latest_clicks, maximum=maximum))
        log.record(f"clicks before a session's latest {maximum}", clicks)
    clicks = drop_until_stable(clicks, options.min_length, options.min_support)
    step = f"sessions under {options.min_length} and items under {options.min_support} clicks"
    log.record(step, clicks)
    clicks = clicks.sort_sessions()
    if options.no_test:
        return finish_split(clicks, None, options, log)
    boundary = first_test_moment(clicks, options.test_days, options.test_share)
    train, test = clicks.split(partial(steps.split_at_first_click, boundary=boundary))
    log.record("split by first click", train, test)
    return finish_split(train, test, options, log)


def keep_split(
    train: ClickParts, test: ClickParts, options: RecipeOptions, log: StepLog
) -> Split:
    """An existing split is kept as it is, in order of time, with test items unknown in training."""
    log.record("read", train, test)
    drop_short = partial(steps.drop_short_sessions, minimum=options.min_length)
    train = train.sort_sessions().map(drop_short)
    test = test.sort_sessions().map(drop_short)
    log.record(f"sessions under {options.min_length} clicks", train, test)
    return train, test


def drop_until_stable(
    clicks: ClickParts, min_length: int, min_support: int
) -> ClickParts:
    drop_short = partial(steps.drop_short_sessions, minimum=min_length)
    clicks = clicks.map(drop_short)
    while True:
        counts = clicks.counts.items
        frequent = counts >= min_support
        if frequent[counts > 0].all():
            return clicks
        clicks = clicks.map(partial(steps.keep_items, chosen=frequent), drop_short)


def first_test_moment(clicks: ClickParts, days: float | None, share: float) -> int:
    """When the test part begins: with the latest `share` of the sessions, or `days` before the end.

    The clicks are sorted by first click. A session exactly `days` before the last is not in the
    test part: if times are dates, the last `days` dates are.
    """
    sessions = clicks.counts.sessions
    from_end = 1 if days is not None else max(1, round(share * sessions))
    position = sessions - from_end
    ends = np.cumsum([part_sessions for _, part_sessions in clicks.sizes])
    number = int(np.searchsorted(ends, position, side="right"))
    starts, _, _ = steps.session_keys(clicks.parts[number].load(), by_date=False)
    start = int(starts[position - ends[number] + len(starts)])
    return start if days is None else start - round(days * steps.DAY) + 1


def keep_recent_samples(clicks: ClickParts, fraction: Fraction) -> ClickParts:
    """The clicks are sorted by time."""
    # A session of n clicks gives n - 1 samples.
    samples = np.array(
        [in_clicks - in_sessions for in_clicks, in_sessions in clicks.sizes]
    )
    later = samples[::-1].cumsum()[::-1] - samples  # in the parts after each
    total = int(int(samples.sum()) * fraction)
    samples_of_part = [max(0, total - int(after)) for after in later]
    return clicks.map_each(steps.keep_latest_samples, samples_of_part)


def finish_split(
    train: ClickParts, test: ClickParts | None, options: RecipeOptions, log: StepLog
) -> Split:
    """Drop test clicks on unknown items, then keep the most recent fraction of training."""
    if test is not None:
        test = test.map(partial(steps.keep_items, chosen=train.counts.items > 0))
        log.record("test clicks on items training never saw", train, test)
        test = test.map(partial(steps.drop_short_sessions, minimum=options.min_length))
        log.record(f"test sessions now under {options.min_length} clicks", train, test)
    if options.fraction is not None:
        train = keep_recent_samples(train, options.fraction)
        step = f"training samples before the most recent {options.fraction}"
        log.record(step, train, test)
    return train, test


RECIPES = {"paper": paper, "clean": clean}
