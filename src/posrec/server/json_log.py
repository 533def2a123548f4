"""The server's log: one JSON object per line, on standard error."""

import logging
import sys
from datetime import UTC, datetime

from posrec.progress import printable_json

LOG = logging.getLogger("posrec.server")


class JsonFormatter(logging.Formatter):
    def format(self, record: logging.LogRecord) -> str:
        line = {
            "time": datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds"),
            "level": record.levelname.lower(),
            "process": record.process,
            "message": record.getMessage(),
            **getattr(record, "fields", {}),
        }
        if record.exc_info:
            line["traceback"] = self.formatException(record.exc_info)
        return printable_json(line)


def log_as_json() -> None:
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(JsonFormatter())
    logging.root.handlers = [handler]
    logging.root.setLevel(logging.WARNING)
    for name in ("posrec.server", "uvicorn.error"):
        logging.getLogger(name).setLevel(logging.INFO)


def log_event(message: str, level: int = logging.INFO, **fields: object) -> None:
    LOG.log(level, message, extra={"fields": fields})
