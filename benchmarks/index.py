"""faiss against the exact search in a catalogue past a million items: time to build, recall, milliseconds a session.

    python benchmarks/index.py --items 1200000 --out results/index.json

Item vectors are drawn around as many middles as a hundredth of the items: what was learned is crowded too, and vectors
without any order are nobody's catalogue. The network's other weights are random. One thread searches.
"""

import statistics
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import faiss
import torch

from harness import parser_for, write_result
from posrec.data.vocabulary import Vocabulary
from posrec.models.posrec import PosRec, PosRecConfig
from posrec.recommend.rank.exact_search import ExactSearch
from posrec.recommend.rank.faiss_search import IndexSettings, likely_sessions, write_index
from posrec.recommend.rank.torch_model import TorchEncoder
from posrec.runs.run import Run

BEST = 20


def crowded_run(items: int) -> Run:
    torch.manual_seed(0)
    model = PosRec(items, PosRecConfig()).eval()
    middles = 0.06 * torch.randn(items // 100, model.config.d)
    with torch.no_grad():
        around = middles[torch.randint(len(middles), (items,))]
        model.embedding.weight[:items] = around + 0.03 * torch.randn(items, model.config.d)
    vocabulary = Vocabulary([f"i{number}" for number in range(items)])
    about = {"model": "posrec", "items": items}
    return Run(Path("nowhere"), model, vocabulary, about, torch.randint(1, 1000, (items,)).numpy())


def milliseconds(search: Any, sessions: Sequence[Any]) -> float:
    times = []
    for session in sessions:
        began = time.perf_counter()
        search.best(session[None], [BEST])
        times.append(1000 * (time.perf_counter() - began))
    return round(statistics.median(times), 2)


def main() -> None:
    parser = parser_for(__doc__, "results/index.json")
    parser.add_argument("--items", type=int, default=1_200_000)
    parser.add_argument("--sessions", type=int, default=128)
    arguments = parser.parse_args()
    run = crowded_run(arguments.items)
    with tempfile.TemporaryDirectory() as folder:
        began = time.perf_counter()
        search = write_index(run, Path(folder) / "items.faiss", IndexSettings("faiss"))
        built = time.perf_counter() - began
        size = (Path(folder) / "items.faiss").stat().st_size
    faiss.omp_set_num_threads(1)
    sessions = likely_sessions(run, TorchEncoder(run.model), arguments.sessions)
    report = {
        "seed": 0,
        "items": arguments.items,
        "build_seconds": round(built, 1),
        "megabytes": round(size / 1e6, 1),
        "lists": search.index.nlist,
        "probes": search.probes,
        "recall@20": round(search.recall, 4),
        "faiss_ms": milliseconds(search, sessions),
        "exact_ms": milliseconds(ExactSearch(search.table), sessions),
    }
    write_result(arguments.out, report)


if __name__ == "__main__":
    main()
