"""The log: whoever logs never waits for the one who reads."""

import json
import logging
import os
import threading
from collections.abc import Iterator
from typing import Any

import pytest

from posrec.server import json_log
from posrec.server.json_log import LOG, JsonFormatter, NeverBlocking, log_event
from tests.server.server_process import until


@pytest.fixture
def pipe(monkeypatch: pytest.MonkeyPatch) -> Iterator[int]:
    """Standard error of the log; returns where it is read."""
    reading, writing = os.pipe()
    monkeypatch.setattr(json_log, "STANDARD_ERROR", writing)
    yield reading
    os.close(writing)


def test_a_log_that_nobody_reads_loses_lines_and_counts_them(
    pipe: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(json_log, "MOST_LINES", 10)
    monkeypatch.setattr(json_log, "FLUSH_TIME", 0.1)
    handler = NeverBlocking()
    handler.setFormatter(JsonFormatter())
    lost: list[None] = []
    handler.on_lost = lambda: lost.append(None)
    monkeypatch.setattr(LOG, "handlers", [handler])
    monkeypatch.setattr(LOG, "propagate", False)
    monkeypatch.setattr(LOG, "level", logging.INFO)
    for number in range(500):
        log_event("request", number=number, path="x" * 1000)
    handler.flush()  # does not wait for long either
    assert handler.lost > 0

    lines: list[dict[str, Any]] = []

    def read() -> None:
        with os.fdopen(pipe) as reader:
            lines.extend(json.loads(line) for line in reader)

    threading.Thread(target=read, daemon=True).start()
    until(handler.lines.empty)
    log_event("request", number=500)
    until(lambda: any(line.get("number") == 500 for line in lines[:-1]))
    numbers = [line["number"] for line in lines if "number" in line]
    assert numbers == sorted(numbers)
    assert numbers[-1] == 500
    assert sum(line.get("lines", 0) for line in lines) == len(lost)
    assert len(numbers) == 501 - len(lost)
