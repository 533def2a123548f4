"""`posrec score`: recommendations for whole files of sessions, of any size.

This process reads chunks of some thousand sessions, of which few are in memory; an executor ranks
them; and the answers are written in the order of the sessions.
"""

import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Unpack

from posrec.data.source.files import find_files
from posrec.errors import InputError
from posrec.io.executor import Executor
from posrec.progress import Progress
from posrec.recommend.catalogue import values_of
from posrec.recommend.files.formats import (
    Answer,
    SessionChunk,
    SessionRow,
    answer_writer,
    answers_content,
    read_chunks,
)
from posrec.recommend.plan import AnswerRules, Ordered, Plan, clock
from posrec.recommend.recommender import Recommender
from posrec.recommend.session import EncodedSession
from posrec.recommend.try_out import try_out


@dataclass
class ChunkScorer:
    """Each process opens the run at its first chunk."""

    open_run: Callable[[], Recommender]
    out: Path
    k: int | None
    rules: AnswerRules

    @cached_property
    def opened(self) -> tuple[Recommender, Plan]:
        recommender = self.open_run()
        try_out(recommender)  # before a large file is full of NaN
        return recommender, recommender.plan(self.k, **self.rules)

    def __call__(self, chunk: SessionChunk) -> tuple[Counter[str], bytes]:
        """What `score_file` counts, and what it writes."""
        recommender, plan = self.opened
        sessions = [looked_up(recommender, row) for row in chunk.rows]
        lists = recommender.ordered_lists([(plan, session) for session in sessions])
        counts: Counter[str] = Counter(sessions=len(sessions))
        answers = []
        for row, session, ordered in zip(chunk.rows, sessions, lists, strict=True):
            answers.append(as_answer(plan, row, session, ordered))
            counts["unknown"] += len(session.unknown)
            counts["popular"] += not session.numbers
            counts["empty"] += not ordered.items
        return counts, answers_content(answers, self.out, chunk.id_type)


def looked_up(recommender: Recommender, row: SessionRow) -> EncodedSession:
    try:
        return recommender.look_up(row.session)
    except InputError as error:
        raise InputError(f"{row.where}: {error}") from None


def as_answer(
    plan: Plan, row: SessionRow, session: EncodedSession, ordered: Ordered
) -> Answer:
    ids = plan.catalogue.vocabulary.ids
    numbers = [number for number, _ in ordered.items]
    answer = {
        "id": row.id,
        "items": [ids[number - 1] for number in numbers],
        "scores": [score for _, score in ordered.items],
        "unknown": session.unknown,
        "popular": not session.numbers,
    }
    if plan.explore:
        answer["explored"] = [
            ids[number - 1] for number in numbers if number in ordered.explored
        ]
    if plan.fields is not None:
        answer["fields"] = [values_of(number, plan.fields) for number in numbers]
    return answer


def score_file(
    open_run: Callable[[], Recommender],
    source: Path,
    out: Path,
    k: int | None = None,
    *,
    executor: Executor,
    progress: Progress,
    gpus: int = 0,
    overwrite: bool = False,
    **rules: Unpack[AnswerRules],
) -> Counter[str]:
    """Recommend for every session of the file `source`; `out` appears whole or not at all.

    Returns the numbers of `sessions`, of clicks on `unknown` items, of `popular` sessions (without
    a known click) and of `empty` answers.
    """
    find_files(source)  # an error if there are none
    if out.suffix == ".zst":
        raise InputError(
            f"{out}: zstd can be read but not written; name it .jsonl or .jsonl.gz"
        )
    started = time.monotonic()
    counts = Counter[str]()
    rules["now"] = rules.get("now") or clock()  # the same in every process
    with answer_writer(out, overwrite) as write:
        scorer = ChunkScorer(open_run, out, k, rules)
        chunks = read_chunks(source)
        results = executor.run(scorer, chunks, work="Scoring", gpus=gpus, in_order=True)
        for chunk, (chunk_counts, content) in results:
            write(content)
            counts += chunk_counts
            rate = counts["sessions"] / (time.monotonic() - started)
            note = f"{rate:,.0f} sessions/s"
            progress.update("Scoring", chunk.read, chunk.total, note)
        if not counts["sessions"]:
            raise InputError(f"{source} holds no sessions; there is nothing to score")
    return counts
