"""The HTTP application (ASGI). Every request passes the same way, from top to bottom of `Application.__call__`."""

import logging
import time
from collections.abc import Callable
from contextlib import AbstractAsyncContextManager, nullcontext
from typing import Any

from posrec.server.http import access
from posrec.server.http.messages import Answer, Disconnected, Receive, Request, Send, error_answer, send_answer
from posrec.server.http.router import Router
from posrec.server.json_log import log_event
from posrec.server.metrics import Metrics
from posrec.server.routes import add_routes
from posrec.server.service import Service
from posrec.server.settings import ServerSettings

CLIENT_CLOSED = 499  # counted and logged where a client disconnected before its answer


class Application:
    """`running` is a context in which requests are answered; it lasts as long as the server."""

    def __init__(
        self,
        router: Router,
        settings: ServerSettings,
        metrics: Metrics,
        running: Callable[[], AbstractAsyncContextManager[None]] = nullcontext,
    ) -> None:
        self.router, self.settings, self.metrics, self.running = router, settings, metrics, running
        self.checks = access.checks(settings)
        self.cross_origin = access.CrossOrigin(settings.allow_origin) if settings.allow_origin else None

    async def __call__(self, scope: dict[str, Any], receive: Receive, send: Send) -> None:
        if scope["type"] == "lifespan":
            await self.live(receive, send)
            return
        began, request = time.perf_counter(), Request(scope, receive, self.settings)
        try:
            answer = await self.answer(request)
        except Disconnected:
            self.count(request, CLIENT_CLOSED, began)
            return
        if self.cross_origin is not None:
            answer = answer._replace(headers=(*answer.headers, *self.cross_origin.headers(request)))
        self.count(request, answer.status, began)  # before it is sent, so that a crash never loses a count
        await send_answer(send, request, answer)

    async def answer(self, request: Request) -> Answer:
        try:
            for check in self.checks:
                if (refusal := check(request)) is not None:
                    return refusal
            return await self.router.answer(request)
        except Disconnected:
            raise
        except Exception as error:  # every error is answered
            return error_answer(error)

    def count(self, request: Request, status: int, began: float) -> None:
        seconds = time.perf_counter() - began
        self.metrics.request(request.path, status, seconds)
        if self.settings.log_requests:
            level = logging.WARNING if status >= 500 else logging.INFO
            milliseconds = round(1000 * seconds, 2)
            log_event("request", level, method=request.method, path=request.path, status=status, ms=milliseconds)

    async def live(self, receive: Receive, send: Send) -> None:
        """ASGI's lifespan: from the start of the server to its end."""
        await receive()
        async with self.running():
            await send({"type": "lifespan.startup.complete"})
            await receive()
        await send({"type": "lifespan.shutdown.complete"})


def application(settings: ServerSettings, listen: Callable[[], None] = lambda: None) -> Application:
    """`listen` is called once the runs are loaded."""
    service, router = Service(settings, listen), Router()
    add_routes(router, service)
    return Application(router, settings, service.metrics, service.running)
