"""PrepareOptions: the options of `posrec prepare`, built once by the command and by Python alike.

>>> PrepareOptions.parse(format="csv", gap="30m").recipe_options.gap
1800000
"""

from collections.abc import Callable
from dataclasses import dataclass, fields, replace
from datetime import date
from fractions import Fraction
from typing import Any

import polars as pl

from posrec.config import declarations, parse_duration, setting, split_settings
from posrec.data.prepare.steps import DAY, SECOND, keep_lengths
from posrec.data.source.readers.options import (
    LogOptions,
    option_name,
    parse_weights,
    split_commas,
)
from posrec.data.source.readers.times import parse_moment
from posrec.errors import InputError
from posrec.io.executor import LOCAL

MAX_DAYS = 1_000_000
SET_BY_FORMAT = ("by_time", "resolution", "mixed")
PARSERS: dict[str, Callable[[str], Any]] = {
    "gap": parse_duration,
    "events": split_commas,
    "target_events": split_commas,
    "event_weights": parse_weights,
    "since": parse_moment,
    "until": parse_moment,
}


@dataclass(frozen=True)
class RecipeOptions:
    """The options of a recipe's steps. None leaves a step out, or the value to the recipe."""

    # Milliseconds of inactivity after which a user's clicks are split into sessions.
    gap: int | None = setting(None, above=0, at_most=MAX_DAYS * DAY)
    test_days: float | None = setting(None, above=0, at_most=MAX_DAYS)
    no_test: bool = False  # every session is for training
    # Clean: the share of the sessions to test on, if test_days is None.
    test_share: float = setting(0.1, above=0, below=1)
    # The share of the training samples to keep, the most recent ones.
    fraction: Fraction | None = setting(None, above=0, at_most=1)
    min_support: int = setting(5, at_least=1)
    min_length: int = setting(2, at_least=2)
    drop_duplicates: bool = False
    max_session_clicks: int | None = None  # sessions with more are dropped
    drop_repeats: bool = False
    max_length: int | None = None
    # Paper: sort the clicks of a session by time, or keep the order of the file.
    by_time: bool = True
    resolution: int = SECOND  # paper: milliseconds to which a session's date is rounded

    def drop_short(self, clicks: pl.DataFrame) -> pl.DataFrame:
        return keep_lengths(clicks, self.min_length)

    def check(self) -> None:
        for name, declaration in declarations(self):
            value = getattr(self, name)
            if value is not None and not declaration.allows(float(value)):
                raise InputError(
                    f"{option_name(name)} must be {declaration.allowed}, not {value}"
                )
        for name in ("max_session_clicks", "max_length"):
            value = getattr(self, name)
            if value is not None and value < self.min_length:
                raise InputError(
                    f"{option_name(name)} must be at least {self.min_length}, not {value}"
                )
        has_share = self.test_share != RecipeOptions.test_share
        if self.no_test and (self.test_days is not None or has_share):
            raise InputError(
                "--no-test leaves no test part, so --test-days and --test-share "
                "can't be used with it"
            )


@dataclass(frozen=True)
class PrepareOptions:
    """How to prepare a log. `posrec.prepare` describes the options."""

    log_options: LogOptions
    recipe_options: RecipeOptions
    format: str | None = None
    test: Any = None
    items: Any = None
    created_column: str | None = None
    expires_column: str | None = None
    items_id_column: str | None = None
    all_items: bool = False
    recipe: str | None = None
    overwrite: bool = False
    engine: str = LOCAL
    memory: str | int | None = None
    address: str | None = None

    @classmethod
    def parse(cls, **options: Any) -> "PrepareOptions":
        """Build it from options by name, as the command line and `posrec.prepare` have them."""
        for name in ("all_items", "items_id_column"):
            if options.get(name) and options.get("items") is None:
                raise InputError(
                    f"{option_name(name)} needs --items, the file that lists all items"
                )
        names = {field.name for field in fields(cls)}
        direct = {name: options.pop(name) for name in names & options.keys()}
        return cls(*split_options(options), **direct)

    @property
    def keeps_split(self) -> bool:
        """Whether no option asks for a change of an existing split."""
        chosen = self.recipe_options
        unchanged = RecipeOptions(gap=chosen.gap, min_length=chosen.min_length)
        return self.recipe is None and chosen == unchanged


def split_options(options: dict[str, Any]) -> tuple[LogOptions, RecipeOptions]:
    """Parse and check the options of the log and of the recipe. Every value may be text."""
    fields_of_both = (*fields(LogOptions), *fields(RecipeOptions))
    names = {field.name for field in fields_of_both} - {*SET_BY_FORMAT}
    if unknown := sorted(options.keys() - names):
        raise TypeError(
            f"prepare() has no option {unknown[0]!r}; it has {', '.join(sorted(names))}"
        )
    values = {name: value for name, value in options.items() if value is not None}
    if "fraction" in values:
        values["fraction"] = parse_fraction(values["fraction"])
    for name, parse in PARSERS.items():
        if isinstance(values.get(name), str | date):
            values[name] = parse(str(values[name]))
    log_options, recipe_options = split_settings(values, LogOptions(), RecipeOptions())
    # Both have this option, and `split_settings` gives it to the first.
    duplicates = log_options.drop_duplicates
    recipe_options = replace(recipe_options, drop_duplicates=duplicates)
    recipe_options.check()
    return log_options, recipe_options


def parse_fraction(value: str | float) -> Fraction:
    try:
        return Fraction(value)
    except (ValueError, ZeroDivisionError, OverflowError):
        raise InputError(
            f"--fraction {value!r} is not a fraction; write e.g. 1/64 or 0.25"
        ) from None
