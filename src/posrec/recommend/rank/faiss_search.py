"""Approximate search by faiss (IVF, 4-bit PQ), for catalogues too large to read for every session.

Similar items are in one list together, with four bits for every number of an item's vector. For a
session, faiss looks through the nearest lists (`probes` of them), and the best items found are
scored again in full. `build` chooses the fewest probes that find enough of the best.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np

from posrec.config import check_settings, setting
from posrec.errors import InputError, first_line, imported
from posrec.io import whole_file
from posrec.recommend.rank.best_items import (
    Columns,
    Floats,
    Found,
    Masks,
    TableSearch,
    best_of,
    log_sums_of,
)
from posrec.recommend.rank.encoder import Encoder, drawn_sessions, padded
from posrec.recommend.rank.exact_search import ExactSearch
from posrec.runs.folder import Run

LARGE = 1_000_000  # items; up to this many exact search is quick enough
RESCORED = 10  # candidates scored in full for each item asked for
# The smaller the share of items that a mask allows, the more items are found, down to this share.
SMALLEST_SHARE = 1 / 32
CODES = 16  # of four bits; faiss refuses to train on fewer items
POINTS = 64  # training items for each list
RECALL_SESSIONS = 256  # sessions on which recall is measured
BEST = 20  # recall is the share of the exact best 20 items
SAMPLE = 8192  # items from which log Z is estimated


def import_faiss() -> Any:
    return imported("faiss", "faiss", "scale")


@dataclass(frozen=True)
class IndexSettings:
    """The settings of `posrec export --set`."""

    index: str = setting(
        "auto",
        "auto: faiss for more than a million items",
        choices=("auto", "exact", "faiss"),
    )
    recall: float = setting(
        0.99,
        "the share of the exact best 20 items that must be found",
        above=0,
        at_most=1,
    )
    lists: int = setting(
        0, "0: four times the square root of the number of items", at_least=0
    )
    probes: int = setting(
        0, "lists searched for a session; 0: the fewest that reach `recall`", at_least=0
    )

    def __post_init__(self) -> None:
        check_settings(self)

    def wants_faiss(self, items: int) -> bool:
        return self.index == "faiss" or (self.index == "auto" and items > LARGE)


class FaissSearch(TableSearch):
    kind = "faiss"

    def __init__(self, table: Floats, index: Any, with_log_sums: bool = False) -> None:
        n, d = table.shape
        if (index.ntotal, index.d) != (n, d):
            raise InputError(
                f"the index has {index.ntotal} items with vectors of size {index.d}; "
                f"the run has {n} with vectors of size {d}"
            )
        self.table = table
        self.index = index
        self.with_log_sums = with_log_sums
        self.recall = 0.0  # not measured yet

    def with_items(self, known: int, rows: Floats) -> "FaissSearch":
        faiss = import_faiss()
        index = faiss.clone_index(self.index)
        if index.ntotal > known:
            index.remove_ids(faiss.IDSelectorRange(known, index.ntotal))
        index.add(rows)
        table = np.concatenate([self.table[:known], rows])
        search = FaissSearch(table, index, self.with_log_sums)
        search.recall = self.recall  # of the items that it was measured for
        return search

    def search(self, sessions: Floats, counts: Sequence[int], masks: Masks) -> Found:
        shares = [
            np.count_nonzero(mask) / len(mask) for mask in masks if mask is not None
        ]
        share = max(min(shares, default=1.0), SMALLEST_SHARE)
        most = min(int(RESCORED * max(counts) / share), len(self.table))
        _, nearest = self.index.search(np.ascontiguousarray(sessions), most)
        found = []
        log_sums = np.zeros(len(sessions), np.float32)
        rows = zip(sessions, nearest, counts, masks, strict=True)
        for row, (session, columns, k, mask) in enumerate(rows):
            columns = columns[columns >= 0]
            if len(columns) < k:  # the lists looked through hold too few items
                columns = np.arange(len(self.table))
            scores = self.table.take(columns, 0) @ session
            if self.with_log_sums:
                log_sums[row] = self.estimated_log_sum(session, columns, scores)
            if mask is not None:
                is_allowed = mask[columns]
                columns = columns[is_allowed]
                scores = scores[is_allowed]
                if len(columns) < k:  # the mask allows too few of them
                    columns = np.flatnonzero(mask)
                    scores = self.table.take(columns, 0) @ session
            found.append(best_of(scores, k, columns))
        return Found(found, log_sums)

    @cached_property
    def sample(self) -> tuple[Columns, Floats]:
        """The same for every session, so that the same session always has the same scores."""
        size = min(SAMPLE, len(self.table))
        columns = np.random.default_rng(0).choice(len(self.table), size, replace=False)
        return columns, self.table[columns]

    def estimated_log_sum(
        self, session: Floats, nearest: Columns, scores: Floats
    ) -> float:
        """log Z of one session vector [d], from the scores of the nearest items and a sample.

        Z = sum_{i nearest} exp(z_i) + (n - nearest) mean_{i in the sample, not nearest} exp(z_i)
        """
        columns, vectors = self.sample
        is_other = ~np.isin(columns, nearest, assume_unique=True)
        others = (vectors @ session)[is_other]
        exact = float(log_sums_of(scores[None])[0])
        if not len(others):
            return exact
        left = len(self.table) - len(nearest)
        estimate = log_sums_of(others[None])[0] + np.log(left / len(others))
        return float(np.logaddexp(exact, estimate))


def build(table: Floats, sessions: Floats, settings: IndexSettings) -> FaissSearch:
    """An index of item vectors [n, d] with the probes that are set or needed."""
    faiss = import_faiss()
    n, d = table.shape
    lists = settings.lists or min(max(1, int(4 * n**0.5)), max(1, n // POINTS))
    if lists > n:
        raise InputError(f"lists={lists} must be at most {n}, the number of items")
    index = faiss.index_factory(d, f"IVF{lists},PQ{d}x4fs", faiss.METRIC_INNER_PRODUCT)
    index.cp.max_points_per_centroid = POINTS
    index.cp.niter = 10
    # faiss warns below the minimum, but small catalogues are fine.
    index.cp.min_points_per_centroid = 1
    index.pq.cp.min_points_per_centroid = 1
    index.train(table if n >= CODES else np.tile(table, (CODES, 1)))
    index.add(table)
    search = FaissSearch(table, index)
    exact = exact_best(table, sessions)
    index.nprobe = min(settings.probes or 1, lists)
    search.recall = recall(search, sessions, exact)
    if settings.probes:
        return search
    while search.recall < settings.recall and index.nprobe < lists:
        index.nprobe = min(2 * index.nprobe, lists)
        search.recall = recall(search, sessions, exact)
    return search


def exact_best(table: Floats, sessions: Floats) -> list[Columns]:
    counts = [min(BEST, len(table))] * len(sessions)
    found = ExactSearch(table).search(sessions, counts, [None] * len(sessions))
    return [best.columns for best in found.best]


def recall(search: FaissSearch, sessions: Floats, exact: list[Columns]) -> float:
    counts = [len(columns) for columns in exact]
    found = search.search(sessions, counts, [None] * len(sessions))
    shares = [
        np.isin(columns, best.columns).mean()
        for columns, best in zip(exact, found.best, strict=True)
    ]
    return float(np.mean(shares))


def likely_sessions(run: Run, encoder: Encoder) -> Floats:
    """Vectors of sessions of one to five items, drawn by their training clicks."""
    draw = np.random.default_rng(0)
    longest = encoder.max_length
    lengths = draw.integers(1, min(5, longest) + 1, RECALL_SESSIONS)
    sessions = drawn_sessions(run.popularity, lengths, draw)
    vectors, _ = encoder.encode(*padded(sessions, longest))
    return vectors


def write_index(
    run: Run, path: Path, settings: IndexSettings, overwrite: bool = False
) -> FaissSearch:
    from posrec.recommend.rank.torch_model import TorchEncoder, item_table

    faiss = import_faiss()
    table = item_table(run)
    with whole_file(path, overwrite) as unfinished:
        sessions = likely_sessions(run, TorchEncoder(run.model))
        search = build(table, sessions, settings)
        faiss.write_index(search.index, str(unfinished))
    return search


def parse_index(
    content: bytes, path: Path, table: Floats, run: Run, encoder: Encoder
) -> FaissSearch:
    """The index in the content of the file `path`; its recall is measured on likely sessions."""
    faiss = import_faiss()
    try:
        index = faiss.deserialize_index(np.frombuffer(content, np.uint8))
    except (RuntimeError, MemoryError) as error:  # a damaged one may ask for any size
        raise InputError(f"{path} is not a faiss index ({first_line(error)})") from None
    index.nprobe = min(index.nprobe, index.nlist)  # faiss allocates memory for each
    search = FaissSearch(table, index, encoder.has_own_items)
    sessions = likely_sessions(run, encoder)
    search.recall = recall(search, sessions, exact_best(table, sessions))
    return search
