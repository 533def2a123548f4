"""What posrec finds on this machine: versions, devices, threads, memory, disk, and what each extra would add."""

import platform
import shutil
import sys
from dataclasses import asdict, dataclass
from importlib import metadata
from pathlib import Path
from typing import Any

import posrec
from posrec.device import THREADS, machine_memory, usable_cores

# What each extra of pyproject.toml is for.
EXTRAS = {
    "serve": "posrec serve, posrec export --onnx",
    "scale": "posrec export --index, and serving more than a million items",
    "s3": "logs in S3 (s3://bucket/...)",
    "gs": "logs in Google Cloud Storage (gs://bucket/...)",
    "azure": "logs in Azure Blob Storage (abfs://container/...)",
    "tune": "posrec tune",
    "ray": "--engine ray of posrec prepare, score, tune and reproduce",
    "track": "posrec train --track (TensorBoard)",
}
GIB = 2**30


@dataclass(frozen=True)
class Package:
    """A library that posrec can use."""

    name: str
    version: str | None  # None if it is not installed
    wanted: str  # the versions that posrec works with, such as >=2.12


@dataclass(frozen=True)
class Extra:
    name: str
    gives: str
    missing: list[str]  # packages that are not installed


@dataclass(frozen=True)
class Diagnosis:
    posrec: str
    python: str
    system: str
    cores: int  # that this process may use
    threads: int  # that torch computes with
    memory: int  # bytes, of the machine
    free_disk: int  # bytes, in the current folder
    gpus: list[str]
    required: list[Package]
    extras: list[Extra]
    problems: list[str]

    def as_json(self) -> dict[str, Any]:
        return asdict(self)


def diagnose() -> Diagnosis:
    """Look at the machine and at the installed packages; torch is loaded for it."""
    import torch

    packages = requirements()
    required = [package for package, extra in packages if extra is None]
    extras = [
        Extra(name, gives, [one.name for one, extra in packages if extra == name and one.version is None])
        for name, gives in EXTRAS.items()
    ]
    gpus = [
        f"{torch.cuda.get_device_name(number)}, {torch.cuda.get_device_properties(number).total_memory / GIB:.0f} GiB"
        for number in range(torch.cuda.device_count())
    ]
    problems = [f"{one.name} is required ({one.wanted}) and not installed" for one in required if one.version is None]
    if torch.version.cuda and not gpus:
        problems.append(f"torch was built for CUDA {torch.version.cuda} and sees no GPU; it computes on the CPU")
    if torch.get_num_threads() > usable_cores():
        problems.append(f"{torch.get_num_threads()} threads on {usable_cores()} usable cores ({THREADS}) are slow")
    return Diagnosis(
        posrec.__version__,
        f"{platform.python_version()} ({sys.executable})",
        f"{platform.system()} {platform.machine()}",
        usable_cores(),
        torch.get_num_threads(),
        machine_memory(),
        shutil.disk_usage(Path.cwd()).free,
        gpus,
        required,
        extras,
        problems,
    )


def requirements() -> list[tuple[Package, str | None]]:
    """The packages that the installed posrec names, each with the extra that it belongs to."""
    packages = []
    try:
        lines = metadata.requires("posrec") or []
    except metadata.PackageNotFoundError:  # it runs from its source, and nothing is known of what it needs
        lines = []
    for line in lines:
        requirement, _, condition = line.partition(";")
        extra = condition.partition("extra ==")[2].strip(" \"'") or None
        name = requirement
        for sign in "<>=!~[ (":
            name = name.partition(sign)[0]
        packages.append((Package(name, installed_version(name), requirement[len(name) :].strip()), extra))
    return packages


def installed_version(name: str) -> str | None:
    try:
        return metadata.version(name)
    except metadata.PackageNotFoundError:
        return None
