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

# Exit codes beside 0 for "promoted" and 1 for "failed".
CODES = {"held": 3, "nothing new": 4}
# Of the table: a part of a night's record, the name in it, and its style.
FIGURES = {
    "clicks": ("latest_day", "clicks", ",.0f"),
    "known": ("new", "known", ".3f"),
    "all": ("new", "all", ".3f"),
    "running": ("running", "all", ".3f"),
}


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
    from posrec.fitting.job import FitOptions
    from posrec.fitting.nightly.gate import Gate
    from posrec.fitting.nightly.home import FAILED, read_nights
    from posrec.fitting.nightly.night import Night
    from posrec.models.registry import with_own_encoding

    if history:
        if not home.is_dir():
            raise InputError(f"{home} does not exist; check the path")
        nights = read_nights(home)
        show(nights, history_table(nights), as_json)
        return
    if log is None:
        raise InputError("--log is missing: name the click log, or pass --history")
    chosen = with_own_encoding(parse_pairs(settings))
    gate = Gate(metric, tolerance, least, factor)
    with TerminalProgress() as progress:
        fit = FitOptions(chosen, device, progress, export=export)
        options = prepare_options(prepare)
        night = Night(
            log, home, items, options, model, fit, gate, fresh, test_days, keep, force
        ).run()
    outcome = night["outcome"]
    reasons = "; ".join(night["reasons"])
    if outcome == FAILED:
        raise RunFailed(f"the night failed, and the running model stays: {reasons}")
    for reason in night.get("forced", []):
        warn(f"forced: {reason}")
    if as_json:
        show(night, None, as_json)
    if outcome in CODES:
        warn(f"{outcome}, and the running model stays: {reasons}")
        raise typer.Exit(CODES[outcome])
    if not as_json:
        say(f"{home}/current is the new model, runs/{night['night']}: {reasons}.")


def prepare_options(pairs: list[str] | None) -> dict[str, Any]:
    options: dict[str, Any] = parse_pairs(pairs, "--prepare gap=30m")
    for name, value in options.items():
        if name == "session_column":
            options[name] = value.split(",")
        elif value in ("true", "false"):
            options[name] = value == "true"
    return options


def history_table(nights: list[dict[str, Any]]) -> Table:
    reasons = Column("reason", overflow="fold")
    table = plain_table("night", "outcome", *right(*FIGURES), reasons)
    for night in nights:
        figures = []
        for part, name, style in FIGURES.values():
            value = night.get(part, {}).get(name)
            figures.append("" if value is None else format(value, style))
        outcome = night["outcome"] + (", forced" if "forced" in night else "")
        reason, *others = night.get("forced", night["reasons"])
        if others:
            reason += f" (and {len(others)} more)"
        table.add_row(night["night"], outcome, *figures, Text(printable(reason)))
    return table
