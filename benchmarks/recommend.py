"""What recommending takes: single sessions and batches, by ONNX Runtime and by torch; whole files;
filters.

    python benchmarks/recommend.py                      needs 3 GB of memory, for the filters' million items

Speed does not depend on what was learned, so the weights are random; sessions have 1 to 10 clicks,
k is 20. All times are those that one thread computed: on an idle machine that is the latency, and a
busy one does not blur it. The first use of a filter, which works out its items, is not counted."""

import copy
import json
import random
import statistics
import tempfile
import time
from functools import partial
from pathlib import Path
from typing import Any

import torch

from harness import in_turns, medians, options, saved_random_run, write_result
from posrec.data.vocabulary import Vocabulary
from posrec.io.executor import ThisProcess
from posrec.progress import SilentProgress
from posrec.recommend.export.opening import open_recommender
from posrec.recommend.files.score import score_file
from posrec.recommend.recommender import Recommender

K = 20
LARGE = 1_000_000
SCORED = 10_240
BRANDS = [f"b{number}" for number in range(1000)]


def random_sessions(items: int, number: int) -> list[list[str]]:
    draw = random.Random(0)
    return [
        [f"i{draw.randrange(items)}" for _ in range(draw.randint(1, 10))]
        for _ in range(number)
    ]


def milliseconds(
    ways: dict[str, partial[Any]], sessions: list[Any], rounds: int
) -> dict[str, float]:
    calls = {
        name: lambda turn, way=way: way(sessions[turn % len(sessions)])
        for name, way in ways.items()
    }
    return medians(in_turns(calls, rounds, warm_up=3, clock=time.thread_time))


def by_engine(run: Path, items: int, rounds: int) -> dict[str, Any]:
    """Milliseconds a session, one at a time and in batches of 32."""
    opened = {
        "onnx": open_recommender(run),
        "torch": open_recommender(run, use_export=False),
    }
    ways = {name: partial(rec.recommend, k=K) for name, rec in opened.items()}
    sessions = random_sessions(items, 32 * 40)
    batches = [sessions[start : start + 32] for start in range(0, len(sessions), 32)]
    in_batches = milliseconds(ways, batches, rounds // 4)
    return {
        "one session": milliseconds(ways, sessions, rounds),
        "in batches of 32": {
            name: round(ms / 32, 3) for name, ms in in_batches.items()
        },
    }


def files(run: Path, items: int, folder: Path) -> float:
    """Sessions a second through `posrec score`, by one core."""
    source = folder / "sessions.jsonl"
    taken = []
    source.write_text(
        "".join(
            json.dumps({"session": one}) + "\n"
            for one in random_sessions(items, SCORED)
        )
    )
    for _ in range(3):
        began = time.process_time()
        options: dict[str, Any] = {
            "executor": ThisProcess(),
            "progress": SilentProgress(),
            "overwrite": True,
        }
        score_file(
            partial(Recommender.load, run, "cpu"),
            source,
            folder / "answers.jsonl",
            K,
            **options,
        )
        taken.append(time.process_time() - began)
    return round(SCORED / statistics.median(taken))


def filters(folder: Path, items: int, rounds: int) -> dict[str, float]:
    """Milliseconds of a session with filters that keep different shares of a large catalogue."""
    columns: dict[str, list[Any]] = {
        "share": [number * 61 % 100 for number in range(items)],
        "brand": [BRANDS[number % 1000] for number in range(items)],
    }
    ids = [f"i{number}" for number in range(items)]
    rec = open_recommender(
        saved_random_run(items, folder / "large", Vocabulary(ids, columns))
    )
    denied = copy.copy(rec)
    denied.catalogue = rec.catalogue.with_rules(None, ids[:: max(1, items // 10_000)])
    shares = {
        f"keeps {share} %": {"filter": {"share": {"max": share - 1}}}
        for share in (90, 50, 10, 5)
    }
    asked: dict[str, dict[str, Any]] = {
        "no filter": {},
        **shares,
        "keeps 0.1 % (a brand)": {"filter": {"brand": "b7"}},
        "boost of a brand": {"boost": {"brand": {"b7": 1.2}}},
    }
    ways = {name: partial(rec.recommend, k=K, **rules) for name, rules in asked.items()}
    ways["10,000 ids in --deny-file"] = partial(denied.recommend, k=K)
    return milliseconds(ways, random_sessions(items, rounds), rounds)


def main() -> None:
    given = options(
        __doc__, "results/recommend.json", items=43_097, large=LARGE, rounds=100
    )
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        run = saved_random_run(given.items, folder / "run")
        report = {
            "seed": 0,
            "items": given.items,
            "milliseconds_a_session": by_engine(run, given.items, given.rounds),
            "scored_a_second_and_core": files(run, given.items, folder),
            "large_items": given.large,
            "filters_ms": filters(folder, given.large, given.rounds),
        }
    write_result(given.out, report)


if __name__ == "__main__":
    main()
