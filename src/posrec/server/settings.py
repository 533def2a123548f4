"""The options of `posrec serve`. Worker processes get them as JSON on their standard input.

They hold the API key and the address of the session store with its password, so they are never part of a command line.
"""

import hashlib
import os
import re
from collections.abc import Sequence
from pathlib import Path

import msgspec

from posrec.config import parse_duration
from posrec.errors import InputError
from posrec.models.own_code import OwnCode
from posrec.server.schemas import MOST_CLICKS

MOST_NAME_CHARACTERS = 40  # of a run's name in the id of an answer
KEY_VARIABLE, KEY_FILE_VARIABLE = "POSREC_API_KEY", "POSREC_API_KEY_FILE"
STORE_VARIABLE = "POSREC_SESSION_STORE"


class ServerSettings(msgspec.Struct, frozen=True):
    runs: tuple[str, ...]  # each answers its share of the sessions
    device: str = "cpu"
    api_key: str | None = None
    session_store: str | None = None
    max_length: int = MOST_CLICKS  # longer sessions are refused; the model reads the latest clicks
    max_body: int = 2 << 20  # bytes
    request_timeout: float = 10.0  # seconds that a client may take to send its request
    queue: int = 128  # work that may wait in a worker, in plain requests; more is answered 503
    allow_origin: tuple[str, ...] = ()  # CORS is off unless origins are given
    allow_host: tuple[str, ...] = ()  # the names that the server answers for; none means any
    connections: int = 1000  # that may be open in a worker
    log_requests: bool = False
    onnx: bool = True  # compute with the run's export
    code: OwnCode = OwnCode()  # for a run of the user's own model or encoding
    split: tuple[float, ...] = ()  # the shares of the runs; none means equal ones
    allow_file: str | None = None  # a file of item ids: only these are recommended
    deny_file: str | None = None  # a file of item ids: these are never recommended
    items_file: str | None = None  # a file of items, whose columns replace those of the runs
    feedback: str | None = None  # the folder for what POST /v1/feedback receives
    keep_feedback: float | None = None  # seconds after which its files are deleted; None keeps them
    workers: int = 1
    shared: str = ""  # the folder for the files that several workers share

    @property
    def names(self) -> list[str]:
        """Of the runs, by their folders, for reports and metrics; with their places where two folders have the same.

        >>> ServerSettings(("runs/a", "/srv/my run/")).names, ServerSettings(("a/run", "b/run")).names
        (['a', 'my_run'], ['run.1', 'run.2'])
        """
        names = [re.sub(r"[^\w.-]", "_", Path(run).absolute().name)[:MOST_NAME_CHARACTERS] for run in self.runs]
        same = len(set(names)) < len(names)
        return [f"{name}.{place}" if same else name for place, name in enumerate(names, start=1)]


MOST_KEYS = 10_000  # that are tried to find one for each run


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
        self.keys = [self.find_key(place) for place in range(len(shares))]

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

    def find_key(self, place: int) -> str | None:
        """A key whose sessions are answered by the run at this place; None where its share is 0 or nearly so."""
        return next((key for key in map(str, range(MOST_KEYS)) if self.choose(key) == place), None)


def parse_shares(text: str | None, runs: int) -> tuple[float, ...]:
    """The shares of `--split 90,10`; none without it."""
    if text is None:
        return ()
    try:
        shares = tuple(float(part) for part in text.split(","))
    except ValueError:
        shares = ()
    if runs == 1:
        raise InputError(f"--split {text} is for several runs, and there is one; name the others, or leave out --split")
    if len(shares) != runs or not all(0 <= share < float("inf") for share in shares) or not sum(shares):
        raise InputError(f"--split {text}: it must have a share for each of the {runs} runs, such as 90,10 for two")
    return shares


def parse_keep(text: str | None, feedback: Path | None) -> float | None:
    """The seconds of `--keep-feedback 90d`."""
    if text is None:
        return None
    if feedback is None:
        raise InputError(f"--keep-feedback {text} is for --feedback DIR, which is not given")
    return parse_duration(text, "--keep-feedback") / 1000


def chosen_key(key: str | None, file: Path | None) -> str | None:
    """The API key of `--api-key` or POSREC_API_KEY, or the one in `--api-key-file`; None where there is none."""
    if key is not None and file is not None:
        raise InputError(f"give the API key once: either --api-key (or {KEY_VARIABLE}) or --api-key-file")
    source = "--api-key" if file is None else f"--api-key-file {file}"
    if file is not None:
        try:
            key = file.read_text(encoding="utf-8").removesuffix("\n").removesuffix("\r")
        except OSError as error:
            raise InputError(f"{source} can't be read ({error.strerror})") from None
        except UnicodeDecodeError:
            raise InputError(f"{source} is not a text file") from None
    if key is None:
        for name in (KEY_VARIABLE, KEY_FILE_VARIABLE):
            if name in os.environ:  # an empty variable does not reach the option
                raise InputError(f"{name} is empty; unset it to serve without a key")
        return None
    if not key:
        raise InputError(f"{source}: the key is empty; leave the option out to serve without a key")
    if key != key.strip() or not key.isprintable():
        raise InputError(f"{source}: the key must be one line without spaces around it or control characters")
    return key
