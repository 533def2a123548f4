"""Helpers of many tests: run the command in this process or another, write logs and datasets."""

import importlib.util
import io
import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager, redirect_stderr, redirect_stdout
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any
from unittest.mock import patch

import pytest
from fsspec.compression import compr

import posrec
from posrec.cli import main
from posrec.data.dataset import PreparedDataset, SessionDataset
from posrec.evaluation.evaluate import Evaluation
from posrec.fitting.fit import fit_run
from posrec.io import CHECKSUMS, write_checksums
from posrec.progress import Progress, SilentProgress
from posrec.runs.folder import Run
from posrec.testing import small_dataset

if TYPE_CHECKING:
    import polars as pl

SOURCE = Path(posrec.__file__).resolve().parents[1]
ROOT = Path(__file__).resolve().parents[1]
Click = tuple[str, str, int]


def module_at(path: Path) -> ModuleType:
    spec = importlib.util.spec_from_file_location(path.stem, path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@dataclass(frozen=True)
class CommandResult:
    code: int
    out: str
    err: str


def command(*arguments: object) -> CommandResult:
    """Run `posrec ARGUMENTS` as the installed command would, in this process."""
    out = io.StringIO()
    err = io.StringIO()
    code = 0
    argv = ["posrec", *map(str, arguments)]
    with patch.object(sys, "argv", argv), redirect_stdout(out), redirect_stderr(err):
        try:
            main()
        except SystemExit as leaving:
            code = int(leaving.code or 0)
    return CommandResult(code, out.getvalue(), err.getvalue())


def own_process(
    *arguments: object, code: str = "", **options: Any
) -> subprocess.CompletedProcess[str]:
    """Python in a separate process: `-m posrec ARGUMENTS`, or `code` with them as sys.argv[1:]."""
    launch = launch_options(arguments, code)
    return subprocess.run(**launch, capture_output=True, check=False, **options)


def started(
    *arguments: object, code: str = "", **options: Any
) -> "subprocess.Popen[str]":
    """As `own_process`, without waiting for its end."""
    return subprocess.Popen(**launch_options(arguments, code), **options)


def launch_options(arguments: tuple[object, ...], code: str) -> dict[str, Any]:
    program = ["-c", code] if code else ["-m", "posrec"]
    line = [sys.executable, *program, *map(str, arguments)]
    environment = {**os.environ, "PYTHONPATH": str(SOURCE), "COLUMNS": "200"}
    return {"args": line, "env": environment, "text": True}


def slowly(*values: object) -> Any:
    """A case of `parametrize` that `make slow` runs: it repeats what another case shows."""
    return pytest.param(*values, marks=pytest.mark.slow)


def heed_interrupts() -> None:
    """For `preexec_fn`: children of what a shell starts in the background ignore SIGINT."""
    signal.signal(signal.SIGINT, signal.default_int_handler)


def plain_values(metrics: Any) -> dict[str, Any]:
    """The content of metrics.json that `pytest.approx` can compare."""
    return {
        name: value for name, value in metrics.items() if not isinstance(value, dict)
    }


class RecordingProgress(Progress):
    def __init__(self) -> None:
        self.messages: list[str] = []
        self.moves: list[tuple[str, float, float]] = []

    def message(self, text: str) -> None:
        self.messages.append(text)

    def update(self, work: str, done: float, total: float, note: str = "") -> None:
        self.moves.append((work, done, total))


def items_of(answer: Iterable[Any]) -> list[str]:
    """The ids of recommendations, in their order."""
    return [recommendation.item for recommendation in answer]


def assert_alike(answers: Iterable[Any], others: Iterable[Any], within: float) -> None:
    """The same items in the same order, and the same scores but for rounding."""
    for answer, other in zip(answers, others, strict=True):
        assert items_of(answer) == items_of(other)
        scores = [recommendation.score for recommendation in answer]
        other_scores = [recommendation.score for recommendation in other]
        assert scores == pytest.approx(other_scores, abs=within)


def refused(*arguments: object) -> str:
    """The message of `posrec ARGUMENTS` about input that it refuses, of a line or two."""
    done = command(*arguments)
    assert done.code == 2, done.err
    assert len(done.err.splitlines()) <= 2, done.err
    return done.err


def fitted(
    data: PreparedDataset,
    model: Any,
    out: Path,
    settings: dict[str, Any] | None = None,
    **options: Any,
) -> tuple[Run, Evaluation]:
    """`fit_run` on a CPU, without an export; silent unless `progress` is given."""
    options = {"progress": SilentProgress(), **options}
    return fit_run(data, model, out, settings or {}, "cpu", export=False, **options)


def frame(clicks: Iterable[Click]) -> "pl.DataFrame":
    import polars as pl

    schema = {"session": pl.String, "item": pl.String, "time": pl.Int64}
    return pl.DataFrame(list(clicks), schema, orient="row")


def rows(clicks: "pl.DataFrame") -> list[Click]:
    import polars as pl

    return clicks.with_columns(pl.col("session", "item").cast(pl.String)).rows()


def sessions_of(clicks: "pl.DataFrame") -> list[list[tuple[str, int]]]:
    """Grouped clicks as lists of (item, time)."""
    import polars as pl

    sessions: list[list[tuple[str, int]]] = []
    seen: list[object] = []
    clicks = clicks.with_columns(pl.col("item").cast(pl.String))
    for session, item, time in clicks.iter_rows():
        if not seen or seen[-1] != session:
            assert session not in seen, "the clicks of a session must be side by side"
            seen.append(session)
            sessions.append([])
        sessions[-1].append((item, time))
    return sessions


def plain(dataset: SessionDataset) -> list[list[int]]:
    return [dataset.session(number).tolist() for number in range(dataset.sessions)]


def raw(dataset: SessionDataset, vocabulary: posrec.Vocabulary) -> list[list[str]]:
    return [[vocabulary.item(item) for item in session] for session in plain(dataset)]


def listed(folder: Path) -> list[str]:
    """The sorted names of everything in a folder, hidden files included."""
    return sorted(path.name for path in folder.iterdir())


def update_checksums(folder: Path) -> None:
    """Make checksums.json fit files that a test has changed."""
    content = json.loads((folder / CHECKSUMS).read_text())
    write_checksums(folder, content["files"])


def write_lines(path: Path, lines: Sequence[str], end: str = "\n") -> Path:
    path.write_bytes("".join(line + end for line in lines).encode())
    return path


def packed(content: bytes, compression: str | None = "zstd") -> bytes:
    """`content` compressed as fsspec's gzip, zstd, bz2 or xz; as it is for None."""
    if compression is None:
        return content
    written = io.BytesIO()
    with compr[compression](written, mode="wb") as file:
        file.write(content)
    return written.getvalue()


def write_log(
    path: Path, clicks: Iterable[Click], header: str = "session_id,item_id,timestamp"
) -> Path:
    lines = [f"{session},{item},{time}" for session, item, time in clicks]
    return write_lines(path, [header, *lines])


def small_shop(sessions: int = 30, start: int = 1_700_000_000_000) -> list[Click]:
    """Few items, sessions of three clicks, an hour apart: every recipe keeps every click."""
    clicks = []
    for session in range(sessions):
        for step in range(3):
            time = start + 3_600_000 * session + 1000 * step
            clicks.append((f"s{session}", f"i{(session + step) % 4}", time))
    return clicks


@contextmanager
def in_parts(max_buffered: int = 1000) -> Iterator[None]:
    """Inside, `posrec.prepare` finds so little memory that it prepares every log in parts."""
    from posrec.data.prepare import memory

    with (
        patch.object(memory, "free_memory", lambda: memory.MIN_MEMORY),
        patch.object(memory, "MAX_BUFFERED_CLICKS", max_buffered),
    ):
        yield


def chain_shop(
    folder: Path,
    seed: int,
    items: int = 30,
    sessions: int = 300,
    new_items: int = 0,
    prefix: str = "",
) -> posrec.PreparedDataset:
    """A prepared dataset in which item i is mostly followed by item i + 1."""
    return small_dataset(folder / "data", seed, items, sessions, new_items, prefix)
