"""How much memory a log needs, and into how many parts it is cut if there is less."""

import re
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from posrec.data.prepare.options import PrepareOptions
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
# Times that of its clicks, for Python, the items and the block being read.
MEMORY_PER_PART = 5
MIN_PARTS = 4
MAX_PARTS = 2000
MAX_BUFFERED_CLICKS = 4_000_000  # that are written to files together, at most
START_BYTES = 1 << 20  # of the first file, whose clicks are counted
COMPRESSION = 8  # how many times its size a compressed log has, about


@contextmanager
def choose_workplace(
    logs: Sequence[ClickLog], out: Path, options: PrepareOptions, progress: Progress
) -> Iterator[Workplace]:
    """In memory if the logs fit, otherwise in files beside `out`, which are removed."""
    allowed = None if options.memory is None else parse_size(options.memory)
    with executor_of(options.engine, options.address) as executor:
        clicks = sum(estimate_clicks(part) for log in logs for part in log.parts)
        task_memory = allowed or TASK_MEMORY
        if isinstance(executor, ThisProcess):
            needed = clicks * BYTES_PER_CLICK + MIN_MEMORY
            limit = allowed or free_memory()
            if needed <= limit:
                with tempfile.TemporaryDirectory(prefix="posrec-") as temporary:
                    yield Workplace(Path(temporary), progress=progress)
                return
            condition = "are allowed" if allowed else "are free"
            progress.message(
                f"about {clicks:,} clicks need {shown(needed)} of memory, and {shown(limit)} "
                f"{condition}: the log is prepared in parts, on disk (--memory)"
            )
            task_memory = allowed or limit // 2
        memory_per_click = MEMORY_PER_PART * BYTES_PER_CLICK
        parts = -(-clicks * memory_per_click // task_memory)  # rounded up
        parts = max(MIN_PARTS, min(MAX_PARTS, parts))
        max_buffered = min(MAX_BUFFERED_CLICKS, task_memory // memory_per_click)
        with scratch_folder(out.absolute()) as folder:
            yield Workplace(folder, parts, max_buffered, executor, progress)


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
        largest = max(log.files, key=size_of)  # the first may have no rows
        with open_parquet(largest) as table, parquet_errors(largest):
            rows = count_rows(table)
        return rows * sum(map(size_of, log.files)) // size_of(largest)
    size = 0
    for path in log.files:
        size += size_of(path) * (COMPRESSION if is_compressed(path) else 1)
    start = read_start(log.files[0], START_BYTES)
    if log.format == "otto":
        clicks = start.count(b'"aid"')
    elif log.format in ("sessions", "srgnn"):
        clicks = len(start) // 4  # digits and a space, or a pickled number
    else:
        clicks = start.count(b"\n")
    return size * max(clicks, 1) // max(len(start), 1)
