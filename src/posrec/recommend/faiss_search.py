"""Nearly the best items of a catalogue too large to go through for every session, by faiss.

Items that are alike lie in a list together, each in four bits for every number of its vector. For a session the nearest
lists are looked through (`probes` of them), and the best found are scored again in full. How many lists that takes is
tried out: the fewest with which enough of the exact best items are found.
"""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch

from posrec.errors import InputError, not_installed
from posrec.io import whole_file
from posrec.models.base import SessionModel
from posrec.nn.batch import SessionBatch
from posrec.recommend.index_settings import IndexSettings
from posrec.recommend.search import Best, ExactSearch, Floats, best_of_all, best_of_some
from posrec.run import Run

LOOK_AT = 10  # candidates scored in full for each item asked for
POINTS = 64  # items a list is learned from
TRIED = 256  # sessions on which recall is measured
BEST = 20


class FaissSearch:
    """As ExactSearch, but for the few items that it misses."""

    kind = "faiss"

    def __init__(self, table: Floats, index: Any) -> None:
        if (index.ntotal, index.d) != table.shape:
            raise InputError(f"the index is of {index.ntotal} items of {index.d} numbers, the run of {table.shape}")
        self.table, self.index = table, index

    @property
    def probes(self) -> int:
        return int(self.index.nprobe)

    def best(self, sessions: Floats, wanted: Sequence[int]) -> list[Best]:
        most = min(LOOK_AT * max(wanted), len(self.table))
        _, near = self.index.search(np.ascontiguousarray(sessions), most)
        found = []
        for session, columns, k in zip(sessions, near, wanted, strict=True):
            columns = columns[columns >= 0]
            if len(columns) < k:  # too few items in the lists looked through
                found.append(best_of_all(self.table @ session, k))
            else:
                found.append(best_of_some(self.table, session, columns, k))
        return found


def build(table: Floats, sessions: Floats, settings: IndexSettings) -> tuple[Any, float]:
    """An index of item vectors [n, d], and its recall on `sessions`; as many probes as it takes, or as are set."""
    faiss = import_faiss()
    n, d = table.shape
    lists = settings.lists or min(max(1, int(4 * n**0.5)), max(1, n // POINTS))
    if lists > n:
        raise InputError(f"lists={lists} are more than the {n} items")
    index = faiss.index_factory(d, f"IVF{lists},PQ{d}x4fs", faiss.METRIC_INNER_PRODUCT)
    index.cp.max_points_per_centroid, index.cp.niter = POINTS, 10
    index.cp.min_points_per_centroid = 1  # it warns below; a small catalogue is no mistake
    index.train(table)
    index.add(table)
    search, exact = FaissSearch(table, index), exact_best(table, sessions)
    index.nprobe = min(settings.probes or 1, lists)
    found = recall(search, sessions, exact)
    while not settings.probes and found < settings.recall and index.nprobe < lists:
        index.nprobe = min(2 * index.nprobe, lists)
        found = recall(search, sessions, exact)
    return index, found


def exact_best(table: Floats, sessions: Floats) -> list[set[int]]:
    best = ExactSearch(table).best(sessions, [min(BEST, len(table))] * len(sessions))
    return [set(columns.tolist()) for _, columns in best]


def recall(search: FaissSearch, sessions: Floats, exact: list[set[int]]) -> float:
    """How many of the exact best items are found."""
    found = search.best(sessions, [len(one) for one in exact])
    return float(
        np.mean([len(one.intersection(best[1].tolist())) / len(one) for one, best in zip(exact, found, strict=True)])
    )


@torch.inference_mode()
def likely_sessions(run: Run, number: int = TRIED) -> Floats:
    """The vectors of sessions of one to five items, the more clicked an item the likelier."""
    draw, model, items = np.random.default_rng(0), network(run), run.config["items"]
    clicks = np.ones(items) if run.popularity is None else run.popularity[:items].numpy() + 1.0
    lengths = draw.integers(1, min(5, model.config.max_length) + 1, number)
    numbers = draw.choice(items, lengths.sum(), p=clicks / clicks.sum()) + 1
    sessions = [part.tolist() for part in np.split(numbers, lengths.cumsum()[:-1])]
    vectors: Floats = model.session_vectors(SessionBatch.of(sessions)).float().numpy()
    return vectors


@torch.inference_mode()
def item_table(run: Run) -> Floats:
    table: Floats = network(run).item_vectors().float().contiguous().numpy()
    return table


def network(run: Run) -> Any:
    if not isinstance(run.model, SessionModel):
        raise InputError(f"{run.config['model']} has no item vectors, so there is nothing to index")
    return run.model.cpu().eval()


def write_index(run: Run, path: Path, settings: IndexSettings, overwrite: bool = False) -> tuple[FaissSearch, float]:
    """Build the index of a run's items and write it as a file of faiss's; gives its recall as well."""
    faiss = import_faiss()
    table = item_table(run)
    with whole_file(path, overwrite) as unfinished:
        index, found = build(table, likely_sessions(run), settings)
        faiss.write_index(index, str(unfinished))
    return FaissSearch(table, index), found


def read_index(run: Run, path: Path) -> tuple[FaissSearch, float]:
    """The index of a run's items, and its recall, measured anew."""
    faiss = import_faiss()
    try:
        index = faiss.read_index(str(path))
    except RuntimeError as error:
        raise InputError(f"{path} is no index of faiss's ({str(error).splitlines()[0]})") from None
    search, sessions = FaissSearch(item_table(run), index), likely_sessions(run)
    return search, recall(search, sessions, exact_best(search.table, sessions))


def import_faiss() -> Any:
    try:
        import faiss
    except ImportError:
        raise not_installed("faiss", "scale") from None
    return faiss
