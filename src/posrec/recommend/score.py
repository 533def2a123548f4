"""Whole files of sessions, of any size: read, scored and written a few thousand sessions at a time."""

import time
from collections.abc import Collection, Iterator
from dataclasses import dataclass
from pathlib import Path

from posrec.errors import InputError
from posrec.io import whole_file
from posrec.progress import Progress
from posrec.recommend.recommender import Reading, Recommender
from posrec.recommend.session import Click
from posrec.recommend.session_files import Row, Scored, SessionFile, check_output, write_answers


@dataclass
class Totals:
    """What was done."""

    sessions: int = 0
    unknown: int = 0  # clicks on items that the model does not know
    popular: int = 0  # sessions that were answered by popularity
    seconds: float = 0.0


def score_file(
    recommender: Recommender,
    source: str | Path,
    out: str | Path,
    k: int | None = None,
    *,
    exclude_seen: bool = False,
    allow: Collection[Click] | None = None,
    deny: Collection[Click] | None = None,
    overwrite: bool = False,
    progress: Progress | None = None,
) -> Totals:
    """Recommend for every session of `source` and write `out`, whole or not at all; formats: session_files.py."""
    progress = progress or Progress()
    path = Path(out)
    check_output(path)
    sessions, totals, began = SessionFile(Path(source)), Totals(), time.monotonic()
    k, candidates = recommender.checked_k(k), recommender.candidates(allow, deny)

    def answers() -> Iterator[list[Scored]]:
        for chunk in sessions.chunks():
            readings = [read(recommender, sessions, row) for row in chunk.rows]
            ranked = recommender.rank(readings, k, exclude_seen, candidates)
            rows = zip(chunk.rows, readings, *(part.tolist() for part in ranked), strict=True)
            yield [scored(recommender, *row) for row in rows]
            totals.sessions += len(readings)
            totals.unknown += sum(len(reading.unknown) for reading in readings)
            totals.popular += sum(not reading.numbers for reading in readings)
            rate = totals.sessions / (time.monotonic() - began)
            progress.update("Scoring", chunk.done, chunk.total, f"{rate:,.0f} sessions/s")

    with whole_file(path, overwrite, keep_suffix=True) as unfinished:
        write_answers(unfinished, answers(), sessions.id_type())
        if not totals.sessions:
            raise InputError(f"{source} holds no session; there is nothing to score")
    totals.seconds = time.monotonic() - began
    return totals


def read(recommender: Recommender, sessions: SessionFile, row: Row) -> Reading:
    try:
        return recommender.read(row.session)
    except InputError as error:
        raise InputError(f"{sessions.path}, {sessions.unit} {row.place}: {error}") from None


def scored(recommender: Recommender, row: Row, reading: Reading, numbers: list[int], scores: list[float]) -> Scored:
    left = sum(score != float("-inf") for score in scores)  # the others ran out of items, and stand last
    items = [recommender.vocabulary.item(number) for number in numbers[:left]]
    return Scored(row.id, items, scores[:left], reading.unknown, popular=not reading.numbers)
