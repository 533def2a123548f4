"""The server's log: one JSON object per line, on standard error."""

import logging
import math
import time
from datetime import UTC, datetime
from typing import Any

from posrec.progress import printable_json

LOG = logging.getLogger("posrec.server")
LOG_PAUSE = 10.0  # seconds
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


# For logging.config; granian's own messages have the same form.
LOG_CONFIG: dict[str, Any] = {
    "version": 1,
    "disable_existing_loggers": False,
    "formatters": {"json": {"()": JsonFormatter}},
    "handlers": {
        "stderr": {
            "class": "logging.StreamHandler",
            "formatter": "json",
            "stream": "ext://sys.stderr",
        }
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
