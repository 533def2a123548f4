"""Which of several runs answers a session: the same session always the same run, by a hash, in the
wanted shares."""

import hashlib
from collections.abc import Sequence

from posrec.errors import InputError

MOST_KEYS = 10_000  # that are tried to find one for each run


class Split:
    """The shares may have any sum, such as 90 and 10.

    >>> split = Split([90, 10])
    >>> split.choose("anna") == split.choose("anna"), sum(split.choose(str(n)) for n in range(1000)) in range(70, 131)
    (True, True)
    """

    def __init__(self, shares: Sequence[float]) -> None:
        total = sum(shares)
        self.shares = [share / total for share in shares]
        self.keys = [self.find_key(place) for place in range(len(shares))]

    def choose(self, key: str) -> int:
        if len(self.shares) == 1:
            return 0
        digest = hashlib.blake2b(
            key.encode("utf-8", "surrogatepass"), digest_size=8
        ).digest()
        drawn = int.from_bytes(digest, "big") / 2**64
        for place, share in enumerate(self.shares):
            drawn -= share
            if drawn < 0:
                return place
        return len(self.shares) - 1  # where the shares sum up to a little less than 1

    def find_key(self, place: int) -> str | None:
        """None where the share of the run is 0 or nearly so."""
        return next(
            (key for key in map(str, range(MOST_KEYS)) if self.choose(key) == place),
            None,
        )


def parse_shares(text: str | None, runs: int) -> tuple[float, ...]:
    """The shares of `--split 90,10`; none without it."""
    if text is None:
        return ()
    try:
        shares = tuple(float(part) for part in text.split(","))
    except ValueError:
        shares = ()
    if runs == 1:
        raise InputError(
            f"--split {text} is for several runs, and there is one; name the others, or leave out --split"
        )
    if (
        len(shares) != runs
        or not all(0 <= share < float("inf") for share in shares)
        or not sum(shares)
    ):
        raise InputError(
            f"--split {text}: it must have a share for each of the {runs} runs, such as 90,10 for two"
        )
    return shares
