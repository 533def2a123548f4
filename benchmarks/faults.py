"""Faults on purpose: malformed requests, kill -9, full disks, damaged runs, overload, a long time under load.

    python benchmarks/faults.py                                      everything, into results/faults.json (hours)
    python benchmarks/faults.py --parts requests --requests 5000     one part, a shorter one
    python benchmarks/faults.py --parts overload --again             a part that is complete, once more

Each step of a part draws from a seed of its own, and the counts are written to the result file as they grow. A run that
was interrupted goes on where it stopped; `overload`, `beside` and `soak` begin again. A part that is complete is not
repeated unless `--again` is given. The exit code is 1 if any step failed.
"""

import random
import signal
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

from fault_commands import CommandKills, FullDisk
from fault_load import beside, draw_soak, overload, soak
from fault_requests import MalformedRequests
from fault_server import DamagedRuns, StoreFaults, WorkerKills
from harness import command, conditions, parser_for
from posrec.io import read_json, write_json

PARTS: dict[str, tuple[Callable[[Path], Any], str]] = {
    "requests": (MalformedRequests, "malformed requests of eight kinds"),
    "workers": (WorkerKills, "kill -9 of a worker while clients ask"),
    "commands": (CommandKills, "kill -9 of prepare, train, score and export, at random moments and at renames"),
    "store": (StoreFaults, "Redis killed and frozen while clients ask"),
    "disk": (FullDisk, "no space for prepare, train, score and export, at three sizes"),
    "runs": (DamagedRuns, "a file of the served run damaged in place"),
}
LOADS: dict[str, tuple[Callable[[Path, float], dict[str, Any]], str]] = {
    "overload": (overload, "three times as many requests as can be answered, 43,097 items, two workers"),
    "beside": (beside, "plain requests beside clients that ask for as much as they may, 27,051 items, one worker"),
    "soak": (soak, "a steady rate, two workers"),
}
SAVE_EVERY = 20.0  # seconds
MOST_FAILURES = 20  # kept in the result file, as text
FIGURE = Path("docs/figures/soak.svg")  # drawn when a soak was measured


def run_part(name: str, total: int, seed: int, folder: Path, out: Path) -> bool:
    """Do the steps that are missing; whether none has failed."""
    report = read_json(out) if out.exists() else {}
    parts = report.setdefault("parts", {})
    part = parts.get(name)
    if part is None or part["seed"] != seed:
        part = parts[name] = {
            "about": PARTS[name][1],
            "command": command(),
            "seed": seed,
            "done": 0,
            "outcomes": {},
            "failures": [],
        }
    if part["done"] >= total:
        return not part["failed"] and not part.get("tracebacks")
    outcomes = Counter(part["outcomes"])
    attack = PARTS[name][0](folder)
    saved = time.monotonic()
    try:
        for number in range(part["done"], total):
            outcome = attack.step(number, random.Random(f"{seed} {name} {number}"))
            if outcome.startswith("failed"):
                part["failures"] = [*part["failures"], f"step {number}: {outcome}"][:MOST_FAILURES]
                outcome = "failed"
            outcomes[outcome] += 1
            part.update(done=number + 1, failed=outcomes["failed"], outcomes=dict(outcomes.most_common()))
            if time.monotonic() - saved > SAVE_EVERY:
                saved = time.monotonic()
                write_json(out, report)
                print(f"{name}: {number + 1:,} of {total:,}, {outcomes['failed']} failed", flush=True)
    finally:
        part.update(attack.close())
        write_json(out, report | {"conditions": conditions()})
    print(f"{name}: {part['done']:,} steps, {part['failed']} failed: {part['outcomes']}", flush=True)
    return not part["failed"] and not part.get("tracebacks")


def run_load(name: str, seconds: float, folder: Path, out: Path) -> bool:
    """Measure a load, unless that was done; whether all requests were answered, but for `soak` perhaps with 503."""
    report = read_json(out) if out.exists() else {"parts": {}}
    part = report["parts"].get(name)
    if part is None or part["seconds"] < seconds:
        attack, about = LOADS[name]
        part = {"about": about, "command": command(), **attack(folder, seconds), "conditions": conditions()}
        report["parts"][name] = part
        write_json(out, report | {"conditions": conditions()})
        if name == "soak":
            draw_soak(part, FIGURE)
    print(f"{name}: { ({key: value for key, value in part.items() if key != 'series'}) }", flush=True)
    unexpected = part["errors" if name == "soak" else "dropped"] + part["tracebacks"]
    return not unexpected


def main() -> None:
    parser = parser_for(__doc__, "results/faults.json")
    parser.add_argument("--parts", nargs="+", choices=[*PARTS, *LOADS], default=[*PARTS, *LOADS])
    parser.add_argument("--requests", type=int, default=100_000)
    parser.add_argument("--workers", type=int, default=20)
    parser.add_argument("--commands", type=int, default=200)
    parser.add_argument("--store", type=int, default=20)
    parser.add_argument("--disk", type=int, default=24)
    parser.add_argument("--runs", type=int, default=48)
    parser.add_argument("--overload", type=float, default=20, help="seconds at three times the capacity")
    parser.add_argument("--beside", type=float, default=20, help="seconds beside each kind of expensive request")
    parser.add_argument("--soak", type=float, default=3600, help="seconds at 500 requests a second")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--again", action="store_true", help="forget the results of the named parts")
    arguments = parser.parse_args()
    if arguments.again and arguments.out.exists():
        report = read_json(arguments.out)
        report["parts"] = {name: part for name, part in report["parts"].items() if name not in arguments.parts}
        write_json(arguments.out, report)
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # so that servers are stopped and counts are written
    good = True
    with tempfile.TemporaryDirectory() as folder:
        for name in arguments.parts:
            if name in LOADS:
                good = run_load(name, getattr(arguments, name), Path(folder), arguments.out) and good
            else:
                good = run_part(name, getattr(arguments, name), arguments.seed, Path(folder), arguments.out) and good
    sys.exit(0 if good else 1)


if __name__ == "__main__":
    main()
