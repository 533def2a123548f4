"""From a raw log to a prepared dataset: read, apply a recipe, number the items, write the folder."""

import time
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import asdict, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from posrec.config import parse_duration
from posrec.data.arrays import SCHEMA, WITHOUT_TIMES
from posrec.data.items import read_items
from posrec.data.prepare import recipes, steps
from posrec.data.prepare.memory import choose_workplace
from posrec.data.prepare.notices import (
    impossible_times,
    measure,
    notices,
    session_warnings,
)
from posrec.data.prepare.numbering import write_clicks
from posrec.data.prepare.options import (
    RecipeOptions,
    keeps_split,
    resolve_recipe,
    split_options,
)
from posrec.data.prepare.parts import ClickParts
from posrec.data.prepare.reading import read_log
from posrec.data.prepare.recipes import RECIPES, StepLog
from posrec.data.prepare.writer import dataset_writer
from posrec.data.source.log import TABLE, ClickLog, open_log
from posrec.data.source.readers.bad_lines import write_bad_lines
from posrec.data.source.readers.clicks import ItemIds, ParsedLog
from posrec.data.source.readers.options import as_tuple
from posrec.errors import InputError
from posrec.io import refuse_existing
from posrec.io.executor import LOCAL
from posrec.progress import Progress
from posrec.version import __version__

if TYPE_CHECKING:
    from posrec.data.dataset import PreparedDataset

DEFAULT_GAP = "30m"
GROUPING = "Grouping sessions"


def prepare(
    source: Any,
    format: str | None = None,
    out: str | Path | None = None,
    *,
    test: Any = None,
    items: Any = None,
    all_items: bool = False,
    recipe: str | None = None,
    overwrite: bool = False,
    engine: str = LOCAL,
    memory: str | int | None = None,
    address: str | None = None,
    progress: Progress | None = None,
    **options: Any,
) -> "PreparedDataset":
    """Turn a click log into a prepared dataset in the folder `out`, and open it.

    Arguments:
        source: The log: a path, a glob, a URL, a list of them, "-" for standard input; or a polars, pandas or Arrow
            table.
        format: The format of the log, a key of READERS; by default it is concluded from the file, and reported.
        out: The folder to create; it must be given.
        test: The test part of an existing split, which is kept as it is.
        items: A file or a table with a row per item, whose columns the vocabulary carries along.
        all_items: Whether items of it without enough clicks are part of the vocabulary too, so that a model can
            recommend them by their attributes (docs/training.md).
        recipe: "clean" or "paper"; by default the format's own.
        overwrite: Whether to replace a prepared dataset at `out`.
        engine: "local", in this process, or "ray", by a Ray cluster (docs/large_logs.md).
        memory: The memory to use, as "4GB" or in bytes; by default what is free. A larger log is prepared in parts.
        address: The address of a Ray cluster; by default a local one is started.
        progress: Receives messages and progress; by default messages are printed to standard error.
        options: The other options of the command (session_column, user_column, item_column, time_column,
            event_column, events, event_weights, target_events, delimiter, time_unit, time_format, bad_lines,
            bad_lines_limit, gap, test_days, test_share, no_test, fraction, min_support, min_length, drop_duplicates,
            max_session_clicks, drop_repeats, max_length), as text as there, or as values:
            `events=["view", "cart"]`, `event_weights={"view": 1, "cart": 3}`.

    Returns:
        The prepared dataset, as `posrec.load(out)` opens it.

    >>> import tempfile
    >>> import polars as pl
    >>> rows = [(f"s{n}", f"i{(n + step) % 4}", 1000 * n + step) for n in range(30) for step in range(3)]
    >>> table = pl.DataFrame(rows, schema=["session", "item", "time"], orient="row")
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     data = prepare(table, out=f"{folder}/shop", test_share=0.2)
    >>> data.train.sessions, data.test.sessions, data.vocabulary.ids
    (24, 6, ['i0', 'i1', 'i2', 'i3'])
    """
    given = {
        name: value
        for name, value in locals().items()
        if name not in ("options", "progress")
    }
    if out is None:
        raise TypeError("prepare() needs out, the folder to create")
    prepare_folder(**given, **options, progress=progress or Progress())
    from posrec.data.dataset import (
        load,
    )  # here, because it needs torch, which takes seconds to import

    return load(out)


def prepare_folder(
    source: Any,
    format: str | None,
    out: str | Path,
    *,
    test: Any,
    items: Any,
    all_items: bool,
    recipe: str | None,
    overwrite: bool,
    engine: str,
    memory: str | int | None,
    address: str | None,
    progress: Progress,
    **options: Any,
) -> dict[str, Any]:
    """As `prepare`, but returns the manifest without loading the dataset."""
    if all_items and items is None:
        raise InputError("--all-items needs --items, the file that lists all items")
    folder = Path(out)
    log_options, recipe_options = split_options(options)
    refuse_existing(folder, overwrite)
    with ExitStack() as opened:
        log = opened.enter_context(open_log(source, format, log_options, progress))
        if test is None and keeps_split(recipe, recipe_options):
            test = find_test_part(log, progress)
        chosen, recipe_options = resolve_recipe(
            recipe, log.format, recipe_options, given_test=test is not None
        )
        if log.concluded and recipe is None and chosen == "paper":
            progress.message(
                "recipe paper, as published (pass --recipe clean for a log of your own)"
            )
        logs = [log]
        if test is not None:
            test_format = None if log.format == TABLE else log.format
            logs.append(
                opened.enter_context(open_log(test, test_format, log.options, progress))
            )
        item_file = None if items is None else read_items(items)
        place = opened.enter_context(
            choose_workplace(logs, folder, engine, memory, address, progress)
        )
        ids = ItemIds()
        step_log = StepLog(progress)
        read = [read_log(part, ids, place, progress) for part in logs]
        parsed = [part.parsed for part in read]
        names = ids.names()
        clicks = [ClickParts(place, len(names), part.parts) for part in read]
        del read  # the clicks are used up step by step, and so is their memory
        about_items = None if item_file is None else item_file.by_id(names, progress)
        if log.format not in WITHOUT_TIMES:
            step_log.warn(
                impossible_times(
                    parsed[0].days, today=int(time.time() * 1000) // steps.DAY
                )
            )
        if test is None and parsed[0].by_user and recipe_options.gap is None:
            progress.message(
                f"clicks of users: split into sessions after {DEFAULT_GAP} of inactivity (--gap)"
            )
            recipe_options = replace(recipe_options, gap=parse_duration(DEFAULT_GAP))
        if test is None:
            grouped = group_into_sessions(
                clicks[0],
                as_tuple(log.options.session_column),
                recipe_options,
                step_log,
            )
            train, test_part = RECIPES[chosen](grouped, recipe_options, step_log)
        else:
            refuse_users(logs, parsed)
            train, given_test = (
                part.map(steps.group_sessions, work=GROUPING) for part in clicks
            )
            train, test_part = recipes.keep_split(
                train, given_test, recipe_options, step_log
            )
        manifest = describe(logs, parsed, chosen, recipe_options, step_log)
        with dataset_writer(folder, overwrite) as writer:
            vocabulary, recommendable = write_clicks(
                writer, train, test_part, names, about_items, manifest, all_items
            )
            manifest = writer.finish(vocabulary, manifest, recommendable)
        bad_lines_file = folder.with_name(f"{folder.name}.bad-lines.jsonl")
        if write_bad_lines(
            bad_lines_file, [file for part in parsed for file in part.bad_lines.files]
        ):
            progress.message(f"the lines that were left out are in {bad_lines_file}")
    if about_items is not None:
        described = about_items["id"].is_in(vocabulary.ids).sum()
        progress.message(
            f"{item_file}: describes {described:,} of {len(vocabulary):,} items"
        )
    for notice in notices(manifest, recipe_options):
        progress.message(notice)
    return manifest


def find_test_part(log: ClickLog, progress: Progress) -> Path | None:
    """The test part beside a log, if it is the training part of a prepared split."""
    test = log.test_part_beside()
    if test is not None:
        progress.message(
            f"{test.name}: read as the test part, and the split kept (pass --test for another)"
        )
    return test


def refuse_users(logs: Sequence[ClickLog], parsed: Sequence[ParsedLog]) -> None:
    """Raise if a part of an existing split is yet to be split into sessions."""
    for log, found in zip(logs, parsed, strict=True):
        if found.by_user:
            raise InputError(
                f"{log.name} is a log of users, and --test is for logs of sessions; leave --test out and use --gap"
            )


def describe(
    logs: Sequence[ClickLog],
    parsed: Sequence[ParsedLog],
    recipe: str,
    options: RecipeOptions,
    step_log: StepLog,
) -> dict[str, Any]:
    """The manifest, without what its writer adds."""
    log = logs[0]
    recipe_options = asdict(options)
    if options.fraction is not None:
        recipe_options["fraction"] = str(options.fraction)
    return {
        "schema": SCHEMA,
        "posrec": __version__,
        "source": [path.name for part in logs for path in part.files] or [TABLE],
        "format": log.format,
        "recipe": recipe,
        "options": recipe_options,
        "log": {
            "events": parsed[0].kinds.ordered(),
            "event_weights": dict(log.options.event_weights),
            "target_events": list(log.options.target_events),
            "bad_lines": sum(part.bad_lines.count for part in parsed),
        },
        "steps": step_log.steps,
        "warnings": step_log.warnings,
    }


def group_into_sessions(
    clicks: ClickParts,
    session_columns: Sequence[str],
    options: RecipeOptions,
    step_log: StepLog,
) -> ClickParts:
    """The clicks grouped by session; those of users are split into sessions first."""
    gap = options.gap
    group = partial(steps.group_sessions, by_time=options.by_time or gap is not None)
    measured = partial(measure, gap=gap, max_clicks=options.max_session_clicks)
    clicks = clicks.map(group, work=GROUPING, measure=measured)
    step_log.warn(session_warnings(clicks.measured, gap, session_columns))
    step_log.record("read", clicks)
    if gap is not None:
        clicks = clicks.map(partial(steps.cut_at_inactivity, gap=gap))
        step_log.record(f"split after {gap / 60_000:g} minutes of inactivity", clicks)
    return clicks
