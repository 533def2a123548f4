"""The application of `posrec serve` in this process, asked without a socket."""

import gc
import json
import logging
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from anyio.from_thread import BlockingPortal, start_blocking_portal
from starlette.routing import Router
from starlette.types import Message

from posrec.server.application import application
from posrec.server.json_log import LOG, JsonFormatter
from posrec.server.settings import ServeOptions
from tests.server.asking import Answer, Asker


class InProcess(Asker):
    def __init__(self, app: Router, portal: BlockingPortal) -> None:
        super().__init__()
        self.app = app
        self.portal = portal  # to a thread with an event loop

    def send(
        self, method: str, path: str, body: bytes | None, headers: dict[str, str]
    ) -> Answer:
        path, _, query = path.partition("?")
        fields = {"Host": "localhost", **headers}
        scope = {
            "type": "http",
            "http_version": "1.1",
            "method": method,
            "path": path,
            "raw_path": path.encode(),
            "query_string": query.encode(),
            "headers": [
                (name.lower().encode(), value.encode())
                for name, value in fields.items()
            ],
        }
        messages: list[Message] = []

        async def receive() -> Message:
            return {"type": "http.request", "body": body or b"", "more_body": False}

        async def keep(message: Message) -> None:
            messages.append(message)

        self.portal.call(self.app, scope, receive, keep)
        start, *chunks = messages
        answered = {name.decode(): value.decode() for name, value in start["headers"]}
        content = b"".join(chunk.get("body", b"") for chunk in chunks)
        return Answer(start["status"], answered, content)


class LogReader(logging.Handler):
    """Appends what is logged to the log of a server, as its process would print it."""

    def __init__(self, server: InProcess) -> None:
        super().__init__()
        self.server = server
        self.setFormatter(JsonFormatter())

    def emit(self, record: logging.LogRecord) -> None:
        self.server.log.append(json.loads(self.format(record)))


@contextmanager
def in_process(*runs: Path, onnx: bool = False, **settings: Any) -> Iterator[InProcess]:
    app = application(ServeOptions(tuple(map(str, runs)), onnx=onnx, **settings))
    switch_interval = sys.getswitchinterval()
    level = LOG.level
    with start_blocking_portal() as portal:
        server = InProcess(app, portal)
        reader = LogReader(server)
        LOG.addHandler(reader)
        LOG.setLevel(logging.INFO)
        try:
            with portal.wrap_async_context_manager(app.lifespan_context(app)):
                yield server
        finally:
            LOG.removeHandler(reader)
            # What a worker sets for its process must not stay in this one.
            LOG.setLevel(level)
            sys.setswitchinterval(switch_interval)
            gc.unfreeze()
