"""Logs larger than memory: `posrec prepare` in parts and on a local Ray cluster, compared with memory.

Two seeded logs are made: 33 million clicks in one file like yoochoose-clicks.dat (benchmarks/prepare.py), and 200
million in twenty Parquet files of OTTO's size (1.8 million items, sessions of 16 clicks that run from one file into the
next). Each part is a process of its own, whose time and peak memory are measured:

    yoochoose-memory    33 million clicks, as always
    yoochoose-disk      the same with --memory 1.5GB: under 1.5 GB, in at most twice the time
    yoochoose-ray       the same on a local cluster of two workers, one of which is killed in the middle
    otto-disk           200 million clicks with --memory 4GB: under 4 GB
    otto-ray            the same on two workers, one of which is killed in the middle

    python benchmarks/prepare_large.py --folder LOGS          all parts; those that results/prepare_large.json has
                                                              already are left out
    python benchmarks/prepare_large.py --folder LOGS otto-disk    one part, measured again

Seconds depend on what else the machine does, so CPU seconds are given too. The fingerprints must be equal.
"""

import os
import signal
import sys
import threading
import time
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np

import prepare as small
from harness import command, conditions, measured, parser_for, posrec
from posrec.io import read_json, write_json

SEED, START = 2022, 1_659_304_800_000
ITEMS, DAYS, AVERAGE_LENGTH, FILES = 1_800_000, 28, 16, 20
PARTS = {  # part: (log, options)
    "yoochoose-memory": ("yoochoose", ["--memory", "100GB"]),
    "yoochoose-disk": ("yoochoose", ["--memory", "1.5GB"]),
    "yoochoose-ray": ("yoochoose", ["--engine", "ray", "--memory", "1.5GB"]),
    "otto-disk": ("otto", ["--memory", "4GB"]),
    "otto-ray": ("otto", ["--engine", "ray", "--memory", "4GB"]),
}


def make_otto(folder: Path, clicks: int) -> None:
    """Write FILES Parquet files in order of time; a file that exists is kept."""
    import polars as pl

    folder.mkdir(parents=True, exist_ok=True)
    window, sessions = DAYS * 86_400_000 // FILES, clicks // FILES // AVERAGE_LENGTH
    chances = 1 / np.arange(1, ITEMS + 1) ** 0.8
    popular = (np.cumsum(chances) / chances.sum()).astype(np.float32)
    late = pl.DataFrame(schema={"session": pl.Int64, "aid": pl.Int64, "ts": pl.Int64})
    for number in range(FILES):
        random = np.random.default_rng([SEED, number])
        lengths = random.geometric(1 / AVERAGE_LENGTH, sessions)
        session = np.repeat(np.arange(number * sessions, (number + 1) * sessions), lengths)
        since = np.cumsum(random.exponential(90_000, len(session)).astype(np.int64))
        first = np.cumsum(lengths) - lengths
        since -= np.repeat(since[first], lengths)
        begun = START + number * window + random.integers(0, window, sessions)
        items = np.searchsorted(popular, np.sort(random.random(len(session), dtype=np.float32)))
        random.shuffle(items)
        made = pl.DataFrame({"session": session, "aid": items, "ts": np.repeat(begun, lengths) + since})
        rows = pl.concat([late, made]).sort("ts", maintain_order=True)
        end = START + (number + 1) * window if number < FILES - 1 else sys.maxsize
        late = rows.filter(pl.col("ts") >= end)
        path = folder / f"part-{number:05d}.snappy.parquet"
        if not path.exists():
            rows.filter(pl.col("ts") < end).write_parquet(path.with_suffix(".unfinished"), compression="snappy")
            path.with_suffix(".unfinished").rename(path)
        print(path, len(rows), flush=True)


def watched(line: list[str], kill_worker: bool) -> dict[str, Any]:
    """As `measured`, with the peak of the largest process, Ray's tasks included; with `kill_worker` a task is killed
    once."""
    peaks: dict[int, int] = {}
    over = threading.Event()
    watcher = threading.Thread(target=watch, args=(over, peaks, kill_worker))
    watcher.start()
    try:
        figures = measured(line)
    finally:
        over.set()
        watcher.join()
    killed = peaks.pop(-1, 0)
    peak = max(figures.pop("peak_gib") * 2**30, *peaks.values(), 0)
    return {**figures, "peak_gb": round(peak / 1e9, 3), **({"workers_killed": killed} if kill_worker else {})}


def watch(over: threading.Event, peaks: dict[int, int], kill_worker: bool) -> None:
    """Look at the peak memory of Ray's tasks; kill the first that has worked for a while after others were done."""
    seen: dict[int, float] = {}
    killed = not kill_worker
    while not over.wait(0.5):
        for pid in ray_tasks():
            seen.setdefault(pid, time.monotonic())
            try:
                lines = Path(f"/proc/{pid}/status").read_text().splitlines()
            except OSError:
                continue
            peak = next((int(line.split()[1]) * 1024 for line in lines if line.startswith("VmHWM")), 0)
            peaks[pid] = max(peaks.get(pid, 0), peak)
            if not killed and time.monotonic() - seen[pid] > 5:
                os.kill(pid, signal.SIGKILL)
                killed, peaks[-1] = True, 1


def ray_tasks() -> list[int]:
    """The processes that run a task of Ray at the moment; no other cluster may be on the machine."""
    tasks = []
    for path in Path("/proc").glob("[0-9]*"):
        with suppress(OSError):  # it has ended
            tasks += [int(path.name)] if (path / "cmdline").read_bytes().startswith(b"ray::call") else []
    return tasks


def main() -> None:
    parser = parser_for(__doc__, "results/prepare_large.json")
    parser.add_argument("parts", nargs="*", metavar="PART", help="measured even if the results have it")
    parser.add_argument("--folder", type=Path, required=True, help="for the logs, which are kept, about 5 GB")
    parser.add_argument("--yoochoose-clicks", type=int, default=33_000_000)
    parser.add_argument("--otto-clicks", type=int, default=200_000_000)
    given = parser.parse_args()
    given.folder.mkdir(parents=True, exist_ok=True)
    yoochoose = given.folder / f"clicks-{given.yoochoose_clicks}-2015.dat"
    otto = given.folder / f"otto-{given.otto_clicks}"
    if not yoochoose.exists():
        small.make_log(yoochoose, given.yoochoose_clicks, 2015)
    if len(list(otto.glob("*.parquet"))) < FILES:
        make_otto(otto, given.otto_clicks)
    logs = {
        "yoochoose": [str(yoochoose), "--format", "yoochoose", "--recipe", "clean"],
        "otto": [str(otto / "part-*.parquet"), "--format", "parquet", "--time-unit", "ms"],
    }
    results = read_json(given.out) if given.out.exists() else {"parts": {}}
    for part in given.parts or [part for part in PARTS if part not in results["parts"]]:
        log, options = PARTS[part]
        out = given.folder / f"prepared-{part}"
        small.remove(out) if out.exists() else None
        figures = watched(posrec("prepare", *logs[log], *options, "--out", out), kill_worker="ray" in part)
        manifest = read_json(out / "manifest.json")
        small.remove(out)
        results["parts"][part] = {
            **figures,
            "fingerprint": manifest["fingerprint"],
            "clicks_read": manifest["steps"][0]["clicks"],
            "command": " ".join(["posrec prepare LOG", *logs[log][1:], *options]),
        }
        print(part, results["parts"][part], flush=True)
        write_json(given.out, results | {"command": command(), "seed": [2015, SEED], **conditions()})


if __name__ == "__main__":
    main()
