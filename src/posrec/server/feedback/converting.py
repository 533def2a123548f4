"""An open file of feedback becomes a Parquet file, in a process of its own (`python -m`).

So a worker has neither its memory nor its fate. Each attempt adds TRIED to the name of the file
beforehand, and after MOST_TRIES the file is set aside as `.failed-*.jsonl`.
"""

import os
import signal
import subprocess
import sys
from pathlib import Path

from posrec.errors import InputError, first_line
from posrec.io import os_error_in
from posrec.io.unfinished import locked
from posrec.server.feedback.files import read_frames, replace_parquet
from posrec.server.json_log import log_error

TRIED = ".tried"
MOST_TRIES = 2
DISK_FAILED = 3  # exit code: the disk is full, and the file is not to blame


def convert_locked(path: Path, handle: int) -> None:
    """`handle` is that of the open file, whose lock the new process holds too."""
    untried = path.with_name(path.name.replace(TRIED, ""))
    message = "feedback could not be written as Parquet; it is tried again"
    reason = "the process was killed with its worker"
    if path.name.count(TRIED) < MOST_TRIES:
        with locked(path.parent):  # a report may be reading the files
            path = path.rename(path.with_name(path.stem + TRIED + path.suffix))
        done = run_conversion(path, handle)
        if done.returncode == 0:
            return
        reason = done.stderr.strip() or f"exit code {done.returncode}"
        if done.returncode == DISK_FAILED:
            path = path.rename(untried)
    if path.name.count(TRIED) == MOST_TRIES:
        name = untried.name.replace(".open-", ".failed-")
        path = path.rename(path.with_name(name))
        message = "feedback can't be written as Parquet; its rows are set aside"
    log_error(message, file=str(path), reason=reason)


def run_conversion(path: Path, handle: int) -> "subprocess.CompletedProcess[str]":
    return subprocess.run(
        [sys.executable, "-P", "-m", __name__, str(path)],
        env={**os.environ, "POLARS_MAX_THREADS": "1"},
        stderr=subprocess.PIPE,
        pass_fds=[handle],
        text=True,
        check=False,
    )


def convert(path: Path) -> None:
    """Write the rows as Parquet beside the file, then remove it."""
    import polars as pl

    with locked(path.parent):
        frames = list(read_frames(path))
        if frames:
            begun = path.name.split(".")[1].replace("open-", "feedback-")
            replace_parquet(path.with_name(f"{begun}.parquet"), pl.concat(frames))
        path.unlink()


def main() -> None:
    # A server that is being stopped waits for it.
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, signal.SIG_IGN)
    try:
        convert(Path(sys.argv[1]))
    except Exception as error:
        print(first_line(error), file=sys.stderr)
        is_disk = isinstance(error, OSError | InputError) or os_error_in(error)
        sys.exit(DISK_FAILED if is_disk else 1)


if __name__ == "__main__":
    main()
