"""PrepareOptions: the options of `posrec prepare`, built once by the command and by Python alike.

options = PrepareOptions.parse(format="csv", gap="30m", min_support=3)
prepare_folder("clicks.csv", Path("shop"), options, progress)
"""

from collections.abc import Callable
from dataclasses import dataclass, fields, replace
from fractions import Fraction
from typing import Any, TypeVar, get_type_hints

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
from posrec.io.executor import LOCAL

Options = TypeVar("Options", LogOptions, "RecipeOptions")

MAX_DAYS = 1_000_000
RECIPE_NAMES = ("paper", "clean")
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
    "yoochoose": {"test_days": 1, "by_time": False, "resolution": SECOND},
    "diginetica": {"test_days": 7, "by_time": True, "resolution": DAY},
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

    def check(self) -> None:
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
    all_items: bool = False
    recipe: str | None = None
    overwrite: bool = False
    engine: str = LOCAL
    memory: str | int | None = None
    address: str | None = None

    @classmethod
    def parse(cls, **options: Any) -> "PrepareOptions":
        """Build it from options by name, as the command line and `posrec.prepare` have them."""
        if options.get("all_items") and options.get("items") is None:
            raise InputError("--all-items needs --items, the file that lists all items")
        names = {field.name for field in fields(cls)}
        direct = {name: options.pop(name) for name in names & options.keys()}
        return cls(*split_options(options), **direct)

    @property
    def keeps_split(self) -> bool:
        """Whether no option asks for a change of an existing split."""
        unchanged = RecipeOptions(min_length=self.recipe_options.min_length)
        return self.recipe is None and self.recipe_options == unchanged


def split_options(options: dict[str, Any]) -> tuple[LogOptions, RecipeOptions]:
    """Parse and check the options of the log and of the recipe. Every value may be text."""
    kinds = {**get_type_hints(LogOptions), **get_type_hints(RecipeOptions)}
    set_by_format = {"by_time", "resolution"}
    names = sorted(kinds.keys() - set_by_format)
    if unknown := sorted(options.keys() - names):
        raise TypeError(
            f"prepare() has no option {unknown[0]!r}; it has {', '.join(names)}"
        )
    values = {}
    for name, value in options.items():
        if value is None:
            continue
        if isinstance(value, str) and name in PARSERS:
            value = PARSERS[name](value)
        elif name == "fraction":
            value = parse_fraction(value)
        values[name] = parse(name, value, kinds[name])
    recipe_options = choose(RecipeOptions, values)
    recipe_options.check()
    return choose(LogOptions, values), recipe_options


def choose(dataclass: type[Options], values: dict[str, Any]) -> Options:
    """A dataclass made of those values that it has a field for."""
    names = {field.name for field in fields(dataclass)} & values.keys()
    return dataclass(**{name: values[name] for name in names})


def parse_fraction(value: str | float) -> Fraction:
    try:
        return Fraction(value)
    except (ValueError, ZeroDivisionError, OverflowError):
        raise InputError(
            f"--fraction {value!r} is not a fraction; write e.g. 1/64 or 0.25"
        ) from None


PARSERS: dict[str, Callable[[str], Any]] = {
    "gap": parse_duration,
    "fraction": parse_fraction,
    "events": split_commas,
    "target_events": split_commas,
    "event_weights": parse_weights,
}


def resolve_recipe(
    options: PrepareOptions, format: str, has_test: bool
) -> PrepareOptions:
    """The options with the recipe that the format has if none was named, and its defaults.

    `has_test` says that the log is the training part of an existing split.
    """
    if has_test:
        if not options.keeps_split:
            raise InputError(
                "--test names an existing split, which is kept as it is; "
                "of the recipe only --min-length can be set"
            )
        return replace(options, recipe=GIVEN)
    recipe_options = options.recipe_options
    if recipe_options.test_days is not None and format in WITHOUT_TIMES:
        raise InputError(
            f"--test-days needs times, and a log of the format {format} has none; "
            "use --test-share"
        )
    recipe = options.recipe or ("paper" if format in PAPER_DEFAULTS else "clean")
    if recipe not in RECIPE_NAMES:
        raise InputError(
            f"recipe {recipe!r} is not known; choose one of {', '.join(RECIPE_NAMES)}"
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
    defaults = dict(PAPER_DEFAULTS.get(format, {"test_days": 1}))
    if options.no_test:
        defaults["test_days"] = None
    elif options.test_days is not None:
        defaults["test_days"] = options.test_days
    return replace(options, **defaults)
