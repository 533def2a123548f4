"""The options of `posrec prepare`, by name: those of the log, those of the recipe, and which recipe it is."""

from collections.abc import Callable
from dataclasses import dataclass, fields, replace
from fractions import Fraction
from typing import Any, get_type_hints

from posrec.config import parse, parse_duration
from posrec.data.arrays import WITHOUT_TIMES
from posrec.data.prepare.steps import DAY, SECOND
from posrec.data.source.readers.options import LogOptions, option_name, parse_weights, split_commas
from posrec.errors import InputError

MAX_DAYS = 1_000_000
RECIPE_NAMES = ("paper", "clean")
CLEAN_ONLY = ("drop_duplicates", "max_session_clicks", "drop_repeats", "max_length", "test_share")
# How the field prepares its two datasets: days of the test part, whether a session's clicks are sorted by time, and
# the resolution of dates.
PAPER_DEFAULTS: dict[str, dict[str, Any]] = {
    "yoochoose": {"test_days": 1, "by_time": False, "resolution": SECOND},
    "diginetica": {"test_days": 7, "by_time": True, "resolution": DAY},
}


@dataclass(frozen=True)
class RecipeOptions:
    """The options of a recipe. None leaves a step out, or leaves the value to the recipe's own default."""

    gap: int | None = None  # split a user's clicks into sessions after this many milliseconds of inactivity
    test_days: float | None = None
    no_test: bool = False  # every session is for training
    test_share: float = 0.1  # clean: the share of sessions to test on if test_days is not given
    fraction: Fraction | None = None  # train on the most recent part of the samples only
    min_support: int = 5
    min_length: int = 2
    drop_duplicates: bool = False
    max_session_clicks: int | None = None  # sessions with more are dropped
    drop_repeats: bool = False
    max_length: int | None = None
    by_time: bool = True  # paper: order the clicks of a session by time instead of keeping the file's order
    resolution: int = SECOND  # paper: a session's date is rounded down to this many milliseconds

    def check(self) -> "RecipeOptions":
        """Refuse values outside the allowed range."""
        days = f"more than 0 and at most {MAX_DAYS:,} days"
        shortest = max(2, self.min_length)
        allowed = {
            "gap": (self.gap is None or 0 < self.gap <= MAX_DAYS * DAY, days),
            "test_days": (self.test_days is None or 0 < self.test_days <= MAX_DAYS, days),
            "test_share": (0 < self.test_share < 1, "more than 0 and less than 1"),
            "fraction": (self.fraction is None or 0 < self.fraction <= 1, "more than 0 and at most 1"),
        }
        lowest = {"min_support": 1, "min_length": 2, "max_session_clicks": shortest, "max_length": shortest}
        for name, bound in lowest.items():
            allowed[name] = (getattr(self, name) is None or getattr(self, name) >= bound, f"at least {bound}")
        if self.no_test and (self.test_days is not None or self.test_share != RecipeOptions.test_share):
            raise InputError("--no-test leaves no test part, so --test-days and --test-share can't be used with it")
        for name, (fine, range_) in allowed.items():
            if not fine:
                value = getattr(self, name)
                shown = f"{value / DAY:g} days" if name == "gap" else value
                raise InputError(f"{option_name(name)} must be {range_}, not {shown}")
        return self


def split_options(options: dict[str, Any]) -> tuple[LogOptions, RecipeOptions]:
    """Options given by name: those of the log and those of the recipe. Every value may be text, as on the command line:
    lists separated by commas, and weights such as `view=1,cart=3`."""
    kinds = {**get_type_hints(LogOptions), **get_type_hints(RecipeOptions)}
    names = sorted(kinds.keys() - {"by_time", "resolution"})  # these are set by the format
    if unknown := sorted(options.keys() - names):
        raise TypeError(f"prepare() has no option {unknown[0]!r}; it has {', '.join(names)}")
    given = {
        name: PARSERS[name](value) if name in PARSERS and isinstance(value, str) else parse(name, value, kinds[name])
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
        raise InputError(f"--fraction {value!r} is not a fraction; write e.g. 1/64 or 0.25") from None


PARSERS: dict[str, Callable[[str], Any]] = {
    "gap": parse_duration,
    "events": split_commas,
    "target_events": split_commas,
    "event_weights": parse_weights,
}


def keeps_split(recipe: str | None, options: RecipeOptions) -> bool:
    """Whether nothing was asked of the recipe that would change an existing split."""
    return recipe is None and options == replace(RecipeOptions(), min_length=options.min_length)


def resolve_recipe(
    recipe: str | None, format: str, options: RecipeOptions, given_test: bool
) -> tuple[str, RecipeOptions]:
    """The recipe that was asked for, or the format's own; the paper's recipe gets the settings of the field."""
    if given_test:
        if not keeps_split(recipe, options):
            raise InputError(
                "--test names an existing split, which is kept as it is; of the recipe only --min-length can be set"
            )
        return "given", options
    if options.test_days is not None and format in WITHOUT_TIMES:
        raise InputError(f"--test-days needs times, and a log of the format {format} has none; use --test-share")
    recipe = recipe or ("paper" if format in PAPER_DEFAULTS else "clean")
    if recipe not in RECIPE_NAMES:
        raise InputError(f"recipe {recipe!r} is not known; choose one of {', '.join(RECIPE_NAMES)}")
    if recipe == "paper":
        default = RecipeOptions()
        for name in CLEAN_ONLY:
            if getattr(options, name) != getattr(default, name):
                raise InputError(f"{option_name(name)} is an option of --recipe clean, not of --recipe paper")
        settings = PAPER_DEFAULTS.get(format, {"test_days": 1})
        days = None if options.no_test else options.test_days or settings["test_days"]
        options = replace(options, **{**settings, "test_days": days})
    return recipe, options
