"""Faults on purpose: odd clients, kill -9, full disks, damaged runs, limits, clocks, overload, a
long time under load.

    python benchmarks/faults.py                                      everything, into results/faults.json (hours)
    python benchmarks/faults.py --parts requests --amount 5000       one part, a shorter one

Each step of a part draws from a seed of its own, and the counts are written to the result file as
they grow. A run that was interrupted goes on where it stopped; `overload`, `beside` and `soak`
begin again. To repeat a part that is complete, delete it from the result file. One whose programs
are not installed is skipped. The exit code is 1 if any step failed."""

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

from attacks import commands, load, requests, serving
from attacks.replicas import replicas
from attacks.served import Figures, Missing, Steps
from harness import command, conditions, parser_for
from posrec.io import read_json, write_json

# What is done, and what must hold, is in the description of each attack. The number: steps, of a
# load seconds.
PARTS: dict[str, tuple[Callable[[Path, Steps, Figures], Iterator[str]], int]] = {
    "requests": (requests.malformed_requests, 100_000),
    "java": (requests.java_requests, 20),
    "slow": (requests.slow_clients, 30),
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
}
LOADS: dict[str, tuple[Callable[[Path, float], dict[str, Any]], int]] = {
    "overload": (load.overload, 20),
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
    given = parser.parse_args()
    signal.signal(
        signal.SIGTERM, lambda *_: sys.exit(143)
    )  # so that servers are stopped and counts are written
    with tempfile.TemporaryDirectory() as folder:
        failed = [
            name for name in given.parts if not run_part(name, given, Path(folder))
        ]
    sys.exit(f"failed: {', '.join(failed)}" if failed else 0)


def run_part(name: str, given: argparse.Namespace, folder: Path) -> bool:
    """Do what is missing of a part; whether nothing has failed."""
    report = read_json(given.out) if given.out.exists() else {"parts": {}}
    part, (attack, amount) = report["parts"].get(name, {}), {**PARTS, **LOADS}[name]
    about = {"about": " ".join(str(attack.__doc__).split()), "command": command()}

    def save(part: dict[str, Any]) -> None:
        report["parts"][name] = {**about, **part, "conditions": conditions()}
        write_json(given.out, report)

    if name in PARTS:
        part = run_steps(name, given.seed, given.amount or amount, folder, part, save)
    elif part.get("seconds", 0) < (given.amount or amount):
        part = LOADS[name][0](folder, given.amount or amount)
        save(part)
    print(
        f"{name}: { ({key: value for key, value in part.items() if key != 'series'}) }",
        flush=True,
    )
    # A load fails if requests are lost, `soak` also if one is refused with 503.
    return not any(
        part.get(key)
        for key in ("failed", "tracebacks", "errors" if name == "soak" else "dropped")
    )


def run_steps(
    name: str,
    seed: int,
    total: int,
    folder: Path,
    part: dict[str, Any],
    save: Callable[[dict[str, Any]], None],
) -> dict[str, Any]:
    """After a step that fails, the attack is set up anew for the next one."""
    part = (
        part
        if part.get("seed") == seed
        else {"seed": seed, "done": 0, "outcomes": {}, "failures": []}
    )
    outcomes = Counter(part["outcomes"])
    figures = defaultdict(int)
    saved = time.monotonic()
    steps = (
        (number, random.Random(f"{seed} {name} {number}"))
        for number in range(part["done"], total)
    )

    def count(outcome: str) -> None:
        outcomes[outcome] += 1
        part.update(
            done=outcomes.total(),
            failed=outcomes["failed"],
            outcomes=dict(outcomes.most_common()),
        )

    try:
        while part["done"] < total:
            try:
                for outcome in PARTS[name][0](folder, steps, figures):
                    count(outcome)
                    if time.monotonic() - saved > SAVE_EVERY:
                        saved = time.monotonic()
                        save(part)
                        print(
                            f"{name}: {part['done']:,} of {total:,}, {part['failed']} failed",
                            flush=True,
                        )
            except AssertionError as failure:
                part["failures"] = [
                    *part["failures"],
                    f"step {part['done']}: {failure}",
                ][:MOST_FAILURES]
                count("failed")
    except Missing as missing:
        print(f"{name}: skipped, because {missing}", flush=True)
        return part
    finally:
        if outcomes:
            part |= figures
            save(part)
    return part


if __name__ == "__main__":
    main()
