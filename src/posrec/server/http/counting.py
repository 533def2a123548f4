"""Counts and logs every answer before it is sent, so that a crash never loses a count."""

import logging
import re
import time

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from posrec.server.json_log import log_event
from posrec.server.metrics import Metrics

# In a path; it may stand for a person, and is not logged.
SESSION_ID = re.compile("(?<=^/v1/sessions/)[^/]+")


class CountAnswers:
    def __init__(self, app: ASGIApp, metrics: Metrics, log_requests: bool) -> None:
        self.app = app
        self.metrics = metrics
        self.log_requests = log_requests

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        began = time.perf_counter()

        async def count_and_send(message: Message) -> None:
            if message["type"] == "http.response.start":
                self.count(scope, message["status"], time.perf_counter() - began)
            await send(message)

        await self.app(scope, receive, count_and_send)

    def count(self, scope: Scope, status: int, seconds: float) -> None:
        self.metrics.request(scope["path"], status, seconds)
        if self.log_requests:
            level = logging.WARNING if status >= 500 else logging.INFO
            fields = {
                "method": scope["method"],
                "path": SESSION_ID.sub("...", scope["path"]),
                "status": status,
                "ms": round(1000 * seconds, 2),
            }
            log_event("request", level, **fields)
