"""The server's log: one JSON object per line, on standard error."""

import logging
import math
import os
import queue
import time
from collections.abc import Callable
from contextlib import suppress
from datetime import UTC, datetime
from logging.handlers import QueueHandler, QueueListener
from typing import Any

from posrec.progress import printable_json

LOG = logging.getLogger("posrec.server")
LOG_PAUSE = 10.0  # seconds
MOST_LINES = 10_000  # that wait to be written
FLUSH_TIME = 1.0  # seconds for lines that wait when a process ends
STANDARD_ERROR = 2
last_logged: dict[str, float] = {}  # when, by message


class JsonFormatter(logging.Formatter):
    def format(self, record: logging.LogRecord) -> str:
        created = datetime.fromtimestamp(record.created, UTC)
        line = {
            "time": created.isoformat(timespec="milliseconds"),
            "level": record.levelname.lower(),
            "process": record.process,
            "message": record.getMessage(),
            **getattr(record, "fields", {}),
        }
        if record.exc_info:
            line["traceback"] = self.formatException(record.exc_info)
        return printable_json(line)


class LineWriter(QueueListener):
    """Takes no lock while it writes, for which the end of the process would wait."""

    def handle(self, record: logging.LogRecord) -> None:
        line = record.getMessage() + "\n"
        with suppress(OSError):  # nobody reads, or the disk is full
            os.write(STANDARD_ERROR, line.encode())


class NeverBlocking(QueueHandler):
    """Lines are written by a thread, since nobody may read them. Those for which the queue has no
    room are lost, and counted."""

    def __init__(self) -> None:
        self.lines: queue.Queue[Any] = queue.Queue(MOST_LINES)
        super().__init__(self.lines)
        self.lost = 0
        self.on_lost: Callable[[], None] = lambda: None
        LineWriter(self.lines).start()

    def enqueue(self, record: logging.LogRecord) -> None:
        try:
            self.lines.put_nowait(record)
        except queue.Full:
            self.lost += 1
            self.on_lost()
            return
        if self.lost and not self.lines.full():
            lost = self.lost
            self.lost = 0
            log_event("lines of the log were lost", logging.WARNING, lines=lost)

    def flush(self) -> None:
        end = time.monotonic() + FLUSH_TIME
        while self.lines.unfinished_tasks and time.monotonic() < end:
            time.sleep(0.01)


def log_handlers() -> list[NeverBlocking]:
    handlers = logging.getLogger().handlers
    return [handler for handler in handlers if isinstance(handler, NeverBlocking)]


# For logging.config; granian's own messages have the same form.
LOG_CONFIG: dict[str, Any] = {
    "version": 1,
    "disable_existing_loggers": False,
    "formatters": {"json": {"()": JsonFormatter}},
    "handlers": {
        "stderr": {"()": NeverBlocking, "formatter": "json"},
    },
    "root": {"handlers": ["stderr"], "level": "WARNING"},
    "loggers": {"posrec.server": {"level": "INFO"}, "_granian": {}},
}


def log_seldom(message: str, **fields: object) -> None:
    """Log an error that may repeat with every request, once in LOG_PAUSE."""
    now = time.monotonic()
    if now - last_logged.get(message, -math.inf) > LOG_PAUSE:
        last_logged[message] = now
        log_error(message, **fields)


def log_error(message: str, **fields: object) -> None:
    log_event(message, logging.ERROR, **fields)


def log_event(message: str, level: int = logging.INFO, **fields: object) -> None:
    LOG.log(level, message, extra={"fields": fields})
