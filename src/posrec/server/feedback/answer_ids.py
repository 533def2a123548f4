"""The id of an answer: the run's fingerprint and name, a drawn number, and a signature.

A mark for each item that is in the answer because it is new, a hash of four digits, follows the
drawn number. The signature (HMAC) is by a key in the folder of the feedback, so that workers and
replicas which share the folder share it, and a restarted server has it again.
"""

import hashlib
import hmac
import secrets
import tempfile
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

DRAWN = 16  # digits that name an answer, the first after the last dash of its id; marks of explored items follow
MARK = 4  # digits
SIGNATURE = 16  # characters at the end of an answer's id
KEY_FILE = ".answer-key"
KEY_BYTES = 32


def answer_key(folder: Path) -> bytes:
    """It is made with the folder. Raises OSError or ValueError."""
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / KEY_FILE
    if not path.exists():
        with tempfile.NamedTemporaryFile(
            "w", dir=folder
        ) as file:  # readable by this user alone
            file.write(secrets.token_hex(KEY_BYTES))
            file.flush()
            with suppress(FileExistsError):  # another worker was first
                path.hardlink_to(file.name)
    key = bytes.fromhex(path.read_text(encoding="ascii"))
    if len(key) != KEY_BYTES:
        raise ValueError(f"{path} is no key; remove it")
    return key


def new_answer_id(
    run: str, name: str, key: bytes | None, explored: Sequence[str] = ()
) -> str:
    """`run` is a fingerprint. The items `explored` are marked; without a key there are no marks and
    no signature."""
    drawn = secrets.token_hex(DRAWN // 2)
    if key is None:
        return f"{run}-{name}-{drawn}"
    marked = f"{run}-{name}-{drawn}" + "".join(mark(item, drawn) for item in explored)
    return marked + signature(marked, key)


def mark(item: str, drawn: str) -> str:
    return hashlib.sha256(
        f"{drawn} {item}".encode("utf-8", "surrogatepass")
    ).hexdigest()[:MARK]


def is_explored(item: str, answer: str) -> bool:
    digits = answer.rpartition("-")[2]
    drawn = digits[:DRAWN]
    marks = digits[DRAWN:-SIGNATURE]
    return mark(item, drawn) in [
        marks[start : start + MARK] for start in range(0, len(marks), MARK)
    ]


def run_of(answer: str) -> tuple[str, str | None]:
    """The fingerprint and the name of the run that gave an answer.

    >>> run_of("5f0c9e1b7a42-last-night-90f1c3d2ab64e875")
    ('5f0c9e1b7a42', 'last-night')
    """
    fingerprint, _, rest = answer.partition("-")
    return fingerprint, rest.rpartition("-")[0] or None


def signature(drawn: str, key: bytes) -> str:
    return hmac.digest(key, drawn.encode(), "sha256").hex()[:SIGNATURE]


def is_signed(answer: str, key: bytes) -> bool:
    expected = signature(answer[:-SIGNATURE], key)
    return hmac.compare_digest(expected.encode(), answer[-SIGNATURE:].encode())
