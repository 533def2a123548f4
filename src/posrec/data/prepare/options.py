"""The options of `posrec prepare`: of the log, of the recipe, and which recipe it is."""

from collections.abc import Callable
from dataclasses import dataclass, fields, replace
from fractions import Fraction
from typing import Any, get_type_hints

from posrec.config import declarations, parse, parse_duration, setting
from posrec.data.arrays import WITHOUT_TIMES
from posrec.data.prepare.steps import DAY, SECOND
from posrec.data.source.readers.options import (
    LogOptions,
    option_name,
    parse_weights,
    split_commas,
)
from posrec.errors import InputError

MAX_DAYS = 1_000_000
RECIPE_NAMES = ("paper", "clean")
CLEAN_ONLY = (
    "drop_duplicates",
    "max_session_clicks",
    "drop_repeats",
    "max_length",
    "test_share",
)
# How the field prepares its two datasets: days of the test part, whether a session's clicks are
# sorted by time, and the resolution of dates.
PAPER_DEFAULTS: dict[str, dict[str, Any]] = {
    "yoochoose": {"test_days": 1, "by_time": False, "resolution": SECOND},
    "diginetica": {"test_days": 7, "by_time": True, "resolution": DAY},
}


@dataclass(frozen=True)
class RecipeOptions:
    """None leaves a step out, or leaves the value to the recipe's own default."""

    # Milliseconds of inactivity after which a user's clicks are split into sessions.
    gap: int | None = setting(None, above=0, at_most=MAX_DAYS * DAY)
    test_days: float | None = setting(None, above=0, at_most=MAX_DAYS)
    no_test: bool = False  # every session is for training
    test_share: float = setting(
        0.1, above=0, below=1
    )  # clean: of the sessions, if test_days is not given
    fraction: Fraction | None = setting(
        None, above=0, at_most=1
    )  # of the samples, the most recent ones
    min_support: int = setting(5, at_least=1)
    min_length: int = setting(2, at_least=2)
    drop_duplicates: bool = False
    max_session_clicks: int | None = None  # sessions with more are dropped
    drop_repeats: bool = False
    max_length: int | None = None
    by_time: bool = True  # paper: order the clicks of a session by time instead of keeping the file's order
    resolution: int = (
        SECOND  # paper: a session's date is rounded down to this many milliseconds
    )

    def check(self) -> "RecipeOptions":
        """Refuse values outside the allowed range."""
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
        if self.no_test and (
            self.test_days is not None or self.test_share != RecipeOptions.test_share
        ):
            raise InputError(
                "--no-test leaves no test part, so --test-days and --test-share can't be used with it"
            )
        return self


def split_options(options: dict[str, Any]) -> tuple[LogOptions, RecipeOptions]:
    """Those of the log and those of the recipe. Every value may be text, as on the command line."""
    kinds = {**get_type_hints(LogOptions), **get_type_hints(RecipeOptions)}
    names = sorted(
        kinds.keys() - {"by_time", "resolution"}
    )  # these are set by the format
    if unknown := sorted(options.keys() - names):
        raise TypeError(
            f"prepare() has no option {unknown[0]!r}; it has {', '.join(names)}"
        )
    given = {
        name: PARSERS[name](value)
        if name in PARSERS and isinstance(value, str)
        else parse(name, value, kinds[name])
        for name, value in options.items()
        if value is not None
    }
    if "fraction" in given:
        given["fraction"] = parse_fraction(given["fraction"])
    log, recipe = (
        {field.name: given[field.name] for field in fields(kind) if field.name in given}
        for kind in (LogOptions, RecipeOptions)
    )
    return LogOptions(**log), RecipeOptions(**recipe).check()


def parse_fraction(value: str | float) -> Fraction:
    try:
        return Fraction(value)
    except (ValueError, ZeroDivisionError, OverflowError):
        raise InputError(
            f"--fraction {value!r} is not a fraction; write e.g. 1/64 or 0.25"
        ) from None


PARSERS: dict[str, Callable[[str], Any]] = {
    "gap": parse_duration,
    "events": split_commas,
    "target_events": split_commas,
    "event_weights": parse_weights,
}


def keeps_split(recipe: str | None, options: RecipeOptions) -> bool:
    """Whether nothing was asked of the recipe that would change an existing split."""
    return recipe is None and options == replace(
        RecipeOptions(), min_length=options.min_length
    )


def resolve_recipe(
    recipe: str | None, format: str, options: RecipeOptions, given_test: bool
) -> tuple[str, RecipeOptions]:
    """The recipe asked for, or the format's own; `paper` gets the settings of the field."""
    if given_test:
        if not keeps_split(recipe, options):
            raise InputError(
                "--test names an existing split, which is kept as it is; of the recipe only --min-length can be set"
            )
        return "given", options
    if options.test_days is not None and format in WITHOUT_TIMES:
        raise InputError(
            f"--test-days needs times, and a log of the format {format} has none; use --test-share"
        )
    recipe = recipe or ("paper" if format in PAPER_DEFAULTS else "clean")
    if recipe not in RECIPE_NAMES:
        raise InputError(
            f"recipe {recipe!r} is not known; choose one of {', '.join(RECIPE_NAMES)}"
        )
    if recipe == "paper":
        default = RecipeOptions()
        for name in CLEAN_ONLY:
            if getattr(options, name) != getattr(default, name):
                raise InputError(
                    f"{option_name(name)} is an option of --recipe clean, not of --recipe paper"
                )
        settings = PAPER_DEFAULTS.get(format, {"test_days": 1})
        days = None if options.no_test else options.test_days or settings["test_days"]
        options = replace(options, **{**settings, "test_days": days})
    return recipe, options
