"""Times of recommending: where the time of a session goes, batches, files, filters.

    OMP_NUM_THREADS=1 python -m benchmarks.speed.recommend [--run runs/tonight --data shop]

The run is yours, or posrec-plus at Diginetica's size with random weights, beside PosRec; the test
sessions of --data are used. All times are processor time. The unit is a product
of all item vectors with a session's in single precision, and the best 20 of it. The filters'
million items need 3 GB of memory."""

import copy
import json
import statistics
import tempfile
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import torch

from benchmarks.harness.inputs import default_run_and_posrec, saved_random_run, shoppers
from benchmarks.harness.measuring import in_turns, medians
from benchmarks.harness.results import options, write_result
from posrec.data.vocabulary import Vocabulary
from posrec.io.executor import ThisProcess
from posrec.progress import SilentProgress
from posrec.recommend.files.score import score_file
from posrec.recommend.rank.best_items import best_of
from posrec.recommend.rank.encoder import padded
from posrec.recommend.rank.exact_search import ExactSearch
from posrec.recommend.recommender import open_recommender

K = 20
BATCH = 32
LARGE = 1_000_000
SCORED = 10_240
BRANDS = [f"b{number}" for number in range(1000)]


def main() -> None:
    arguments = options(
        __doc__,
        "results/recommend.json",
        items=43_097,
        large=LARGE,
        rounds=100,
        run="",
        data="",
    )
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        runs = default_run_and_posrec(arguments.run, arguments.items, folder)
        models = {}
        for model, run in runs.items():
            data = arguments.data if str(run) == arguments.run else ""
            sessions = shoppers(run, data, BATCH * 40)
            models[model] = time_run(run, sessions, arguments.rounds)
        report = {
            "seed": 0,
            "items": arguments.items,
            "models": models,
            "scored_a_second_and_core": time_files(run, data, folder),
            "large_items": arguments.large,
            "filters_ms": time_filters(folder, arguments.large, arguments.rounds),
        }
    write_result(arguments.out, report)


def milliseconds(
    calls: dict[str, partial[Any]], inputs: list[Any], rounds: int
) -> dict[str, float]:
    """The median time of each call, which gets the next input in each round."""
    ways = {
        name: lambda turn, call=call: call(inputs[turn % len(inputs)])
        for name, call in calls.items()
    }
    return medians(in_turns(ways, rounds, warm_up=3, clock=time.process_time))


def time_run(
    run: Path, sessions: list[list[str]], rounds: int
) -> dict[str, dict[str, float]]:
    """Milliseconds a session: alone, in parts, and in batches."""
    recommender = open_recommender(run)
    by_torch = open_recommender(run, use_export=False)
    encoder = recommender.ranker.encoder
    search = recommender.ranker.search
    assert isinstance(search, ExactSearch)
    assert search.rounded is not None
    numbers = [recommender.look_up(session).numbers for session in sessions]
    encoded = [
        padded([clicks], encoder.max_length, encoder.stride) for clicks in numbers
    ]
    vectors = [encoder.encode(*batch)[0] for batch in encoded]

    def timed(call: Callable[[Any], Any], inputs: list[Any]) -> float:
        return milliseconds({"ms": partial(call)}, inputs, rounds)["ms"]

    starts = range(0, len(sessions), BATCH)
    batches = [sessions[start : start + BATCH] for start in starts]
    times = {
        "unit": timed(lambda vector: best_of(search.table @ vector[0], K), vectors),
        "one session": timed(partial(recommender.recommend, k=K), sessions),
        "its network": timed(lambda batch: encoder.encode(*batch), encoded),
        "its search": timed(
            lambda vector: search.search(vector, [K + 5], [None]), vectors
        ),
        "by torch": timed(partial(by_torch.recommend, k=K), sessions),
        f"in batches of {BATCH}": timed(partial(recommender.recommend, k=K), batches)
        / BATCH,
    }
    return {
        name: {"ms": round(ms, 3), "units": round(ms / times["unit"], 3)}
        for name, ms in times.items()
    }


def time_files(run: Path, data: str, folder: Path) -> float:
    """Sessions a second through `posrec score`, by one core."""
    sessions = folder / "sessions.jsonl"
    with sessions.open("w") as file:
        for session in shoppers(run, data, SCORED):
            file.write(json.dumps({"session": session}) + "\n")
    times = []
    for _ in range(3):
        began = time.process_time()
        score_file(
            partial(open_recommender, run),
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
    vocabulary = Vocabulary(ids, columns)
    run = saved_random_run(items, folder / "large", vocabulary, model="posrec")
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
    return milliseconds(calls, shoppers(run, "", rounds), rounds)


if __name__ == "__main__":
    main()
