#!/usr/bin/env python3
"""Train on the newest log every night, and promote the new model if it is not worse.

    python examples/nightly/nightly.py --log '/var/log/shop/clicks-*.csv.gz' --home /srv/posrec

A server of the link HOME/current loads each promoted run within seconds. HOME has a folder for
each night in runs/ and data/, and a line for each night in nights.jsonl. The exit code is 0 if the
new model was promoted, 3 if it was worse, and 1 if the night failed: then the running model stays.
"""

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
from posrec.runs.folder import Run

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
    add_preparing_options(parser)
    add_training_options(parser)
    add_comparing_options(parser)
    return parser.parse_args(arguments)


def add_preparing_options(parser: argparse.ArgumentParser) -> None:
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
    parser.add_argument(
        "--prepare",
        action="append",
        default=[],
        type=option,
        metavar="NAME=VALUE",
        help="an option of posrec.prepare, such as session_column=visit or gap=30m",
    )


def add_training_options(parser: argparse.ArgumentParser) -> None:
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
    parser.add_argument("--device", default="auto")
    parser.add_argument(
        "--no-export",
        dest="export",
        action="store_false",
        help="do not write the export for serving",
    )


def add_comparing_options(parser: argparse.ArgumentParser) -> None:
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


def option(pair: str) -> tuple[str, Any]:
    """A name and its value: true, false or a text, which `posrec.prepare` converts."""
    name, equals, value = pair.partition("=")
    if not (name and equals):
        raise argparse.ArgumentTypeError(
            f"{pair}: write name=value, such as session_column=visit"
        )
    booleans = {"true": True, "false": False}
    return name, booleans.get(value, value)


def named(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """Options by name; several session columns together identify a session."""
    options: dict[str, Any] = {}
    for name, value in pairs:
        if name == "session_column":
            options.setdefault(name, []).append(value)
        elif name in options:
            raise InputError(
                f"--prepare {name} is given twice; "
                "lists are written with commas, as events=view,cart"
            )
        else:
            options[name] = value
    return options


def night(options: argparse.Namespace) -> int:
    """One night, with a line in nights.jsonl. `current` changes only if everything succeeded."""
    name = time.strftime("%Y%m%dT%H%M%S")
    while (options.home / "data" / name).exists():
        name += "-again"
    record: dict[str, Any] = {"night": name, "promoted": False}
    try:
        record |= train_and_compare(options, name)
        if record["promoted"]:
            switch(options.home / "current", Path("runs") / name)
    except Exception as error:
        # A night that fails in any way must leave the running model in place.
        record["failed"] = str(error) or type(error).__name__
    with (options.home / "nights.jsonl").open("a", encoding="utf-8") as file:
        file.write(json.dumps(record) + "\n")
    remove_old(options.home, options.keep)
    if "failed" in record:
        message = "the night failed, and the running model stays"
        print(f"{message}: {record['failed']}", file=sys.stderr)
        return FAILED
    print(json.dumps(record))
    return PROMOTED if record["promoted"] else WORSE


def train_and_compare(options: argparse.Namespace, name: str) -> dict[str, Any]:
    """The metric of the new and of the running model, and whether the new one is promoted."""
    current = options.home / "current"
    settings = with_own_encoding(parse_pairs(options.pairs))
    running: Run | None = None
    model = options.model
    if current.exists():
        running = open_start(current, model, settings.get("encoding"))
    data = prepare_log(options, options.home / "data" / name)
    if running is not None:
        model = model or running.config["model"]
        check_not_trained_on(running, data)

    # Without a running model that can be continued, training starts from random weights.
    start = None
    if not options.fresh and can_start(running, model):
        start = running
    _, outcome = posrec.fit_run(
        data,
        model,
        options.home / "runs" / name,
        settings,
        options.device,
        start_from=start,
        export=options.export,
    )
    metric = options.metric
    if metric not in outcome.metrics:
        raise InputError(
            f"--metric {metric} is not one of {', '.join(outcome.metrics)}"
        )
    new = outcome.metrics[metric]
    if running is None:
        return {"metric": metric, "new": new, "promoted": True}

    # Both models are ranked on the latest days, on which neither was trained.
    evaluated = evaluate_run(running, data, options.device, match_ids=True)
    old = evaluated.metrics[metric]
    is_good_enough = new >= old - options.tolerance
    return {"metric": metric, "new": new, "running": old, "promoted": is_good_enough}


def prepare_log(options: argparse.Namespace, out: Path) -> posrec.PreparedDataset:
    """The prepared log, whose test part is the sessions of the latest days."""
    prepare_options = {
        "items": options.items,
        "test_days": options.test_days,
        **named(options.prepare),
    }
    data = posrec.prepare(options.log, out=out, **prepare_options)
    if len(data.test) < options.least:
        raise InputError(
            f"the test part (--test-days {options.test_days:g}) has only "
            f"{len(data.test):,} samples to compare models by, "
            f"fewer than {options.least:,} (--least): "
            "check the end of the log, or raise --test-days"
        )
    return data


def can_start(running: Run | None, model: str | None) -> bool:
    """Whether training can start from the running model: the same model, and a trained one."""
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
