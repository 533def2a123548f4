"""A run whose model is loaded at its first use, which imports torch. Serving an exported run never needs it."""

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO

from posrec.data.vocabulary import Vocabulary
from posrec.errors import RunFailed
from posrec.io import WEIGHTS
from posrec.io.tensors import parse_tensors
from posrec.models.own_code import OwnCode
from posrec.run_folder import AnyRun, Clicks, open_finished, read_parts

if TYPE_CHECKING:
    from posrec.models.base import Model


@dataclass(frozen=True, repr=False)
class StoredRun(AnyRun):
    """`open_stored` opens one. `code` names the code of a user's own that the model needs."""

    path: Path
    vocabulary: Vocabulary
    config: dict[str, Any]
    weights: BinaryIO = field(repr=False)  # stays open: the run folder may be replaced before the model is needed
    code: OwnCode = field(default_factory=OwnCode)
    popularity: Clicks | None = None
    metrics: dict[str, float] | None = None
    sha256: Mapping[str, str] = field(default_factory=dict)

    @cached_property
    def model(self) -> "Model":  # type: ignore[override]
        """The trained model; a RunFailed if its file was changed in place since the run was opened."""
        from posrec.run import model_of_run

        self.weights.seek(0)
        content = self.weights.read()
        if hashlib.sha256(content).hexdigest() != self.sha256[WEIGHTS]:
            raise RunFailed(f"{self.path / WEIGHTS} has changed since the run was opened; open the run again")
        tensors, _ = parse_tensors(content, self.path / WEIGHTS)
        return model_of_run(self.path, self.config, tensors, self.code.model, self.code.encoding)


def open_stored(folder: str | Path, code: OwnCode | None = None) -> StoredRun:
    """Open a finished run: every file is compared with its checksum, and the model is not loaded yet."""
    path = Path(folder)
    reader, config = open_finished(path)
    parts = read_parts(reader, config)
    reader.read(WEIGHTS)
    weights = (path / WEIGHTS).open("rb")  # `model` notices if they are others by now
    reader.check_rest()
    return StoredRun(path, weights=weights, code=code or OwnCode(), config=config, **parts, sha256=reader.sha256)
