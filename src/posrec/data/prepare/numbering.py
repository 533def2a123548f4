"""The last step of preparing: items get their final numbers, and the clicks are written."""

from collections.abc import Iterator
from typing import Any

import numpy as np
import numpy.typing as npt
import polars as pl

from posrec.data.items import columns_for
from posrec.data.prepare import steps
from posrec.data.prepare.parts import ClickParts, InMemory
from posrec.data.prepare.writer import DatasetWriter
from posrec.data.vocabulary import Vocabulary
from posrec.errors import InputError

Numbers = npt.NDArray[np.int32]


def write_clicks(
    writer: DatasetWriter,
    train: ClickParts,
    test: ClickParts | None,
    item_names: pl.Series,
    about_items: pl.DataFrame | None,
    manifest: dict[str, Any],
    all_items: bool = False,
) -> tuple[Vocabulary, int | None]:
    """Number the items in order of appearance, those of training first, and write the clicks.

    With `all_items` the other items of the items file come next, and those of the test part alone
    last. Returns the vocabulary and, with `all_items`, how many items can be recommended.
    """
    if test is None:
        test = ClickParts(
            train.place, train.items, [InMemory(train.parts[0].load().clear())]
        )
    in_training = items_by_appearance(train)
    appearing = pl.concat([in_training, items_by_appearance(test)]).unique(
        maintain_order=True
    )
    names = item_names.gather(appearing).cast(pl.String).to_list()
    numbers = np.zeros(len(item_names), dtype=np.int32)
    numbers[appearing.to_numpy()] = np.arange(1, len(appearing) + 1)
    recommendable = None
    if all_items and about_items is not None:
        trained = names[: len(in_training)]
        others = about_items["id"].to_list()
        listed = dict.fromkeys([*trained, *others])
        recommendable = len(listed)
        places = {
            item: place
            for place, item in enumerate(dict.fromkeys([*listed, *names]), start=1)
        }
        numbers[appearing.to_numpy()] = [places[item] for item in names]
        names = list(places)
    for part, clicks in (("train", train), ("test", test)):
        for arrays in arrays_of(
            part, clicks, numbers, manifest["log"]["target_events"]
        ):
            writer.append(arrays)
    return Vocabulary(
        names, None if about_items is None else columns_for(names, about_items)
    ), recommendable


def items_by_appearance(clicks: ClickParts) -> pl.Series:
    """The items of the clicks, each once."""
    found: list[pl.Series] = clicks.collect(
        lambda part: part["item"].unique(maintain_order=True), "Numbering items"
    )
    return pl.concat(found).unique(maintain_order=True)


def arrays_of(
    part: str, clicks: ClickParts, numbers: Numbers, kinds: list[str]
) -> Iterator[dict[str, npt.NDArray[Any]]]:
    """The arrays of training or test, a piece for each part of the clicks."""
    yield {f"{part}_offsets": np.zeros(1, dtype=np.int64)}
    before = 0
    targets = 0
    for frame in clicks.frames(f"Writing {part} sessions"):
        starts, _, lengths = steps.session_keys(frame, by_date=False)
        arrays: dict[str, npt.NDArray[Any]] = {
            "items": numbers[frame["item"].to_numpy()],
            "offsets": before + np.cumsum(lengths, dtype=np.int64),
            "times": starts,
        }
        if "target" in frame.columns:
            arrays["targets"] = before + target_clicks(frame)
            targets += len(arrays["targets"])
        if "weight" in frame.columns and part == "train":
            arrays["weights"] = frame["weight"].to_numpy()
        yield {f"{part}_{name}": array for name, array in arrays.items()}
        before += len(frame)
    if kinds and before and not targets:
        raise InputError(
            f"nothing is left to {part} on: no {part} session has {' or '.join(kinds)} after its first click "
            "(--target-events); use a longer log, or another --test-days"
        )


def target_clicks(clicks: pl.DataFrame) -> npt.NDArray[np.int64]:
    """[samples] the clicks of the kinds that were asked for that are not the first of a session."""
    follows = (pl.col("session") == pl.col("session").shift()).fill_null(False)
    return (
        clicks.select(pl.col("target") & follows)
        .to_series()
        .arg_true()
        .to_numpy()
        .astype(np.int64)
    )
