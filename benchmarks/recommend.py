"""Times of recommending: sessions and batches by ONNX Runtime and by torch, files, filters.

    python benchmarks/recommend.py

It needs 3 GB of memory, for the filters' million items. The weights are random, since speed does
not depend on them. Sessions have 1 to 10 clicks. All times are the processor time of one thread:
on an idle machine that is the latency, and other work on the machine does not change it.
"""

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
BATCH = 32
LARGE = 1_000_000
SCORED = 10_240
BRANDS = [f"b{number}" for number in range(1000)]


def main() -> None:
    arguments = options(
        __doc__, "results/recommend.json", items=43_097, large=LARGE, rounds=100
    )
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        run = saved_random_run(arguments.items, folder / "run")
        report = {
            "seed": 0,
            "items": arguments.items,
            "milliseconds_a_session": time_engines(
                run, arguments.items, arguments.rounds
            ),
            "scored_a_second_and_core": time_files(run, arguments.items, folder),
            "large_items": arguments.large,
            "filters_ms": time_filters(folder, arguments.large, arguments.rounds),
        }
    write_result(arguments.out, report)


def random_sessions(items: int, number: int) -> list[list[str]]:
    draw = random.Random(0)
    return [
        [f"i{draw.randrange(items)}" for _ in range(draw.randint(1, 10))]
        for _ in range(number)
    ]


def milliseconds(
    calls: dict[str, partial[Any]], inputs: list[Any], rounds: int
) -> dict[str, float]:
    """The median time of each call, which gets the next input in each round."""
    ways = {
        name: lambda turn, call=call: call(inputs[turn % len(inputs)])
        for name, call in calls.items()
    }
    return medians(in_turns(ways, rounds, warm_up=3, clock=time.thread_time))


def time_engines(run: Path, items: int, rounds: int) -> dict[str, Any]:
    """Milliseconds a session, one at a time and in batches."""
    recommenders = {
        "onnx": open_recommender(run),
        "torch": open_recommender(run, use_export=False),
    }
    calls = {
        engine: partial(recommender.recommend, k=K)
        for engine, recommender in recommenders.items()
    }
    sessions = random_sessions(items, BATCH * 40)
    starts = range(0, len(sessions), BATCH)
    batches = [sessions[start : start + BATCH] for start in starts]
    of_batches = milliseconds(calls, batches, rounds // 4)
    return {
        "one session": milliseconds(calls, sessions, rounds),
        f"in batches of {BATCH}": {
            engine: round(ms / BATCH, 3) for engine, ms in of_batches.items()
        },
    }


def time_files(run: Path, items: int, folder: Path) -> float:
    """Sessions a second through `posrec score`, by one core."""
    sessions = folder / "sessions.jsonl"
    with sessions.open("w") as file:
        for session in random_sessions(items, SCORED):
            file.write(json.dumps({"session": session}) + "\n")
    times = []
    for _ in range(3):
        began = time.process_time()
        score_file(
            partial(Recommender.load, run, "cpu"),
            sessions,
            folder / "answers.jsonl",
            K,
            executor=ThisProcess(),
            progress=SilentProgress(),
            overwrite=True,
        )
        times.append(time.process_time() - began)
    return round(SCORED / statistics.median(times))


def time_filters(folder: Path, items: int, rounds: int) -> dict[str, float]:
    """Milliseconds of a session with filters that keep different shares of a large catalogue.

    The first use of a filter, which finds its items, is part of the warm-up.
    """
    columns: dict[str, list[Any]] = {
        "share": [number * 61 % 100 for number in range(items)],
        "brand": [BRANDS[number % 1000] for number in range(items)],
    }
    ids = [f"i{number}" for number in range(items)]
    run = saved_random_run(items, folder / "large", Vocabulary(ids, columns))
    recommender = open_recommender(run)
    denying = copy.copy(recommender)
    denied = ids[:: max(1, items // 10_000)]
    denying.catalogue = recommender.catalogue.with_rules(None, denied)
    shares = {
        f"keeps {share} %": {"filter": {"share": {"max": share - 1}}}
        for share in (90, 50, 10, 5)
    }
    rules: dict[str, dict[str, Any]] = {
        "no filter": {},
        **shares,
        "keeps 0.1 % (a brand)": {"filter": {"brand": "b7"}},
        "boost of a brand": {"boost": {"brand": {"b7": 1.2}}},
    }
    calls = {
        name: partial(recommender.recommend, k=K, **rule)
        for name, rule in rules.items()
    }
    calls["10,000 ids in --deny-file"] = partial(denying.recommend, k=K)
    return milliseconds(calls, random_sessions(items, rounds), rounds)


if __name__ == "__main__":
    main()
