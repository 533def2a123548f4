"""A run's network as ONNX, exported once and kept: exporting takes a quarter of a minute, starting must not.

    python -m posrec.serving.onnx_cache RUN CACHE

The name of a kept file tells the weights and versions it was made from, so a stale one is never taken.
"""

import hashlib
import signal
import subprocess
import sys
import tempfile
from pathlib import Path

import posrec
from posrec.errors import InputError, RunFailed
from posrec.files import whole_file
from posrec.runs import CONFIG, load_run
from posrec.serving.onnx_export import export_onnx
from posrec.serving.onnx_model import only
from posrec.tensors import WEIGHTS

KEPT = 8  # files; the one used longest ago goes first


def cached_name(run: Path) -> str:
    import torch

    digest = hashlib.sha256(f"{posrec.__version__} {torch.__version__}".encode())
    for name in (CONFIG, WEIGHTS):
        with (run / name).open("rb") as file:
            digest.update(hashlib.file_digest(file, "sha256").digest())
    return f"{digest.hexdigest()[:32]}.onnx"


def cached(run: Path, cache: Path) -> Path | None:
    """The exported network of this run, if it is there."""
    path = cache / cached_name(run)
    return path if path.is_file() else None


def export_aside(run: Path, cache: Path) -> subprocess.Popen[bytes]:
    """Export in a process of its own and at low priority; the file is there when it is done. `told_by` says why not."""
    # No pipe: nobody reads meanwhile, and a full one would stop the export.
    told = tempfile.TemporaryFile()  # noqa: SIM115
    line = [sys.executable, "-m", "posrec.serving.onnx_cache", str(run), str(cache)]
    process = subprocess.Popen(["nice", "-n", "10", *line], stdout=subprocess.DEVNULL, stderr=told)
    process.stderr = told
    return process


def told_by(export: subprocess.Popen[bytes]) -> str:
    """The last line that an export which ended has written."""
    assert export.stderr is not None
    export.stderr.seek(0)
    lines = export.stderr.read().decode(errors="replace").split("\n")
    return next((line.strip() for line in reversed(lines) if line.strip()), f"it ended with code {export.returncode}")


def export_into(run: Path, cache: Path) -> Path:
    """Only the session vectors are kept of it: the product with the items is the server's own."""
    name = cached_name(run)
    cache.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=cache) as folder:
        export_onnx(load_run(run), Path(folder) / "whole.onnx")
        content = only(Path(folder) / "whole.onnx", ["session_vectors"])
    with whole_file(cache / name, overwrite=True) as unfinished:
        unfinished.write_bytes(content)
    for old in sorted(cache.glob("*.onnx"), key=lambda path: -path.stat().st_mtime)[KEPT:]:
        old.unlink(missing_ok=True)
    return cache / name


if __name__ == "__main__":
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))  # so that what is unfinished is removed
    try:
        export_into(Path(sys.argv[1]), Path(sys.argv[2]))
    except (InputError, RunFailed, OSError) as error:
        sys.exit(str(error))
