"""The command of a night, and the table of all nights."""

from pathlib import Path
from typing import Any

import typer
from rich.table import Column, Table
from rich.text import Text
from typer import Option

from posrec.cli.options import Device, Json, Threads, optional, switch
from posrec.cli.printing import plain_table, right, say, show, warn
from posrec.config import DEFAULT_MODEL, parse_pairs
from posrec.errors import InputError, RunFailed
from posrec.progress import TerminalProgress, printable

# Exit codes beside 0, 1 and 2.
CODES = {"held": 3, "nothing new": 4}


def nightly(
    home: Path = Option(..., help="The folder of all nights; serve HOME/current."),
    log: str | None = optional("The click log: a file or a quoted glob."),
    items: str | None = optional("A file with a row per item, as for posrec prepare."),
    prepare: list[str] | None = optional(
        "NAME=VALUE, of posrec.prepare, e.g. gap=30m. Can be repeated."
    ),
    model: str | None = optional(
        f"As for posrec train. [default: the running one; at first {DEFAULT_MODEL}]"
    ),
    settings: list[str] | None = Option(
        None, "--set", help="key=value, as for posrec train. Can be repeated."
    ),
    fresh: bool = switch("--fresh", "Start from random weights, as once a week."),
    export: bool = Option(True, help="Write the export for serving too."),
    test_days: float = Option(1.0, help="The latest days, which models are judged on."),
    least: int = Option(100, help="Samples that these days must have."),
    metric: str = Option("recall@20", help="What models are compared by."),
    tolerance: float = Option(0.002, help="How much lower it may be."),
    factor: float = Option(
        3.0, min=1, help="How far the latest day's counts may be from the usual ones."
    ),
    keep: int = Option(7, min=1, help="How many nights to keep."),
    force: bool = switch("--force", "Promote the model whatever the gate says."),
    history: bool = switch("--history", "Show all nights, and do nothing."),
    as_json: Json = False,
    device: Device = "auto",
    threads: Threads = None,
) -> None:
    """Train on the newest log, judge the new model on its latest day, and promote it if it holds.
    Exit codes: 0 promoted, 3 held by the gate, 4 nothing new in the log, 1 failed.

    Example: posrec nightly --log '/var/log/shop/clicks-*.csv.gz' --home /srv/posrec
    posrec nightly --home /srv/posrec --history
    """
    from posrec.fitting.nightly.gate import Gate
    from posrec.fitting.nightly.history import FAILED, read_nights
    from posrec.fitting.nightly.night import NightOptions, run_night

    if history:
        nights = read_nights(home)
        show(nights, history_table(nights), as_json)
        return
    if log is None:
        raise InputError("--log is missing: name the click log, or pass --history")
    with TerminalProgress() as progress:
        options = NightOptions(
            log,
            home,
            items,
            prepare_options(prepare),
            model,
            parse_pairs(settings),
            fresh,
            device,
            export,
            test_days,
            keep,
            force,
            Gate(metric, tolerance, least, factor),
            progress,
        )
        night = run_night(options)
    outcome = night["outcome"]
    reasons = "; ".join(night["reasons"])
    if outcome == FAILED:
        raise RunFailed(f"the night failed, and the running model stays: {reasons}")
    if as_json:
        show(night, None, as_json)
    if outcome in CODES:
        warn(f"{outcome}, and the running model stays: {reasons}")
        raise typer.Exit(CODES[outcome])
    for reason in night.get("forced", []):
        warn(f"forced: {reason}")
    if not as_json:
        run = night["trained_on"]["run"]
        say(f"{home}/current is {run}, which is the new model: {reasons}.")


def prepare_options(pairs: list[str] | None) -> dict[str, Any]:
    """The options of `--prepare`; several session columns together identify a session."""
    options: dict[str, Any] = {}
    for pair in pairs or []:
        ((name, value),) = parse_pairs([pair], "--prepare gap=30m").items()
        if name == "session_column":
            options.setdefault(name, []).append(value)
        elif name in options:
            raise InputError(
                f"--prepare {name} is given twice; "
                "lists are written with commas, as events=view,cart"
            )
        else:
            options[name] = {"true": True, "false": False}.get(value, value)
    return options


def history_table(nights: list[dict[str, Any]]) -> Table:
    figures = right("clicks", "known", "all", "running")
    table = plain_table("night", "outcome", *figures, Column("reason", overflow="fold"))
    for night in nights:
        cells = []
        for part, name in (
            ("latest_day", "clicks"),
            ("new", "known"),
            ("new", "all"),
            ("running", "all"),
        ):
            value = (night.get(part) or {}).get(name)
            style = ",.0f" if name == "clicks" else ".3f"
            cells.append("" if value is None else format(value, style))
        outcome = night["outcome"] + (", forced" if "forced" in night else "")
        reason, *others = night.get("forced", night["reasons"])
        if others:
            reason += f" (and {len(others)} more)"
        table.add_row(night["night"], outcome, *cells, Text(printable(reason)))
    return table
