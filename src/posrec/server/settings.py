"""The options of `posrec serve`, which its `--help` explains.

Workers get them as JSON in a variable of their environment, never in a command line: they hold the
API key and the password of the session store.
"""

import os
import re
from pathlib import Path

import msgspec

from posrec.config import parse_duration
from posrec.data.item_times import ItemTimes
from posrec.errors import InputError
from posrec.models.own_code import OwnCode
from posrec.server.schemas import MOST_CLICKS

KEY_VARIABLE = "POSREC_API_KEY"
KEY_FILE_VARIABLE = "POSREC_API_KEY_FILE"
STORE_VARIABLE = "POSREC_SESSION_STORE"
SETTINGS_VARIABLE = "POSREC_SERVER_SETTINGS"  # of the workers


class ServeOptions(msgspec.Struct, frozen=True):
    runs: tuple[str, ...]
    host: str = "127.0.0.1"
    port: int = 8000
    tls_certificate: str | None = None
    tls_key: str | None = None
    workers: int = 1
    device: str = "cpu"
    api_key: str | None = None
    session_store: str | None = None
    max_length: int = MOST_CLICKS
    max_body: int = 2 << 20  # bytes
    request_timeout: float = 10.0  # seconds
    queue: int = 128
    allow_origin: tuple[str, ...] = ()  # CORS is off unless origins are given
    allow_host: tuple[str, ...] = ()  # the names to answer for; none means any
    log_requests: bool = False
    onnx: bool = True
    code: OwnCode = OwnCode()  # of the user's own model or encoding
    split: tuple[float, ...] = ()  # the shares of the runs; none means equal ones
    allow_file: str | None = None
    deny_file: str | None = None
    items_file: str | None = None
    item_times: ItemTimes = {}
    feedback: str | None = None
    keep_feedback: float | None = None  # seconds
    shared: str = ""  # the folder for the files that several workers share

    @property
    def names(self) -> list[str]:
        """The runs' names in reports and metrics: their folders', numbered if two are the same.

        >>> ServeOptions(("runs/a", "/srv/my run/")).names
        ['a', 'my_run']
        >>> ServeOptions(("a/run", "b/run")).names
        ['run.1', 'run.2']
        """
        folders = [Path(run).absolute().name for run in self.runs]
        # They are parts of the ids of answers.
        names = [re.sub(r"[^\w.-]", "_", folder)[:40] for folder in folders]
        if len(set(names)) == len(names):
            return names
        return [f"{name}.{number}" for number, name in enumerate(names, start=1)]


def parse_keep(text: str | None, feedback: Path | None) -> float | None:
    """The seconds of `--keep-feedback 90d`."""
    if text is None:
        return None
    if feedback is None:
        raise InputError(
            f"--keep-feedback {text} is for --feedback DIR, which is not given"
        )
    return parse_duration(text, "--keep-feedback") / 1000


def chosen_key(file: Path | None) -> str | None:
    source = KEY_VARIABLE
    key = os.environ.get(KEY_VARIABLE)
    if file is not None:
        if key is not None:
            raise InputError(
                f"give the API key once: either {KEY_VARIABLE} or --api-key-file"
            )
        source = f"--api-key-file {file}"
        try:
            key = file.read_text(encoding="utf-8").removesuffix("\n").removesuffix("\r")
        except OSError as error:
            raise InputError(f"{source} can't be read ({error.strerror})") from None
        except UnicodeDecodeError:
            raise InputError(f"{source} is not a text file") from None
    if key is None:
        # An empty variable does not reach the option.
        if KEY_FILE_VARIABLE in os.environ:
            raise InputError(
                f"{KEY_FILE_VARIABLE} is empty; unset it to serve without a key"
            )
        return None
    if not key:
        raise InputError(
            f"{source}: the key is empty; leave it out to serve without a key"
        )
    if key != key.strip() or not key.isprintable():
        raise InputError(
            f"{source}: the key must be one line without spaces around it or control characters"
        )
    return key
