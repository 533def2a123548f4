"""Logs larger than memory: time and peak memory of `posrec prepare` in parts, each in a process of
its own.

    python benchmarks/prepare_large.py --folder LOGS                 both logs
    python benchmarks/prepare_large.py --folder LOGS --part otto     one of them; the result of the other stays

Two seeded logs are made: `yoochoose`, 33 million clicks in one file (benchmarks/prepare.py),
prepared with --memory 1.5GB; and `otto`, 200 million in twenty Parquet files of OTTO's size (1.8
million items, sessions of 16 clicks that run from one file into the next), prepared with --memory
4GB. Seconds depend on what else the machine does, so CPU seconds are given too."""

import shutil
import sys
from pathlib import Path

import numpy as np
import polars as pl

import prepare
from harness import apart, measured, options, posrec, write_result
from posrec.io import read_json

SEED = 2022
START = 1_659_304_800_000
ITEMS = 1_800_000
DAYS = 28
AVERAGE_LENGTH = 16
FILES = 20


def make_otto(folder: Path, clicks: int) -> None:
    """Write FILES Parquet files in order of time."""
    folder.mkdir(parents=True)
    window = DAYS * 86_400_000 // FILES
    sessions = clicks // FILES // AVERAGE_LENGTH
    chances = 1 / np.arange(1, ITEMS + 1) ** 0.8
    popular = (np.cumsum(chances) / chances.sum()).astype(np.float32)
    late = pl.DataFrame(schema={"session": pl.Int64, "aid": pl.Int64, "ts": pl.Int64})
    for number in range(FILES):
        random = np.random.default_rng([SEED, number])
        lengths = random.geometric(1 / AVERAGE_LENGTH, sessions)
        session = np.repeat(
            np.arange(number * sessions, (number + 1) * sessions), lengths
        )
        since = np.cumsum(random.exponential(90_000, len(session)).astype(np.int64))
        first = np.cumsum(lengths) - lengths
        since -= np.repeat(since[first], lengths)
        begun = START + number * window + random.integers(0, window, sessions)
        items = np.searchsorted(
            popular, np.sort(random.random(len(session), dtype=np.float32))
        )
        random.shuffle(items)
        made = pl.DataFrame(
            {"session": session, "aid": items, "ts": np.repeat(begun, lengths) + since}
        )
        rows = pl.concat([late, made]).sort("ts", maintain_order=True)
        end = START + (number + 1) * window if number < FILES - 1 else sys.maxsize
        late = rows.filter(pl.col("ts") >= end)
        rows.filter(pl.col("ts") < end).write_parquet(
            folder / f"part-{number:05d}.snappy.parquet", "snappy"
        )


def main() -> None:
    given = options(__doc__, "results/prepare_large.json", folder=Path("logs"), part="")
    given.folder.mkdir(parents=True, exist_ok=True)
    yoochoose = given.folder / "clicks.dat"
    otto = given.folder / "otto"
    if not yoochoose.exists():
        apart(prepare.make_log, yoochoose, 33_000_000)
    if not otto.exists():
        apart(make_otto, otto, 200_000_000)
    logs = {
        "yoochoose": [
            str(yoochoose),
            "--format",
            "yoochoose",
            "--recipe",
            "clean",
            "--memory",
            "1.5GB",
        ],
        "otto": [
            str(otto / "part-*.parquet"),
            "--format",
            "parquet",
            "--time-unit",
            "ms",
            "--memory",
            "4GB",
        ],
    }
    parts = read_json(given.out)["parts"] if given.out.exists() else {}
    for part in [given.part] if given.part else logs:
        out = given.folder / f"prepared-{part}"
        figures = measured(posrec("prepare", *logs[part], "--out", out, "--overwrite"))
        manifest = read_json(out / "manifest.json")
        shutil.rmtree(out)
        parts[part] = {
            **figures,
            "peak_gb": round(figures["peak_gib"] * 2**30 / 1e9, 3),
            "fingerprint": manifest["fingerprint"],
            "clicks_read": manifest["steps"][0]["clicks"],
            "command": " ".join(["posrec prepare LOG", *logs[part][1:]]),
        }
        write_result(given.out, {"parts": parts, "seed": [prepare.SEED, SEED]})


if __name__ == "__main__":
    main()
