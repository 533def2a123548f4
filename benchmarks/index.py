"""faiss against the exact search in a catalogue past a million items: recall, processor time, and
the error of log Z.

    OMP_NUM_THREADS=1 python benchmarks/index.py

Item vectors have length 1 and are drawn around as many middles as a hundredth of the items: what
was learned is crowded too, and vectors without any order are nobody's catalogue. Sessions have
length 13, the scale of posrec-plus. Those "near an item" ask for the neighbourhood of one; random
ones are the worst case, for which faiss has to look through more lists. log Z, which probabilities
need, is compared with the one in double precision: faiss estimates it from the items found and a
sample, the exact search sums it up from products that are rounded to 8 bits. One thread searches.
"""

import time
from functools import partial
from typing import Any

import faiss
import numpy as np

from harness import in_turns, medians, options, write_result
from posrec.recommend.rank.best_items import Floats, VectorSearch
from posrec.recommend.rank.exact_search import ExactSearch
from posrec.recommend.rank.faiss_search import (
    IndexSettings,
    build,
    exact_best,
    recall,
)

BEST = 20
SCALE = 13.0
D = 100
TIMED = 64


def unit(vectors: Any) -> Floats:
    return (vectors / np.linalg.norm(vectors, axis=1, keepdims=True)).astype(np.float32)  # type: ignore[no-any-return]


def measure(search: VectorSearch, table: Floats, sessions: Floats) -> dict[str, Any]:
    exact = np.array(
        [
            np.logaddexp.reduce((table @ session).astype(np.float64))
            for session in sessions
        ]
    )
    found = [
        search.search(session[None], [BEST], with_log_sums=True)[0][1]
        for session in sessions
    ]
    apart = np.abs(np.array(found) - exact)
    ways = {
        "ms": search.search,
        "ms_with_log_z": partial(search.search, with_log_sums=True),
    }
    calls = {
        name: lambda turn, way=way: way(sessions[turn][None], [BEST])
        for name, way in ways.items()
    }
    errors = {
        "mean": apart.mean(),
        "p99": np.quantile(apart, 0.99),
        "largest": apart.max(),
    }
    return {
        **medians(
            in_turns(
                calls, min(TIMED, len(sessions)), warm_up=0, clock=time.thread_time
            )
        ),
        "error_of_log_z": {
            name: round(float(value), 5) for name, value in errors.items()
        },
    }


def main() -> None:
    given = options(__doc__, "results/index.json", items=1_200_000, sessions=256)
    draw = np.random.default_rng(0)
    middles = draw.standard_normal((given.items // 100, D), dtype=np.float32)
    around = middles[draw.integers(0, len(middles), given.items)]
    table = unit(around + 0.5 * draw.standard_normal((given.items, D), np.float32))
    noise = unit(draw.standard_normal((given.sessions, D)))
    near = SCALE * unit(
        table[draw.choice(given.items, given.sessions, replace=False)] + 0.5 * noise
    )
    searches = {"exact": measure(ExactSearch(table), table, near)}
    began = time.process_time()
    search = build(table, near, IndexSettings("faiss"))
    built = time.process_time() - began
    faiss.omp_set_num_threads(1)
    for name, sessions in (
        ("faiss, sessions near an item", near),
        ("faiss, random sessions", SCALE * noise),
    ):
        best = exact_best(table, sessions)
        while (
            found := recall(search, sessions, best)
        ) < IndexSettings().recall and search.index.nprobe < search.index.nlist:
            search.index.nprobe *= 2
        about = {"probes": search.index.nprobe, "recall@20": round(found, 4)}
        searches[name] = about | measure(search, table, sessions)
    report = {
        "seed": 0,
        "items": given.items,
        "sessions": given.sessions,
        "build_cpu_seconds": round(built, 1),
        "megabytes": round(faiss.serialize_index(search.index).nbytes / 1e6, 1),
        "lists": search.index.nlist,
        "searches": searches,
    }
    write_result(given.out, report)


if __name__ == "__main__":
    main()
