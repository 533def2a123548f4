"""The id of an answer: the run's fingerprint and name, a random number, and a signature.

After the random number follows a mark, a hash of four digits, for each item that is there because
it is new. The key of the signature (HMAC) is in the folder of the feedback: all servers that write
into the folder share it.
"""

import hashlib
import hmac
import secrets
import tempfile
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

DRAWN = 16  # random digits after the last dash of an id; marks follow
MARK = 4  # digits
SIGNATURE = 16  # characters at the end of an answer's id
KEY_FILE = ".answer-key"
KEY_BYTES = 32


def answer_key(folder: Path) -> bytes:
    """It is made with the folder. Raises OSError or ValueError."""
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / KEY_FILE
    if not path.exists():
        # Readable by this user alone.
        with tempfile.NamedTemporaryFile("w", dir=folder) as file:
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
    """`run` is a fingerprint. Without a key there are no marks and no signature."""
    drawn = secrets.token_hex(DRAWN // 2)
    answer = f"{run}-{name}-{drawn}"
    if key is None:
        return answer
    answer += "".join(mark(item, drawn) for item in explored)
    return answer + signature(answer, key)


def mark(item: str, drawn: str) -> str:
    text = f"{drawn} {item}".encode("utf-8", "surrogatepass")
    return hashlib.sha256(text).hexdigest()[:MARK]


def is_explored(item: str, answer: str) -> bool:
    digits = answer.rpartition("-")[2]
    marks = digits[DRAWN:-SIGNATURE]
    starts = range(0, len(marks), MARK)
    return mark(item, digits[:DRAWN]) in [
        marks[start : start + MARK] for start in starts
    ]


def run_of(answer: str) -> tuple[str, str | None]:
    """The fingerprint and the name of the run that gave an answer.

    >>> run_of("5f0c9e1b7a42-last-night-90f1c3d2ab64e875")
    ('5f0c9e1b7a42', 'last-night')
    """
    fingerprint, _, rest = answer.partition("-")
    return fingerprint, rest.rpartition("-")[0] or None


def signature(text: str, key: bytes) -> str:
    return hmac.digest(key, text.encode(), "sha256").hex()[:SIGNATURE]


def is_signed(answer: str, key: bytes) -> bool:
    expected = signature(answer[:-SIGNATURE], key)
    return hmac.compare_digest(expected.encode(), answer[-SIGNATURE:].encode())
