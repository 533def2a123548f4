"""The options of `posrec serve`. Worker processes get them as JSON on their standard input.

They hold the API key and the address of the session store with its password, so they are never part of a command line.
"""

import hashlib
from collections.abc import Sequence

import msgspec

from posrec.errors import InputError
from posrec.models.own_code import OwnCode
from posrec.server.schemas import MOST_CLICKS


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


class Split:
    """Which of several runs answers a session: the same session always the same run, by a hash, in the wanted shares.

    The shares may have any sum, such as 90 and 10.

    >>> split = Split([90, 10])
    >>> split.choose("anna") == split.choose("anna"), sum(split.choose(str(n)) for n in range(1000)) in range(70, 131)
    (True, True)
    """

    def __init__(self, shares: Sequence[float]) -> None:
        total = sum(shares)
        self.shares = [share / total for share in shares]

    def choose(self, key: str) -> int:
        """The place of the run that answers sessions with this key."""
        if len(self.shares) == 1:
            return 0
        digest = hashlib.blake2b(key.encode("utf-8", "surrogatepass"), digest_size=8).digest()
        drawn = int.from_bytes(digest, "big") / 2**64
        for place, share in enumerate(self.shares):
            drawn -= share
            if drawn < 0:
                return place
        return len(self.shares) - 1  # where the shares sum up to a little less than 1


def parse_shares(text: str | None, runs: int) -> tuple[float, ...]:
    """The shares of `--split 90,10`; equal ones without it."""
    if text is None:
        return (1.0,) * runs
    try:
        shares = tuple(float(part) for part in text.split(","))
    except ValueError:
        shares = ()
    if runs == 1:
        raise InputError(f"--split {text} is for several runs, and there is one; name the others, or leave out --split")
    if len(shares) != runs or not all(0 <= share < float("inf") for share in shares) or not sum(shares):
        raise InputError(f"--split {text}: it must have a share for each of the {runs} runs, such as 90,10 for two")
    return shares
