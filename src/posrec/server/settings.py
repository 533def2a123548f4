"""What `posrec serve` was asked for, handed to the worker processes as JSON in their environment."""

import os
from pathlib import Path

import msgspec

from posrec.recommend.index_settings import IndexSettings
from posrec.server.schemas import MOST_CLICKS

VARIABLE = "POSREC_SERVER"


class ServerSettings(msgspec.Struct, frozen=True):
    run: str
    device: str = "cpu"
    api_key: str | None = None
    session_store: str | None = None
    max_length: int = MOST_CLICKS  # clicks in a session that are accepted; the model reads the latest of them
    max_body: int = 2 << 20  # bytes
    patience: float = 10.0  # seconds that a client may take to send its request
    queue: int = 128  # requests that may wait; more get 503
    batch: int = 32
    gather_ms: float = 1.0  # with one worker
    allow_origin: tuple[str, ...] = ()  # CORS is off unless origins are named
    log_requests: bool = False
    onnx: bool = True  # compute by ONNX Runtime where the model can be exported
    index: IndexSettings = IndexSettings()
    cache: str = ""  # where is kept what is made of runs
    workers: int = 1
    shared: str = ""  # where the workers keep their counts

    def to_environment(self) -> None:
        os.environ[VARIABLE] = msgspec.json.encode(self).decode()

    @classmethod
    def from_environment(cls) -> "ServerSettings":
        return msgspec.json.decode(os.environ[VARIABLE], type=cls)


def default_cache() -> Path:
    """POSREC_CACHE, or posrec in the user's cache folder."""
    if named := os.environ.get("POSREC_CACHE"):
        return Path(named)
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "posrec"
