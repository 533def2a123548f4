"""The options of `posrec prepare`, by name: those of the log, those of the recipe, and the recipe itself."""

from dataclasses import fields, replace
from fractions import Fraction
from typing import Any, get_type_hints

from posrec.config import parse
from posrec.data.arrays import WITHOUT_TIMES
from posrec.data.prepare import recipes, steps
from posrec.data.prepare.recipes import RecipeOptions
from posrec.data.source.readers.options import LogOptions
from posrec.data.source.readers.times import parse_duration
from posrec.errors import InputError

RECIPES = {"paper": recipes.paper, "clean": recipes.clean}
# How the field prepares its two datasets: days of the test part, whether a session's clicks are sorted by time, and
# the resolution of dates.
PAPER_DEFAULTS: dict[str, dict[str, Any]] = {
    "yoochoose": {"test_days": 1, "by_time": False, "resolution": recipes.SECOND},
    "diginetica": {"test_days": 7, "by_time": True, "resolution": steps.DAY},
}


def split_options(options: dict[str, Any]) -> tuple[dict[str, Any], RecipeOptions]:
    """Split options given by name into those of the log and of the recipe. Every value may be text, as on
    the command line."""
    internal = {"by_time", "resolution"}  # set by the format, not by the user
    log_names, recipe_names = (
        {field.name for field in fields(kind)} - internal for kind in (LogOptions, RecipeOptions)
    )
    unknown = sorted(set(options) - log_names - recipe_names)
    if unknown:
        raise TypeError(f"prepare() has no option {unknown[0]!r}; it has {', '.join(sorted(log_names | recipe_names))}")
    options = {name: value for name, value in options.items() if value is not None}
    if isinstance(options.get("gap"), str):
        options["gap"] = parse_duration(options["gap"])
    if "fraction" in options:
        options["fraction"] = parse_fraction(options["fraction"])
    log, recipe = (
        {name: value for name, value in options.items() if name in names} for names in (log_names, recipe_names)
    )
    kinds = get_type_hints(RecipeOptions)
    return log, RecipeOptions(**{name: parse(name, value, kinds[name]) for name, value in recipe.items()}).check()


def parse_fraction(value: str | float | Fraction) -> Fraction:
    try:
        return Fraction(value)
    except (ValueError, ZeroDivisionError, OverflowError):
        raise InputError(f"--fraction {value!r} is not a fraction; write e.g. 1/64 or 0.25") from None


def resolve_recipe(
    recipe: str | None, format: str, options: RecipeOptions, given_test: bool
) -> tuple[str, RecipeOptions]:
    """The recipe that was asked for, or the format's own; the paper's recipe gets the settings of the field."""
    if given_test:
        untouched = replace(RecipeOptions(), min_length=options.min_length)
        if recipe is not None or options != untouched:
            raise InputError(
                "--test names an existing split, which is kept as it is; of the recipe only --min-length can be set"
            )
        return "given", options
    if options.test_days is not None and format in WITHOUT_TIMES:
        raise InputError(f"--test-days needs times, and a log of the format {format} has none; use --test-share")
    recipe = recipe or ("paper" if format in PAPER_DEFAULTS else "clean")
    if recipe not in RECIPES:
        raise InputError(f"recipe {recipe!r} is not known; choose one of {', '.join(RECIPES)}")
    if recipe == "paper":
        not_in_paper = replace(RecipeOptions(), drop_repeats=options.drop_repeats, max_length=options.max_length,
                        test_share=options.test_share)  # fmt: skip
        if not_in_paper != RecipeOptions():
            raise InputError(
                "--drop-repeats, --max-length and --test-share are options of --recipe clean, not of --recipe paper"
            )
        settings = PAPER_DEFAULTS.get(format, {"test_days": 1})
        days = None if options.no_test else options.test_days or settings["test_days"]
        options = replace(options, **{**settings, "test_days": days})
    return recipe, options
