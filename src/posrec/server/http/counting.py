"""Counts and logs every answer before it is sent, so that a crash never loses a count."""

import logging
import re
import time
from collections.abc import Collection

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from posrec.server.json_log import log_event
from posrec.server.metrics import Metrics

WITH_ID = re.compile("(/v1/sessions/|/v1/similar/)[^/]+(/click)?")


class CountAnswers:
    """`paths` of requests are logged as they are, if any are given."""

    def __init__(
        self, app: ASGIApp, metrics: Metrics, paths: Collection[str] = ()
    ) -> None:
        self.app = app
        self.metrics = metrics
        self.paths = paths

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        began = time.perf_counter()

        async def count_and_send(message: Message) -> None:
            if message["type"] == "http.response.start":
                self.count(scope, message["status"], time.perf_counter() - began)
            await send(message)

        await self.app(scope, receive, count_and_send)

    def count(self, scope: Scope, status: int, seconds: float) -> None:
        self.metrics.request(scope["path"], status, seconds)
        if self.paths:
            level = logging.WARNING if status >= 500 else logging.INFO
            fields = {
                "method": scope["method"],
                "path": self.logged_path(scope["path"]),
                "status": status,
                "ms": round(1000 * seconds, 2),
            }
            log_event("request", level, **fields)

    def logged_path(self, path: str) -> str:
        """The id of a session may stand for a person, and so may any part of a mistyped path."""
        if path in self.paths:
            return path
        with_id = WITH_ID.fullmatch(path)
        return with_id.expand(r"\1...\2") if with_id else "..."
