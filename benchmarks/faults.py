"""Faults on purpose: odd clients, kill -9, full disks, damaged runs, limits, clocks, overload, a long time under load.

    python benchmarks/faults.py                                      everything, into results/faults.json (hours)
    python benchmarks/faults.py --parts requests --requests 5000     one part, a shorter one
    python benchmarks/faults.py --parts overload --again             a part that is complete, once more

Each step of a part draws from a seed of its own, and the counts are written to the result file as they grow. A run that
was interrupted goes on where it stopped; `overload`, `beside` and `soak` begin again. A part that is complete is not
repeated unless `--again` is given, and one whose programs are not installed is skipped. The exit code is 1 if any step
failed.
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

from fault_commands import CommandKills, DifferentRanks, FullDisk, Nights, OneItem, RayKills, TwoWriters
from fault_load import beside, overload, soak
from fault_requests import JavaRequests, MalformedRequests, SlowClients
from fault_server import Attack, Failure, Missing
from fault_serving import ClockJumps, DamagedRuns, Limits, LongDenyFile, StoreFaults, WorkerKills
from harness import command, conditions, parser_for
from posrec.io import read_json, write_json

# What is done, and what must hold, is in the description of each attack. The number: steps, of a load seconds.
PARTS: dict[str, tuple[Callable[[Path], Attack], int]] = {
    "requests": (MalformedRequests, 100_000),
    "java": (JavaRequests, 20),
    "slow": (SlowClients, 30),
    "workers": (WorkerKills, 20),
    "limits": (Limits, 30),
    "clock": (ClockJumps, 24),
    "deny": (LongDenyFile, 6),
    "store": (StoreFaults, 20),
    "runs": (DamagedRuns, 48),
    "commands": (CommandKills, 200),
    "nights": (Nights, 20),
    "writers": (TwoWriters, 24),
    "disk": (FullDisk, 24),
    "ranks": (DifferentRanks, 6),
    "ray": (RayKills, 6),
    "one-item": (OneItem, 3),
}
LOADS: dict[str, tuple[Callable[[Path, float], dict[str, Any]], int]] = {
    "overload": (overload, 20),
    "beside": (beside, 20),
    "soak": (soak, 3_600),
}
SAVE_EVERY = 20.0  # seconds
MOST_FAILURES = 20  # kept in the result file, as text


def description(attack: object) -> str:
    return " ".join(str(attack.__doc__).split())


def run_part(name: str, total: int, seed: int, folder: Path, out: Path) -> bool:
    """Do the steps that are missing; whether none has failed."""
    report = read_json(out) if out.exists() else {"parts": {}}
    part = report["parts"].get(name)
    if part is None or part["seed"] != seed:
        part = {"command": command(), "seed": seed, "done": 0, "failed": 0, "outcomes": {}, "failures": []}
    if part["done"] < total:
        try:
            attack = PARTS[name][0](folder)
        except Missing as error:
            print(f"{name}: skipped, because {error}", flush=True)
            return True
        report["parts"][name] = part
        part["about"] = description(attack)
        try:
            run_steps(name, attack, part, total, lambda: write_json(out, report))
        finally:
            part.update(attack.close(), conditions=conditions())
            write_json(out, report)
    print(f"{name}: {part['done']:,} steps, {part['failed']} failed: {part['outcomes']}", flush=True)
    return not part["failed"] and not part.get("tracebacks")


def run_steps(name: str, attack: Attack, part: dict[str, Any], total: int, save: Callable[[], None]) -> None:
    outcomes, saved = Counter(part["outcomes"]), time.monotonic()
    for number in range(part["done"], total):
        try:
            outcomes[attack.step(number, random.Random(f"{part['seed']} {name} {number}"))] += 1
        except Failure as failure:
            outcomes["failed"] += 1
            part["failures"] = [*part["failures"], f"step {number}: {failure}"][:MOST_FAILURES]
        part.update(done=number + 1, failed=outcomes["failed"], outcomes=dict(outcomes.most_common()))
        if time.monotonic() - saved > SAVE_EVERY:
            saved = time.monotonic()
            save()
            print(f"{name}: {number + 1:,} of {total:,}, {outcomes['failed']} failed", flush=True)


def run_load(name: str, seconds: float, folder: Path, out: Path) -> bool:
    """Measure a load, unless that was done; whether all requests were answered, but for `soak` perhaps with 503."""
    report = read_json(out) if out.exists() else {"parts": {}}
    part = report["parts"].get(name)
    if part is None or part["seconds"] < seconds:
        load = LOADS[name][0]
        part = {"about": description(load), "command": command(), **load(folder, seconds), "conditions": conditions()}
        report["parts"][name] = part
        write_json(out, report)
    print(f"{name}: { ({key: value for key, value in part.items() if key != 'series'}) }", flush=True)
    return not part["errors" if name == "soak" else "dropped"] + part["tracebacks"]


def main() -> None:
    parser = parser_for(__doc__, "results/faults.json")
    parser.add_argument("--parts", nargs="+", choices=[*PARTS, *LOADS], default=[*PARTS, *LOADS])
    for name, (_, amount) in {**PARTS, **LOADS}.items():
        unit = "seconds" if name in LOADS else "steps"
        parser.add_argument(f"--{name}", type=int, default=amount, help=f"{unit} [default: {amount:,}]")
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
            amount = getattr(arguments, name.replace("-", "_"))
            if name in LOADS:
                good &= run_load(name, amount, Path(folder), arguments.out)
            else:
                good &= run_part(name, amount, arguments.seed, Path(folder), arguments.out)
    sys.exit(0 if good else 1)


if __name__ == "__main__":
    main()
