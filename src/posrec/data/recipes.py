"""Recipes: straight lists of steps from grouped clicks to a training and a test part, with an account of each."""

from dataclasses import asdict, dataclass, field
from fractions import Fraction

import polars as pl

from posrec.data import steps
from posrec.errors import InputError

SECOND = 1000
LONGEST_DAYS = 1_000_000


@dataclass(frozen=True)
class RecipeOptions:
    """What can be asked of a recipe; None leaves a thing undone, or to the recipe's own default."""

    gap: int | None = None  # cut a user's clicks into sessions after this many milliseconds of silence
    test_days: float | None = None
    test_share: float = 0.1  # clean: the share of sessions to test on where no days are given
    fraction: Fraction | None = None  # train on the most recent part of the samples
    min_support: int = 5
    min_length: int = 2
    drop_repeats: bool = False
    max_length: int | None = None
    by_time: bool = True  # paper: order the clicks of a session by time, or keep the file's order
    resolution: int = SECOND  # paper: how finely a session's date is read, in milliseconds

    def check(self) -> "RecipeOptions":
        """Refuse values that can't be meant."""
        sensible = {
            "--gap": self.gap is None or 0 < self.gap <= LONGEST_DAYS * steps.DAY,
            "--test-days": self.test_days is None or 0 < self.test_days <= LONGEST_DAYS,
            "--test-share": 0 < self.test_share < 1,
            "--fraction": self.fraction is None or 0 < self.fraction <= 1,
            "--min-support": self.min_support >= 1,
            "--min-length": self.min_length >= 2,
            "--max-length": self.max_length is None or self.max_length >= max(2, self.min_length),
        }
        for option, fine in sensible.items():
            if not fine:
                value = getattr(self, option[2:].replace("-", "_"))
                raise InputError(f"{option} {value} makes no sense; see posrec prepare --help for what it means")
        return self


@dataclass(frozen=True)
class Step:
    """What is left after a step, and what it took away."""

    step: str
    clicks: int
    sessions: int
    items: int
    removed_clicks: int
    removed_sessions: int
    removed_items: int


@dataclass
class Account:
    """Keeps the books: after each step, what is left and what the step took away."""

    steps: list[Step] = field(default_factory=list)

    def note(self, step: str, *parts: pl.DataFrame) -> None:
        clicks = sum(len(part) for part in parts)
        sessions = sum(part["session"].n_unique() for part in parts)
        items = steps.count_distinct(pl.concat([part["item"] for part in parts]))
        last = self.steps[-1] if self.steps else Step("", clicks, sessions, items, 0, 0, 0)
        removed = (last.clicks - clicks, last.sessions - sessions, last.items - items)
        self.steps.append(Step(step, clicks, sessions, items, *removed))
        if not all(len(part) for part in parts):
            raise InputError(f"nothing is left {self.emptied(step, parts)}")

    def emptied(self, step: str, parts: tuple[pl.DataFrame, ...]) -> str:
        """Where the last click went, and what to do about it."""
        if len(parts) == 2:
            part = "to train on" if not len(parts[0]) else "to test on"
            return f"{part} after the step '{step}'; choose another --test-days or a longer log"
        before = self.steps[-2] if len(self.steps) > 1 else self.steps[-1]
        return (
            f"after the step '{step}' ({before.clicks:,} clicks in {before.sessions:,} sessions before it); "
            "lower --min-support or --min-length, or check that the session column is the right one"
        )

    def as_json(self) -> list[dict[str, str | int]]:
        return [asdict(step) for step in self.steps]


Split = tuple[pl.DataFrame, pl.DataFrame]


def paper(clicks: pl.DataFrame, options: RecipeOptions, account: Account) -> Split:
    """The field's preprocessing (SR-GNN's, which the paper follows), with its quirks.

    One pass of each filter, a session dated by its last-read click, sessions exactly on the boundary lost.
    """
    dates = steps.session_dates(clicks, options.resolution)  # the last-read click's, be it filtered away later or not
    clicks = steps.drop_short_sessions(clicks, options.min_length)
    account.note(f"sessions under {options.min_length} clicks", clicks)
    clicks = steps.drop_rare_items(clicks, options.min_support)
    account.note(f"items under {options.min_support} clicks", clicks)
    clicks = steps.drop_short_sessions(clicks, options.min_length)
    account.note(f"sessions now under {options.min_length} clicks", clicks)
    train, test = steps.split_around_date(clicks, dates, options.test_days or 1)
    account.note("sessions exactly on the boundary", train, test)
    train, test = steps.sort_by_date(train, dates), steps.sort_by_date(test, dates)
    return end(train, test, options, account)


def clean(clicks: pl.DataFrame, options: RecipeOptions, account: Account) -> Split:
    """What an engineer wants: filters that hold when they are done, and no session lost to the split."""
    if options.drop_repeats:
        clicks = steps.drop_repeats(clicks)
        account.note("immediate repeats", clicks)
    if options.max_length is not None:
        clicks = steps.keep_latest_clicks(clicks, options.max_length)
        account.note(f"clicks before a session's latest {options.max_length}", clicks)
    clicks = steps.drop_until_stable(clicks, options.min_length, options.min_support)
    account.note(f"sessions under {options.min_length} and items under {options.min_support} clicks", clicks)
    clicks = steps.sort_by_first_click(clicks)
    train, test = steps.split_at_first_click(clicks, options.test_days, options.test_share)
    account.note("split by first click", train, test)
    return end(train, test, options, account)


def given(train: pl.DataFrame, test: pl.DataFrame, options: RecipeOptions, account: Account) -> Split:
    """A split somebody made before: kept as it is, in order of time, test items that training never saw included."""
    test = test.with_columns(pl.col("item").cast(pl.String).cast(train.schema["item"]))  # one set of categories
    account.note("read", train, test)
    train, test = steps.sort_by_first_click(train), steps.sort_by_first_click(test)
    train, test = (steps.drop_short_sessions(part, options.min_length) for part in (train, test))
    account.note(f"sessions under {options.min_length} clicks", train, test)
    return train, test


def end(train: pl.DataFrame, test: pl.DataFrame, options: RecipeOptions, account: Account) -> Split:
    """Leave nothing in the test part that training can't know, then cut training to its most recent fraction."""
    test = steps.drop_unseen_items(test, train)
    account.note("test clicks on items training never saw", train, test)
    test = steps.drop_short_sessions(test, options.min_length)
    account.note(f"test sessions now under {options.min_length} clicks", train, test)
    if options.fraction is not None:
        train = steps.keep_recent_samples(train, options.fraction)
        account.note(f"training samples before the most recent {options.fraction}", train, test)
    return train, test
