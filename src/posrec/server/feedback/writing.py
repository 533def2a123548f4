"""What became of answers, in Parquet files that `posrec prepare` reads.

Every worker appends rows to a file of its own, `.open-*.jsonl`, before it answers. It becomes a
Parquet file after ROTATE_ROWS or ROTATE_SECONDS, and when the worker stops. Another worker converts
what a killed one left behind.
"""

import os
import tempfile
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from io import FileIO
from pathlib import Path

import msgspec

from posrec.errors import InputError, RunFailed
from posrec.io.unfinished import is_abandoned, locked, take_lock
from posrec.server.feedback.answer_ids import answer_key, is_explored, is_signed, run_of
from posrec.server.feedback.files import (
    OPEN_FILES,
    FeedbackRow,
    feedback_schema,
    read_lines,
    replace_parquet,
    time_in_name,
)
from posrec.server.json_log import log_error

ROTATE_ROWS = 100_000
ROTATE_SECONDS = 3600.0


class FeedbackFiles:
    """Of one worker. `observe` gets the name of a run, or None for an answer that the server did
    not give, the event and the number of items."""

    def __init__(
        self,
        folder: Path,
        clock: Callable[[], float] = time.time,
        observe: Callable[[str | None, str, int], None] = lambda *_: None,
    ) -> None:
        self.folder = folder
        self.clock = clock
        self.observe = observe
        self.file: FileIO | None = None
        self.full_files: list[FileIO] = []
        self.rows = 0
        self.began = 0.0
        self.lock = threading.Lock()  # of the open file: threads write to it, too
        try:
            self.key = answer_key(folder)
            tempfile.TemporaryFile(dir=folder).close()
        except (OSError, ValueError) as error:
            reason = getattr(error, "strerror", error)
            raise InputError(
                f"feedback can't be written into {folder} ({reason})"
            ) from None

    def convert_leftovers(self) -> None:
        for path in self.folder.glob(OPEN_FILES):
            # An OSError means that another worker has converted the file.
            with suppress(OSError), FileIO(path) as file:
                if is_abandoned(file.fileno()) and path.exists():
                    convert_and_close(file)

    def write(
        self,
        answer: str,
        event: str,
        items: Sequence[str],
        session: str | None = None,
        visitor: str | None = None,
        value: float | None = None,
    ) -> int:
        """Write a row for each item; returns how many."""
        now = self.clock()
        signed = is_signed(answer, self.key)
        run, name = run_of(answer)
        rows = [
            FeedbackRow(
                time=int(now * 1000),
                session=session or answer,
                item=item,
                event=event,
                rank=rank if event == "shown" else None,
                answer=answer,
                run=run,
                signed=signed,
                visitor=visitor,
                name=name,
                value=value,
                explored=signed and is_explored(item, answer),
            )
            for rank, item in enumerate(items, start=1)
        ]
        lines = b"".join(msgspec.json.encode(row) + b"\n" for row in rows)
        with self.lock:
            if self.file is None:
                self.file = open_locked(self.folder, now)
                self.rows = 0
                self.began = now
            append(self.file, lines)
            self.rows += len(rows)
            if self.rows >= ROTATE_ROWS:
                self.full_files.append(self.file)
                self.file = None
        self.observe((name or run) if signed else None, event, len(rows))
        return len(rows)

    def take_files(self, also_recent: bool = False) -> list[FileIO]:
        """The files that are large or old enough to be converted; the next row begins another."""
        with self.lock:
            age = self.clock() - self.began  # below 0 if the clock was set back
            is_recent = 0 <= age < ROTATE_SECONDS
            if self.file is not None and (also_recent or not is_recent):
                self.full_files.append(self.file)
                self.file = None
            files = self.full_files
            self.full_files = []
            return files


def append(file: FileIO, lines: bytes) -> None:
    """All or, on a full disk, nothing: a line that is cut off would be joined with the next."""
    size = os.fstat(file.fileno()).st_size
    left = memoryview(lines)
    try:
        while left:
            left = left[file.write(left) :]
    except OSError as error:
        file.truncate(size)
        raise RunFailed(f"feedback can't be written ({error.strerror})") from None


def open_locked(folder: Path, now: float) -> FileIO:
    """A new file of rows. Only a file that a killed worker left behind is not locked."""
    name = f".open-{time_in_name(now)}-{os.getpid()}-{time.monotonic_ns()}.jsonl"
    while True:
        file = FileIO(folder / name, "ab")
        take_lock(file.fileno(), wait=True)
        if os.fstat(file.fileno()).st_nlink:
            return file
        file.close()  # before it was locked, another worker removed it as a leftover


def convert_and_close(file: FileIO) -> None:
    """Write the rows as Parquet beside the file, then remove it; its lock is held until then."""
    path = Path(os.fsdecode(file.name))
    with file:
        try:
            import polars as pl

            with locked(path.parent):
                rows = [msgspec.structs.astuple(row) for _, _, row in read_lines(path)]
                if rows:
                    frame = pl.DataFrame(rows, schema=feedback_schema(), orient="row")
                    name = path.stem.replace(".open-", "feedback-") + ".parquet"
                    replace_parquet(path.with_name(name), frame)
                path.unlink()
        except Exception as error:  # the rows stay, and the next start converts them
            message = "feedback could not be written as Parquet"
            log_error(message, file=str(path), reason=str(error))
