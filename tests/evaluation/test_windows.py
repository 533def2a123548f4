"""Windows in time: parts of a test part by hand, and a rolling origin held against datasets of the
earlier sessions alone."""

import json
import random
from pathlib import Path
from statistics import stdev

import pytest
import torch
from hypothesis import given, strategies as st
from scipy.stats import binomtest

import posrec
from posrec.data.dataset import PreparedDataset, SessionDataset
from posrec.errors import InputError
from posrec.evaluation.significance import Comparison, PairedTest, sign_test
from posrec.evaluation.windows import (
    Window,
    Windows,
    metrics_by_part,
    parts_of_test,
    rolling_windows,
)
from posrec.progress import SilentProgress
from posrec.testing import write_dataset
from tests.data.reading import prepared
from tests.helpers import (
    command,
    fitted,
    listed,
    plain,
    raw,
    refused,
    small_shop,
    write_log,
)
from tests.nn.test_batch import dataset, sessions_strategy

SILENT = SilentProgress()
QUICK = {"d": 8, "epochs": 1, "batch_size": 16, "learning_rate": 0.02}
# The second block of two sessions has the new items e and f.
TRAIN = ["ab", "bca", "cb", "ab", "eab", "bfc", "fac", "cd"]
TEST = ["abc", "dfe"]


@pytest.fixture
def data(tmp_path: Path) -> PreparedDataset:
    return write_dataset(
        tmp_path / "data", list(map(list, TRAIN)), list(map(list, TEST))
    )


def words(data: PreparedDataset, sessions: SessionDataset) -> list[str]:
    return ["".join(session) for session in raw(sessions, data.vocabulary)]


def test_a_rolling_origin_by_hand(data: PreparedDataset) -> None:
    first, second, last = rolling_windows(data, 3)
    assert last is data
    assert words(data, first.train) == TRAIN[:4]
    assert words(data, first.full_test) == TRAIN[4:6]
    # Nothing before has e and f; without d, too, cd would be left with one click.
    assert words(data, first.test) == ["ab", "bc"]
    assert words(data, second.train) == TRAIN[:6]
    assert words(data, second.test) == ["fac"]
    assert (first.train_items, second.train_items) == (3, 5)
    assert first.train_clicks.tolist()[1:4] == [3, 4, 2]
    assert words(data, second.fitting) == TRAIN[:5]
    assert len({window.fingerprint for window in (first, second, last)}) == 3


def test_windows_that_do_not_fit(data: PreparedDataset, tmp_path: Path) -> None:
    """The earliest trains on as many sessions as it tests on, or on more."""
    assert rolling_windows(data, 4)[0].train.sessions == 2
    for count in (1, 5):
        with pytest.raises(InputError, match=r"8 training and 2 test .* choose 2 to 4"):
            rolling_windows(data, count)
    short = write_dataset(tmp_path / "short", [["a", "b"]] * 3, [["a", "b"]] * 2)
    with pytest.raises(InputError, match="prepare a smaller test part"):
        rolling_windows(short, 2)
    strange = write_dataset(tmp_path / "new", [["a", "b"], ["c", "d"]], [["a", "b"]])
    with pytest.raises(InputError, match=r"window 1 of 2 .* has no samples"):
        rolling_windows(strange, 2)


@given(sessions_strategy, st.data())
def test_cut_sessions_own_their_items(
    sessions: list[list[int]], draw: st.DataObject
) -> None:
    start = draw.draw(st.integers(0, len(sessions)))
    end = draw.draw(st.integers(start, len(sessions)))
    every = dataset(sessions)
    chosen = draw.draw(st.sets(st.integers(0, max(0, len(every) - 1))))
    _, target = every.locate(torch.tensor(sorted(chosen & {*range(len(every))})).long())
    listed = SessionDataset(every.items, every.offsets, every.times, target)
    part = listed.part(start, end)
    cut = listed.cut(start, end)
    assert plain(cut) == sessions[start:end]
    assert cut.items.tolist() == [item for session in plain(part) for item in session]
    assert cut.times.tolist() == list(range(start, end))
    assert cut.targets is not None
    assert part.targets is not None
    assert cut.items[cut.targets].tolist() == every.items[part.targets].tolist()


def test_a_window_is_the_dataset_of_its_day(tmp_path: Path) -> None:
    """As if the log had ended there: the same figures, trained and counted."""
    draw = random.Random(3)
    sessions = [
        [f"i{draw.randrange(4 + number // 8)}" for _ in range(draw.randrange(2, 6))]
        for number in range(120)
    ]
    whole = write_dataset(tmp_path / "whole", sessions[:90], sessions[90:])
    earlier = write_dataset(tmp_path / "earlier", sessions[:60], sessions[60:90])
    known = {item for session in sessions[:60] for item in session}
    kept = [[item for item in session if item in known] for session in sessions[60:90]]
    cleaned = write_dataset(
        tmp_path / "cleaned", sessions[:60], [part for part in kept if len(part) > 1]
    )
    models = ["stan", "posrec"]
    settings = {**QUICK, "protocol": "refit", "patience": 1}
    of_windows = posrec.compare(
        whole, models, None, settings, "cpu", SILENT, windows=2
    ).windows
    assert of_windows is not None
    alone = posrec.compare(cleaned, models, None, settings, "cpu", SILENT)
    window = of_windows.each[0]
    for model in models:
        assert window.metrics[model] == pytest.approx(alone.metrics[model])
    assert window.samples == len(cleaned.test)
    assert (window.train_sessions, window.sessions) == (60, cleaned.test.sessions)
    # All clicks of the window are its full test part.
    first = rolling_windows(whole, 2)[0]
    assert plain(first.train) == plain(earlier.train)
    assert plain(first.full_test) == plain(earlier.test)
    last = posrec.compare(whole, models, None, settings, "cpu", SILENT)
    for model in models:
        assert of_windows.each[1].metrics[model] == pytest.approx(last.metrics[model])


def test_weights_and_targets_of_a_window(tmp_path: Path) -> None:
    log = [
        (*click, "buy" if n % 3 == 2 else "view")
        for n, click in enumerate(small_shop())
    ]
    header = "session_id,item_id,timestamp,event"
    path = tmp_path / "clicks.csv"
    path.write_text("\n".join([header, *(",".join(map(str, row)) for row in log)]))
    data = prepared(
        path,
        tmp_path / "shop",
        min_support=1,
        event_weights="buy=4",
        target_events="buy",
        events="view,buy",
    )
    window = rolling_windows(data, 3)[0]
    assert window.target_weights is not None
    assert window.target_weights.tolist() == [1, 1, 4] * window.train.sessions
    assert len(window.train) == window.train.sessions
    assert len(window.test) == window.test.sessions == data.test.sessions


def pair(metric: str, difference: float, p: float) -> PairedTest:
    return PairedTest("a", "b", metric, Comparison(difference, 0, 0, p, 0), p)


def test_means_spreads_and_leads_by_hand() -> None:
    figures = [(0.50, 0.40, 0.01), (0.60, 0.61, 0.30), (0.55, 0.40, 0.02)]
    each = [
        Window(None, 9, 3, 4, {"a": {"m": a}, "b": {"m": b}}, [pair("m", a - b, p)])
        for a, b, p in figures
    ]
    windows = Windows.of(each)
    assert windows.mean["a"]["m"] == pytest.approx(0.55)
    assert windows.spread["a"]["m"] == pytest.approx(0.05)
    [lead] = windows.leads
    assert (lead.best, lead.other, lead.metric) == ("a", "b", "m")
    assert lead.differences == pytest.approx([0.1, -0.01, 0.15])
    assert lead.shown == [True, False, True]
    assert lead.ahead == 2
    assert lead.p == 1  # two of three
    assert windows.conclusion() == (
        "By m, a has the best mean over 3 windows; it is ahead of b in 2. With 3 windows, p of "
        "the sign test is at least 0.25, so it can't show a difference; it takes 6 windows."
    )
    assert Windows.of(each * 2).conclusion().endswith("is at least 0.0312.")


@pytest.mark.parametrize("windows", range(1, 12))
def test_the_sign_test_is_scipys(windows: int) -> None:
    for ahead in range(windows + 1):
        expected = binomtest(ahead, windows).pvalue
        assert sign_test(ahead, windows - ahead) == pytest.approx(expected)
    assert sign_test(0, 0) == 1


def test_parts_of_a_test_part_by_hand(tmp_path: Path) -> None:
    """Five sessions in two windows: two with three samples, three with four."""
    test = [["a", "b"], ["a", "b", "a"], ["a", "b"], ["b", "a", "b"], ["b", "a"]]
    data = write_dataset(tmp_path / "data", [["a", "b"]], test)
    ranks = torch.tensor([1, 2, 30, 1, 1, 1, 4])
    found = metrics_by_part(ranks, parts_of_test(data, 2), data)
    first, second = found["each"]
    assert (first["sessions"], first["samples"]) == (2, 3)
    assert (second["sessions"], second["samples"]) == (3, 4)
    assert first["begins"] == "1970-01-01T00:00"
    mrr = [(1 + 1 / 2) / 3, (3 + 1 / 4) / 4]
    assert [part["mrr@20"] for part in found["each"]] == pytest.approx(mrr)
    assert found["mean"]["mrr@20"] == pytest.approx(sum(mrr) / 2)
    assert found["spread"]["mrr@20"] == pytest.approx(stdev(mrr))
    with pytest.raises(InputError, match=r"window 1 of 6 .* 5 test sessions"):
        parts_of_test(data, 6)


def test_windows_of_a_run(tmp_path: Path) -> None:
    """The command; nothing of it is written into the run."""
    log = write_log(tmp_path / "clicks.csv", small_shop(60))
    data = prepared(log, tmp_path / "shop", min_support=1, test_share=0.2)
    run, evaluation = fitted(data, "itemknn", tmp_path / "run")
    before = (run.path / "metrics.json").read_bytes()
    done = command("evaluate", run.path, data.path, "--windows", 3, "--json")
    windows = json.loads(done.out)["windows"]
    assert [part["sessions"] for part in windows["each"]] == [4, 4, 4]
    # An hour a session, from 2023-11-14T22:13:20 on.
    begins = ["2023-11-16T22:13", "2023-11-17T02:13", "2023-11-17T06:13"]
    assert [part["begins"] for part in windows["each"]] == begins
    expected = {name: evaluation.metrics[name] for name in windows["mean"]}
    assert windows["mean"] == pytest.approx(expected)
    printed = command("evaluate", run.path, data.path, "--windows", 3).out
    assert [f"window 1, {begins[0]}" in printed, "spread " in printed] == [True, True]
    assert (run.path / "metrics.json").read_bytes() == before
    error = refused("evaluate", run.path, data.path, "--windows", 13)
    assert "has 12 test sessions" in error


def test_a_comparison_in_windows(data: PreparedDataset, tmp_path: Path) -> None:
    out = tmp_path / "out"
    options = ("--models", "pop,itemknn", "--windows", 3, "--out", out)
    done = command("compare", data.path, *options)
    assert done.code == 0, done.err
    assert "window 1 of 3, after 4 training sessions:" in done.err
    assert "can't show a difference" in done.out
    assert listed(out) == ["comparison.json", "itemknn", "pop", "report.html"]
    windows = json.loads((out / "comparison.json").read_text())["windows"]
    assert [window["samples"] for window in windows["each"]] == [2, 2, 4]
    report = (out / "report.html").read_text()
    assert "Over 3 windows in time" in report
    assert "--windows 3" in report
    error = refused(
        "compare", data.path, "--models", "pop", "--runs", out / "pop", "--windows", 3
    )
    assert "leave them out" in error


def test_figures_by_day(tmp_path: Path) -> None:
    """A session counts on the day on which it begins; lines of items have no days."""
    log = write_log(tmp_path / "clicks.csv", small_shop(100))
    data = prepared(log, tmp_path / "shop", min_support=1, test_share=0.3)
    run, evaluation = fitted(data, "pop", tmp_path / "run")
    # An hour a session, the first of the test part at 2023-11-17T20:13:20.
    samples = {"2023-11-17": 8, "2023-11-18": 48, "2023-11-19": 4}
    counts = {day: part["samples"] for day, part in evaluation.by_day.items()}
    assert counts == samples
    ranks_of_days = evaluation.ranks.split([*samples.values()])
    for ranks, part in zip(ranks_of_days, evaluation.by_day.values(), strict=True):
        assert part["mrr@20"] == pytest.approx(float((1 / ranks).mean()))
    stored = json.loads((run.path / "metrics.json").read_text())
    assert stored["by_day"] == evaluation.by_day
    compared = posrec.compare(data, ["itemknn"], runs=[run.path], progress=SILENT)
    assert compared.by_day["run"] == evaluation.by_day
    lines = tmp_path / "train.txt"
    lines.write_text("a b c\nb c\na c\n" * 5)
    timeless = posrec.prepare(
        lines, "sessions", tmp_path / "timeless", test=lines, progress=SILENT
    )
    out = tmp_path / "out"
    found = posrec.compare(timeless, ["pop", "itemknn"], out, progress=SILENT)
    assert found.by_day == {"pop": {}, "itemknn": {}}
    assert "By day" not in (out / "report.html").read_text()
