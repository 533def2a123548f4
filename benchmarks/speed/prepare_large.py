"""Logs larger than memory: time and peak memory of `posrec prepare --memory`.

    python -m benchmarks.speed.prepare_large --folder LOGS --part otto

Two logs are made: `yoochoose`, 33 million clicks in one file (prepare.py), and `otto`,
200 million in Parquet files of OTTO's size. Without --part both are prepared, else the result of
the other one stays. Seconds depend on other work on the machine, CPU seconds less so.
"""

import shutil
import sys
from pathlib import Path

import numpy as np
import polars as pl

from benchmarks.harness.measuring import apart, measured, posrec
from benchmarks.harness.results import options, write_result
from benchmarks.speed import prepare
from posrec.io import read_json

SEED = 2022
START = 1_659_304_800_000
ITEMS = 1_800_000
DAYS = 28
AVERAGE_LENGTH = 16
FILES = 20


def make_otto(folder: Path, clicks: int) -> None:
    """Write Parquet files in order of time; sessions run from one file into the next."""
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
        uniform = np.sort(random.random(len(session), dtype=np.float32))
        items = np.searchsorted(popular, uniform)
        random.shuffle(items)
        times = np.repeat(begun, lengths) + since
        new_rows = pl.DataFrame({"session": session, "aid": items, "ts": times})
        rows = pl.concat([late, new_rows]).sort("ts", maintain_order=True)
        end = START + (number + 1) * window if number < FILES - 1 else sys.maxsize
        late = rows.filter(pl.col("ts") >= end)
        file = folder / f"part-{number:05d}.snappy.parquet"
        rows.filter(pl.col("ts") < end).write_parquet(file, compression="snappy")


def main() -> None:
    arguments = options(
        __doc__, "results/prepare_large.json", folder=Path("logs"), part=""
    )
    folder = arguments.folder
    folder.mkdir(parents=True, exist_ok=True)
    yoochoose = folder / "clicks.dat"
    otto = folder / "otto"
    if not yoochoose.exists():
        apart(prepare.make_log, yoochoose, 33_000_000)
    if not otto.exists():
        apart(make_otto, otto, 200_000_000)
    logs = {"yoochoose": yoochoose, "otto": otto / "part-*.parquet"}
    options_of = {
        "yoochoose": "--format yoochoose --recipe clean --memory 1.5GB",
        "otto": "--format parquet --time-unit ms --memory 4GB",
    }
    parts = read_json(arguments.out)["parts"] if arguments.out.exists() else {}
    for part in [arguments.part] if arguments.part else logs:
        out = folder / f"prepared-{part}"
        out_options = ("--out", out, "--overwrite")
        line = posrec("prepare", logs[part], *options_of[part].split(), *out_options)
        figures = measured(line)
        manifest = read_json(out / "manifest.json")
        shutil.rmtree(out)
        parts[part] = {
            **figures,
            "peak_gb": round(figures["peak_gib"] * 2**30 / 1e9, 3),
            "fingerprint": manifest["fingerprint"],
            "clicks_read": manifest["steps"][0]["clicks"],
            "command": f"posrec prepare LOG {options_of[part]}",
        }
        write_result(arguments.out, {"parts": parts, "seed": [prepare.SEED, SEED]})


if __name__ == "__main__":
    main()
