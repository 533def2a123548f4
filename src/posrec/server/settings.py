"""The options of `posrec serve`, passed to the worker processes as JSON in their environment."""

import os
from pathlib import Path

import msgspec

from posrec.models.own_code import OwnCode
from posrec.recommend.index_settings import IndexSettings
from posrec.server.schemas import MOST_CLICKS

VARIABLE = "POSREC_SERVER"


class ServerSettings(msgspec.Struct, frozen=True):
    run: str
    device: str = "cpu"
    api_key: str | None = None
    session_store: str | None = None
    max_length: int = MOST_CLICKS  # longer sessions are refused; the model reads the latest clicks
    max_body: int = 2 << 20  # bytes
    request_timeout: float = 10.0  # seconds that a client may take to send its request
    queue: int = 128  # requests that may wait in a worker; more are answered 503
    batch: int = 32
    gather_ms: float = 1.0  # how long a single worker waits for more requests before it computes a batch
    allow_origin: tuple[str, ...] = ()  # CORS is off unless origins are given
    log_requests: bool = False
    onnx: bool = True  # compute with ONNX Runtime where the model can be exported
    index: IndexSettings = IndexSettings()
    cache: str = ""  # the folder for exported models and indexes
    code: OwnCode = OwnCode()  # for a run of the user's own model or encoding
    workers: int = 1
    shared: str = ""  # the folder for the files that the workers share

    def to_environment(self) -> None:
        os.environ[VARIABLE] = msgspec.json.encode(self).decode()
        os.environ["PROMETHEUS_MULTIPROC_DIR"] = self.shared  # prometheus_client reads it when it is imported

    @classmethod
    def from_environment(cls) -> "ServerSettings":
        return msgspec.json.decode(os.environ[VARIABLE], type=cls)


def default_cache() -> Path:
    """POSREC_CACHE, or posrec in the user's cache folder."""
    if named := os.environ.get("POSREC_CACHE"):
        return Path(named)
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "posrec"
