"""Event weights and target events reach the dataset in the order of its clicks, through every step
of a recipe."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import example, given
from hypothesis import strategies as st

import posrec
from posrec.data.dataset import PreparedDataset, SessionDataset
from posrec.data.stats import stats
from posrec.errors import InputError
from posrec.evaluation.significance import session_of_samples
from posrec.fitting.fit import fit_run
from tests.data import strategies
from tests.helpers import Click, plain, small_shop, update_checksums, write_lines

WEIGHTS = {f"kind{number}": float(number + 2) for number in range(10)}


def kind_of(item: str) -> str:
    """The kind of event of every click on an item: then the weight of a click can be told from its
    item."""
    return f"kind{int(item[1:]) % 10}"


def prepared(
    path: Path, rows: list[tuple[Any, ...]], **options: Any
) -> PreparedDataset:
    lines = ["session,item,time,event", *(",".join(map(str, row)) for row in rows)]
    log = write_lines(path / "log.csv", lines)
    return posrec.prepare(
        log, "csv", path / "out", overwrite=True, time_unit="ms", **options
    )


def with_kinds(clicks: list[Click]) -> list[tuple[Any, ...]]:
    return [(*click, kind_of(click[1])) for click in clicks]


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
    {
        "min_support": 1,
        "drop_repeats": True,
        "max_length": 3,
        "gap": 1500,
        "fraction": "3/4",
    },
)
@example(list(reversed(small_shop())), {"min_support": 1, "no_test": True})
def test_every_click_keeps_its_weight_and_its_kind(
    tmp_path: Path, clicks: list[Click], options: dict[str, Any]
) -> None:
    rows = with_kinds(clicks)
    try:
        bare = prepared(tmp_path, rows, **options)
        data = prepared(
            tmp_path,
            rows,
            event_weights=WEIGHTS,
            target_events=["kind1", "kind2", "kind3"],
            **options,
        )
    except InputError as error:
        assert "nothing is left" in str(error)  # noqa: PT017
        return
    for part, all_samples in ((data.train, bare.train), (data.test, bare.test)):
        assert plain(part) == plain(all_samples)  # targets and weights move no click
        chosen = []
        for number in range(len(all_samples)):
            batch = posrec.collate(all_samples, torch.tensor([number]), 50)
            assert batch.targets is not None
            if kind_of(data.vocabulary.item(int(batch.targets[0]))) in (
                "kind1",
                "kind2",
                "kind3",
            ):
                chosen.append((batch.items[0].tolist(), int(batch.targets[0])))
        ours = posrec.collate(part, torch.arange(len(part)), 50)
        assert ours.targets is not None
        assert (
            list(zip(ours.items.tolist(), ours.targets.tolist(), strict=True)) == chosen
        )
    assert data.target_weights is not None
    expected = [
        WEIGHTS[kind_of(data.vocabulary.item(item))]
        for item in data.train.items.tolist()
    ]
    assert data.target_weights.tolist() == expected
    assert (data.target_weights.dtype, bare.target_weights) == (np.float32, None)
    _, target = data.train.locate(torch.arange(len(data.train)))
    assert {float(weight) for weight in data.target_weights[target.numpy()]} <= {
        3.0,
        4.0,
        5.0,
    }
    counts = data.manifest["counts"]
    assert (counts["train_samples"], counts["test_samples"]) == (
        len(data.train),
        len(data.test),
    )
    assert stats(data)["fingerprint"] == data.fingerprint != bare.fingerprint


SHOP: list[tuple[Any, ...]] = [
    ("a", "i1", 1, "view"), ("a", "i1", 2, "purchase"), ("a", "i2", 3, "view"), ("a", "i2", 4, "view"),
    ("b", "i2", 5, "purchase"), ("b", "i1", 6, "view"), ("b", "i1", 7, "view"),
    ("c", "i2", 8, "view"), ("c", "i1", 9, "view"), ("c", "i1", 10, "purchase"),
]  # fmt: skip


def test_by_hand(tmp_path: Path) -> None:
    data = prepared(
        tmp_path,
        SHOP,
        min_support=1,
        test_share=0.3,
        event_weights="purchase=5",
        target_events="purchase",
    )
    assert plain(data.train) == [[1, 1, 2, 2], [2, 1, 1]]
    # The purchase that begins session b has no click before it, so it is the target of no sample.
    assert (
        len(data.train),
        data.train.targets.tolist(),
        data.test.targets.tolist(),
    ) == (1, [1], [2])
    assert data.target_weights.tolist() == [1, 5, 1, 1, 5, 1, 1]
    assert data.manifest["log"]["events"] == {"view": 7, "purchase": 3}


def test_dropping_repeats_keeps_the_purchase(tmp_path: Path) -> None:
    """A view of an item and then its purchase are one click, and that click is a purchase."""
    options = {
        "min_support": 1,
        "test_share": 0.3,
        "event_weights": "purchase=5",
        "target_events": "purchase",
    }
    data = prepared(
        tmp_path, [("a", "i0", 0, "view"), *SHOP], drop_repeats=True, **options
    )
    assert plain(data.train) == [[1, 2, 3], [3, 2]]
    assert (data.target_weights.tolist(), data.train.targets.tolist()) == (
        [1, 5, 1, 5, 1],
        [1],
    )
    assert (plain(data.test), data.test.targets.tolist()) == ([[3, 2]], [1])


def test_no_target_in_a_part_is_an_error(tmp_path: Path) -> None:
    no_sale = [(*row[:3], "view") if row[0] == "c" else row for row in SHOP]
    with pytest.raises(InputError, match="nothing is left to test on"):
        prepared(
            tmp_path, no_sale, min_support=1, test_share=0.3, target_events="purchase"
        )
    assert (
        len(
            prepared(
                tmp_path, no_sale, min_support=1, no_test=True, target_events="purchase"
            ).train
        )
        == 1
    )


def test_parts_views_and_statistics_of_listed_targets(tmp_path: Path) -> None:
    items = torch.arange(1, 11, dtype=torch.int32)
    offsets = torch.tensor([0, 4, 6, 10])
    sessions = SessionDataset(
        items, offsets, torch.zeros(3, dtype=torch.int64), torch.tensor([2, 3, 8])
    )
    assert (len(sessions), sessions.clicks_before(torch.arange(3)).tolist()) == (
        3,
        [2, 3, 2],
    )
    assert session_of_samples(sessions).tolist() == [0, 0, 2]
    part = sessions.part(1, 3)
    assert (len(part), part.targets.tolist(), session_of_samples(part).tolist()) == (
        1,
        [8],
        [1],
    )
    assert (len(sessions.part(1, 2)), len(sessions.to("cpu"))) == (0, 3)
    batch = posrec.collate(part, torch.tensor([0]), 3)
    assert (batch.items.tolist(), batch.lengths.tolist(), batch.targets.tolist()) == (
        [[7, 8, 0]],
        [2],
        [9],
    )


def test_damaged_arrays_are_refused(tmp_path: Path) -> None:
    options = {
        "min_support": 1,
        "test_share": 0.3,
        "event_weights": "purchase=5",
        "target_events": "purchase",
    }
    for name, array in {
        "train_weights": np.ones(3, dtype=np.float32),
        "train_targets": np.array([99]),
        "test_targets": np.array([0]),
    }.items():
        folder = prepared(tmp_path, SHOP, **options).path
        np.save(folder / f"{name}.npy", array)
        update_checksums(folder)
        with pytest.raises(InputError, match="arrays don't fit together"):
            posrec.load(folder)
    np.save(folder / "train_weights.npy", np.ones(7))
    update_checksums(folder)
    with pytest.raises(
        InputError, match=r"train_weights\.npy holds float64, not float32"
    ):
        posrec.load(folder)


def test_training_and_evaluation_see_the_targets_only(tmp_path: Path) -> None:
    rows = [
        (*click, "purchase" if number % 3 == 2 else "view")
        for number, click in enumerate(small_shop(60))
    ]
    data = prepared(tmp_path, rows, target_events="purchase")
    assert (
        (len(data.train), len(data.test))
        == (data.train.sessions, data.test.sessions)
        == (54, 6)
    )
    settings = {"epochs": 1, "d": 8, "protocol": "early-stop"}
    _, evaluation = fit_run(
        data, "posrec", tmp_path / "run", settings, "cpu", export=False
    )
    assert (len(evaluation.ranks), evaluation.lengths.tolist()) == (6, [2] * 6)


def test_a_validation_part_without_targets_is_said_before_training(
    tmp_path: Path,
) -> None:
    rows = [
        (*click, "purchase" if number in (2, 179) else "view")
        for number, click in enumerate(small_shop(60))
    ]
    data = prepared(tmp_path, rows, target_events="purchase")
    with pytest.raises(InputError, match="too few training sessions to validate on"):
        fit_run(data, "posrec", tmp_path / "run", {"protocol": "refit"}, "cpu")
    assert not (tmp_path / "run").exists()
