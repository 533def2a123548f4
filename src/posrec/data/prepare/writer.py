"""DatasetWriter: a dataset written piece by piece. It needs no polars, as trainings use it too."""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any

import numpy as np
import numpy.typing as npt

from posrec.data.arrays import ALL_ARRAYS, NEW_ITEMS, fingerprint
from posrec.data.vocabulary import FILE as VOCABULARY_FILE, Vocabulary
from posrec.io import DATASET, whole_folder, write_checksums, write_json, write_text

VALIDATION_SHARE = 0.1


def first_of_validation(train_sessions: int) -> int:
    """The number of the first session of the validation part."""
    return train_sessions - max(1, round(VALIDATION_SHARE * train_sessions))


class ArrayFile:
    """An .npy file that grows. Its header has the same size for every length."""

    def __init__(self, path: Path, dtype: npt.DTypeLike) -> None:
        self.dtype = np.dtype(dtype)
        self.length = 0
        self.file: IO[bytes] = path.open("wb")
        self.write_header()

    def write_header(self) -> None:
        header = {
            "descr": np.lib.format.dtype_to_descr(self.dtype),
            "fortran_order": False,
            "shape": (self.length,),
        }
        self.file.seek(0)
        np.lib.format.write_array_header_1_0(self.file, header)

    def append(self, array: npt.NDArray[Any]) -> None:
        self.file.write(np.ascontiguousarray(array.astype(self.dtype, copy=False)).data)
        self.length += len(array)

    def close(self) -> None:
        self.write_header()
        self.file.close()


class DatasetWriter:
    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.files: dict[str, ArrayFile] = {}
        self.train_items = 0
        self.new_item_clicks = {"test": 0, "full_test": 0}

    def append(self, arrays: Mapping[str, npt.NDArray[Any]]) -> None:
        for name, array in arrays.items():
            if name not in self.files:
                path = self.folder / f"{name}.npy"
                self.files[name] = ArrayFile(path, ALL_ARRAYS[name])
            self.files[name].append(array)
        items = arrays.get("train_items", np.empty(0))
        self.train_items = max(self.train_items, int(items.max(initial=0)))
        for split in self.new_item_clicks:
            items = arrays.get(f"{split}_items", np.empty(0))
            self.new_item_clicks[split] += int((items > self.train_items).sum())

    def finish(
        self,
        vocabulary: Vocabulary,
        manifest: Mapping[str, Any],
        recommendable_items: int | None = None,
        new_items: Sequence[str] = (),
    ) -> dict[str, Any]:
        """`new_items` are the ids that follow those of the vocabulary."""
        for file in self.files.values():
            file.close()
        lengths = {name: file.length for name, file in self.files.items()}
        train_clicks = lengths["train_items"]
        test_clicks = lengths["test_items"]
        train_sessions = lengths["train_times"]
        test_sessions = lengths["test_times"]
        train_samples = lengths.get("train_targets", train_clicks - train_sessions)
        test_samples = lengths.get("test_targets", test_clicks - test_sessions)
        validation_start = first_of_validation(train_sessions)
        counts = {
            "clicks": train_clicks + test_clicks,
            "train_samples": train_samples,
            "test_samples": test_samples,
            "train_sessions": train_sessions,
            "test_sessions": test_sessions,
            "items": len(vocabulary),
            "train_items": self.train_items,
            "new_item_clicks": max(self.new_item_clicks.values()),
        }
        if recommendable_items is not None:
            counts["recommendable_items"] = recommendable_items
        files = [f"{name}.npy" for name in self.files]
        write_text(self.folder / VOCABULARY_FILE, vocabulary.to_json())
        if new_items:
            write_json(self.folder / NEW_ITEMS, new_items)
            files.append(NEW_ITEMS)
        finished = {
            **manifest,
            "validation_start": validation_start,
            "counts": counts,
            "fingerprint": fingerprint(self.folder, validation_start),
        }
        write_json(self.folder / DATASET, finished)
        write_checksums(self.folder, [*files, VOCABULARY_FILE, DATASET])
        return finished


@contextmanager
def dataset_writer(folder: Path, overwrite: bool = False) -> Iterator[DatasetWriter]:
    with whole_folder(folder, overwrite) as unfinished:
        writer = DatasetWriter(unfinished)
        try:
            yield writer
        finally:
            for file in writer.files.values():
                file.file.close()
