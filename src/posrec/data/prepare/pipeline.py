"""From a raw log to a prepared dataset: read it, apply a recipe, number the items, write them."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from posrec.data.arrays import SCHEMA, WITHOUT_TIMES
from posrec.data.item_times import item_times
from posrec.data.items import read_items
from posrec.data.prepare import notices, recipes, steps
from posrec.data.prepare.latest import latest_hours
from posrec.data.prepare.memory import choose_workplace
from posrec.data.prepare.numbering import write_clicks
from posrec.data.prepare.options import PrepareOptions, RecipeOptions
from posrec.data.prepare.parts import ClickParts
from posrec.data.prepare.reading import ReadLogs, read_logs
from posrec.data.prepare.writer import dataset_writer
from posrec.data.source.file_columns import warn_of_unused
from posrec.data.source.log import TABLE, ClickLog, open_log
from posrec.data.source.readers.bad_lines import write_bad_lines
from posrec.data.source.readers.options import as_tuple
from posrec.io import refuse_existing
from posrec.io.executor import LOCAL
from posrec.progress import Progress
from posrec.version import __version__

if TYPE_CHECKING:
    from posrec.data.dataset import PreparedDataset

DEFAULT_GAP = 30  # minutes


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
        source: A path, a glob, a URL, a list of them, "-" (standard input), or a table.
        format: A key of READERS; by default it is concluded from the file, and reported.
        out: The folder to create; it must be given.
        test: The test part of an existing split, which is kept as it is.
        items: A file or a table with a row per item, whose columns the vocabulary carries along.
        all_items: Whether to recommend its items with too few clicks too (docs/training.md).
        recipe: "clean" or "paper"; by default the format's own.
        overwrite: Whether to replace a prepared dataset at `out`.
        engine: "local", in this process, or "ray", by a Ray cluster (docs/large_logs.md).
        memory: As "4GB" or in bytes; by default what is free. A larger log is prepared in parts.
        address: The address of a Ray cluster; by default a local one is started.
        progress: Receives messages and progress; by default messages are printed to standard error.
        options: All other options of `posrec prepare`, as text or as values (`events=["view"]`):
            session_column, user_column, item_column, time_column, event_column, events,
            event_weights, target_events, columns (a mapping file, or a dict of its tables),
            delimiter, time_unit, time_format, since, until, bad_lines, bad_lines_limit,
            normalize_ids, items_id_column, created_column, expires_column, gap, test_days,
            test_share, no_test, fraction, min_support, min_length, drop_duplicates,
            max_session_clicks, drop_repeats, max_length.

    Example:
        `data = posrec.prepare("clicks.csv", out="shop", user_column="visitor", gap="30m")`
    """
    if out is None:
        raise TypeError("prepare() needs out, the folder to create")
    prepare_options = PrepareOptions.parse(
        format=format,
        test=test,
        items=items,
        all_items=all_items,
        recipe=recipe,
        overwrite=overwrite,
        engine=engine,
        memory=memory,
        address=address,
        **options,
    )
    prepare_folder(source, Path(out), prepare_options, progress or Progress())
    from posrec.data.dataset import load  # torch takes seconds to import

    return load(out)


def prepare_folder(
    source: Any, out: Path, options: PrepareOptions, progress: Progress
) -> dict[str, Any]:
    """As `prepare`, but returns the manifest without loading the dataset."""
    refuse_existing(out, options.overwrite)
    items = options.items
    times = item_times(items, options.created_column, options.expires_column)
    with open_logs(source, options, progress) as logs:
        options = recipes.choose_recipe(options, logs, progress)
        item_file = None
        if items is not None:
            id_column = options.items_id_column
            normalize_ids = options.log_options.normalize_ids
            item_file = read_items(items, id_column, normalize_ids, **times)
        with choose_workplace(logs, out, options, progress) as workplace:
            read = read_logs(logs, workplace)
            about_items = None
            if item_file is not None:
                about_items = item_file.by_id(read.item_names, progress)
            step_log = recipes.StepLog(progress)
            if logs[0].format not in WITHOUT_TIMES:
                step_log.warn(notices.impossible_times(read.parsed[0].days))
            step_log.warn(notices.lookalike_ids(read.item_names))
            options = with_default_gap(options, read, progress)
            split = apply_recipe(options, read, step_log)
            days = options.recipe_options.test_days or 1
            hours = latest_hours(step_log.hours, split.test, days)
            manifest = describe(options, read, step_log, hours)
            with dataset_writer(out, options.overwrite) as writer:
                numbered = write_clicks(
                    writer, split, read.item_names, about_items, options
                )
                vocabulary, recommendable, new_items = numbered
                manifest = writer.finish(vocabulary, manifest, recommendable, new_items)
            bad_lines_file = out.with_name(f"{out.name}.bad-lines.jsonl")
            bad_lines = [file for log in read.parsed for file in log.bad_lines.files]
            if write_bad_lines(bad_lines_file, bad_lines):
                progress.message(
                    f"the lines that were left out are in {bad_lines_file}"
                )
    if about_items is not None:
        described = about_items["id"].is_in(vocabulary.ids).sum()
        progress.message(
            f"{item_file}: describes {described:,} of {len(vocabulary):,} items"
        )
    for notice in notices.advice(manifest):
        progress.message(notice)
    return manifest


@contextmanager
def open_logs(
    source: Any, options: PrepareOptions, progress: Progress
) -> Iterator[list[ClickLog]]:
    """The log; or the training and the test log of an existing split."""
    with open_log(source, options.format, options.log_options, progress) as log:
        test = options.test
        if test is None and options.keeps_split and options.recipe_options.gap is None:
            test = log.test_part_beside()
            if test is not None:
                progress.message(
                    f"{test.name}: read as the test part, and the split kept "
                    "(pass --test for another)"
                )
        columns = options.log_options.columns
        if test is None:
            warn_of_unused(columns, log.files, progress)
            yield [log]
            return
        test_format = None if log.layouts or log.format == TABLE else log.format
        with open_log(test, test_format, log.options, progress) as test_log:
            warn_of_unused(columns, [*log.files, *test_log.files], progress)
            yield [log, test_log]


def with_default_gap(
    options: PrepareOptions, read: ReadLogs, progress: Progress
) -> PrepareOptions:
    by_user = any(parsed.by_user for parsed in read.parsed)
    if not by_user or options.recipe_options.gap is not None:
        return options
    progress.message(
        f"clicks of users: split into sessions after {DEFAULT_GAP}m of inactivity (--gap)"
    )
    recipe_options = replace(options.recipe_options, gap=DEFAULT_GAP * 60_000)
    return replace(options, recipe_options=recipe_options)


def apply_recipe(
    options: PrepareOptions, read: ReadLogs, step_log: recipes.StepLog
) -> recipes.Split:
    assert options.recipe is not None  # `choose_recipe` has named one
    if options.recipe == recipes.GIVEN:
        train, test = read.clicks
        return recipes.keep_split(train, test, options.recipe_options, step_log)
    clicks = group_into_sessions(read, options.recipe_options, step_log)
    return recipes.RECIPES[options.recipe](clicks, options.recipe_options, step_log)


def group_into_sessions(
    read: ReadLogs, options: RecipeOptions, step_log: recipes.StepLog
) -> ClickParts:
    gap = options.gap
    group = partial(steps.group_sessions, by_time=options.by_time or gap is not None)
    measured = partial(notices.measure, gap=gap, max_clicks=options.max_session_clicks)
    clicks = read.clicks[0].map(group, work=recipes.GROUPING, measure=measured)
    columns = as_tuple(read.logs[0].options.session_column)
    step_log.warn(notices.session_warnings(clicks.measured, gap, columns))
    step_log.hours = [part.hours for part in clicks.measured]
    step_log.record("read", clicks)
    if gap is not None:
        (clicks,) = recipes.cut_at_inactivity([clicks], gap, step_log)
    return clicks


def describe(
    options: PrepareOptions,
    read: ReadLogs,
    step_log: recipes.StepLog,
    hours: dict[str, list[int]],
) -> dict[str, Any]:
    """The manifest, without what its writer adds."""
    log_options = options.log_options
    recipe_options = asdict(options.recipe_options)
    if (fraction := options.recipe_options.fraction) is not None:
        recipe_options["fraction"] = str(fraction)
    files = [path.name for log in read.logs for path in log.files]
    return {
        "schema": SCHEMA,
        "posrec": __version__,
        "source": files or [TABLE],
        "format": read.logs[0].format,
        "recipe": options.recipe,
        "options": recipe_options,
        "log": {
            "events": read.parsed[0].kinds.ordered(),
            "event_weights": dict(log_options.event_weights),
            "target_events": list(log_options.target_events),
            "bad_lines": sum(parsed.bad_lines.count for parsed in read.parsed),
        },
        "latest_hours": hours,
        "steps": step_log.steps,
        "warnings": step_log.warnings,
    }
