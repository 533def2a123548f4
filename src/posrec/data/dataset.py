"""SessionDataset: sessions as one flat array with offsets; and the prepared dataset, a folder of
them.

A sample is a pair (session, end): the clicks before `end` and the click at it. Samples are never
copied: session s of n clicks gives the ends 1..n-1. It has `offsets[s] - s` samples before it, and
its sample i has its target at click `i + s + 1`. If only some kinds of events are targets, they are
listed.
"""

import hashlib
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from posrec.data.arrays import (
    ARRAYS,
    SCHEMA,
    WITHOUT_TIMES,
    optional_arrays,
    read_array,
)
from posrec.data.vocabulary import FILE as VOCABULARY_FILE
from posrec.data.vocabulary import Vocabulary
from posrec.errors import InputError, plural
from posrec.io import DATASET, FolderReader, read_json, require_folder
from posrec.nn.batch import PADDING, SessionBatch
from posrec.nn.first_read import first_read

MANIFEST = DATASET
CEILING = "ceiling.json"


@dataclass(frozen=True, repr=False)
class SessionDataset:
    """`items [clicks]` int32, `offsets [sessions + 1]` int64, `times [sessions]` int64: their
    beginnings.

    `targets [samples]` int64, if given, lists the index in `items` of each target, in increasing
    order; without it, every click but the first of a session is a target.
    """

    items: Tensor
    offsets: Tensor
    times: Tensor
    targets: Tensor | None = None
    sample_offsets: Tensor = field(
        init=False, repr=False
    )  # [sessions + 1] samples before each session

    def __post_init__(self) -> None:
        sessions = torch.arange(len(self.offsets), device=self.offsets.device)
        object.__setattr__(
            self, "sample_offsets", self.offsets - self.offsets[0] - sessions
        )

    def __len__(self) -> int:
        """The number of samples."""
        return (
            int(self.sample_offsets[-1]) if self.targets is None else len(self.targets)
        )

    def __repr__(self) -> str:
        return f"SessionDataset({plural(self.sessions, 'session')}, {plural(len(self), 'sample')})"

    @property
    def sessions(self) -> int:
        return len(self.offsets) - 1

    @property
    def clicks(self) -> int:
        return int(self.offsets[-1] - self.offsets[0])

    @cached_property
    def lengths(self) -> Tensor:
        return self.offsets.diff()

    @property
    def longest(self) -> int:
        return int(self.lengths.max()) if self.sessions else 0

    def session(self, number: int) -> Tensor:
        """The clicks of one session, oldest first; a view."""
        return self.items[self.offsets[number] : self.offsets[number + 1]]

    def locate(self, sample_ids: Tensor) -> tuple[Tensor, Tensor]:
        """The session of each sample, [B], and the index in `items` of its target, [B].

        >>> samples = SessionDataset(torch.tensor([1, 2, 3, 4, 5]), torch.tensor([0, 3, 5]), torch.tensor([0, 0]))
        >>> samples.locate(torch.tensor([0, 1, 2]))
        (tensor([0, 0, 1]), tensor([1, 2, 4]))
        """
        if self.targets is not None:
            target = self.targets[sample_ids]
            return torch.searchsorted(self.offsets, target, right=True) - 1, target
        session = torch.searchsorted(self.sample_offsets, sample_ids, right=True) - 1
        return session, self.offsets[0] + sample_ids + session + 1

    def clicks_before(self, sample_ids: Tensor) -> Tensor:
        """How many clicks come before the target of each sample, [B]."""
        session, target = self.locate(sample_ids)
        return target - self.offsets[session]

    def begun_after(self, time: int) -> Tensor:
        """[samples] whether the session of each sample began after `time`."""
        session, _ = self.locate(torch.arange(len(self), device=self.times.device))
        return self.times[session] > time

    def moments(self, sample_ids: Tensor) -> Tensor:
        """The share of all clicks that came before the target of each sample, [B]."""
        return self.moment_of(self.locate(sample_ids)[1])

    def moment_of(self, click: Tensor) -> Tensor:
        """The share of all clicks that came before those at these indices, [B]."""
        return (click - self.offsets[0]).double() / (self.offsets[-1] - self.offsets[0])

    def part(self, start: int, end: int) -> "SessionDataset":
        """Sessions start..end-1 over the same memory."""
        targets = self.targets
        if targets is not None:
            first, after = torch.searchsorted(
                targets, self.offsets[[start, end]]
            ).tolist()
            targets = targets[first:after]
        return SessionDataset(
            self.items, self.offsets[start : end + 1], self.times[start:end], targets
        )

    def to(self, device: torch.device | str) -> "SessionDataset":
        targets = None if self.targets is None else self.targets.to(device)
        return SessionDataset(
            self.items.to(device),
            self.offsets.to(device),
            self.times.to(device),
            targets,
        )


def collate(
    dataset: SessionDataset, sample_ids: Tensor, max_length: int, stride: int = 1
) -> SessionBatch:
    """The samples `sample_ids [B]` as a batch of width `max_length`: their latest clicks, and
    targets.

    No value is read back to the CPU, so that a CUDA graph can capture it.
    """
    sample_ids = sample_ids.to(dataset.offsets)
    session, target = dataset.locate(sample_ids)  # [B], [B]
    clicks = target - dataset.offsets[session]
    lengths = clicks - first_read(clicks, max_length, stride)  # [B]
    column = torch.arange(max_length, device=lengths.device)  # [L]
    inside = column < lengths[:, None]  # [B, L]
    click = torch.where(
        inside, (target - lengths)[:, None] + column, target[:, None]
    )  # [B, L], always a real click
    items = torch.where(inside, dataset.items[click], PADDING).long()
    return SessionBatch(items, lengths, dataset.items[target].long())


@dataclass(frozen=True, repr=False)
class PreparedDataset:
    """What `posrec prepare` writes: training and test sessions in order of time, and the
    vocabulary.

    Attributes:
        train: the training sessions.
        test: the test sessions; none if the log was prepared with `--no-test`.
        vocabulary: the ids of the items, with their titles and other columns.
        manifest: the contents of manifest.json.
        path: the folder.
        target_weights: [clicks of `train`] float32, the weight of each training click by its kind of
            event (`--event-weights`), which multiplies its loss as a target; None without weights.
    """

    train: SessionDataset
    test: SessionDataset
    vocabulary: Vocabulary
    manifest: dict[str, Any]
    path: Path
    target_weights: npt.NDArray[np.float32] | None = None

    def __repr__(self) -> str:
        counts = [
            plural(len(self.train), "training sample"),
            plural(len(self.test), "test sample"),
        ]
        return f"PreparedDataset({str(self.path)!r}: {', '.join(counts)}, {plural(len(self.vocabulary), 'item')})"

    def __reduce__(self) -> tuple[Any, ...]:
        """Sent to a process of a cluster, a dataset is its path, and is loaded there."""
        return load, (self.path.absolute(),)

    @property
    def fitting(self) -> SessionDataset:
        """The training sessions without the validation part."""
        return self.train.part(0, self.manifest["validation_start"])

    @property
    def validation(self) -> SessionDataset:
        """The last tenth of the training sessions in time; a view."""
        return self.train.part(self.manifest["validation_start"], self.train.sessions)

    @property
    def trained_until(self) -> int | None:
        """When the last training session began; None if the log had no times."""
        return (
            None
            if self.manifest.get("format") in WITHOUT_TIMES
            else int(self.train.times.max())
        )

    def require_test_part(self) -> None:
        if not self.test.sessions:
            raise InputError(
                f"{self.path} has no test part to evaluate on, because it was prepared with --no-test; "
                "prepare the log again without it"
            )

    @property
    def train_items(self) -> int:
        """Items 1..train_items occur in training."""
        return int(self.manifest["counts"]["train_items"])

    @property
    def recommendable_items(self) -> int:
        """Items 1..recommendable_items can be recommended: those of training and, with
        `--all-items`, those of the items file."""
        return int(self.manifest["counts"].get("recommendable_items", self.train_items))

    @property
    def fingerprint(self) -> str:
        return str(self.manifest["fingerprint"])

    @property
    def ceiling(self) -> dict[str, Any] | None:
        """The best figures that any model can reach, if that is known (the demo shop)."""
        return (
            read_json(self.path / CEILING) if (self.path / CEILING).exists() else None
        )


def load(folder: str | Path) -> PreparedDataset:
    """Open a prepared dataset: read its files into memory and check their checksums."""
    path = Path(folder)
    require_folder(path, DATASET)
    reader = FolderReader(path)
    manifest = reader.json(MANIFEST)
    schema = manifest.get("schema") if isinstance(manifest, dict) else None
    if schema != SCHEMA:
        raise InputError(
            f"{path} has dataset schema {schema}, and this version reads {SCHEMA}; prepare it again"
        )
    if missing := {"validation_start", "counts", "fingerprint"} - set(manifest):
        raise InputError(
            f"{path / MANIFEST} lacks {', '.join(sorted(missing))}; it is damaged, prepare it again"
        )
    arrays: dict[str, Any] = {
        name: torch.from_numpy(read_array(reader, name)) for name in ARRAYS
    }
    optional = {name: read_array(reader, name) for name in optional_arrays(path)}
    for name in ("train_targets", "test_targets"):
        arrays[name] = torch.from_numpy(optional[name]) if name in optional else None
    train, test = (
        SessionDataset(
            *(
                arrays[f"{part}_{name}"]
                for name in ("items", "offsets", "times", "targets")
            )
        )
        for part in ("train", "test")
    )
    weights = optional.get("train_weights")
    for part, sessions in (("train", train), ("test", test)):
        if not fits_together(sessions) or (
            part == "train" and weights is not None and len(weights) != train.clicks
        ):
            raise InputError(
                f"{path}: the {part} arrays don't fit together; the folder is damaged, prepare it again"
            )
    vocabulary = Vocabulary.from_json(
        reader.json(VOCABULARY_FILE), path / VOCABULARY_FILE
    )
    if len(vocabulary) != manifest["counts"].get("items"):
        raise InputError(
            f"{path}: the vocabulary doesn't fit the manifest; the folder is damaged, prepare it again"
        )
    reader.check_rest()
    return PreparedDataset(train, test, vocabulary, manifest, path, weights)


def with_items_of(
    data: PreparedDataset, older: Vocabulary, known: int
) -> PreparedDataset:
    """The same sessions, with items 1..known of an older run's vocabulary among the items of
    training.

    Items of the training sessions keep their numbers, the added ones come next, the others last.
    """
    ids = data.vocabulary.ids
    clicked = data.train_items
    of_training = set(ids[:clicked])
    kept = [item for item in older.ids[:known] if item not in of_training]
    if not kept:
        return data
    added = set(kept)
    rest = [item for item in ids[clicked:] if item not in added]
    vocabulary = Vocabulary([*ids[:clicked], *kept, *rest])
    for name, values in data.vocabulary.columns.items():
        before = (
            dict(zip(older.ids, older.columns[name], strict=True))
            if name in older.columns
            else {}
        )
        known_values: dict[str, Any] = {**before, **dict(zip(ids, values, strict=True))}
        vocabulary.columns[name] = [known_values.get(item) for item in vocabulary.ids]
    numbers = torch.tensor(
        [0, *(vocabulary.index(item) for item in ids)], dtype=data.test.items.dtype
    )
    test = replace(data.test, items=numbers[data.test.items.long()])
    more = len(added - set(ids[: data.recommendable_items]))
    counts = {
        **data.manifest["counts"],
        "items": len(vocabulary),
        "train_items": clicked + len(kept),
        "recommendable_items": data.recommendable_items + more,
    }
    content = hashlib.blake2b(data.fingerprint.encode(), digest_size=16)
    content.update("\n".join(kept).encode())
    manifest = {**data.manifest, "counts": counts, "fingerprint": content.hexdigest()}
    return replace(data, test=test, vocabulary=vocabulary, manifest=manifest)


def fits_together(sessions: SessionDataset) -> bool:
    """Whether the arrays of a part can belong together, by their lengths."""
    targets = sessions.targets
    return (
        len(sessions.items) == sessions.clicks
        and len(sessions.times) == sessions.sessions
        and (
            targets is None
            or not len(targets)
            or bool(0 < targets[0] <= targets[-1] < sessions.clicks)
        )
    )
