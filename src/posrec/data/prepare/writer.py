"""The last step of preparing: items get their final numbers, and the dataset is written piece by piece.

It is written into a folder that gets its name when it is complete.
"""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any

import numpy as np
import numpy.typing as npt
import polars as pl

from posrec.data.arrays import ARRAYS, OPTIONAL_ARRAYS, fingerprint
from posrec.data.items import columns_for
from posrec.data.prepare import steps
from posrec.data.prepare.parts import ClickParts
from posrec.data.vocabulary import FILE as VOCABULARY_FILE
from posrec.data.vocabulary import Vocabulary
from posrec.errors import InputError
from posrec.io import DATASET, whole_folder, write_checksums, write_json, write_text

VALIDATION_SHARE = 0.1

Numbers = npt.NDArray[np.int32]


class ArrayFile:
    """An .npy file that grows. Its header, which says how long the array is, has the same size for every length."""

    def __init__(self, path: Path, dtype: npt.DTypeLike) -> None:
        self.dtype, self.length = np.dtype(dtype), 0
        self.file: IO[bytes] = path.open("wb")
        self.write_header()

    def write_header(self) -> None:
        header = {"descr": np.lib.format.dtype_to_descr(self.dtype), "fortran_order": False, "shape": (self.length,)}
        self.file.seek(0)
        np.lib.format.write_array_header_1_0(self.file, header)

    def append(self, array: npt.NDArray[Any]) -> None:
        self.file.write(np.ascontiguousarray(array.astype(self.dtype, copy=False)).data)
        self.length += len(array)

    def close(self) -> None:
        self.write_header()
        self.file.close()


class DatasetWriter:
    """Takes the arrays of ARRAYS and OPTIONAL_ARRAYS in pieces, and then what describes them."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.files: dict[str, ArrayFile] = {}
        self.train_items = 0

    def append(self, arrays: Mapping[str, npt.NDArray[Any]]) -> None:
        """Add a piece to each of these arrays."""
        for name, array in arrays.items():
            if name not in self.files:
                self.files[name] = ArrayFile(self.folder / f"{name}.npy", {**ARRAYS, **OPTIONAL_ARRAYS}[name])
            self.files[name].append(array)
        if len(items := arrays.get("train_items", np.empty(0))):
            self.train_items = max(self.train_items, int(items.max()))

    def finish(
        self, vocabulary: Vocabulary, manifest: Mapping[str, Any], recommendable_items: int | None = None
    ) -> dict[str, Any]:
        """Write the vocabulary, the manifest and the checksums; the manifest that was written is returned.

        `manifest` says where the dataset is from. The validation part, the counts and the fingerprint are added.
        """
        for file in self.files.values():
            file.close()
        lengths = {name: file.length for name, file in self.files.items()}
        sessions = {part: lengths[f"{part}_times"] for part in ("train", "test")}
        clicks = {part: lengths[f"{part}_items"] for part in ("train", "test")}
        samples = {part: lengths.get(f"{part}_targets", clicks[part] - sessions[part]) for part in ("train", "test")}
        validation_start = sessions["train"] - max(1, round(VALIDATION_SHARE * sessions["train"]))
        counts = {
            "clicks": clicks["train"] + clicks["test"],
            "train_samples": samples["train"],
            "test_samples": samples["test"],
            "train_sessions": sessions["train"],
            "test_sessions": sessions["test"],
            "items": len(vocabulary),
            "train_items": self.train_items,
        }
        if recommendable_items is not None:
            counts["recommendable_items"] = recommendable_items
        write_text(self.folder / VOCABULARY_FILE, vocabulary.to_json())
        added = {"validation_start": validation_start, "counts": counts}
        whole = {**manifest, **added, "fingerprint": fingerprint(self.folder, validation_start)}
        write_json(self.folder / DATASET, whole)
        write_checksums(self.folder, [*(f"{name}.npy" for name in self.files), VOCABULARY_FILE, DATASET])
        return whole


@contextmanager
def dataset_writer(folder: Path, overwrite: bool = False) -> Iterator[DatasetWriter]:
    """Write a prepared dataset, whole or not at all."""
    with whole_folder(folder, overwrite) as unfinished:
        writer = DatasetWriter(unfinished)
        try:
            yield writer
        finally:
            for file in writer.files.values():
                file.file.close()


def save_dataset(
    folder: Path,
    arrays: Mapping[str, npt.NDArray[Any]],
    vocabulary: Vocabulary,
    manifest: Mapping[str, Any],
    recommendable_items: int | None = None,
) -> None:
    """Write a prepared dataset from whole arrays: those of ARRAYS and any of OPTIONAL_ARRAYS."""
    with dataset_writer(folder) as writer:
        writer.append(arrays)
        writer.finish(vocabulary, manifest, recommendable_items)


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

    With `all_items` the other items of the items file come next, and those of the test part alone come last. Returns
    the vocabulary, and with `all_items` how many of its items can be recommended.
    """
    in_training = steps.distinct(np.concatenate(train.collect(items_by_appearance, "Numbering items")))
    in_test = np.concatenate(test.collect(items_by_appearance, "Numbering items")) if test is not None else in_training
    appearing = steps.distinct(np.concatenate([in_training, in_test]))
    names = item_names.gather(appearing).cast(pl.String).to_list()
    numbers = np.zeros(len(item_names), dtype=np.int32)
    numbers[appearing] = np.arange(1, len(appearing) + 1)
    recommendable = None
    if all_items and about_items is not None:
        trained, others = names[: len(in_training)], about_items["id"].to_list()
        listed = dict.fromkeys([*trained, *others])
        recommendable = len(listed)
        places = {item: place for place, item in enumerate(dict.fromkeys([*listed, *names]), start=1)}
        numbers[appearing] = [places[item] for item in names]
        names = list(places)
    for part, clicks in (("train", train), ("test", test)):
        for arrays in arrays_of(part, clicks, numbers, manifest["log"]["target_events"], like=train):
            writer.append(arrays)
    return Vocabulary(names, None if about_items is None else columns_for(names, about_items)), recommendable


def items_by_appearance(clicks: pl.DataFrame) -> npt.NDArray[np.uint32]:
    """The items of a part, each once."""
    return steps.distinct(clicks["item"].to_numpy())


def arrays_of(
    part: str, clicks: ClickParts | None, numbers: Numbers, kinds: list[str], like: ClickParts
) -> Iterator[dict[str, npt.NDArray[Any]]]:
    """The arrays of training or test, a piece for each part of the clicks; without clicks, empty arrays like those of
    others."""
    yield {f"{part}_offsets": np.zeros(1, dtype=np.int64)}
    before, targets = 0, 0
    for given in (clicks or like).frames(f"Writing {part} sessions"):
        frame = given if clicks is not None else given.clear()
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
        if clicks is None:
            return
    if kinds and before and not targets:
        raise InputError(
            f"nothing is left to {part} on: no {part} session has {' or '.join(kinds)} after its first click "
            "(--target-events); use a longer log, or another --test-days"
        )


def target_clicks(clicks: pl.DataFrame) -> npt.NDArray[np.int64]:
    """[samples] the clicks that are targets: of the kinds that were asked for, and not the first of their session."""
    follows = (pl.col("session") == pl.col("session").shift()).fill_null(False)
    return clicks.select(pl.col("target") & follows).to_series().arg_true().to_numpy().astype(np.int64)
