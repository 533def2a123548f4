"""`posrec score`: recommendations for whole files of sessions, of any size, read and written a chunk at a time.

In: JSON lines (plain, gzip or zstd) or Parquet. A line is {"session": ["sku-1", "sku-7"], "id": "a"} or just
["sku-1", "sku-7"]; a Parquet file has a column `session` of lists and may have a column `id`. Without an id, a session
gets the number of its line or row. Out: JSON lines (plain or gzip) or Parquet with `id`, `items`, `scores`, `unknown`
(clicks that were skipped) and `popular` (whether no click was known).
"""

import gzip
import json
import time
from collections.abc import Collection, Iterable, Iterator
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any

from posrec.data.limits import limited_lines
from posrec.data.sources import decompression_errors, find_files, unpacked
from posrec.errors import InputError
from posrec.io import os_error_in, whole_file
from posrec.progress import Progress
from posrec.recommend.ranker import Query, Ranking
from posrec.recommend.recommender import Recommender
from posrec.recommend.session import Click
from posrec.recommend.trial import try_out

if TYPE_CHECKING:
    import polars as pl

ROWS = 2048  # sessions in a chunk
JSON_LINES, PARQUET = (".jsonl", ".ndjson", ".jsonl.gz", ".ndjson.gz", ".jsonl.zst", ".ndjson.zst"), (".parquet",)


@dataclass(frozen=True)
class SessionRow:
    """A session of a file; `place` is the number of its line or row, counted from 1."""

    place: int
    id: Any
    session: Any


@dataclass(frozen=True)
class ScoredSession:
    """A line or row of the output."""

    id: Any
    items: list[str]
    scores: list[float]
    unknown: tuple[str, ...]
    popular: bool


@dataclass(frozen=True)
class Chunk:
    """Some sessions, and how much of the file has been read after them."""

    rows: list[SessionRow]
    done: float
    total: float


@dataclass
class Totals:
    """What `score_file` has done."""

    sessions: int = 0
    unknown: int = 0  # clicks on items that the model does not know
    popular: int = 0  # sessions without a known click, which got popular items
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
    """Recommend for every session of the file `source` and write the file `out`, whole or not at all."""
    progress = progress or Progress()
    path = Path(out)
    check_output(path)
    sessions, totals, began = SessionFile(Path(source)), Totals(), time.monotonic()
    try_out(recommender)  # rather than find scores that are not numbers in a large file
    k, candidates = recommender.checked_k(k), recommender.checked_candidates(allow, deny)

    def query(row: SessionRow) -> Query:
        try:
            return recommender.query(recommender.encode(row.session), k, exclude_seen, candidates)
        except InputError as error:
            raise InputError(f"{sessions.path}, {sessions.unit} {row.place}: {error}") from None

    def answers() -> Iterator[list[ScoredSession]]:
        for chunk in sessions.chunks():
            queries = [query(row) for row in chunk.rows]
            answered = zip(chunk.rows, queries, recommender.ranker.rank(queries), strict=True)
            yield [scored(recommender, *one) for one in answered]
            totals.sessions += len(queries)
            totals.unknown += sum(len(one.session.unknown) for one in queries)
            totals.popular += sum(not one.session.numbers for one in queries)
            rate = totals.sessions / (time.monotonic() - began)
            progress.update("Scoring", chunk.done, chunk.total, f"{rate:,.0f} sessions/s")

    with whole_file(path, overwrite, keep_suffix=True) as unfinished:
        write_answers(unfinished, answers(), sessions.id_type())
        if not totals.sessions:
            raise InputError(f"{source} holds no sessions; there is nothing to score")
    totals.seconds = time.monotonic() - began
    return totals


def scored(recommender: Recommender, row: SessionRow, query: Query, ranking: Ranking) -> ScoredSession:
    numbers, scores = ranking
    items = [recommender.vocabulary.ids[number - 1] for number in numbers]
    return ScoredSession(row.id, items, scores, query.session.unknown, popular=not query.session.numbers)


class SessionFile:
    """A file of sessions, read chunk by chunk; `unit` is what error messages call a place in it."""

    def __init__(self, path: Path) -> None:
        find_files(path)
        self.path = path
        self.parquet = kind_of(path) == "parquet"
        self.unit = "row" if self.parquet else "line"

    def chunks(self) -> Iterator[Chunk]:
        return self.parquet_chunks() if self.parquet else self.line_chunks()

    def line_chunks(self) -> Iterator[Chunk]:
        size = self.path.stat().st_size
        with self.path.open("rb") as packed, decompression_errors(self.path):
            numbered = enumerate(limited_lines(unpacked(packed)), start=1)
            while lines := list(islice(numbered, ROWS)):
                rows = [self.parsed(place, line) for place, line in lines if line.strip()]
                yield Chunk(rows, packed.tell(), size)

    def parsed(self, place: int, line: bytes) -> SessionRow:
        try:
            value = json.loads(line)
        except ValueError as error:  # JSON or UTF-8
            raise InputError(
                f"{self.path}, line {place}: the line is not JSON ({error}); fix or remove the line"
            ) from None
        if isinstance(value, dict) and "session" in value:
            return SessionRow(place, value.get("id", place), value["session"])
        if isinstance(value, list):
            return SessionRow(place, place, value)
        raise InputError(
            f'{self.path}, line {place}: the line is neither {{"session": [...]}} nor a list; fix or remove the line'
        )

    def parquet_chunks(self) -> Iterator[Chunk]:
        import polars as pl

        from posrec.data.readers.parquet import parquet_errors

        frame, has_id = self.parquet_columns()
        with parquet_errors(self.path):
            total, place = frame.select(pl.len()).collect().item(), 0
            for part in frame.collect_batches(chunk_size=ROWS, maintain_order=True):
                sessions, first = part["session"].to_list(), place + 1
                ids = part["id"].to_list() if has_id else range(first, first + len(part))
                place += len(part)
                numbered = enumerate(zip(ids, sessions, strict=True), start=first)
                yield Chunk([SessionRow(number, *row) for number, row in numbered], place, total)

    def parquet_columns(self) -> tuple["pl.LazyFrame", bool]:
        """The columns to read, and whether `id` is one of them."""
        import polars as pl

        from posrec.data.readers.parquet import scan_parquet

        frame = scan_parquet(self.path)
        schema = frame.collect_schema()
        if not isinstance(schema.get("session"), pl.List | pl.Array):
            found = ", ".join(f"{name} ({kind})" for name, kind in schema.items())
            raise InputError(f"{self.path} must have a column 'session' of lists of item ids; it has {found}")
        return frame.select(name for name in ("id", "session") if name in schema), "id" in schema

    def id_type(self) -> "pl.DataType":
        """The type of `id` in a Parquet output. Ids in JSON can be of many types, so they become text."""
        import polars as pl

        if not self.parquet:
            return pl.String()
        frame, has_id = self.parquet_columns()
        return frame.collect_schema()["id"] if has_id else pl.Int64()


def kind_of(path: Path) -> str:
    name = path.name.lower()
    for kind, endings in (("lines", JSON_LINES), ("parquet", PARQUET)):
        if name.endswith(endings):
            return kind
    raise InputError(f"{path}: the file name must end in .jsonl, .jsonl.gz or .parquet, which tells its format")


def check_output(path: Path) -> None:
    if kind_of(path) == "lines" and path.suffix == ".zst":
        raise InputError(f"{path}: zstd can be read but not written; name it .jsonl or .jsonl.gz")


def write_answers(path: Path, answers: Iterable[list[ScoredSession]], id_type: "pl.DataType") -> None:
    """Write each chunk of answers as soon as it is computed."""
    if kind_of(path) == "parquet":
        write_parquet(path, answers, id_type)
        return
    with gzip.open(path, "wb", compresslevel=6) if path.suffix == ".gz" else path.open("wb") as file:
        for chunk in answers:
            file.write(b"".join(as_line(one) for one in chunk))


def as_line(answer: ScoredSession) -> bytes:
    values = {
        **vars(answer),
        "scores": [float(f"{score:.7g}") for score in answer.scores],
    }  # float32 has no more digits
    return json.dumps(values, ensure_ascii=False).encode() + b"\n"


def write_parquet(path: Path, answers: Iterable[list[ScoredSession]], id_type: "pl.DataType") -> None:
    import polars as pl
    from polars.io.plugins import register_io_source

    words, numbers = pl.List(pl.String()), pl.List(pl.Float32())
    schema: dict[str, pl.DataType] = {
        "id": id_type, "items": words, "scores": numbers, "unknown": words, "popular": pl.Boolean()
    }  # fmt: skip

    def frames(*_: Any) -> Iterator[pl.DataFrame]:
        for chunk in answers:
            columns = {name: [getattr(one, name) for one in chunk] for name in schema}
            if id_type == pl.String:
                columns["id"] = [one if isinstance(one, str) else json.dumps(one) for one in columns["id"]]
            yield pl.DataFrame(columns, schema=schema)

    # An open file, not a path: polars opens a path in another thread, even after a failure has removed the file.
    with path.open("wb") as file:
        rows = register_io_source(frames, schema=schema)
        try:
            rows.sink_parquet(file, row_group_size=8 * ROWS, maintain_order=True)
        except pl.exceptions.PolarsError as error:
            raise os_error_in(error) or error from None
