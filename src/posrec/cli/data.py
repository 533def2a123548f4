"""The commands that make and describe a prepared dataset: prepare, stats."""

from pathlib import Path

from typer import Argument, Context, Option

from posrec.cli.options import (
    LOCAL,
    Address,
    CreatedColumn,
    Dataset,
    Engine,
    ExpiresColumn,
    Json,
    Threads,
    optional,
    switch,
)
from posrec.cli.printing import console, say, show, warn
from posrec.cli.tables import account_table, counts_line, stats_table
from posrec.progress import TerminalProgress


def prepare(
    context: Context,
    source: list[str] = Argument(
        ...,
        help="The click log: files or a quoted glob, plain or compressed; - is standard input.",
    ),
    out: Path = Option(..., help="The folder to create."),
    format: str | None = optional(
        "csv tsv jsonl parquet sessions yoochoose diginetica retailrocket otto recbole srgnn. "
        "Concluded from the file by default."
    ),
    test: str | None = optional(
        "The test part of an existing split, which is kept as it is."
    ),
    items: str | None = optional(
        "A file with a row per item: id, title, category, any other column."
    ),
    items_id_column: str | None = optional(
        "The column of the item id in --items. Guessed by default."
    ),
    all_items: bool = switch(
        "--all-items", "Recommend items with too few clicks too, by their attributes."
    ),
    created_column: CreatedColumn = None,
    expires_column: ExpiresColumn = None,
    recipe: str | None = optional(
        "clean (for your own log) or paper (the published preprocessing)."
    ),
    session_column: list[str] | None = optional(
        "csv, tsv, jsonl, parquet, recbole: the column of the session id; several together "
        "identify a session. Guessed by default.",
    ),
    user_column: str | None = optional(
        "The column of the user id, whose clicks are split into sessions, see --gap. With "
        "--session-column too, clicks that have a session keep it."
    ),
    item_column: str | None = optional(
        "The column of the item id. Guessed by default."
    ),
    time_column: str | None = optional("The column of the time. Guessed by default."),
    time_unit: str | None = optional(
        "s, ms, us or ns, of times that are numbers. Guessed by default."
    ),
    time_format: str | None = optional(
        "Of times that are neither numbers nor ISO, e.g. '%d.%m.%Y %H:%M:%S'."
    ),
    delimiter: str | None = optional(
        "The character between the fields of a csv file. [default: a comma]"
    ),
    columns: str | None = optional(
        "A TOML file with the columns of each file, where they differ."
    ),
    event_column: str | None = optional("The column of the event type."),
    events: str | None = optional(
        "The event types to read, e.g. view,click. All, and listed, by default."
    ),
    event_weights: str | None = optional(
        "How much a target of each type counts, e.g. view=1,cart=3."
    ),
    target_events: str | None = optional(
        "Predict only clicks of these event types, e.g. purchase."
    ),
    bad_lines: str | None = optional(
        "stop at broken lines, or skip them: see OUT.bad-lines.jsonl. [default: stop]"
    ),
    bad_lines_limit: float | None = optional(
        "skip: the share of lines that may be broken. [default: 0.01]"
    ),
    since: str | None = optional(
        "Drop clicks before this date or time, e.g. 2026-09-01 or 2026-09-01T12:00Z."
    ),
    until: str | None = optional("Drop clicks at or after this date or time."),
    normalize_ids: bool = switch(
        "--normalize-ids",
        "Join ids that differ only in spaces around them or Unicode form.",
    ),
    gap: str | None = optional(
        "Start a new session after this inactivity. [default: 30m for a log of users]"
    ),
    no_test: bool = switch(
        "--no-test", "Use every session for training; nothing can be evaluated."
    ),
    test_days: float | None = optional(
        "Test on the sessions of the last N days of the log."
    ),
    test_share: float | None = optional(
        "clean, without --test-days: test on this latest share. [default: 0.1]"
    ),
    fraction: str | None = optional(
        "Train on the most recent part of the samples only, e.g. 1/64."
    ),
    min_support: int | None = optional("Drop items with fewer clicks. [default: 5]"),
    min_length: int | None = optional("Drop sessions with fewer clicks. [default: 2]"),
    drop_duplicates: bool = switch(
        "--drop-duplicates",
        "clean: drop events sent twice: same visitor, item and event type within a second.",
    ),
    max_session_clicks: int | None = optional(
        "clean: drop sessions with more clicks, as bots have."
    ),
    drop_repeats: bool = switch(
        "--drop-repeats",
        "clean: drop a click on the item clicked just before, also if a visitor came back.",
    ),
    max_length: int | None = optional(
        "clean: keep only the latest N clicks of a session."
    ),
    overwrite: bool = switch("--overwrite", "Replace the prepared dataset at --out."),
    engine: Engine = LOCAL,
    memory: str | None = optional(
        "The memory to use, e.g. 4GB; a larger log is prepared in parts. With ray, of each task. "
        "[default: what is free]"
    ),
    address: Address = None,
    threads: Threads = None,
) -> None:
    """Turn a click log into a prepared dataset.

    Example: posrec prepare clicks.csv --out shop
    """
    from posrec.data.prepare.options import PrepareOptions
    from posrec.data.prepare.pipeline import prepare_folder

    # The options have the same names as those of posrec.prepare.
    options = dict(context.params)
    for name in ("source", "out", "threads"):
        del options[name]
    for name in ("session_column", "events", "event_weights", "target_events"):
        options[name] = options[name] or None
    if delimiter == "\\t":
        options["delimiter"] = "\t"
    prepare_options = PrepareOptions.parse(**options)
    with TerminalProgress() as progress:
        manifest = prepare_folder(source, out, prepare_options, progress)
    console.print(account_table(manifest["steps"]), "", counts_line(manifest), sep="\n")
    say(f"Prepared in {out}. Look at it with: posrec stats {out}")


def stats(dataset: Dataset, as_json: Json = False) -> None:
    """Describe a prepared dataset in numbers.

    Example: posrec stats shop
    """
    from posrec.data.dataset import load
    from posrec.data.stats import stats

    figures = stats(load(dataset))
    show(figures, stats_table(figures), as_json)
    for warning in figures["warnings"]:
        warn(warning)
