"""Another system in a comparison: test samples written for it to score, and ranks by its scores.

Samples are JSON lines as `posrec score` reads them. An id begins with the dataset's fingerprint, so
that scores of other samples are never taken for these. The scores are rows of `session` (a sample's
id), `item` and `score`, in the order of the samples: Parquet or JSON lines, read in chunks. An item
that is not listed for a sample has a score of minus infinity.
"""

import json
import math
import random
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
from posrec.evaluation.metrics import CUTOFFS, ranks_of, top
from posrec.io import whole_file
from posrec.progress import Progress, SilentProgress
from posrec.recommend.files.formats import is_parquet

COLUMNS = {"session": pl.String(), "item": pl.String(), "score": pl.Float64()}
ROWS_AT_A_TIME = 1 << 18
# What rounding may change where samples are scored in other batches: the share of the samples whose
# rank differs, and R@20.
ROUNDING = 0.01
ROUNDING_OF_RECALL = 0.001
WORST = max(CUTOFFS) + 1  # no metric looks further


def sample_id(data: PreparedDataset, number: int) -> str:
    """The id of a test sample, from 1. Ids have equal lengths, so that they sort in order."""
    return f"{data.fingerprint[:12]}-{number:0{len(str(len(data.test)))}d}"


def write_samples(data: PreparedDataset, path: Path, shuffled: bool = False) -> None:
    """In their order, or in another one, which is always the same."""
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
        samples = list(enumerate(zip(begins, target.tolist(), strict=True), start=1))
        if shuffled:
            random.Random(0).shuffle(samples)
        for number, (begin, end) in samples:
            sample = {"id": sample_id(data, number), "session": clicks[begin:end]}
            file.write(json.dumps(sample, ensure_ascii=False) + "\n")


def rank_scores(path: Path, data: PreparedDataset, progress: Progress) -> Evaluation:
    rows = ScoreRows(path, data)
    items = data.recommendable_items
    known = len(data.vocabulary)
    ranks_of_others = []  # of targets that are not ranked here, among all items

    def rank(
        samples: SessionDataset, ids: Tensor, max_length: int, k: int
    ) -> tuple[Tensor, Tensor]:
        first = int(ids[0])
        end = int(ids[-1]) + 1
        sample, item, score = (column.to_torch() for column in rows.before(end))
        scores = torch.full((len(ids), known), -math.inf, dtype=torch.float64)
        scores[sample - first, item] = score
        _, target = samples.locate(ids)
        targets = samples.items[target].long()
        ranks_of_others.append(ranks_of(scores, targets)[targets > items])
        scores = scores[:, :items]
        ranks = ranks_of(scores, targets)
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
    warnings = warning_of_others(torch.cat(ranks_of_others), data)
    return replace(outcome, dataset=data.fingerprint, warnings=warnings)


def warning_of_others(ranks: Tensor, data: PreparedDataset) -> tuple[str, ...]:
    """A warning if a system ranks targets that training does not have."""
    ranked = int((ranks <= len(data.vocabulary)).sum())
    if not ranked:
        return ()
    hits = int((ranks < WORST).sum())
    return (
        f"{plural(ranked, 'test sample')} with a target that no training session has are ranked, "
        f"{hits:,} of them among the first {WORST - 1}. Here they are misses, as for all others; "
        f"figures that count them have {100 * hits / len(data.test):.2f} more R@20.",
    )


def compare_orders(
    first: Evaluation, again: Evaluation, progress: Progress
) -> Evaluation:
    """`first`, with a warning if the same system ranked otherwise when its samples were given in
    another order."""
    changed = int((first.ranks.clamp(max=WORST) != again.ranks.clamp(max=WORST)).sum())
    count = plural(len(first.ranks), "test sample")
    found = (
        f"{changed:,} of {count} have another rank if the samples are in another order"
    )
    before = first.metrics["recall@20"]
    after = again.metrics["recall@20"]
    is_rounding = changed <= ROUNDING * len(first.ranks)
    if is_rounding and abs(after - before) <= ROUNDING_OF_RECALL:
        progress.message(f"{found}: no more than by rounding")
        return first
    warning = (
        f"{found}: R@20 is {100 * after:.2f} instead of {100 * before:.2f}. Its scores use other "
        "test samples, usually neighbours in the batch, which no server has when it answers, so "
        "its figures can't be compared (docs/comparability.md)."
    )
    return replace(first, warnings=(*first.warnings, warning))


class ScoreRows:
    """The rows of a file of scores, checked and in their order."""

    def __init__(self, path: Path, data: PreparedDataset) -> None:
        self.path = path
        self.data = data
        self.read = 0
        self.unknown = 0
        self.latest_sample = 0
        self.items = pl.Enum(data.vocabulary.ids)
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
        """The chunk with numbers in place of ids, without items that the dataset does not have."""
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
        item = pl.col("item")
        ranked = rows.filter(item < self.data.recommendable_items)
        self.unknown += len(rows) - len(ranked)
        return rows.filter(item.is_not_null()).select("sample", "item", "score")

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
