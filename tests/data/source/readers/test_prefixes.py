"""RecBole's prepared sessions, rows of a prefix and its target, and the splits that RecBole and
session-rec name."""

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from posrec.errors import InputError
from tests.data.reading import prepared
from tests.helpers import raw, write_lines

HEADER = "session_id:token\titem_id_list:token_seq\titem_id:token"
SESSIONS = [
    ["a", "b", "c", "d"],
    ["b", "a"],
    ["b", "a", "a"],
    ["c", "a", "c", "a", "c", "b"],
]


def write_prefixes(
    path: Path, sessions: list[list[str]], cut: int = 50, longest_first: bool = True
) -> Path:
    """Every prefix of the sessions, with at most `cut` items; the ids number rows, as in RecBole's
    session files."""
    rows = [
        (session[:end][-cut:], session[end])
        for session in sessions
        for end in (
            range(len(session) - 1, 0, -1) if longest_first else range(1, len(session))
        )
    ]
    lines = [
        f"{number}\t{' '.join(prefix)}\t{target}"
        for number, (prefix, target) in enumerate(rows, start=1)
    ]
    return write_lines(path, [HEADER, *lines])


@pytest.mark.parametrize("longest_first", [True, False])
@pytest.mark.parametrize("cut", [2, 50])
def test_sessions_come_back_from_their_prefixes(
    tmp_path: Path, cut: int, longest_first: bool
) -> None:
    log = write_prefixes(tmp_path / "shop.train.inter", SESSIONS, cut, longest_first)
    write_prefixes(tmp_path / "shop.test.inter", [["a", "new"]])
    data = prepared(log, tmp_path / "out", format="recbole")
    assert raw(data.train, data.vocabulary) == SESSIONS
    assert raw(data.test, data.vocabulary) == [
        ["a", "new"]
    ]  # the split is kept, with items that training has not
    assert (data.manifest["format"], data.manifest["recipe"]) == (
        "recbole-prefixes",
        "given",
    )


@given(
    st.lists(st.lists(st.sampled_from("ab"), min_size=2, max_size=5), min_size=1),
    st.booleans(),
)
def test_every_row_is_a_sample_whatever_the_order(
    tmp_path: Path, sessions: list[list[str]], longest_first: bool
) -> None:
    log = write_prefixes(tmp_path / "any.inter", sessions, longest_first=longest_first)
    data = prepared(log, tmp_path / "out", no_test=True, min_support=1)
    joined = raw(data.train, data.vocabulary)
    samples = [
        [session[:end] for session in some for end in range(2, len(session) + 1)]
        for some in (joined, sessions)
    ]
    assert sorted(samples[0]) == sorted(samples[1])


def test_one_id_a_session_other_columns_and_two_files(tmp_path: Path) -> None:
    header = "user_id:token\titem_id:token\ttimestamp:float\titem_id_list:token_seq"
    first = write_lines(
        tmp_path / "1.inter",
        [header, "1\tb\t5\ta", "1\tc\t6\ta  b", "", "2\ta\t7\tc"],
        "\r\n",
    )
    second = write_lines(tmp_path / "2.inter", [header, "9\tb\t5\tb"])
    data = prepared([first, second], tmp_path / "out", no_test=True, min_support=1)
    assert raw(data.train, data.vocabulary) == [["a", "b", "c"], ["c", "a"], ["b", "b"]]


@pytest.mark.parametrize(
    ("lines", "message"),
    [
        ([HEADER.replace("item_id:", "target:"), "1\ta\tb"], r"line 1: .* columns item_id_list and item_id"),
        ([HEADER, "1\ta b\tc", "2\ta\tb", "3\ta b c\td", "4\tx b\tc", "5\tx\tb"], r"line 4: the row below it is not"),
        ([HEADER, "1\ta\tb", "1\ta b\tc", "2\ta\tb", "2\tx b\tc"], r"line 5: the row above it"),
        ([HEADER, "1\ta\tb", "2\tb"], r"line 3: there must be 3 fields"),
        ([HEADER, ""], r"holds no clicks"),
        ([HEADER, "1\t\tb"], r"line 2: item_id_list must hold item ids"),
        ([HEADER, "1\ta\tb c"], r"line 2: .* item_id one item id"),
        ([HEADER, "1\ta\tb", "2\ta -1\tb"], r"line 3: an item id is negative"),
        ([HEADER, "1\ta\tb\udcff"], r"line 2: not UTF-8 text"),
    ],
)  # fmt: skip
def test_rows_that_can_not_be_joined(
    tmp_path: Path, lines: list[str], message: str
) -> None:
    log = tmp_path / "a.inter"
    log.write_bytes("\n".join(lines).encode("utf-8", errors="surrogateescape"))
    with pytest.raises(InputError, match=rf"a\.inter,? {message}"):
        prepared(log, tmp_path / "out")


def test_session_rec_splits(tmp_path: Path) -> None:
    header = "SessionId\tItemId\tTime"
    log = write_lines(
        tmp_path / "shop_train_full.0.txt",
        [header, "1\ta\t10.5", "1\tb\t12.25", "2\tb\t3", "2\ta\t4"],
    )
    write_lines(tmp_path / "shop_test.0.txt", [header, "3\ta\t90", "3\tb\t91"])
    data = prepared(log, tmp_path / "out")
    assert raw(data.train, data.vocabulary) == [
        ["b", "a"],
        ["a", "b"],
    ]  # in order of time
    assert data.train.times.tolist() == [3000, 10500]
    assert raw(data.test, data.vocabulary) == [["a", "b"]]
    assert data.manifest["source"] == ["shop_train_full.0.txt", "shop_test.0.txt"]
    assert (
        prepared(log, tmp_path / "out", no_test=True, min_support=1).test.sessions == 0
    )  # an option of the recipe: no split to keep
