"""Many job results in one file: a .tar.gz of their files, or a much smaller .npz.xz with what the report needs.

The small form holds every record, the learned encodings that the report draws, and the ranks up to 10, since the report
tests R@10 and M@10; the metrics at 20 are in the records. Ranks of one dataset are laid side by side, [samples, jobs],
with similar jobs next to each other: LZMA then codes a rank in the context of the previous job's rank of that sample.
"""

import io
import json
import lzma
import tarfile
from collections.abc import Collection, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from posrec.errors import InputError
from posrec.experiments.reproduce.grid import FIGURES, jobs_of
from posrec.experiments.reproduce.saved_results import WORST, JobResult, load_results, modified_at, write_arrays
from posrec.io import whole_file, write_json

COMPACT = ".npz.xz"
KEPT = 10  # ranks past it are one value in the small form
SHIFT = 4  # ranks up to 11 in a byte's upper half, which is the context that LZMA takes from the byte before
FILTERS = [{"id": lzma.FILTER_LZMA2, "preset": 9 | lzma.PRESET_EXTREME, "lc": 4, "lp": 0, "pb": 0}]
EVERY = 7  # the samples by which jobs are compared

State = dict[str, int]


def state_of(folder: Path) -> State:
    """The job files of a folder and when each was written."""
    paths = [*folder.glob("*.json"), *folder.glob("*.npz")]
    return {path.name: modified_at(path) for path in sorted(paths) if not path.name.startswith(".")}  # .: unfinished


def pack(folder: Path, archive: Path) -> None:
    """Write the results of all jobs in `folder` into one file."""
    with whole_file(archive, overwrite=True) as unfinished:
        if archive.name.endswith(COMPACT):
            unfinished.write_bytes(lzma.compress(compact(load_results(folder).values()), filters=FILTERS))
            return
        with tarfile.open(unfinished, "w:gz") as file:
            for name in state_of(folder):
                file.add(folder / name, name)


def unpack(archive: Path, folder: Path) -> set[str]:
    """Add an archive's results to a folder and return the names of its files.

    Results that are already there stay, since they may be newer, unless they are those of a job that failed.
    """
    folder.mkdir(parents=True, exist_ok=True)
    there = {result.path.stem for result in load_results(folder).values() if not result.error}
    try:
        if archive.name.endswith(COMPACT):
            return unpack_compact(archive.read_bytes(), folder, there)
        with tarfile.open(archive) as file:
            members = [one for one in file if one.isfile() and is_job_file(one.name)]
            for member in members:
                if Path(member.name).stem not in there:
                    file.extract(member, folder, filter="data")
            return {member.name for member in members}
    except (tarfile.TarError, lzma.LZMAError, EOFError, ValueError, KeyError) as error:
        raise InputError(f"{archive} can't be read as an archive of job results ({error}); remove it") from None


def is_job_file(name: str) -> bool:
    return Path(name).name == name and Path(name).suffix in (".json", ".npz")


def compact(results: Collection[JobResult]) -> bytes:
    """The small form before compression: an .npz of the records as JSON, ranks by dataset, and encodings."""
    by_dataset: dict[str, list[JobResult]] = {}
    failed = [result for result in results if result.error]
    for result in results:
        if not result.error:
            by_dataset.setdefault(result.job.dataset, []).append(result)
    ordered: list[JobResult] = []
    arrays: dict[str, npt.NDArray[Any]] = {}
    for number, of_dataset in enumerate(by_dataset.values()):
        ranks = np.stack([np.minimum(result.ranks(), KEPT + 1) for result in of_dataset])  # [jobs, samples]
        order = similar_beside_each_other(ranks)
        arrays[f"ranks_{number}"] = np.ascontiguousarray(ranks[order].T) << SHIFT
        ordered += [of_dataset[place] for place in order]
    for number, result in enumerate(ordered):
        if result.job.name in drawn_jobs(result) and (table := result.encoding()) is not None:
            arrays[f"encoding_{number}"] = table
    listed = [[result.path.stem, {**result.record, "ranks_kept": KEPT}] for result in ordered]
    listed += [[result.path.stem, result.record] for result in failed]
    text = json.dumps(listed, ensure_ascii=False, separators=(",", ":"))
    buffer = io.BytesIO()
    np.savez(buffer, records=np.frombuffer(text.encode(), np.uint8), **arrays)  # type: ignore[arg-type]
    return buffer.getvalue()


def drawn_jobs(result: JobResult) -> set[str]:
    """The jobs whose learned encodings the report draws, by name; a quick run's are not among them."""
    return {jobs_of(row, result.job.dataset, 1)[0].name for row in FIGURES.rows}


def unpack_compact(content: bytes, folder: Path, there: set[str]) -> set[str]:
    with np.load(io.BytesIO(lzma.decompress(content)), allow_pickle=False) as file:
        arrays = dict(file)
    listed = json.loads(arrays["records"].tobytes())
    columns = [column for name in arrays if name.startswith("ranks_") for column in arrays[name].T]
    names = set()
    for number, (stem, record) in enumerate(listed):
        if not is_job_file(f"{stem}.json"):
            continue
        names |= {f"{stem}.json"} if "error" in record else {f"{stem}.json", f"{stem}.npz"}
        if stem in there:
            continue
        if "error" not in record:
            ranks = columns[number] >> SHIFT
            kept = {"ranks": np.where(ranks > KEPT, WORST, ranks).astype(np.uint8)}
            if f"encoding_{number}" in arrays:
                kept["encoding"] = arrays[f"encoding_{number}"]
            write_arrays(folder / f"{stem}.npz", kept)
        write_json(folder / f"{stem}.json", record)
    return names


def similar_beside_each_other(ranks: npt.NDArray[np.uint8]) -> Sequence[int]:
    """An order of the jobs in which each follows the most similar one of those left; ranks [jobs, samples]."""
    some = ranks[:, ::EVERY]
    order, left = [0], list(range(1, len(ranks)))
    while left:
        differing = [int(np.count_nonzero(some[order[-1]] != some[job])) for job in left]
        order.append(left.pop(int(np.argmin(differing))))
    return order
