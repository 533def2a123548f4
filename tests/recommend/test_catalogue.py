"""What is kept of filters and boosts: it is bounded in bytes, whatever clients ask for."""

import gc
import tracemalloc
from collections.abc import Iterator
from contextlib import suppress
from typing import Any

import pytest

from posrec.data.vocabulary import Vocabulary
from posrec.errors import InputError
from posrec.recommend import catalogue as module
from posrec.recommend.catalogue import Candidates, Catalogue
from posrec.recommend.plan import Plan

ITEMS = 50


@pytest.fixture
def catalogue(monkeypatch: pytest.MonkeyPatch) -> Catalogue:
    """It may keep 200 kB."""
    monkeypatch.setattr(module, "RESULTS_BYTES", 200_000)
    ids = [f"i{number}" for number in range(ITEMS)]
    return Catalogue(Vocabulary(ids, {"price": list(range(ITEMS))}), ITEMS)


def ask(catalogue: Catalogue, kind: str, values: dict[str, float]) -> Candidates:
    """The items of the first factor of a plan with a filter or a boost by these prices."""
    if kind == "filter":
        plan = Plan(catalogue, None, filter={"price": [*values]})
    else:
        plan = Plan(catalogue, None, boost={"price": values})
    return next(iter(plan.by_factor.values()))


@pytest.mark.parametrize("kind", ["filter", "boost"])
def test_the_latest_are_kept_within_the_bytes_and_long_ones_are_computed_every_time(
    catalogue: Catalogue, kind: str
) -> None:
    short = {"3": 2.0}
    long = {"3": 2.0, "x" * 20_000: 2.0}
    first = ask(catalogue, kind, short)
    gc.collect()
    tracemalloc.start()
    for number in range(300):
        ask(catalogue, kind, {f"{number} {'x' * 5000}": 3.0, str(number % ITEMS): 3.0})
        # It was used, so others are dropped before it.
        assert ask(catalogue, kind, short) is first
    size, _ = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert size < 110_000
    computed = ask(catalogue, kind, long)
    assert computed.mask is not None
    assert computed.mask.tolist() == first.mask.tolist()
    assert ask(catalogue, kind, long) is not computed


NAMES = [f"b{number}" for number in range(20_000)]


@pytest.mark.parametrize(
    "rules",
    [
        {"filter": {"price": [NAMES]}},
        {"filter": dict.fromkeys(NAMES, 1)},
        {"boost": {"price": dict.fromkeys(NAMES, 2.0)}},
    ],
    ids=["nested", "columns", "boost"],
)
def test_what_is_long_is_written_down_in_part_only(
    catalogue: Catalogue, monkeypatch: pytest.MonkeyPatch, rules: dict[str, Any]
) -> None:
    """To write all of it down takes a tenth of a second, in which no other thread runs."""
    written: list[str] = []

    def pieces(asked: Any) -> Iterator[str]:
        for piece in encode(asked):
            written.append(piece)
            yield piece

    encode = module.ENCODER.iterencode
    monkeypatch.setattr(module.ENCODER, "iterencode", pieces)
    with suppress(InputError):  # of columns that do not exist, and nested lists
        Plan(catalogue, None, **rules)
    assert len(written) == module.LONGEST_KEY + 1
    assert max(map(len, written)) < 20
