"""Raw ids to numbers and back, through JSON."""

from pathlib import Path

import pytest
from hypothesis import given, strategies as st

from posrec.data.vocabulary import FILE, Vocabulary
from posrec.errors import InputError
from posrec.io import write_text

any_text = st.text(st.characters(exclude_categories=["Cs"]), max_size=20)
values = st.one_of(
    st.none(), st.booleans(), st.integers(), any_text, st.lists(any_text)
)


@given(st.lists(st.tuples(any_text, values), unique_by=lambda pair: pair[0]))
def test_ids_and_columns_survive_the_file(
    tmp_path: Path, pairs: list[tuple[str, object]]
) -> None:
    ids = [item for item, _ in pairs]
    extra = [value for _, value in pairs]
    write_text(tmp_path / FILE, Vocabulary(ids, {"a column": extra}).to_json())
    vocabulary = Vocabulary.load(tmp_path)
    assert (vocabulary.ids, vocabulary.columns) == (ids, {"a column": extra})
    assert [vocabulary.item(vocabulary.index(item)) for item in ids] == ids
    numbers = range(1, len(vocabulary) + 1)
    assert vocabulary.indices(["\0unknown", *ids]) == list(numbers)


def test_items_that_are_not_in_the_vocabulary() -> None:
    vocabulary = Vocabulary(["a", "b"], {"title": ["Tent", None]})
    assert "a" in vocabulary
    assert "c" not in vocabulary
    assert 1 not in vocabulary
    with pytest.raises(KeyError):
        vocabulary.index("c")
    for index in (0, -1, 3):
        with pytest.raises(IndexError, match=r"not in 1\.\.2"):
            vocabulary.item(index)
        with pytest.raises(IndexError, match=r"not in 1\.\.2"):
            vocabulary.title(index)


def test_columns_fit_the_items() -> None:
    with pytest.raises(ValueError, match="'title' has 1 values for 2 items"):
        Vocabulary(["a", "b"], {"title": ["x"]})


@pytest.mark.parametrize(
    "content",
    [
        "[]",
        "{}",
        '{"ids": ["a"], "columns": {"title": []}}',
        '{"ids": 5, "columns": {}}',
        "{",
    ],
)
def test_a_file_that_is_not_a_vocabulary_is_refused(
    tmp_path: Path, content: str
) -> None:
    (tmp_path / FILE).write_text(content)
    with pytest.raises(InputError, match=r"vocabulary\.json"):
        Vocabulary.load(tmp_path)
