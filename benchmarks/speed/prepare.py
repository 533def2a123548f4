"""Time and memory of `posrec prepare`, compared with a bare polars pipeline over the same file.

    python -m benchmarks.speed.prepare --clicks 2000000

The log is like yoochoose-clicks.dat: sessions overlap in time, items follow Zipf's law. The
contenders take turns, each in another process, whose peak memory is measured: `bare`
(bare_pipeline.py), and `posrec prepare` with the recipes `paper` and `clean`.
"""

import shutil
import statistics
import sys
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl

from benchmarks.harness.measuring import apart, measured, posrec
from benchmarks.harness.results import options, write_result

ITEMS = 50_000
DAYS = 183
AVERAGE_LENGTH = 3.6
START = 1_396_310_400_000  # 2014-04-01, as the real log
CHUNK = 2_000_000
SEED = 2015


def make_log(path: Path, clicks: int) -> None:
    """Write a log in order of time."""
    random = np.random.default_rng(SEED)
    sessions = int(clicks / AVERAGE_LENGTH) + 1
    lengths = random.geometric(1 / AVERAGE_LENGTH, sessions)
    session = np.repeat(np.arange(1, sessions + 1, dtype=np.uint32), lengths)[:clicks]
    session = np.concatenate(
        [session, np.full(clicks - len(session), sessions, dtype=np.uint32)]
    )
    begun = random.integers(0, DAYS * 86_400_000, sessions)
    first = np.flatnonzero(np.diff(session, prepend=0))
    pauses = random.exponential(90_000, clicks).astype(np.int64)
    since = np.cumsum(pauses)
    since -= np.repeat(since[first], np.diff(first, append=clicks))
    times = START + begun[session - 1] + since
    chances = 1 / np.arange(1, ITEMS + 1) ** 0.9
    names = 214_500_000 + random.permutation(ITEMS)
    shares = np.cumsum(chances) / chances.sum()
    items = names[np.searchsorted(shares, random.random(clicks))]
    order = np.argsort(times)
    with path.open("wb") as file:
        for start in range(0, clicks, CHUNK):
            rows = order[start : start + CHUNK]
            moment = pl.from_epoch(pl.Series("time", times[rows]), time_unit="ms")
            columns = {"session": session[rows], "time": moment, "item": items[rows]}
            frame = pl.DataFrame(columns).with_columns(category=pl.lit("0"))
            frame.write_csv(
                file, include_header=False, datetime_format="%Y-%m-%dT%H:%M:%S%.3fZ"
            )


def compare(log: Path, folder: Path, rounds: int) -> dict[str, Any]:
    """Medians of the contenders, and of their ratios to the bare pipeline of the same round."""
    runs: dict[str, list[dict[str, Any]]] = {"bare": [], "paper": [], "clean": []}
    for number in range(rounds):
        for name, of_name in runs.items():
            out = folder / f"{name}-{number}"
            if name == "bare":
                script = Path(__file__).with_name("bare_pipeline.py")
                command = [sys.executable, str(script), str(log), str(out)]
            else:
                recipe = ("--format", "yoochoose", "--recipe", name)
                command = posrec("prepare", log, *recipe, "--out", out)
            of_name.append(measured(command))
            print(f"round {number + 1}: {name:7} {of_name[-1]}", flush=True)
            if out.is_dir():
                shutil.rmtree(out)
            else:
                out.unlink()
    table = {}
    for name, of_name in runs.items():
        ratios = [
            mine["seconds"] / bare["seconds"]
            for mine, bare in zip(of_name, runs["bare"], strict=True)
        ]
        table[name] = {
            "seconds": statistics.median(run["seconds"] for run in of_name),
            "peak_gib": max(run["peak_gib"] for run in of_name),
            "times_the_barest": round(statistics.median(ratios), 3),
            "runs": of_name,
        }
    return table


def main() -> None:
    arguments = options(__doc__, "results/prepare.json", clicks=33_000_000, rounds=3)
    with tempfile.TemporaryDirectory(prefix="posrec-bench-") as folder:
        log = Path(folder) / "clicks.dat"
        apart(make_log, log, arguments.clicks)
        results = {
            "seed": SEED,
            "clicks": arguments.clicks,
            "log_gib": round(log.stat().st_size / 2**30, 3),
            "contenders": compare(log, Path(folder), arguments.rounds),
        }
    write_result(arguments.out, results)


if __name__ == "__main__":
    main()
