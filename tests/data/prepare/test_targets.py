"""Event weights and target events reach the dataset in the order of its clicks."""

from collections.abc import Container
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import example, given, strategies as st

import posrec
from posrec.data.dataset import PreparedDataset, SessionDataset
from posrec.data.stats import stats
from posrec.errors import InputError
from posrec.evaluation.significance import session_of_samples
from posrec.fitting.fit import fit_run
from tests.data import strategies
from tests.helpers import Click, plain, small_shop, update_checksums, write_lines

WEIGHTS = {f"kind{number}": float(number + 2) for number in range(10)}
TARGETS = ["kind1", "kind2", "kind3"]
BY_HAND = {
    "min_support": 1,
    "test_share": 0.3,
    "event_weights": "purchase=5",
    "target_events": "purchase",
}


def kind_of(item: str) -> str:
    """The kind of event of every click on an item, from which its weight follows."""
    return f"kind{int(item[1:]) % 10}"


def prepared(
    path: Path, rows: list[tuple[Any, ...]], **options: Any
) -> PreparedDataset:
    lines = ["session,item,time,event", *(",".join(map(str, row)) for row in rows)]
    log = write_lines(path / "log.csv", lines)
    return posrec.prepare(
        log, "csv", path / "out", overwrite=True, time_unit="ms", **options
    )


def samples_of(sessions: SessionDataset) -> list[tuple[list[int], int]]:
    """The items and the target of every sample."""
    batch = posrec.collate(sessions, torch.arange(len(sessions)), 50)
    assert batch.targets is not None
    items = [row[row > 0].tolist() for row in batch.items]
    return list(zip(items, batch.targets.tolist(), strict=True))


@given(
    strategies.clicks.filter(len),
    st.fixed_dictionaries(
        {"min_support": st.integers(1, 3)},
        optional={
            "gap": st.integers(1, 30 * strategies.HOUR),
            "drop_repeats": st.booleans(),
            "max_length": st.integers(3, 5),
            "no_test": st.just(True),
            "fraction": st.sampled_from(["1/2", "3/4"]),
            "recipe": st.just("clean"),
        },
    ),
)
@example(small_shop(), {"min_support": 1})
@example(
    small_shop(),
    {"min_support": 1, "drop_repeats": True, "max_length": 3, "gap": 1500},
)
@example(list(reversed(small_shop())), {"min_support": 1, "no_test": True})
def test_every_click_keeps_its_weight_and_its_kind(
    tmp_path: Path, clicks: list[Click], options: dict[str, Any]
) -> None:
    rows = [(*click, kind_of(click[1])) for click in clicks]
    try:
        bare = prepared(tmp_path, rows, **options)
        data = prepared(
            tmp_path, rows, event_weights=WEIGHTS, target_events=TARGETS, **options
        )
    except InputError as error:
        assert "nothing is left" in str(error)  # noqa: PT017
        return
    kinds = [kind_of(item) for item in data.vocabulary.ids]
    for split, all_samples in ((data.train, bare.train), (data.test, bare.test)):
        assert plain(split) == plain(all_samples)  # targets and weights move no click
        chosen = [
            (items, target)
            for items, target in samples_of(all_samples)
            if kinds[target - 1] in TARGETS
        ]
        assert samples_of(split) == chosen
    assert data.target_weights is not None
    expected = [WEIGHTS[kinds[item - 1]] for item in data.train.items.tolist()]
    assert data.target_weights.tolist() == expected
    assert data.target_weights.dtype == np.float32
    assert bare.target_weights is None
    _, target = data.train.locate(torch.arange(len(data.train)))
    assert set(data.target_weights[target.numpy()].tolist()) <= {3.0, 4.0, 5.0}
    counts = data.manifest["counts"]
    assert counts["train_samples"] == len(data.train)
    assert counts["test_samples"] == len(data.test)
    assert stats(data)["fingerprint"] == data.fingerprint != bare.fingerprint


SHOP: list[tuple[Any, ...]] = [
    ("a", "i1", 1, "view"), ("a", "i1", 2, "purchase"), ("a", "i2", 3, "view"),
    ("a", "i2", 4, "view"),
    ("b", "i2", 5, "purchase"), ("b", "i1", 6, "view"), ("b", "i1", 7, "view"),
    ("c", "i2", 8, "view"), ("c", "i1", 9, "view"), ("c", "i1", 10, "purchase"),
]  # fmt: skip


def test_by_hand(tmp_path: Path) -> None:
    data = prepared(tmp_path, SHOP, **BY_HAND)
    assert plain(data.train) == [[1, 1, 2, 2], [2, 1, 1]]
    # The purchase that begins session b has no click before it, so it is the target of no sample.
    assert len(data.train) == 1
    assert data.train.targets.tolist() == [1]
    assert data.test.targets.tolist() == [2]
    assert data.target_weights.tolist() == [1, 5, 1, 1, 5, 1, 1]
    assert data.manifest["log"]["events"] == {"view": 7, "purchase": 3}


def test_dropping_repeats_keeps_the_purchase(tmp_path: Path) -> None:
    """A view of an item and then its purchase are one click, and that click is a purchase."""
    clicks = [("a", "i0", 0, "view"), *SHOP]
    data = prepared(tmp_path, clicks, drop_repeats=True, **BY_HAND)
    assert plain(data.train) == [[1, 2, 3], [3, 2]]
    assert data.target_weights.tolist() == [1, 5, 1, 5, 1]
    assert data.train.targets.tolist() == [1]
    assert (plain(data.test), data.test.targets.tolist()) == ([[3, 2]], [1])


def test_no_target_in_a_part_is_an_error(tmp_path: Path) -> None:
    no_sale = [(*row[:3], "view") if row[0] == "c" else row for row in SHOP]
    with pytest.raises(InputError, match="nothing is left to test on"):
        prepared(tmp_path, no_sale, **BY_HAND)
    options = {"min_support": 1, "target_events": "purchase", "no_test": True}
    assert len(prepared(tmp_path, no_sale, **options).train) == 1


def test_parts_views_and_statistics_of_listed_targets(tmp_path: Path) -> None:
    items = torch.arange(1, 11, dtype=torch.int32)
    offsets = torch.tensor([0, 4, 6, 10])
    times = torch.zeros(3, dtype=torch.int64)
    sessions = SessionDataset(items, offsets, times, torch.tensor([2, 3, 8]))
    assert len(sessions) == len(sessions.to("cpu")) == 3
    assert sessions.clicks_before(torch.arange(3)).tolist() == [2, 3, 2]
    assert session_of_samples(sessions).tolist() == [0, 0, 2]
    last_two = sessions.part(1, 3)
    assert (len(last_two), last_two.targets.tolist()) == (1, [8])
    assert session_of_samples(last_two).tolist() == [1]
    assert len(sessions.part(1, 2)) == 0
    batch = posrec.collate(last_two, torch.tensor([0]), 3)
    assert (batch.items.tolist(), batch.lengths.tolist()) == ([[7, 8, 0]], [2])
    assert batch.targets.tolist() == [9]


def test_damaged_arrays_are_refused(tmp_path: Path) -> None:
    for name, array, message in (
        ("train_weights", np.ones(3, dtype=np.float32), "don't fit together"),
        ("train_targets", np.array([99]), "don't fit together"),
        ("test_targets", np.array([0]), "don't fit together"),
        ("train_weights", np.ones(7), "holds float64, not float32"),
    ):
        folder = prepared(tmp_path, SHOP, **BY_HAND).path
        np.save(folder / f"{name}.npy", array)
        update_checksums(folder)
        with pytest.raises(InputError, match=message):
            posrec.load(folder)


def with_purchases(folder: Path, numbers: Container[int]) -> PreparedDataset:
    """The small shop, where the clicks of these numbers are purchases, and so targets."""
    rows = []
    for number, click in enumerate(small_shop(60)):
        rows.append((*click, "purchase" if number in numbers else "view"))
    return prepared(folder, rows, target_events="purchase")


def test_training_and_evaluation_see_the_targets_only(tmp_path: Path) -> None:
    data = with_purchases(tmp_path, range(2, 180, 3))  # the last click of each session
    assert (len(data.train), data.train.sessions) == (54, 54)
    assert (len(data.test), data.test.sessions) == (6, 6)
    settings = {"epochs": 1, "d": 8, "protocol": "early-stop"}
    run = tmp_path / "run"
    _, evaluation = fit_run(data, "posrec", run, settings, "cpu", export=False)
    assert (len(evaluation.ranks), evaluation.lengths.tolist()) == (6, [2] * 6)


def test_a_validation_part_without_targets_is_refused(tmp_path: Path) -> None:
    data = with_purchases(tmp_path, (2, 179))
    with pytest.raises(InputError, match="too few training sessions to validate on"):
        fit_run(data, "posrec", tmp_path / "run", {"protocol": "refit"}, "cpu")
    assert not (tmp_path / "run").exists()
