"""The artifacts of a run: files derived from it once and kept in a cache, which make serving on a CPU quicker.

There are three: the network as an ONNX file, the item vectors with what a search needs of them (item_vectors.py), and a
faiss index of the items where they are very many. With the first two, a run is served without torch. Building them
takes a quarter of a minute or more, and a server must start at once, so a process in the background builds them:

    python -m posrec.recommend.artifacts RUN CACHE CODE

where CACHE is an ArtifactCache and CODE an OwnCode as JSON. A file's name contains a hash of the weights, settings,
versions and code of the user's own that it was built from, so an outdated file is never used.
"""

import hashlib
import os
import signal
import subprocess
import sys
import tempfile
from contextlib import suppress
from dataclasses import dataclass, field, replace
from importlib.metadata import version
from pathlib import Path

import posrec
from posrec.device import computes_on_cpu
from posrec.errors import InputError, RunFailed
from posrec.io import RUN, WEIGHTS
from posrec.io.locks import lock
from posrec.models.own_code import OwnCode
from posrec.recommend.faiss_search import likely_sessions, read_index, write_index
from posrec.recommend.finders import encoder_of
from posrec.recommend.index_settings import IndexSettings
from posrec.recommend.item_vectors import ItemVectors, read_item_vectors
from posrec.recommend.onnx_network import OnnxNetwork
from posrec.recommend.recommender import Recommender
from posrec.recommend.search import FullSearch
from posrec.recommend.similarity import Similarity
from posrec.recommend.stored_run import StoredRun, open_stored
from posrec.run_folder import AnyRun

KEPT = 8  # files of each kind; the oldest are removed first


@dataclass(frozen=True)
class Artifacts:
    """The paths of a run's artifacts; None for one that does not exist, or is not needed."""

    onnx: Path | None
    index: Path | None
    vectors: Path | None = None

    def existing(self) -> "Artifacts":
        """Those whose files exist; the item vectors only once the export that they belong to exists."""
        # os.path.isfile, unlike Path.is_file, is False in a folder that this user may not enter.
        onnx, index, vectors = (path if path and os.path.isfile(path) else None for path in self.paths)  # noqa: PTH113
        return Artifacts(onnx, index, vectors if onnx == self.onnx else None)

    def minus(self, other: "Artifacts") -> "Artifacts":
        """Those that are not among the other's."""
        pairs = zip(self.paths, other.paths, strict=True)
        return Artifacts(*(path if path != another else None for path, another in pairs))

    @property
    def paths(self) -> tuple[Path | None, Path | None, Path | None]:
        return self.onnx, self.index, self.vectors

    def choices(self) -> "list[Artifacts]":
        """All of them, all but one, and none: what to try in turn where one may be damaged."""
        fewer = [replace(self, index=None), replace(self, vectors=None), replace(self, onnx=None)]
        return list(dict.fromkeys([self, *fewer, NO_ARTIFACTS]))

    def remove(self) -> None:
        for path in self.paths:
            if path is not None:
                with suppress(OSError):  # another worker has removed it, or the folder is read-only
                    path.unlink()

    def __str__(self) -> str:
        vectors = self.vectors if self.onnx is None else None  # else they are a part of the export
        names = {"ONNX export": self.onnx, "item vectors": vectors, "faiss index": self.index}
        return " and ".join(name for name, path in names.items() if path is not None)

    def open(self, run: AnyRun, device: str = "cpu", cores: int = 1) -> Recommender:
        """A recommender that uses these files, and so many cores for an exact search in a large catalogue.

        On a CPU, ONNX Runtime computes the session vectors where there is an export, and faiss finds the items where
        there is an index; otherwise torch and the exact search do. Counting models, and all models on a GPU, score
        every item. With an export and item vectors, torch is not imported.
        """
        if not computes_on_cpu(device) or (self.vectors is None and not has_vectors(run)):
            return Recommender(run, device)
        vectors = from_model(run) if self.vectors is None else read_item_vectors(self.vectors, run.config["items"])
        scorer = None if self.onnx is None else OnnxNetwork(self.onnx, threads=1)
        if scorer is not None and scorer.has_own_items != vectors.has_own_items:
            raise InputError(f"{self.onnx} is not the export of {run.path}: only one has a term for own items")
        similarity = Similarity(vectors.load_similar)
        if self.index is None:
            return Recommender(run, device, scorer, vectors.exact_search(cores), similarity)
        sessions = likely_sessions(run, encoder_of(scorer or run.model))
        return Recommender(run, device, scorer, read_index(self.index, vectors.table, sessions), similarity)


NO_ARTIFACTS = Artifacts(None, None)


@dataclass(frozen=True)
class ArtifactCache:
    """A folder of artifacts, and which of them to build."""

    folder: str
    onnx: bool = True
    index: IndexSettings = field(default_factory=IndexSettings)

    def wanted(self, run: AnyRun) -> Artifacts:
        """The artifacts that the run should have, whether or not they exist yet."""
        named = self.named(run)
        # Files of a run exist only if its model has vectors; where none exists, the model is loaded to find out.
        if named == NO_ARTIFACTS or named.existing() != NO_ARTIFACTS or has_vectors(run):
            return named
        return NO_ARTIFACTS

    def named(self, run: AnyRun) -> Artifacts:
        """The names of the run's artifacts, if its model has vectors."""
        faiss = self.index.wants_faiss(run.config["items"])
        if not (self.onnx or faiss):
            return NO_ARTIFACTS
        start = str(Path(self.folder) / digest(run))
        return Artifacts(
            Path(f"{start}.onnx") if self.onnx else None,
            Path(f"{start}-{self.index.name}.faiss") if faiss else None,
            Path(f"{start}.vectors") if self.onnx else None,
        )

    def build(self, run: AnyRun) -> Artifacts:
        """Build what does not exist yet. If one artifact can't be built, the others still are.

        Every worker of a server starts a build. One at a time works, and the others find its files.
        """
        Path(self.folder).mkdir(parents=True, exist_ok=True)
        with lock(Path(self.folder) / f"{digest(run)}.lock"):
            return self.build_missing(run)

    def build_missing(self, run: AnyRun) -> Artifacts:
        from posrec.recommend.artifact_builder import build_onnx, build_vectors

        def build_index(run: AnyRun, path: Path) -> None:
            write_index(run, path, self.index, overwrite=True)

        wanted, problems = self.wanted(run), []
        # The vectors first: a server that finds the export looks for them too.
        builders = ((wanted.vectors, build_vectors), (wanted.onnx, build_onnx), (wanted.index, build_index))
        for path, build in builders:
            if path is not None and not path.is_file():
                try:
                    build(run, path)
                except (InputError, RunFailed) as error:
                    problems.append(str(error))
        for kind in ("*.onnx", "*.faiss", "*.vectors"):
            for old in sorted(Path(self.folder).glob(kind), key=lambda path: -path.stat().st_mtime)[KEPT:]:
                old.unlink(missing_ok=True)
        if problems:
            raise RunFailed("; ".join(problems))
        return wanted

    def build_in_background(self, run: Path, code: OwnCode) -> subprocess.Popen[bytes]:
        """Start a process that builds at low priority. After it has ended, `failure` tells why a file is missing."""
        import msgspec  # it comes with posrec[serve], which a command that only looks for artifacts need not have

        # A file and not a pipe: nobody reads while the process runs, and a full pipe would block it.
        errors = tempfile.TemporaryFile()  # noqa: SIM115
        settings = [msgspec.json.encode(one).decode() for one in (self, code)]
        line = [sys.executable, "-m", "posrec.recommend.artifacts", str(run), *settings]
        process = subprocess.Popen(["nice", "-n", "5", *line], stdout=subprocess.DEVNULL, stderr=errors)
        process.stderr = errors
        return process


def open_exported(folder: str | Path, cache: str | Path) -> Recommender | None:
    """A recommender without torch, for a run of which a server has left the export in the cache; else None.

    Every item is scored in full, so that the scores are those of the model. A file that can't be used is ignored.
    """
    run = open_stored(folder)
    built = ArtifactCache(str(cache)).named(run).existing()
    try:
        if built.onnx is None or built.vectors is None:
            return None
        vectors = read_item_vectors(built.vectors, run.config["items"])
        scorer = OnnxNetwork(built.onnx)
    except InputError:
        return None
    return Recommender(run, "cpu", scorer, FullSearch(vectors.table), Similarity(vectors.load_similar))


def failure(build: subprocess.Popen[bytes]) -> str:
    """The last line that a build process wrote before it ended."""
    assert build.stderr is not None
    build.stderr.seek(0)
    lines = build.stderr.read().decode(errors="replace").split("\n")
    return next((line.strip() for line in reversed(lines) if line.strip()), f"exit code {build.returncode}")


def digest(run: AnyRun) -> str:
    """Of the files that were loaded, not of those that are in the folder by now, and of the user's own code."""
    found = hashlib.sha256(f"{posrec.__version__} {version('torch')}".encode())
    for name in (RUN, WEIGHTS):
        found.update(bytes.fromhex(run.sha256[name]))
    if not (isinstance(run, StoredRun) and run.code == OwnCode()):  # else no code of the user's own is named
        from posrec.recommend.artifact_builder import own_files

        for path in own_files(run):
            found.update(hashlib.sha256(path.read_bytes()).digest())
    return found.hexdigest()[:32]


def has_vectors(run: AnyRun) -> bool:
    """Whether the run's model has session and item vectors; it is loaded to find out."""
    from posrec.recommend.artifact_builder import is_network

    return is_network(run)


def from_model(run: AnyRun) -> ItemVectors:
    from posrec.recommend.artifact_builder import vectors_of_model

    return vectors_of_model(run)


if __name__ == "__main__":
    import msgspec

    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))  # exit normally, so that unfinished files are removed
    try:
        run = open_stored(sys.argv[1], msgspec.json.decode(sys.argv[3], type=OwnCode))
        msgspec.json.decode(sys.argv[2], type=ArtifactCache).build(run)
    except (InputError, RunFailed, OSError) as error:
        sys.exit(str(error))
