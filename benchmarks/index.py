"""faiss against the exact search in a catalogue past a million items: time to build, recall, milliseconds a session.

    python benchmarks/index.py

Item vectors are drawn around as many middles as a hundredth of the items: what was learned is crowded too, and vectors
without any order are nobody's catalogue. The network's other weights are random. One thread searches.
"""

import tempfile
import time
from pathlib import Path

import faiss
import torch

from harness import in_turns, medians, options, random_run, write_result
from posrec.recommend.rank.exact_search import ExactSearch
from posrec.recommend.rank.faiss_search import IndexSettings, likely_sessions, write_index
from posrec.recommend.rank.torch_model import TorchEncoder
from posrec.runs.run import Run

BEST = 20


def crowded_run(items: int) -> Run:
    run = random_run(items)
    middles = 0.06 * torch.randn(items // 100, run.model.config.d)
    with torch.no_grad():
        around = middles[torch.randint(len(middles), (items,))]
        run.model.embedding.weight[:items] = around + 0.03 * torch.randn(items, run.model.config.d)
    return run


def main() -> None:
    arguments = options(__doc__, "results/index.json", items=1_200_000, sessions=128)
    run = crowded_run(arguments.items)
    with tempfile.TemporaryDirectory() as folder:
        began = time.perf_counter()
        search = write_index(run, Path(folder) / "items.faiss", IndexSettings("faiss"))
        built = time.perf_counter() - began
        size = (Path(folder) / "items.faiss").stat().st_size
    faiss.omp_set_num_threads(1)
    sessions = likely_sessions(run, TorchEncoder(run.model), arguments.sessions)
    exact = ExactSearch(search.table)
    ways = {
        "faiss": lambda turn: search.search(sessions[turn][None], [BEST]),
        "exact": lambda turn: exact.search(sessions[turn][None], [BEST]),
    }
    taken = medians(in_turns(ways, len(sessions), warm_up=0))
    report = {
        "seed": 0,
        "items": arguments.items,
        "build_seconds": round(built, 1),
        "megabytes": round(size / 1e6, 1),
        "lists": search.index.nlist,
        "probes": search.probes,
        "recall@20": round(search.recall, 4),
        "faiss_ms": taken["faiss"],
        "exact_ms": taken["exact"],
    }
    write_result(arguments.out, report)


if __name__ == "__main__":
    main()
