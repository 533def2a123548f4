"""What became of answers, shown, clicked, put into the cart or bought, in Parquet files that `posrec prepare` reads.

A row is an item of an event: see FeedbackRow. An answer's id has the run's fingerprint, the run's name, a drawn number
and a mark for each item that is in the answer because it is new, a hash of four digits. It ends with a signature (HMAC)
by a key that is in the folder, so that workers and replicas which share the folder share it, and a restarted server has
it again. Every worker appends rows to a file of its own, `.open-*.jsonl`, so a row is on disk when its request is
answered. That file becomes a Parquet file after ROTATE_ROWS rows or ROTATE_SECONDS, for which the worker looks every
minute, and when the worker stops. What a killed worker left behind is converted by the next one.

Rows of a visitor are erased, and old files deleted, under the lock of the folder, which whoever converts a file holds
too: no row is copied from one file to another meanwhile.
"""

import fcntl
import hashlib
import hmac
import logging
import os
import re
import secrets
import tempfile
import threading
import time
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from contextlib import suppress
from datetime import UTC, datetime
from io import FileIO
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from posrec.errors import InputError, RunFailed, first_line
from posrec.evaluation.feedback_files import COLUMNS, FILES, OPEN_FILES, feedback_schema, whole_lines
from posrec.io import whole_file
from posrec.io.unfinished import locked, remove_leftovers
from posrec.server.json_log import log_event

if TYPE_CHECKING:
    import polars as pl

ROTATE_ROWS = 100_000
ROTATE_SECONDS = 3600.0
DRAWN = 16  # digits that name an answer, the first after the last dash of its id; marks of explored items follow
MARK = 4  # digits
KEY_FILE, KEY_BYTES = ".answer-key", 32
TIME_IN_NAME = "%Y%m%dT%H%M%S"  # when a file was begun, UTC
FILE_NAME = re.compile(r"feedback-(\d{8}T\d{6})-")
OWNER_COLUMNS = ["visitor", "session", "answer"]  # by which the visitor of a row is known
SIGNATURE = 16  # characters at the end of an answer's id


class FeedbackRow(msgspec.Struct):
    time: int  # milliseconds since 1970
    session: str
    item: str
    event: str
    rank: int | None  # of a shown item, from 1
    answer: str
    run: str  # the fingerprint of the run that answered
    signed: bool  # whether the server gave this answer
    visitor: str | None
    name: str | None  # of the run that answered
    value: float | None  # of a purchase
    explored: bool  # whether the item was in the answer because it is new


def answer_key(folder: Path) -> bytes:
    """The key that signs answers; it is made with the folder. Raises OSError or ValueError."""
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / KEY_FILE
    if not path.exists():
        with tempfile.NamedTemporaryFile("w", dir=folder) as file:  # readable by this user alone
            file.write(secrets.token_hex(KEY_BYTES))
            file.flush()
            with suppress(FileExistsError):  # another worker was first
                path.hardlink_to(file.name)
    key = bytes.fromhex(path.read_text(encoding="ascii"))
    if len(key) != KEY_BYTES:
        raise ValueError(f"{path} is no key; remove it")
    return key


def new_answer_id(run: str, name: str, key: bytes | None, explored: Sequence[str] = ()) -> str:
    """The id of an answer of the run with this fingerprint and name, of which the items `explored` are marked; without
    a key it has neither marks nor a signature."""
    drawn = secrets.token_hex(DRAWN // 2)
    if key is None:
        return f"{run}-{name}-{drawn}"
    marked = f"{run}-{name}-{drawn}" + "".join(mark(item, drawn) for item in explored)
    return marked + signature(marked, key)


def mark(item: str, drawn: str) -> str:
    return hashlib.sha256(f"{drawn} {item}".encode("utf-8", "surrogatepass")).hexdigest()[:MARK]


def is_explored(item: str, answer: str) -> bool:
    """Whether the id of a signed answer has the item's mark."""
    digits = answer.rpartition("-")[2]
    drawn, marks = digits[:DRAWN], digits[DRAWN:-SIGNATURE]
    return mark(item, drawn) in [marks[start : start + MARK] for start in range(0, len(marks), MARK)]


def run_of(answer: str) -> tuple[str, str | None]:
    """The fingerprint and the name of the run that gave an answer.

    >>> run_of("5f0c9e1b7a42-last-night-90f1c3d2ab64e875")
    ('5f0c9e1b7a42', 'last-night')
    """
    fingerprint, _, rest = answer.partition("-")
    return fingerprint, rest.rpartition("-")[0] or None


def signature(drawn: str, key: bytes) -> str:
    return hmac.digest(key, drawn.encode(), "sha256").hex()[:SIGNATURE]


def is_signed(answer: str, key: bytes) -> bool:
    expected = signature(answer[:-SIGNATURE], key)
    return hmac.compare_digest(expected.encode(), answer[-SIGNATURE:].encode())


class FeedbackFiles:
    """The feedback that one worker writes to a folder. `observe` gets the name of a run, the event and the number of
    items; the name is None for an answer that the server did not give."""

    def __init__(
        self,
        folder: Path,
        clock: Callable[[], float] = time.time,
        observe: Callable[[str | None, str, int], None] = lambda name, event, items: None,
    ) -> None:
        self.folder, self.clock, self.observe = folder, clock, observe
        self.file: FileIO | None = None
        self.full_files: list[FileIO] = []
        self.rows, self.began = 0, 0.0
        self.lock = threading.Lock()  # of the open file: many rows are written in a thread
        try:
            self.key = answer_key(folder)
            tempfile.TemporaryFile(dir=folder).close()
        except (OSError, ValueError) as error:
            reason = error.strerror if isinstance(error, OSError) else error
            raise InputError(f"feedback can't be written into {folder} ({reason})") from None
        for leftover in folder.glob(OPEN_FILES):
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
        """Write a row for each item; returns how many. They are on disk, or at least with the kernel, afterwards."""
        now, signed = self.clock(), is_signed(answer, self.key)
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
                self.file, self.rows, self.began = open_locked(self.folder, now), 0, now
            append(self.file, lines)
            self.rows += len(rows)
            if self.rows >= ROTATE_ROWS:
                self.full_files.append(self.file)
                self.file = None
        self.observe((name or run) if signed else None, event, len(rows))
        return len(rows)

    def take_files(self, also_recent: bool = False) -> list[FileIO]:
        """The files that are large or old enough to become Parquet files, or all; the next row begins another."""
        with self.lock:
            is_recent = 0 <= self.clock() - self.began < ROTATE_SECONDS  # it is not where the clock was set back
            if self.file is not None and (also_recent or not is_recent):
                self.full_files.append(self.file)
                self.file = None
            files, self.full_files = self.full_files, []
            return files


def append(file: FileIO, lines: bytes) -> None:
    """Write all of it or, on a full disk, nothing: a line that is cut off would be joined with the next one."""
    size = os.fstat(file.fileno()).st_size
    left = memoryview(lines)
    try:
        while left:
            left = left[file.write(left) :]
    except OSError as error:
        file.truncate(size)
        raise RunFailed(f"feedback can't be written ({error.strerror})") from None


def open_locked(folder: Path, now: float) -> FileIO:
    """A new file of rows. Its lock tells a file that is in use from one that a killed worker left behind."""
    name = f".open-{datetime.fromtimestamp(now, UTC):{TIME_IN_NAME}}-{os.getpid()}-{time.monotonic_ns()}.jsonl"
    while True:
        file = FileIO(folder / name, "ab")
        fcntl.flock(file, fcntl.LOCK_EX)
        if os.fstat(file.fileno()).st_nlink:
            return file
        file.close()  # a worker that was just started took it for one that was left behind, and has removed it


def convert_unused(path: Path) -> None:
    with suppress(OSError), FileIO(path) as file:  # it is in use, or another worker has converted it
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        if path.exists():
            convert_and_close(file)


def convert_and_close(file: FileIO) -> None:
    """Write the rows of a file as Parquet beside it, then remove it; its lock is held until then. Many rows take a
    second. A last line that was cut off is left out."""
    path = Path(os.fsdecode(file.name))
    with file:
        try:
            import polars as pl

            with locked(path.parent):
                rows = [row for _, _, row in read_lines(path)]
                if rows:
                    columns = {name: [getattr(row, name) for row in rows] for name in COLUMNS}
                    name = path.stem.replace(".open-", "feedback-") + ".parquet"
                    replace_parquet(path.with_name(name), pl.DataFrame(columns, schema=feedback_schema()))
                path.unlink()
        except Exception as error:  # the rows stay, and the next start converts them
            log_event("feedback could not be written as Parquet", logging.ERROR, file=str(path), reason=str(error))


def read_lines(path: Path) -> Iterator[tuple[int, int, FeedbackRow]]:
    """The bytes at which each line of an open file starts and ends, and its row, unless it was erased."""
    start = 0
    for line in whole_lines(path).splitlines(keepends=True):
        end = start + len(line) - 1
        with suppress(msgspec.MsgspecError, UnicodeDecodeError):
            yield start, end, msgspec.json.decode(line, type=FeedbackRow)
        start = end + 1


def replace_parquet(path: Path, rows: "pl.DataFrame") -> None:
    with whole_file(path, overwrite=True) as unfinished:
        rows.write_parquet(unfinished)


def delete_old(folder: Path, seconds: float) -> None:
    """Delete the files that were begun more than so many seconds ago. Files of other names are not ours."""
    first_kept = datetime.fromtimestamp(max(0.0, time.time() - seconds), UTC).strftime(TIME_IN_NAME)
    with locked(folder):
        old = [file for file in folder.glob(FILES) if (begun := FILE_NAME.match(file.name)) and begun[1] < first_kept]
        try:
            for file in old:
                file.unlink()
        except OSError as error:
            log_event("old feedback can't be deleted", logging.ERROR, file=str(file), reason=error.strerror)
            return
    if old:
        log_event("old feedback deleted", files=len(old))


def erase_visitors(folder: Path, visitors: Collection[str]) -> tuple[int, int]:
    """Erase the rows of these visitors from all files of a folder, also from those that a running server writes.

    A visitor's rows have their id as visitor or session. What was reported of their answers without any id is theirs
    too. Each Parquet file is replaced whole or not at all. Lines of open files, to which a worker appends, are
    overwritten with spaces.

    Returns: the number of rows, and of files that had some.
    """
    import polars as pl

    if not folder.is_dir():
        raise InputError(f"{folder} does not exist, or is not a folder")
    with locked(folder):
        remove_leftovers(folder)  # a killed conversion leaves rows in them
        files = [*sorted(folder.glob(OPEN_FILES)), *sorted(folder.glob(FILES))]
        named = pl.any_horizontal(pl.col("visitor", "session").is_in(list(visitors)).fill_null(value=False))
        answers: set[str] = set()
        for path in files:  # once to find the answers and files that can't be read, and once to erase
            answers.update(read_owners(path).filter(named)["answer"])
        nameless = pl.col("visitor").is_null() & (pl.col("session") == pl.col("answer"))
        of_visitors = named | (nameless & pl.col("answer").is_in(list(answers))).fill_null(value=False)
        counts = [count for path in files if (count := erase_rows(path, of_visitors))]
    return sum(counts), len(counts)


def erase_rows(path: Path, of_visitors: "pl.Expr") -> int:
    """Erase rows of one file; returns how many."""
    import polars as pl

    rows = read_owners(path)
    erased = rows.select(of_visitors).to_series()
    if erased.any():
        if path.suffix == ".jsonl":
            blank_lines(path, rows.filter(erased).select("start", "end").rows())
        elif erased.all():
            path.unlink()
        else:
            replace_parquet(path, pl.read_parquet(path).filter(~erased))
    return int(erased.sum())


def read_owners(path: Path) -> "pl.DataFrame":
    """The columns of a file that say whose a row is; of an open file, also where its line starts and ends."""
    import polars as pl

    if path.suffix == ".jsonl":
        lines = [(*(getattr(row, name) for name in OWNER_COLUMNS), start, end) for start, end, row in read_lines(path)]
        schema = {**dict.fromkeys(OWNER_COLUMNS, pl.String), "start": pl.Int64, "end": pl.Int64}
        return pl.DataFrame(lines, schema=schema, orient="row")
    try:
        return pl.read_parquet(path, columns=OWNER_COLUMNS)
    except (pl.exceptions.PolarsError, OSError) as error:
        what = f"{path} can't be read ({first_line(error)})"
        raise InputError(f"{what}, so nothing was erased; delete it if it is damaged, and try again") from None


def blank_lines(path: Path, places: Iterable[tuple[int, int]]) -> None:
    with path.open("r+b", buffering=0) as file:
        for start, end in places:
            file.seek(start)
            file.write(b" " * (end - start))
        os.fsync(file.fileno())
