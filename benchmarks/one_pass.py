"""An epoch of posrec-plus on the demo's shop, on a CPU, beside another checkout of the package, in turns.

    git worktree add ../before COMMIT
    python benchmarks/one_pass.py --before ../before --rounds 3 --out results/one_pass.json

Each round trains one epoch with each of the two, with its default settings, in a process of its own; the ratio is that
of the medians. COMMIT is one in which posrec-plus reads every prefix of a session on its own.
"""

import json
import os
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path

from harness import parser_for, write_result
from posrec.demo.shop import make_demo


def main() -> None:
    parser = parser_for(__doc__, "results/one_pass.json")
    parser.add_argument("--before", type=Path, required=True, help="the other checkout")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--threads", type=int, default=2)
    options = parser.parse_args()
    sources = {"before": options.before / "src", "now": Path(__file__).parents[1] / "src"}
    seconds: dict[str, list[float]] = {name: [] for name in sources}
    with tempfile.TemporaryDirectory() as folder:
        data = make_demo(Path(folder) / "shop")
        for number in range(options.rounds):
            for name, source in sources.items():
                seconds[name].append(epoch(source, data.path, Path(folder) / f"{name}-{number}", options.threads))
            print(
                f"round {number + 1}: before {seconds['before'][-1]:.1f} s, now {seconds['now'][-1]:.1f} s", flush=True
            )
    medians = {name: statistics.median(values) for name, values in seconds.items()}
    write_result(
        options.out,
        {
            "epoch_seconds": seconds,
            "ratio": round(medians["now"] / medians["before"], 3),
            "samples": len(data.train),
        },
    )


def epoch(source: Path, data: Path, run: Path, threads: int) -> float:
    """The seconds of one epoch with default settings."""
    line = ["train", str(data), "--out", str(run), "--protocol", "paper", "--epochs", "1", "--device", "cpu"]
    subprocess.run(
        [sys.executable, "-m", "posrec", *line, "--threads", str(threads)],
        check=True, stdout=subprocess.DEVNULL, env={**os.environ, "PYTHONPATH": str(source)},
    )  # fmt: skip
    (seconds,) = (
        entry["seconds"] for entry in map(json.loads, (run / "log.jsonl").read_text().splitlines()) if "loss" in entry
    )
    return float(seconds)


if __name__ == "__main__":
    main()
