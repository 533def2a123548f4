"""Values of options and settings that are written as text."""

import pytest

from posrec.config import parse_duration
from posrec.errors import InputError


@pytest.mark.parametrize(
    ("text", "milliseconds"),
    [
        ("30m", 1_800_000),
        ("2h", 7_200_000),
        ("90s", 90_000),
        ("1.5d", 129_600_000),
        (" 5ms", 5),
    ],
)
def test_durations(text: str, milliseconds: int) -> None:
    assert parse_duration(text) == milliseconds


@pytest.mark.parametrize("text", ["30", "m", "-5m", "0s", "5 m", "1w", "", "1e3s"])
def test_texts_that_are_not_durations(text: str) -> None:
    with pytest.raises(InputError, match="duration"):
        parse_duration(text)
