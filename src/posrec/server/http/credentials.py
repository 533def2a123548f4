"""The API key and the session store's password: where they are read from, and how they are kept out of sight.

Other users of the machine can read a command line, but neither a file nor an environment that belongs to someone else.
"""

import ctypes
import os
import re
import sys
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path
from urllib.parse import urlsplit

from posrec.errors import InputError

KEY_VARIABLE, STORE_VARIABLE = "POSREC_API_KEY", "POSREC_SESSION_STORE"
ARGUMENTS_START = 47  # the field of /proc/PID/stat, counted from 0, that has the address of the first argument


def chosen_key(key: str | None, file: Path | None) -> str | None:
    """The API key of `--api-key` or POSREC_API_KEY, or the one in `--api-key-file`; None where there is none."""
    if key is not None and file is not None:
        raise InputError(f"give the API key once: either --api-key (or {KEY_VARIABLE}) or --api-key-file")
    if key is None and file is None:
        if KEY_VARIABLE in os.environ:  # an empty variable does not reach the option
            raise InputError(f"{KEY_VARIABLE} is empty; unset it to serve without a key")
        return None
    source = "--api-key" if file is None else f"--api-key-file {file}"
    if file is not None:
        try:
            key = file.read_text(encoding="utf-8").removesuffix("\n").removesuffix("\r")
        except OSError as error:
            raise InputError(f"{source} can't be read ({error.strerror})") from None
        except UnicodeDecodeError:
            raise InputError(f"{source} is not a text file") from None
    assert key is not None
    if not key:
        raise InputError(f"{source}: the key is empty; leave the option out to serve without a key")
    if key != key.strip() or not key.isprintable():
        raise InputError(f"{source}: the key must be one line without spaces around it or control characters")
    return key


def password_in(url: str | None) -> str | None:
    """The password in an address such as redis://user:password@host:6379/0."""
    with suppress(ValueError):
        return urlsplit(url or "").password
    return None


def without_password(url: str) -> str:
    """For messages.

    >>> without_password("redis://shop:secret@127.0.0.1:6379/0")
    'redis://***@127.0.0.1:6379/0'
    """
    return re.sub(r"//.*@", "//***@", url)


def hide(secrets: Iterable[str | None]) -> None:
    """Overwrite the secrets where they stand in this process's command line, and forget their variables.

    The processes that this one starts inherit neither. The command line is part of the process's own memory; only Linux
    says where.
    """
    for name in (KEY_VARIABLE, STORE_VARIABLE):
        os.environ.pop(name, None)
    if sys.platform != "linux":
        return
    with suppress(OSError, ValueError, IndexError):
        line = Path("/proc/self/cmdline").read_bytes()
        start = int(Path("/proc/self/stat").read_bytes().rpartition(b") ")[2].split()[ARGUMENTS_START - 2])
        for secret in filter(None, secrets):
            encoded = os.fsencode(secret)
            place = line.find(encoded)
            while place >= 0:
                ctypes.memset(start + place, ord("*"), len(encoded))
                place = line.find(encoded, place + len(encoded))
