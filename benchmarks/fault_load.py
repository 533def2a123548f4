"""Load: three times as many requests as can be answered, and a long time at a steady rate."""

import threading
import time
from pathlib import Path
from typing import Any

from fault_server import Server, make_run
from paced_client import paced
from serve import requests

SAMPLES = 60


def soak(folder: Path, seconds: float, rate: int = 500) -> dict[str, Any]:
    """Memory, open files and latencies of a server with two workers at a steady rate."""
    server = Server(make_run(folder, 1), "--workers", 2)
    server.wait_for("serving", 2)
    series: list[dict[str, float]] = []
    stop = threading.Event()

    def sample() -> None:
        began = time.monotonic()
        while not stop.wait(seconds / SAMPLES):
            series.append({
                "seconds": round(time.monotonic() - began), "memory_mb": round(server.memory() / (1 << 20), 1),
                "files": server.files(),
            })  # fmt: skip

    sampler = threading.Thread(target=sample)
    sampler.start()
    try:
        found = paced(server.port, requests(30), rate, seconds, 64)
    finally:
        stop.set()
        sampler.join()
        server.stop()
    return {"seconds": seconds, "rate": rate, **found, "tracebacks": server.tracebacks(), "series": series}
