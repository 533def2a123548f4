"""The parts of `posrec score`: as a folder, continued where it stopped, in this process and on Ray."""

import json
import os
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import polars as pl
import pytest

from posrec.errors import InputError
from posrec.io.executor import Cluster
from posrec.io.unfinished import try_lock
from posrec.progress import SilentProgress
from posrec.recommend.files import score as module
from posrec.recommend.files import session_file
from posrec.recommend.files.score import OpenRun, Totals, score_file
from posrec.recommend.recommender import Recommender
from tests.helpers import RecordingProgress, command, listed, write_lines

SESSIONS = [[f"i{1 + number % 9}", f"i{1 + number * 7 % 29}"][: 1 + number % 2] for number in range(100)]
score_part = module.score_part
LINES = [json.dumps(session) for session in [*SESSIONS[:50], ["x"], *SESSIONS[50:]]]


@pytest.fixture(autouse=True)
def _small_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(session_file, "PART_ROWS", 16)


@pytest.fixture
def source(tmp_path: Path) -> Path:
    return write_lines(tmp_path / "in.jsonl", LINES)


def parts(trained: Path, source: Path, out: Path, **options) -> Totals:
    return score_file(OpenRun(trained), source, out, 4, **{"progress": SilentProgress(), **options})


def rows_of(path: Path) -> list[dict]:
    """The answers of a file, with scores as a float32 holds them."""
    if path.suffix == ".parquet":
        return pl.read_parquet(path).to_dicts()
    return pl.scan_ndjson(path).collect().to_dicts()


def assert_equal(one: list[dict], other: list[dict]) -> None:
    """Equal but for the last digits of scores, since sums may be taken in another order."""
    for left, right in zip(one, other, strict=True):
        assert left["scores"] == pytest.approx(right["scores"], rel=1e-5)
        assert {**left, "scores": 0} == {**right, "scores": 0}


@pytest.mark.parametrize("out", ["out.jsonl", "out.jsonl.gz", "out.parquet"])
@pytest.mark.parametrize("kind", ["in.jsonl", "in.parquet"])
def test_parts_hold_what_one_file_holds(trained: Path, tmp_path: Path, source: Path, out: str, kind: str) -> None:
    pl.DataFrame({"session": SESSIONS}).write_parquet(tmp_path / "in.parquet")
    progress = RecordingProgress()
    joined = parts(trained, tmp_path / kind, tmp_path / out, progress=progress)
    total = source.stat().st_size if kind == "in.jsonl" else len(SESSIONS)
    moves = [(done, whole) for _, done, whole in progress.moves]
    assert (len(moves), moves == sorted(moves), moves[-1]) == (7, True, (total, total))
    wanted = rows_of(tmp_path / out)
    sessions = [json.loads(line) for line in LINES] if kind == "in.jsonl" else SESSIONS
    answers = Recommender.load(trained).recommend(sessions, 4)
    assert [row["items"] for row in wanted] == [[one.item for one in answer] for answer in answers]
    (tmp_path / out).unlink()
    totals = parts(trained, tmp_path / kind, tmp_path / out, as_folder=True)
    files = sorted((tmp_path / out).iterdir())
    assert [file.name for file in files] == [f"part-{number:05d}{out[3:]}" for number in range(7)]
    assert_equal([row for file in files for row in rows_of(file)], wanted)
    assert replace(joined, seconds=0) == replace(totals, seconds=0)
    assert listed(tmp_path) == ["in.jsonl", "in.parquet", out]


def interrupt_at(number: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Ctrl-C when a part is to be scored."""

    def interrupted(job, part):
        if part[0] == number:
            raise KeyboardInterrupt
        return score_part(job, part)

    monkeypatch.setattr(module, "score_part", interrupted)


def test_an_interrupted_call_is_continued(
    trained: Path, tmp_path: Path, source: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also where it was to write a folder and is now to write a file."""
    scored: list[int] = []
    interrupt_at(3, monkeypatch)
    with pytest.raises(KeyboardInterrupt):
        parts(trained, source, tmp_path / "out.jsonl", as_folder=True)
    assert not (tmp_path / "out.jsonl").exists()
    (tmp_path / "out.jsonl.parts" / "counted-00001.json").unlink()  # killed between a part and its counts
    monkeypatch.setattr(module, "score_part", lambda job, part: scored.append(part[0]) or score_part(job, part))
    totals = parts(trained, source, tmp_path / "out.jsonl")
    assert scored == [1, 3, 4, 5, 6]
    assert (totals.sessions, totals.unknown, totals.popular, totals.earlier) == (101, 1, 1, 32)
    assert [row["id"] for row in rows_of(tmp_path / "out.jsonl")] == list(range(1, 102))
    assert listed(tmp_path) == ["in.jsonl", "out.jsonl"]


def test_parts_of_another_job_are_not_continued(
    trained: Path, tmp_path: Path, source: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    out = tmp_path / "out.jsonl"
    interrupt_at(2, monkeypatch)
    with pytest.raises(KeyboardInterrupt):
        parts(trained, source, out)
    monkeypatch.undo()
    with pytest.raises(InputError, match="holds parts of another run"):
        score_file(OpenRun(trained), source, out, 5, exclude_seen=True)
    write_lines(source, LINES[:-1])
    with pytest.raises(InputError, match=r"out.jsonl.parts holds parts of another run, input or options; remove it"):
        parts(trained, source, out)
    assert parts(trained, source, out, overwrite=True).earlier == 0
    assert len(rows_of(out)) == 100


def test_what_another_process_has_written_meanwhile_is_not_replaced(
    trained: Path, tmp_path: Path, source: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    out = tmp_path / "out.jsonl"

    @contextmanager
    def lock(path: Path) -> Iterator[bool]:
        out.write_text("of another process")
        with try_lock(path) as is_ours:
            yield is_ours

    monkeypatch.setattr(module, "try_lock", lock)
    with pytest.raises(InputError, match="exists already"):
        parts(trained, source, out)
    assert out.read_text() == "of another process"
    assert listed(tmp_path) == ["in.jsonl", "out.jsonl"]


def test_what_is_not_replaced(trained: Path, tmp_path: Path, source: Path) -> None:
    out = tmp_path / "out.jsonl"
    parts(trained, source, out, as_folder=True)
    with pytest.raises(InputError, match="exists already"):
        parts(trained, source, out, as_folder=True)
    parts(trained, source, out, as_folder=True, overwrite=True)
    with pytest.raises(InputError, match="is a folder that was not written by"):
        parts(trained, source, out, overwrite=True)
    (out / "notes.txt").touch()
    with pytest.raises(InputError, match="is a folder that was not written by"):
        parts(trained, source, out, as_folder=True, overwrite=True)
    (tmp_path / "file.jsonl").touch()
    with pytest.raises(InputError, match="is a file, and --parts writes a folder"):
        parts(trained, source, tmp_path / "file.jsonl", as_folder=True, overwrite=True)
    with pytest.raises(InputError, match="holds no sessions"):
        parts(trained, write_lines(tmp_path / "blank.jsonl", [""]), tmp_path / "none.jsonl")
    assert not (tmp_path / "none.jsonl.parts").exists()


def test_the_command_writes_parts(trained: Path, tmp_path: Path, source: Path) -> None:
    done = command("score", trained, source, tmp_path / "out.parquet", "--parts", "-k", 3)
    assert done.code == 0, done.err
    assert "101 sessions in" in done.out
    assert "per second on each core" in done.out
    assert pl.read_parquet(tmp_path / "out.parquet").height == 101
    for options, words in (
        (["--engine", "spark"], "--engine spark is not known; choose local or ray"),
        (["--address", "auto"], "--address is for Ray; add --engine ray"),
        (["--workers", 2], "--workers is for Ray; add --engine ray"),
    ):
        refused = command("score", trained, source, tmp_path / "other.jsonl", *options)
        assert (refused.code, words in refused.err) == (2, True), refused.err


# On a real Ray of two processes.


def killed_at_first(job, part):
    """`score_part`, but the first process that comes to part 2 is killed after it has written the answers."""
    marker = job.folder.parent / "killed"
    if part[0] == 2 and not marker.exists():
        marker.touch()
        module.write_json = lambda *_: os.kill(os.getpid(), signal.SIGKILL)
    return score_part(job, part)


@pytest.mark.slow
@pytest.mark.process
def test_ray_gives_the_same_answers_when_a_process_is_killed(
    trained: Path, tmp_path: Path, source: Path, cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    plain = parts(trained, source, tmp_path / "plain.jsonl")
    monkeypatch.setattr(module, "score_part", killed_at_first)
    totals = parts(trained, source, tmp_path / "out.jsonl", cluster=cluster)
    assert (tmp_path / "killed").exists()
    assert_equal(rows_of(tmp_path / "out.jsonl"), rows_of(tmp_path / "plain.jsonl"))
    assert replace(totals, seconds=0, cores=0) == replace(plain, seconds=0, cores=0)
    assert totals.cores == 2
    assert listed(tmp_path) == ["in.jsonl", "killed", "out.jsonl", "plain.jsonl"]


@pytest.mark.slow
@pytest.mark.process
def test_ray_names_a_bad_line_and_this_process_continues_what_ray_left(
    trained: Path, tmp_path: Path, source: Path, cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    bad = write_lines(tmp_path / "bad.jsonl", [*LINES[:40], "{"])
    with pytest.raises(InputError, match=r"bad.jsonl, line 41: the line is not JSON"):
        parts(trained, bad, tmp_path / "out.jsonl", cluster=cluster)
    monkeypatch.setattr(module, "score_part", lost_at_third)
    with pytest.raises(OSError, match="a disk is gone"):
        parts(trained, source, tmp_path / "out.jsonl", cluster=cluster)
    monkeypatch.setattr(module, "score_part", score_part)
    assert parts(trained, source, tmp_path / "out.jsonl").earlier >= 32
    assert len(rows_of(tmp_path / "out.jsonl")) == 101


def lost_at_third(job, part):
    if part[0] > 3:
        raise OSError("a disk is gone")
    return score_part(job, part)
