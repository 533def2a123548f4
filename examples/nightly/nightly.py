#!/usr/bin/env python3
"""Train on the newest log every night, and serve the new model only if it is not worse than the
running one.

    python examples/nightly/nightly.py --log '/var/log/shop/clicks-*.csv.gz' --home /srv/posrec
    posrec serve /srv/posrec/current

A night has four steps, and `current` changes only after the last:

1. Prepare the log. The sessions of its latest day are the test part.
2. Train, starting from the running model (`posrec train --from`). The first night starts from random weights, and so
   does one with another --model or with --fresh.
3. Rank that day with both models; neither was trained on it.
4. If the new model's metric is at least the running model's minus --tolerance, switch the link `current` to its run. A
   server of `current` notices the new run within seconds and loads it beside the old one.

HOME has runs/ and data/ with a folder for each night, `current`, and nights.jsonl, a line for each
night. The exit code is 0 if the new model was promoted, 3 if it was worse, and 1 if the night
failed: then the running model stays."""

import argparse
import json
import shutil
import sys
import time
from pathlib import Path
from typing import Any

from filelock import FileLock, Timeout

import posrec
from posrec.config import parse_pairs
from posrec.errors import InputError
from posrec.fitting.evaluate_run import check_not_trained_on, evaluate_run
from posrec.fitting.warm_start import open_start
from posrec.models.registry import model_name, with_own_encoding
from posrec.runs.run import Run

PROMOTED = 0
FAILED = 1
WORSE = 3


def main(arguments: list[str] | None = None) -> int:
    options = parse(arguments)
    options.home.mkdir(parents=True, exist_ok=True)
    try:
        with FileLock(options.home / ".lock", timeout=0):
            return night(options)
    except Timeout:
        print(f"another night is running in {options.home}", file=sys.stderr)
        return FAILED


def parse(arguments: list[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--log",
        required=True,
        help="the click log, as for posrec prepare: a file or a quoted glob",
    )
    parser.add_argument(
        "--home", required=True, type=Path, help="the folder of all runs"
    )
    parser.add_argument(
        "--items", help="a file with a row per item, as for posrec prepare"
    )
    parser.add_argument("--prepare", action="append", default=[], type=option, metavar="NAME=VALUE",
                        help="an option of posrec.prepare, such as session_column=visit or gap=30m")  # fmt: skip
    parser.add_argument(
        "--model",
        help="as for posrec train [default: the running one; the first night posrec-plus]",
    )
    parser.add_argument(
        "--set",
        action="append",
        default=[],
        dest="pairs",
        help="key=value, as for posrec train",
    )
    parser.add_argument(
        "--fresh", action="store_true", help="start from random weights, as once a week"
    )
    parser.add_argument(
        "--test-days",
        type=float,
        default=1.0,
        help="the latest days, which are compared [default: 1]",
    )
    parser.add_argument(
        "--least",
        type=int,
        default=100,
        help="samples that these days must have [default: 100]",
    )
    parser.add_argument(
        "--metric", default="recall@20", help="that decides [default: recall@20]"
    )
    parser.add_argument(
        "--tolerance",
        type=float,
        default=0.002,
        help="how much lower it may be [default: 0.002]",
    )
    parser.add_argument(
        "--keep", type=int, default=7, help="how many nights to keep [default: 7]"
    )
    parser.add_argument("--device", default="auto")
    parser.add_argument(
        "--no-export",
        dest="export",
        action="store_false",
        help="do not write the export for serving",
    )
    return parser.parse_args(arguments)


def option(pair: str) -> tuple[str, Any]:
    """A name and its value: true, false or a text, which `posrec.prepare` turns into what it needs."""
    name, equals, value = pair.partition("=")
    if not (name and equals):
        raise argparse.ArgumentTypeError(
            f"{pair}: write name=value, such as session_column=visit"
        )
    return name, {"true": True, "false": False}.get(value, value)


def named(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """Options by name; several session columns together identify a session."""
    found: dict[str, Any] = {}
    for name, value in pairs:
        if name == "session_column":
            value = [*found.get(name, []), value]
        elif name in found:
            raise InputError(
                f"--prepare {name} is given twice; lists are written with commas, as events=view,cart"
            )
        found[name] = value
    return found


def night(options: argparse.Namespace) -> int:
    """One night; whatever happens in it is recorded, and never changes `current` unless all of it
    went well."""
    name = time.strftime("%Y%m%dT%H%M%S")
    while (options.home / "data" / name).exists():
        name += "-again"
    record: dict[str, Any] = {"night": name, "promoted": False}
    try:
        record |= train_and_compare(options, name)
        if record["promoted"]:
            switch(options.home / "current", Path("runs") / name)
    except (
        Exception
    ) as error:  # a night that fails in any way must leave the running model in place
        record["failed"] = str(error) or type(error).__name__
    with (options.home / "nights.jsonl").open("a", encoding="utf-8") as file:
        file.write(json.dumps(record) + "\n")
    remove_old(options.home, options.keep)
    if "failed" in record:
        print(
            f"the night failed, and the running model stays: {record['failed']}",
            file=sys.stderr,
        )
        return FAILED
    print(json.dumps(record))
    return PROMOTED if record["promoted"] else WORSE


def train_and_compare(options: argparse.Namespace, name: str) -> dict[str, Any]:
    """The first three steps: the metric of both models, and whether the new one is good enough."""
    current = options.home / "current"
    settings = with_own_encoding(parse_pairs(options.pairs))
    running = (
        open_start(current, options.model, settings.get("encoding"))
        if current.exists()
        else None
    )
    how = {
        "items": options.items,
        "test_days": options.test_days,
        **named(options.prepare),
    }
    data = posrec.prepare(options.log, out=options.home / "data" / name, **how)
    if len(data.test) < options.least:
        raise InputError(
            f"the test part (--test-days {options.test_days:g}) has only {len(data.test):,} samples to compare models "
            f"by, fewer than {options.least:,} (--least): check the end of the log, or raise --test-days"
        )
    if running is not None:
        check_not_trained_on(running, data)
    model = options.model or (running.config["model"] if running is not None else None)
    start = None if options.fresh or not can_start(running, model) else running
    _, outcome = posrec.fit_run(data, model, options.home / "runs" / name, settings, options.device, start_from=start,
                                export=options.export)  # fmt: skip
    if options.metric not in outcome.metrics:
        raise InputError(
            f"--metric {options.metric} is not one of {', '.join(outcome.metrics)}"
        )
    compared: dict[str, Any] = {
        "metric": options.metric,
        "new": outcome.metrics[options.metric],
    }
    if running is None:
        return {**compared, "promoted": True}
    before = evaluate_run(running, data, options.device, match_ids=True).metrics[
        options.metric
    ]
    return {
        **compared,
        "running": before,
        "promoted": compared["new"] >= before - options.tolerance,
    }


def can_start(running: Run | None, model: str | None) -> bool:
    """Whether training can start from the running model: it is the same model, and one that is
    trained."""
    if running is None or not isinstance(running.model, posrec.SessionModel):
        return False
    return model is not None and model_name(model) == running.config["model"]


def switch(link: Path, target: Path) -> None:
    """Point `link` to `target` in one step: a reader sees the old target or the new one."""
    aside = link.with_name(f".{link.name}.new")
    aside.unlink(missing_ok=True)
    aside.symlink_to(target)
    aside.replace(link)


def remove_old(home: Path, keep: int) -> None:
    """Remove all but the latest nights, and never the one that is served."""
    served = (home / "current").resolve().name
    nights = sorted(
        path.name for path in (home / "data").glob("[!.]*") if path.is_dir()
    )
    for name in nights[: max(0, len(nights) - keep)]:
        if name != served:
            shutil.rmtree(home / "runs" / name, ignore_errors=True)
            shutil.rmtree(home / "data" / name, ignore_errors=True)
            (home / "data" / f"{name}.bad-lines.jsonl").unlink(missing_ok=True)


if __name__ == "__main__":
    sys.exit(main())
