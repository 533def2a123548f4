"""faiss against the exact search in a catalogue of more than a million items.

    OMP_NUM_THREADS=1 python -m benchmarks.speed.index

Measured are recall, the processor time of one thread, and the error of log Z, which probabilities
need. Sessions "near an item" ask for the neighbourhood of an item; random sessions are the worst
case, for which faiss has to search more lists.
"""

import time
from typing import Any

import faiss
import numpy as np

from benchmarks.harness.measuring import in_turns, medians
from benchmarks.harness.results import options, write_result
from posrec.recommend.rank.best_items import Floats, Search
from posrec.recommend.rank.exact_search import ExactSearch
from posrec.recommend.rank.faiss_search import (
    FaissSearch,
    IndexSettings,
    build,
    exact_best,
    recall,
)

BEST = 20
SCALE = 13.0  # the length of a session vector, as in posrec-plus
D = 100
TIMED = 64


def unit(vectors: Any) -> Floats:
    units: Floats = vectors / np.linalg.norm(vectors, axis=1, keepdims=True)
    return units.astype(np.float32)


def measure(
    plain: Search, with_log_sums: Search, table: Floats, sessions: Floats
) -> dict[str, Any]:
    """Times of a search, and its errors of log Z against the sum in double precision.

    faiss estimates log Z from the best items and a sample; the exact search adds up products that
    are rounded to 8 bits.
    """
    products = (sessions @ table.T).astype(np.float64)
    exact = np.logaddexp.reduce(products, axis=1)
    searched = []
    for session in sessions:
        found = with_log_sums.search(session[None], [BEST], [None])
        assert found.log_sums is not None
        searched.append(found.log_sums[0])
    distances = np.abs(np.array(searched) - exact)
    ways = {"ms": plain, "ms_with_log_z": with_log_sums}
    calls = {
        name: lambda turn, way=way: way.search(sessions[turn][None], [BEST], [None])
        for name, way in ways.items()
    }
    rounds = min(TIMED, len(sessions))
    times = in_turns(calls, rounds, warm_up=0, clock=time.thread_time)
    errors = {
        "mean": distances.mean(),
        "p99": np.quantile(distances, 0.99),
        "largest": distances.max(),
    }
    rounded = {name: round(float(value), 5) for name, value in errors.items()}
    return {**medians(times), "error_of_log_z": rounded}


def main() -> None:
    arguments = options(__doc__, "results/index.json", items=1_200_000, sessions=256)
    items = arguments.items
    # Learned vectors lie in clusters, so these do too: a cluster for every hundred items.
    draw = np.random.default_rng(0)
    middles = draw.standard_normal((items // 100, D), dtype=np.float32)
    around = middles[draw.integers(0, len(middles), items)]
    table = unit(around + 0.5 * draw.standard_normal((items, D), np.float32))
    noise = unit(draw.standard_normal((arguments.sessions, D)))
    neighbours = draw.choice(items, arguments.sessions, replace=False)
    near = SCALE * unit(table[neighbours] + 0.5 * noise)
    exact = (ExactSearch(table), ExactSearch(table, with_log_sums=True))
    searches = {"exact": measure(*exact, table, near)}
    began = time.process_time()
    search = build(table, near, IndexSettings("faiss"))
    built = time.process_time() - began
    faiss.omp_set_num_threads(1)
    for name, sessions in (
        ("faiss, sessions near an item", near),
        ("faiss, random sessions", SCALE * noise),
    ):
        best = exact_best(table, sessions)
        reached = recall(search, sessions, best)
        index = search.index
        while reached < IndexSettings().recall and index.nprobe < index.nlist:
            index.nprobe *= 2
            reached = recall(search, sessions, best)
        about = {"probes": index.nprobe, "recall@20": round(reached, 4)}
        with_log_sums = FaissSearch(table, index, with_log_sums=True)
        searches[name] = about | measure(search, with_log_sums, table, sessions)
    report = {
        "seed": 0,
        "items": items,
        "sessions": arguments.sessions,
        "build_cpu_seconds": round(built, 1),
        "megabytes": round(faiss.serialize_index(search.index).nbytes / 1e6, 1),
        "lists": search.index.nlist,
        "searches": searches,
    }
    write_result(arguments.out, report)


if __name__ == "__main__":
    main()
