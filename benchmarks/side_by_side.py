"""Two trainings on the same cores: how much longer each takes than one alone.

    python benchmarks/side_by_side.py [--write]

An epoch of the demo's PosRec, alone and twice at the same time, with OpenMP threads that soon sleep while they wait,
which is posrec's default, and for comparison with threads that spin (OMP_WAIT_POLICY=ACTIVE). Prints the ratio of the
time side by side to the time alone; two trainings that share the cores fairly have a ratio of about 2.
"""

import argparse
import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path
from statistics import median

from conditions import conditions
from posrec.demo.shop import make_demo
from posrec.device import WAITING
from posrec.io import write_json

SETTINGS = ("d=64", "batch_size=256", "learning_rate=0.005", "epochs=1")
RESULT = Path(__file__).parents[1] / "results" / "side_by_side.json"


def start(data: Path, out: Path, policy: str) -> subprocess.Popen[bytes]:
    words = ["train", str(data), "--out", str(out), "--device", "cpu", "--no-export"]
    words += [word for setting in SETTINGS for word in ("--set", setting)]
    plain = {name: value for name, value in os.environ.items() if name not in WAITING}
    environment = {**plain, **(WAITING if policy == "sleep" else {"OMP_WAIT_POLICY": "ACTIVE"})}
    quiet = subprocess.DEVNULL
    return subprocess.Popen([sys.executable, "-m", "posrec", *words], stdout=quiet, stderr=quiet, env=environment)


def epoch_seconds(data: Path, folder: Path, policy: str, count: int) -> list[float]:
    """Seconds of the epoch in each of `count` trainings that run at the same time."""
    runs = [folder / f"{policy}-{count}-{number}" for number in range(count)]
    processes = [start(data, run, policy) for run in runs]
    if any(process.wait() for process in processes):
        sys.exit("a training failed")
    return [json.loads((run / "log.jsonl").read_text().splitlines()[0])["seconds"] for run in runs]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--sessions", type=int, default=4000, help="of the demo shop; it has 40,000")
    parser.add_argument("--write", action="store_true", help=f"write {RESULT.name} into results/")
    arguments = parser.parse_args()
    found: dict[str, dict[str, list[float]]] = {}
    with tempfile.TemporaryDirectory() as scratch:
        data = make_demo(Path(scratch) / "demo", sessions=arguments.sessions).path
        for round_number in range(arguments.rounds):
            for policy in ("sleep", "spin"):
                for count, name in ((1, "alone"), (2, "side by side")):
                    if policy == "spin" and count == 2 and round_number:
                        continue  # once is enough of what takes minutes
                    folder = Path(scratch) / f"round-{round_number}"
                    seconds = epoch_seconds(data, folder, policy, count)
                    found.setdefault(policy, {}).setdefault(name, []).extend(seconds)
                    print(f"{policy:8} {name:13} {' '.join(f'{one:.1f}' for one in seconds)} s", flush=True)
    summary = {}
    for policy, times in found.items():
        alone, together = median(times["alone"]), median(times["side by side"])
        summary[policy] = {"alone": alone, "side_by_side": together, "ratio": round(together / alone, 2)}
        print(f"{policy}: alone {alone:.1f} s, side by side {together:.1f} s each, ratio {together / alone:.2f}")
    if arguments.write:
        about = {"command": "python benchmarks/side_by_side.py --write", "seed": 0, "sessions": arguments.sessions}
        write_json(RESULT, {**about, **conditions(), "seconds_an_epoch": summary, "all": found})


if __name__ == "__main__":
    main()
