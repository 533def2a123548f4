"""What the estimate of log Z costs with faiss: the best 20 with a sampled log Z against those with the exact one.

    OMP_NUM_THREADS=1 python benchmarks/normaliser.py --items 1000000 --out results/normaliser.json

Item vectors have length 1 and are drawn around as many middles as a hundredth of the items, as in benchmarks/index.py.
A session asks for the neighbourhood of its last item with a scale of 13, as posrec-plus does, and has five items of its
own with random chances of a repeat. Three rankings of the best 20 are compared:

    exact      the products of all items, and log Z in double precision
    faiss      the items that faiss finds, and the exact log Z: what the search alone misses
    estimated  the items that faiss finds, and the estimated log Z: what is served

The exact search's own log Z, whose products are rounded to 8 bits, is compared as well. One thread searches.
"""

import statistics
import time
from functools import partial
from typing import Any

import faiss
import numpy as np
import torch

from harness import in_turns, medians, parser_for, write_result
from posrec.nn.items.own_items import OwnItems
from posrec.recommend.rank.best_items import Best, Floats, best_of_all
from posrec.recommend.rank.exact_search import ExactSearch
from posrec.recommend.rank.faiss_search import SAMPLE, FaissSearch, IndexSettings, build
from posrec.recommend.rank.torch_model import as_arrays

BEST, OWN, SCALE = 20, 5, 13.0


def unit(vectors: Any) -> Floats:
    return (vectors / np.linalg.norm(vectors, axis=1, keepdims=True)).astype(np.float32)  # type: ignore[no-any-return]


def crowded(items: int, d: int, draw: np.random.Generator) -> Floats:
    middles = draw.standard_normal((items // 100, d), dtype=np.float32)
    return unit(middles[draw.integers(0, len(middles), items)] + 0.5 * draw.standard_normal((items, d), np.float32))


def own_items(table: Floats, numbers: Any, sessions: Floats, draw: np.random.Generator) -> OwnItems:
    """Chances of a repeat from 0.05 to 0.9, drawn evenly, and random shares and raises of the own items."""
    chance = torch.from_numpy(draw.uniform(0.05, 0.9, len(numbers)).astype(np.float32))
    shares = torch.from_numpy(draw.standard_normal(numbers.shape, np.float32)).log_softmax(1)
    products = torch.from_numpy(np.einsum("bd,brd->br", sessions, table[numbers - 1]))
    raised = torch.from_numpy(draw.standard_normal(numbers.shape, np.float32))
    return OwnItems(torch.from_numpy(numbers), products, raised, chance.log()[:, None] + shares, (-chance).log1p())


def rankings(own: OwnItems, found: list[Best], log_sums: Any) -> list[list[int]]:
    terms = as_arrays(own).terms(log_sums)
    return [term.ranked_with(best)[1][:BEST].tolist() for term, best in zip(terms, found, strict=True)]


def changed(before: list[list[int]], after: list[list[int]]) -> dict[str, float]:
    pairs = list(zip(before, after, strict=True))
    return {
        "lists_with_another_order": round(statistics.fmean(one != other for one, other in pairs), 4),
        "lists_with_other_items": round(statistics.fmean(set(one) != set(other) for one, other in pairs), 4),
    }


def errors(log_sums: Any, exact: Any) -> dict[str, float]:
    apart = np.abs(np.asarray(log_sums) - exact)
    found = {"mean": apart.mean(), "p99": np.quantile(apart, 0.99), "largest": apart.max()}
    return {name: round(float(value), 5) for name, value in found.items()}


def main() -> None:
    parser = parser_for(__doc__, "results/normaliser.json")
    parser.add_argument("--items", type=int, default=1_000_000)
    parser.add_argument("--d", type=int, default=100)
    parser.add_argument("--sessions", type=int, default=1000)
    arguments = parser.parse_args()
    draw = np.random.default_rng(0)
    table = crowded(arguments.items, arguments.d, draw)
    numbers = np.stack([draw.choice(arguments.items, OWN, replace=False) + 1 for _ in range(arguments.sessions)])
    near = table[numbers[:, -1] - 1] + 0.5 * unit(draw.standard_normal((arguments.sessions, arguments.d)))
    sessions = SCALE * unit(near)
    own = own_items(table, numbers, sessions, draw)
    everything = [best_and_log_sum(table, session) for session in sessions]
    exact_best, exact_log_sums = [best for best, _ in everything], np.array([log_sum for _, log_sum in everything])
    index, _ = build(table, sessions[:256], IndexSettings("faiss"))
    faiss.omp_set_num_threads(1)
    by_faiss, by_exact = FaissSearch(table, index), ExactSearch(table)
    wanted = [BEST + OWN] * len(sessions)
    found = by_faiss.search(sessions, wanted, with_log_sums=True)
    best, estimates = [one for one, _ in found], [log_sum for _, log_sum in found]
    rounded = [by_exact.search(session[None], wanted[:1], with_log_sums=True)[0][1] for session in sessions]
    exact = rankings(own, exact_best, exact_log_sums)
    with_exact_sum, with_estimate = rankings(own, best, exact_log_sums), rankings(own, best, estimates)
    searches = {
        "faiss": by_faiss.search,
        "faiss, with log Z": partial(by_faiss.search, with_log_sums=True),
        "exact": by_exact.search,
        "exact, with log Z": partial(by_exact.search, with_log_sums=True),
    }
    ways = {
        name: lambda turn, search=search: search(sessions[turn][None], [BEST + OWN])
        for name, search in searches.items()
    }
    report = {
        "seed": 0,
        "items": arguments.items,
        "d": arguments.d,
        "sessions": arguments.sessions,
        "sampled_items": SAMPLE,
        "probes": by_faiss.probes,
        "error_of_log_z": {
            "estimated": errors(estimates, exact_log_sums),
            "exact search": errors(rounded, exact_log_sums),
        },
        "changed_by_the_estimate": changed(with_exact_sum, with_estimate),
        "changed_by_8_bits": changed(exact, rankings(own, exact_best, rounded)),
        "milliseconds": medians(in_turns(ways, min(64, len(sessions)), warm_up=0, clock=time.thread_time)),
    }
    write_result(arguments.out, report)


def best_and_log_sum(table: Floats, session: Floats) -> tuple[Best, float]:
    """From the products of all items; log Z in double precision."""
    products = table @ session
    return best_of_all(products, BEST + OWN), float(np.logaddexp.reduce(products.astype(np.float64)))


if __name__ == "__main__":
    main()
