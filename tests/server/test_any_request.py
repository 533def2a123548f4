"""Random requests are answered with 200 or a documented error, never with a crash."""

from typing import Any
from urllib.parse import urlencode

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.server.server_process import Answer, Server

pytest.importorskip("uvicorn")


def is_refusal(answer: Answer, *statuses: int) -> bool:
    return answer.status in statuses and set(answer.json()) == {"error"} and len(answer.json()["error"]) > 5


ANY = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=8), inner, max_size=4),
    max_leaves=8,
)
FIELDS = st.dictionaries(
    st.sampled_from(["session", "k", "exclude_seen", "allow", "deny", "session_id", "item", "other"]), ANY
)


@given(FIELDS, st.sampled_from(["/v1/recommend", "/v1/explain", "/v1/sessions/a/click", "/v1/sessions/%00/click"]))
@settings(max_examples=150)
def test_no_request_crashes_the_server(plain_server: Server, body: dict[str, Any], path: str) -> None:
    answer = plain_server.ask("POST", path, body)
    assert answer.status == 200 or is_refusal(answer, 400, 404, 422), (answer.status, answer.body)


@given(st.text(st.characters(codec="utf-8"), max_size=12), st.text("0123456789-+.eE x", max_size=6))
def test_any_search_is_answered(plain_server: Server, query: str, limit: str) -> None:
    answer = plain_server.ask("GET", "/v1/items?" + urlencode({"query": query, "limit": limit}))
    assert answer.status == 200 or is_refusal(answer, 400, 422), (answer.status, answer.body)
