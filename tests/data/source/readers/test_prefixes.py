"""RecBole's rows of a prefix and its target, and the splits of RecBole and session-rec."""

from pathlib import Path

import pytest
from hypothesis import given, strategies as st

from posrec.errors import InputError
from tests.data.reading import prepared
from tests.data.reference import samples
from tests.helpers import raw, write_lines

HEADER = "session_id:token\titem_id_list:token_seq\titem_id:token"
SESSIONS = [list("abcd"), list("ba"), list("baa"), list("cacacb")]


def write_prefixes(
    path: Path, sessions: list[list[str]], cut: int = 50, longest_first: bool = True
) -> Path:
    """Every prefix of the sessions, with at most `cut` items; the ids number rows, as in RecBole's
    session files."""
    lines = [HEADER]
    for session in sessions:
        ends = list(range(1, len(session)))
        if longest_first:
            ends.reverse()
        for end in ends:
            prefix = " ".join(session[:end][-cut:])
            lines.append(f"{len(lines)}\t{prefix}\t{session[end]}")
    return write_lines(path, lines)


@pytest.mark.parametrize("longest_first", [True, False])
@pytest.mark.parametrize("cut", [2, 50])
def test_sessions_come_back_from_their_prefixes(
    tmp_path: Path, cut: int, longest_first: bool
) -> None:
    log = write_prefixes(tmp_path / "shop.train.inter", SESSIONS, cut, longest_first)
    write_prefixes(tmp_path / "shop.test.inter", [["a", "new"]])
    data = prepared(log, tmp_path / "out", format="recbole")
    assert raw(data.train, data.vocabulary) == SESSIONS
    # The split is kept, with items that training does not have.
    assert raw(data.test, data.vocabulary) == [["a", "new"]]
    assert data.manifest["format"] == "recbole-prefixes"
    assert data.manifest["recipe"] == "given"


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
    assert sorted(samples(joined)) == sorted(samples(sessions))


def test_one_id_a_session_other_columns_and_two_files(tmp_path: Path) -> None:
    header = "user_id:token\titem_id:token\ttimestamp:float\titem_id_list:token_seq"
    lines = [header, "1\tb\t5\ta", "1\tc\t6\ta  b", "", "2\ta\t7\tc"]
    first = write_lines(tmp_path / "1.inter", lines, "\r\n")
    second = write_lines(tmp_path / "2.inter", [header, "9\tb\t5\tb"])
    data = prepared([first, second], tmp_path / "out", no_test=True, min_support=1)
    assert raw(data.train, data.vocabulary) == [["a", "b", "c"], ["c", "a"], ["b", "b"]]


@pytest.mark.parametrize(
    ("rows", "message"),
    [
        (
            "1 a,b c\n2 a b\n3 a,b,c d\n4 x,b c\n5 x b",
            "line 4: the row below it is not",
        ),
        ("1 a b\n1 a,b c\n2 a b\n2 x,b c", "line 5: the row above it"),
        ("1 a b\n2 b", "line 3: there must be 3 fields"),
        ("", "holds no clicks"),
        ("1  b", "line 2: item_id_list must hold item ids"),
        ("1 a b,c", "line 2: .* item_id one item id"),
        ("1 a b\n2 a,-1 b", "line 3: an item id is negative"),
        ("1 a b\udcff", "line 2: not UTF-8 text"),
    ],
)
def test_rows_that_can_not_be_joined(tmp_path: Path, rows: str, message: str) -> None:
    """In `rows`, a space stands for a tab, and a comma for a space."""
    content = f"{HEADER}\n" + rows.replace(" ", "\t").replace(",", " ")
    log = tmp_path / "a.inter"
    log.write_bytes(content.encode("utf-8", errors="surrogateescape"))
    with pytest.raises(InputError, match=rf"a\.inter,? {message}"):
        prepared(log, tmp_path / "out")


def test_a_header_without_targets(tmp_path: Path) -> None:
    lines = [HEADER.replace("item_id:", "target:"), "1\ta\tb"]
    log = write_lines(tmp_path / "a.inter", lines)
    with pytest.raises(
        InputError, match=r"line 1: .* columns item_id_list and item_id"
    ):
        prepared(log, tmp_path / "out")


def test_session_rec_splits(tmp_path: Path) -> None:
    header = "SessionId\tItemId\tTime"
    lines = [header, "1\ta\t10.5", "1\tb\t12.25", "2\tb\t3", "2\ta\t4"]
    log = write_lines(tmp_path / "shop_train_full.0.txt", lines)
    write_lines(tmp_path / "shop_test.0.txt", [header, "3\ta\t90", "3\tb\t91"])
    data = prepared(log, tmp_path / "out")
    # In order of time.
    assert raw(data.train, data.vocabulary) == [["b", "a"], ["a", "b"]]
    assert data.train.times.tolist() == [3000, 10500]
    assert raw(data.test, data.vocabulary) == [["a", "b"]]
    assert data.manifest["source"] == ["shop_train_full.0.txt", "shop_test.0.txt"]
    # With an option of the recipe there is no split to keep.
    data = prepared(log, tmp_path / "out", no_test=True, min_support=1)
    assert data.test.sessions == 0
