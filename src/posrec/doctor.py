"""What posrec finds on this machine, and what each extra would add."""

import platform
import re
import shutil
import sys
from importlib import metadata
from pathlib import Path
from typing import Any

from posrec.device import THREADS, machine_memory, usable_cores
from posrec.version import __version__

# What each extra of pyproject.toml is for.
EXTRAS = {
    "serve": "posrec serve, posrec export --onnx",
    "scale": "posrec export --index, and serving more than a million items",
    "s3": "logs in S3 (s3://bucket/...)",
    "gs": "logs in Google Cloud Storage (gs://bucket/...)",
    "azure": "logs in Azure Blob Storage (abfs://container/...)",
    "ray": "--engine ray of posrec prepare, score, tune and reproduce",
    "track": "posrec train --track tensorboard",
    "mlflow": "posrec train --track mlflow",
}
GIB = 2**30
# A requirement of an extra is written faiss-cpu>=1.10; extra == "scale".
REQUIREMENT = re.compile(r"([\w.-]+)([^;]*)(?:;.*?(?:extra == [\"'](.+)[\"'])?)?")


def diagnose() -> dict[str, Any]:
    """What `posrec doctor --json` prints; sizes are in bytes."""
    import torch

    required = packages_of(None)
    threads = torch.get_num_threads()
    gpus = []
    for number in range(torch.cuda.device_count()):
        gpu = torch.cuda.get_device_properties(number)
        gpus.append(f"{gpu.name}, {gpu.total_memory / GIB:.0f} GiB")
    problems = [
        f"{package['name']} is required ({package['wanted']}) and not installed"
        for package in required
        if package["version"] is None
    ]
    if torch.version.cuda and not gpus:
        cuda = torch.version.cuda
        problems.append(
            f"torch was built for CUDA {cuda} and sees no GPU; it computes on the CPU"
        )
    cores = usable_cores()
    if threads > cores:
        problems.append(
            f"{threads} threads on {cores} usable cores ({THREADS}) are slow"
        )
    return {
        "posrec": __version__,
        "python": f"{platform.python_version()} ({sys.executable})",
        "system": f"{platform.system()} {platform.machine()}",
        "cores": cores,
        "threads": threads,
        "memory": machine_memory(),
        "free_disk": shutil.disk_usage(Path.cwd()).free,
        "gpus": gpus,
        "required": required,
        "extras": [
            {"name": extra, "gives": gives, "missing": missing(packages_of(extra))}
            for extra, gives in EXTRAS.items()
        ],
        "problems": problems,
    }


def missing(packages: list[dict[str, str | None]]) -> list[str | None]:
    return [package["name"] for package in packages if package["version"] is None]


def packages_of(extra: str | None) -> list[dict[str, str | None]]:
    """The packages that an extra names, or that posrec always needs, with their versions."""
    try:
        lines = metadata.requires("posrec") or []
    except metadata.PackageNotFoundError:
        return []  # it runs from its source, and what it needs is not known
    packages = []
    for line in lines:
        name, wanted, of_extra = REQUIREMENT.fullmatch(line).groups()  # type: ignore[union-attr]
        if of_extra == extra:
            version = installed_version(name)
            packages.append(
                {"name": name, "version": version, "wanted": wanted.strip()}
            )
    return packages


def installed_version(name: str) -> str | None:
    try:
        return metadata.version(name)
    except metadata.PackageNotFoundError:
        return None
