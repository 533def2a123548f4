"""Questions to a server and its answers, the same over a socket (server_process.py) and in this
process (asgi.py). Imports nothing of posrec."""

import http.client
import json
import time
from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class Answer:
    status: int
    headers: dict[str, str]
    body: bytes

    @classmethod
    def read(cls, response: http.client.HTTPResponse) -> "Answer":
        headers = {name.lower(): value for name, value in response.getheaders()}
        return cls(response.status, headers, response.read())

    def json(self) -> Any:
        return json.loads(self.body)

    @property
    def error(self) -> str:
        return str(self.json()["error"])

    @property
    def items(self) -> list[str]:
        """The ids of the recommended items."""
        assert self.status == 200, self.body
        return [item["item"] for item in self.json()["items"]]


class Asker(ABC):
    """A server with its log."""

    def __init__(self) -> None:
        self.log: list[dict[str, Any]] = []
        self.metrics_again = 0.0

    @abstractmethod
    def send(
        self, method: str, path: str, body: bytes | None, headers: dict[str, str]
    ) -> Answer: ...

    def ask(self, method: str, path: str, body: Any = None, **headers: str) -> Answer:
        """A body that is not bytes is sent as JSON; `X_API_Key` is the header X-API-Key."""
        sent = {name.replace("_", "-"): value for name, value in headers.items()}
        if body is None or isinstance(body, bytes):
            return self.send(method, path, body, sent)
        sent.setdefault("Content-Type", "application/json")
        return self.send(method, path, json.dumps(body).encode(), sent)

    def get(self, path: str) -> Answer:
        return self.ask("GET", path)

    def post(self, path: str, body: Any, **headers: str) -> Answer:
        return self.ask("POST", path, body, **headers)

    def recommend(self, *session: Any, **more: Any) -> Answer:
        return self.post("/v1/recommend", {"session": list(session), **more})

    def metric(self, name: str) -> float:
        """The sum of all series whose line starts with `name`."""
        time.sleep(max(0.0, self.metrics_again - time.monotonic()))
        lines = self.get("/metrics").body.decode().splitlines()
        self.metrics_again = time.monotonic() + 1.1  # they are cached for a second
        return sum(float(line.split()[-1]) for line in lines if line.startswith(name))

    def logged(self, message: str) -> list[dict[str, Any]]:
        """The lines of the log with exactly this message."""
        return [line for line in list(self.log) if line.get("message") == message]

    def refusals(self) -> list[str]:
        """Why runs were not served."""
        return [
            line["reason"]
            for line in list(self.log)
            if "can't be served" in line.get("message", "")
        ]
