"""`posrec score`: recommendations for whole files of sessions, of any size, part by part.

One process reads the file (session_file.py) and hands out parts of some thousand sessions. An executor scores them:
this process, one after the other, or the tasks of a Ray cluster. The answers of a part are a file of their own
(answer_file.py), written whole or not at all, beside a note of what was counted. Only a few parts are in memory at a
time. They are in a folder beside the output, `answers.parquet.parts`:

    job.json               what is scored, by which run and with which options
    counted-00000.json     the counts of a finished part, written after it
    answers/part-00000.parquet

A call that is interrupted leaves it behind, and the same call again scores only what is missing. In the end the parts
are joined into the output file, or the folder of parts becomes the output.
"""

import hashlib
import json
import re
import secrets
import time
from collections.abc import Iterator
from dataclasses import asdict, dataclass, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Unpack

import torch

from posrec.data.source.files import find_files
from posrec.errors import InputError
from posrec.io import read_json, refuse_unwritable, write_json
from posrec.io.executor import Cluster, ThisProcess
from posrec.io.folders import CHECKSUMS, read_checksums
from posrec.io.unfinished import remove, try_lock
from posrec.progress import Progress
from posrec.recommend.catalogue import values_of
from posrec.recommend.export.opening import try_out
from posrec.recommend.files import session_file
from posrec.recommend.files.answer_file import Answer, check_output, join_files, write_answers
from posrec.recommend.files.session_file import Part, SessionRow, id_type_of, parse, parts_of, place_name
from posrec.recommend.plan import AnswerRules, Ordered, Plan
from posrec.recommend.recommender import Recommender
from posrec.recommend.session import EncodedSession

if TYPE_CHECKING:
    import polars as pl

JOB, ANSWERS, LOCK = "job.json", "answers", "lock"
PART = re.compile(r"part-\d{5,}\..+")


@dataclass
class Totals:
    """What scoring a file has done."""

    sessions: int = 0
    unknown: int = 0  # clicks on items that the model does not know
    popular: int = 0  # sessions without a known click, which got popular items
    empty: int = 0  # sessions for which no item was left to recommend
    earlier: int = 0  # of the sessions, those that an earlier, interrupted call had scored
    seconds: float = 0.0
    cores: int = 0  # that computed; 0 where GPUs did

    @staticmethod
    def of(answers: list[Answer]) -> "Totals":
        return Totals(
            sessions=len(answers),
            unknown=sum(len(answer["unknown"]) for answer in answers),
            popular=sum(answer["popular"] for answer in answers),
            empty=sum(not answer["items"] for answer in answers),
        )

    def add(self, part: "Totals") -> None:
        self.sessions += part.sessions
        self.unknown += part.unknown
        self.popular += part.popular
        self.empty += part.empty
        self.earlier += part.earlier

    @property
    def rate(self) -> float:
        """Sessions a second."""
        return (self.sessions - self.earlier) / self.seconds

    def rate_note(self) -> str:
        """
        >>> Totals(sessions=4000, earlier=1000, seconds=1.5, cores=2).rate_note()
        '2,000 per second, 1,000 per second on each core'
        """
        return f"{self.rate:,.0f} per second" + (
            f", {self.rate / self.cores:,.0f} per second on each core" if self.cores else ""
        )


@dataclass(frozen=True)
class OpenRun:
    """How to open the run, in every process: the arguments of `Recommender.load`."""

    run: Path
    device: str = "auto"
    model: str | None = None
    encoding: str | None = None

    def load(self) -> Recommender:
        return Recommender.load(self.run, self.device, self.model, self.encoding)


@dataclass(frozen=True)
class Job:
    """What is to be scored, the same for every part. Paths are absolute, since processes may be anywhere."""

    opened_by: OpenRun
    source: Path
    out: Path
    k: int | None
    rules: AnswerRules
    id_type: "pl.DataType"
    key: str  # of this call, in the processes that work on it

    @property
    def folder(self) -> Path:
        """Where the parts are until the output is complete."""
        return self.out.with_name(f"{self.out.name}.parts")

    def answers(self, number: int) -> Path:
        """The file of a part; its format is that of the output's name."""
        ending = "".join(self.out.suffixes[-2:]) if self.out.suffix == ".gz" else self.out.suffix
        return self.folder / ANSWERS / f"part-{number:05d}{ending}"

    def counted(self, number: int) -> Path:
        return self.folder / f"counted-{number:05d}.json"

    def description(self) -> dict[str, Any]:
        """What job.json holds: parts are continued only where all of it is the same. The checksums of the run's files
        tell it from a later run in the same folder. A recommender that was not saved has none; its parts are never
        continued."""
        state, opened_by = self.source.stat(), self.opened_by
        options = json.dumps({"k": self.k, **self.rules}, sort_keys=True, default=list)
        files = sorted(read_checksums(opened_by.run).items()) if (opened_by.run / CHECKSUMS).exists() else []
        run = {name: file.sha256 for name, file in files}
        return {
            "source": str(self.source),
            "bytes": state.st_size,
            "modified": state.st_mtime_ns,
            "run": run or self.key,
            "model": opened_by.model,
            "encoding": opened_by.encoding,
            "options": hashlib.sha256(options.encode()).hexdigest(),
            "rows": session_file.PART_ROWS,
        }


def score_file(
    recommender: Recommender | OpenRun,
    source: str | Path,
    out: str | Path,
    k: int | None = None,
    *,
    cluster: Cluster | None = None,
    as_folder: bool = False,
    overwrite: bool = False,
    progress: Progress | None = None,
    **rules: Unpack[AnswerRules],
) -> Totals:
    """Recommend for every session of the file `source`; what an interrupted call has done is kept.

    Args:
        recommender: a recommender, or for a cluster how its processes open the run.
        source: the file of sessions.
        out: the file to write, or with `as_folder` the folder of part files; its ending is their format.
        k: how many items for each session.
        cluster: where the parts are scored, each with one core, or one GPU where the cluster has any; None: here.
        as_folder: leave the parts as they are, in a folder, instead of joining them into one file.
        overwrite: replace `out`, and parts that another job left behind.
        progress: where to report.
        rules: the options of `Recommender.recommend`, which mean the same.
    """
    progress = progress or Progress()
    path = Path(out).absolute()
    check_output(path)
    check_replaceable(path, as_folder, overwrite)
    sessions, began = Path(source).absolute(), time.monotonic()
    find_files(sessions)
    opened_by = recommender if isinstance(recommender, OpenRun) else OpenRun(recommender.run.path)
    opened_by = replace(opened_by, run=opened_by.run.absolute())
    job = Job(opened_by, sessions, path, k, rules, id_type_of(sessions), secrets.token_hex(8))
    if cluster is None:
        here = recommender.load() if isinstance(recommender, OpenRun) else recommender
        on_gpu, cores = here.device.type == "cuda", torch.get_num_threads()
        make_ready(job, here)
    else:
        on_gpu, cores = cluster.gpus_for(opened_by.device) > 0, cluster.cpus
    job.folder.mkdir(parents=True, exist_ok=True)
    with try_lock(job.folder / LOCK) as is_ours:
        if not is_ours:
            raise InputError(f"another process is writing {path}; wait for it, or name another file")
        continue_or_begin(job, overwrite)
        try:
            check_replaceable(path, as_folder, overwrite)  # another process may have written it meanwhile
            totals = score_parts(job, cluster, on_gpu, progress)
        except InputError:  # a file that was corrected is another job
            remove(job.folder)
            raise
        finally:
            ready.clear()
        finish(job, as_folder, overwrite)
        remove(job.folder)
    totals.seconds, totals.cores = time.monotonic() - began, 0 if on_gpu else cores
    return totals


def check_replaceable(path: Path, as_folder: bool, overwrite: bool) -> None:
    """Fail before the work: only a file, or a folder of nothing but parts, is ever replaced."""
    if path.exists() and not overwrite:
        raise InputError(f"{path} exists already; name another, remove it, or pass --overwrite")
    if path.is_dir() and not (as_folder and all(PART.fullmatch(one.name) for one in path.iterdir())):
        raise InputError(f"{path} is a folder that was not written by posrec score --parts; remove it yourself")
    if path.is_file() and as_folder:
        raise InputError(f"{path} is a file, and --parts writes a folder; name another, or remove it")
    refuse_unwritable(path)


def continue_or_begin(job: Job, overwrite: bool) -> None:
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
    (job.folder / ANSWERS).mkdir(parents=True, exist_ok=True)  # a process that has just finished removes the folder
    write_json(noted, described)


def score_parts(job: Job, cluster: Cluster | None, on_gpu: bool, progress: Progress) -> Totals:
    """Score the parts that are missing, and count all."""
    totals, began, done = Totals(), time.monotonic(), 0

    def missing() -> Iterator[tuple[int, Part]]:
        nonlocal done
        for number, part in enumerate(parts_of(job.source)):
            if job.counted(number).exists() and job.answers(number).exists():
                counted = Totals(**read_json(job.counted(number)))
                totals.add(replace(counted, earlier=counted.sessions))
                done += part.size
            else:
                yield number, part

    executor = cluster or ThisProcess()
    for (_, part), counted in executor.run(partial(score_part, job), missing(), work="Scoring", gpus=int(on_gpu)):
        totals.add(counted)
        done += part.size
        rate = (totals.sessions - totals.earlier) / (time.monotonic() - began)
        progress.update("Scoring", done, part.total, f"{rate:,.0f} sessions/s")
    if not totals.sessions:
        raise InputError(f"{job.source} holds no sessions; there is nothing to score")
    return totals


def score_part(job: Job, numbered: tuple[int, Part]) -> Totals:
    """Score and write a part. If its process dies at any time, the part is only scored once more."""
    number, part = numbered
    if job.key not in ready:
        make_ready(job, job.opened_by.load())
    recommender, plan = ready[job.key]
    answers = answered(recommender, plan, parse(part, job.source), job.source)
    write_answers(job.answers(number), answers, job.id_type, optional_columns(plan))
    totals = Totals.of(answers)
    write_json(job.counted(number), asdict(totals))
    return totals


ready: dict[str, tuple[Recommender, Plan]] = {}  # in this process, which scores many parts of the same job


def make_ready(job: Job, recommender: Recommender) -> None:
    try_out(recommender)  # rather than find scores that are not numbers in a large file
    ready.clear()
    ready[job.key] = recommender, recommender.plan(job.k, **job.rules)


def answered(recommender: Recommender, plan: Plan, rows: list[SessionRow], source: Path) -> list[Answer]:
    """Recommendations for sessions of the file `source`."""

    def encoded(row: SessionRow) -> EncodedSession:
        try:
            return recommender.encode(row.session)
        except InputError as error:
            raise InputError(f"{place_name(source, row.place)}: {error}") from None

    sessions = [encoded(row) for row in rows]
    lists = recommender.rank([(plan, session) for session in sessions])
    return [scored(plan, *answer) for answer in zip(rows, sessions, lists, strict=True)]


def scored(plan: Plan, row: SessionRow, session: EncodedSession, ordered: Ordered) -> Answer:
    ids = plan.catalogue.vocabulary.ids
    answer = {
        "id": row.id,
        "items": [ids[number - 1] for number, _ in ordered.items],
        "scores": [score for _, score in ordered.items],
        "unknown": session.unknown,
        "popular": not session.numbers,
    }
    if plan.explore:
        answer["explored"] = [ids[number - 1] for number, _ in ordered.items if number in ordered.explored]
    if plan.fields is not None:
        answer["fields"] = [values_of(number, plan.fields) for number, _ in ordered.items]
    return answer


def optional_columns(plan: Plan) -> list[str]:
    """The columns of the output that it has only if they are asked for."""
    return ["explored"] * bool(plan.explore) + ["fields"] * (plan.fields is not None)


def finish(job: Job, as_folder: bool, overwrite: bool) -> None:
    """Give the answers their name: as one file, or as the folder that they are in."""
    answers = job.folder / ANSWERS
    if not as_folder:
        parts = [one for one in answers.iterdir() if PART.fullmatch(one.name)]
        join_files(sorted(parts, key=lambda one: (len(one.name), one.name)), job.out, overwrite)
        return
    if job.out.exists():
        check_replaceable(job.out, as_folder, overwrite)
        remove(job.out)
    answers.rename(job.out)
