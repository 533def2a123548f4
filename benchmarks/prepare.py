"""Time and memory of `posrec prepare`, compared with a minimal polars pipeline over the same file in the same run.

The script writes a log like yoochoose-clicks.dat (seeded): sessions overlap in time, items follow Zipf's law. Then the
contenders take turns, each in a process of its own so that its peak memory can be measured:

    text      scan the file with ids as text, parse the time, gather each session's items by time, sink to Parquet
    numbers   the same with ids as integers and the time truncated before it is parsed, which keeps less and is faster
    paper     posrec prepare --format yoochoose
    clean     posrec prepare --format yoochoose --recipe clean

    python benchmarks/prepare.py                     33,000,000 clicks, three rounds, results/prepare.json
    python benchmarks/prepare.py --clicks 2000000    quicker
    python benchmarks/prepare.py --wide-clicks 0     without the log that is larger than the memory

The last part writes a log of wide lines (a page, a referrer and an agent beside each click, as web servers write),
larger than the memory that the process may then allocate (RLIMIT_DATA). This shows that the file is streamed: memory is
needed for the clicks, about 100 bytes each at the peak, not for the file.
"""

import argparse
import json
import os
import platform
import resource
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np

HERE = Path(__file__).resolve().parent
ITEMS, DAYS, AVERAGE_LENGTH = 50_000, 183, 3.6
START = 1_396_310_400_000  # 2014-04-01, as the real log
CHUNK = 2_000_000
GIB = 1 << 30


def make_log(path: Path, clicks: int, seed: int, wide: bool = False) -> None:
    """Write a log in order of time."""
    import polars as pl

    random = np.random.default_rng(seed)
    sessions = int(clicks / AVERAGE_LENGTH) + 1
    lengths = random.geometric(1 / AVERAGE_LENGTH, sessions)
    session = np.repeat(np.arange(1, sessions + 1, dtype=np.uint32), lengths)[:clicks]
    session = np.concatenate([session, np.full(clicks - len(session), sessions, dtype=np.uint32)])
    begun = random.integers(0, DAYS * 86_400_000, sessions)
    first = np.flatnonzero(np.diff(session, prepend=0))
    pauses = random.exponential(90_000, clicks).astype(np.int64)
    since = np.cumsum(pauses)
    since -= np.repeat(since[first], np.diff(first, append=clicks))
    times = START + begun[session - 1] + since
    chances = 1 / np.arange(1, ITEMS + 1) ** 0.9
    names = 214_500_000 + random.permutation(ITEMS)
    items = names[np.searchsorted(np.cumsum(chances) / chances.sum(), random.random(clicks))]
    order = np.argsort(times)
    with path.open("wb") as file:
        if wide:
            file.write(b"session,timestamp,item,page,referrer,agent\n")
        for start in range(0, clicks, CHUNK):
            rows = order[start : start + CHUNK]
            moment = pl.from_epoch(pl.Series("time", times[rows]), time_unit="ms")
            frame = pl.DataFrame({"session": session[rows], "time": moment, "item": items[rows]})
            if wide:
                page = pl.format("https://shop.example/catalogue/{}/view?visit={}", "item", "session")
                frame = frame.with_columns(page=page, referrer=page + "&from=search", agent=pl.lit("Mozilla/5.0 " * 12))
            else:
                frame = frame.with_columns(category=pl.lit("0"))
            frame.write_csv(file, include_header=False, datetime_format="%Y-%m-%dT%H:%M:%S%.3fZ")


def minimal_pipeline(log: Path, out: Path, numbers: bool) -> None:
    """What every preparation of this log has to do."""
    import polars as pl

    id_type = pl.Int64() if numbers else pl.String()
    schema = {"session": id_type, "time": pl.String(), "item": id_type, "category": pl.String()}
    moment = pl.col("time").str.to_datetime("%Y-%m-%dT%H:%M:%S%.fZ", time_unit="ms")
    if numbers:
        seconds = pl.col("time").str.slice(0, 19).str.to_datetime("%Y-%m-%dT%H:%M:%S", time_unit="ms")
        moment = (seconds.cast(pl.Int64) + pl.col("time").str.slice(20, 3).cast(pl.Int64)).alias("time")
    clicks = pl.scan_csv(log, has_header=False, schema=schema)
    sessions = clicks.with_columns(moment).group_by("session").agg(pl.col("item").sort_by("time"), pl.col("time").min())
    sessions.sink_parquet(out, engine="streaming")


def measure(command: list[str], limit: int | None = None) -> dict[str, Any]:
    """Seconds and peak resident bytes of a process; `limit` caps what it may allocate."""

    def cap() -> None:
        if limit is not None:
            resource.setrlimit(resource.RLIMIT_DATA, (limit, limit))

    begun = time.perf_counter()
    with tempfile.TemporaryFile() as output:
        process = subprocess.Popen(command, preexec_fn=cap, stdout=output, stderr=subprocess.STDOUT)
        _, status, usage = os.wait4(process.pid, 0)
        process.returncode = os.waitstatus_to_exitcode(status)
        if process.returncode:
            output.seek(0)
            sys.exit(f"{' '.join(command[:6])} ... failed:\n{output.read().decode()}")
    return {"seconds": round(time.perf_counter() - begun, 2), "peak_gib": round(usage.ru_maxrss * 1024 / GIB, 3)}


def myself(*arguments: object) -> list[str]:
    return [sys.executable, str(HERE / "prepare.py"), *map(str, arguments)]


def posrec(*arguments: object) -> list[str]:
    return [sys.executable, "-m", "posrec", "prepare", *map(str, arguments)]


def compare(log: Path, folder: Path, rounds: int) -> dict[str, Any]:
    """Run the contenders in turns, `rounds` times; medians, and ratios to the faster minimal pipeline of each round."""
    runs: dict[str, list[dict[str, Any]]] = {"text": [], "numbers": [], "paper": [], "clean": []}
    for number in range(rounds):
        for name, measured in runs.items():
            out = folder / f"{name}-{number}"
            if name in ("text", "numbers"):
                command = myself(f"--run-{name}", log, out)
            else:
                command = posrec(log, "--format", "yoochoose", "--recipe", name, "--out", out)
            measured.append(measure(command))
            print(f"round {number + 1}: {name:7} {measured[-1]['seconds']:7.2f} s {measured[-1]['peak_gib']:6.2f} GiB")
            remove(out)
    table = {}
    for name, measured in runs.items():
        bare = [min(pair, key=lambda run: run["seconds"]) for pair in zip(runs["text"], runs["numbers"], strict=True)]
        ratios = [mine["seconds"] / least["seconds"] for mine, least in zip(measured, bare, strict=True)]
        table[name] = {
            "seconds": statistics.median(run["seconds"] for run in measured),
            "peak_gib": max(run["peak_gib"] for run in measured),
            "times_the_barest": round(statistics.median(ratios), 3),
            "runs": measured,
        }
    return table


def stream(folder: Path, clicks: int, limit_gib: float, seed: int) -> dict[str, Any]:
    """Prepare a log of wide lines that is larger than the memory the process may allocate."""
    log = folder / "wide.csv"
    measure(myself("--make", log, "--clicks", clicks, "--seed", seed, "--wide"))
    size = log.stat().st_size
    command = posrec(log, "--format", "csv", "--out", folder / "wide")
    figures = measure(command, limit=int(limit_gib * GIB))
    remove(folder / "wide")
    print(f"{size / GIB:.2f} GiB of log with {limit_gib} GiB allowed: {figures}")
    return {"clicks": clicks, "log_gib": round(size / GIB, 3), "allowed_gib": limit_gib, **figures}


def remove(path: Path) -> None:
    if path.is_dir():
        shutil.rmtree(path)
    else:
        path.unlink()


def machine() -> dict[str, Any]:
    info = Path("/proc/cpuinfo")
    names = [line.partition(":")[2].strip() for line in info.read_text().splitlines() if line.startswith("model name")]
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    return {"cpu": names[0] if names else platform.machine(), "cores": os.cpu_count(), "memory_gib": memory // GIB}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--clicks", type=int, default=33_000_000)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--seed", type=int, default=2015)
    parser.add_argument("--wide-clicks", type=int, default=15_000_000, help="0 skips that part")
    parser.add_argument("--allowed-gib", type=float, default=3.0)
    parser.add_argument("--keep", type=Path, help="write the logs to this folder and keep them")
    parser.add_argument("--out", type=Path, default=HERE.parent / "results" / "prepare.json")
    parser.add_argument("--make", type=Path, help=argparse.SUPPRESS)
    parser.add_argument("--wide", action="store_true", help=argparse.SUPPRESS)
    parser.add_argument("--run-text", type=Path, nargs=2, help=argparse.SUPPRESS)
    parser.add_argument("--run-numbers", type=Path, nargs=2, help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.make:
        return make_log(given.make, given.clicks, given.seed, given.wide)
    if given.run_text or given.run_numbers:
        return minimal_pipeline(*(given.run_text or given.run_numbers), numbers=bool(given.run_numbers))
    load = round(os.getloadavg()[1], 2)  # over five minutes: other work on the machine slows every contender
    with tempfile.TemporaryDirectory(prefix="posrec-bench-") as temporary:
        folder = given.keep or Path(temporary)
        folder.mkdir(parents=True, exist_ok=True)
        log = folder / f"clicks-{given.clicks}-{given.seed}.dat"
        if not log.exists():
            print("making the log", measure(myself("--make", log, "--clicks", given.clicks, "--seed", given.seed)))
        results = {
            "claim": "at most 1.5 times the time of the faster minimal pipeline, under 4 GB; wide lines are streamed",
            "command": " ".join(["python benchmarks/prepare.py", *([] if given.keep else sys.argv[1:])]),
            "seed": given.seed,
            "clicks": given.clicks,
            "log_gib": round(log.stat().st_size / GIB, 3),
            "contenders": compare(log, folder, given.rounds),
        }
        if given.wide_clicks:
            results["larger_than_memory"] = stream(folder, given.wide_clicks, given.allowed_gib, given.seed)
    results["machine"] = machine() | {"load_before_and_after": [load, round(os.getloadavg()[1], 2)]}
    packages = ("polars", "numpy", "torch")
    results["versions"] = {"python": platform.python_version(), **{name: version(name) for name in packages}}
    given.out.parent.mkdir(exist_ok=True)
    given.out.write_text(json.dumps(results, indent=2) + "\n")
    return None


if __name__ == "__main__":
    main()
