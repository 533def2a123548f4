"""The id of an answer: the run's fingerprint and name, a random number, marks, and a signature.

The marks, hashes of four digits, are of the answer's items, so that feedback can't name others. The
key of the signature (HMAC) is in the folder of the feedback: all servers that write into the folder
share it.
"""

import hmac
import secrets
import tempfile
import zlib
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path

from posrec.io import read_bytes

DRAWN = 16  # random digits after the last dash of an id
MARK = 4  # digits
SIGNATURE = 16  # characters at the end of an answer's id
KEY_FILE = ".answer-key"
KEY_BYTES = 32


def answer_key(folder: Path) -> bytes:
    """It is made with the folder. Raises OSError or ValueError."""
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    path = folder / KEY_FILE
    if not path.exists():
        # Readable by this user alone.
        with tempfile.NamedTemporaryFile("w", dir=folder) as file:
            file.write(secrets.token_hex(KEY_BYTES))
            file.flush()
            with suppress(FileExistsError):  # another worker was first
                path.hardlink_to(file.name)
    key = bytes.fromhex(read_bytes(path).decode("ascii"))
    if len(key) != KEY_BYTES:
        raise ValueError(f"{path} is no key; remove it")
    return key


def new_answer_id(
    run: str, name: str, key: bytes | None, items: Iterable[tuple[str, bool]] = ()
) -> str:
    """`run` is a fingerprint; `items` are those of the answer, and whether each is there because it
    is new. Without a key there are no marks and no signature."""
    drawn = secrets.token_hex(DRAWN // 2)
    answer = f"{run}-{name}-{drawn}"
    if key is None:
        return answer
    answer += marks_of(items, drawn)
    return answer + signature(answer, key)


def marks_of(items: Iterable[tuple[str, bool]], drawn: str) -> str:
    """Multiplied by a random odd number, two items seldom have the same high bits."""
    factor = int(drawn, 16) | 1
    marks = []
    for item, explored in items:
        checksum = zlib.crc32(item.encode("utf-8", "surrogatepass"), explored)
        marks.append((checksum * factor >> 16 & 0xFFFF).to_bytes(MARK // 2))
    return b"".join(marks).hex()


class SignedAnswer:
    """What the id of an answer says, once its signature is checked.

    >>> key = bytes(32)
    >>> answer = SignedAnswer(new_answer_id("5f0c9e1b7a42", "last-night", key, [("a", True)]))
    >>> answer.run, answer.name, answer.explored("a"), answer.explored("b")
    ('5f0c9e1b7a42', 'last-night', True, None)
    """

    def __init__(self, answer: str) -> None:
        before, _, digits = answer.rpartition("-")
        self.drawn = digits[:DRAWN]
        self.id = f"{before}-{self.drawn}"
        self.run, _, self.name = before.partition("-")
        marks = digits[DRAWN:-SIGNATURE]
        starts = range(0, len(marks), MARK)
        self.marks = {marks[start : start + MARK] for start in starts}

    def explored(self, item: str) -> bool | None:
        """Whether the item is in the answer because it is new; None if it is not in the answer."""
        for explored in (False, True):
            if marks_of([(item, explored)], self.drawn) in self.marks:
                return explored
        return None


def signature(text: str, key: bytes) -> str:
    return hmac.digest(key, text.encode(), "sha256").hex()[:SIGNATURE]


def is_signed(answer: str, key: bytes) -> bool:
    expected = signature(answer[:-SIGNATURE], key)
    return hmac.compare_digest(expected.encode(), answer[-SIGNATURE:].encode())
