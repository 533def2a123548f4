"""What became of answers, in Parquet files that `posrec prepare` reads.

Every worker appends rows to a file of its own, `.open-*.jsonl`, before it answers. It becomes a
Parquet file (converting.py) when it is full or ROTATE_SECONDS old, and when the worker stops.
Another worker converts what a killed one left behind.
"""

import os
import tempfile
import threading
import time
from collections.abc import Callable, Sequence
from functools import partial
from io import FileIO
from pathlib import Path

import msgspec

from posrec.errors import InputError, RunFailed
from posrec.io import open_regular
from posrec.io.unfinished import is_abandoned, take_lock
from posrec.server.feedback.answer_ids import SignedAnswer, answer_key, is_signed
from posrec.server.feedback.converting import convert_locked
from posrec.server.feedback.files import (
    OPEN_FILES,
    OWNER_ALONE,
    FeedbackRow,
    time_in_name,
)
from posrec.server.json_log import log_error

ROTATE_SECONDS = 3600.0
MOST_FILE_BYTES = 64 << 20
MOST_REQUEST_BYTES = 1 << 20  # of all its rows, each of which repeats the ids


class FeedbackFiles:
    """Of one worker. `observe` gets the name of a run, or None for what the server did not answer,
    the event and the number of items."""

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
        self.bytes = 0
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

    def write(
        self,
        answer: str,
        event: str,
        items: Sequence[str],
        session: str | None = None,
        visitor: str | None = None,
        value: float | None = None,
    ) -> int:
        """Write a row for each item of the answer; returns how many. What the server did not answer
        is only counted."""
        if not is_signed(answer, self.key):
            self.observe(None, event, len(items))
            return 0
        now = self.clock()
        signed = SignedAnswer(answer)
        lines = bytearray()
        written = 0
        for rank, item in enumerate(dict.fromkeys(items), start=1):
            explored = signed.explored(item)
            if explored is None:
                continue
            row = FeedbackRow(
                time=int(now * 1000),
                session=session or signed.id,
                item=item,
                event=event,
                rank=rank if event == "shown" else None,
                answer=signed.id,
                run=signed.run,
                visitor=visitor,
                name=signed.name,
                value=value,
                explored=explored,
            )
            lines += msgspec.json.encode(row) + b"\n"
            written += 1
            if len(lines) > MOST_REQUEST_BYTES:
                raise InputError(
                    f"the rows of this feedback have more than {MOST_REQUEST_BYTES >> 20} MB; "
                    "send shorter ids, or fewer items at a time"
                )
        if lines:
            self.append(lines, now)
            self.observe(signed.name, event, written)
        if written < len(items):
            self.observe(None, event, len(items) - written)
        return written

    def append(self, lines: bytearray, now: float) -> None:
        with self.lock:
            if self.file is not None and self.bytes + len(lines) > MOST_FILE_BYTES:
                self.file.close()
                self.file = None
            if self.file is None:
                self.file = open_locked(self.folder, now)
                self.bytes = 0
                self.began = now
            append(self.file, lines)
            self.bytes += len(lines)

    def convert_files(self, also_recent: bool = False) -> None:
        """Close the file if it is old, and convert all that nobody writes to: full and old ones,
        and what killed workers left behind."""
        with self.lock:
            age = self.clock() - self.began  # below 0 if the clock was set back
            is_recent = 0 <= age < ROTATE_SECONDS
            if self.file is not None and (also_recent or not is_recent):
                self.file.close()
                self.file = None
        for path in self.folder.glob(OPEN_FILES):
            try:
                with open_regular(path) as file:
                    if is_abandoned(file.fileno()) and path.exists():
                        convert_locked(path, file.fileno())
            except FileNotFoundError:
                continue  # another worker has converted it
            except (OSError, InputError) as error:
                log_error("feedback could not be converted", reason=str(error))


def append(file: FileIO, lines: bytearray) -> None:
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
    """A new file of rows. Only a file that nobody writes to is not locked."""
    name = f".open-{time_in_name(now)}-{os.getpid()}-{time.monotonic_ns()}.jsonl"
    while True:
        file = FileIO(folder / name, "ab", opener=partial(os.open, mode=OWNER_ALONE))
        take_lock(file.fileno(), wait=True)
        if os.fstat(file.fileno()).st_nlink:
            return file
        file.close()  # before it was locked, another worker removed it as a leftover
