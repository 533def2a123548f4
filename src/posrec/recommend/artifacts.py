"""What is made of a run once and kept: its network as ONNX, and the index of its items where they are very many.

Making them takes a quarter of a minute and more, and starting must not, so they are made in a process aside:

    python -m posrec.recommend.artifacts RUN CACHE

where CACHE is a RunCache as JSON. A file's name tells the weights, settings and versions it was made from, so a stale
one is never taken.
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
from posrec.errors import InputError, RunFailed
from posrec.io import RUN, WEIGHTS, whole_file
from posrec.models.base import SessionModel
from posrec.recommend.faiss_search import write_index
from posrec.recommend.index_settings import IndexSettings
from posrec.recommend.onnx_export import export_onnx
from posrec.recommend.onnx_model import only
from posrec.run import Run, load_run

KEPT = 8  # files of a kind; the one used longest ago goes first


@dataclass(frozen=True)
class Made:
    """Files of one run; None where there is none, or need be none."""

    onnx: Path | None
    index: Path | None

    def there(self) -> "Made":
        """Those that are there already."""
        onnx, index = (path if path and path.is_file() else None for path in (self.onnx, self.index))
        return Made(onnx, index)

    def beyond(self, other: "Made") -> "Made":
        """Those that are not the other's."""
        return Made(self.onnx if self.onnx != other.onnx else None, self.index if self.index != other.index else None)

    def remove(self) -> None:
        for path in (self.onnx, self.index):
            if path is not None:
                with suppress(OSError):  # another worker was quicker, or the folder can't be written
                    path.unlink()

    def without(self, there: "Made") -> str:
        """What there is not, in words."""
        missing = ["the network as ONNX"] if self.onnx != there.onnx else []
        return " and ".join(missing + (["the index"] if self.index != there.index else []))


NOTHING = Made(None, None)


@dataclass(frozen=True)
class RunCache:
    folder: str
    onnx: bool = True
    index: IndexSettings = field(default_factory=IndexSettings)

    def wanted(self, run: Run) -> Made:
        """What is to be made of a run, and where it is when it is made."""
        if not isinstance(run.model, SessionModel):
            return NOTHING
        faiss = self.index.wants_faiss(run.config["items"])
        if not (self.onnx or faiss):
            return NOTHING
        of_run = digest(run.path)
        onnx = Path(self.folder) / f"{of_run}.onnx" if self.onnx else None
        return Made(onnx, Path(self.folder) / f"{of_run}-{self.index.name}.faiss" if faiss else None)

    def make(self, run: Run) -> Made:
        """Whatever is not there yet; where one can't be made, the other is all the same."""
        wanted, problems = self.wanted(run), []
        Path(self.folder).mkdir(parents=True, exist_ok=True)
        for path, make in ((wanted.onnx, self.export), (wanted.index, self.build_index)):
            if path is not None and not path.is_file():
                try:
                    make(run, path)
                except (InputError, RunFailed) as error:
                    problems.append(str(error))
        for kind in ("*.onnx", "*.faiss"):
            for old in sorted(Path(self.folder).glob(kind), key=lambda path: -path.stat().st_mtime)[KEPT:]:
                old.unlink(missing_ok=True)
        if problems:
            raise RunFailed("; ".join(problems))
        return wanted

    def export(self, run: Run, path: Path) -> None:
        """Only the session vectors are kept of it: the product with the items is the server's own."""
        with tempfile.TemporaryDirectory(dir=self.folder) as folder:
            export_onnx(run, Path(folder) / "whole.onnx")
            content = only(Path(folder) / "whole.onnx", ["session_vectors"])
        with whole_file(path, overwrite=True) as unfinished:
            unfinished.write_bytes(content)

    def build_index(self, run: Run, path: Path) -> None:
        write_index(run, path, self.index, overwrite=True)

    def make_aside(self, run: Path) -> subprocess.Popen[bytes]:
        """In a process of its own and at low priority; the files are there when it is done. `told_by` says why not."""
        # No pipe: nobody reads meanwhile, and a full one would stop the process.
        told = tempfile.TemporaryFile()  # noqa: SIM115
        line = [sys.executable, "-m", "posrec.recommend.artifacts", str(run), msgspec.json.encode(self).decode()]
        process = subprocess.Popen(["nice", "-n", "5", *line], stdout=subprocess.DEVNULL, stderr=told)
        process.stderr = told
        return process


def told_by(making: subprocess.Popen[bytes]) -> str:
    """The last line that a process which ended has written."""
    assert making.stderr is not None
    making.stderr.seek(0)
    lines = making.stderr.read().decode(errors="replace").split("\n")
    return next((line.strip() for line in reversed(lines) if line.strip()), f"it ended with code {making.returncode}")


def digest(run: Path) -> str:
    found = hashlib.sha256(f"{posrec.__version__} {torch.__version__}".encode())
    for name in (RUN, WEIGHTS):
        with (run / name).open("rb") as file:
            found.update(hashlib.file_digest(file, "sha256").digest())
    return found.hexdigest()[:32]


if __name__ == "__main__":
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))  # so that what is unfinished is removed
    try:
        msgspec.json.decode(sys.argv[2], type=RunCache).make(load_run(Path(sys.argv[1])))
    except (InputError, RunFailed, OSError) as error:
        sys.exit(str(error))
