"""The last step of preparing: items get their final numbers, and the clicks are written."""

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import polars as pl

from posrec.data.items import columns_for
from posrec.data.prepare import steps
from posrec.data.prepare.options import PrepareOptions
from posrec.data.prepare.parts import ClickParts, InMemory
from posrec.data.prepare.recipes import Split
from posrec.data.prepare.writer import DatasetWriter
from posrec.data.vocabulary import Vocabulary
from posrec.errors import InputError


def write_clicks(
    writer: DatasetWriter,
    split: Split,
    item_names: pl.Series,
    about_items: pl.DataFrame | None,
    options: PrepareOptions,
) -> tuple[Vocabulary, int | None, list[str]]:
    """Number the items in order of appearance, those of training first, and write the clicks.

    With `all_items` the other items of the items file come before those of the test part alone.
    Returns the vocabulary; with `all_items`, how many items can be recommended; and the ids that
    follow those of the vocabulary, of items in the full test part alone.
    """
    train, test, full_test = split
    if test is None:
        no_clicks = InMemory(train.parts[0].load().clear())
        test = ClickParts(train.workplace, train.items, [no_clicks])
    in_training = items_by_appearance(train)
    in_test = items_by_appearance(test)
    appearing = pl.concat([in_training, in_test]).unique(maintain_order=True)
    names = item_names.gather(appearing).cast(pl.String).to_list()
    ids = names
    recommendable = None
    if options.all_items and about_items is not None:
        listed = about_items["id"].to_list()
        recommended = dict.fromkeys([*names[: len(in_training)], *listed])
        recommendable = len(recommended)
        ids = list(dict.fromkeys([*recommended, *names]))
    columns = None if about_items is None else columns_for(ids, about_items)
    vocabulary = numbering = Vocabulary(ids, columns)
    parts = {"train": train, "test": test}
    new_items: list[str] = []
    if full_test is not None:
        parts["full_test"] = full_test
        in_full_test = items_by_appearance(full_test)
        appearing = pl.concat([appearing, in_full_test]).unique(maintain_order=True)
        names = item_names.gather(appearing).cast(pl.String).to_list()
        new_items = [name for name in names if name not in vocabulary]
        numbering = Vocabulary([*ids, *new_items])
    numbers = np.zeros(len(item_names), dtype=np.int32)
    numbers[appearing.to_numpy()] = numbering.indices(names)
    kinds = options.log_options.target_events
    for name, clicks in parts.items():
        for arrays in arrays_of(name, clicks, numbers, kinds):
            writer.append(arrays)
    return vocabulary, recommendable, new_items


def items_by_appearance(clicks: ClickParts) -> pl.Series:
    items: list[pl.Series] = clicks.collect(
        lambda frame: frame["item"].unique(maintain_order=True), "Numbering items"
    )
    return pl.concat(items).unique(maintain_order=True)


def arrays_of(
    split: str,
    clicks: ClickParts,
    numbers: npt.NDArray[np.int32],
    kinds: Sequence[str],
) -> Iterator[dict[str, npt.NDArray[Any]]]:
    """The arrays of train or test, a piece for each part of the clicks."""
    yield {f"{split}_offsets": np.zeros(1, dtype=np.int64)}
    before = 0
    targets = 0
    for frame in clicks.frames(f"Writing {split} sessions"):
        begins, lengths = steps.session_rows(frame)
        starts, _ = steps.first_and_last(frame["time"].to_numpy(), begins)
        arrays: dict[str, npt.NDArray[Any]] = {
            "items": numbers[frame["item"].to_numpy()],
            "offsets": before + np.cumsum(lengths, dtype=np.int64),
            "times": starts,
        }
        if "target" in frame.columns:
            is_target = frame["target"].to_numpy(writable=True)
            is_target[begins] = False  # nothing comes before a session's first click
            arrays["targets"] = before + np.flatnonzero(is_target)
            targets += len(arrays["targets"])
        if "weight" in frame.columns and split == "train":
            arrays["weights"] = frame["weight"].to_numpy()
        yield {f"{split}_{name}": array for name, array in arrays.items()}
        before += len(frame)
    if kinds and before and not targets:
        raise InputError(
            f"nothing is left to {split} on: no {split} session has {' or '.join(kinds)} "
            "after its first click (--target-events); use a longer log, or another --test-days"
        )
