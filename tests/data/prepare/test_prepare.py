"""Whole recipes, from file to folder, against slow and plain versions of them on random logs."""

import json
from datetime import UTC, datetime
from fractions import Fraction
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from hypothesis import example, given, strategies as st

import posrec
from posrec.data.dataset import PreparedDataset
from posrec.data.prepare.options import PrepareOptions, RecipeOptions
from posrec.data.source.readers.options import LogOptions
from posrec.data.stats import stats
from posrec.data.vocabulary import Vocabulary
from posrec.errors import InputError
from tests.data import reference, strategies
from tests.helpers import Click, plain, raw, small_shop, write_lines, write_log


def prepared(path: Path, format: str, **options: Any) -> PreparedDataset | None:
    """The dataset, or None where nothing was left."""
    try:
        out = path.with_name("out")
        return posrec.prepare(path, format, out, overwrite=True, **options)
    except posrec.InputError as error:
        if "nothing is left" not in str(error) and "holds no clicks" not in str(error):
            raise
        return None


def check(
    data: PreparedDataset | None, train: list[list[str]], test: list[list[str]]
) -> None:
    assert (data is None) == (not train or not test)
    if data is not None:
        train_numbers, test_numbers, ids = reference.numbered(train, test)
        assert plain(data.train) == train_numbers
        assert plain(data.test) == test_numbers
        assert data.vocabulary.ids == ids


def write_yoochoose(path: Path, clicks: list[Click]) -> Path:
    lines = []
    for session, item, time in clicks:
        moment = datetime.fromtimestamp(time // 1000, UTC)
        written = f"{moment:%Y-%m-%dT%H:%M:%S}.{time % 1000:03d}Z"
        lines.append(f"{session},{written},{item},0")
    return write_lines(path, lines or [""])


START = strategies.START
LATER = START + 60 * strategies.HOUR


@given(
    strategies.clicks,
    st.sampled_from([0.5, 1, 2]),
    st.integers(1, 4),
    st.integers(2, 3),
)
# The last-read click of s1 is filtered away, and still dates the session: the day of s3, past the
# boundary.
@example(
    [("s2", "i0", START), ("s2", "i1", START),
     ("s1", "i0", START), ("s1", "i1", START), ("s1", "i9", LATER),
     ("s3", "i0", LATER), ("s3", "i1", LATER)], 1, 2, 2,
)  # fmt: skip
def test_the_papers_recipe_on_yoochoose(
    tmp_path: Path, clicks: list[Click], days: float, support: int, length: int
) -> None:
    log = write_yoochoose(tmp_path / "clicks.dat", clicks)
    options = {"test_days": days, "min_support": support, "min_length": length}
    data = prepared(log, "yoochoose", **options)
    sessions = reference.read_yoochoose(clicks)
    check(data, *reference.paper(*sessions, days, support, length))


@given(strategies.views, st.sampled_from([1, 3, 7]), st.integers(1, 4))
def test_the_papers_recipe_on_diginetica(
    tmp_path: Path, views: list[tuple[str, str, int, int]], days: int, support: int
) -> None:
    lines = ["sessionId;userId;itemId;timeframe;eventdate"]
    for session, item, timeframe, day in views:
        date = datetime.fromtimestamp(day / 1000, UTC)
        lines.append(f"{session};NA;{item};{timeframe};{date:%Y-%m-%d}")
    log = write_lines(tmp_path / "views.csv", lines)
    data = prepared(log, "diginetica", test_days=days, min_support=support)
    check(data, *reference.paper(*reference.read_diginetica(views), days, support))


@given(strategies.clicks, st.fractions(0, 1).filter(bool))
def test_a_fraction_of_the_papers_training(
    tmp_path: Path, clicks: list[Click], fraction: Fraction
) -> None:
    log = write_yoochoose(tmp_path / "clicks.dat", clicks)
    data = prepared(log, "yoochoose", min_support=1, fraction=str(fraction))
    train, test = reference.paper(*reference.read_yoochoose(clicks), 1, 1)
    samples = reference.recent(train, fraction)
    assert (data is None) == (not samples or not test)
    if data is not None:
        assert reference.samples(raw(data.train, data.vocabulary)) == samples
        # The test part is filtered by all of training, not by the fraction.
        assert raw(data.test, data.vocabulary) == test


@given(
    strategies.clicks,
    st.fixed_dictionaries(
        {"support": st.integers(1, 4), "length": st.integers(2, 3)},
        optional={
            "gap": st.integers(1, 30 * strategies.HOUR),
            "repeats_dropped": st.booleans(),
            "longest": st.integers(3, 5),
            "days": st.sampled_from([0.25, 1, 2]),
            "share": st.sampled_from([0.1, 0.3, 0.5]),
        },
    ),
)
def test_the_clean_recipe(
    tmp_path: Path, clicks: list[Click], options: dict[str, Any]
) -> None:
    names = {"support": "min_support", "length": "min_length", "repeats_dropped": "drop_repeats",
             "longest": "max_length", "days": "test_days", "share": "test_share"}  # fmt: skip
    ours = {names.get(name, name): value for name, value in options.items()}
    log = write_log(tmp_path / "clicks.csv", clicks)
    data = prepared(log, "csv", **ours)
    check(data, *reference.clean(clicks, **options))
    if data is None:
        return
    ids = Vocabulary([*data.vocabulary.ids, *data.new_items])
    full_test = raw(data.full_test, ids)
    assert full_test == reference.full_test(clicks, **options)
    # The usual test part is what is left of it without clicks on unknown items.
    train = raw(data.train, ids)
    trained = reference.trained_only(train, full_test, options["length"])
    assert trained == raw(data.test, ids)
    assert (data.full_test is data.test) == (full_test == trained)
    new = {item for session in full_test for item in session} - set(
        ids.ids[: data.train_items]
    )
    assert set(data.new_items) == new
    clicked = [item for session in full_test for item in session]
    new_clicks = sum(item in new for item in clicked)
    assert data.manifest["counts"]["new_item_clicks"] == new_clicks


@given(
    st.lists(
        st.tuples(
            st.sampled_from(["", "", "-1", "a", "b"]),
            st.sampled_from(["a", "b", "u1", "u2"]),  # some have the name of a session
            strategies.items,
            st.integers(0, 40).map(lambda step: strategies.START + 400 * step)
            | strategies.moments,
            st.sampled_from(["view", "cart"]),
        ),
        max_size=50,
    ),
    st.sampled_from([1000, 3 * strategies.HOUR]),
    st.booleans(),
    st.none() | st.integers(3, 6),
)
def test_sessions_users_and_duplicates(
    tmp_path: Path,
    events: list[reference.Event],
    gap: int,
    dropped: bool,
    most: int | None,
) -> None:
    lines = [",".join(map(str, event)) for event in events]
    log = write_lines(tmp_path / "clicks.csv", ["visit,user,item,time,event", *lines])
    data = prepared(
        log,
        "csv",
        session_column="visit",
        user_column="user",
        gap=gap,
        drop_duplicates=dropped,
        max_session_clicks=most,
        min_support=1,
    )
    named = [(event[0].replace("-1", ""), *event[1:]) for event in events]
    visits = reference.visits(named, gap, dropped, most)
    check(data, *reference.clean(visits, support=1))


def test_the_counts_of_the_steps_add_up(tmp_path: Path) -> None:
    now = 1_700_000_000_000
    rare = [("alone", "i0", now), ("rare", "x", now), ("rare", "i1", 1)]
    log = write_log(tmp_path / "c.csv", [*small_shop(), *rare])
    data = posrec.prepare(log, "csv", tmp_path / "out")
    steps = data.manifest["steps"]
    names = ("clicks", "sessions", "items")
    assert steps[0]["step"] == "read"
    assert [steps[0][name] for name in names] == [93, 32, 5]
    for before, after in pairwise(steps):
        for name in names:
            assert after[name] == before[name] - after[f"removed_{name}"]
    # x was clicked once; without it the session 'rare' has one click left, and falls with 'alone'.
    assert [steps[1][f"removed_{name}"] for name in names] == [3, 2, 1]
    assert steps[-1]["clicks"] == data.manifest["counts"]["clicks"] == 90
    assert data.train.clicks + data.test.clicks == 90


def test_validation_is_the_last_tenth_and_a_view(tmp_path: Path) -> None:
    log = write_log(tmp_path / "c.csv", small_shop(50))
    data = posrec.prepare(log, "csv", tmp_path / "out")
    assert (data.train.sessions, data.test.sessions) == (45, 5)
    # A tenth of 45 sessions, rounded.
    assert (data.fitting.sessions, data.validation.sessions) == (41, 4)
    assert plain(data.fitting) + plain(data.validation) == plain(data.train)
    assert data.validation.items.data_ptr() == data.train.items.data_ptr()
    assert data.train.times.tolist() == sorted(data.train.times.tolist())
    assert int(data.validation.times[0]) == 1_700_000_000_000 + 41 * 3_600_000


def test_an_existing_split_is_kept(tmp_path: Path) -> None:
    train = write_lines(tmp_path / "train.txt", ["1 2", "7", "3 4 5"])
    test = write_lines(tmp_path / "test.txt", ["2 9 1", "8"])
    data = posrec.prepare(train, "sessions", tmp_path / "out", test=test)
    assert raw(data.train, data.vocabulary) == [["1", "2"], ["3", "4", "5"]]
    assert raw(data.test, data.vocabulary) == [["2", "9", "1"]]  # 9 is new, and stays
    assert (data.train_items, len(data.vocabulary)) == (5, 6)
    assert data.manifest["recipe"] == "given"
    assert data.vocabulary.index("9") == 6


def test_defaults_belong_to_the_format(tmp_path: Path) -> None:
    yoochoose = write_yoochoose(tmp_path / "clicks.dat", small_shop(60))
    data = posrec.prepare(yoochoose, "yoochoose", tmp_path / "y")
    assert data.manifest["recipe"] == "paper"
    assert data.manifest["options"]["test_days"] == 1
    # The session exactly a day before the last is gone.
    assert (data.train.sessions, data.test.sessions) == (35, 24)
    clean = posrec.prepare(yoochoose, "yoochoose", tmp_path / "c", recipe="clean")
    assert (clean.train.sessions, clean.test.sessions) == (54, 6)


def test_the_manifest_says_how_the_dataset_was_made(tmp_path: Path) -> None:
    log = write_log(tmp_path / "c.csv", small_shop())
    posrec.prepare(log, "csv", tmp_path / "out", fraction="1/2", gap="1h")
    manifest = json.loads((tmp_path / "out" / "manifest.json").read_text())
    assert (manifest["schema"], manifest["format"]) == (1, "csv")
    assert manifest["source"] == ["c.csv"]
    assert manifest["options"]["fraction"] == "1/2"
    assert manifest["options"]["gap"] == 3_600_000
    assert str(tmp_path) not in json.dumps(manifest)


@given(st.lists(strategies.any_id, min_size=2, max_size=6, unique=True))
@example(["1e5", "100000", "007", "7", "a b", "ü", "名前", "NULL", "nan", "x" * 5000])
def test_raw_ids_come_back_exactly(tmp_path: Path, ids: list[str]) -> None:
    clicks = [
        (f'"{ids[n % 2]} {n}"', f'"{item}"', n * 1000)
        for n in range(20)
        for item in ids
    ]
    log = write_log(tmp_path / "c.csv", clicks)
    data = prepared(log, "csv")
    assert data is not None
    assert data.vocabulary.ids == ids
    assert raw(data.test, data.vocabulary) == [ids, ids]
    assert [data.vocabulary.index(item) for item in ids] == list(range(1, len(ids) + 1))


@pytest.mark.real
@pytest.mark.parametrize(
    ("name", "figures"),
    [
        ("diginetica", [982_961, 719_470, 60_858, 186_670, 15_963, 43_097, 43_097, 70]),
        ("yoochoose1_64", [557_248, 369_859, 55_898, 116_167, 15_324, 17_745, 17_376, 146]),
    ],
)  # fmt: skip
def test_the_fields_table_to_the_digit(
    real_data: Path, tmp_path: Path, name: str, figures: list[int]
) -> None:
    train = real_data / f"{name}.train.txt.gz"
    test = real_data / f"{name}.test.txt.gz"
    data = posrec.prepare(train, "sessions", tmp_path / "out", test=test)
    counted = stats(data)
    samples = ("train_samples", "test_samples")
    sessions = ("train_sessions", "test_sessions")
    names = ("clicks", *samples, *sessions, "items", "train_items", "longest")
    assert [counted[name] for name in names] == figures


@pytest.mark.real
def test_the_raw_excerpt_as_the_field_prepares_it(
    real_data: Path, tmp_path: Path
) -> None:
    log = real_data / "raw" / "diginetica-sample.csv"
    views = []
    for line in log.read_text().splitlines()[1:]:
        session, _, item, timeframe, day = line.split(";")
        seconds = datetime.fromisoformat(f"{day}T00:00Z").timestamp()
        views.append((session, item, int(timeframe), round(seconds * 1000)))
    train, test = reference.paper(*reference.read_diginetica(views), days=7)
    assert len(views) == 12_391
    assert len(train) > 100
    assert len(test) > 10
    check(posrec.prepare(log, "diginetica", tmp_path / "out"), train, test)
    for fraction in (Fraction(1, 4), Fraction(1, 64)):
        out = tmp_path / f"{fraction.denominator}"
        data = posrec.prepare(log, "diginetica", out, fraction=fraction)
        samples = reference.samples(raw(data.train, data.vocabulary))
        assert samples == reference.recent(train, fraction)


def test_values_may_be_text_as_on_the_command_line() -> None:
    steps = {
        "min_support": "3",
        "gap": "30m",
        "fraction": "1/4",
        "drop_repeats": "true",
    }
    split = {"test_days": "0.5", "no_test": "no"}
    options = PrepareOptions.parse(**steps, **split, bad_lines_limit="0.05")
    assert options.log_options == LogOptions(bad_lines_limit=0.05)
    assert options.recipe_options == RecipeOptions(
        gap=1_800_000,
        test_days=0.5,
        fraction=Fraction(1, 4),
        min_support=3,
        drop_repeats=True,
    )
    with pytest.raises(InputError, match="min_support must be a whole number"):
        PrepareOptions.parse(min_support="few")
    with pytest.raises(TypeError, match="no option 'min_suport'"):
        PrepareOptions.parse(min_suport=3)
