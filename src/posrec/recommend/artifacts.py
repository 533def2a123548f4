"""The artifacts of a run: files derived from it once and kept in a cache, which make serving on a CPU quicker.

There are two: the network as an ONNX file, and a faiss index of the items where they are very many. Building them takes
a quarter of a minute or more, and a server must start at once, so a process in the background builds them:

    python -m posrec.recommend.artifacts RUN CACHE

where CACHE is an ArtifactCache as JSON. A file's name contains a hash of the weights, settings and versions that it was
built from, so an outdated file is never used.
"""

import hashlib
import signal
import subprocess
import sys
import tempfile
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

import msgspec
import torch

import posrec
from posrec.device import choose_device
from posrec.errors import InputError, RunFailed
from posrec.io import RUN, WEIGHTS, scratch_folder, whole_file
from posrec.models.base import SessionModel
from posrec.recommend.faiss_search import item_table, read_index, write_index
from posrec.recommend.index_settings import IndexSettings
from posrec.recommend.onnx_export import export_onnx
from posrec.recommend.onnx_model import OWN_OUTPUTS, OnnxModel, with_outputs
from posrec.recommend.recommender import Recommender
from posrec.recommend.search import ExactSearch
from posrec.run import Run, load_run

KEPT = 8  # files of each kind; the oldest are removed first


@dataclass(frozen=True)
class Artifacts:
    """The paths of a run's artifacts; None for one that does not exist, or is not needed."""

    onnx: Path | None
    index: Path | None

    def existing(self) -> "Artifacts":
        """Those whose files exist."""
        onnx, index = (path if path and path.is_file() else None for path in (self.onnx, self.index))
        return Artifacts(onnx, index)

    def minus(self, other: "Artifacts") -> "Artifacts":
        """Those that are not among the other's."""
        onnx = self.onnx if self.onnx != other.onnx else None
        return Artifacts(onnx, self.index if self.index != other.index else None)

    def remove(self) -> None:
        for path in (self.onnx, self.index):
            if path is not None:
                with suppress(OSError):  # another worker has removed it, or the folder is read-only
                    path.unlink()

    def __str__(self) -> str:
        names = {"ONNX export": self.onnx, "faiss index": self.index}
        return " and ".join(name for name, path in names.items() if path is not None)

    def open(self, run: Run, device: str = "cpu") -> Recommender:
        """A recommender that uses these files.

        On a CPU, ONNX Runtime computes the session vectors where there is an export, and faiss finds the items where
        there is an index; otherwise torch and the exact search do. Counting models, and all models on a GPU, score
        every item.
        """
        scorer = OnnxModel(self.onnx, threads=1) if self.onnx is not None else None
        if scorer is not None and scorer.has_own_items != run.model.has_own_items:
            raise InputError(f"{self.onnx} is not the export of {run.path}: only one has a term for own items")
        if not isinstance(run.model, SessionModel) or choose_device(device).type != "cpu":
            return Recommender(run, device, scorer)
        search = read_index(run, self.index) if self.index is not None else ExactSearch(item_table(run))
        return Recommender(run, device, scorer, search)


NO_ARTIFACTS = Artifacts(None, None)


@dataclass(frozen=True)
class ArtifactCache:
    """A folder of artifacts, and which of them to build."""

    folder: str
    onnx: bool = True
    index: IndexSettings = field(default_factory=IndexSettings)

    def wanted(self, run: Run) -> Artifacts:
        """The artifacts that the run should have, whether or not they exist yet."""
        if not isinstance(run.model, SessionModel):
            return NO_ARTIFACTS
        faiss = self.index.wants_faiss(run.config["items"])
        if not (self.onnx or faiss):
            return NO_ARTIFACTS
        name = digest(run)
        onnx = Path(self.folder) / f"{name}.onnx" if self.onnx else None
        return Artifacts(onnx, Path(self.folder) / f"{name}-{self.index.name}.faiss" if faiss else None)

    def build(self, run: Run) -> Artifacts:
        """Build what does not exist yet. If one artifact can't be built, the other still is."""
        wanted, problems = self.wanted(run), []
        Path(self.folder).mkdir(parents=True, exist_ok=True)
        for path, build in ((wanted.onnx, self.build_onnx), (wanted.index, self.build_index)):
            if path is not None and not path.is_file():
                try:
                    build(run, path)
                except (InputError, RunFailed) as error:
                    problems.append(str(error))
        for kind in ("*.onnx", "*.faiss"):
            for old in sorted(Path(self.folder).glob(kind), key=lambda path: -path.stat().st_mtime)[KEPT:]:
                old.unlink(missing_ok=True)
        if problems:
            raise RunFailed("; ".join(problems))
        return wanted

    def build_onnx(self, run: Run, path: Path) -> None:
        """The file has only the outputs that a search reads: it takes the products with the items itself."""
        with scratch_folder(path) as folder:
            export_onnx(run, folder / "whole.onnx")
            own = OWN_OUTPUTS if run.model.has_own_items else ()
            content = with_outputs(folder / "whole.onnx", ["session_vectors", *own])
        with whole_file(path, overwrite=True) as unfinished:
            unfinished.write_bytes(content)

    def build_index(self, run: Run, path: Path) -> None:
        write_index(run, path, self.index, overwrite=True)

    def build_in_background(self, run: Path) -> subprocess.Popen[bytes]:
        """Start a process that builds at low priority. After it has ended, `failure` tells why a file is missing."""
        # A file and not a pipe: nobody reads while the process runs, and a full pipe would block it.
        errors = tempfile.TemporaryFile()  # noqa: SIM115
        line = [sys.executable, "-m", "posrec.recommend.artifacts", str(run), msgspec.json.encode(self).decode()]
        process = subprocess.Popen(["nice", "-n", "5", *line], stdout=subprocess.DEVNULL, stderr=errors)
        process.stderr = errors
        return process


def failure(build: subprocess.Popen[bytes]) -> str:
    """The last line that a build process wrote before it ended."""
    assert build.stderr is not None
    build.stderr.seek(0)
    lines = build.stderr.read().decode(errors="replace").split("\n")
    return next((line.strip() for line in reversed(lines) if line.strip()), f"exit code {build.returncode}")


def digest(run: Run) -> str:
    """Of the files that were loaded, not of those that are in the folder by now."""
    found = hashlib.sha256(f"{posrec.__version__} {torch.__version__}".encode())
    for name in (RUN, WEIGHTS):
        found.update(bytes.fromhex(run.sha256[name]))
    return found.hexdigest()[:32]


if __name__ == "__main__":
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))  # exit normally, so that unfinished files are removed
    try:
        msgspec.json.decode(sys.argv[2], type=ArtifactCache).build(load_run(Path(sys.argv[1])))
    except (InputError, RunFailed, OSError) as error:
        sys.exit(str(error))
