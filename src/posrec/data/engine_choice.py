"""Which engine prepares a log: memory if the log fits, disk if it does not, Ray if the user asks for it."""

import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import polars as pl

from posrec.data.engines import BYTES_PER_CLICK, SHARE, DiskEngine, Engine, MemoryEngine, RayEngine, partitions_for
from posrec.data.log import Log
from posrec.data.readers.parquet import open_parquet
from posrec.data.sources import is_compressed, read_start
from posrec.device import free_memory
from posrec.errors import InputError
from posrec.io import scratch_folder
from posrec.progress import Progress

ENGINES = ("memory", "disk", "ray")
SIZE = re.compile(r"(\d+(?:\.\d+)?)\s*([kmgt]?)i?b?", re.IGNORECASE)
UNITS = {"": 1, "k": 10**3, "m": 10**6, "g": 10**9, "t": 10**12}
LEAST_MEMORY = 512 * 10**6  # Python and its libraries take half of it
RAY_MEMORY = 4 * 10**9  # of a task, unless --memory says otherwise
START_BYTES = 1 << 20
EXPANSION = 8  # how many times its size a compressed log has, about
AT_ONCE = 4_000_000  # clicks that are written to disk together, at most


@contextmanager
def choose_engine(
    logs: Sequence[Log],
    out: Path,
    engine: str | None,
    memory: str | int | None,
    address: str | None,
    progress: Progress,
) -> Iterator[Engine]:
    """The engine to prepare these logs with; files that it needs are beside `out`, and are removed."""
    if engine is not None and engine not in ENGINES:
        raise InputError(f"--engine {engine!r} is not known; choose one of {', '.join(ENGINES)}")
    if address is not None and engine != "ray":
        raise InputError("--address is for --engine ray")
    allowed = parse_size(memory) if memory is not None else None
    if engine == "memory":
        if allowed is not None:
            raise InputError("--memory can't be used with --engine memory, which takes what the log needs")
        yield MemoryEngine()
        return
    clicks = sum(estimate_clicks(log) for log in logs)
    needed = clicks * BYTES_PER_CLICK + LEAST_MEMORY
    if engine is None:
        limit = allowed if allowed is not None else free_memory()
        if needed <= limit:
            yield MemoryEngine()
            return
        progress.message(
            f"about {clicks:,} clicks need {shown(needed)} of memory, and {shown(limit)} "
            f"{'are allowed' if allowed is not None else 'are free'}: the log is prepared on disk, in parts "
            "(choose with --memory or --engine)"
        )
    memory_bytes = allowed or (RAY_MEMORY if engine == "ray" else free_memory() // 2)
    partitions = partitions_for(clicks, memory_bytes)
    at_once = min(AT_ONCE, memory_bytes // (SHARE * BYTES_PER_CLICK))
    with scratch_folder(out.absolute()) as folder:
        if engine != "ray":
            yield DiskEngine(folder, partitions, at_once, progress)
            return
        from posrec.ray_cluster import ray_cluster

        with ray_cluster(address) as cluster:
            yield RayEngine(folder, partitions, at_once, progress, cluster=cluster)


def parse_size(text: str | int) -> int:
    """'4GB' -> 4000000000 bytes."""
    match = SIZE.fullmatch(str(text).strip())
    if not match:
        raise InputError(f"--memory {text!r} is not a size; write e.g. 4GB or 800MB")
    size = int(float(match[1]) * UNITS[match[2].lower()])
    if size < LEAST_MEMORY:
        raise InputError(f"--memory must be at least {shown(LEAST_MEMORY)}, not {text}")
    return size


def shown(size: int) -> str:
    return f"{size / 10**9:.1f} GB"


def estimate_clicks(log: Log) -> int:
    """About how many clicks a log has, from its size and its first lines."""
    if log.table is not None:
        return int(log.table.select(pl.len()).collect().item())
    if log.format == "parquet":
        largest = max(log.files, key=lambda path: path.stat().st_size)  # the first may be a part without rows
        with open_parquet(largest) as part:
            rows = int(part.select(pl.len()).collect().item())
        return rows * sum(path.stat().st_size for path in log.files) // largest.stat().st_size
    size = sum(path.stat().st_size * (EXPANSION if is_compressed(path) else 1) for path in log.files)
    start = read_start(log.files[0], START_BYTES)
    if log.format == "otto":
        found = start.count(b'"aid"')
    elif log.format in ("sessions", "srgnn"):
        found = len(start) // 4  # of digits and a space, or of a pickled number
    else:
        found = start.count(b"\n")
    return size * max(found, 1) // max(len(start), 1)
