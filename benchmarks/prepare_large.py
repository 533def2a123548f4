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

import argparse
import json
import os
import platform
import signal
import subprocess
import sys
import tempfile
import threading
import time
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np

import prepare as small

HERE = Path(__file__).resolve().parent
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


def measure(command: list[str], kill_worker: bool) -> dict[str, Any]:
    """Seconds, CPU seconds, and the peak of the largest process; with `kill_worker` a task of Ray's is killed once."""
    begun = time.perf_counter()
    peaks: dict[int, int] = {}
    with tempfile.TemporaryFile() as output:
        process = subprocess.Popen(command, stdout=output, stderr=subprocess.STDOUT)
        watcher = threading.Thread(target=watch, args=(process.pid, peaks, kill_worker), daemon=True)
        watcher.start()
        _, status, usage = os.wait4(process.pid, 0)
        process.returncode = os.waitstatus_to_exitcode(status)
        output.seek(0)
        text = output.read().decode()
        if process.returncode:
            sys.exit(f"{' '.join(command)} failed:\n{text}")
    figures = {
        "seconds": round(time.perf_counter() - begun, 1),
        "cpu_seconds": round(usage.ru_utime + usage.ru_stime, 1),
        "peak_gb": round(max(usage.ru_maxrss * 1024, *peaks.values(), 0) / 1e9, 3),
    }
    return figures | ({"workers_killed": peaks.get(-1, 0)} if kill_worker else {})


def watch(parent: int, peaks: dict[int, int], kill_worker: bool) -> None:
    """Look at the peak memory of Ray's tasks; kill the first that has worked for a while after others were done."""
    seen: dict[int, float] = {}
    killed = not kill_worker
    while Path(f"/proc/{parent}").exists():
        for pid in tasks_below(parent):
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
        time.sleep(0.5)


def tasks_below(parent: int) -> list[int]:
    """The processes, below `parent`, that run one of the cluster's tasks at the moment."""
    above, names = {}, {}
    for path in Path("/proc").glob("[0-9]*"):
        try:
            above[int(path.name)] = int((path / "stat").read_text().rpartition(")")[2].split()[1])
            names[int(path.name)] = (path / "cmdline").read_bytes()
        except (OSError, ValueError, IndexError):
            continue

    def is_below(pid: int) -> bool:
        while pid in above:
            pid = above[pid]
            if pid == parent:
                return True
        return False

    return [pid for pid, name in names.items() if name.startswith(b"ray::call") and is_below(pid)]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("parts", nargs="*", metavar="PART", help="measured even if the results have it")
    parser.add_argument("--folder", type=Path, required=True, help="for the logs, which are kept, about 5 GB")
    parser.add_argument("--yoochoose-clicks", type=int, default=33_000_000)
    parser.add_argument("--otto-clicks", type=int, default=200_000_000)
    parser.add_argument("--make", action="store_true", help="only make the logs")
    parser.add_argument("--out", type=Path, default=HERE.parent / "results" / "prepare_large.json")
    given = parser.parse_args()
    yoochoose = given.folder / f"clicks-{given.yoochoose_clicks}-2015.dat"
    otto = given.folder / f"otto-{given.otto_clicks}"
    if not yoochoose.exists():
        small.make_log(yoochoose, given.yoochoose_clicks, 2015)
    if len(list(otto.glob("*.parquet"))) < FILES:
        make_otto(otto, given.otto_clicks)
    if given.make:
        return
    logs = {
        "yoochoose": [str(yoochoose), "--format", "yoochoose", "--recipe", "clean"],
        "otto": [str(otto / "part-*.parquet"), "--format", "parquet", "--time-unit", "ms"],
    }
    results = json.loads(given.out.read_text()) if given.out.exists() else {"parts": {}}
    for part in given.parts or [part for part in PARTS if part not in results["parts"]]:
        log, options = PARTS[part]
        out = given.folder / f"prepared-{part}"
        small.remove(out) if out.exists() else None
        command = [sys.executable, "-m", "posrec", "prepare", *logs[log], *options, "--out", str(out)]
        before = round(os.getloadavg()[1], 1)
        figures = measure(command, kill_worker="ray" in part)
        manifest = json.loads((out / "manifest.json").read_text())
        figures["fingerprint"] = manifest["fingerprint"]
        figures["clicks_read"] = manifest["steps"][0]["clicks"]
        figures["load_before"] = before
        figures["command"] = " ".join(["posrec prepare LOG", *logs[log][1:], *options])
        small.remove(out)
        results["parts"][part] = figures
        print(part, figures, flush=True)
        results |= {
            "claim": "33 million clicks under 1.5 GB in at most twice the time; 200 million under 4 GB; the same "
            "fingerprint on Ray with a worker killed",
            "command": "python benchmarks/prepare_large.py --folder LOGS",
            "seed": [2015, SEED],
            "machine": small.machine(),
            "versions": {name: version(name) for name in ("polars", "numpy", "ray")}
            | {"python": platform.python_version()},
        }
        given.out.write_text(json.dumps(results, indent=2) + "\n")


if __name__ == "__main__":
    main()
