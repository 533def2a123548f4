"""The public SR-GNN pickles, read by an unpickler that knows lists, tuples and ints and nothing else.

Loading a pickle runs whatever its author put in it. This one refuses every import and every call, so a file can hold
plain numbers or be turned away.
"""

import io
import pickle
from pathlib import Path
from typing import Any

from posrec.data.sources import read_whole
from posrec.errors import InputError


class PlainUnpickler(pickle.Unpickler):
    """Refuses anything that would have to be looked up by name, and with it every call."""

    def find_class(self, module: str, name: str) -> Any:
        raise pickle.UnpicklingError(f"it asks for {module}.{name}")

    def persistent_load(self, pid: Any) -> Any:
        raise pickle.UnpicklingError("it refers to objects outside itself")


def read_sequences(path: Path) -> list[list[int]]:
    """The sessions of a file: a list of them, or SR-GNN's pair (prefixes, targets) with every prefix spelled out."""
    data = read_whole(path)
    try:
        content = PlainUnpickler(io.BytesIO(data)).load()
    except (pickle.UnpicklingError, EOFError, ValueError, IndexError, KeyError, AttributeError, TypeError) as error:
        raise InputError(f"{path} is no pickle of plain lists and ints: {error}; it was not loaded") from None
    except (MemoryError, RecursionError, OverflowError):
        raise InputError(f"{path} is no pickle of plain lists and ints; it was not loaded") from None
    if isinstance(content, tuple | list) and len(content) == 2 and is_samples(*content):
        return join_prefixes(path, *content)
    if not isinstance(content, tuple | list) or not all(is_sequence(sequence) for sequence in content):
        raise InputError(
            f"{path} holds neither a list of sessions nor a pair (prefixes, targets), of ints from 0 up; "
            "it was not used"
        )
    return [list(sequence) for sequence in content]


def is_sequence(value: Any) -> bool:
    return isinstance(value, tuple | list) and all(type(item) is int and 0 <= item < 2**63 for item in value)


def is_samples(prefixes: Any, targets: Any) -> bool:
    return (
        isinstance(prefixes, tuple | list)
        and is_sequence(targets)
        and len(prefixes) == len(targets)
        and all(is_sequence(prefix) and prefix for prefix in prefixes)
    )


def join_prefixes(path: Path, prefixes: list[list[int]], targets: list[int]) -> list[list[int]]:
    """Undo the field's augmentation: a session is spelled out as all its prefixes, the longest first."""
    sessions: list[list[int]] = []
    awaited: list[int] = []  # the clicks that the next sample must spell, or nothing where a new session begins
    for number, (prefix, target) in enumerate(zip(prefixes, targets, strict=True), start=1):
        whole = [*prefix, target]
        if not awaited:
            sessions.append(whole)
        elif whole != awaited:
            raise InputError(
                f"{path}, sample {number}: expected the next shorter prefix of the session before it; "
                "only files that hold every prefix of a session, longest first, can be read"
            )
        awaited = whole[:-1] if len(prefix) > 1 else []
    if awaited:
        raise InputError(f"{path} ends inside a session: its last sample should be a prefix of one click")
    return sessions
