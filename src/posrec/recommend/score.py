"""`posrec score`: recommendations for whole files of sessions, of any size, read and written a chunk at a time.

session_file.py reads the sessions, answer_file.py writes the recommendations, and score_parts.py does the same part by
part, in many processes.
"""

import time
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Unpack

import torch

from posrec.errors import InputError
from posrec.io import whole_file
from posrec.progress import Progress
from posrec.recommend.answer_file import ScoredSession, check_output, write_answers
from posrec.recommend.catalogue import values_of
from posrec.recommend.plan import AnswerRules, Ordered, Plan
from posrec.recommend.recommender import Recommender
from posrec.recommend.session import EncodedSession
from posrec.recommend.session_file import Chunk, SessionFile, SessionRow, parse, place_name
from posrec.recommend.trial import try_out


@dataclass
class Totals:
    """What scoring a file has done."""

    sessions: int = 0
    unknown: int = 0  # clicks on items that the model does not know
    popular: int = 0  # sessions without a known click, which got popular items
    empty: int = 0  # sessions for which no item was left to recommend
    seconds: float = 0.0
    cores: int = 0  # that computed; 0 where GPUs did
    earlier: int = 0  # of the sessions, those that an earlier, interrupted call had scored

    def add(self, other: "Totals") -> None:
        """Count the sessions of a part."""
        self.sessions += other.sessions
        self.unknown += other.unknown
        self.popular += other.popular
        self.empty += other.empty

    @property
    def rate(self) -> float:
        """Sessions a second."""
        return (self.sessions - self.earlier) / self.seconds

    def rate_note(self) -> str:
        """
        >>> Totals(sessions=3000, seconds=1.5, cores=2).rate_note()
        '2,000 per second, 1,000 per second on each core'
        """
        return f"{self.rate:,.0f} per second" + (
            f", {self.rate / self.cores:,.0f} per second on each core" if self.cores else ""
        )


def score_file(
    recommender: Recommender,
    source: str | Path,
    out: str | Path,
    k: int | None = None,
    *,
    overwrite: bool = False,
    progress: Progress | None = None,
    **rules: Unpack[AnswerRules],
) -> Totals:
    """Recommend for every session of the file `source` and write the file `out`, whole or not at all.

    `rules` are the options of `Recommender.recommend`, and mean the same.
    """
    progress = progress or Progress()
    path = Path(out)
    check_output(path)
    sessions, totals, began = SessionFile(Path(source)), Totals(), time.monotonic()
    try_out(recommender)  # rather than find scores that are not numbers in a large file
    plan = recommender.plan(k, **rules)

    def chunks() -> Iterator[Chunk]:
        for chunk in sessions.chunks():
            yield chunk
            rate = totals.sessions / (time.monotonic() - began)
            progress.update("Scoring", chunk.done, chunk.total, f"{rate:,.0f} sessions/s")

    with whole_file(path, overwrite, keep_suffix=True) as unfinished:
        answers = answered(recommender, plan, chunks(), sessions.path, totals)
        write_answers(unfinished, answers, sessions.id_type(), plan.fields is not None)
        if not totals.sessions:
            raise InputError(f"{source} holds no sessions; there is nothing to score")
    totals.seconds = time.monotonic() - began
    totals.cores = torch.get_num_threads() if recommender.device.type == "cpu" else 0
    return totals


def answered(
    recommender: Recommender, plan: Plan, chunks: Iterable[Chunk], source: Path, totals: Totals
) -> Iterator[list[ScoredSession]]:
    """Recommendations for the sessions of each chunk of the file `source`, counted in `totals`."""

    def encoded(row: SessionRow) -> EncodedSession:
        try:
            return recommender.encode(row.session)
        except InputError as error:
            raise InputError(f"{place_name(source, row.place)}: {error}") from None

    for chunk in chunks:
        rows = parse(chunk, source)
        asked = [encoded(row) for row in rows]
        found = recommender.rank([(plan, session) for session in asked])
        yield [scored(plan, *one) for one in zip(rows, asked, found, strict=True)]
        totals.sessions += len(asked)
        totals.unknown += sum(len(session.unknown) for session in asked)
        totals.popular += sum(not session.numbers for session in asked)
        totals.empty += sum(not one.numbers for one in found)


def scored(plan: Plan, row: SessionRow, session: EncodedSession, found: Ordered) -> ScoredSession:
    ids, fields = plan.catalogue.vocabulary.ids, plan.fields
    return ScoredSession(
        row.id, [ids[number - 1] for number in found.numbers], found.scores, session.unknown, not session.numbers,
        None if fields is None else [values_of(number, fields) for number in found.numbers],
    )  # fmt: skip
