"""JSON lines with one event a line: ids as written, nested fields, and a GA4 export with a
composite session."""

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from posrec.data.prepare.options import split_options
from posrec.data.source import blocks
from posrec.data.source.readers.columns import BETWEEN_IDS
from posrec.data.source.readers.options import LogOptions
from posrec.errors import InputError
from tests.data.reading import ReadClicks, read_clicks
from tests.helpers import RecordingProgress, rows, write_lines


def read(
    path: Path,
    lines: list[dict[str, Any]],
    progress: RecordingProgress | None = None,
    **options: Any,
) -> ReadClicks:
    log = write_lines(
        path / "events.jsonl",
        [json.dumps(event, ensure_ascii=False) for event in lines],
    )
    return read_clicks(
        "jsonl", [log], split_options(options)[0], progress or RecordingProgress()
    )


def ga4(
    user: str, session: int, name: str, seconds: int, item: str | None = None
) -> dict[str, Any]:
    """An event as GA4 exports it; events that are not about an item have no item_id."""
    event = {
        "event_date": "20260901",
        "event_timestamp": str(
            (1_788_249_600 + seconds) * 1_000_000
        ),  # microseconds, as text
        "event_name": name,
        "user_pseudo_id": user,
        "ga_session_id": session,
    }
    return event if item is None else {**event, "item_id": item}


EXPORT = [
    ga4("11.5", 1_788_249_600, "session_start", 0),
    ga4("11.5", 1_788_249_600, "view_item", 1, "sku-1"),
    ga4(
        "22.5", 1_788_249_600, "view_item", 2, "sku-7"
    ),  # another user's session, with the same number
    ga4("11.5", 1_788_249_600, "add_to_cart", 3, "sku-1"),
    ga4("22.5", 1_788_249_600, "view_item", 4, "sku-2"),
]


def test_a_ga4_export_has_sessions_of_user_and_number(tmp_path: Path) -> None:
    progress = RecordingProgress()
    parsed = read(tmp_path, EXPORT, progress, events="view_item,add_to_cart")
    start = 1_788_249_600_000
    one, other = (f"{user}{BETWEEN_IDS}1788249600" for user in ("11.5", "22.5"))
    assert rows(parsed.clicks) == [
        (one, "sku-1", start + 1000),
        (other, "sku-7", start + 2000),
        (one, "sku-1", start + 3000),
        (other, "sku-2", start + 4000),
    ]
    assert not parsed.by_user
    assert parsed.events == {"view_item": 3, "add_to_cart": 1, "session_start": 1}
    assert progress.messages[:2] == [
        "events.jsonl: columns 'user_pseudo_id' and 'ga_session_id' read as the session",
        "events.jsonl: column 'item_id' read as the item",
    ]
    named = read(
        tmp_path,
        EXPORT,
        session_column=["user_pseudo_id", "ga_session_id"],
        events=["view_item"],
    )
    assert [session for session, _, _ in rows(named.clicks)] == [one, other, other]


def test_events_without_an_item_are_broken_lines_and_the_kinds_are_listed(
    tmp_path: Path,
) -> None:
    progress = RecordingProgress()
    with pytest.raises(
        InputError, match=r"line 1: the item \(column 'item_id'\) is missing"
    ):
        read(tmp_path, EXPORT, progress)
    with pytest.raises(InputError, match="at least 10 lines are broken"):
        read(tmp_path, EXPORT * 10, progress)
    assert "view_item 30, add_to_cart 10, session_start 10" in progress.messages[-1]


def test_nested_fields_are_named_by_their_path(tmp_path: Path) -> None:
    events = [
        {
            "anonymousId": "u1",
            "timestamp": "2026-09-01T08:00:00.000Z",
            "properties": {"product": {"id": 7}, "price": 1},
        },
        {
            "anonymousId": "u1",
            "timestamp": "2026-09-01T08:00:01.000Z",
            "properties": {"product": {"id": "007"}},
        },
    ]
    parsed = read(tmp_path, events, item_column="properties.product.id")
    assert [(session, item) for session, item, _ in rows(parsed.clicks)] == [
        ("u1", "7"),
        ("u1", "007"),
    ]
    assert parsed.by_user
    with pytest.raises(
        InputError,
        match=r"no column 'product\.id' .*; it has anonymousId, timestamp, prop",
    ):
        read(tmp_path, events, item_column="product.id")
    broken = [*events, {"anonymousId": "u1", "timestamp": 1, "properties": 5}]
    with pytest.raises(
        InputError,
        match=r"line 3: the item \(column 'properties\.product\.id'\) is missing",
    ):
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
        read_clicks("jsonl", [log], LogOptions(), RecordingProgress())
