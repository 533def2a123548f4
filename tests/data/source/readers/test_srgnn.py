"""SR-GNN's pickles: plain numbers are read, and no code in a pickle ever runs."""

import os
import pickle
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings, strategies as st

from posrec.data.source.readers import sessions
from posrec.data.source.readers.sessions import read_pickle
from posrec.errors import InputError
from tests.data.reference import samples

sessions_strategy = st.lists(
    st.lists(st.integers(0, 2**40), min_size=2, max_size=6), max_size=8
)


def written(path: Path, content: object, protocol: int | None = None) -> Path:
    path.write_bytes(pickle.dumps(content, protocol=protocol))
    return path


@given(sessions_strategy, st.integers(0, pickle.HIGHEST_PROTOCOL))
def test_sessions_come_back_from_every_form(
    tmp_path: Path, sessions: list[list[int]], protocol: int
) -> None:
    path = tmp_path / "p"
    assert read_pickle(written(path, sessions, protocol)) == sessions
    assert read_pickle(written(path, tuple(map(tuple, sessions)), protocol)) == sessions
    pairs = samples(sessions)
    pair: Any = ([prefix for prefix, _ in pairs], [target for _, target in pairs])
    for form in (pair, list(pair), tuple(map(tuple, pair))):
        assert read_pickle(written(path, form, protocol)) == sessions


class Malicious:
    def __init__(self, trace: Path) -> None:
        self.trace = trace

    def __reduce__(self) -> tuple[object, ...]:
        return os.system, (f"touch {self.trace}",)


@pytest.mark.parametrize("protocol", range(pickle.HIGHEST_PROTOCOL + 1))
def test_nothing_in_a_pickle_runs(tmp_path: Path, protocol: int) -> None:
    trace = tmp_path / "ran"
    path = written(tmp_path / "p", [[1, 2], Malicious(trace)], protocol)
    with pytest.raises(InputError, match=r"it asks for \w+\.system"):
        read_pickle(path)
    assert not trace.exists()
    pickle.loads(path.read_bytes())  # this is what was refused
    assert trace.exists()


NO_ITEMS = [2**63, -2, None, True, 1.5, "1", [1]]
NO_SESSIONS = ["text", 5, {"a": 1}, [{1}], [b"12"], [[1], {}]]


@pytest.mark.parametrize("content", [*([[item]] for item in NO_ITEMS), *NO_SESSIONS])
def test_anything_else_is_refused(tmp_path: Path, content: object) -> None:
    with pytest.raises(InputError):
        read_pickle(written(tmp_path / "p", content))


def test_a_file_past_the_limit_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = written(tmp_path / "p", [[1, 2]] * 100)
    monkeypatch.setattr(sessions, "MAX_PICKLE_BYTES", path.stat().st_size)
    assert len(read_pickle(path)) == 100
    monkeypatch.setattr(sessions, "MAX_PICKLE_BYTES", path.stat().st_size - 1)
    with pytest.raises(InputError, match="is larger than 0 MiB"):
        read_pickle(path)


def test_prefixes_that_are_not_all_there_are_refused(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="sample 2: the row below it"):
        read_pickle(written(tmp_path / "p", ([[1, 2, 3], [1, 2], [1]], [4, 3, 9])))


GOOD = pickle.dumps(([[1, 2, 3], [1, 2], [1], [700_000]], [4, 3, 2, 6]))


@settings(max_examples=150)
@given(
    st.binary(max_size=60)
    | st.tuples(st.integers(0, len(GOOD) - 1), st.integers(0, 255))
)
def test_a_damaged_pickle_is_always_an_input_error(
    tmp_path: Path, damage: bytes | tuple[int, int]
) -> None:
    if isinstance(damage, bytes):
        content = damage
    else:
        index, byte = damage
        content = GOOD[:index] + bytes([byte]) + GOOD[index + 1 :]
    (tmp_path / "p").write_bytes(content)
    try:
        sequences = read_pickle(tmp_path / "p")
    except InputError:
        return
    assert all(type(item) is int for sequence in sequences for item in sequence)
