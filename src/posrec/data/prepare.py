"""From a raw log to a prepared dataset: read the log, apply a recipe, number the items, write the folder."""

from contextlib import ExitStack
from dataclasses import asdict
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
from posrec.data.log import TABLE, Log, lasting_sessions, open_log
from posrec.data.prepare_options import RECIPES, resolve_recipe, split_options
from posrec.data.readers.bad_lines import write_bad_lines
from posrec.data.readers.clicks import ParsedLog
from posrec.data.readers.times import parse_duration
from posrec.data.recipes import RecipeOptions, StepLog
from posrec.data.vocabulary import Vocabulary
from posrec.errors import InputError
from posrec.io import refuse_existing
from posrec.progress import Progress

DEFAULT_GAP = "30m"
FEW_SAMPLES = 1000  # below which a notice is printed


def prepare(
    source: Any,
    format: str | None = None,
    out: str | Path | None = None,
    *,
    test: Any = None,
    items: str | Path | None = None,
    all_items: bool = False,
    recipe: str | None = None,
    overwrite: bool = False,
    progress: Progress | None = None,
    **options: Any,
) -> PreparedDataset:
    """Turn a click log into a prepared dataset in the folder `out`, and open it.

    Arguments:
        source: The log: a path, a glob, a list of them, "-" for standard input; or a polars, pandas or Arrow table.
        format: The format of the log, a key of READERS; by default it is concluded from the file, and reported.
        out: The folder to create; it must be given.
        test: The test part of an existing split, which is kept as it is.
        items: A file with a row per item, whose columns the vocabulary carries along.
        all_items: Whether items of that file without enough clicks are part of the vocabulary too, so that a model can
            recommend them by their attributes (docs/nightly.md).
        recipe: "clean" or "paper"; by default the format's own.
        overwrite: Whether to replace a prepared dataset at `out`.
        progress: Receives messages and progress; by default messages are printed to standard error.
        options: The fields of LogOptions (session_column, user_column, item_column, time_column, event_column, events,
            event_weights, target_events, delimiter, time_unit, time_format, bad_lines, bad_lines_limit) and
            RecipeOptions (gap, test_days, test_share, no_test, fraction, min_support, min_length, drop_repeats,
            max_length). They have the meaning of the command's options; lists and weights may be given as text, as
            there, or as `events=["view", "cart"]` and `event_weights={"view": 1, "cart": 3}`.

    Returns:
        The prepared dataset, as `posrec.load(out)` opens it.

    >>> import tempfile
    >>> rows = [(f"s{n}", f"i{(n + step) % 4}", 1000 * n + step) for n in range(30) for step in range(3)]
    >>> table = pl.DataFrame(rows, schema=["session", "item", "time"], orient="row")
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     data = prepare(table, out=f"{folder}/shop", test_share=0.2)
    >>> data.train.sessions, data.test.sessions, data.vocabulary.ids
    (24, 6, ['i0', 'i1', 'i2', 'i3'])
    """
    if out is None:
        raise TypeError("prepare() needs out, the folder to create")
    if all_items and items is None:
        raise InputError("--all-items needs --items, the file that lists all items")
    folder, progress = Path(out), progress or Progress()
    given_options, recipe_options = split_options(options)
    refuse_existing(folder, overwrite)
    with ExitStack() as opened:
        log = opened.enter_context(open_log(source, format, given_options, progress))
        chosen, recipe_options = resolve_recipe(recipe, log.format, recipe_options, given_test=test is not None)
        if log.concluded and recipe is None and chosen == "paper":
            progress.message("recipe paper, as published (pass --recipe clean for a log of your own)")
        test_format = None if log.format == TABLE else log.format
        held_out = None if test is None else opened.enter_context(open_log(test, test_format, given_options, progress))
        about_items = read_items(Path(items), progress) if items is not None else None
        step_log = StepLog()
        parsed = [part.read(progress) for part in (log, held_out) if part is not None]
        if held_out is None:
            clicks = group_into_sessions(parsed[0], log, recipe_options, step_log, progress)
            train, test_part = RECIPES[chosen](clicks, recipe_options, step_log)
        else:
            train, test_part = split_part(parsed[0], log), split_part(parsed[1], held_out)
            train, test_part = recipes.keep_split(train, test_part, recipe_options, step_log)
    manifest = {
        "schema": SCHEMA,
        "posrec": posrec.__version__,
        "source": [path.name for part in (log, held_out) if part is not None for path in part.files] or [TABLE],
        "format": log.format,
        "recipe": chosen,
        "options": {
            name: str(value) if isinstance(value, Fraction) else value for name, value in asdict(recipe_options).items()
        },
        "log": {
            "events": parsed[0].events,
            "event_weights": dict(log.options.event_weights),
            "target_events": list(log.options.target_events),
            "bad_lines": sum(one.bad_lines.count for one in parsed),
        },
        "steps": step_log.as_json(),
    }
    write_dataset(folder, train, test_part, about_items, manifest, overwrite, all_items)
    bad_lines_file = folder.with_name(f"{folder.name}.bad-lines.jsonl")
    if write_bad_lines(bad_lines_file, [one.bad_lines for one in parsed]):
        progress.message(f"the lines that were left out are in {bad_lines_file}")
    data = load(folder)
    if about_items is not None:
        found = about_items.count(data.vocabulary.ids)
        progress.message(f"{items}: describes {found:,} of {len(data.vocabulary):,} items")
    if len(data.train) < FEW_SAMPLES:
        progress.message(few_samples(data, recipe_options))
    return data


def group_into_sessions(
    parsed: ParsedLog, log: Log, options: RecipeOptions, step_log: StepLog, progress: Progress
) -> pl.DataFrame:
    """The clicks of a log, grouped by session. The clicks of users are split into sessions first."""
    gap = options.gap
    if parsed.by_user and gap is None:
        gap = parse_duration(DEFAULT_GAP)
        progress.message(f"a log of users: split into sessions after {DEFAULT_GAP} of inactivity (--gap)")
    clicks = steps.group_sessions(parsed.clicks, options.by_time or gap is not None)
    step_log.record("read", clicks)
    if gap is not None:
        clicks = steps.cut_at_inactivity(clicks, gap)
        step_log.record(f"split after {gap / 60_000:g} minutes of inactivity", clicks)
    elif warning := lasting_sessions(clicks, log):
        progress.message(warning)
    return clicks


def split_part(parsed: ParsedLog, log: Log) -> pl.DataFrame:
    """One part of an existing split, as grouped sessions."""
    if parsed.by_user:
        raise InputError(
            f"{log.name} is a log of users, and --test is for logs of sessions; leave --test out and use --gap"
        )
    return steps.group_sessions(parsed.clicks)


def few_samples(data: PreparedDataset, options: RecipeOptions) -> str:
    """What to say about a small dataset: how small it is, and what to change."""
    removed = max(data.manifest["steps"], key=lambda step: int(step["removed_clicks"]))
    advice = "use a longer log"
    if data.manifest["log"]["target_events"]:
        advice += ", name more kinds with --target-events"
    if removed["removed_clicks"]:
        advice += (f", or lower --min-support (now {options.min_support}) or --min-length (now {options.min_length}): "
                   f"the step '{removed['step']}' removed {removed['removed_clicks']:,} clicks")  # fmt: skip
    count = "1 training sample is" if len(data.train) == 1 else f"{len(data.train):,} training samples are"
    return f"only {count} left, and most models need at least {FEW_SAMPLES:,}; {advice}"


def write_dataset(
    folder: Path,
    train: pl.DataFrame,
    test: pl.DataFrame | None,
    about_items: ItemColumns | None,
    manifest: dict[str, Any],
    overwrite: bool,
    all_items: bool = False,
) -> None:
    """Number the items in order of appearance, those of training first, and write the folder.

    With `all_items` the other items of the items file come next, and those of the test part alone come last.
    """
    test = train.clear() if test is None else test
    ids = pl.concat([train["item"], test["item"]])
    numbers, first = steps.number_by_appearance(steps.category_codes(ids))
    numbers += 1
    names = ids[first].cast(pl.String).to_list()
    recommendable = None
    if all_items and about_items is not None:
        in_training = int(numbers[: len(train)].max())
        clicked, others = set(names[:in_training]), about_items.rows["id"].to_list()
        listed = dict.fromkeys([*names[:in_training], *(item for item in others if item not in clicked)])
        recommendable = len(listed)
        places = {item: place for place, item in enumerate(dict.fromkeys([*listed, *names]), start=1)}
        numbers = np.array([0, *(places[item] for item in names)], dtype=numbers.dtype)[numbers]
        names = list(places)
    vocabulary = Vocabulary(names, about_items.of(names) if about_items else None)
    arrays: dict[str, npt.NDArray[Any]] = {}
    for part, clicks, items in (("train", train, numbers[: len(train)]), ("test", test, numbers[len(train) :])):
        sessions = clicks.group_by("session", maintain_order=True).agg(pl.len(), pl.col("time").min())
        arrays[f"{part}_items"] = items
        arrays[f"{part}_offsets"] = np.concatenate([[0], np.cumsum(sessions["len"].to_numpy(), dtype=np.int64)])
        arrays[f"{part}_times"] = sessions["time"].to_numpy()
        if "target" in clicks.columns:
            arrays[f"{part}_targets"] = target_clicks(part, clicks, manifest["log"]["target_events"])
    if "weight" in train.columns:
        arrays["train_weights"] = train["weight"].to_numpy()
    save_dataset(folder, arrays, vocabulary, manifest, overwrite, recommendable)


def target_clicks(part: str, clicks: pl.DataFrame, kinds: list[str]) -> npt.NDArray[np.int64]:
    """[samples] the clicks that are targets: of the kinds that were asked for, and not the first of their session."""
    follows = (pl.col("session") == pl.col("session").shift()).fill_null(False)
    targets = clicks.select(pl.col("target") & follows).to_series().arg_true().to_numpy().astype(np.int64)
    if not len(targets) and len(clicks):
        raise InputError(
            f"nothing is left to {part} on: no {part} session has {' or '.join(kinds)} after its first click "
            "(--target-events); use a longer log, or another --test-days"
        )
    return targets
