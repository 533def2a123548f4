"""Another system in a comparison: test samples written for it to score, and ranks by its scores.

Samples are JSON lines as `posrec score` reads them. An id begins with the dataset's fingerprint, so
that scores of other samples are never taken for these. The scores are rows of `session` (a sample's
id), `item` and `score`, in the order of the samples: Parquet or JSON lines, read in chunks. An item
that is not listed for a sample has a score of minus infinity.
"""

import json
import math
from collections.abc import Iterator
from dataclasses import replace
from io import BytesIO
from pathlib import Path
from typing import Any

import polars as pl
import torch
from torch import Tensor

from posrec.data.dataset import PreparedDataset, SessionDataset
from posrec.data.source.blocks import blocks
from posrec.data.source.files import File, find_files
from posrec.data.source.readers.parquet import POLARS_ERRORS, open_parquet
from posrec.errors import InputError, first_line, plural
from posrec.evaluation.evaluate import Evaluation, evaluate
from posrec.evaluation.metrics import ranks_of, top
from posrec.io import whole_file
from posrec.progress import Progress, SilentProgress
from posrec.recommend.files.formats import is_parquet

COLUMNS = {"session": pl.String(), "item": pl.String(), "score": pl.Float64()}
ROWS_AT_A_TIME = 1 << 18


def sample_id(data: PreparedDataset, number: int) -> str:
    """The id of a test sample, from 1. Ids have equal lengths, so that they sort in order."""
    return f"{data.fingerprint[:12]}-{number:0{len(str(len(data.test)))}d}"


def write_samples(data: PreparedDataset, path: Path) -> None:
    data.require_test_part()
    if path.exists():
        raise InputError(
            f"--samples {path}: exists already; name another file, or remove it"
        )
    if path.suffix != ".jsonl":
        raise InputError(f"--samples {path}: the name must end in .jsonl")
    session, target = data.test.locate(torch.arange(len(data.test)))
    begins = data.test.offsets[session].tolist()
    clicks = [data.vocabulary.ids[item - 1] for item in data.test.items.tolist()]
    with whole_file(path) as unfinished, unfinished.open("w", encoding="utf-8") as file:
        bounds = zip(begins, target.tolist(), strict=True)
        for number, (begin, end) in enumerate(bounds, start=1):
            sample = {"id": sample_id(data, number), "session": clicks[begin:end]}
            file.write(json.dumps(sample, ensure_ascii=False) + "\n")


def rank_scores(path: Path, data: PreparedDataset, progress: Progress) -> Evaluation:
    rows = ScoreRows(path, data)
    items = data.recommendable_items

    def rank(
        samples: SessionDataset, ids: Tensor, max_length: int, k: int
    ) -> tuple[Tensor, Tensor]:
        first = int(ids[0])
        end = int(ids[-1]) + 1
        sample, item, score = (column.to_torch() for column in rows.before(end))
        scores = torch.full((len(ids), items), -math.inf, dtype=torch.float64)
        scores[sample - first, item] = score
        _, target = samples.locate(ids)
        ranks = ranks_of(scores, samples.items[target].long())
        values, columns = top(scores, k)
        return ranks, torch.where(values > -math.inf, columns + 1, 0)

    clicks = torch.bincount(data.train.items.long(), minlength=items + 1)
    outcome = evaluate(None, data.test, items, 1, clicks, progress, rank)
    if rows.unknown == rows.read:
        raise InputError(
            f"{path} lists no item of {data.path}; its column item must hold ids of the log's items"
        )
    if rows.unknown:
        count = plural(rows.read, "row")
        progress.message(
            f"{path}: {rows.unknown:,} of {count} are of items that {data.path} does not rank; "
            "left out"
        )
    assert outcome.top is not None
    if missing := int((outcome.top[:, 0] == 0).sum()):
        count = plural(len(data.test), "test sample")
        progress.message(
            f"{path}: {missing:,} of {count} have no scores and are misses"
        )
    return replace(outcome, dataset=data.fingerprint)


class ScoreRows:
    """The rows of a file of scores, checked and in their order."""

    def __init__(self, path: Path, data: PreparedDataset) -> None:
        self.path = path
        self.data = data
        self.read = 0
        self.unknown = 0
        self.latest_sample = 0
        self.items = pl.Enum(data.vocabulary.ids[: data.recommendable_items])
        self.chunks = (
            self.checked(chunk)
            for file in find_files(path)
            for chunk in self.frames(file)
        )
        # Rows that were read and are of later samples than those asked for.
        self.rest = pl.DataFrame(
            schema={"sample": pl.Int64, "item": pl.Int64, "score": pl.Float64}
        )

    def before(self, end: int) -> pl.DataFrame:
        """The rows, not taken yet, of samples before `end`: sample and item, from 0, and score."""
        while self.rest.is_empty() or self.rest["sample"][-1] < end:
            chunk = next(self.chunks, None)
            if chunk is None:
                break
            self.rest = pl.concat([self.rest, chunk])
        count = self.rest["sample"].search_sorted(end)
        taken = self.rest[:count]
        self.rest = self.rest[count:]
        twice = taken.filter(taken.select("sample", "item").is_duplicated())
        if len(twice):
            sample = sample_id(self.data, twice["sample"][0] + 1)
            item = self.items.categories[twice["item"][0]]
            raise InputError(
                f"{self.path} lists the item {item!r} twice for session {sample}; leave one out"
            )
        return taken

    def frames(self, file: File) -> Iterator[pl.DataFrame]:
        try:
            if is_parquet(Path(file.name)):
                with open_parquet(file) as frame:
                    yield from parquet_chunks(file, frame)
            else:
                for block in blocks([file], SilentProgress()):
                    yield pl.read_ndjson(BytesIO(block.data), schema=COLUMNS)
        except POLARS_ERRORS as error:
            raise InputError(
                f"{file}, after row {self.read}: can't be read ({first_line(error)})"
            ) from None

    def checked(self, chunk: pl.DataFrame) -> pl.DataFrame:
        """The chunk with numbers in place of ids, without items that are not ranked."""
        begin = f"{self.data.fingerprint[:12]}-"
        session = pl.col("session")
        number = session.str.strip_prefix(begin).cast(pl.Int64, strict=False)
        is_number = number.is_between(1, len(self.data.test))
        is_sample = session.str.starts_with(begin) & is_number
        item = pl.col("item").cast(self.items, strict=False)
        rows = chunk.select(
            "session",
            sample=pl.when(is_sample).then(number - 1),
            item=item.to_physical().cast(pl.Int64),
            score=pl.col("score").fill_nan(None),
        )
        sample = pl.col("sample")
        is_late = sample < sample.shift(fill_value=self.latest_sample)
        is_bad = sample.is_null() | pl.col("score").is_null() | is_late
        bad = rows.with_row_index("row", self.read + 1).filter(is_bad)
        if len(bad):
            fault = self.fault(bad.row(0, named=True))
            raise InputError(f"{self.path}, row {bad['row'][0]}: {fault}")
        self.read += len(rows)
        if len(rows):
            self.latest_sample = rows["sample"][-1]
        ranked = rows.filter(pl.col("item").is_not_null())
        self.unknown += len(rows) - len(ranked)
        return ranked.select("sample", "item", "score")

    def fault(self, row: dict[str, Any]) -> str:
        session = row["session"]
        if row["sample"] is None:
            data = self.data
            first = sample_id(data, 1)
            last = sample_id(data, len(data.test))
            return (
                f"session {session!r} is not a test sample of {data.path}, whose samples are "
                f"{first} to {last}; score those that posrec compare {data.path} --samples FILE "
                "writes"
            )
        if row["score"] is None:
            return "the score must be a number"
        return f"its session {session!r} follows a later one; sort the rows by session"


def parquet_chunks(file: File, frame: pl.LazyFrame) -> Iterator[pl.DataFrame]:
    names = frame.collect_schema().names()
    for name in COLUMNS:
        if name not in names:
            raise InputError(
                f"{file} has no column {name!r}; it needs {', '.join(COLUMNS)}"
            )
    columns = [pl.col(name).cast(kind, strict=False) for name, kind in COLUMNS.items()]
    yield from frame.select(columns).collect_batches(
        chunk_size=ROWS_AT_A_TIME, maintain_order=True
    )
