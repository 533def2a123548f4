"""What became of answers, in Parquet files that `posrec prepare` reads.

Every worker appends rows to a file of its own, `.open-*.jsonl`, so a row is on disk when its
request is answered. It becomes a Parquet file after ROTATE_ROWS rows or ROTATE_SECONDS, and when
the worker stops. What a killed worker left behind is converted by another one.
"""

import logging
import os
import tempfile
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from datetime import UTC, datetime
from io import FileIO
from pathlib import Path

import msgspec

from posrec.errors import InputError, RunFailed
from posrec.io.unfinished import is_abandoned, locked, take_lock
from posrec.server.feedback.answer_ids import answer_key, is_explored, is_signed, run_of
from posrec.server.feedback.files import (
    COLUMNS,
    OPEN_FILES,
    TIME_IN_NAME,
    FeedbackRow,
    feedback_schema,
    read_lines,
    replace_parquet,
)
from posrec.server.json_log import log_event

ROTATE_ROWS = 100_000
ROTATE_SECONDS = 3600.0


class FeedbackFiles:
    """Of one worker. `observe` gets the name of a run, None for an answer that the server did not
    give, the event and the number of items."""

    def __init__(
        self,
        folder: Path,
        clock: Callable[[], float] = time.time,
        observe: Callable[[str | None, str, int], None] = lambda name, event, items: (
            None
        ),
    ) -> None:
        self.folder = folder
        self.clock = clock
        self.observe = observe
        self.file: FileIO | None = None
        self.full_files: list[FileIO] = []
        self.rows = 0
        self.began = 0.0
        self.lock = (
            threading.Lock()
        )  # of the open file: many rows are written in a thread
        try:
            self.key = answer_key(folder)
            tempfile.TemporaryFile(dir=folder).close()
        except (OSError, ValueError) as error:
            reason = error.strerror if isinstance(error, OSError) else error
            raise InputError(
                f"feedback can't be written into {folder} ({reason})"
            ) from None

    def convert_leftovers(self) -> None:
        for leftover in self.folder.glob(OPEN_FILES):
            convert_unused(leftover)

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
        """Those that are large or old enough to become Parquet files, or all; the next row begins
        another."""
        with self.lock:
            is_recent = (
                0 <= self.clock() - self.began < ROTATE_SECONDS
            )  # it is not where the clock was set back
            if self.file is not None and (also_recent or not is_recent):
                self.full_files.append(self.file)
                self.file = None
            files = self.full_files
            self.full_files = []
            return files


def append(file: FileIO, lines: bytes) -> None:
    """All of it or, on a full disk, nothing: a line that is cut off would be joined with the next
    one."""
    size = os.fstat(file.fileno()).st_size
    left = memoryview(lines)
    try:
        while left:
            left = left[file.write(left) :]
    except OSError as error:
        file.truncate(size)
        raise RunFailed(f"feedback can't be written ({error.strerror})") from None


def open_locked(folder: Path, now: float) -> FileIO:
    """A new file of rows. Its lock tells a file that is in use from one that a killed worker left
    behind."""
    name = f".open-{datetime.fromtimestamp(now, UTC):{TIME_IN_NAME}}-{os.getpid()}-{time.monotonic_ns()}.jsonl"
    while True:
        file = FileIO(folder / name, "ab")
        take_lock(file.fileno(), wait=True)
        if os.fstat(file.fileno()).st_nlink:
            return file
        file.close()  # a worker that was just started took it for one that was left behind, and has removed it


def convert_unused(path: Path) -> None:
    with (
        suppress(OSError),
        FileIO(path) as file,
    ):  # it is in use, or another worker has converted it
        if is_abandoned(file.fileno()) and path.exists():
            convert_and_close(file)


def convert_and_close(file: FileIO) -> None:
    """Write the rows of a file as Parquet beside it, then remove it; its lock is held until then."""
    path = Path(os.fsdecode(file.name))
    with file:
        try:
            import polars as pl

            with locked(path.parent):
                rows = [row for _, _, row in read_lines(path)]
                if rows:
                    columns = {
                        name: [getattr(row, name) for row in rows] for name in COLUMNS
                    }
                    name = path.stem.replace(".open-", "feedback-") + ".parquet"
                    replace_parquet(
                        path.with_name(name),
                        pl.DataFrame(columns, schema=feedback_schema()),
                    )
                path.unlink()
        except Exception as error:  # the rows stay, and the next start converts them
            log_event(
                "feedback could not be written as Parquet",
                logging.ERROR,
                file=str(path),
                reason=str(error),
            )
