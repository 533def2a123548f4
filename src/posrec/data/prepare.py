"""From a raw log to a prepared dataset: read the log, apply a recipe, number the items, write the folder."""

from dataclasses import asdict, fields, replace
from fractions import Fraction
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import polars as pl

import posrec
from posrec.data import recipes, steps
from posrec.data.dataset import SCHEMA, PreparedDataset, load, save_dataset
from posrec.data.items import ItemColumns, read_items
from posrec.data.readers import READERS
from posrec.data.readers.clicks import ParsedLog
from posrec.data.readers.columns import LogOptions
from posrec.data.readers.times import parse_duration
from posrec.data.recipes import RecipeOptions, StepLog
from posrec.data.sources import Source, find_files
from posrec.data.vocabulary import Vocabulary
from posrec.errors import InputError
from posrec.io import refuse_existing
from posrec.progress import Progress

RECIPES = {"paper": recipes.paper, "clean": recipes.clean}
DEFAULT_GAP = "30m"
# How the field prepares its two datasets: days of the test part, whether a session's clicks are sorted by time, and
# the resolution of dates.
PAPER_DEFAULTS: dict[str, dict[str, Any]] = {
    "yoochoose": {"test_days": 1, "by_time": False, "resolution": recipes.SECOND},
    "diginetica": {"test_days": 7, "by_time": True, "resolution": steps.DAY},
}


def prepare(
    source: Source,
    format: str,
    out: str | Path,
    *,
    test: Source | None = None,
    items: str | Path | None = None,
    recipe: str | None = None,
    overwrite: bool = False,
    progress: Progress | None = None,
    **options: Any,
) -> PreparedDataset:
    """Turn a click log into a prepared dataset in the folder `out`, and open it.

    Arguments:
        source: The log: a path, a glob, or a list of them.
        format: The format of the log, a key of READERS.
        out: The folder to create.
        test: The test part of an existing split, which is kept as it is.
        items: A file with a row per item, whose columns the vocabulary carries along.
        recipe: "clean" or "paper"; by default the format's own.
        overwrite: Whether to replace a prepared dataset at `out`.
        progress: Receives messages and progress; by default messages are printed to standard error.
        options: The fields of LogOptions (session_column, item_column, time_column, event_column, events, delimiter,
            time_unit) and RecipeOptions (gap, test_days, test_share, fraction, min_support, min_length, drop_repeats,
            max_length).

    Returns:
        The prepared dataset, as `posrec.load(out)` opens it.

    >>> data = prepare("clicks.csv", format="csv", out="shop", gap="30m")  # doctest: +SKIP
    """
    folder, progress = Path(out), progress or Progress()
    if format not in READERS:
        raise InputError(f"format {format!r} is not known; choose one of {', '.join(READERS)}")
    refuse_existing(folder, overwrite)
    log_options, recipe_options = split_options(options)
    log_options.check(format)
    recipe, recipe_options = resolve_recipe(recipe, format, recipe_options, given_test=test is not None)
    files, test_files = find_files(source), find_files(test) if test is not None else []
    about_items = read_items(Path(items), progress) if items is not None else None

    step_log = StepLog()
    if test is None:
        clicks = read_log_of_sessions(format, files, log_options, recipe_options, step_log, progress)
        train, held_out = RECIPES[recipe](clicks, recipe_options, step_log)
    else:
        train, held_out = (read_split_part(format, part, log_options, progress) for part in (files, test_files))
        train, held_out = recipes.keep_split(train, held_out, recipe_options, step_log)
    manifest = {
        "schema": SCHEMA,
        "posrec": posrec.__version__,
        "source": [path.name for path in [*files, *test_files]],
        "format": format,
        "recipe": recipe,
        "options": {
            name: str(value) if isinstance(value, Fraction) else value for name, value in asdict(recipe_options).items()
        },
        "steps": step_log.as_json(),
    }
    write_dataset(folder, train, held_out, about_items, manifest, overwrite)
    data = load(folder)
    if about_items is not None:
        found = about_items.count(data.vocabulary.ids)
        progress.message(f"{items}: describes {found:,} of {len(data.vocabulary):,} items")
    return data


def read_log_of_sessions(
    format: str,
    files: list[Path],
    log_options: LogOptions,
    recipe_options: RecipeOptions,
    step_log: StepLog,
    progress: Progress,
) -> pl.DataFrame:
    """The log as grouped sessions. The clicks of users are split into sessions first."""
    parsed = read_log(format, files, log_options, progress)
    gap = recipe_options.gap
    if parsed.by_user and gap is None:
        gap = parse_duration(DEFAULT_GAP)
        progress.message(f"a log of users: split into sessions after {DEFAULT_GAP} of inactivity (--gap)")
    clicks = steps.group_sessions(parsed.clicks, recipe_options.by_time or gap is not None)
    step_log.record("read", clicks)
    if gap is not None:
        clicks = steps.cut_at_inactivity(clicks, gap)
        step_log.record(f"split after {gap / 60_000:g} minutes of inactivity", clicks)
    return clicks


def read_split_part(format: str, files: list[Path], log_options: LogOptions, progress: Progress) -> pl.DataFrame:
    """One part of an existing split, as grouped sessions."""
    parsed = read_log(format, files, log_options, progress)
    if parsed.by_user:
        raise InputError(
            f"{files[0]} is a log of users, and --test is for logs of sessions; leave --test out and use --gap"
        )
    return steps.group_sessions(parsed.clicks)


def read_log(format: str, files: list[Path], log_options: LogOptions, progress: Progress) -> ParsedLog:
    parsed = READERS[format](files, log_options, progress)
    if not len(parsed.clicks):
        raise InputError(f"{files[0]} holds no clicks: it is empty, or has nothing below its header")
    return parsed


def split_options(options: dict[str, Any]) -> tuple[LogOptions, RecipeOptions]:
    """Split options given by name into those of the log and of the recipe; durations and fractions may be text."""
    internal = {"by_time", "resolution"}  # set by the format, not by the user
    log_names, recipe_names = (
        {field.name for field in fields(kind)} - internal for kind in (LogOptions, RecipeOptions)
    )
    unknown = sorted(set(options) - log_names - recipe_names)
    if unknown:
        raise TypeError(f"prepare() has no option {unknown[0]!r}; it has {', '.join(sorted(log_names | recipe_names))}")
    options = {name: value for name, value in options.items() if value is not None}
    if isinstance(options.get("events"), str):
        options["events"] = [kind.strip() for kind in options["events"].split(",")]
    if isinstance(options.get("gap"), str):
        options["gap"] = parse_duration(options["gap"])
    if "fraction" in options:
        options["fraction"] = parse_fraction(options["fraction"])
    log, recipe = (
        {name: value for name, value in options.items() if name in names} for names in (log_names, recipe_names)
    )
    return LogOptions(**log), RecipeOptions(**recipe).check()


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
        options = replace(options, **{**settings, "test_days": options.test_days or settings["test_days"]})
    return recipe, options


def write_dataset(
    folder: Path,
    train: pl.DataFrame,
    test: pl.DataFrame,
    about_items: ItemColumns | None,
    manifest: dict[str, Any],
    overwrite: bool,
) -> None:
    """Number the items in order of appearance, those of training first, and write the folder."""
    ids = pl.concat([train["item"], test["item"]])
    numbers, first = steps.number_by_appearance(steps.category_codes(ids))
    numbers += 1
    names = ids[first].cast(pl.String).to_list()
    vocabulary = Vocabulary(names, about_items.of(names) if about_items else None)
    arrays: dict[str, npt.NDArray[Any]] = {}
    for part, clicks, items in (("train", train, numbers[: len(train)]), ("test", test, numbers[len(train) :])):
        sessions = clicks.group_by("session", maintain_order=True).agg(pl.len(), pl.col("time").min())
        arrays[f"{part}_items"] = items
        arrays[f"{part}_offsets"] = np.concatenate([[0], np.cumsum(sessions["len"].to_numpy(), dtype=np.int64)])
        arrays[f"{part}_times"] = sessions["time"].to_numpy()
    save_dataset(folder, arrays, vocabulary, manifest, overwrite)
