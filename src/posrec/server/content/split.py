"""Which of several runs answers a session: by a hash, so that a session always has the same run."""

import hashlib
import math
from collections.abc import Sequence

from posrec.errors import InputError

MOST_KEYS = 10_000  # that are tried to find one for each run


class Split:
    """The shares may have any sum.

    >>> split = Split([90, 10])
    >>> sum(split.choose(str(visitor)) for visitor in range(1000)) in range(70, 131)
    True
    """

    def __init__(self, shares: Sequence[float]) -> None:
        total = sum(shares)
        self.shares = [share / total for share in shares]
        self.keys = [self.find_key(run) for run in range(len(shares))]

    def choose(self, key: str) -> int:
        if len(self.shares) == 1:
            return 0
        encoded = key.encode("utf-8", "surrogatepass")
        digest = hashlib.blake2b(encoded, digest_size=8).digest()
        drawn = int.from_bytes(digest, "big") / 2**64
        for run, share in enumerate(self.shares):
            drawn -= share
            if drawn < 0:
                return run
        return len(self.shares) - 1  # where the shares sum up to a little less than 1

    def find_key(self, run: int) -> str | None:
        """None if the share of the run is nearly 0."""
        for key in map(str, range(MOST_KEYS)):
            if self.choose(key) == run:
                return key
        return None


def parse_shares(text: str | None, runs: int) -> tuple[float, ...]:
    """The shares of `--split 90,10`; none without it."""
    if text is None:
        return ()
    try:
        shares = tuple(map(float, text.split(",")))
    except ValueError:
        shares = ()
    if runs == 1:
        raise InputError(
            f"--split {text} is for several runs, and there is one; name the others, or "
            "leave out --split"
        )
    are_valid = all(0 <= share < math.inf for share in shares)
    if len(shares) != runs or not are_valid or not sum(shares):
        raise InputError(
            f"--split {text}: it must have a share for each of the {runs} runs, such as "
            "90,10 for two"
        )
    return shares
