"""How much memory a log needs, and into how many parts it is cut if there is less."""

import re
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from posrec.data.prepare.parts import Workplace
from posrec.data.source.files import is_compressed, read_start, size_of
from posrec.data.source.log import ClickLog
from posrec.data.source.readers.parquet import count_rows, open_parquet, parquet_errors
from posrec.device import free_memory
from posrec.errors import InputError
from posrec.io import scratch_folder
from posrec.io.executor import ThisProcess, executor_of
from posrec.progress import Progress

SIZE = re.compile(r"(\d+(?:\.\d+)?)\s*([kmgt]?)i?b?", re.IGNORECASE)
UNITS = {"": 1, "k": 10**3, "m": 10**6, "g": 10**9, "t": 10**12}
BYTES_PER_CLICK = 100  # at the peak, while the clicks of a part are grouped and sorted
MIN_MEMORY = 512 * 10**6  # Python and its libraries take half of it
TASK_MEMORY = 4 * 10**9  # of a Ray task, unless --memory says otherwise
MEMORY_PER_PART = 5  # times what a part needs: beside it there are Python, the block being read, and the items
MIN_PARTS = 4
MAX_PARTS = 2000
MAX_BUFFERED_CLICKS = 4_000_000  # that are written to files together, at most
START_BYTES = 1 << 20  # of the first file, whose clicks are counted
COMPRESSION = 8  # how many times its size a compressed log has, about


@contextmanager
def choose_workplace(
    logs: Sequence[ClickLog],
    out: Path,
    engine: str,
    memory: str | int | None,
    address: str | None,
    progress: Progress,
) -> Iterator[Workplace]:
    """In memory if the logs fit, otherwise in files beside `out`, which are removed."""
    allowed = parse_size(memory) if memory is not None else None
    with executor_of(engine, address) as executor:
        is_here = isinstance(executor, ThisProcess)
        clicks = sum(estimate_clicks(log) for log in logs)
        if is_here:
            needed = clicks * BYTES_PER_CLICK + MIN_MEMORY
            limit = allowed or free_memory()
            if needed <= limit:
                with tempfile.TemporaryDirectory(prefix="posrec-") as temporary:
                    yield Workplace(Path(temporary), progress=progress)
                return
            progress.message(
                f"about {clicks:,} clicks need {shown(needed)} of memory, and {shown(limit)} "
                f"{'are allowed' if allowed else 'are free'}: the log is prepared in parts, on disk (--memory)"
            )
        task_memory = allowed or (free_memory() // 2 if is_here else TASK_MEMORY)
        max_buffered = min(
            MAX_BUFFERED_CLICKS, task_memory // (MEMORY_PER_PART * BYTES_PER_CLICK)
        )
        with scratch_folder(out.absolute()) as folder:
            yield Workplace(
                folder, parts_for(clicks, task_memory), max_buffered, executor, progress
            )


def parts_for(clicks: int, memory: int) -> int:
    return max(
        MIN_PARTS,
        min(MAX_PARTS, -(-clicks * BYTES_PER_CLICK * MEMORY_PER_PART // memory)),
    )


def parse_size(text: str | int) -> int:
    """'4GB' -> 4000000000 bytes."""
    match = SIZE.fullmatch(str(text).strip())
    if not match:
        raise InputError(f"--memory {text!r} is not a size; write e.g. 4GB or 800MB")
    size = int(float(match[1]) * UNITS[match[2].lower()])
    if size < MIN_MEMORY:
        raise InputError(f"--memory must be at least {shown(MIN_MEMORY)}, not {text}")
    return size


def shown(size: int) -> str:
    return f"{size / 10**9:.1f} GB"


def estimate_clicks(log: ClickLog) -> int:
    if log.table is not None:
        return count_rows(log.table)
    if log.format == "parquet":
        largest = max(log.files, key=size_of)  # the first may be a part without rows
        with open_parquet(largest) as part, parquet_errors(largest):
            rows = count_rows(part)
        return rows * sum(map(size_of, log.files)) // size_of(largest)
    size = sum(
        size_of(path) * (COMPRESSION if is_compressed(path) else 1)
        for path in log.files
    )
    start = read_start(log.files[0], START_BYTES)
    if log.format == "otto":
        found = start.count(b'"aid"')
    elif log.format in ("sessions", "srgnn"):
        found = len(start) // 4  # of digits and a space, or of a pickled number
    else:
        found = start.count(b"\n")
    return size * max(found, 1) // max(len(start), 1)
