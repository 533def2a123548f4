"""Faults on purpose: odd clients, kill -9, full disks, damaged runs, limits, clocks, load.

    python -m benchmarks.reliability.faults --parts requests --amount 5000

Without options, everything is done, which takes hours. Counts are written as they grow, and an
interrupted run continues where it stopped; only loads begin again. To repeat a complete part,
delete it from the result file. A part whose programs are not installed is skipped. The exit code
is 1 if any step failed."""

import argparse
import random
import signal
import sys
import tempfile
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from benchmarks.harness.results import command, conditions, parser_for
from benchmarks.reliability import commands, files, greedy, load, requests, serving
from benchmarks.reliability.replicas import replicas
from benchmarks.reliability.served import Figures, Missing, Steps
from posrec.io import read_json, write_json

Record = dict[str, Any]  # of a part, as the result file has it

# What is done, and what must hold, is in the docstring of each attack. The number is the steps of
# an attack, or the seconds of a load.
PARTS: dict[str, tuple[Callable[[Path, Steps, Figures], Iterator[str]], int]] = {
    "requests": (requests.malformed_requests, 100_000),
    "java": (requests.java_requests, 20),
    "slow": (requests.slow_clients, 30),
    "greedy": (greedy.greedy, 20),
    "workers": (serving.worker_kills, 20),
    "limits": (serving.limits, 30),
    "clock": (serving.clock_jumps, 24),
    "deny": (serving.long_deny_file, 6),
    "store": (serving.store_faults, 20),
    "runs": (serving.damaged_runs, 48),
    "replicas": (replicas, 4),
    "commands": (commands.command_kills, 200),
    "nights": (commands.nights, 20),
    "writers": (commands.two_writers, 24),
    "disk": (commands.full_disk, 24),
    "ranks": (commands.different_ranks, 6),
    "ray": (commands.ray_kills, 6),
    "one-item": (commands.one_item, 3),
    "feedback": (files.feedback_claims, 40),
    "pipes": (files.pipes, 12),
    "overwrite": (files.overwritten_projects, 100),
    "not-numbers": (files.weights_that_are_not_numbers, 100),
    "hostile": (files.hostile_files, 400),
}
LOADS: dict[str, tuple[Callable[[Path, float], Record], int]] = {
    "overload": (load.overload, 20),
    "retries": (greedy.retries, 20),
    "beside": (load.beside, 20),
    "soak": (load.soak, 3_600),
}
SAVE_EVERY = 20.0  # seconds
MOST_FAILURES = 20  # kept in the result file, as text


def main() -> None:
    parser = parser_for(__doc__, "results/faults.json")
    parser.add_argument(
        "--parts", nargs="+", choices=[*PARTS, *LOADS], default=[*PARTS, *LOADS]
    )
    parser.add_argument(
        "--amount", type=int, help="steps of each part, or seconds of a load"
    )
    parser.add_argument("--seed", type=int, default=0)
    arguments = parser.parse_args()
    # An exception, so that servers are stopped and counts are written.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    with tempfile.TemporaryDirectory() as folder:
        failed = [
            name
            for name in arguments.parts
            if not run_part(name, arguments, Path(folder))
        ]
    sys.exit(f"failed: {', '.join(failed)}" if failed else 0)


def run_part(name: str, arguments: argparse.Namespace, folder: Path) -> bool:
    """Do what the result file lacks of a part; whether nothing has failed."""
    report = read_json(arguments.out) if arguments.out.exists() else {"parts": {}}
    record: Record = report["parts"].get(name, {})
    attack, default_amount = PARTS[name] if name in PARTS else LOADS[name]
    amount = arguments.amount or default_amount
    about = {"about": " ".join(str(attack.__doc__).split()), "command": command()}

    def save(record: Record) -> None:
        report["parts"][name] = {**about, **record, "conditions": conditions()}
        write_json(arguments.out, report)

    if name in PARTS:
        if record.get("seed") != arguments.seed:
            record = {"seed": arguments.seed, "done": 0, "outcomes": {}, "failures": []}
        run_steps(name, record, amount, folder, save)
    elif record.get("seconds", 0) < amount:
        record = LOADS[name][0](folder, amount)
        save(record)
    figures = {key: value for key, value in record.items() if key != "series"}
    print(f"{name}: {figures}", flush=True)
    # A load fails if requests are lost, `soak` also if one is refused with 503.
    lost = "errors" if name == "soak" else "dropped"
    return not any(record.get(key) for key in ("failed", "tracebacks", lost))


def run_steps(
    name: str,
    record: Record,
    total: int,
    folder: Path,
    save: Callable[[Record], None],
) -> None:
    """Add the steps that the record lacks.

    After a step that fails, the attack is set up again for the next one. Every step draws from its
    own seed, so that a step is the same wherever a run was interrupted.
    """
    attack, _ = PARTS[name]
    outcomes = Counter[str](record["outcomes"])
    figures: Figures = defaultdict(int)
    saved_at = time.monotonic()
    steps = (
        (number, random.Random(f"{record['seed']} {name} {number}"))
        for number in range(record["done"], total)
    )

    def count(outcome: str) -> None:
        outcomes[outcome] += 1
        record["done"] = outcomes.total()
        record["failed"] = outcomes["failed"]
        record["outcomes"] = dict(outcomes.most_common())

    try:
        while record["done"] < total:
            try:
                for outcome in attack(folder, steps, figures):
                    count(outcome)
                    if time.monotonic() - saved_at > SAVE_EVERY:
                        saved_at = time.monotonic()
                        save(record)
                        progress = f"{record['done']:,} of {total:,}"
                        failed = f"{record['failed']} failed"
                        print(f"{name}: {progress}, {failed}", flush=True)
            except AssertionError as failure:
                failures = [*record["failures"], f"step {record['done']}: {failure}"]
                record["failures"] = failures[:MOST_FAILURES]
                count("failed")
    except Missing as missing:
        print(f"{name}: skipped, because {missing}", flush=True)
    finally:
        if outcomes:
            record |= figures
            save(record)


if __name__ == "__main__":
    main()
