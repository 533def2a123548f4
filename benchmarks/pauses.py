"""What computing one request takes, stage by stage: right after another one, and after a pause.

    python benchmarks/pauses.py --out results/pauses.json

A server that is asked now and then finds its data outside the processor's caches. In a pause the core either sleeps or
counts, so that one can tell cold caches from a core that has to wake up. Every figure is a median.
"""

import argparse
import random
import statistics
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from conditions import conditions
from posrec.recommend.encoder import padded
from posrec.recommend.export import write_export
from posrec.recommend.opening import open_recommender
from posrec.recommend.search import MORE, best_rounded
from posrec.run import load_run
from report import write_report
from serve import make_run

STAGES = ("session vector", "8-bit products with all items", "best of them")
PAUSES = (0.001, 0.005, 0.02)  # seconds
K = 20


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--items", type=int, default=43_097)
    parser.add_argument("--requests", type=int, default=200, help="for each figure")
    parser.add_argument("--out", type=Path, default=Path("results/pauses.json"))
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        make_run(folder / "run", options.items)
        write_export(load_run(folder / "run"))
        finder = open_recommender(folder / "run").ranker.finder
        draw = random.Random(0)
        sessions = [
            [draw.randint(1, options.items) for _ in range(draw.randint(1, 10))] for _ in range(options.requests)
        ]
        rows = []
        for wait, kind, pauses in ((time.sleep, "sleeping", (0.0, *PAUSES)), (count_for, "counting", PAUSES)):
            for seconds in pauses:
                rows.append({"pause_ms": seconds * 1e3, "core": kind, **stages(finder, sessions, wait, seconds)})
                print(rows[-1])
    write_report(
        options.out,
        {"command": "python benchmarks/pauses.py", "items": options.items, "rows": rows, **conditions()},
    )


def count_for(seconds: float) -> None:
    end = time.perf_counter() + seconds
    while time.perf_counter() < end:
        pass


def stages(finder: Any, sessions: list[list[int]], wait: Callable[[float], None], seconds: float) -> dict[str, float]:
    """Milliseconds of each stage."""
    encoder, rounded = finder.encoder, finder.search.rounded
    assert rounded is not None
    taken: list[tuple[float, ...]] = []
    for session in sessions:
        items, lengths = padded([session], encoder.config.max_length)
        if seconds:
            wait(seconds)
        began = time.perf_counter()
        vectors, _ = encoder.encode(items, lengths)
        encoded = time.perf_counter()
        scores, _, _ = rounded.scores(vectors)
        scored = time.perf_counter()
        best_rounded(scores, K + MORE)
        done = time.perf_counter()
        taken.append((encoded - began, scored - encoded, done - scored))
    return {
        name: round(1e3 * statistics.median(column), 3)
        for name, column in zip(STAGES, zip(*taken, strict=True), strict=True)
    }


if __name__ == "__main__":
    main()
