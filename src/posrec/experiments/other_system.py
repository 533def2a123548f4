"""Another system in a comparison: the test samples written for it to score, and the ranks by its scores.

The samples are JSON lines, as `posrec score` reads them: {"id": "5d41402abc4b-0017", "session": ["sku-1", "sku-7"]}.
An id is the beginning of the dataset's fingerprint and the number of the sample, so that scores of other samples are
never taken for those of these. The scores are rows of `session`, the id of a sample, `item`, a raw item id, and
`score`, in any order: Parquet or JSON lines, of which 16 bytes a row are kept in memory. Only the items of the dataset
are ranked, as for every model. An item that is not listed for a sample has a score of minus infinity.
"""

import json
import math
from collections.abc import Iterator
from dataclasses import replace
from io import BytesIO
from pathlib import Path

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
from posrec.recommend.files.session_file import kind_of

COLUMNS = {"session": pl.String(), "item": pl.String(), "score": pl.Float64()}


def sample_id(data: PreparedDataset, number: int) -> str:
    """The id of a test sample, counted from 1. Ids have equal lengths, so that sorting them as text keeps the order."""
    return f"{data.fingerprint[:12]}-{number:0{len(str(len(data.test)))}d}"


def write_samples(data: PreparedDataset, path: Path) -> None:
    """Write every test sample as a line: its id, and the clicks before its target."""
    data.require_test_part()
    if path.suffix != ".jsonl" or path.exists():
        reason = "exists already; name another file, or remove it" if path.exists() else "the name must end in .jsonl"
        raise InputError(f"--samples {path}: {reason}")
    session, target = data.test.locate(torch.arange(len(data.test)))
    places = zip(data.test.offsets[session].tolist(), target.tolist(), strict=True)
    clicks = [data.vocabulary.ids[item - 1] for item in data.test.items.tolist()]
    with whole_file(path) as unfinished, unfinished.open("w", encoding="utf-8") as file:
        for number, (begin, end) in enumerate(places, start=1):
            sample = {"id": sample_id(data, number), "session": clicks[begin:end]}
            file.write(json.dumps(sample, ensure_ascii=False) + "\n")


def rank_scores(path: Path, data: PreparedDataset, progress: Progress) -> Evaluation:
    """Rank the items of the dataset by the scores in a file, for every test sample."""
    scores, items = read_scores(path, data, progress), data.recommendable_items

    def rank(samples: SessionDataset, ids: Tensor, max_length: int, k: int) -> tuple[Tensor, Tensor]:
        first, end = int(ids[0]), int(ids[-1]) + 1
        listed = scores[scores["sample"].search_sorted(first) : scores["sample"].search_sorted(end)]
        sample, item, score = (column.to_torch() for column in listed)
        dense = torch.full((len(ids), items), -math.inf, dtype=torch.float64)
        dense[sample - first, item] = score
        values, columns = top(dense, k)
        _, target = samples.locate(ids)
        return ranks_of(dense, samples.items[target].long()), torch.where(values > -math.inf, columns + 1, 0)

    clicks = torch.bincount(data.train.items.long(), minlength=items + 1)
    outcome = evaluate(None, data.test, items, 1, clicks, progress, rank)
    assert outcome.top is not None
    if missing := int((outcome.top[:, 0] == 0).sum()):
        count = plural(len(data.test), "test sample")
        progress.message(f"{path}: {missing:,} of {count} have no scores and are misses")
    return replace(outcome, dataset=data.fingerprint)


def read_scores(path: Path, data: PreparedDataset, progress: Progress) -> pl.DataFrame:
    """The scores of the items that are ranked, by sample: the number of the sample and of the item, from 0, and the
    score."""
    items = pl.Enum(data.vocabulary.ids[: data.recommendable_items])
    parts, read = [], 0
    for file in find_files(path):
        try:
            for part in parts_of(file):
                parts.append(numbered(part, data, items, f"{path}, row", read).drop_nulls("item"))
                read += len(part)
        except POLARS_ERRORS as error:
            raise InputError(f"{file}, after row {read}: can't be read ({first_line(error)})") from None
    scores = pl.concat(parts).sort("sample") if parts else pl.DataFrame()
    if scores.is_empty():
        raise InputError(f"{path} lists no item of {data.path}; its column item must hold ids of the log's items")
    if unknown := read - len(scores):
        count = plural(read, "row")
        progress.message(f"{path}: {unknown:,} of {count} are of items that {data.path} does not rank; left out")
    twice = scores.filter(scores.select("sample", "item").is_duplicated())
    if len(twice):
        sample, item = sample_id(data, twice["sample"][0] + 1), items.categories[twice["item"][0]]
        raise InputError(f"{path} lists the item {item!r} twice for session {sample}; leave one out")
    return scores


def parts_of(file: File) -> Iterator[pl.DataFrame]:
    """The three columns of a file, in parts."""
    if kind_of(Path(file.name)) == "parquet":
        with open_parquet(file) as frame:
            names = frame.collect_schema().names()
            if missing := [name for name in COLUMNS if name not in names]:
                raise InputError(f"{file} has no column {missing[0]!r}; it needs {', '.join(COLUMNS)}")
            columns = frame.select(pl.col(name).cast(kind, strict=False) for name, kind in COLUMNS.items())
            yield from columns.collect_batches(maintain_order=True)
    else:
        for block in blocks([file], SilentProgress()):
            yield pl.read_ndjson(BytesIO(block.data), schema=COLUMNS)


def numbered(part: pl.DataFrame, data: PreparedDataset, items: pl.Enum, place: str, read: int) -> pl.DataFrame:
    """Rows with numbers in place of ids, after `read` others; an item that is not ranked has none."""
    begin = f"{data.fingerprint[:12]}-"
    number = pl.col("session").str.strip_prefix(begin).cast(pl.Int32, strict=False)
    is_sample = pl.col("session").str.starts_with(begin) & number.is_between(1, len(data.test))
    rows = part.select(
        sample=pl.when(is_sample).then(number - 1),
        item=pl.col("item").cast(items, strict=False).to_physical().cast(pl.Int32),
        score=pl.col("score").fill_nan(None),
    )
    is_bad = rows["sample"].is_null() | rows["score"].is_null()
    if is_bad.any():
        row = is_bad.arg_max() or 0
        if rows["sample"][row] is not None:
            raise InputError(f"{place} {read + row + 1}: the score must be a number")
        first, last = sample_id(data, 1), sample_id(data, len(data.test))
        raise InputError(
            f"{place} {read + row + 1}: session {part['session'][row]!r} is not a test sample of {data.path}, whose "
            f"samples are {first} to {last}; score those that posrec compare {data.path} --samples FILE writes"
        )
    return rows
