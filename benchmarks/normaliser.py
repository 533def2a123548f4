"""What the estimate of log Z costs: its error, and the time of a search with it and without it.

    OMP_NUM_THREADS=1 python benchmarks/normaliser.py

Item vectors have length 1 and are drawn around as many middles as a hundredth of the items, as in benchmarks/index.py.
A session asks for the neighbourhood of its last item with a scale of 13, as posrec-plus does. Two values of log Z are
compared with the one in double precision: what faiss estimates from a sample of the items, and the exact search's own,
whose products are rounded to 8 bits. One thread searches.
"""

import time
from functools import partial
from typing import Any

import faiss
import numpy as np

from harness import in_turns, medians, options, write_result
from posrec.recommend.rank.best_items import Floats
from posrec.recommend.rank.exact_search import ExactSearch
from posrec.recommend.rank.faiss_search import SAMPLE, FaissSearch, IndexSettings, build

BEST, SCALE = 25, 13.0


def unit(vectors: Any) -> Floats:
    return (vectors / np.linalg.norm(vectors, axis=1, keepdims=True)).astype(np.float32)  # type: ignore[no-any-return]


def crowded(items: int, d: int, draw: np.random.Generator) -> Floats:
    middles = draw.standard_normal((items // 100, d), dtype=np.float32)
    return unit(middles[draw.integers(0, len(middles), items)] + 0.5 * draw.standard_normal((items, d), np.float32))


def errors(search: Any, sessions: Floats, exact: Any) -> dict[str, float]:
    """Of log Z."""
    found = [search.search(session[None], [BEST], with_log_sums=True)[0][1] for session in sessions]
    apart = np.abs(np.array(found) - exact)
    figures = {"mean": apart.mean(), "p99": np.quantile(apart, 0.99), "largest": apart.max()}
    return {name: round(float(value), 5) for name, value in figures.items()}


def main() -> None:
    given = options(__doc__, "results/normaliser.json", items=1_000_000, d=100, sessions=1000)
    draw = np.random.default_rng(0)
    table = crowded(given.items, given.d, draw)
    last = draw.choice(given.items, given.sessions, replace=False)
    sessions = SCALE * unit(table[last] + 0.5 * unit(draw.standard_normal((given.sessions, given.d))))
    exact = np.array([np.logaddexp.reduce((table @ session).astype(np.float64)) for session in sessions])
    index, _ = build(table, sessions[:256], IndexSettings("faiss"))
    faiss.omp_set_num_threads(1)
    by_faiss, by_exact = FaissSearch(table, index), ExactSearch(table)
    searches = {
        "faiss": by_faiss.search,
        "faiss, with log Z": partial(by_faiss.search, with_log_sums=True),
        "exact": by_exact.search,
        "exact, with log Z": partial(by_exact.search, with_log_sums=True),
    }
    ways = {name: lambda turn, search=search: search(sessions[turn][None], [BEST]) for name, search in searches.items()}
    report = {
        "seed": 0,
        "items": given.items,
        "d": given.d,
        "sessions": given.sessions,
        "sampled_items": SAMPLE,
        "probes": by_faiss.probes,
        "error_of_log_z": {
            "estimated": errors(by_faiss, sessions, exact),
            "exact search": errors(by_exact, sessions, exact),
        },
        "milliseconds": medians(in_turns(ways, min(64, len(sessions)), warm_up=0, clock=time.thread_time)),
    }
    write_result(given.out, report)


if __name__ == "__main__":
    main()
