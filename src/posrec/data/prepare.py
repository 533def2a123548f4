"""From a raw log to a prepared dataset: read, follow a recipe, number the items, write the folder whole."""

from dataclasses import asdict, fields, replace
from fractions import Fraction
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import polars as pl

import posrec
from posrec.data import recipes, steps
from posrec.data.columns import LogOptions
from posrec.data.dataset import ARRAYS, MANIFEST, SCHEMA, PreparedDataset, fingerprint, load
from posrec.data.items import ItemColumns, read_items
from posrec.data.readers import READERS, Reading
from posrec.data.recipes import Account, RecipeOptions
from posrec.data.sources import Source, find_files
from posrec.data.times import parse_duration
from posrec.data.vocabulary import FILE as VOCABULARY_FILE
from posrec.data.vocabulary import Vocabulary
from posrec.errors import InputError
from posrec.io import refuse_existing, whole_folder, write_array, write_json, write_text
from posrec.progress import Progress

RECIPES = {"paper": recipes.paper, "clean": recipes.clean}
VALIDATION_SHARE = 0.1
DEFAULT_GAP = "30m"
# The field's choices for its two datasets: days of test, whether clicks are sorted by time, how finely dates are read.
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

    `source` is a file, a glob or several; `format` one of READERS. `test` names the test part of a split made before;
    `items` a file about the items. `options` are the fields of LogOptions (session_column, item_column, time_column,
    event_column, events, delimiter, time_unit) and RecipeOptions (gap, test_days, test_share, fraction, min_support,
    min_length, drop_repeats, max_length).

    >>> data = prepare("clicks.csv", format="csv", out="shop", gap="30m")  # doctest: +SKIP
    """
    folder, progress = Path(out), progress or Progress()
    if format not in READERS:
        raise InputError(f"format {format!r} is not known; choose one of {', '.join(READERS)}")
    refuse_existing(folder, overwrite)
    log, wanted = sort_options(options)
    log.check(format)
    recipe, wanted = choose_recipe(recipe, format, wanted, given_test=test is not None)
    files, test_files = find_files(source), find_files(test) if test is not None else []
    about_items = read_items(Path(items), progress) if items is not None else None

    account = Account()
    if test is None:
        train, held_out = RECIPES[recipe](read_clicks(format, files, log, wanted, account, progress), wanted, account)
    else:
        train, held_out = (read_given(format, part, log, progress) for part in (files, test_files))
        train, held_out = recipes.given(train, held_out, wanted, account)
    manifest = {
        "schema": SCHEMA,
        "posrec": posrec.__version__,
        "source": [path.name for path in [*files, *test_files]],
        "format": format,
        "recipe": recipe,
        "options": {
            name: str(value) if isinstance(value, Fraction) else value for name, value in asdict(wanted).items()
        },
        "steps": account.as_json(),
    }
    write_dataset(folder, train, held_out, about_items, manifest, overwrite)
    data = load(folder)
    if about_items is not None:
        found = about_items.count(data.vocabulary.ids)
        progress.message(f"{items}: tells of {found:,} of {len(data.vocabulary):,} items")
    return data


def read_clicks(
    format: str, files: list[Path], log: LogOptions, options: RecipeOptions, account: Account, progress: Progress
) -> pl.DataFrame:
    """The log as grouped sessions; a log of users is cut into them."""
    reading = read_log(format, files, log, progress)
    gap = options.gap
    if reading.of_users and gap is None:
        gap = parse_duration(DEFAULT_GAP)
        progress.message(f"a log of users: cut into sessions at {DEFAULT_GAP} of silence (--gap)")
    clicks = steps.group_sessions(reading.clicks, options.by_time or gap is not None)
    account.note("read", clicks)
    if gap is not None:
        clicks = steps.cut_at_silence(clicks, gap)
        account.note(f"cut at {gap / 60_000:g} minutes of silence", clicks)
    return clicks


def read_given(format: str, files: list[Path], log: LogOptions, progress: Progress) -> pl.DataFrame:
    """One part of a split made before, as grouped sessions."""
    reading = read_log(format, files, log, progress)
    if reading.of_users:
        raise InputError(
            f"{files[0]} is a log of users; --test is for sessions, so leave it out and let --gap cut them"
        )
    return steps.group_sessions(reading.clicks)


def read_log(format: str, files: list[Path], log: LogOptions, progress: Progress) -> Reading:
    reading = READERS[format](files, log, progress)
    if not len(reading.clicks):
        raise InputError(f"{files[0]} holds no clicks: it is empty, or a header and nothing below it")
    return reading


def sort_options(options: dict[str, Any]) -> tuple[LogOptions, RecipeOptions]:
    """Options given by name -> what the reader and the recipe each want; spans and fractions may be text."""
    ours = {"by_time", "resolution"}  # set by the format, not by the user
    homes = [(kind, {field.name for field in fields(kind)} - ours) for kind in (LogOptions, RecipeOptions)]
    unknown = sorted(set(options) - homes[0][1] - homes[1][1])
    if unknown:
        raise TypeError(
            f"prepare() has no option {unknown[0]!r}; it has {', '.join(sorted(homes[0][1] | homes[1][1]))}"
        )
    options = {name: value for name, value in options.items() if value is not None}
    if isinstance(options.get("events"), str):
        options["events"] = [kind.strip() for kind in options["events"].split(",")]
    if isinstance(options.get("gap"), str):
        options["gap"] = parse_duration(options["gap"])
    if "fraction" in options:
        options["fraction"] = parse_fraction(options["fraction"])
    log, recipe = ({name: value for name, value in options.items() if name in names} for _, names in homes)
    return LogOptions(**log), RecipeOptions(**recipe).check()


def parse_fraction(value: str | float | Fraction) -> Fraction:
    try:
        return Fraction(value)
    except (ValueError, ZeroDivisionError, OverflowError):
        raise InputError(f"--fraction {value!r} is no fraction; write e.g. 1/64 or 0.25") from None


def choose_recipe(
    recipe: str | None, format: str, options: RecipeOptions, given_test: bool
) -> tuple[str, RecipeOptions]:
    """The recipe asked for or the format's own, with the field's settings where it is the paper's."""
    if given_test:
        untouched = replace(RecipeOptions(), min_length=options.min_length)
        if recipe is not None or options != untouched:
            raise InputError("--test gives a split that is kept as it is; of the recipe only --min-length can be set")
        return "given", options
    recipe = recipe or ("paper" if format in PAPER_DEFAULTS else "clean")
    if recipe not in RECIPES:
        raise InputError(f"recipe {recipe!r} is not known; choose one of {', '.join(RECIPES)}")
    if recipe == "paper":
        unfit = replace(RecipeOptions(), drop_repeats=options.drop_repeats, max_length=options.max_length,
                        test_share=options.test_share)  # fmt: skip
        if unfit != RecipeOptions():
            raise InputError(
                "--drop-repeats, --max-length and --test-share belong to --recipe clean; the paper's has none of them"
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
    """Number the items as training first meets them, then those of the test part alone; write the folder whole."""
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
    sessions_in = {part: len(arrays[f"{part}_times"]) for part in ("train", "test")}
    validation_start = sessions_in["train"] - max(1, round(VALIDATION_SHARE * sessions_in["train"]))
    with whole_folder(folder, overwrite) as unfinished:
        for name, kind in ARRAYS.items():
            write_array(unfinished / f"{name}.npy", arrays[name].astype(kind, copy=False))
        write_text(unfinished / VOCABULARY_FILE, vocabulary.to_json())
        manifest["validation_start"] = validation_start
        manifest["counts"] = {
            "clicks": len(ids),
            "train_samples": len(train) - sessions_in["train"],
            "test_samples": len(test) - sessions_in["test"],
            "train_sessions": sessions_in["train"],
            "test_sessions": sessions_in["test"],
            "items": len(names),
            "train_items": int(arrays["train_items"].max()),
        }
        manifest["fingerprint"] = fingerprint(unfinished, validation_start)
        write_json(unfinished / MANIFEST, manifest)
