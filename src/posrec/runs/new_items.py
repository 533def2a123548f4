"""Items that a run's training did not see: rows of an items file become items of the run, with the
vectors that their attributes give them.
"""

from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, Any, cast

import numpy as np

from posrec.data.attribute_reader import Floats
from posrec.data.vocabulary import Vocabulary
from posrec.errors import plural
from posrec.runs.folder import Run

if TYPE_CHECKING:  # polars is imported by those who read a file of items
    import polars as pl

    from posrec.models.base import Model

SHORTEST = 1e-12  # the length of a vector by which one can divide


@dataclass(frozen=True)
class NewItems:
    """The items that follow those that a run knows."""

    ids: list[str]
    vectors: Floats  # [m, d] X of each
    vocabulary: Vocabulary  # of all items, with the columns of the file
    left_out: int  # rows that the run does not know, and that can't be used
    note: str | None  # why they can't

    def has_items_of(self, other: "NewItems | None") -> bool:
        """Whether these are the same items, with the same vectors."""
        if other is None:
            return not self.ids
        return self.ids == other.ids and np.array_equal(self.vectors, other.vectors)

    def added_to(self, run: Run) -> Run:
        """The run with these items, which have no clicks."""
        if not self.ids:
            return replace(run, vocabulary=self.vocabulary)
        nothing = np.zeros(len(self.ids), run.popularity.dtype)
        return replace(
            run,
            load_model=partial(extended_model, run, self.vectors),
            vocabulary=self.vocabulary,
            config={**run.config, "items": len(self.vocabulary)},
            popularity=np.concatenate([run.popularity, nothing]),
            recent=None if run.recent is None else np.append(run.recent, nothing),
        )

    def search_rows(self, run: Run, width: int) -> Floats:
        """[m, width] as `PosRecPlus.item_vectors`: of length 1 if a score is a cosine, and without
        a trend, which counts clicks."""
        rows = np.zeros((len(self.ids), width), np.float32)
        if not self.ids:
            return rows
        d = self.vectors.shape[1]
        rows[:, :d] = self.vectors
        if run.config["cosine"]:
            lengths = np.linalg.norm(rows, axis=1, keepdims=True)
            rows /= np.maximum(lengths, SHORTEST)
        return rows


def find_new_items(run: Run, rows: "pl.DataFrame") -> NewItems:
    """The rows of an items file (an `id` and other columns, a row an id) that the run does not
    know. A row without an attribute that the training knew tells nothing, and is left out."""
    import polars as pl

    from posrec.data.items import columns_for

    known = run.vocabulary.ids[: run.config["items"]]
    ids_of_run = pl.Series(known, dtype=pl.String)
    new = rows.filter(~pl.col("id").is_in(ids_of_run.implode()))
    ids: list[str] = new["id"].to_list()
    vectors = np.zeros((len(ids), 0), np.float32)
    is_described = np.zeros(len(ids), np.bool_)
    if run.attributes is not None:
        names = {"id", *(column.name for column in run.attributes.reader.columns)}
        about_new = new.select(name for name in new.columns if name in names)
        columns_of_new = columns_for(ids, about_new)
        vectors, is_described = run.attributes.vectors(columns_of_new, len(ids))
    used = [id for id, is_used in zip(ids, is_described, strict=True) if is_used]
    all_ids = [*known, *used]
    columns = columns_for(all_ids, rows)
    for name, values in run.vocabulary.columns.items():
        if name not in columns:
            columns[name] = [*values[: len(known)], *[None] * len(used)]
    left_out = len(ids) - len(used)
    vocabulary = Vocabulary(all_ids, columns)
    note = note_on(run, left_out) if left_out else None
    return NewItems(used, vectors[is_described], vocabulary, left_out, note)


def note_on(run: Run, left_out: int) -> str:
    rows = plural(left_out, "row")
    if run.attributes is None:
        return (
            f"{rows} of items that the run does not know can't be used, because it was trained "
            "without attributes; train posrec-plus with --set attributes=auto and an items file"
        )
    names = ", ".join(column.name for column in run.attributes.reader.columns)
    return (
        f"{rows} of items that the run does not know can't be used: none of their values of "
        f"{names} occurred in the training"
    )


def extended_model(run: Run, vectors: Floats) -> "Model":
    import torch

    model = cast(Any, run.model)
    with torch.no_grad():
        extended: Model = model.with_items(torch.from_numpy(vectors))
    return extended
