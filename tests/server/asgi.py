"""The application of `posrec serve` in this process, asked without a socket."""

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager

from starlette.applications import Starlette
from starlette.types import Message

from posrec.server.application import application
from posrec.server.settings import ServerSettings
from tests.server.asking import Answer, Asker


class InProcess(Asker):
    def __init__(self, app: Starlette, runner: asyncio.Runner) -> None:
        self.app = app
        self.runner = runner

    def send(
        self, method: str, path: str, body: bytes | None, headers: dict[str, str]
    ) -> Answer:
        path, _, query = path.partition("?")
        fields = {"host": "localhost", **headers}
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

        self.runner.run(self.app(scope, receive, keep))
        start, *chunks = messages
        answered = {name.decode(): value.decode() for name, value in start["headers"]}
        content = b"".join(chunk.get("body", b"") for chunk in chunks)
        return Answer(start["status"], answered, content)


@contextmanager
def in_process(settings: ServerSettings) -> Iterator[InProcess]:
    app = application(settings)
    lifespan = app.router.lifespan_context(app)
    with asyncio.Runner() as runner:
        runner.run(lifespan.__aenter__())
        try:
            yield InProcess(app, runner)
        finally:
            runner.run(lifespan.__aexit__(None, None, None))
