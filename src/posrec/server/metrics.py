"""Counts and times in the Prometheus text format, summed over the worker processes.

Every worker keeps its numbers in a file of its own, mapped into memory; whoever is asked adds them all up. The file of
a worker that died stays, so that no counter ever falls; only what it had waiting is left out.
"""

import mmap
import os
from bisect import bisect_left
from pathlib import Path
from typing import Any

import numpy as np

SECONDS = (0.001, 0.002, 0.003, 0.005, 0.0075, 0.01, 0.015, 0.025, 0.05, 0.1, 0.25, 1.0, 2.5)
SIZES = (1, 2, 4, 8, 16, 32, 64)
PATHS = ("/v1/recommend", "/v1/explain", "/v1/items", "/v1/run", "/v1/sessions", "other")
CLASSES = ("2xx", "3xx", "4xx", "5xx")
EVENTS = ("unknown_items", "refused", "reloads", "failed_reloads", "store_errors")
HELP = {
    "unknown_items": "Clicks on items that the model does not know.",
    "refused": "Requests answered 503: too many waited, or the run or the session store was not there.",
    "reloads": "Runs taken over after they were replaced on disk.",
    "failed_reloads": "Replaced runs that could not be taken over.",
    "store_errors": "Requests that the session store did not answer.",
}
FIELDS = (
    [f"seconds {bound}" for bound in (*SECONDS, "+Inf")]
    + ["seconds sum"]
    + [f"size {bound}" for bound in (*SIZES, "+Inf")]
    + ["size sum", "queue"]
    + [f"{path} {status}" for path in PATHS for status in CLASSES]
    + list(EVENTS)
)
PLACE: dict[Any, int] = {name: place for place, name in enumerate(FIELDS)}
PLACE |= {(path, int(status[0])): PLACE[f"{path} {status}"] for path in PATHS for status in CLASSES}


class Metrics:
    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.path = folder / f"{os.getpid()}.metrics"
        self.path.write_bytes(bytes(8 * len(FIELDS)))
        with self.path.open("r+b") as file:
            # Not a numpy array: that takes several times as long to add one.
            self.numbers = memoryview(mmap.mmap(file.fileno(), 0)).cast("d")

    def count(self, event: str, number: int = 1) -> None:
        self.numbers[PLACE[event]] += number

    def waiting(self, number: int) -> None:
        self.numbers[PLACE["queue"]] = number

    def batch(self, size: int) -> None:
        self.numbers[PLACE["size 1"] + bisect_left(SIZES, size)] += 1
        self.numbers[PLACE["size sum"]] += size

    def request(self, path: str, status: int, seconds: float) -> None:
        known = path if path in PATHS else "/v1/sessions" if path.startswith("/v1/sessions/") else "other"
        self.numbers[PLACE[known, status // 100]] += 1
        if known == "/v1/recommend":
            self.numbers[PLACE["seconds 0.001"] + bisect_left(SECONDS, seconds)] += 1
            self.numbers[PLACE["seconds sum"]] += seconds

    def totals(self) -> dict[str, float]:
        total = np.zeros(len(FIELDS))
        for path in self.folder.glob("*.metrics"):
            numbers = np.fromfile(path, np.float64)
            if numbers.shape != total.shape:
                continue  # of a worker that is just being started
            if not alive(int(path.stem)):
                numbers[PLACE["queue"]] = 0
            total += numbers
        return dict(zip(FIELDS, total.tolist(), strict=True))

    def text(self) -> str:
        totals = self.totals()
        lines = [*histogram("posrec_recommend_seconds", "Time to answer /v1/recommend.", "seconds", SECONDS, totals)]
        lines += histogram("posrec_batch_size", "Sessions computed together.", "size", SIZES, totals)
        lines += ["# HELP posrec_queue_length Requests that wait.", "# TYPE posrec_queue_length gauge"]
        lines += [f"posrec_queue_length {totals['queue']:.0f}"]
        lines += ["# HELP posrec_requests_total Requests by path and status.", "# TYPE posrec_requests_total counter"]
        for path in PATHS:
            for status in CLASSES:
                number = totals[f"{path} {status}"]
                lines.append(f'posrec_requests_total{{path="{path}",status="{status}"}} {number:.0f}')
        for event in EVENTS:
            name = f"posrec_{event}_total"
            lines += [f"# HELP {name} {HELP[event]}", f"# TYPE {name} counter", f"{name} {totals[event]:.0f}"]
        return "\n".join(lines) + "\n"


def histogram(name: str, about: str, field: str, bounds: tuple[float, ...], totals: dict[str, float]) -> list[str]:
    lines, number = [f"# HELP {name} {about}", f"# TYPE {name} histogram"], 0.0
    for bound in (*bounds, "+Inf"):
        number += totals[f"{field} {bound}"]
        lines.append(f'{name}_bucket{{le="{bound}"}} {number:.0f}')
    return [*lines, f"{name}_sum {totals[f'{field} sum']:.6f}", f"{name}_count {number:.0f}"]


def alive(process: int) -> bool:
    try:
        os.kill(process, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        pass
    return True
