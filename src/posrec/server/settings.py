"""The options of `posrec serve`. Worker processes get them as JSON on their standard input.

They hold the API key and the address of the session store with its password, so they are never part of a command line.
"""

import os

import msgspec

from posrec.models.own_code import OwnCode
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
    batch: int = 16
    gather_ms: float = 1.0  # how long a single worker waits for more requests before it computes a batch
    allow_origin: tuple[str, ...] = ()  # CORS is off unless origins are given
    allow_host: tuple[str, ...] = ()  # the names that the server answers for; none means any
    connections: int = 1000  # that may be open in a worker
    log_requests: bool = False
    onnx: bool = True  # compute with the run's export
    code: OwnCode = OwnCode()  # for a run of the user's own model or encoding
    more_runs: tuple[str, ...] = ()  # served beside `run`, each to its share of the sessions
    split: tuple[float, ...] = ()  # the shares of all runs; none means equal ones
    allow_file: str | None = None  # a file of item ids: only these are recommended
    deny_file: str | None = None  # a file of item ids: these are never recommended
    feedback: str | None = None  # the folder for what POST /v1/feedback receives
    workers: int = 1
    shared: str = ""  # the folder for the files that several workers share

    @classmethod
    def from_environment(cls) -> "ServerSettings":
        return msgspec.json.decode(os.environ[VARIABLE], type=cls)
