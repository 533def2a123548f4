"""What a filter costs: the processor time of a query with filters that keep different shares of a large catalogue.

    OMP_NUM_THREADS=1 python benchmarks/filters.py

Random item vectors, the exact search, one session at a time, k = 20. The first use of a filter, which works out its
items, is not part of the time.
"""

import time
from functools import partial
from types import SimpleNamespace
from typing import Any

import numpy as np

from harness import in_turns, medians, options, write_result
from posrec.data.vocabulary import Vocabulary
from posrec.recommend.catalogue import Catalogue
from posrec.recommend.plan import Plan
from posrec.recommend.rank.exact_search import ExactSearch
from posrec.recommend.rank.ranker import SearchRanker
from posrec.recommend.session import EncodedSession


class RandomSessions:
    """In place of a model: the vector of the last item, with noise."""

    config, has_own_items, stride = SimpleNamespace(max_length=1), False, 1

    def __init__(self, table: Any, draw: np.random.Generator) -> None:
        self.table, self.draw = table, draw

    def encode(self, items: Any, lengths: Any) -> tuple[Any, None]:
        near = self.table[items[:, 0] - 1]
        return near + 0.3 * self.draw.standard_normal(near.shape, np.float32), None


def main() -> None:
    given = options(__doc__, "results/filters.json", items=1_000_000, d=100, sessions=40)
    draw, items = np.random.default_rng(0), given.items
    table = draw.standard_normal((items, given.d), dtype=np.float32)
    columns = {"share": draw.integers(0, 100, items).tolist(), "brand": [f"b{n % 1000}" for n in range(items)]}
    catalogue = Catalogue(Vocabulary([str(n) for n in range(items)], columns), items)
    denied = catalogue.with_rules(None, [str(n) for n in range(0, items, max(1, items // 10_000))])
    ranker = SearchRanker(RandomSessions(table, draw), ExactSearch(table), np.ones(items, np.float32))
    sessions = [EncodedSession([int(number)]) for number in draw.integers(1, items + 1, given.sessions)]
    shares = {f"keeps {share} %": {"filter": {"share": {"max": share - 1}}} for share in (90, 50, 10, 5)}
    rules: dict[str, dict[str, Any]] = {
        "no filter": {},
        **shares,
        "keeps 0.1 % (a brand)": {"filter": {"brand": "b7"}},
        "boost of a brand": {"boost": {"brand": {"b7": 1.2}}},
    }
    plans = {name: Plan(catalogue, None, 20, **asked) for name, asked in rules.items()}
    plans["10,000 ids in --deny-file"] = Plan(denied, None, 20)

    def query(plan: Plan, turn: int) -> None:
        plan.ordered(sessions[turn], ranker.rank(plan.queries(sessions[turn])), ranker.rank)

    ways = {name: partial(query, plan) for name, plan in plans.items()}
    taken = medians(in_turns(ways, len(sessions), warm_up=0, clock=time.thread_time))
    rows = {name: {"query_ms": ms, "ratio": round(ms / taken["no filter"], 2)} for name, ms in taken.items()}
    sizes = {"items": items, "d": given.d, "sessions": given.sessions}
    write_result(given.out, {"seed": 0, **sizes, "filters": rows})


if __name__ == "__main__":
    main()
