"""`posrec score` part by part: in the processes of a Ray cluster, or one after the other in this process.

One process reads the file and hands out parts of some thousand sessions; each part is scored and written as a file of
its own, whole or not at all, beside a note of what was counted. Only a few parts are in memory at a time. The parts
are in a folder beside the output, `answers.parquet.parts`:

    job.json               what is scored, by which run and with which options
    counted-00000.json     the counts of a finished part, written after it
    answers/part-00000.parquet

A call that is interrupted leaves it behind, and the same call again scores only what is missing. In the end the parts
are joined into the output file, or the folder of parts becomes the output.
"""

import hashlib
import json
import re
import time
from collections.abc import Iterable, Iterator
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from posrec.device import choose_device
from posrec.errors import InputError
from posrec.io import read_json, refuse_unwritable, whole_file, write_json
from posrec.io.checksums import read_checksums
from posrec.io.locks import try_lock
from posrec.io.unfinished import remove
from posrec.progress import Progress
from posrec.recommend import session_file
from posrec.recommend.answer_file import check_output, join_files, write_answers
from posrec.recommend.plan import AnswerRules, Plan
from posrec.recommend.recommender import Recommender
from posrec.recommend.score import Totals, answered
from posrec.recommend.session_file import Chunk, SessionFile
from posrec.recommend.trial import try_out

if TYPE_CHECKING:
    import polars as pl

    from posrec.ray_cluster import Cluster

JOB, ANSWERS, LOCK = "job.json", "answers", "lock"
CHUNKS = 8  # of session_file.ROWS sessions in a part: seconds of work, and a row group of Parquet
PART = re.compile(r"part-\d{5,}\..+")


def parts_folder(out: Path) -> Path:
    """Where the parts of the output `out` are until it is complete."""
    return out.with_name(f"{out.name}.parts")


@dataclass(frozen=True)
class OpenRun:
    """How to open the run, in every process: the arguments of `Recommender.load`."""

    run: Path
    device: str = "auto"
    model: str | None = None
    encoding: str | None = None


@dataclass(frozen=True)
class PartsJob:
    """What is to be scored, the same for every part. Paths are absolute, since processes may be anywhere."""

    opened_by: OpenRun
    source: Path
    out: Path
    k: int | None
    rules: AnswerRules
    id_type: "pl.DataType"

    @property
    def folder(self) -> Path:
        return parts_folder(self.out)

    def answers(self, number: int) -> Path:
        """The file of a part; its format is that of the output's name."""
        ending = "".join(self.out.suffixes[-2:]) if self.out.suffix == ".gz" else self.out.suffix
        return self.folder / ANSWERS / f"part-{number:05d}{ending}"

    def counted(self, number: int) -> Path:
        return self.folder / f"counted-{number:05d}.json"

    def description(self) -> dict[str, Any]:
        """What job.json holds: parts are continued only where all of it is the same."""
        state = self.source.stat()
        asked = json.dumps({"k": self.k, **self.rules}, sort_keys=True, default=list)
        return {
            "source": str(self.source), "bytes": state.st_size, "modified": state.st_mtime_ns,
            "run": self.run_contents(),
            "model": self.opened_by.model, "encoding": self.opened_by.encoding,
            "options": hashlib.sha256(asked.encode()).hexdigest(), "rows": part_rows(),
        }  # fmt: skip

    def run_contents(self) -> dict[str, str] | str:
        """The checksums of the run's files, which tell it from a later run in the same folder; its path without any."""
        recorded = read_checksums(self.opened_by.run) or {}
        return {name: one.sha256 for name, one in sorted(recorded.items())} or str(self.opened_by.run)


def score_parts(
    opened_by: OpenRun,
    source: str | Path,
    out: str | Path,
    k: int | None = None,
    *,
    cluster: "Cluster | None" = None,
    as_folder: bool = False,
    overwrite: bool = False,
    progress: Progress | None = None,
    **rules: Any,
) -> Totals:
    """Recommend for every session of the file `source`, part by part; what an interrupted call has done is kept.

    Args:
        opened_by: the run.
        source: the file of sessions.
        out: the file to write, or with `as_folder` the folder of part files; its ending is their format.
        k: how many items for each session.
        cluster: where the parts are scored, each with one core, or one GPU where the cluster has any; None: here.
        as_folder: leave the parts as they are, in a folder, instead of joining them into one file.
        overwrite: replace `out`, and parts that another job left behind.
        progress: where to report.
        rules: the options of `Recommender.recommend`.
    """
    progress = progress or Progress()
    path = Path(out).absolute()
    check_output(path)
    check_replaceable(path, as_folder, overwrite)
    sessions, began = SessionFile(Path(source).absolute()), time.monotonic()
    place = OpenRun(opened_by.run.absolute(), opened_by.device, opened_by.model, opened_by.encoding)
    job = PartsJob(place, sessions.path, path, k, AnswerRules(**rules), sessions.id_type())  # type: ignore[typeddict-item]
    on_gpu = cluster.gpus_for(place.device) > 0 if cluster is not None else choose_device(place.device).type == "cuda"
    job.folder.mkdir(parents=True, exist_ok=True)
    with try_lock(job.folder / LOCK) as is_ours:
        if not is_ours:
            raise InputError(f"another process is writing {path}; wait for it, or name another file")
        continue_or_begin(job, overwrite)
        totals, parts, done = Totals(), 0, 0.0
        for number, end, whole, counted in scored_parts(job, sessions, cluster, on_gpu):
            totals.add(counted)
            totals.earlier += counted.earlier
            parts, done = max(parts, number + 1), done + end
            rate = (totals.sessions - totals.earlier) / (time.monotonic() - began)
            progress.update("Scoring", done, whole, f"{rate:,.0f} sessions/s")
        if not totals.sessions:
            remove(job.folder)
            raise InputError(f"{source} holds no sessions; there is nothing to score")
        finish(job, parts, as_folder, overwrite)
    remove(job.folder)
    totals.seconds = time.monotonic() - began
    totals.cores = 0 if on_gpu else cluster.cpus if cluster is not None else torch.get_num_threads()
    return totals


def part_rows() -> int:
    return CHUNKS * session_file.ROWS


def check_replaceable(path: Path, as_folder: bool, overwrite: bool) -> None:
    """Fail before the work: only a file, or a folder of nothing but parts, is ever replaced."""
    if path.exists() and not overwrite:
        raise InputError(f"{path} exists already; name another, remove it, or pass --overwrite")
    if path.is_dir() and not (as_folder and all(PART.fullmatch(one.name) for one in path.iterdir())):
        raise InputError(f"{path} is a folder that was not written by posrec score --parts; remove it yourself")
    if path.is_file() and as_folder:
        raise InputError(f"{path} is a file, and --parts writes a folder; name another, or remove it")
    refuse_unwritable(path)


def continue_or_begin(job: PartsJob, overwrite: bool) -> None:
    """Keep the parts of an interrupted call of the same job."""
    described, noted = job.description(), job.folder / JOB
    if noted.exists() and read_json(noted) != described:
        if not overwrite:
            raise InputError(
                f"{job.folder} holds parts of another run, input or options; remove it, or pass --overwrite"
            )
        for one in job.folder.iterdir():
            if one.name != LOCK:
                remove(one)
    (job.folder / ANSWERS).mkdir(exist_ok=True)
    write_json(noted, described)


def scored_parts(
    job: PartsJob, sessions: SessionFile, cluster: "Cluster | None", on_gpu: bool
) -> Iterator[tuple[int, float, float, Totals]]:
    """Of each part, as it finishes: its number, how much of how much of the file it is, and what was counted."""
    finished: list[tuple[int, float, float, Totals]] = []
    sizes: dict[int, tuple[float, float]] = {}

    def missing() -> Iterator[tuple[int, Chunk]]:
        before = 0.0
        for number, chunk in enumerate(sessions.chunks(part_rows())):
            sizes[number], before = (chunk.done - before, chunk.total), chunk.done
            if job.counted(number).exists() and job.answers(number).exists():
                counted = Totals(**read_json(job.counted(number)))
                counted.earlier = counted.sessions
                finished.append((number, *sizes[number], counted))
            else:
                yield number, chunk

    scored: Iterable[tuple[tuple[int, Chunk], Totals]]
    if cluster is None:
        scored = ((part, score_part(job, part)) for part in missing())
    else:
        scored = cluster.run(partial(score_part, job), missing(), work="Scoring", gpus=int(on_gpu))
    for (number, _), counted in scored:
        yield number, *sizes.pop(number), counted
        while finished:
            yield finished.pop()
    yield from finished


def score_part(job: PartsJob, part: tuple[int, Chunk]) -> Totals:
    """Score and write a part. If its process dies at any time, the part is only scored once more."""
    number, whole = part
    recommender, plan = opened(job)
    totals, rows = Totals(), session_file.ROWS
    starts = range(0, len(whole.content), rows)
    chunks = (Chunk(whole.first + at, whole.content[at : at + rows], 0, 0) for at in starts)
    with whole_file(job.answers(number), overwrite=True, keep_suffix=True) as unfinished:
        answers = answered(recommender, plan, chunks, job.source, totals)
        write_answers(unfinished, answers, job.id_type, plan.fields is not None)
    write_json(job.counted(number), asdict(totals))
    return totals


_opened: dict[str, tuple[Recommender, Plan]] = {}  # of this process, which scores many parts of the same job


def opened(job: PartsJob) -> tuple[Recommender, Plan]:
    key = json.dumps([str(job.opened_by), job.run_contents(), job.k, job.rules], default=list)
    if key not in _opened:
        one = job.opened_by
        recommender = Recommender.load(one.run, one.device, one.model, one.encoding)
        try_out(recommender)  # rather than find scores that are not numbers in a large file
        _opened.clear()
        _opened[key] = recommender, recommender.plan(job.k, **job.rules)
    return _opened[key]


def finish(job: PartsJob, parts: int, as_folder: bool, overwrite: bool) -> None:
    """Give the answers their name: as one file, or as the folder that they are in."""
    if not as_folder:
        with whole_file(job.out, overwrite, keep_suffix=True) as unfinished:
            join_files([job.answers(number) for number in range(parts)], unfinished)
        return
    if job.out.exists():
        check_replaceable(job.out, as_folder, overwrite)
        remove(job.out)
    (job.folder / ANSWERS).rename(job.out)
