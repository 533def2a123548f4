"""Recipes: lists of steps from grouped clicks to a training and a test part, counted after each."""

from collections.abc import Iterable, Sequence
from dataclasses import replace
from fractions import Fraction
from functools import partial
from typing import Any, NamedTuple

import numpy as np
import polars as pl

from posrec.data.arrays import WITHOUT_TIMES
from posrec.data.prepare import steps
from posrec.data.prepare.options import PrepareOptions, RecipeOptions
from posrec.data.prepare.parts import ClickParts
from posrec.data.source.log import ClickLog
from posrec.data.source.readers.options import option_name
from posrec.errors import InputError, plural
from posrec.progress import Progress

GROUPING = "Grouping sessions"
GIVEN = "given"  # the recipe that keeps an existing split
CLEAN_ONLY = (
    "drop_duplicates",
    "max_session_clicks",
    "drop_repeats",
    "max_length",
    "test_share",
)
# How the field prepares its two datasets, by their formats.
PAPER_DEFAULTS: dict[str, dict[str, Any]] = {
    "yoochoose": {"by_time": False},
    "diginetica": {"test_days": 7, "resolution": steps.DAY},
}


class StepLog:
    """What is left after each step, and warnings. Refuses a step that leaves nothing."""

    def __init__(self, progress: Progress) -> None:
        self.progress = progress
        self.steps: list[dict[str, Any]] = []
        self.warnings: list[str] = []
        self.hours: list[pl.DataFrame] = []  # of each part: latest.py

    def warn(self, texts: Iterable[str]) -> None:
        for text in texts:
            self.warnings.append(text)
            self.progress.message(text)

    def record(
        self, step: str, clicks: ClickParts, test: ClickParts | None = None
    ) -> None:
        """Count what a step has left of all clicks, or of training and test."""
        splits = [clicks] if test is None else [clicks, test]
        item_clicks = np.sum([split.item_clicks for split in splits], axis=0)
        left = {
            "clicks": int(item_clicks.sum()),
            "sessions": sum(int(split.sessions.sum()) for split in splits),
            "items": int(np.count_nonzero(item_clicks)),
        }
        before = self.steps[-1] if self.steps else left
        removed = {f"removed_{name}": before[name] - left[name] for name in left}
        self.steps.append({"step": step, **left, **removed})
        if test is None and not left["clicks"]:
            raise InputError(
                f"nothing is left after the step '{step}' ({plural(before['clicks'], 'click')} in "
                f"{plural(before['sessions'], 'session')} before it); lower --min-support or "
                "--min-length, or check that the session column is the right one"
            )
        for purpose, split in (("train", clicks), ("test", test)):
            if split is not None and not split.clicks.any():
                raise InputError(
                    f"nothing is left to {purpose} on after the step '{step}'; "
                    "choose another --test-days or a longer log"
                )


class Split(NamedTuple):
    train: ClickParts
    test: ClickParts | None = None  # None under --no-test
    # The test part with its clicks on items that training did not see, if there are any.
    full_test: ClickParts | None = None


def paper(clicks: ClickParts, options: RecipeOptions, log: StepLog) -> Split:
    """SR-GNN's preprocessing: each filter runs once, and sessions on the boundary are lost."""
    date_sessions = partial(steps.date_sessions, resolution=options.resolution)
    clicks = clicks.map(date_sessions, options.drop_short)
    log.record(f"sessions under {options.min_length} clicks", clicks)
    frequent = clicks.item_clicks >= options.min_support
    clicks = clicks.map(partial(steps.keep_items, chosen=frequent))
    log.record(f"items under {options.min_support} clicks", clicks)
    clicks = clicks.map(options.drop_short)
    log.record(f"sessions now under {options.min_length} clicks", clicks)
    clicks = clicks.sort_sessions()
    if options.no_test:
        return finish_split(clicks, None, options, log)
    latest = clicks.parts[-1].load()["date"][-1]
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
        clicks = clicks.map(partial(steps.keep_lengths, maximum=maximum))
        log.record(f"sessions over {maximum:,} clicks", clicks)
    if options.drop_repeats:
        clicks = clicks.map(steps.drop_repeats)
        log.record("immediate repeats", clicks)
    if (maximum := options.max_length) is not None:
        clicks = clicks.map(partial(steps.keep_latest_clicks, maximum=maximum))
        log.record(f"clicks before a session's latest {maximum}", clicks)
    # The test part is also kept with its clicks on rare and new items.
    copies = 1 if options.no_test else 2
    clicks, *full = clicks.change(
        lambda frame, _: [options.drop_short(frame)] * copies, copies, "Filtering"
    )
    clicks = drop_until_stable(clicks, options)
    step = f"sessions under {options.min_length} and items under {options.min_support} clicks"
    log.record(step, clicks)
    clicks = clicks.sort_sessions()
    if options.no_test:
        return finish_split(clicks, None, options, log)
    boundary = first_test_moment(clicks, options)
    frequent = clicks.item_clicks > 0
    train, test = clicks.split(partial(steps.split_at_first_click, boundary=boundary))
    log.record("split by first click", train, test)
    split = finish_split(train, test, options, log)
    assert split.test is not None
    begun = partial(steps.begun_since, boundary=boundary, chosen=frequent)
    full_test = full[0].map(begun, work="Splitting")
    if full_test.clicks.sum() > split.test.clicks.sum():
        split = split._replace(full_test=full_test.sort_sessions())
    return split


def keep_split(
    train: ClickParts, test: ClickParts, options: RecipeOptions, log: StepLog
) -> Split:
    """An existing split is kept as it is, in order of time, with test items unknown in training."""
    train = train.map(steps.group_sessions, work=GROUPING)
    test = test.map(steps.group_sessions, work=GROUPING)
    log.record("read", train, test)
    if options.gap is not None:
        train, test = cut_at_inactivity([train, test], options.gap, log)
    train = train.sort_sessions().map(options.drop_short)
    test = test.sort_sessions().map(options.drop_short)
    log.record(f"sessions under {options.min_length} clicks", train, test)
    return Split(train, test)


def cut_at_inactivity(
    parts: Iterable[ClickParts], gap: int, log: StepLog
) -> list[ClickParts]:
    cut = [part.map(partial(steps.cut_at_inactivity, gap=gap)) for part in parts]
    log.record(f"split after {gap / 60_000:g} minutes of inactivity", *cut)
    return cut


def drop_until_stable(clicks: ClickParts, options: RecipeOptions) -> ClickParts:
    while True:
        frequent = clicks.item_clicks >= options.min_support
        if frequent[clicks.item_clicks > 0].all():
            return clicks
        keep_frequent = partial(steps.keep_items, chosen=frequent)
        clicks = clicks.map(keep_frequent, options.drop_short)


def first_test_moment(clicks: ClickParts, options: RecipeOptions) -> int:
    """When the test part begins, of clicks that are sorted by first click.

    A session exactly `days` before the last is not in it: if times are dates, it has `days` dates.
    """
    days = options.test_days
    ends = clicks.sessions.cumsum()
    sessions = int(ends[-1])
    position = sessions - 1
    if days is None:
        position = sessions - max(1, round(options.test_share * sessions))
    number = int(np.searchsorted(ends, position, side="right"))
    starts, _, _ = steps.session_keys(clicks.parts[number].load())
    start = int(starts[position - ends[number] + len(starts)])
    return start if days is None else start - round(days * steps.DAY) + 1


def keep_recent_samples(clicks: ClickParts, fraction: Fraction) -> ClickParts:
    # A session of n clicks gives n - 1 samples. The parts are in order of time.
    samples = clicks.clicks - clicks.sessions
    later = samples[::-1].cumsum()[::-1] - samples  # in the parts after each
    total = int(int(samples.sum()) * fraction)
    counts = [max(0, total - int(after)) for after in later]

    def keep_latest(frame: pl.DataFrame, number: int) -> list[pl.DataFrame]:
        return [steps.keep_latest_samples(frame, counts[number])]

    return clicks.change(keep_latest, 1, "Filtering")[0]


def finish_split(
    train: ClickParts, test: ClickParts | None, options: RecipeOptions, log: StepLog
) -> Split:
    """Drop test clicks on unknown items, then keep the most recent fraction of training."""
    if test is not None:
        test = test.map(partial(steps.keep_items, chosen=train.item_clicks > 0))
        log.record("test clicks on items training never saw", train, test)
        test = test.map(options.drop_short)
        log.record(f"test sessions now under {options.min_length} clicks", train, test)
    if options.fraction is not None:
        train = keep_recent_samples(train, options.fraction)
        step = f"training samples before the most recent {options.fraction}"
        log.record(step, train, test)
    return Split(train, test)


RECIPES = {"paper": paper, "clean": clean}


def choose_recipe(
    options: PrepareOptions, logs: Sequence[ClickLog], progress: Progress
) -> PrepareOptions:
    format = logs[0].format
    if len(logs) == 2:
        if not options.keeps_split:
            raise InputError(
                "--test names an existing split, which is kept as it is; "
                "of the recipe only --min-length and --gap can be set"
            )
        return replace(options, recipe=GIVEN)
    recipe_options = options.recipe_options
    if recipe_options.test_days is not None and format in WITHOUT_TIMES:
        raise InputError(
            f"--test-days needs times, and a log of the format {format} has none; "
            "use --test-share"
        )
    recipe = options.recipe or ("paper" if format in PAPER_DEFAULTS else "clean")
    if logs[0].concluded and options.recipe is None and recipe == "paper":
        progress.message(
            "recipe paper, as published (pass --recipe clean for a log of your own)"
        )
    if recipe not in RECIPES:
        raise InputError(
            f"recipe {recipe!r} is not known; choose one of {', '.join(RECIPES)}"
        )
    if recipe == "paper":
        recipe_options = paper_options(recipe_options, format)
    return replace(options, recipe=recipe, recipe_options=recipe_options)


def paper_options(options: RecipeOptions, format: str) -> RecipeOptions:
    for name in CLEAN_ONLY:
        if getattr(options, name) != getattr(RecipeOptions, name):
            raise InputError(
                f"{option_name(name)} is an option of --recipe clean, not of --recipe paper"
            )
    defaults = {"test_days": 1, **PAPER_DEFAULTS.get(format, {})}
    if options.no_test or options.test_days is not None:
        defaults["test_days"] = options.test_days
    return replace(options, **defaults)
