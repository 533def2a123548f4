"""JSON lines of events: ids as written, nested fields, and a GA4 export."""

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, strategies as st

from posrec.data.prepare.options import split_options
from posrec.data.source import blocks
from posrec.data.source.readers.columns import BETWEEN_IDS
from posrec.errors import InputError
from tests.data.reading import ReadClicks, read_clicks
from tests.helpers import RecordingProgress, rows, write_lines


def read(
    path: Path,
    lines: list[Any],
    progress: RecordingProgress | None = None,
    **options: Any,
) -> ReadClicks:
    texts = [json.dumps(event, ensure_ascii=False) for event in lines]
    log = write_lines(path / "events.jsonl", texts)
    log_options, _ = split_options(options)
    return read_clicks("jsonl", [log], log_options, progress)


START = 1_788_249_600


def ga4(user: str, name: str, seconds: int, item: str | None = None) -> dict[str, Any]:
    """An event as GA4 exports it."""
    event = {
        "event_date": "20260901",
        "event_timestamp": f"{START + seconds}000000",  # microseconds, as text
        "event_name": name,
        "user_pseudo_id": user,
        "ga_session_id": START,  # the same number for two users
    }
    return event if item is None else {**event, "item_id": item}


EXPORT = [
    ga4("11.5", "session_start", 0),
    ga4("11.5", "view_item", 1, "sku-1"),
    ga4("22.5", "view_item", 2, "sku-7"),
    ga4("11.5", "add_to_cart", 3, "sku-1"),
    ga4("22.5", "view_item", 4, "sku-2"),
]


def test_a_ga4_export_has_sessions_of_user_and_number(tmp_path: Path) -> None:
    progress = RecordingProgress()
    parsed = read(tmp_path, EXPORT, progress, events="view_item,add_to_cart")
    first = f"11.5{BETWEEN_IDS}{START}"
    second = f"22.5{BETWEEN_IDS}{START}"
    assert rows(parsed.clicks) == [
        (first, "sku-1", 1000 * START + 1000),
        (second, "sku-7", 1000 * START + 2000),
        (first, "sku-1", 1000 * START + 3000),
        (second, "sku-2", 1000 * START + 4000),
    ]
    assert not parsed.by_user
    assert parsed.events == {"view_item": 3, "add_to_cart": 1, "session_start": 1}
    assert progress.messages[:2] == [
        "events.jsonl: columns 'user_pseudo_id' and 'ga_session_id' read as the session",
        "events.jsonl: column 'item_id' read as the item",
    ]
    columns = ["user_pseudo_id", "ga_session_id"]
    named = read(tmp_path, EXPORT, session_column=columns, events=["view_item"])
    sessions = [session for session, _, _ in rows(named.clicks)]
    assert sessions == [first, second, second]


def test_events_without_an_item_are_broken_lines_and_the_kinds_are_listed(
    tmp_path: Path,
) -> None:
    progress = RecordingProgress()
    with pytest.raises(InputError, match=r"line 1: the item .* is missing"):
        read(tmp_path, EXPORT, progress)
    with pytest.raises(InputError, match="at least 10 lines are broken"):
        read(tmp_path, EXPORT * 10, progress)
    assert "view_item 30, add_to_cart 10, session_start 10" in progress.messages[-1]


def test_nested_fields_are_named_by_their_path(tmp_path: Path) -> None:
    user = {"anonymousId": "u1", "timestamp": "2026-09-01T08:00:00.000Z"}
    events = [
        {**user, "properties": {"product": {"id": 7}, "price": 1}},
        {**user, "properties": {"product": {"id": "007"}}},
    ]
    parsed = read(tmp_path, events, item_column="properties.product.id")
    assert parsed.clicks["item"].to_list() == ["7", "007"]
    assert parsed.by_user
    with pytest.raises(InputError, match=r"'product\.id' .*; it has anonymousId, time"):
        read(tmp_path, events, item_column="product.id")
    broken = [*events, {**user, "properties": 5}]
    with pytest.raises(InputError, match=r"line 3: the item .* is missing"):
        read(tmp_path, broken, item_column="properties.product.id")


text = st.text(st.characters(exclude_categories=["Cs"]), min_size=1).filter(
    lambda text: text[0] != "-"
)
ids = st.one_of(st.integers(0, 2**70), text)


@given(
    st.lists(st.tuples(ids, ids, st.integers(0, 2**40)), min_size=1, max_size=8),
    st.integers(1, 80),
)
def test_ids_stay_as_they_are_written(
    tmp_path: Path, clicks: list[tuple[Any, Any, int]], size: int
) -> None:
    events = [
        {"session": session, "item": item, "time": time, "more": [1]}
        for session, item, time in clicks
    ]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(blocks, "BLOCK_BYTES", size)
        parsed = read(tmp_path, events, time_unit="ms")
    assert rows(parsed.clicks) == [
        (str(session), str(item), time) for session, item, time in clicks
    ]


def test_a_file_without_objects(tmp_path: Path) -> None:
    log = write_lines(tmp_path / "a.jsonl", ["7", "[1]", "x"])
    with pytest.raises(InputError, match="none of the first lines is a JSON object"):
        read_clicks("jsonl", [log])
